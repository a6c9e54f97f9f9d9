"""Paths to the text of a run come from the command line, never from the run directory.

A run directory may come from anyone. Paths in its config that lead outside, such as the training text, are
opened only if the user gives them again.
"""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from transformer.config.corpus import DataConfig
from transformer.config.options import Config, flatten
from transformer.runtime.errors import UserError
from transformer.runtime.files import display_path

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", Config, DataConfig)
NOT_OPENED = ("cache_dir", "source_tokenizer", "target_tokenizer", "add_tokens")  # after a run has started
STARTS = ("training.init_from", "training.init_encoder_from")
"""Runs that a run starts from."""


def locations(config: "DataclassInstance", prefix: str = "") -> dict[str, Path]:
    """The paths in a config, by dotted name. For a section, the prefix is its name and a dot."""
    return {name: value for name, value in flatten(config, prefix).items() if isinstance(value, Path)}


def as_options(paths: dict[str, Path]) -> str:
    """Paths as options of a command line, quoted for a shell."""
    return "".join(
        f" --{name.replace('_', '-')} {shlex.quote(display_path(path))}"
        for name, path in sorted(paths.items())
    )


def without_locations(config: C) -> C:
    """The config with None for every path."""
    return _replaced(config, dict.fromkeys(locations(config)))


def to_resume(paths: dict[str, Path], has_checkpoint: bool, is_adapter: bool) -> dict[str, Path]:
    """Those of a run's paths that a command has to name to resume it as before: its text, its cache and,
    until it has a checkpoint, the run that it starts from; that of an adapter always."""
    unused = {f"data.{name}" for name in NOT_OPENED} - {"data.cache_dir"}
    unused |= {*STARTS} if has_checkpoint else set()
    unused -= {"training.init_from"} if is_adapter else set()
    return {name: path for name, path in paths.items() if name not in unused}


def check_given(option_paths: dict[str, Path], stored_paths: dict[str, Path], run_dir: Path) -> None:
    """Raises UserError if a stored path that would be opened was not given again."""
    needed = {name: path for name, path in stored_paths.items() if name.split(".")[-1] not in NOT_OPENED}
    if missing := needed.keys() - option_paths.keys():
        options = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(missing))
        raise UserError(
            f"{display_path(run_dir)}: give {options} again, since paths stored in a run directory are "
            f"not opened by default. It was started with{as_options(needed)}"
        )


def completed(config: Config, stored: Config, run_dir: Path, has_checkpoint: bool) -> Config:
    """The config to continue a run with.

    Args:
      config: the command line's, parsed with `without_locations(stored)` as the default.
      stored: the run's.
      run_dir: for the message.
      has_checkpoint: whether it has a checkpoint; then no run is opened that it started from, except for the
        model of an adapter, which is beside it or given again.

    Raises:
      UserError: a path that would be opened was not given again.
    """
    option_paths = locations(config)
    stored_paths = locations(stored)
    stored_paths.pop("data.cache_dir", None)
    unopened = {name: path for name, path in stored_paths.items() if name.split(".")[-1] in NOT_OPENED}
    for start in (name for name in STARTS if has_checkpoint and name in stored_paths):
        path = stored_paths.pop(start)
        if not stored.adapter.rank:
            unopened[start] = path
    check_given(option_paths, stored_paths, run_dir)
    return _replaced(config, {name: path for name, path in unopened.items() if name not in option_paths})


def _replaced(config: C, values: dict[str, Path | None]) -> C:
    """The config with some fields replaced, by dotted name."""
    here = {name: value for name, value in values.items() if "." not in name}
    sections: dict[str, dict[str, Path | None]] = {}
    for name, value in values.items():
        if "." in name:
            section, _, rest = name.partition(".")
            sections.setdefault(section, {})[rest] = value
    for section, inner in sections.items():
        here[section] = _replaced(getattr(config, section), inner)
    return dataclasses.replace(config, **here)  # type: ignore[arg-type]
