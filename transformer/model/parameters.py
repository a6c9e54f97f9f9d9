"""Parameters, each declared with the names of its axes.

A declaration stands beside the parameter that it describes. Sharding (`transformer.model.sharding`), int8
weights (`transformer.model.int8`) and imports (`transformer.interop.conversion`) read it. `init` and `apply`
work with plain arrays.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct, traverse_util
from flax.errors import ScopeParamShapeError
from jaxtyping import Array

from transformer.model.int8 import INT8, QuantizedMatrix
from transformer.runtime.errors import UserError

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
        """As `nn.Module.init`, without the declarations."""
        plain: Variables = nn.unbox(super().init(*arguments, **options))
        return plain


def declarations(model: nn.Module, example: Arguments) -> Declarations:
    """The declared parameters of a model.

    Args:
      model: any module; a parameter of a module that declares nothing is omitted.
      example: arguments of the model, or their shapes.
    """
    leaves = traverse_util.flatten_dict(_traced(model, example)["params"])
    return {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Declared)}


def shapes_of(model: nn.Module, example: Arguments) -> Variables:
    """The shapes of a model's variables, without allocating them. Arguments are those of `declarations`."""
    shapes: Variables = jax.eval_shape(nn.unbox, _traced(model, example))
    return shapes


def _traced(model: nn.Module, example: Arguments) -> Variables:
    """The shapes that `init` of a module returns, with their declarations."""
    leaves, structure = jax.tree.flatten(example)
    return _traced_once(model, structure, tuple((np.shape(x), jnp.result_type(x)) for x in leaves))


@functools.lru_cache(maxsize=16)
def _traced_once(model: nn.Module, structure: Any, leaves: tuple[Any, ...]) -> Variables:
    """As `_traced`, of shapes and types. A run asks several times, and a trace takes as long as a step's."""
    arguments = structure.unflatten([jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves])
    shapes: Variables = jax.eval_shape(
        lambda *arguments: nn.Module.init(model, jax.random.key(0), *arguments), *arguments
    )
    return shapes


def vocabulary_axes(declared: Declarations) -> dict[tuple[str, ...], int]:
    """The axis of the ids of the vocabulary, of each parameter that has one."""
    return {
        path: leaf.names.index("vocabulary") for path, leaf in declared.items() if "vocabulary" in leaf.names
    }


def count(params: Any) -> int:
    """The number of numbers in a tree of arrays or shapes."""
    return sum(x.size for x in jax.tree.leaves(params))


def dense(width: int, use_bias: bool = True) -> nn.Dense:
    """Flax's x W + b, declared."""
    return nn.Dense(
        width,
        use_bias,
        kernel_init=declared(nn.initializers.lecun_normal(), ("model", "hidden")),
        bias_init=declared(nn.initializers.zeros_init(), (None,)),
    )
