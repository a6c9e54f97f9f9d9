"""The parts around attention: residuals, normalisation, feed-forward, embeddings (sections 3.1, 3.3, 3.4)."""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import ModelConfig
from transformer.config.transformer import StackConfig
from transformer.model.dropout import Dropout
from transformer.model.normalization import normalization
from transformer.model.parameters import Axes, Module, by_rows, check_ids, linear, matrix, param


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
