"""Where arrays are: those of several processes as one, in host memory, on the devices of this process."""

from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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
