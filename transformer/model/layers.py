"""The parts around attention: residual + norm + dropout, feed-forward, embeddings, positions
(sections 3.1, 3.3-3.5)."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer.config import ModelConfig, TransformerConfig
from transformer.model.int8 import QuantizedMatrix, param_or_quantized

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "swish": jax.nn.swish}


def keep_mask(key: Array, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """True with probability 1 - rate, up to 2^-17: each element uses sixteen bits.

    The bits are a hash of the element's index (two rounds of multiply and xor-shift, keyed by both words of
    the key). Dropout does not need the guarantees of jax.random's threefry, which is slower.
    """
    first, second = jax.random.key_data(key).astype(jnp.uint32)[-2:]
    size = math.prod(shape)
    bits = jnp.arange((size + 1) // 2, dtype=jnp.uint32) * np.uint32(0x9E3779B9) + first
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15) ^ second) * np.uint32(0x846CA68B)
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    bits ^= bits >> 15
    halves = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(-1)
    return halves[:size].reshape(shape) >= round(rate * 2**16)


def by_rows(x: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
    """Returns x, under a mesh sharded along its rows only, so that the compiler gathers parameters and not
    activations."""
    return nn.with_logical_constraint(x, ("rows", None, None))


def shards_of_rows() -> int:
    """The number of shards of a batch's rows under the current mesh; 1 without a mesh."""
    mesh, rules = jax.sharding.get_abstract_mesh(), dict(nn.get_logical_axis_rules())
    return math.prod(mesh.shape[axis] for axis in rules.get("rows") or ())


def linear(x: Float[Array, "b t m"], kernel: Float[Array, "..."] | QuantizedMatrix) -> Float[Array, "b t n"]:
    """x W, computed in the dtype of x. The first axes of the kernel together match the last one of x; its
    other axes become one."""
    if isinstance(kernel, QuantizedMatrix):
        return kernel.product(x).astype(x.dtype)
    return _product(x, kernel.astype(x.dtype).reshape(x.shape[-1], -1))


@jax.custom_vjp
def _product(x: Float[Array, "b t m"], kernel: Float[Array, "m n"]) -> Float[Array, "b t n"]:
    """x W, whose gradient with respect to W is computed in W's memory order; JAX would compute its transpose,
    and transpose that. (It has no forward-mode derivative, so neither has a model.)"""
    return jnp.einsum("btm,mn->btn", x, kernel)


def _product_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = kept
    x = jax.lax.optimization_barrier(x)  # transposed separately: CPUs are slow if it is fused with more
    return jnp.einsum("btn,mn->btm", gradient, kernel), jnp.einsum("btm,btn->mn", x, gradient)


_product.defvjp(lambda x, kernel: (_product(x, kernel), (x, kernel)), _product_backward)


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate)."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "..."], deterministic: bool) -> Float[Array, "..."]:
        if deterministic or self.rate == 0:
            return x
        kept = keep_mask(self.make_rng("dropout"), self.rate, x.shape)
        return jnp.where(kept, x / (1 - self.rate), 0).astype(x.dtype)


class LayerNorm(nn.Module):
    """Layer normalisation, always in float32."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
        width = x.shape[-1:]
        norm = self.param("norm", lambda _: {"scale": jnp.ones(width), "bias": jnp.zeros(width)})
        centred = x.astype(jnp.float32) - x.mean(axis=-1, keepdims=True, dtype=jnp.float32)
        variance = jnp.square(centred).mean(axis=-1, keepdims=True)
        # Flax's own multiplies the scale with this first, and stores that for every position
        normalised = centred * jax.lax.rsqrt(variance + self.config.norm_epsilon)
        return (normalised * norm["scale"] + norm["bias"]).astype(x.dtype)


class Residual(nn.Module):
    """The residual connection of every sublayer (section 3.1): LayerNorm(x + Dropout(Sublayer(x))),
    or, with norm="pre", x + Dropout(Sublayer(LayerNorm(x)))."""

    config: TransformerConfig

    def setup(self) -> None:
        self.norm = LayerNorm(self.config)
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self,
        x: Float[Array, "b t m"],
        sublayer: Callable[[Float[Array, "b t m"]], Float[Array, "b t m"]],
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        if self.config.norm == "pre":
            return by_rows(x + self.dropout(sublayer(self.norm(x)), deterministic))
        return by_rows(self.norm(x + self.dropout(sublayer(x), deterministic)))


class Affine(nn.Module):
    """x W + b."""

    width: int

    @nn.compact
    def __call__(self, x: Float[Array, "b t m"]) -> Float[Array, "b t n"]:
        kernel = param_or_quantized(
            self, "kernel", nn.initializers.glorot_uniform(), (x.shape[-1], self.width)
        )
        bias = self.param("bias", nn.initializers.zeros_init(), (self.width,))
        return linear(x, kernel) + bias.astype(x.dtype)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 at every position (Eq. 2)."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b t m"], deterministic: bool = True) -> Float[Array, "b t m"]:
        c = self.config
        inner = Affine(c.d_ff, name="inner")(x)
        inner = Dropout(c.activation_dropout)(ACTIVATIONS[c.activation](inner), deterministic)
        return Affine(c.d_model, name="outer")(inner)


class Embedding(nn.Module):
    """Maps ids to rows of a matrix, initially N(0, d_model^-0.5), times sqrt(d_model) (section 3.4)."""

    config: ModelConfig
    size: int

    def setup(self) -> None:
        c = self.config
        normal = nn.initializers.normal(c.d_model**-0.5)
        self.table = param_or_quantized(self, "table", normal, (self.size, c.d_model))

    def __call__(self, ids: Int[Array, "b t"]) -> Float[Array, "b t m"]:
        return self.table[ids].astype(self.config.dtype) * math.sqrt(self.config.d_model)


def sinusoids(positions: Int[Array, "*batch t"], d_model: int) -> Float[Array, "*batch t m"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(same) (section 3.5)."""
    rates = 10_000.0 ** (-jnp.arange(0, d_model, 2) / d_model)
    angles = positions[..., None].astype(jnp.float32) * rates
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, d_model)


def positions_in(segments: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """Positions that count from 0 in every segment of a packed row."""
    index = jnp.arange(segments.shape[1])[None, :]
    first = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index - jax.lax.cummax(jnp.where(first, index, 0), axis=1)


class Positions(nn.Module):
    """Embedding + position, then dropout (sections 3.5, 5.4). Learned positions: Table 3, row E."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        embedded: Float[Array, "b t m"],
        positions: Int[Array, "*#b #t"],
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        c = self.config
        if c.positions == "learned":
            normal = nn.initializers.normal(c.d_model**-0.5)
            encoded = self.param("table", normal, (c.max_positions, c.d_model))[positions]
        else:
            encoded = sinusoids(positions, c.d_model)
        return by_rows(Dropout(c.dropout)(embedded + encoded.astype(embedded.dtype), deterministic))
