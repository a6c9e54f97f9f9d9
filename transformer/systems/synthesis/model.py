"""A Transformer that speaks (Li et al. 2019): text in, frames of sound out."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.model.cache import Cache
from transformer.model.dropout import Dropout
from transformer.model.encoder import Memory
from transformer.model.encoder_decoder import Segments
from transformer.model.layers import Affine
from transformer.model.noise import NOISE
from transformer.model.parameters import Module
from transformer.systems.synthesis.options import SynthesisConfig
from transformer.systems.synthesis.voice import Voice

PRENET_MASKS = "kept"
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
        read = self.prenet(before, deterministic)
        return super().decode(memory, ids, deterministic=deterministic, embedded=read)

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
