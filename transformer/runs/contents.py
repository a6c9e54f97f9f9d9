"""Which files of a run directory are sent to a remote one and copied from it, by their names."""

import re
from collections.abc import Mapping
from typing import TypeVar

from transformer.runs.sealed import MANIFEST

T = TypeVar("T")
_HEAVY = re.compile(
    r"checkpoints/[^/]+/(?!metrics/|manifest)|(average|damaged|tensorboard|profile)/|report\.html|memory\.prof"
)


def is_light(name: str) -> bool:
    """Whether a file is copied at once: what is small and always read."""
    return not _HEAVY.match(name)


def checkpoint_of(name: str) -> str:
    """The checkpoint that a file belongs to, or the average; empty for others."""
    parts = name.split("/")
    if parts[0] == "checkpoints" and len(parts) > 1:
        return f"checkpoints/{parts[1]}"
    return parts[0] if parts[0] == "average" else ""


def whole(files: Mapping[str, T]) -> dict[str, T]:
    """The files, by name, that are part of a run and complete: nothing hidden, temporary or local, and no
    checkpoint without its manifest."""
    return {name: about for name, about in files.items() if _is_whole(name, files)}


def _is_whole(name: str, files: Mapping[str, T]) -> bool:
    parts = name.split("/")
    if any(part.startswith(".") or ".orbax-checkpoint-tmp" in part for part in parts) or "" in parts:
        return False  # among them names that would lead out of the folder
    checkpoint = checkpoint_of(name)
    return name != "lock" and (checkpoint in ("", "average") or f"{checkpoint}/{MANIFEST}" in files)
