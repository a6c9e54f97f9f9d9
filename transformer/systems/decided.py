"""What is decided for the kind of device where a config leaves it open."""

from dataclasses import replace
from typing import Any

from transformer.config import Config
from transformer.systems.system import System


def packs(system: System, config: Config) -> bool:
    """Whether a row may have several sentences."""
    return system.packs and not config.model.packing_conflict and not config.reward.share


def decided_for(system: System, config: Config, platform: str) -> Config:
    """The config with what depends on the kind of device, "cpu", "gpu" or "tpu", as far as it is left open:
    on accelerators the fastest precision and batches that the system supports."""
    accelerated = platform != "cpu"
    dtype: Any = config.model.DTYPES[-1] if accelerated else "float32"
    if config.model.dtype == "auto":
        config = replace(config, model=replace(config.model, dtype=dtype))
    if config.data.batching == "auto":
        batching: Any = "packed" if accelerated and packs(system, config) else "buckets"
        config = replace(config, data=replace(config.data, batching=batching))
    return config
