"""Boxes as arrays of JAX: generalised IoU, and the matching of predictions with objects.

Boxes are the centre, width and height, as shares of the picture.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from optax.assignment import hungarian_algorithm

LEAST_AREA = 1e-9
"""Of what areas are divided by."""
LARGEST_COST = 1e6


def corners(boxes: Float[Array, "*n 4"]) -> tuple[Float[Array, "*n 2"], Float[Array, "*n 2"]]:
    """Top left and bottom right."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return centre - size / 2, centre + size / 2


def generalised_iou(a: Float[Array, "*n 4"], b: Float[Array, "*n 4"]) -> Float[Array, "*n"]:
    """IoU less the share of the smallest box around both that neither covers (Rezatofighi et al. 2019,
    Algorithm 1), from -1 to 1."""
    (a_start, a_end), (b_start, b_end) = corners(a), corners(b)
    shared = _area(jnp.minimum(a_end, b_end) - jnp.maximum(a_start, b_start))
    union = a[..., 2] * a[..., 3] + b[..., 2] * b[..., 3] - shared
    around = _area(jnp.maximum(a_end, b_end) - jnp.minimum(a_start, b_start))
    iou = shared / jnp.maximum(union, LEAST_AREA)
    return iou - (around - union) / jnp.maximum(around, LEAST_AREA)


def _area(size: Float[Array, "*n 2"]) -> Float[Array, "*n"]:
    return jnp.prod(jnp.maximum(size, 0), axis=-1)


def matched_queries(costs: Float[Array, "b q n"], objects: Int[Array, " b"]) -> Int[Array, "b n"]:
    """The query of each object, with the lowest total cost (Carion et al. 2020, Eq. 1); no query has two.

    Args:
      costs: of each query and object. There are at least as many queries as objects.
      objects: how many of the objects there are in each row. The others get the queries that are left.
    """
    is_object = jnp.arange(costs.shape[2]) < objects[:, None]
    finite = jnp.nan_to_num(costs, nan=LARGEST_COST, posinf=LARGEST_COST, neginf=-LARGEST_COST)
    # queries that are left cost the same for whatever is not there, so the others decide
    costs = jnp.where(is_object[:, None, :], finite, 0)

    def of_row(costs: Float[Array, "q n"]) -> Int[Array, " n"]:
        queries, columns = hungarian_algorithm(costs)
        return jnp.zeros(costs.shape[1], jnp.int32).at[columns].set(queries)

    return jax.vmap(of_row)(costs)
