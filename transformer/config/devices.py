"""Options of devices and processes."""

from dataclasses import dataclass
from typing import Annotated

from transformer.config.ranges import Range, check_ranges
from transformer.runtime.errors import UserError


@dataclass(frozen=True)
class MeshConfig:
    """Sharding. With fsdp = tensor = 1, every device holds the whole model (`jax.pmap`)."""

    fsdp: Annotated[int, Range(1, 2**16)] = 1
    """Number of shards of parameters and optimizer state. Parameters are gathered when needed; each shard
    processes a part of the batch."""
    tensor: Annotated[int, Range(1, 2**16)] = 1
    """Number of shards of heads, feed-forward layers and vocabulary, which process the same rows. The
    remaining devices split the batch."""

    def __post_init__(self) -> None:
        check_ranges("mesh", self)


@dataclass(frozen=True)
class HostsConfig:
    """Distributed job. SLURM, Open MPI and Cloud TPUs are detected automatically."""

    coordinator: str | None = None
    """HOST:PORT of the main process, reachable from all others."""
    processes: int | None = None
    """Number of processes of this job."""
    process: int | None = None
    """Index of this process, from 0."""
    heartbeat: int = 60
    """Seconds without a sign of life after which a process counts as lost, and the others end."""

    def __post_init__(self) -> None:
        options = (self.coordinator, self.processes, self.process)
        if None in options and options != (None, None, None):
            raise UserError(
                "--hosts.coordinator, --hosts.processes and --hosts.process: give all three, or none"
            )
        if self.processes is not None and self.processes < 1:
            raise UserError(f"--hosts.processes {self.processes} must be at least 1")
        if self.processes is not None and not 0 <= (self.process or 0) < self.processes:
            raise UserError(f"--hosts.process {self.process} must be from 0 to {self.processes - 1}")
        if self.coordinator is not None:
            host, _, port = self.coordinator.rpartition(":")
            if not (host and port.isdecimal() and 0 < int(port) < 2**16):
                raise UserError(
                    f"--hosts.coordinator {self.coordinator}: give HOST:PORT, the port from 1 to 65535"
                )
        if self.heartbeat < 1:
            raise UserError("--hosts.heartbeat must be at least 1 second")
