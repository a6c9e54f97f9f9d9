"""Normalisations that the paper does not have, as `transformer.model.normalization` has them, and the running
statistics that those over a batch need (`transformer.model.statistics`)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.config.transformer import StackConfig
from transformer.model.normalization import scale_and_bias
from transformer.model.parameters import Declared, Module
from transformer.model.statistics import GRADIENTS, PROBES, STATISTICS, SUMS, Sums, over_replicas

MOMENTUM = 0.9  # share of the old running mean in the new one (Shen et al. 2020, section 5)


# Running statistics of a module.


def running_mean(
    module: nn.Module,
    name: str,
    total: Float[Array, "..."],
    count: Float[Array, ""],
    *,
    momentum: float = 0.99,
    initial: float = 0.0,
) -> Float[Array, "..."]:
    """The running mean of a statistic, before this batch.

    Args:
      module: its owner.
      name: unique among the statistics of the module.
      total: the sum of this batch.
      count: the number of summands, such as the tokens.
      momentum: share of the old mean in the new one.
      initial: its first value.
    """
    mean = module.variable(STATISTICS, name, lambda: jnp.full(total.shape, initial))
    if counts(module):
        module.put_variable(SUMS, name, Sums(total, count, momentum))
    value: Array = mean.value
    return value


def counts(module: nn.Module) -> bool:
    """Whether this pass of the module counts in the running means."""
    return module.is_mutable_collection(SUMS) and not module.is_initializing()


def running_gradient(
    module: nn.Module,
    name: str,
    shape: tuple[int, ...],
    count: Float[Array, ""],
    *,
    momentum: float = 0.99,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The running mean of a statistic of gradients, and its probe: zeros of the same shape. A function with a
    custom gradient takes the probe and returns, as its gradient, the sum of this batch.

    Arguments as `running_mean`.
    """
    mean = module.variable(GRADIENTS, name, lambda: jnp.zeros(shape))
    probe: Array = jnp.zeros(shape)
    if counts(module):
        module.put_variable(SUMS, name, Sums(probe, count, momentum))  # the backward pass replaces it
        if module.has_variable(PROBES, name):
            probe_sums: Sums = module.get_variable(PROBES, name)
            probe = _counted(probe_sums.total, probe_sums.count, count)
    value: Array = mean.value
    return value, probe


@jax.custom_vjp
def _counted(
    total: Float[Array, "..."], number: Float[Array, ""], count: Float[Array, ""]
) -> Float[Array, "..."]:
    """`total`. When a gradient reaches it, the gradient of `number` is `count`."""
    return total


_counted.defvjp(
    lambda total, number, count: (total, count), lambda count, g: (g, count, jnp.zeros_like(count))
)


# Normalisations.


class RmsNorm(Module):
    """Root mean square normalisation (Zhang and Sennrich 2019): each position divided by the root of its mean
    square, times a scale. There is no offset."""

    config: StackConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t m"],
        mask: Bool[Array, "b t"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        width = x.shape[-1]
        norm: Any = self.param("norm", lambda _: {"scale": Declared(jnp.ones(width), ("model",))})
        values = x.astype(jnp.float32)
        mean_square = jnp.square(values).mean(axis=-1, keepdims=True)
        normalised = values * jax.lax.rsqrt(mean_square + self.config.norm_epsilon)
        return (normalised * norm["scale"]).astype(x.dtype)


def _is_token(x: Float[Array, "b t m"], mask: Bool[Array, "b t"] | None) -> Float[Array, "b t 1"]:
    """1 for positions that count, 0 for padding."""
    return jnp.ones((*x.shape[:2], 1)) if mask is None else mask[..., None].astype(jnp.float32)


class BatchNorm(Module):
    """Batch normalisation (Ioffe and Szegedy 2015): each feature over the positions of a batch that are no
    padding, on all devices. In evaluation and decoding, by running means."""

    config: StackConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t m"],
        mask: Bool[Array, "b t"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        scale, bias = scale_and_bias(self, x.shape[-1])
        values = x.astype(jnp.float32)
        is_token = _is_token(x, mask)
        count = is_token.sum()
        total = (values * is_token).sum(axis=(0, 1))
        num_tokens = jnp.maximum(over_replicas(count), 1)
        mean = over_replicas(total) / num_tokens
        squares = (jnp.square(values - mean) * is_token).sum(axis=(0, 1))
        variance = over_replicas(squares) / num_tokens
        running = running_mean(self, "mean", total, count, momentum=MOMENTUM)
        around = running_mean(self, "variance", squares, count, momentum=MOMENTUM, initial=1.0)
        if deterministic:
            mean = running
            variance = around
        normalised = (values - mean) * jax.lax.rsqrt(variance + self.config.norm_epsilon)
        return (normalised * scale + bias).astype(x.dtype)


class PowerNorm(Module):
    """PowerNorm (Shen et al. 2020, Eq. 9-12): each feature divided by its running quadratic mean, which also
    training reads from the batches before. The gradient reads a running mean, too. So neither depends on
    this batch, nor on how it is sharded. In a pass that does not count in the running means, the quadratic
    mean is a constant."""

    config: StackConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t m"],
        mask: Bool[Array, "b t"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        scale, bias = scale_and_bias(self, x.shape[-1])
        values = x.astype(jnp.float32)
        is_token = _is_token(x, mask)
        count = is_token.sum()
        width = x.shape[-1:]
        total = jax.lax.stop_gradient((jnp.square(values) * is_token).sum(axis=(0, 1)))
        quadratic = running_mean(self, "quadratic", total, count, momentum=MOMENTUM, initial=1.0)
        gradient, probe = running_gradient(self, "gradient", width, count, momentum=MOMENTUM)
        if not counts(self):  # then the quadratic mean does not depend on x
            gradient = jnp.zeros_like(gradient)
        psi = jnp.sqrt(quadratic + self.config.norm_epsilon)
        return (power_normalised(values, is_token, psi, gradient, probe) * scale + bias).astype(x.dtype)


@jax.custom_vjp
def power_normalised(
    x: Float[Array, "b t m"],
    is_token: Float[Array, "b t 1"],
    psi: Float[Array, " m"],
    nu: Float[Array, " m"],
    probe: Float[Array, " m"],
) -> Float[Array, "b t m"]:
    """x / psi, whose gradient is approximated by running means (Shen et al. 2020, Eq. 11-12).

    Args:
      x: activations.
      is_token: 0 for padding, 1 otherwise.
      psi: the running quadratic mean of each feature.
      nu: the running mean of gradient times normalised activation.
      probe: zeros. Its gradient is the sum over positions whose mean the running mean nu takes in: nu + g y -
        nu y^2, for normalised activations y and their gradients g. So nu becomes nu (1 - (1 - a) mean(y^2)) +
        (1 - a) mean(g y), for a momentum a.
    """
    return x / psi


def _forward(x: Array, is_token: Array, psi: Array, nu: Array, probe: Array) -> tuple[Array, Any]:
    y = x / psi
    return y, (y, is_token, psi, nu)


def _backward(residuals: Any, g: Array) -> tuple[Array, ...]:
    y, is_token, psi, nu = residuals
    of_x = (g - nu * y) * is_token / psi
    of_probe = ((nu + g * y - nu * jnp.square(y)) * is_token).sum(axis=(0, 1))
    return of_x, jnp.zeros_like(is_token), jnp.zeros_like(psi), jnp.zeros_like(nu), of_probe


power_normalised.defvjp(_forward, _backward)
