"""Adds systems from outside this package."""

import re

from transformer.errors import UserError
from transformer.systems.presets import PRESETS, add
from transformer.systems.registry import REGISTRY, Options, Preset, Registered
from transformer.systems.system import System


def register(name: str, options: Options, system: System) -> None:
    """Adds a system, so that training, decoding, resuming and reports work with it.

    Args:
      name: for `--system` and config.json.
      options: what it can be told.
      system: what training and decoding need.

    Raises:
      UserError: a name is taken or unusable, or an argument is of the wrong kind.
    """
    if not re.fullmatch("[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"system {name!r}: its name must consist of small letters, digits, - and _")
    for given, kind in ((options, Options), (system, System)):
        if not isinstance(given, kind):
            raise UserError(
                f"system {name}: must be a transformer.{kind.__name__}, not {type(given).__name__}"
            )
    types = options.model, options.decoding, options.data
    if wrong := [kind for kind in types if not isinstance(kind, type)]:
        raise UserError(f"system {name}: {wrong[0]!r} must be a type of options, not options")
    for preset, described in options.presets.items():
        if not isinstance(described, Preset) or described.config.system != name:
            raise UserError(f"preset {preset}: must be a transformer.Preset of a config with system={name!r}")
    if name in REGISTRY:
        raise UserError(f"system {name} is registered already: choose another name")
    if taken := sorted(PRESETS.keys() & options.presets.keys()):
        raise UserError(f"preset {taken[0]} is registered already: choose another name")
    REGISTRY[name] = Registered(options, system)
    add(name, options.presets)
