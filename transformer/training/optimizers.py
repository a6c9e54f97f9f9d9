"""What the paper's optimizer does not have: a rate for each group of parameters, a rate that falls on a
plateau, Adafactor, and Muon, which makes the momentum of each matrix orthogonal."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int

from transformer.config.training import OptimizerConfig
from transformer.model.parameters import Declarations, platform
from transformer.runtime.errors import UserError
from transformer.training.parametrisation import DOWN, UP, Path, is_table, matches


def by_groups(factors: Sequence[tuple[str, float]]) -> Callable[..., optax.Updates]:
    """Updates times the factor of the last group that fits each parameter."""

    def factor(path: Path) -> float:
        return next((factor for name, factor in reversed(factors) if matches(name, path)), 1.0)

    def scaled(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        leaves = {path: update * factor(path) for path, update in flatten_dict(updates).items()}
        return unflatten_dict(leaves)

    return scaled


# A learning rate that falls when the score of the evaluations no longer improves. What that depends on is
# part of the optimizer's state, and so of a checkpoint.


class PlateauState(NamedTuple):
    """The evaluations so far."""

    scale: Float[Array, ""]
    """Factor on the learning rate."""
    best: Float[Array, "2"]
    """The best evaluation: its merit, and minus its loss."""
    waited: Int[Array, ""]
    """Number of evaluations since the best one, or since the rate fell."""


def scale_by_plateau() -> optax.GradientTransformation:
    """Multiplies updates by the scale of its state, which `after_evaluation` changes."""

    def init(params: optax.Params) -> PlateauState:
        return PlateauState(jnp.ones(()), jnp.full((2,), -jnp.inf), jnp.zeros((), jnp.int32))

    def update(
        updates: optax.Updates, state: PlateauState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, PlateauState]:
        return jax.tree.map(lambda x: x * state.scale.astype(x.dtype), updates), state

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]  # its state is a tuple


def after_evaluation(state: Any, standing: tuple[float, float], config: OptimizerConfig) -> Any:
    """The optimizer's state after an evaluation, each array placed as it was.

    Args:
      state: of an optimizer that has `scale_by_plateau` somewhere.
      standing: merit of the evaluation, and minus its loss: the higher, the better.
      config: the factor, and the number of evaluations to wait.
    """
    current = np.asarray(standing, np.float32)

    def observed(part: Any) -> Any:
        if not isinstance(part, PlateauState):
            return part
        scale, best, waited = (np.asarray(x) for x in part)
        if tuple(current) > tuple(best):
            best, waited = current, np.zeros_like(waited)
        elif waited + 1 < config.decay_patience:
            waited = waited + 1
        else:
            scale, waited = scale * np.float32(config.decay), np.zeros_like(waited)
        after = PlateauState(*map(np.asarray, (scale, best, waited)))  # type: ignore[arg-type]  # placed below
        return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), after, part)

    return jax.tree.map(observed, state, is_leaf=_is_plateau)


def scale_of(state: Any) -> float:
    """The factor on the learning rate, 1 without `scale_by_plateau`."""
    parts = jax.tree.leaves(state, is_leaf=_is_plateau)
    return next((float(part.scale) for part in parts if _is_plateau(part)), 1.0)


def _is_plateau(part: Any) -> bool:
    return isinstance(part, PlateauState)


def adafactor() -> optax.GradientTransformation:
    """The updates of Adafactor without momentum (Shazeer and Stern 2018, Algorithm 4), which are about as
    large as Adam's: the root mean square of each matrix's is at most 1."""
    return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0))


COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic (Jordan et al. 2024)
ITERATIONS = 5
MOMENTUM = 0.95
ROOT_MEAN_SQUARE = 0.2  # of an update at rate 1, as large as Adam's usually is (Liu et al. 2025, Eq. 4)


def inputs_of(path: Path, shape: Any, declared: Declarations) -> tuple[int, ...]:
    """The axes of the inputs of a matrix that products read, of which Muon makes the update; its other axes
    are those of the outputs. None for what Adam updates: tables of embeddings, biases, norms.

    Args:
      path: of what is trained.
      shape: anything with `ndim`.
      declared: the declarations of the model's parameters.
    """
    if path[-1] in (DOWN, UP):  # the factors of a low-rank change
        return tuple(range(shape.ndim - 1)) if path[-1] == DOWN else (0,)
    if is_table(path, declared) or shape.ndim < 2:
        return ()
    if path in declared and declared[path].summed:
        return declared[path].summed
    return tuple(range(shape.ndim - 1)) if path[-1] == "kernel" else ()  # of Flax's own layers


def scale_by_muon_and(
    other: optax.GradientTransformation, declared: Declarations | None, scale: float = 1.0
) -> optax.GradientTransformation:
    """Muon for the matrices that products read, and another optimizer for all other parameters.

    Args:
      other: such as `optax.scale_by_adam`.
      declared: the declarations of the model's parameters.
      scale: factor on the updates of matrices.

    Raises:
      UserError: there are no declarations.
    """
    if declared is None:
        raise UserError(
            "make_optimizer: muon needs to know which parameters are matrices: give declared="
            "transformer.model.declarations.declarations(model, example)"
        )

    def labels(params: optax.Params) -> Any:
        leaves: dict[Path, Any] = flatten_dict(params)
        names = {path: "muon" if inputs_of(path, x, declared) else "other" for path, x in leaves.items()}
        return unflatten_dict(names)

    return optax.partition(
        {"muon": optax.chain(scale_by_muon(declared), optax.scale(scale)), "other": other}, labels
    )


class MuonState(NamedTuple):
    """What Muon remembers."""

    momentum: optax.Params
    """The moving sum of the gradients of each matrix."""


def scale_by_muon(declared: Declarations) -> optax.GradientTransformation:
    """Replaces the gradient of each matrix by its momentum (Nesterov's) with all singular values near 1,
    scaled to a root mean square that does not depend on the shape (Liu et al. 2025, section 2.2)."""

    def init(params: optax.Params) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: optax.Updates, state: MuonState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, MuonState]:
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, state.momentum, updates)
        ahead = jax.tree.map(lambda m, g: MOMENTUM * m + g, momentum, updates)
        return _by_shape(ahead, declared), MuonState(momentum)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]  # its state is a tuple


def _by_shape(updates: optax.Updates, declared: Declarations) -> optax.Updates:
    """The orthogonal updates. Matrices of one shape are computed together: fewer kernels, less to compile."""
    leaves: dict[Path, Any] = flatten_dict(updates)
    matrices = {path: x for path, x in leaves.items() if hasattr(x, "ndim")}  # optax masks the others
    groups: dict[tuple[int, ...], list[Path]] = defaultdict(list)
    flat = {}
    for path, x in matrices.items():
        axes = inputs_of(path, x, declared)
        rows = math.prod(x.shape[axis] for axis in axes)
        flat[path] = jnp.moveaxis(x, axes, range(len(axes))).reshape(rows, -1)
        groups[flat[path].shape].append(path)
    for paths in groups.values():
        stacked = orthogonal(jnp.stack([flat[path] for path in paths]))
        for path, matrix in zip(paths, stacked, strict=True):
            axes = inputs_of(path, matrices[path], declared)
            others = [axis for axis in range(matrices[path].ndim) if axis not in axes]
            order = (*axes, *others)
            whole = matrix.reshape([matrices[path].shape[axis] for axis in order])
            leaves[path] = jnp.moveaxis(whole, range(len(order)), order)
    return unflatten_dict(leaves)


def orthogonal(x: Float[Array, "n rows columns"]) -> Float[Array, "n rows columns"]:
    """Each matrix with singular values between about 0.7 and 1.2, times sqrt(max(rows, columns)) and
    `ROOT_MEAN_SQUARE`, by an iteration of products alone. Accelerators compute it in bfloat16."""
    a, b, c = COEFFICIENTS
    is_tall = x.shape[1] > x.shape[2]
    y = jnp.swapaxes(x, 1, 2) if is_tall else x
    y = y / (jnp.linalg.norm(y, axis=(1, 2), keepdims=True) + 1e-7)
    y = y if platform() == "cpu" else y.astype(jnp.bfloat16)
    for _ in range(ITERATIONS):
        square = y @ jnp.swapaxes(y, 1, 2)
        y = a * y + (b * square + c * (square @ square)) @ y
    y = jnp.swapaxes(y, 1, 2) if is_tall else y
    return y.astype(x.dtype) * (ROOT_MEAN_SQUARE * max(x.shape[1:]) ** 0.5)
