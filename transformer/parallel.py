"""Spreading work over devices: `jax.pmap` for the steps, rows dealt out evenly.

The state is one replicated array per leaf, with no leading device axis (pmap's in_axes and
out_axes of None): nothing has to be gathered, sliced or stacked between training, checkpoints and
decoding.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "batch"


def pmap_step(step: Callable[..., Any], donate_state: bool = False) -> Callable[[Any, Any], Any]:
    """`step(state, batch, axis_name=...)` on all devices: the state whole on each of them, the
    batch dealt out by `device_batches`, the results equal everywhere."""
    return jax.pmap(
        functools.partial(step, axis_name=AXIS),
        axis_name=AXIS,
        in_axes=(None, 0),
        out_axes=None,  # type: ignore[arg-type]
        donate_argnums=(0,) if donate_state else (),
    )


def replicate(tree: Any) -> Any:
    """The tree whole on every device."""
    return jax.device_put(tree, NamedSharding(_mesh(), PartitionSpec()))


def device_batches(
    batches: Iterable[dict[str, np.ndarray]], *, pad: int = 0, multiple: int = 1, ahead: int = 2
) -> Iterator[dict[str, jax.Array]]:
    """Batches of this host's `[rows, ...]` as `[devices, rows / devices, ...]`, on the devices,
    `ahead` of their use.

    Rows of <pad>, which weigh nothing, fill the batch up to a multiple of the local devices times
    `multiple` (the slices of gradient accumulation).
    """
    waiting: list[dict[str, jax.Array]] = []
    for batch in batches:
        waiting.append({name: _deal_out(rows, pad, multiple) for name, rows in batch.items()})
        if len(waiting) > ahead:
            yield waiting.pop(0)
    yield from waiting


def _deal_out(rows: np.ndarray, pad: int, multiple: int) -> jax.Array:
    devices = jax.local_device_count()
    missing = -len(rows) % (devices * multiple)
    rows = np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1), constant_values=pad)
    dealt = rows.reshape(devices, -1, *rows.shape[1:])
    return jax.make_array_from_process_local_data(NamedSharding(_mesh(), PartitionSpec(AXIS)), dealt)


def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), (AXIS,))


def deal_rows(*arrays: np.ndarray) -> list[jax.Array]:
    """Arrays with their rows spread over this host's devices, or whole on the first where the rows
    do not divide evenly."""
    devices = jax.local_devices()
    if len(arrays[0]) % len(devices):
        return [jax.device_put(rows, devices[0]) for rows in arrays]
    spread = NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))
    return [jax.device_put(rows, spread) for rows in arrays]
