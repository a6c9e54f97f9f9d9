"""Parameters, each declared with the names of its axes.

A declaration stands beside the parameter that it describes. Sharding (`transformer.training.sharding`), int8
weights and imports (`transformer.interop.folders.conversion`) read it. `init` and `apply` work with plain
arrays. Here, too: where a program runs, weights in int8, and products of activations and parameters.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from flax.errors import ScopeParamShapeError
from jaxtyping import Array, Float, Int, Int8

from transformer.runtime.errors import UserError

# Where a program runs: the placement of activations under a mesh, and the kind of device.


def by_rows(x: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
    """Returns x, under a mesh sharded along its rows only, so that the compiler gathers parameters and not
    activations."""
    return nn.with_logical_constraint(x, ("rows", None, None))


def shards_of(name: str = "rows") -> int:
    """The number of shards of a batch's rows, or of another logical axis, under the current mesh; 1 without a
    mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = dict(nn.get_logical_axis_rules()).get(name) or ()
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


_PLATFORM: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """The kind of device that the program being traced is for: "cpu", "gpu" or "tpu". Where both variants can
    be traced, `jax.lax.platform_dependent` is the better choice."""
    return _PLATFORM.get() or jax.default_backend()


@contextlib.contextmanager
def tracing_for(platform: str) -> Iterator[None]:
    """Programs traced in this context are compiled for another machine than this one
    (`transformer.plan`)."""
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


# Matrix products with int8 weights, for faster decoding.


LEVELS = 127  # on either side of 0
INT8 = "int8"  # the collection of quantised matrices, under the names they have in "params"


@struct.dataclass
class QuantizedMatrix:
    """A matrix that is approximately values * scale, a row per output: the layout that integer units read."""

    values: Int8[Array, "outputs inputs"]
    scale: Float[Array, " outputs"]

    def __getitem__(self, rows: Int[Array, "..."]) -> Float[Array, "... inputs"]:
        return self.values[rows] * self.scale[rows][..., None]

    def product(self, x: Float[Array, "b t inputs"]) -> Float[Array, "b t outputs"]:
        """x times the matrix, in float32."""
        positions = x.astype(jnp.float32).reshape(-1, x.shape[-1])
        if len(positions) == 1:  # CPUs multiply several rows faster than one
            positions = jnp.concatenate([positions, jnp.zeros_like(positions)])
        activations = quantized(positions)
        sums = jax.lax.dot_general(
            activations.values, self.values, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32
        )
        products = sums.astype(jnp.float32) * (activations.scale[:, None] * self.scale)
        return products[: x.shape[0] * x.shape[1]].reshape(*x.shape[:2], -1)


def quantized(rows: Float[Array, "outputs inputs"]) -> QuantizedMatrix:
    """Quantises rows, each with its own scale, at which its largest element is exact."""
    scale = jnp.maximum(jnp.abs(rows).max(axis=1), jnp.finfo(jnp.float32).tiny) / LEVELS
    return QuantizedMatrix(jnp.round(rows / scale[:, None]).astype(jnp.int8), scale)


Params = dict[str, Any]
"""Nested dictionaries of arrays, by module and name."""
Variables = dict[str, Any]
"""The collections of a model's variables: "params", and for some models others."""
Arguments = tuple[Any, ...]
"""Arguments of a model, or their shapes."""
Declarations = Mapping[tuple[str, ...], "Declared"]
"""The declaration of each parameter, by its path in "params"."""
Initializer = Callable[..., Any]
Axes = tuple[str | None, ...]
"""The name of each axis: "model" (d_model), "heads", "hidden" (d_ff), "vocabulary", "positions";
None for any other."""


@struct.dataclass
class Declared(nn.LogicallyPartitioned):  # type: ignore[misc]
    """A parameter and the names of its axes; for a matrix that can have int8 weights also `summed`, the axes
    that a product sums over."""

    summed: tuple[int, ...] = struct.field(default=(), pytree_node=False)


def declared(initial: Initializer, axes: Axes, summed: tuple[int, ...] = ()) -> Initializer:
    """An initialiser that declares its parameter, also for modules of Flax."""
    return lambda *arguments: Declared(initial(*arguments), axes, summed=summed)


def param(
    module: nn.Module,
    name: str,
    initial: Initializer,
    shape: tuple[int, ...],
    axes: Axes,
    summed: tuple[int, ...] = (),
) -> Array:
    """A parameter of a module, created when the module is initialised.

    Flax checks the shape of a parameter by tracing its initialiser, which is a fifth of the time to trace a
    search. So the shape is checked here.
    """
    if not module.has_variable("params", name):
        return module.param(name, declared(initial, axes, summed), shape)
    value: Any = module.get_variable("params", name)
    if isinstance(value, Declared):  # from `init` of a module that is not a `Module`
        value = value.value
    if value.shape != shape:
        raise ScopeParamShapeError(name, "/".join(module.path), value.shape, shape)
    return value  # type: ignore[no-any-return]


def matrix(
    module: nn.Module,
    name: str,
    initial: Initializer,
    shape: tuple[int, ...],
    axes: Axes,
    summed: tuple[int, ...] = (0,),
) -> Array | QuantizedMatrix:
    """A parameter that products read, or its int8 weights if the model has these."""
    if module.has_variable(INT8, name):
        return module.get_variable(INT8, name)  # type: ignore[no-any-return]
    return param(module, name, initial, shape, axes, summed)


def check_array(name: str, x: Any) -> None:
    """Raises UserError if an argument of a model is no array, or an empty one."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise UserError(f"{name} must be an array, not {type(x).__name__}: give np.array(...)")
    if 0 in x.shape:
        raise UserError(f"{name} of the shape {x.shape} is empty: give at least one row, and one position")


def check_ids(name: str, ids: Any) -> None:
    """Raises UserError if an argument of a model is no array of ids, [rows, positions]."""
    check_array(name, ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise UserError(f"{name} must be ids, which are whole numbers, not {ids.dtype}")
    if ids.ndim != 2:
        raise UserError(f"{name} must be ids of the shape [rows, positions], not {ids.shape}")


class Module(nn.Module):
    """A module whose `init` returns plain arrays. All modules of this package are."""

    @nn.nowrap  # `nn.tabulate` counts calls of the methods that Flax wraps
    def init(self, *arguments: Any, **options: Any) -> Variables:  # type: ignore[override]
        """The initial variables as plain arrays, without the declarations of `nn.Module.init`."""
        plain: Variables = nn.unbox(super().init(*arguments, **options))
        return plain


def variant(named: Any) -> Any:
    """What the paper's model does not have, such as `views.VIEWS`: a name in `transformer.model.variants`,
    which is imported when a config asks for it. What is no name stands for itself."""
    if not isinstance(named, str):
        return named
    module, _, attribute = named.partition(".")
    return getattr(importlib.import_module(f"transformer.model.variants.{module}"), attribute)


def dense(width: int, use_bias: bool = True, dtype: str | None = None) -> nn.Dense:
    """Flax's x W + b, declared. It computes in float32 unless another type is given."""
    return nn.Dense(
        width,
        use_bias,
        dtype,
        kernel_init=declared(nn.initializers.lecun_normal(), ("model", "hidden")),
        bias_init=declared(nn.initializers.zeros_init(), (None,)),
    )


# Products of activations and parameters.


FEW = 16  # rows, for which CPUs read a matrix up to twice as fast if it is the left factor


def linear(
    x: Float[Array, "b t m"], kernel: Float[Array, "..."] | QuantizedMatrix, bias: Array | None = None
) -> Float[Array, "b t n"]:
    """x W + b, computed in the dtype of x. The first axes of the kernel together match the last one of x; its
    other axes become one."""
    if isinstance(kernel, QuantizedMatrix):
        product = kernel.product(x).astype(x.dtype)
    else:
        product = _product(x, kernel.astype(x.dtype).reshape(x.shape[-1], -1))
    return product if bias is None else product + bias.astype(x.dtype)


def logits(x: Float[Array, "b t m"], table: Float[Array, "v m"] | QuantizedMatrix) -> Float[Array, "b t v"]:
    """The product of each state with each row of an embedding table, in float32."""
    if isinstance(table, QuantizedMatrix):
        return table.product(x)
    if x.shape[0] * x.shape[1] <= FEW and platform() == "cpu":
        by_row = jnp.einsum("vm,btm->vbt", table.astype(x.dtype), x, preferred_element_type=jnp.float32)
        return by_row.transpose(1, 2, 0)
    return jnp.einsum("btm,vm->btv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)


@jax.custom_vjp
def _product(x: Float[Array, "b t m"], kernel: Float[Array, "m n"]) -> Float[Array, "b t n"]:
    """x W, whose gradient with respect to W is computed in W's memory order; JAX would compute its transpose,
    and transpose that. (It has no forward-mode derivative, so neither has a model.)"""
    return jnp.einsum("btm,mn->btn", x, kernel)


def _product_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = residuals
    x = jax.lax.optimization_barrier(x)  # transposed separately: CPUs are slow if it is fused with more
    return jnp.einsum("btn,mn->btm", gradient, kernel), jnp.einsum("btm,btn->mn", x, gradient)


_product.defvjp(lambda x, kernel: (_product(x, kernel), (x, kernel)), _product_backward)
