"""Several processes as one job, on one host or many: joins JAX's distributed runtime, and communicates.

With a single process, these functions cost nothing.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import jax
import numpy as np

from transformer.runtime.errors import UserError
from transformer.runtime.supervision import end_with_parent, is_child, supervise

T = TypeVar("T")
R = TypeVar("R")


def cluster(environment: Mapping[str, str]) -> str | None:
    """The launcher that started several processes, recognised by its environment variables, or None."""

    def several(name: str) -> bool:
        return environment.get(name, "").isdigit() and int(environment[name]) > 1

    if "SLURM_PROCID" in environment and several("SLURM_NTASKS"):
        return "SLURM"
    if several("OMPI_COMM_WORLD_SIZE"):
        return "Open MPI"
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        return "Cloud TPU"
    return None


def join(coordinator: str | None, processes: int | None, process: int | None, heartbeat: int) -> None:
    """Joins this process to the job. Call it before JAX is used for anything else. The work then continues
    in a child process, which this one supervises (see `transformer.runtime.supervision`).

    Args:
      coordinator: HOST:PORT of the main process. None asks the launcher, if there is one.
      processes: how many there are. None asks the launcher.
      process: the index of this one, from 0. None asks the launcher.
      heartbeat: seconds without a sign of life after which a process counts as lost.

    Raises:
      UserError: the other processes cannot be reached.
    """
    if coordinator is None and cluster(os.environ) is None:
        return
    if processes == 1:
        return
    if not is_child():
        raise SystemExit(supervise(heartbeat))
    end_with_parent()
    print(f"Waiting for the other processes at {coordinator or 'the coordinator'}", file=sys.stderr)
    try:
        with _ended_by_signals():
            jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=heartbeat)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"cannot join the other processes ({str(error).splitlines()[0]}): can all of them reach "
            f"{coordinator or 'each other'}?"
        ) from error


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end this process at once: Python's handlers do not run while native code waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_main_process() -> bool:
    """Whether this is the process that prints and writes."""
    return jax.process_index() == 0


def barrier(what: str) -> None:
    """Waits until all processes have reached this point."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def gathered(item: T) -> list[T]:
    """The JSON values of all processes, in the order of their indices."""
    if jax.process_count() == 1:
        return [item]
    from jax.experimental import multihost_utils

    encoded = np.frombuffer(json.dumps(item).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([len(encoded)])).ravel()
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: len(encoded)] = encoded
    everything = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(one[:size])) for one, size in zip(everything, sizes, strict=True)]


def by_turns(items: list[T], work: Callable[[list[T]], list[R]]) -> list[R]:
    """Returns all of `work(items)`, in order, on every process; each process computes a part of it.

    Raises:
      UserError: of any process, on all of them.
    """
    if jax.process_count() == 1:
        return work(items)
    size = -(-len(items) // jax.process_count())
    share = items[jax.process_index() * size :][:size]
    try:
        done: tuple[list[R], str] = work(share), ""
    except UserError as error:
        done = [], str(error)
    parts = gathered(done)
    if failed := next((reason for _, reason in parts if reason), ""):
        raise UserError(failed)
    return [result for results, _ in parts for result in results]
