"""Models initialised and applied as one compiled program, as when they train and decode.

Otherwise every operation is a program of its own, and compiling those takes most of a test's time.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import numpy as np


def apply(model: nn.Module, variables: Any, *inputs: Any, **options: Any) -> Any:
    """`model.apply(variables, *inputs, **options)`, where everything but arrays is hashable."""
    return _call(model, "apply", variables, *inputs, **options)


def init(model: nn.Module, key: jax.Array, *inputs: Any, **options: Any) -> Any:
    """`model.init(key, *inputs, **options)`, where everything but arrays is hashable."""
    return _call(model, "init", key, *inputs, **options)


def _call(model: nn.Module, name: str, *inputs: Any, **options: Any) -> Any:
    leaves, structure = jax.tree.flatten((inputs, options))
    arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)}
    static = tuple(None if i in arrays else leaf for i, leaf in enumerate(leaves))
    return _run(model, name, structure, static, arrays)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _run(model: nn.Module, name: str, structure: Any, static: tuple[Any, ...], arrays: dict[int, Any]) -> Any:
    leaves = [arrays.get(i, leaf) for i, leaf in enumerate(static)]
    inputs, options = jax.tree.unflatten(structure, leaves)
    return getattr(model, name)(*inputs, **options)
