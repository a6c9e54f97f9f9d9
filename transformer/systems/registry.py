"""The registry of systems. A config names its system; the training step, the loop and the searches do not
depend on it. Reading a config imports the options of its system, and no model.

Other packages bring systems: their entry points in the group `transformer.systems` name modules that call
`transformer.register`. They are imported when a name is not known here.
"""

import functools
import importlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer.config.corpus import CorpusConfig, DataConfig
from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.model import ModelConfig
from transformer.config.options import Config, as_word
from transformer.config.ranges import Option, typed
from transformer.config.transformer import TransformerConfig
from transformer.runtime.errors import UserError, nearest

if TYPE_CHECKING:
    from transformer.systems.system import System


# The options that `train.py --help` lists.


COMMON = {
    "run_dir": "run directory; an existing run is resumed",
    "training.init_from": "a trained or imported run to initialise from",
    "training.init_encoder_from": "a run to take only the encoder of",
    "data.train_source": "text, a sentence a line; also --data.train-target",
    "data.train": "or a table: .jsonl, .tsv, .parquet, .tmx; also --data.inputs, --data.target, --data.task",
    "data.dataset": "or the name of a TFDS set",
    "data.tokenizer": "bpe, unigram, char, word, whitespace",
    "data.vocab_size": "size of the vocabulary to train",
    "data.batch_tokens": "batch size in padded tokens per side",
    "data.max_length": "longer training pairs are dropped",
    "model.num_layers": "layers of the encoder, and of the decoder",
    "model.d_model": "width; also --model.d-ff, --model.num-heads",
    "model.dropout": "more for a small corpus, less for a large one",
    "optimizer.peak": "peak learning rate of most schedules",
    "training.steps": "number of updates; or --training.epochs",
    "training.evaluate_every": "updates between evaluations, which save",
    "training.minutes": "stop and save after this time; the same command continues",
    "training.seed": "seed of initial parameters and dropout",
}
"""What most people need to train a model of text, and what it does."""

SMALL_PICTURES: dict[str, Any] = {
    "num_layers": 2,
    "decoder_layers": 2,
    "d_model": 128,
    "d_ff": 256,
    "num_heads": 4,
    "dropout": 0.0,
    "norm": "pre",
    "patch_size": 8,
}
"""Sizes of models that learn from drawings in minutes on a CPU."""
PICTURES = "pictures"  # the group of the presets that see
COMMON_TO_PICTURES = {
    "run_dir": COMMON["run_dir"],
    "training.init_from": "a trained run to initialise from",
    "data.train": "PNG files with their annotations, one a line",
    "data.picture_size": "height and width in pixels",
    "data.batch_tokens": "batch size",
    "model.patch_size": "height and width of a patch in pixels",
    **{name: what for name, what in COMMON.items() if name.partition(".")[0] in ("model", "optimizer")},
    **{name: what for name, what in COMMON.items() if name.startswith("training.") and "init" not in name},
}
"""What most people need to train a model of pictures, and what it does."""


# Variants: changes of presets that have names.


@typed
@dataclass(frozen=True)
class Variant:
    """A change of presets. It has a name in `Options.variants`."""

    about: str
    """What it changes, in a line."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """The values of options by their dotted names, such as {"rdrop.weight": 3.0}."""
    group: str = ""
    """The group of variants that lists it. Empty: that of its system."""
    systems: tuple[str, ...] = ()
    """The systems whose presets it changes. Empty: every system that has these options."""
    change: Callable[[Config], Config] | None = None
    """What it changes before the options, such as the type of the model. None: nothing."""
    continues: bool = False
    """Whether it is for a trained model, given by --init-from."""

    def of(self, config: Config) -> Config:
        """The changed config.

        Raises:
          UserError: the variant does not fit its system; its options do not go together with the others.
        """
        if self.systems and config.system not in self.systems:
            raise UserError(f"it is for system {' or '.join(self.systems)}, not for {config.system}")
        if self.change:
            config = self.change(config)
        sections: dict[str, dict[str, Option]] = {}
        for name, value in self.options.items():
            section, _, option = name.partition(".")
            if not hasattr(getattr(config, section, None), option):
                raise UserError(f"it changes {as_option(name)}, which system {config.system} does not have")
            sections.setdefault(section, {})[option] = value
        return replace(
            config,
            **{section: replace(getattr(config, section), **values) for section, values in sections.items()},
        )

    @property
    def described(self) -> str:
        """What it changes, with its options."""
        return ": ".join(filter(None, (self.about, self.words)))

    @property
    def words(self) -> str:
        """The options of the variant, as on a command line."""
        return " ".join(itertools.starmap(as_words, self.options.items()))


def as_option(name: str) -> str:
    """The option of a dotted name: --model.d-model of model.d_model."""
    return f"--{name.replace('_', '-')}"


def as_words(name: str, value: Option) -> str:
    """An option as on a command line: --model.d-model 512, --model.remat, --decoding.buckets 8 16."""
    if isinstance(value, bool):
        section, dot, option = name.rpartition(".")
        return as_option(name if value else f"{section}{dot}no-{option}")
    return f"{as_option(name)} {as_word(value)}"


def of_system(config: Config, system: str, model: type[ModelConfig]) -> Config:
    """The config with a model of another system, which may not support packed batches. Options that both
    types have keep their values."""
    shared = {item.name for item in fields(model)} & {item.name for item in fields(config.model)}
    values = {name: getattr(config.model, name) for name in shared}
    data = replace(config.data, batching="auto") if config.data.batching == "packed" else config.data
    return replace(config, system=system, model=model(**values), data=data)


GROUP = "transformer.systems"
DEFAULT_TASK = DataConfig.task


@typed
class Preset(NamedTuple):
    """A named configuration."""

    config: Config
    about: str
    """What it is, in a line."""
    group: str = ""
    """The group of presets that lists it. Empty: that of its system."""


@typed
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
    from transformer.tasks.texts import text_task_of

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
        hint = f"; there are {', '.join(REGISTRY)}. Is the package that brings it installed?"
        raise unknown(f"--system {name}: unknown{nearest(name, REGISTRY) or hint}")
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
