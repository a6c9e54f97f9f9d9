"""Every preset of every system, every variant, and the registration of systems from outside."""

import contextlib
import functools
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.config.options import Config
from transformer.runtime.errors import UserError, command_for, nearest
from transformer.systems.registry import (
    REGISTRY,
    Options,
    Preset,
    Registered,
    Variant,
    as_option,
    load_entry_points,
    options_of,
    unknown,
)
from transformer.systems.system import System
from transformer.tasks.task import Task

PRESETS: dict[str, Config] = {}
"""By name."""
VARIANTS: dict[str, Variant] = {}
"""By name."""
PRESET_GROUPS: dict[str, dict[str, str]] = {}
VARIANT_GROUPS: dict[str, dict[str, str]] = {}
"""What each is, by group, in display order."""


def add(system: str, options: Options) -> None:
    """Adds the presets and variants of a system to the tables."""
    for name, (config, about, group) in options.presets.items():
        PRESETS[name] = config
        PRESET_GROUPS.setdefault(group or f"system {system}", {})[name] = about
    for name, change in options.variants.items():
        VARIANTS[name] = change
        VARIANT_GROUPS.setdefault(change.group or f"system {system}", {})[name] = change.described
    every_system.cache_clear()


@functools.cache
def every_system() -> Mapping[str, Config]:
    """By the words of a command line: the presets, and the variants that are for their systems only."""
    configs = dict(PRESETS)
    for (base, config), (name, change) in itertools.product(PRESETS.items(), VARIANTS.items()):
        if config.system in change.systems:
            with contextlib.suppress(UserError):  # some do not go together
                configs[f"{base} --variant {name}"] = change.of(config)
    return configs


for _name in REGISTRY:
    add(_name, options_of(_name))


def preset(name: str) -> Config:
    """The preset of that name.

    Raises:
      UserError: there is none.
    """
    return PRESETS[_known(name, PRESETS, "preset")]


def variant(config: Config, *names: str) -> Config:
    """A variant of a preset, or of any config: `variant(PRESETS["tiny"], "rdrop")`.

    Args:
      config: what to change.
      names: of the variants, which change it one after the other.

    Raises:
      UserError: there is no such variant; it does not fit the system or the other options.
    """
    _check_disjoint(names)
    changed = config
    for name in names:
        change = VARIANTS[name]
        try:
            changed = change.of(changed)
        except UserError as error:
            remedy = f"it fits {', '.join(_fitting(change)) or 'no preset'}"
            if changed is not config and _fits(change, config):
                remedy = "leave out the variants before it"
            raise UserError(f"variant {name}: {error}; {remedy}") from error
    return changed


def _check_disjoint(names: Sequence[str]) -> None:
    """Raises UserError if there is no variant of such a name, or two change the same option."""
    owners: dict[str, str] = {}
    for name in names:
        for option in VARIANTS[_known(name, VARIANTS, "variant")].options:
            if owner := owners.get(option):
                twice = (
                    "is given twice" if owner == name else f"and --variant {owner} change {as_option(option)}"
                )
                raise UserError(f"--variant {name} {twice}: leave one of them out")
            owners[option] = name


def _fits(change: Variant, config: Config) -> bool:
    with contextlib.suppress(UserError):
        change.of(config)
        return True
    return False


def _fitting(change: Variant) -> list[str]:
    """The presets that a variant fits."""
    return [name for name, config in PRESETS.items() if _fits(change, config)]


def _known(name: str, table: Mapping[str, object], kind: str) -> str:
    """The name. Raises UserError if the table does not have it, even with the systems of other packages."""
    if name not in table:
        load_entry_points()
    if name not in table:
        hint = _as_variant(name) or nearest(name, table) or "; see --list-presets"
        raise unknown(f"no {kind} {name!r}{hint}")
    return name


def _as_variant(name: str) -> str:
    """The command for a name that joins a preset and a variant, or is a variant's, as a hint; or nothing."""
    parts = name.split("-")
    for count in range(len(parts)):
        base, rest = "-".join(parts[:count]) or "PRESET", "-".join(parts[count:])
        if base in ("PRESET", *PRESETS) and rest in VARIANTS:
            return f": use {command_for('train')} {base} --variant {rest}"
    return ""


# Adds systems from outside this package.


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
