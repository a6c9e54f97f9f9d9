"""The parts around attention: residuals, normalisation, feed-forward, embeddings (sections 3.1, 3.3, 3.4),
and dropout (section 5.4), with random bits that are cheap to compute."""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from transformer.config.model import ModelConfig
from transformer.config.transformer import StackConfig
from transformer.model.normalization import normalization
from transformer.model.parameters import Axes, Module, by_rows, check_ids, linear, matrix, param, platform

# Dropout (section 5.4), with random bits that are cheap to compute.


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and scales the others by 1 / (1 - rate)."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "..."], deterministic: bool) -> Float[Array, "..."]:
        if deterministic or self.rate == 0:
            return x
        return drop(x, self.key(), self.rate)

    def key(self) -> Array:
        """The random key."""
        return self.make_rng("dropout")


def drop(x: Float[Array, "..."], key: Array, rate: float) -> Float[Array, "..."]:
    """x after dropout with this random key."""
    return jnp.where(keep_mask(key, rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


def keep_mask(key: Array, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """True with probability 1 - rate, up to 2^-17: each element uses sixteen bits.

    The bits are a hash of the element's index (two rounds of multiply and xor-shift, keyed by both words of
    the key). Dropout does not need the guarantees of jax.random's threefry, which is slower.
    """
    first, second = jax.random.key_data(key).astype(jnp.uint32)[-2:]
    if platform() != "cpu" and shape and shape[-1] % 2 == 0:
        return _keep_mask_by_element(first, second, rate, shape)
    size = math.prod(shape)
    bits = hashed(jnp.arange((size + 1) // 2, dtype=jnp.uint32), first, second)
    halves = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(-1)
    return halves[:size].reshape(shape) >= round(rate * 2**16)


def _keep_mask_by_element(
    first: UInt32[Array, ""], second: UInt32[Array, ""], rate: float, shape: tuple[int, ...]
) -> Bool[Array, "..."]:
    """The same mask, for accelerators: each element computes the bits of its pair, which costs them less than
    to take pairs apart."""

    def iota(axis: int) -> Array:
        return jax.lax.broadcasted_iota(jnp.uint32, shape, axis)

    pair = jnp.zeros(shape, jnp.uint32)
    last = len(shape) - 1
    for axis, size in enumerate(shape):
        pair = pair * np.uint32(size // 2 if axis == last else size) + (iota(axis) >> int(axis == last))
    bits = hashed(pair, first, second)
    halves = jnp.where(iota(last) % 2 == 0, bits & np.uint32(0xFFFF), bits >> 16)
    return halves >= np.uint32(round(rate * 2**16))


def hashed(
    index: UInt32[Array, "..."], first: UInt32[Array, ""], second: UInt32[Array, ""]
) -> UInt32[Array, "..."]:
    """Random bits for each index, keyed by two words."""
    bits = index * np.uint32(0x9E3779B9) + first
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15) ^ second) * np.uint32(0x846CA68B)
    bits = (bits ^ (bits >> 16)) * np.uint32(0x7FEB352D)
    return bits ^ (bits >> 15)


@jax.custom_vjp
def relu(x: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
    """max(0, x). Its gradient reads its output, which the next product keeps anyway: `jax.nn.relu` would keep
    its input too, and that is the largest activation of a layer."""
    return jnp.maximum(x, 0)


def _relu_forward(x: Array) -> tuple[Array, Array]:
    y = jax.lax.optimization_barrier(relu(x))  # otherwise compilers would keep x and compute y again from it
    return y, y


relu.defvjp(_relu_forward, lambda y, gradient: (jnp.where(y > 0, gradient, 0),))
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "gelu": jax.nn.gelu,
    "gelu-exact": functools.partial(jax.nn.gelu, approximate=False),
    "swish": jax.nn.swish,
}


class Residual(Module):
    """The residual connection of every sublayer (section 3.1): LayerNorm(x + Dropout(Sublayer(x))),
    or, with norm="pre", x + Dropout(Sublayer(LayerNorm(x)))."""

    config: StackConfig

    def setup(self) -> None:
        self.norm = normalization(self.config)
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self,
        x: Float[Array, "b t m"],
        sublayer: Callable[[Float[Array, "b t m"]], Float[Array, "b t m"]],
        deterministic: bool = True,
        mask: Bool[Array, "b t"] | None = None,
    ) -> Float[Array, "b t m"]:
        """The sum. Statistics of a batch are those of the positions where `mask` is True, which is False for
        padding; None: decoding has no padding."""
        if self.config.norm == "pre":
            return by_rows(x + self.dropout(sublayer(self.norm(x, mask, deterministic)), deterministic))
        return by_rows(self.norm(x + self.dropout(sublayer(x), deterministic), mask, deterministic))


class Affine(Module):
    """x W + b."""

    width: int
    axes: Axes
    """The names of the matrix's two axes."""
    has_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "b t m"]) -> Float[Array, "b t n"]:
        glorot = nn.initializers.glorot_uniform()
        shape = (x.shape[-1], self.width)
        kernel = matrix(self, "kernel", glorot, shape, self.axes)
        if not self.has_bias:
            return linear(x, kernel)
        return linear(x, kernel, param(self, "bias", nn.initializers.zeros_init(), shape[1:], self.axes[1:]))


class FeedForward(Module):
    """max(0, x W1 + b1) W2 + b2 at every position (Eq. 2). Gated: (f(x W1 + b1) * (x V + c)) W2 + b2 (Shazeer
    2020, Eq. 6)."""

    config: StackConfig

    @nn.compact
    def __call__(self, x: Float[Array, "b t m"], deterministic: bool = True) -> Float[Array, "b t m"]:
        c = self.config
        bias = c.feed_forward_bias
        inner = ACTIVATIONS[c.activation](Affine(c.d_ff, ("model", "hidden"), bias, name="inner")(x))
        if c.gated:
            inner = inner * Affine(c.d_ff, ("model", "hidden"), bias, name="gate")(x)
        inner = Dropout(c.activation_dropout)(inner, deterministic)
        return Affine(c.d_model, ("hidden", "model"), bias, name="outer")(inner)


class Embedding(Module):
    """Maps ids to rows of a matrix, initially N(0, d_model^-0.5), times sqrt(d_model) (section 3.4), unless
    the config says otherwise."""

    config: ModelConfig
    size: int

    def setup(self) -> None:
        normal = nn.initializers.normal(self.config.d_model**-0.5)
        shape = (self.size, self.config.d_model)
        self.table = matrix(self, "table", normal, shape, ("vocabulary", "model"), summed=(1,))

    def __call__(self, ids: Int[Array, "b t"]) -> Float[Array, "b t m"]:
        check_ids("the input", ids)
        c = self.config
        embedded = self.table[ids].astype(c.compute_dtype)
        if c.fixed_padding:
            is_padding = (ids == c.special.pad)[..., None]
            embedded = jnp.where(is_padding, jax.lax.stop_gradient(embedded), embedded)
        return embedded * math.sqrt(c.d_model) if c.scale_embedding else embedded
