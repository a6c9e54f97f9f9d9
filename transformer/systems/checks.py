"""What a config may ask of its system, and what is decided where it leaves that open."""

from dataclasses import replace
from typing import Any

import numpy as np

from transformer.config import Config, DataConfig, DecodingConfig, check_beam
from transformer.config.decoding import methods_of
from transformer.decoding.search import AutoregressiveSearch
from transformer.runtime.errors import UserError
from transformer.systems.registry import find_system, options_of
from transformer.systems.system import System
from transformer.tasks.outputs import DecodingTask


def packs(config: Config) -> bool:
    """Whether a row may have several sentences."""
    return find_system(config.system).packs and not config.model.packing_conflict and not config.reward.share


def decided_for(config: Config, platform: str) -> Config:
    """The config with what depends on the kind of device, "cpu", "gpu" or "tpu", as far as it is left open:
    on accelerators the fastest precision and batches that the system supports."""
    accelerated = platform != "cpu"
    dtype: Any = config.model.DTYPES[-1] if accelerated else "float32"
    if config.model.dtype == "auto":
        config = replace(config, model=replace(config.model, dtype=dtype))
    if config.data.batching == "auto":
        batching: Any = "packed" if accelerated and packs(config) else "buckets"
        config = replace(config, data=replace(config.data, batching=batching))
    return config


def check_search(system: System, task: DecodingTask, settings: DecodingConfig) -> None:
    """Raises UserError if a system cannot search with these options."""
    if isinstance(system.search, AutoregressiveSearch):
        check_beam(settings, task.config.model)
    if getattr(settings, "coverage_penalty", 0):
        option, name = "--decoding.coverage-penalty", task.config.system
        if system.alignment is None:
            raise UserError(f"{option}: {name} has no alignments; leave it out")
        if not np.issubdtype(task.fields[task.inputs[0]].dtype, np.integer):
            raise UserError(f"{option}: what {name} reads has no words to cover; leave it out")
    task.check_search(settings)


def check_system(config: Config) -> None:
    """Raises UserError if parts of a config belong to another system."""
    system = find_system(config.system)
    options = options_of(config.system)
    as_declared = (type(config.model), type(config.data)) == (options.model, options.data)
    if not as_declared or type(config.decoding) not in methods_of(options.decoding).values():
        raise UserError(
            f"--system {config.system}: start from one of its presets; these options belong to another system"
        )
    if isinstance(config.data, DataConfig) and config.data.tokenizer == "open-word" and not system.copies:
        raise UserError(
            f"--data.tokenizer open-word: {config.system} cannot output out-of-vocabulary words; use word"
        )
    if config.data.batching == "packed" and (config.model.packing_conflict or not system.packs):
        what = config.model.packing_conflict or config.system
        raise UserError(
            f"--data.batching packed: {what} reads one sentence per row; use --data.batching buckets"
        )
    if config.training.accumulate > 1 and config.model.needs_whole_batch:
        raise UserError(
            f"--training.accumulate {config.training.accumulate}: {config.model.needs_whole_batch} needs the "
            "statistics of the whole batch; leave one of them out"
        )
