"""The training step, as a pure function for one replica: summed gradients divided by summed weights."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core import FrozenDict
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int

from transformer.training.objective import Batch, Metrics, Objective


@struct.dataclass
class TrainState:
    """All that training changes, as one pytree."""

    step: Int[Array, ""]
    params: Any
    optimizer: Any
    extra: Any
    """Variables that are not parameters (running statistics, carried memory); often empty."""
    average: Any
    """Moving average of the parameters, or None."""

    @property
    def variables(self) -> dict[str, Any]:
        """The model's variables in training."""
        return {"params": self.params, **self.extra}

    @property
    def best_variables(self) -> dict[str, Any]:
        """The model's variables in evaluation: with the moving average, if there is one."""
        return self.variables if self.average is None else {**self.variables, "params": self.average}


TrainStep = Callable[..., tuple[TrainState, Metrics]]


def init_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    seed: int,
    example: tuple[Any, ...],
    *,
    average: bool = False,
    variables: Mapping[str, Any] = FrozenDict(),
) -> TrainState:
    """The initial state: the given variables, others initialised from the seed, and the optimizer's initial
    state.

    Args:
      model: any module.
      optimizer: of its parameters.
      seed: of the initial parameters.
      example: arguments of the model, or their shapes.
      average: whether to keep a moving average of the parameters.
      variables: those that are given.
    """
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), example)
    fresh = nn.unbox(jax.jit(model.init)(jax.random.key(seed), *zeros))
    extra = unflatten_dict(flatten_dict(fresh) | flatten_dict(variables))
    params = extra.pop("params")
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=optimizer.init(params),
        extra=extra,
        # a copy: the first step donates the parameters' buffers
        average=jax.tree.map(jnp.copy, params) if average else None,
    )


def make_train_step(
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    accumulate: int = 1,
    ema: float = 0.0,
) -> TrainStep:
    """The pure `train_step(state, batch, *, axis_name=None) -> (state, metrics)`.

    The metrics are `loss` and those of the objective, as means over the target tokens of the whole batch;
    `gradient_norm`; and `weight`, the number of tokens. With `axis_name` the sums also run over that axis,
    outside `grad`. Random numbers depend only on (seed, step, replica, slice).
    """

    def summed(state: TrainState, batch: Batch, key: Array) -> tuple[Any, Metrics, Any]:
        """Sums over the tokens: gradients, metrics, and changes of the extra variables."""

        def loss_of(params: Any) -> tuple[Float[Array, ""], Any]:
            variables = {"params": params, **state.extra}
            loss, weight, metrics, after = objective(model, variables, batch, key, state.step)
            extra = {name: after[name] for name in state.extra}
            changes = jax.tree.map(lambda new, old: weight * (new - old), extra, {**state.extra})
            return loss, ({"loss": loss, "weight": weight, **metrics}, changes)

        gradients, (metrics, changes) = jax.grad(loss_of, has_aux=True)(state.params)
        return gradients, metrics, changes

    def accumulated(state: TrainState, batch: Batch, key: Array) -> tuple[Any, Metrics, Any]:
        """The same sums, computed slice by slice."""
        slices = jax.tree.map(lambda x: x.reshape(accumulate, -1, *x.shape[1:]), batch)
        keys = jax.random.split(key, accumulate)

        def add(sums: Any, slice_and_key: tuple[Batch, Array]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, summed(state, *slice_and_key)), None

        first = jax.tree.map(lambda x: x[0], (slices, keys))
        shapes = jax.eval_shape(lambda: summed(state, *first))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.scan(add, zeros, (slices, keys))[0]  # type: ignore[no-any-return]

    def train_step(
        state: TrainState, batch: Batch, *, axis_name: str | None = None
    ) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        if axis_name:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        sums = (summed if accumulate == 1 else accumulated)(state, batch, key)
        if axis_name:
            sums = jax.lax.psum(sums, axis_name)
        weight = sums[1].pop("weight")
        gradients, metrics, changes = jax.tree.map(lambda x: x / jnp.maximum(weight, 1), sums)
        extra = jax.tree.map(jnp.add, {**state.extra}, changes)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        average = state.average
        if average is not None:
            average = optax.incremental_update(params, average, 1 - ema)
        metrics |= {"weight": weight, "gradient_norm": optax.tree.norm(gradients)}
        return TrainState(state.step + 1, params, optimizer_state, extra, average), metrics

    return train_step


def make_eval_step(model: nn.Module, objective: Objective) -> Callable[..., Metrics]:
    """The pure `eval_step(variables, batch, *, axis_name=None) -> sums` of loss, weight, metrics."""

    def eval_step(variables: Any, batch: Batch, *, axis_name: str | None = None) -> Metrics:
        loss, weight, metrics, _ = objective(model, variables, batch, None, jnp.zeros((), jnp.int32))
        sums = {"loss": loss, "weight": weight, **metrics}
        return jax.lax.psum(sums, axis_name) if axis_name else sums

    return eval_step
