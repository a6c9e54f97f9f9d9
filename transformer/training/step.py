"""The training step, as a pure function for one replica: summed gradients divided by summed weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core import FrozenDict
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int

from transformer.config.ranges import COUNT, NUMBER, RATE, typed
from transformer.model.parameters import Arguments, Params, Variables
from transformer.model.statistics import GRADIENTS, PROBES, STATISTICS, Sums, replicas
from transformer.runtime.errors import UserError
from transformer.training.objective import Batch, Carry, Context, Loss, Metrics, Objective

Means = dict[str, Float[Array, ""]]


@dataclass(frozen=True)
class Parametrised:
    """How a model's parameters follow from what is trained: each is trained, whole. For other ways see
    `transformer.training.parametrisation`."""

    is_adapter: ClassVar[bool] = False

    def split(self, params: Params, seed: int = 0) -> tuple[Params, Params]:
        """What is trained of parameters, and what is fixed.

        Args:
          params: of the model.
          seed: of the random numbers.
        """
        return params, {}

    def merge(self, trained: Params, fixed: Params) -> Params:
        """The parameters of the model."""
        return trained


WHOLE = Parametrised()
"""All parameters are trained."""


@struct.dataclass
class TrainState:
    """All that training changes, as one pytree."""

    step: Int[Array, ""]
    trained: Params
    """What is trained: all parameters, or a part, or changes of them."""
    optimizer: optax.OptState
    statistics: Variables
    """The model's other variables, such as running statistics (`transformer.model.statistics`)."""
    average: Params | None
    """Moving average of what is trained, or None."""
    carry: Carry = ()
    """The memory of the rows."""
    fixed: Params = struct.field(default_factory=dict)
    """What is not trained."""
    parametrisation: Parametrised = struct.field(pytree_node=False, default=WHOLE)
    """How the model's parameters follow from both."""

    @property
    def params(self) -> Params:
        """The model's parameters in training."""
        return self.parametrisation.merge(self.trained, self.fixed)

    @property
    def variables(self) -> Variables:
        """The model's variables in training."""
        return {"params": self.params, **self.statistics}

    @property
    def best_trained(self) -> Params:
        """What is trained, as evaluations use it: the moving average, if there is one."""
        return self.trained if self.average is None else self.average

    @property
    def best_variables(self) -> Variables:
        """The model's variables in evaluation."""
        return {"params": self.parametrisation.merge(self.best_trained, self.fixed), **self.statistics}


@struct.dataclass
class EvalState:
    """What an evaluation step reads and returns."""

    variables: Variables
    carry: Carry = ()


TrainStep = Callable[..., tuple[TrainState, Means]]
EvalStep = Callable[..., tuple[EvalState, Metrics]]


@typed
def init_state(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    seed: Annotated[int, NUMBER],
    example: Arguments,
    *,
    average: bool = False,
    variables: Mapping[str, Any] = FrozenDict(),
    carry: Carry = (),
    parametrisation: Parametrised = WHOLE,
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
      carry: the initial memory of the rows.
      parametrisation: what is trained of the parameters.
    """
    if not example or not all(hasattr(x, "shape") and hasattr(x, "dtype") for x in jax.tree.leaves(example)):
        raise UserError("example must be arrays, or their shapes: an argument of the model each")
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), example)
    fresh = nn.unbox(jax.jit(model.init)(jax.random.key(seed), *zeros))
    statistics = unflatten_dict(flatten_dict(fresh) | flatten_dict(variables))
    trained, fixed = parametrisation.split(statistics.pop("params"), seed)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        trained=trained,
        optimizer=optimizer.init(trained),
        statistics=statistics,
        # a copy: the first step donates the parameters' buffers
        average=jax.tree.map(jnp.copy, trained) if average else None,
        carry=carry,
        fixed=fixed,
        parametrisation=parametrisation,
    )


@struct.dataclass
class _Summed:
    """The sums of a batch, or of a part of it."""

    gradients: Params
    weight: Float[Array, ""]
    metrics: Metrics
    statistics: Variables


@typed
def make_train_step(
    model: nn.Module,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    seed: Annotated[int, NUMBER],
    accumulate: Annotated[int, COUNT] = 1,
    ema: Annotated[float, RATE] = 0.0,
    reduce_dtype: Literal["float32", "bfloat16"] = "float32",
    gather: Callable[[Params], Params] = lambda params: params,
) -> TrainStep:
    """The pure `train_step(state, batch, *, axis_name=None) -> (state, metrics)`.

    The metrics are `loss` and those of the objective, as means over the whole batch, `gradient_norm`, and
    `weight`, that of the loss. With `axis_name` the sums also run over that axis, outside `grad`; gradients
    are sent as `reduce_dtype`. Random numbers depend only on (seed, step, replica, slice). `gather` is that
    of the layout (`transformer.training.sharding`).
    """

    def summed(state: TrainState, batch: Batch, carry: Carry, key: Array) -> tuple[_Summed, Carry]:
        def loss_of(trained: Params, probes: Variables) -> tuple[Float[Array, ""], Any]:
            params = state.parametrisation.merge(gather(trained), gather(state.fixed))
            variables = {"params": params, **state.statistics}
            if probes:
                variables[PROBES] = probes
            loss = _checked(objective(model, variables, batch, Context(key, state.step, carry)), carry)
            return loss.total, loss

        probes = jax.tree.map(_probe, state.statistics.get(GRADIENTS, {}))
        (gradients, probed), loss = jax.grad(loss_of, argnums=(0, 1), has_aux=True)(state.trained, probes)
        metrics = {"loss": (loss.total, loss.weight), **loss.metrics}
        statistics = _with_probes(_complete(loss.statistics, state.statistics), probed)
        return _Summed(gradients, loss.weight, metrics, statistics), loss.carry

    def accumulated(state: TrainState, batch: Batch, carry: Carry, key: Array) -> tuple[_Summed, Carry]:
        """The same sums, computed slice by slice."""
        slices = jax.tree.map(lambda x: x.reshape(accumulate, -1, *x.shape[1:]), (batch, carry))
        inputs = (*slices, jax.random.split(key, accumulate))

        def add(sums: _Summed, one: tuple[Batch, Carry, Array]) -> tuple[_Summed, Carry]:
            new, after = summed(state, *one)
            return jax.tree.map(jnp.add, sums, new), after

        first = jax.tree.map(lambda x: x[0], inputs)
        shapes, _ = jax.eval_shape(lambda: summed(state, *first))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        sums, after = jax.lax.scan(add, zeros, inputs)
        return sums, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), after)

    def train_step(
        state: TrainState, batch: Batch, *, axis_name: str | None = None
    ) -> tuple[TrainState, Means]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        if axis_name:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        with replicas(axis_name):
            sums, carry = (summed if accumulate == 1 else accumulated)(state, batch, state.carry, key)
        if axis_name:
            sent = jax.tree.map(lambda x: x.astype(reduce_dtype), sums.gradients)
            sums = jax.lax.psum(replace(sums, gradients=sent), axis_name)
        gradients = jax.tree.map(
            lambda x, like: _mean(x.astype(like.dtype), sums.weight), sums.gradients, state.trained
        )
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.trained)
        trained = optax.apply_updates(state.trained, updates)
        average = state.average
        if average is not None:
            average = optax.incremental_update(trained, average, 1 - ema)
        metrics = {name: _mean(*metric) for name, metric in sums.metrics.items()}
        metrics |= {"weight": sums.weight, "gradient_norm": optax.tree.norm(gradients)}
        statistics = _updated(state.statistics, sums.statistics)
        after = replace(
            state,
            step=state.step + 1,
            trained=trained,
            optimizer=optimizer_state,
            statistics=statistics,
            average=average,
            carry=carry,
        )
        return after, metrics

    return train_step


def _checked(loss: Any, carry: Carry) -> Loss:
    """What an objective returned.

    Raises:
      UserError: it is no `Loss`, or its carry has another structure than that of the system.
    """
    if not isinstance(loss, Loss):
        raise UserError(f"an objective must return transformer.Loss, not {type(loss).__name__}")
    returned = _described(loss.carry)
    expected = _described(carry)
    if returned != expected:
        raise UserError(
            f"the objective was given the carry {expected}, but returned {returned}: keep its arrays"
        )
    return loss


def _described(tree: Any) -> str:
    """The structure of a pytree, with the type and shape of each array."""
    described = jax.tree.map(lambda x: f"{jnp.result_type(x)}{list(jnp.shape(x))}", tree)
    return str(described).replace("'", "")


def _mean(total: Array, weight: Array) -> Array:
    """0 if there is no weight."""
    return total / jnp.where(weight > 0, weight, 1)


def _probe(mean: Array) -> Sums:
    """Zeros, whose gradients are the sum and the count of a statistic of gradients."""
    return Sums(jnp.zeros_like(mean), jnp.zeros(()), 0.0)


def _complete(sums: Variables, statistics: Variables) -> Variables:
    """The sums that an objective returned.

    Raises:
      UserError: those of a running mean of the model are missing.
    """
    means = [statistics.get(name, {}) for name in (STATISTICS, GRADIENTS)]
    returned = flatten_dict(sums)
    if missing := [".".join(path) for tree in means for path in flatten_dict(tree) if path not in returned]:
        raise UserError(
            f"the objective returned no sums of the model's running statistic {missing[0]}: apply the model "
            "by `apply_training`, and return what it has sown as `Loss(..., **sown)`"
        )
    return sums


def _with_probes(statistics: Variables, probed: Variables) -> Variables:
    """The sums, of gradients too: these are the gradients of the probes."""
    sums: dict[Any, Sums] = flatten_dict(statistics)
    for path, gradient in flatten_dict(probed).items():
        sums[path] = replace(gradient, momentum=sums[path].momentum)
    return unflatten_dict(sums)


def _updated(statistics: Variables, sums: Variables) -> Variables:
    """The running means after a batch."""
    batch = flatten_dict(sums)
    means = flatten_dict(statistics)
    return unflatten_dict(
        {path: batch[path[1:]].update(x) if path[1:] in batch else x for path, x in means.items()}
    )


@typed
def make_eval_step(model: nn.Module, objective: Objective) -> EvalStep:
    """The pure `eval_step(state, batch, *, axis_name=None) -> (state, sums)`: an `EvalState` with the rows'
    memory after the batch, without variables; the sum and weight of `loss` and of every metric."""

    def eval_step(
        state: EvalState, batch: Batch, *, axis_name: str | None = None
    ) -> tuple[EvalState, Metrics]:
        loss = _checked(objective(model, state.variables, batch, Context(carry=state.carry)), state.carry)
        sums = {"loss": (loss.total, loss.weight), **loss.metrics}
        return EvalState({}, loss.carry), jax.lax.psum(sums, axis_name) if axis_name else sums

    return eval_step
