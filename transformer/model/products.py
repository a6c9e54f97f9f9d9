"""Products of activations and parameters."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.model.int8 import QuantizedMatrix
from transformer.model.placement import platform

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
