"""Translation: sentences in, sentences out."""

from typing import Any

import jax
import jax.numpy as jnp


class Translation:
    """Translation between two languages."""

    @staticmethod
    def example() -> tuple[Any, ...]:
        """Shapes of the arguments of a model: source ids and decoder input ids of one row."""
        ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
        return ids, ids
