"""A layer with running statistics of its activations and of their gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from toys.task import text
from transformer import Transformer
from transformer.model.parameters import Module
from transformer.model.variants.normalizations import running_gradient, running_mean


@jax.custom_vjp
def observed(x, probe):
    return x


observed.defvjp(lambda x, probe: (x, None), lambda _, g: (g, (g**2).sum(axis=(0, 1))))


class Tracked(Module):
    """Divides by the running root mean square, and measures that of the gradient."""

    @nn.compact
    def __call__(self, x, there):
        count = there.sum().astype(jnp.float32)
        squares = (jax.lax.stop_gradient(x) ** 2 * there[..., None]).sum(axis=(0, 1))
        scale = running_mean(self, "squares", squares, count, momentum=0.5, initial=1.0)
        _, probe = running_gradient(self, "gradient", scale.shape, count, momentum=0.5)
        return observed(x / jnp.sqrt(scale + 1e-3), probe)


class TrackedModel(Transformer):
    def setup(self) -> None:
        super().setup()
        self.tracked = Tracked()

    def decode(self, memory, target, *, segments=None, deterministic=True):
        states = super().decode(memory, target, segments=segments, deterministic=deterministic)
        return self.tracked(states, target != self.config.special.pad)

    def hidden_step(self, cache, tokens):
        states, cache = super().hidden_step(cache, tokens)
        return self.tracked(states, tokens != self.config.special.pad), cache


SYSTEM = text(model=TrackedModel)
