"""What models that speak have in common: frames of sound as their output, and the post-net."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.model.layers import Affine
from transformer.model.parameters import Axes, Module, param
from transformer.model.transformer import Transformer
from transformer.systems.synthesis.options import VoiceConfig


class Convolution(Module):
    """A centred convolution over a sequence."""

    width: int
    kernel_width: int
    axes: Axes = (None, "hidden")
    """The names of the axes of its input and output."""

    @nn.compact
    def __call__(self, x: Float[Array, "b t c"]) -> Float[Array, "b t d"]:
        shape, side = (self.kernel_width, x.shape[-1], self.width), self.kernel_width // 2
        initial = nn.initializers.glorot_uniform((0, 1), 2)
        kernel = param(self, "kernel", initial, shape, (None, *self.axes))
        bias = param(self, "bias", nn.initializers.zeros_init(), (self.width,), self.axes[1:])
        y = jax.lax.conv_general_dilated(
            x, kernel.astype(x.dtype), (1,), [(side, side)], dimension_numbers=("NWC", "WIO", "NWC")
        )
        return y + bias.astype(y.dtype)


class Voice(Transformer):
    """A Transformer whose decoder writes frames of sound, `reduction` of them in a step."""

    config: VoiceConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.to_frames = Affine(c.reduction * c.bands, ("model", None))
        widths = [*[c.postnet_width] * (c.postnet_layers - 1), c.bands] if c.postnet_layers else []
        self.postnet = [Convolution(width, c.postnet_kernel) for width in widths]

    def frames(self, hidden: Float[Array, "b s m"]) -> Float[Array, "b t bands"]:
        """The frames that the decoder's states write."""
        frames = self.to_frames(hidden).astype(jnp.float32)
        return frames.reshape(hidden.shape[0], -1, self.config.bands)

    def refine(
        self, frames: Float[Array, "b t bands"], frame_mask: Bool[Array, "b t"]
    ) -> Float[Array, "b t bands"]:
        """The frames, with what the post-net adds."""
        x = jnp.where(frame_mask[..., None], frames, 0)
        for number, layer in enumerate(self.postnet, 1):
            y = layer(x) if number == len(self.postnet) else jnp.tanh(layer(x))
            x = jnp.where(frame_mask[..., None], y, 0)
        return frames + x if self.postnet else frames

    @nn.nowrap
    def target_mask(self, target: Float[Array, "b t bands"]) -> Bool[Array, "b s"]:  # type: ignore[override]
        """Which steps of the decoder are not padding."""
        return jnp.isfinite(target[..., 0])[:, :: self.config.reduction]
