"""A Transformer that speaks (Li et al. 2019): text in, frames of sound out."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.synthesis import SynthesisConfig
from transformer.model.cache import Cache
from transformer.model.dropout import Dropout
from transformer.model.encoder_decoder import Segments
from transformer.model.layers import Affine
from transformer.model.noise import NOISE
from transformer.model.parameters import Module, param
from transformer.model.transformer import Memory, Transformer

KEPT = "kept"
"""The masks of the pre-net that a search gives it, in the collection "noise"."""


class Spoken(NamedTuple):
    """What the decoder predicts."""

    frames: Float[Array, "b t bands"]
    """Before the post-net."""
    refined: Float[Array, "b t bands"]
    """After it."""
    stop: Float[Array, "b s"]
    """Logit that a step is the last."""


class Prenet(Module):
    """Two layers with ReLU and dropout, which the last frame goes through: without them the decoder would
    only copy it (Li et al. 2019, section 3.3)."""

    config: SynthesisConfig

    @nn.compact
    def __call__(self, frames: Float[Array, "b s bands"], deterministic: bool) -> Float[Array, "b s m"]:
        c, x = self.config, frames.astype(self.config.dtype)
        masks = self.get_variable(NOISE, KEPT) if self.has_variable(NOISE, KEPT) else None
        for layer in range(2):
            x = jax.nn.relu(Affine(c.prenet_width, (None, "hidden"), name=f"layer_{layer}")(x))
            if masks is not None:
                x = x * masks[layer][:, None, :].astype(x.dtype)
            else:
                x = Dropout(c.prenet_dropout)(x, deterministic)
        return Affine(c.d_model, ("hidden", "model"), name="out")(x)


class Refinement(Module):
    """A convolution over frames, with tanh unless it is the last."""

    width: int
    kernel_width: int
    last: bool

    @nn.compact
    def __call__(self, x: Float[Array, "b t c"]) -> Float[Array, "b t d"]:
        shape, side = (self.kernel_width, x.shape[-1], self.width), self.kernel_width // 2
        initial = nn.initializers.glorot_uniform((0, 1), 2)
        kernel = param(self, "kernel", initial, shape, (None, None, "hidden"))
        bias = param(self, "bias", nn.initializers.zeros_init(), (self.width,), ("hidden",))
        y = jax.lax.conv_general_dilated(
            x, kernel.astype(x.dtype), (1,), [(side, side)], dimension_numbers=("NWC", "WIO", "NWC")
        )
        y = y + bias.astype(y.dtype)
        return y if self.last else jnp.tanh(y)


class Synthesiser(Transformer):
    """A Transformer whose target is frames of sound. A step of the decoder reads the last frame and predicts
    `reduction` frames."""

    config: SynthesisConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.prenet = Prenet(c)
        self.to_frames = Affine(c.reduction * c.bands, ("model", None))
        self.to_stop = Affine(1, ("model", None))
        widths = [*[c.postnet_width] * (c.postnet_layers - 1), c.bands] if c.postnet_layers else []
        self.postnet = [
            Refinement(width, c.postnet_kernel, place == len(widths)) for place, width in enumerate(widths, 1)
        ]

    @nn.nowrap
    def written(self, target: Float[Array, "b t bands"]) -> Bool[Array, "b s"]:  # type: ignore[override]
        """Which steps of the decoder are there."""
        return jnp.isfinite(target[..., 0])[:, :: self.config.reduction]

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
        there = jnp.isfinite(target[..., 0])
        hidden = self.decode(memory, target, deterministic=deterministic)
        frames = self.to_frames(hidden).astype(jnp.float32)
        frames = frames.reshape(target.shape[0], -1, self.config.bands)[:, : target.shape[1]]
        return Spoken(frames, self.refine(frames, there), self.stops(hidden))

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
        c, there = self.config, self.written(target)
        x = jnp.where(jnp.isfinite(target), target, 0)
        last = x[:, c.reduction - 1 :: c.reduction]
        before = jnp.pad(last, ((0, 0), (1, 0), (0, 0)))[:, : there.shape[1]]
        words = jnp.where(there, c.special.bos, c.special.pad)
        read = self.prenet(before, deterministic)
        return super().decode(memory, words, deterministic=deterministic, embedded=read)

    def refine(
        self, frames: Float[Array, "b t bands"], there: Bool[Array, "b t"]
    ) -> Float[Array, "b t bands"]:
        """The frames, with what the post-net adds."""
        x = jnp.where(there[..., None], frames, 0)
        for layer in self.postnet:
            x = jnp.where(there[..., None], layer(x), 0)
        return frames + x if self.postnet else frames

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
        frames = self.to_frames(hidden).astype(jnp.float32)
        return (frames.reshape(len(frames), -1, self.config.bands), self.stops(hidden)[:, 0]), cache
