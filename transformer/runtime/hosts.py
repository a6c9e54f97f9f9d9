"""Several processes as one job, on one host or many: joins JAX's distributed runtime, communicates, and moves
arrays between processes, hosts and devices.

With a single process, these functions cost nothing.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.runtime.errors import UserError
from transformer.runtime.machine import signals_handled
from transformer.runtime.supervision import HEARTBEAT, end_with_parent, is_child, supervise

# Refuses JAX in a forked process, where it would hang.


_forked = False


def _note() -> None:
    """Notes in the child whether the parent was using JAX, which has no public function for this."""
    global _forked
    _forked = _forked or bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))


os.register_at_fork(after_in_child=_note)


def refuse_forked() -> None:
    """Raises UserError in a process that was forked from one that used JAX."""
    if _forked:
        raise UserError(
            "this process was forked from one that used JAX, which would hang here: start it with "
            "multiprocessing.get_context('spawn') and load the model there, or use threads"
        )


T = TypeVar("T")
R = TypeVar("R")


_SIZES = {
    "SLURM": ("SLURM_NTASKS", "SLURM_PROCID"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
}
"""Where launchers say how many processes there are, and which one this is."""
_ALONE = "To run alone, add --hosts.processes 1"
_given: list[str] = []  # the options that this process was given


def hosts_given() -> tuple[str, ...]:
    """The options with which this process joined the job, to give them again; none if a launcher has them."""
    return tuple(_given)


def cluster(environment: Mapping[str, str]) -> str | None:
    """The launcher that started several processes, recognised by its environment variables, or None."""

    def several(name: str) -> bool:
        return environment.get(name, "").isdigit() and int(environment[name]) > 1

    if several("OMPI_COMM_WORLD_SIZE"):  # also in a job of SLURM
        return "Open MPI"
    if "SLURM_PROCID" in environment and several("SLURM_NTASKS"):
        return "SLURM"
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        return "Cloud TPU"
    return None


def join(coordinator: str | None, processes: int | None, process: int | None, heartbeat: int) -> None:
    """Joins this process to the job. Call it before JAX is used for anything else. The work then continues
    in a child process, which this one supervises (see `transformer.runtime.supervision`).

    Args:
      coordinator: HOST:PORT of the main process. None asks the launcher, if there is one.
      processes: how many there are. None asks the launcher. 1: this one runs alone, whatever started it.
      process: the index of this one, from 0. None asks the launcher.
      heartbeat: seconds without a sign of life after which a process counts as lost.

    Raises:
      UserError: the other processes cannot be reached, or were never started.
    """
    values: dict[str, object] = {"coordinator": coordinator, "processes": processes, "process": process}
    if heartbeat != HEARTBEAT:
        values["heartbeat"] = heartbeat
    words = [(f"--hosts.{name}", str(value)) for name, value in values.items() if value is not None]
    _given[:] = [word for pair in words for word in pair]
    launcher = cluster(os.environ)
    if processes == 1 or (coordinator is None and launcher is None):
        if "heartbeat" in values and processes is None:
            print("--hosts.heartbeat has no effect: no launcher started this process", file=sys.stderr)
        return
    if coordinator is None and launcher == "SLURM" and "SLURM_STEP_NODELIST" not in os.environ:
        raise UserError(
            f"SLURM's job has {os.environ['SLURM_NTASKS']} tasks (SLURM_NTASKS), and this command is not "
            f"started by srun: it would wait for {_others(launcher)}, which nobody starts. Put srun before "
            f"the command. {_ALONE}"
        )
    if not is_child():
        raise SystemExit(supervise(heartbeat))
    end_with_parent()
    if coordinator is None:
        awaited, where = _others(launcher), f"of {launcher}"
    else:
        awaited, where = _numbered(processes, process), f"at {coordinator}"
    print(f"Waiting for {awaited} {where}. {_ALONE}", file=sys.stderr)
    try:
        # signals end this process at once: Python's handlers do not run while native code waits
        with signals_handled(signal.SIG_DFL, signal.SIGINT, signal.SIGTERM):
            jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=heartbeat)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"cannot join the other processes ({str(error).splitlines()[0]}): can all of them reach "
            f"{coordinator or 'each other'}?"
        ) from error


def _others(launcher: str | None) -> str:
    """The other processes, by what a launcher says."""
    size, index = (os.environ.get(name, "") for name in _SIZES.get(launcher or "", ("", "")))
    is_known = size.isdigit() and index.isdigit()
    return _numbered(int(size), int(index)) if is_known else "the other processes"


def _numbered(processes: int | None, process: int | None) -> str:
    if processes is None:
        return "the other processes"
    other_indices = [str(index) for index in range(processes) if index != process]
    if len(other_indices) == 1:
        return f"process {other_indices[0]}"
    return f"{len(other_indices)} processes (all from 0 to {processes - 1} but {process})"


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
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


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
    shares = gathered(done)
    if failed := next((reason for _, reason in shares if reason), ""):
        raise UserError(failed)
    return [result for results, _ in shares for result in results]


# Where arrays are: those of several processes as one, in host memory, on the devices of this process.


S = TypeVar("S")
ROWS = "rows"


def as_global_arrays(tree: S) -> S:
    """A tree as Orbax saves it from several processes: the arrays that `jax.pmap` leaves on each process
    become global arrays, replicated on all devices."""
    if jax.process_count() == 1:
        return tree
    replicated = NamedSharding(_mesh(jax.devices()), PartitionSpec())

    def as_global(x: jax.Array) -> jax.Array:
        if not x.is_fully_addressable:
            return x
        return jax.make_array_from_process_local_data(replicated, np.asarray(x))

    return jax.tree.map(as_global, tree)


def on_host(tree: S) -> S:
    """A tree of arrays in this process's memory, whole. All processes must call it."""

    def whole(x: Any) -> Any:
        if isinstance(x, jax.Array) and not (x.is_fully_replicated or x.is_fully_addressable):
            from jax.experimental import multihost_utils

            return multihost_utils.process_allgather(x, tiled=True)
        return np.asarray(x)

    return jax.tree.map(whole, tree)


def on_local_devices(tree: S) -> S:
    """A tree of arrays on the devices of this process: replicated, or still sharded if that is how they are
    on exactly these devices."""
    devices = jax.local_devices()
    replicated = NamedSharding(_mesh(devices), PartitionSpec())

    def local(x: Any) -> jax.Array:
        if not isinstance(x, jax.Array):
            return jax.device_put(x, replicated)
        if x.sharding.device_set == set(devices):
            return x
        return jax.device_put(on_host(x), replicated)

    return jax.tree.map(local, tree)


def on_one_cpu() -> bool:
    """Whether the only device is a CPU, not split into virtual devices."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def shard_rows(*arrays: np.ndarray) -> list[jax.Array]:
    """Arrays with their rows split over the devices of this process, or replicated if the devices do not
    divide the rows."""
    devices = jax.local_devices()
    uneven = len(arrays[0]) % len(devices)
    sharding = NamedSharding(_mesh(devices), PartitionSpec() if uneven else PartitionSpec(ROWS))
    return [jax.device_put(rows, sharding) for rows in arrays]


def _mesh(devices: list[jax.Device]) -> Mesh:
    return Mesh(np.array(devices), (ROWS,))
