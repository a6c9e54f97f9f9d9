"""Training on several devices: with a replica on each, or with the model sharded over a mesh.

In both cases the leaves of the state are global arrays without a leading device axis, so training,
checkpoints and decoding use the same state without gathering, slicing or stacking.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config.options import MeshConfig
from transformer.config.training import TrainingConfig
from transformer.model.parameters import Declarations
from transformer.runtime.errors import UserError, counted
from transformer.training.objective import Objective
from transformer.training.step import TrainStep, make_train_step

S = TypeVar("S")
Tree = Any
"""A state, or a part of one."""
Step = Callable[..., tuple[Tree, Tree]]
"""`step(state, batch, *, axis_name=None) -> (state, metrics)`, where `state.carry` is the memory of the rows
(`transformer.training.step`)."""

Devices = Sequence[jax.Device] | None

AHEAD = 2  # batches that are on the devices before they are used
AXIS = "batch"
DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
AXES = {"vocabulary": TENSOR, "positions": TENSOR, "heads": TENSOR, "hidden": TENSOR, "model": FSDP}
"""The mesh axis for each declared axis of a parameter (`transformer.model.parameters`), and of its optimizer
state. Parameters and axes without one are replicated, and so are vectors of d_model."""
ACTIVATIONS = (("rows", (DATA, FSDP)), ("vocabulary", TENSOR), ("heads", TENSOR))
"""The mesh axes for each axis of activations (`transformer.model.parameters`)."""
COMPILER = {
    "gpu": {"xla_gpu_dot_merger_threshold_mb": "0"},
    "tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"},
}
"""Options of XLA for a step, by platform (docs/what-makes-it-fast.md). The compiler of GPUs would make one
product of those for queries, keys and values, and copy each of them out of it, which costs more than that
saves. That of TPUs would divide each gradient of a sharded matrix into as many products as there are shards,
to send one while it computes the next: the small products take longer than that hides."""


class Layout(ABC):
    """Placement of state and batches on the devices, and how a step runs on them."""

    shards: int
    """The number of parts into which the rows of a batch are split."""

    @abstractmethod
    def place(self, state: S) -> S:
        """The state on the devices."""

    @abstractmethod
    def compile_step(self, step: Step, donate_state: bool = False) -> Step:
        """`step(state, batch)` on all devices, with the same results on each."""

    def gather(self, params: S) -> S:
        """The parameters as a step computes with them."""
        return params

    @abstractmethod
    def abstract_inputs(self, state: S, batch: Mapping[str, Any], multiple: int) -> tuple[S, dict[str, Any]]:
        """What to lower a step with instead of a state and the whole batch: their shapes and shardings.
        Rows are appended as by `shard_batch`."""

    @abstractmethod
    def shard_batch(self, rows: np.ndarray, fill: int | float, multiple: int) -> jax.Array:
        """Splits this process's rows of a batch over its devices. Rows of the fill value, which have no
        weight, are appended up to a multiple of the number of shards times `multiple` (the slices of gradient
        accumulation)."""

    def batches(
        self,
        batches: Iterable[Mapping[str, np.ndarray]],
        *,
        fill: Mapping[str, int | float] = MappingProxyType({}),
        multiple: int = 1,
    ) -> Iterator[dict[str, jax.Array]]:
        """This process's batches on the devices, placed there two batches before they are used.

        Args:
          batches: arrays by name.
          fill: the value of padding by name. Default: 0.
          multiple: see `shard_batch`.
        """
        waiting: list[dict[str, jax.Array]] = []
        for batch in batches:
            waiting.append(
                {name: self.shard_batch(rows, fill.get(name, 0), multiple) for name, rows in batch.items()}
            )
            if len(waiting) > AHEAD:
                yield waiting.pop(0)
        yield from waiting


class Replicas(Layout):
    """Every device holds the whole state and processes a part of the batch: `jax.pmap`, with in_axes and
    out_axes None for the state, except for the rows' memory.

    Args:
      devices: the devices of all processes. None: all there are.
    """

    def __init__(self, devices: Devices = None) -> None:
        self._pmap_devices = devices
        self._devices = list(devices or jax.devices())
        self.shards = len(self._devices)
        mesh = Mesh(np.array(self._devices), (AXIS,))
        self._whole = NamedSharding(mesh, PartitionSpec())
        self._rows = NamedSharding(mesh, PartitionSpec(AXIS))

    def place(self, state: S) -> S:
        rest, carry = _split(_to_host(state))
        check_rows(carry, self.shards)
        return _joined(jax.device_put(rest, self._whole), jax.device_put(carry, self._rows))

    def _split_step(self, step: Step) -> Callable[[Tree, Tree, Tree], tuple[Tree, Tree, Tree]]:
        """The step of a replica, on a state in two parts."""
        axis = None if self.shards == 1 else AXIS  # an all-reduce over one device would copy all gradients

        def split_step(rest: Tree, carry: Tree, batch: Tree) -> tuple[Tree, Tree, Tree]:
            state, metrics = step(_joined(rest, carry), batch, axis_name=axis)
            return *_split(state), metrics

        return split_step

    def compile_step(self, step: Step, donate_state: bool = False) -> Step:
        replicated = jax.pmap(
            self._split_step(step),
            axis_name=AXIS,
            in_axes=(None, 0, 0),
            out_axes=(None, 0, None),
            donate_argnums=_donated(donate_state),
            devices=self._pmap_devices,
        )
        all_here = _number_here(self._devices) == self.shards  # otherwise `jax.pmap` must be outermost
        if all_here and self._devices[0].platform in COMPILER:
            replicated = self._compiled(replicated, donate_state)
        return _ReplicatedStep(replicated, self._rows)

    def _compiled(self, mapped: Callable[..., Tree], donate_state: bool) -> Callable[..., Tree]:
        """The step by `jax.jit`, which takes the options of `COMPILER` as `jax.pmap` does not."""

        def step(*arguments: Tree) -> Tree:  # without the attributes of `mapped`, which `jax.jit` would keep
            return mapped(*arguments)

        options = COMPILER.get(self._devices[0].platform)
        return jax.jit(step, donate_argnums=_donated(donate_state), compiler_options=options)

    def abstract_inputs(self, state: S, batch: Mapping[str, Any], multiple: int) -> tuple[S, dict[str, Any]]:
        def share(x: Any) -> jax.ShapeDtypeStruct:
            rows = _rounded_up(x.shape[0], self.shards * multiple) // self.shards
            return jax.ShapeDtypeStruct((self.shards, rows, *x.shape[1:]), x.dtype)

        return state, {name: share(x) for name, x in batch.items()}

    def shard_batch(self, rows: np.ndarray, fill: int | float, multiple: int) -> jax.Array:
        devices = _number_here(self._devices)
        rows = _padded(rows, fill, devices * multiple)
        split = rows.reshape(devices, -1, *rows.shape[1:])
        return jax.make_array_from_process_local_data(self._rows, split)


class _ReplicatedStep:
    """A step of `Replicas`, called as `step(state, batch)`."""

    def __init__(self, step: Any, rows: NamedSharding) -> None:
        self._step = step
        devices = rows.mesh.size
        self._split_rows = jax.jit(lambda x: x.reshape(devices, -1, *x.shape[1:]), out_shardings=rows)
        self._collect = jax.jit(lambda x: x.reshape(-1, *x.shape[2:]), out_shardings=rows)

    def __call__(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        rest, carry, metrics = self._step(*self._arguments(state), batch)
        return _joined(rest, jax.tree.map(self._collect, carry)), metrics

    def lower(self, state: Tree, batch: Tree) -> Any:
        """As `jax.stages.Wrapped.lower`; of the state shapes suffice."""
        return self._step.lower(*jax.eval_shape(self._arguments, state), batch)

    def _arguments(self, state: Tree) -> tuple[Tree, Tree]:
        rest, carry = _split(state)
        return rest, jax.tree.map(self._split_rows, carry)


class MappedReplicas(Replicas):
    """Replicas by `jax.jit` of `jax.shard_map`, which is what `jax.pmap` calls."""

    def compile_step(self, step: Step, donate_state: bool = False) -> Step:
        whole, rows = self._whole.spec, self._rows.spec
        mapped = jax.shard_map(
            self._split_step(step),
            mesh=self._rows.mesh,
            in_specs=(whole, rows, rows),
            out_specs=(whole, rows, whole),
            check_vma=False,
        )
        return _MappedStep(self._compiled(mapped, donate_state))

    def abstract_inputs(self, state: S, batch: Mapping[str, Any], multiple: int) -> tuple[S, dict[str, Any]]:
        rest, carry = _split(state)
        whole, rows = (functools.partial(_abstract, sharding=s) for s in (self._whole, self._rows))
        padded = {name: rows(x, multiple=self.shards * multiple) for name, x in batch.items()}
        return _joined(jax.tree.map(whole, rest), jax.tree.map(rows, carry)), padded

    def shard_batch(self, rows: np.ndarray, fill: int | float, multiple: int) -> jax.Array:
        padded = _padded(rows, fill, _number_here(self._devices) * multiple)
        return jax.make_array_from_process_local_data(self._rows, padded)


class _MappedStep:
    """A step of `MappedReplicas`, called as `step(state, batch)`."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def __call__(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        rest, carry, metrics = self._step(*_split(state), batch)
        return _joined(rest, carry), metrics

    def lower(self, state: Tree, batch: Tree) -> Any:
        """As `jax.stages.Wrapped.lower`."""
        return self._step.lower(*_split(state), batch)


class Shards(Layout):
    """The state is sharded over a mesh of data x fsdp x tensor as its parameters declare, the batch over data
    and fsdp. The same step runs under `jax.jit`, which inserts the communication.

    Args:
      config: sizes of the mesh.
      declared: the declaration of each parameter.
      devices: the devices of all processes. None: all there are.

    Raises:
      UserError: the devices do not fit the mesh.
    """

    def __init__(self, config: MeshConfig, declared: Declarations, devices: Devices = None) -> None:
        self._axes = {path: declaration.names for path, declaration in declared.items()}
        self._devices = list(devices or jax.devices())
        number = len(self._devices)
        if number % (size := config.fsdp * config.tensor):
            raise UserError(
                f"--mesh.fsdp {config.fsdp} times --mesh.tensor {config.tensor} does not divide the "
                f"{counted(number, 'device')} here: choose values whose product does"
            )
        if (local := _number_here(self._devices)) % config.tensor:
            raise UserError(
                f"--mesh.tensor {config.tensor} must divide the {counted(local, 'device')} of a process: its "
                "shards communicate at every layer"
            )
        shape = (number // size, config.fsdp, config.tensor)
        self.shards = number // config.tensor
        self.mesh = Mesh(np.array(self._devices).reshape(shape), (DATA, FSDP, TENSOR))
        self._rows = NamedSharding(self.mesh, PartitionSpec((DATA, FSDP)))

    def place(self, state: S) -> S:
        check_rows(_split(state)[1], self.shards)
        return jax.tree.map(jax.device_put, _to_host(state), self.shardings(state))

    def shardings(self, state: S) -> S:
        """The sharding of every leaf of the state."""
        rest, carry = _split(state)
        of_rest = jax.tree_util.tree_map_with_path(
            lambda path, leaf: NamedSharding(self.mesh, self._spec(path, leaf.shape)), rest
        )
        return _joined(of_rest, jax.tree.map(lambda _: self._rows, carry))

    def gather(self, params: S) -> S:
        """The parameters gathered over fsdp; their gradients are scattered again. Left to itself, XLA's
        partitioner gets the gradients of some models wrong (JAX 0.10 and 0.12: slices of time, a matrix
        sharded along both of its axes, and rows along two)."""

        def one(path: Any, x: jax.Array) -> jax.Array:
            scattered = self._spec(path, x.shape)
            whole = PartitionSpec(*(None if axis == FSDP else axis for axis in scattered))
            if whole == scattered:
                return x
            return _gathered(x, NamedSharding(self.mesh, whole), NamedSharding(self.mesh, scattered))

        return jax.tree_util.tree_map_with_path(one, params)

    def _spec(self, path: Any, shape: tuple[int, ...]) -> PartitionSpec:
        names = tuple(str(getattr(key, "key", key)) for key in path)
        ends = (names[start:] for start in range(len(names)))  # optimizer states end like their parameters
        declared = next((self._axes[end] for end in ends if end in self._axes), ())
        if len(declared) != len(shape):
            return PartitionSpec()
        axes = [AXES.get(name) if name else None for name in declared]
        if axes == [FSDP]:  # a vector of d_model: gathering it would cost more than holding it
            return PartitionSpec()
        shards = [self.mesh.shape[axis] if axis else 1 for axis in axes]
        # a dimension that the shards do not divide is replicated
        return PartitionSpec(
            *(axis if size % n == 0 else None for axis, size, n in zip(axes, shape, shards, strict=True))
        )

    def compile_step(self, step: Step, donate_state: bool = False) -> Step:
        def sharded(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh), nn.logical_axis_rules(ACTIVATIONS):
                state, metrics = step(state, batch)
            return jax.lax.with_sharding_constraint(state, self.shardings(state)), metrics

        return jax.jit(
            sharded,
            donate_argnums=_donated(donate_state),
            compiler_options=COMPILER.get(self._devices[0].platform),
        )

    def abstract_inputs(self, state: S, batch: Mapping[str, Any], multiple: int) -> tuple[S, dict[str, Any]]:
        padded = {name: _abstract(x, self._rows, self.shards * multiple) for name, x in batch.items()}
        return jax.tree.map(_abstract, state, self.shardings(state)), padded

    def shard_batch(self, rows: np.ndarray, fill: int | float, multiple: int) -> jax.Array:
        shards = _number_here(self._devices) // self.mesh.shape[TENSOR]
        return jax.make_array_from_process_local_data(self._rows, _padded(rows, fill, shards * multiple))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(x: jax.Array, whole: NamedSharding, scattered: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, whole)


_gathered.defvjp(
    lambda x, whole, scattered: (_gathered(x, whole, scattered), None),
    lambda whole, scattered, _, g: (jax.lax.with_sharding_constraint(g, scattered),),
)


def layout_of(
    config: MeshConfig, declared: Declarations = MappingProxyType({}), devices: Devices = None
) -> Layout:
    """`Shards` if fsdp or tensor is more than 1, else `Replicas`, or `MappedReplicas` if they are asked for.

    Args:
      config: of the mesh.
      declared: the declaration of each parameter, by which `Shards` places a state.
      devices: the devices of all processes. None: all there are.

    Raises:
      UserError: as `Shards`.
    """
    if not config.is_replicated:
        return Shards(config, declared, devices)
    return MappedReplicas(devices) if config.replicas == "shard_map" else Replicas(devices)


def configured_step(
    config: TrainingConfig,
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    layout: Layout,
) -> TrainStep:
    """`make_train_step` with the options of a run, for a layout."""
    return make_train_step(
        model,
        objective,
        optimizer,
        seed=config.seed,
        accumulate=config.accumulate,
        ema=config.ema,
        reduce_dtype=config.reduce_dtype,
        gather=layout.gather,
    )


def _number_here(devices: Sequence[jax.Device]) -> int:
    """How many of them belong to this process."""
    return sum(device.process_index == jax.process_index() for device in devices)


def check_rows(carry: Tree, shards: int, slices: int = 1) -> None:
    """Raises UserError if the memory of the rows cannot be divided over so many shards, and each part
    over the slices of gradient accumulation."""
    for leaf in jax.tree.leaves(carry):
        if len(leaf) % (shards * slices):
            times = f" times --training.accumulate {slices}" if slices > 1 else ""
            raise UserError(
                f"this system has memory for {counted(len(leaf), 'row')}, which do not divide equally by "
                f"{counted(shards, 'shard')}{times}: use another number of devices, slices or rows"
            )


def _split(state: Tree) -> tuple[Tree, Tree]:
    """A state without the rows' memory, and that."""
    return (replace(state, carry=()), state.carry) if hasattr(state, "carry") else (state, ())


def _joined(rest: Tree, carry: Tree) -> Tree:
    """The inverse of `_split`."""
    return replace(rest, carry=carry) if hasattr(rest, "carry") else rest


def _to_host(state: Tree) -> Tree:
    """The state as `jax.device_put` accepts it for all devices: with several processes, in host memory."""
    return state if jax.process_count() == 1 else jax.device_get(state)


def _abstract(x: Any, sharding: NamedSharding, multiple: int = 1) -> jax.ShapeDtypeStruct:
    """Shape and sharding of an array whose rows are padded up to a multiple."""
    shape = (_rounded_up(x.shape[0], multiple), *x.shape[1:]) if multiple > 1 else x.shape
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)


def _padded(rows: np.ndarray, fill: int | float, multiple: int) -> np.ndarray:
    """The rows, and rows of the fill value up to a multiple."""
    missing = _rounded_up(len(rows), multiple) - len(rows)
    return np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1), constant_values=fill)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _donated(donate_state: bool) -> tuple[int, ...]:
    """The arguments of a step that it may overwrite."""
    return (0,) if donate_state else ()
