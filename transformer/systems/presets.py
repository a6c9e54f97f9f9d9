"""Every preset of every system."""

from collections.abc import Mapping

from transformer.config import Config
from transformer.systems.registry import REGISTRY, Preset, options_of

PRESETS: dict[str, Config] = {}
"""By name."""
GROUPS: dict[str, dict[str, str]] = {}
"""What each is, by group, in display order."""


def add(system: str, presets: Mapping[str, Preset]) -> None:
    """Adds the presets of a system to both tables."""
    for name, (config, about, group) in presets.items():
        PRESETS[name] = config
        GROUPS.setdefault(group or f"system {system}", {})[name] = about


for _name in REGISTRY:
    add(_name, options_of(_name).presets)
