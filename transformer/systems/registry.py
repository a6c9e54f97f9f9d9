"""The registry of systems. A config names its system; the training step, the loop and the searches do not
depend on it. Reading a config imports the options of its system, and no model.

Other packages bring systems: their entry points in the group `transformer.systems` name modules that call
`transformer.register`. They are imported when a name is not known here.
"""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from transformer.config import (
    BeamConfig,
    Config,
    CorpusConfig,
    DataConfig,
    DecodingConfig,
    ModelConfig,
    TransformerConfig,
)
from transformer.runtime.errors import UserError
from transformer.systems.common_options import COMMON
from transformer.systems.variants import Variant

if TYPE_CHECKING:
    from transformer.systems.system import System

GROUP = "transformer.systems"
DEFAULT_TASK = DataConfig.task


class Preset(NamedTuple):
    """A named configuration."""

    config: Config
    about: str
    """What it is, in a line."""
    group: str = ""
    """The group of presets that lists it. Empty: that of its system."""


@dataclass(frozen=True)
class Options:
    """The options of a system, with its presets and help texts."""

    model: type[ModelConfig] = TransformerConfig
    """Type of its model options."""
    decoding: type[DecodingConfig] = BeamConfig
    """Type of its search options. A type of its own is for all its methods."""
    data: type[CorpusConfig] = DataConfig
    """Type of its corpus options."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    """Configurations by name."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Changes of configurations by name."""
    common: Mapping[str, str] = field(default_factory=lambda: COMMON)
    """What most people need, for `train.py --help`: options, and what they do."""
    decodes: str = (
        "Translate text with a trained model: {decode} RUN < in > out. One line in, one line out; an empty "
        "line stays empty. {search}\n\nSee why: {decode} RUN --input FILE --explore page.html"
    )
    """What decode.py does with a run, for its --help. {decode} is the command, {search} a sentence on its
    options."""


class Registered(NamedTuple):
    """A system from outside this package."""

    options: Options
    system: "System"


REGISTRY: dict[str, str | Registered] = {
    "transformer": "transformer.systems.transformer",
    "recurrent": "transformer.systems.recurrent",
    "convolutional": "transformer.systems.convolutional",
    "fast-autoregressive": "transformer.systems.fast_autoregressive",
    "nonautoregressive": "transformer.systems.nonautoregressive",
    "copying": "transformer.systems.copying",
    "language-model": "transformer.systems.language_model",
    "masked-lm": "transformer.systems.masked_language_model",
    "tagging": "transformer.systems.tagging",
    "speech": "transformer.systems.speech",
    "synthesis": "transformer.systems.synthesis",
    "nonautoregressive-synthesis": "transformer.systems.nonautoregressive_synthesis",
    "captioning": "transformer.systems.captioning",
    "detection": "transformer.systems.detection",
}
"""Every system by name. One of this package is a folder with `OPTIONS` in options.py and `SYSTEM` in
system.py, which are imported when they are needed."""


def options_of(name: str) -> Options:
    """The options of a system.

    Raises:
      UserError: there is no such system.
    """
    entry = _entry(name)
    if isinstance(entry, Registered):
        return entry.options
    options: Options = importlib.import_module(f"{entry}.options").OPTIONS
    return options


def find_system(name: str) -> "System":
    """The system of that name.

    Raises:
      UserError: there is no such system.
    """
    entry = _entry(name)
    if isinstance(entry, Registered):
        return entry.system
    system: System = importlib.import_module(f"{entry}.system").SYSTEM
    return system


def system_of(config: Config) -> "System":
    """The system of a config: what can be done with its model, with the task that `--data.task` names if it
    reads and writes text.

    Raises:
      UserError: there is no such system, or it has a task of its own.
    """
    system = find_system(config.system)
    system = system.by_model(system, config.model)
    name = getattr(config.data, "task", DEFAULT_TASK)
    if name == DEFAULT_TASK:
        return system
    from transformer.tasks.text_tasks import text_task_of

    if system.task is not text_task_of(DEFAULT_TASK):
        raise UserError(f"--data.task {name}: {config.system} has a task of its own; leave it out")
    return replace(system, task=text_task_of(name))


def is_from_outside(name: str) -> bool:
    """Whether a system comes from another package."""
    return isinstance(_entry(name), Registered)


def _entry(name: str) -> str | Registered:
    if name not in REGISTRY:
        load_entry_points()
    if name not in REGISTRY:
        known = ", ".join(REGISTRY)
        raise unknown(
            f"--system {name}: unknown; there are {known}. Is the package that brings it installed?"
        )
    return REGISTRY[name]


@functools.cache
def load_entry_points() -> tuple[str, ...]:
    """Imports the modules of other packages that register systems. Returns a sentence about each that cannot
    be imported or registers none."""
    import sys
    from importlib import metadata

    failed = []
    for point in metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist else point.value
        is_new, before = point.module not in sys.modules, len(REGISTRY)
        try:
            point.load()
        except Exception as error:
            failed.append(f"the systems of package {package} cannot be imported: {error}")
        else:
            if is_new and len(REGISTRY) == before:
                failed.append(
                    f"package {package} registers no system: {point.value} must call transformer.register"
                )
    return tuple(failed)


def unknown(message: str) -> UserError:
    """The error for a name that no package has brought: which packages have failed, and the message."""
    return UserError("; ".join((*load_entry_points(), message)))
