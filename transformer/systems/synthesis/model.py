"""A Transformer that speaks (Li et al. 2019): text in, frames of sound out; and what models that speak have
in common."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.model.cache import Cache
from transformer.model.encoder_decoder import NOISE, Segments
from transformer.model.layers import Affine, Dropout
from transformer.model.parameters import Axes, Module, param
from transformer.model.stack import Memory
from transformer.model.transformer import Transformer
from transformer.systems.synthesis.options import SynthesisConfig, VoiceConfig

# What models that speak have in common: frames of sound as their output, and the post-net.


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
        self.postnet = [Convolution(width, 5) for width in widths]  # frames (Shen et al. 2018, section 2.2)

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


PRENET_MASKS = "kept"
"""The masks of the pre-net that a search gives it, in the collection "noise"."""


class Spoken(NamedTuple):
    """What the decoder predicts."""

    frames: Float[Array, "b t bands"]
    """The frames before the post-net."""
    refined: Float[Array, "b t bands"]
    """The frames after the post-net."""
    stop: Float[Array, "b s"]
    """Logit that a step is the last."""


class Prenet(Module):
    """Two layers with ReLU and dropout, which the last frame goes through: without them the decoder would
    only copy it (Li et al. 2019, section 3.3)."""

    config: SynthesisConfig

    @nn.compact
    def __call__(self, frames: Float[Array, "b s bands"], deterministic: bool) -> Float[Array, "b s m"]:
        c = self.config
        x = frames.astype(c.compute_dtype)
        masks = self.get_variable(NOISE, PRENET_MASKS) if self.has_variable(NOISE, PRENET_MASKS) else None
        for layer in range(2):
            x = jax.nn.relu(Affine(c.prenet_width, (None, "hidden"), name=f"layer_{layer}")(x))
            if masks is not None:
                x = x * masks[layer][:, None, :].astype(x.dtype)
            else:
                x = Dropout(c.prenet_dropout)(x, deterministic)
        return Affine(c.d_model, ("hidden", "model"), name="out")(x)


class Synthesiser(Voice):
    """An autoregressive synthesiser: a step of the decoder reads the last frame and predicts `reduction`
    frames."""

    config: SynthesisConfig

    def setup(self) -> None:
        super().setup()
        self.prenet = Prenet(self.config)
        self.to_stop = Affine(1, ("model", None))

    def __call__(  # type: ignore[override]
        self,
        source: Int[Array, "b s"],
        target: Float[Array, "b t bands"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Spoken:
        """Teacher forcing.

        Args:
          source: ids, each text closed by <eos>, then <pad>.
          target: the frames to speak, then infinities.
          segments: none; utterances are not packed.
          deterministic: False draws dropout masks from the rng named "dropout".
        """
        memory = self.encode(source, deterministic=deterministic)
        frame_mask = jnp.isfinite(target[..., 0])
        hidden = self.decode(memory, target, deterministic=deterministic)
        frames = self.frames(hidden)[:, : target.shape[1]]
        return Spoken(frames, self.refine(frames, frame_mask), self.stops(hidden))

    def decode(  # type: ignore[override]
        self,
        memory: Memory,
        target: Float[Array, "b t bands"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
        embedded: Float[Array, "b s m"] | None = None,
    ) -> Float[Array, "b s m"]:
        """The decoder's last states: a step reads the frame before its own, zeros at the beginning."""
        c = self.config
        step_mask = self.target_mask(target)
        x = jnp.where(jnp.isfinite(target), target, 0)
        last = x[:, c.reduction - 1 :: c.reduction]
        before = jnp.pad(last, ((0, 0), (1, 0), (0, 0)))[:, : step_mask.shape[1]]
        ids = jnp.where(step_mask, c.special.bos, c.special.pad)
        prenet_output = self.prenet(before, deterministic)
        return super().decode(memory, ids, deterministic=deterministic, embedded=prenet_output)

    def stops(self, hidden: Float[Array, "b s m"]) -> Float[Array, "b s"]:
        """The logit that a step is the last."""
        return self.to_stop(hidden)[..., 0].astype(jnp.float32)

    def embed_target(self, frames: Float[Array, "b s bands"]) -> Float[Array, "b s m"]:  # type: ignore[override]
        """What the decoder reads of the last frame, while it speaks."""
        return self.prenet(frames, True)

    def decode_step(self, cache: Cache, tokens: Any) -> tuple[Any, Cache]:
        """The next frames `[b, reduction, bands]` and the logit that they are the last `[b]`, given the last
        frame `[b, 1, bands]`."""
        hidden, cache = self.hidden_step(cache, tokens)
        return (self.frames(hidden), self.stops(hidden)[:, 0]), cache
