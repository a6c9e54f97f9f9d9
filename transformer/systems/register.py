"""Adds systems from outside this package."""

import inspect
import re
from typing import Any

from transformer.config import Config
from transformer.runtime.errors import UserError
from transformer.systems.presets import PRESETS, VARIANTS, add
from transformer.systems.registry import REGISTRY, Options, Preset, Registered
from transformer.systems.system import System
from transformer.systems.variants import Variant
from transformer.tasks.task import Task


def register(name: str, options: Options, system: System) -> None:
    """Adds a system, so that training, decoding, resuming and reports work with it.

    Args:
      name: for `--system` and config.json.
      options: its options, presets and help texts.
      system: what training and decoding need.

    Raises:
      UserError: a name is taken or unusable, or an argument is of the wrong kind.
    """
    if not re.fullmatch("[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"system {name!r}: its name must consist of small letters, digits, - and _")
    if name in REGISTRY:
        raise UserError(f"system {name} is registered already: choose another name")
    for argument, kind in ((options, Options), (system, System)):
        if not isinstance(argument, kind):
            raise UserError(
                f"system {name}: must be a transformer.{kind.__name__}, not {type(argument).__name__}"
            )
    types = options.model, options.decoding, options.data
    if wrong := [kind for kind in types if not isinstance(kind, type)]:
        raise UserError(f"system {name}: {wrong[0]!r} must be a type of options, not options")
    for preset, described in options.presets.items():
        if not isinstance(described, Preset) or described.config.system != name:
            raise UserError(f"preset {preset}: must be a transformer.Preset of a config with system={name!r}")
    for variant, change in options.variants.items():
        if not isinstance(change, Variant):
            raise UserError(f"variant {variant}: must be a transformer.Variant, not {type(change).__name__}")
    _check_task(system.task)
    try:
        inspect.signature(system.objective).bind(Config(), None)
    except TypeError as error:
        raise UserError(
            f"system {name}: its objective must be a function of the config and of a function that loads a "
            f"teacher, such as lambda config, load_teacher: OBJECTIVE ({error})"
        ) from None
    taken = [f"preset {preset}" for preset in options.presets if preset in PRESETS]
    taken += [f"variant {variant}" for variant in options.variants if variant in VARIANTS]
    if taken:
        raise UserError(f"{taken[0]} is registered already: choose another name")
    REGISTRY[name] = Registered(options, system)
    add(name, options)


def _check_task(task: Any) -> None:
    """Raises UserError if something that every task must have is missing."""
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise UserError(f"task {getattr(task, '__name__', task)}: must be a subclass of transformer.Task")
    missing = sorted(getattr(task, "__abstractmethods__", ()))
    missing += [name for name in ("criterion",) if not hasattr(task, name)]
    if missing:
        raise UserError(f"task {task.__name__}: define {', '.join(missing)}, as transformer.Task describes")
