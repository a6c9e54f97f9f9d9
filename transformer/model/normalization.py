"""Normalisation of the inputs or outputs of sublayers (section 3.1), always in float32.

Each is called with `mask`, False for padding, and `deterministic`; only the normalisations over a batch read
them.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.config.transformer import StackConfig
from transformer.model.parameters import Declared, Module, platform, variant


def normalization(config: StackConfig, name: str | None = None) -> nn.Module:
    """The normalisation that a config names, as a module of this name."""
    return variant(NORMALIZATIONS[config.normalization])(config, name=name)  # type: ignore[no-any-return]


def scale_and_bias(module: nn.Module, width: int) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """gamma and beta: the scale and the offset of each feature after its normalisation."""
    axes = ("model",)
    initial = {"scale": Declared(jnp.ones(width), axes), "bias": Declared(jnp.zeros(width), axes)}
    norm: Any = module.param("norm", lambda _: initial)
    return norm["scale"], norm["bias"]


class LayerNorm(Module):
    """Layer normalisation (Ba et al. 2016): over the features of each position."""

    config: StackConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t m"],
        mask: Bool[Array, "b t"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        scale, bias = scale_and_bias(self, x.shape[-1])
        if platform() != "cpu":
            return layer_normalised(x, scale, bias, self.config.norm_epsilon)
        centred = x.astype(jnp.float32) - x.mean(axis=-1, keepdims=True, dtype=jnp.float32)
        variance = jnp.square(centred).mean(axis=-1, keepdims=True)
        # Flax's own multiplies the scale with this first, and stores that for every position
        normalised = centred * jax.lax.rsqrt(variance + self.config.norm_epsilon)
        return (normalised * scale + bias).astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_normalised(
    x: Float[Array, "b t m"], scale: Float[Array, " m"], bias: Float[Array, " m"], epsilon: float
) -> Float[Array, "b t m"]:
    """Layer normalisation for accelerators, whose time is that of passes over memory. The variance is the
    mean square minus the square of the mean, so no sum over features waits for another one: compilers compute
    them together with x, or with its gradient."""
    return _layer_forward(x, scale, bias, epsilon)[0]


def _layer_forward(x: Array, scale: Array, bias: Array, epsilon: float) -> tuple[Array, Any]:
    values = x.astype(jnp.float32)
    mean = values.mean(axis=-1, keepdims=True)
    variance = jnp.maximum(jnp.square(values).mean(axis=-1, keepdims=True) - jnp.square(mean), 0)
    inverse = jax.lax.rsqrt(variance + epsilon)
    y = ((values - mean) * inverse * scale + bias).astype(x.dtype)
    return y, (x, mean, inverse, scale)


def _layer_backward(epsilon: float, residuals: Any, gradient: Array) -> tuple[Array, Array, Array]:
    x, mean, inverse, scale = residuals
    normalised = (x.astype(jnp.float32) - mean) * inverse
    gradient = gradient.astype(jnp.float32)
    scaled = gradient * scale
    along = (scaled * normalised).mean(axis=-1, keepdims=True)
    of_x = (scaled - scaled.mean(axis=-1, keepdims=True) - normalised * along) * inverse
    of_scale = (gradient * normalised).sum(axis=(0, 1))
    of_bias = gradient.sum(axis=(0, 1))
    return of_x.astype(x.dtype), of_scale, of_bias


layer_normalised.defvjp(_layer_forward, _layer_backward)


NORMALIZATIONS: dict[str, type[Module] | str] = {
    "layer": LayerNorm,
    "rms": "normalizations.RmsNorm",
    "batch": "normalizations.BatchNorm",
    "power": "normalizations.PowerNorm",
}
"""Classes by the name in `StackConfig.normalization`. Those that the paper does not have are named as
`variant` finds them."""
