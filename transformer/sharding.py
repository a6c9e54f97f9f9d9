"""Spreading work over devices: a replica on each of them by `jax.pmap`, or one model cut up over a mesh.

Either way the state is one array per leaf, with no leading device axis: nothing has to be gathered,
sliced or stacked between training, checkpoints and decoding.
"""

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config import MeshConfig
from transformer.errors import UserError

Step = Callable[..., Any]
"""`step(state, batch, *, axis_name=None)`."""

AXIS = "batch"
DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"table", (TENSOR, FSDP)),  # [vocabulary, d_model]
    (r"(query|key|value)", (FSDP, TENSOR, None)),  # [d_model, heads, depth]
    (r"(query|key|value)_bias", (TENSOR, None, None)),  # [heads, 1, depth]
    (r"out", (TENSOR, None, FSDP)),  # [heads, depth, d_model]
    (r"inner/kernel", (FSDP, TENSOR)),  # [d_model, d_ff]
    (r"inner/bias", (TENSOR,)),  # [d_ff]
    (r"outer/kernel", (TENSOR, FSDP)),  # [d_ff, d_model]
    (r"output_bias", (TENSOR,)),  # [vocabulary]
    (r"kernel", (FSDP, TENSOR)),  # any other matrix, of the baselines for instance
)
"""By the end of its name, along which axes of the mesh a parameter (and what the optimizer keeps of it) is
cut: heads, feed-forward and vocabulary by tensor, what is left by fsdp. Others are whole everywhere."""


class Layout(ABC):
    """How state and batches lie on the devices, and how a step runs on them."""

    @abstractmethod
    def place(self, state: Any) -> Any:
        """The state on the devices."""

    @abstractmethod
    def spread(self, step: Step, donate_state: bool = False) -> Step:
        """`step(state, batch)` on all devices, its results the same everywhere."""

    @abstractmethod
    def deal(self, rows: np.ndarray, pad: int, multiple: int) -> jax.Array:
        """This host's rows of a batch, dealt out. Rows of <pad>, which weigh nothing, fill them up to a
        multiple of the places to deal to times `multiple` (the slices of gradient accumulation)."""

    def batches(
        self, batches: Iterable[dict[str, np.ndarray]], *, pad: int = 0, multiple: int = 1, ahead: int = 2
    ) -> Iterator[dict[str, jax.Array]]:
        """This host's batches on the devices, `ahead` of their use."""
        waiting: list[dict[str, jax.Array]] = []
        for batch in batches:
            waiting.append({name: self.deal(rows, pad, multiple) for name, rows in batch.items()})
            if len(waiting) > ahead:
                yield waiting.pop(0)
        yield from waiting


class Replicas(Layout):
    """The whole state on every device and a share of the batch: `jax.pmap`, with in_axes and out_axes of
    None for the state."""

    def place(self, state: Any) -> Any:
        return jax.device_put(_on_hosts(state), NamedSharding(_line(jax.devices()), PartitionSpec()))

    def spread(self, step: Step, donate_state: bool = False) -> Step:
        alone = jax.device_count() == 1  # a sum over one device would copy all gradients
        return jax.pmap(
            functools.partial(step, axis_name=None if alone else AXIS),
            axis_name=AXIS,
            in_axes=(None, 0),
            out_axes=None,  # type: ignore[arg-type]
            donate_argnums=(0,) if donate_state else (),
        )

    def deal(self, rows: np.ndarray, pad: int, multiple: int) -> jax.Array:
        devices = jax.local_device_count()
        rows = _filled(rows, pad, devices * multiple)
        dealt = rows.reshape(devices, -1, *rows.shape[1:])
        spread = NamedSharding(_line(jax.devices()), PartitionSpec(AXIS))
        return jax.make_array_from_process_local_data(spread, dealt)


class Shards(Layout):
    """The state cut by `RULES` over a mesh of data x fsdp x tensor, the batch over data and fsdp: the same
    step under `jax.jit`, which finds out what has to be sent where.

    Raises:
      UserError: the devices cannot be laid out so.
    """

    def __init__(self, config: MeshConfig) -> None:
        devices, local = jax.device_count(), jax.local_device_count()
        size = config.fsdp * config.tensor
        if devices % size:
            raise UserError(
                f"--mesh.fsdp {config.fsdp} times --mesh.tensor {config.tensor} does not divide the "
                f"{devices} device(s) here: choose two whose product does"
            )
        if local % config.tensor:
            raise UserError(
                f"--mesh.tensor {config.tensor} must divide the {local} device(s) of a host: what is cut "
                "by tensor is sent at every layer"
            )
        shape = (devices // size, config.fsdp, config.tensor)
        self.mesh = Mesh(np.array(jax.devices()).reshape(shape), (DATA, FSDP, TENSOR))

    def place(self, state: Any) -> Any:
        return jax.tree.map(jax.device_put, _on_hosts(state), self.shardings(state))

    def shardings(self, state: Any) -> Any:
        """Where every leaf of the state lies."""
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: NamedSharding(self.mesh, self._cut(path, leaf.shape)), state
        )

    def _cut(self, path: Any, shape: tuple[int, ...]) -> PartitionSpec:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        axes = next((axes for rule, axes in RULES if re.search(f"(^|/){rule}$", name)), ())
        if len(axes) != len(shape):
            return PartitionSpec()
        parts = [self.mesh.shape[axis] if axis else 1 for axis in axes]
        # what cannot be cut evenly stays whole
        cuts = [
            axis if size % part == 0 else None for axis, size, part in zip(axes, shape, parts, strict=True)
        ]
        return PartitionSpec(*cuts)

    def spread(self, step: Step, donate_state: bool = False) -> Step:
        def kept_in_place(state: Any, batch: Any) -> Any:
            axes: list[Any] = [("rows", (DATA, FSDP)), ("vocabulary", TENSOR)]
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh), nn.logical_axis_rules(axes):
                result = step(state, batch)
            if not donate_state:
                return result
            state, metrics = result
            return jax.lax.with_sharding_constraint(state, self.shardings(state)), metrics

        return jax.jit(kept_in_place, donate_argnums=(0,) if donate_state else ())

    def deal(self, rows: np.ndarray, pad: int, multiple: int) -> jax.Array:
        places = jax.local_device_count() // self.mesh.shape[TENSOR]
        spread = NamedSharding(self.mesh, PartitionSpec((DATA, FSDP)))
        return jax.make_array_from_process_local_data(spread, _filled(rows, pad, places * multiple))


def layout_of(config: MeshConfig) -> Layout:
    """Replicas, unless the state is to be cut.

    Raises:
      UserError: as `Shards`.
    """
    return Shards(config) if config.fsdp * config.tensor > 1 else Replicas()


def _on_hosts(state: Any) -> Any:
    """The state as it can be put on all devices: where there are several hosts, from the memory of each."""
    return state if jax.process_count() == 1 else jax.device_get(state)


def _filled(rows: np.ndarray, pad: int, multiple: int) -> np.ndarray:
    missing = -len(rows) % multiple
    return np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1), constant_values=pad)


def _line(devices: list[jax.Device]) -> Mesh:
    return Mesh(np.array(devices), (AXIS,))


def on_all_hosts(tree: Any) -> Any:
    """A tree as Orbax writes it with all hosts: what pmap leaves on each of them, as one array of all."""
    if jax.process_count() == 1:
        return tree
    everywhere = NamedSharding(_line(jax.devices()), PartitionSpec())

    def joined(x: jax.Array) -> jax.Array:
        if not x.is_fully_addressable:
            return x
        return jax.make_array_from_process_local_data(everywhere, np.asarray(x))

    return jax.tree.map(joined, tree)


def on_this_host(tree: Any) -> Any:
    """A tree of arrays, wherever they lie, on the devices of this host: whole on each of them, or cut up over
    them where it is already."""
    devices = jax.local_devices()
    here = NamedSharding(_line(devices), PartitionSpec())

    def copied(x: Any) -> jax.Array:
        if not isinstance(x, jax.Array):
            return jax.device_put(x, here)
        if x.sharding.device_set == set(devices):
            return x
        if not (x.is_fully_replicated or x.is_fully_addressable):
            from jax.experimental import multihost_utils

            x = multihost_utils.process_allgather(x, tiled=True)
        return jax.device_put(np.asarray(x), here)

    return jax.tree.map(copied, tree)


def on_one_cpu() -> bool:
    """Whether all there is to compute with is the host's own processor, undivided."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1


def deal_rows(*arrays: np.ndarray) -> list[jax.Array]:
    """Arrays with their rows spread over this host's devices, or whole on each where the rows do not
    divide evenly."""
    devices = jax.local_devices()
    uneven = len(arrays[0]) % len(devices)
    spread = NamedSharding(_line(devices), PartitionSpec() if uneven else PartitionSpec(AXIS))
    return [jax.device_put(rows, spread) for rows in arrays]
