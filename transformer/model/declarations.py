"""The declarations and the shapes of a model's parameters, without allocating them."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from transformer.model.parameters import Arguments, Declarations, Declared, Variables


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
