"""Every preset of every system, and every variant."""

import contextlib
import functools
import itertools
from collections.abc import Mapping, Sequence

from transformer.config.options import Config
from transformer.config.ranges import typed
from transformer.runtime.errors import UserError, nearest
from transformer.runtime.invocation import command_for
from transformer.systems.registry import (
    REGISTRY,
    Options,
    Variant,
    as_option,
    load_entry_points,
    options_of,
    unknown,
)

PRESETS: dict[str, Config] = {}
"""By name."""
VARIANTS: dict[str, Variant] = {}
"""By name."""
PRESET_GROUPS: dict[str, dict[str, str]] = {}
VARIANT_GROUPS: dict[str, dict[str, str]] = {}
"""What each is, by group, in display order."""


def add(system: str, options: Options) -> None:
    """Adds the presets and variants of a system to the tables."""
    for name, (config, summary, group) in options.presets.items():
        PRESETS[name] = config
        PRESET_GROUPS.setdefault(group or f"system {system}", {})[name] = summary
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


@typed
def preset(name: str) -> Config:
    """The preset of that name.

    Raises:
      UserError: there is none.
    """
    return PRESETS[_known(name, PRESETS, "preset")]


@typed
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


def _known(name: str, table: Mapping[str, object], noun: str) -> str:
    """The name. Raises UserError if the table does not have it, even with the systems of other packages."""
    if name not in table:
        load_entry_points()
    if name not in table:
        hint = _as_variant(name) or nearest(name, table) or "; see --list-presets"
        raise unknown(f"no {noun} {name!r}{hint}")
    return name


def _as_variant(name: str) -> str:
    """The command for a name that joins a preset and a variant, or is a variant's, as a hint; or nothing."""
    words = name.split("-")
    for count in range(len(words)):
        base, variant_name = "-".join(words[:count]) or "PRESET", "-".join(words[count:])
        if base in ("PRESET", *PRESETS) and variant_name in VARIANTS:
            return f": use {command_for('train')} {base} --variant {variant_name}"
    return ""
