"""A non-autoregressive synthesiser (FastSpeech, Ren et al. 2019)."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.model.dropout import Dropout
from transformer.model.encoder import Memory
from transformer.model.encoder_decoder import Segments
from transformer.model.layers import Affine
from transformer.model.masks import Mask
from transformer.model.normalization import normalization
from transformer.model.parameters import Module
from transformer.systems.nonautoregressive_synthesis.options import NonAutoregressiveSynthesisConfig
from transformer.systems.synthesis.voice import Convolution, Voice


class Spoken(NamedTuple):
    """What is predicted for a text."""

    frames: Float[Array, "b t bands"]
    """Before the post-net."""
    refined: Float[Array, "b t bands"]
    """After it."""
    durations: Float[Array, "b s"]
    """log(1 + steps) of each token."""


class DurationPredictor(Module):
    """Two convolutions over the encoder's states, each with ReLU, LayerNorm and dropout (Ren et al. 2019,
    section 3.3)."""

    config: NonAutoregressiveSynthesisConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b s m"], source_mask: Bool[Array, "b s"], deterministic: bool
    ) -> Float[Array, "b s"]:
        c = self.config
        for _ in range(2):
            x = jnp.where(source_mask[..., None], x, 0)
            x = Convolution(c.d_model, c.duration_kernel, ("model", None))(x)
            x = normalization(c)(jax.nn.relu(x), source_mask, deterministic)
            x = Dropout(c.dropout)(x, deterministic)
        return Affine(1, ("model", None), name="out")(x)[..., 0].astype(jnp.float32)


class NonAutoregressiveSynthesiser(Voice):
    """Predicts how many steps each token takes, repeats the encoder's state of a token as often, and reads
    all of them at once. As in Gu et al. (2018), and not in FastSpeech, the decoder attends to the text
    too."""

    config: NonAutoregressiveSynthesisConfig

    def setup(self) -> None:
        super().setup()
        self.duration_predictor = DurationPredictor(self.config)

    def __call__(  # type: ignore[override]
        self,
        source: Int[Array, "b s"],
        target: Float[Array, "b t bands"],
        durations: Int[Array, "b s"] | None = None,
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Spoken:
        """The frames of an utterance of known length.

        Args:
          source: ids, each text closed by <eos>, then <pad>.
          target: only its length matters: frames, then infinities.
          durations: steps of each token. None: as predicted.
          segments: none; utterances are not packed.
          deterministic: False draws dropout masks from the rng named "dropout".
        """
        memory = self.encode(source, deterministic=deterministic)
        predicted = self.predict_durations(memory, deterministic)
        if durations is None:
            durations = steps_of(predicted, memory.mask)
        steps = self.target_mask(target)
        frames = self.speak(memory, durations, steps, deterministic)[:, : target.shape[1]]
        return Spoken(frames, self.refine(frames, jnp.isfinite(target[..., 0])), predicted)

    def predict_durations(self, memory: Memory, deterministic: bool = True) -> Float[Array, "b s"]:
        """log(1 + steps) of each token."""
        return self.duration_predictor(memory.states, memory.mask, deterministic)

    def speak(
        self,
        memory: Memory,
        durations: Int[Array, "b s"],
        steps: Bool[Array, "b t"],
        deterministic: bool = True,
    ) -> Float[Array, "b f bands"]:
        """The frames, before the post-net, of the steps that are not padding."""
        position = jnp.arange(steps.shape[1])
        token = (position[:, None] >= jnp.cumsum(durations, axis=1)[:, None, :]).sum(axis=-1)
        token = jnp.minimum(token, durations.shape[1] - 1)
        states = jnp.take_along_axis(memory.states, token[..., None], axis=1)
        c = self.config.special
        ids = jnp.where(steps, c.bos, c.pad)
        return self.frames(self.decode(memory, ids, deterministic=deterministic, embedded=states))

    def decoder_mask(self, decoder_input: Int[Array, "b t"]) -> Mask:
        """Every step attends to all others."""
        return Mask(keys=decoder_input != self.config.special.pad, window=self.config.window)


def steps_of(predicted: Float[Array, "b s"], source_mask: Bool[Array, "b s"]) -> Int[Array, "b s"]:
    """The steps of each token, rounded so that their sum is what it should be.

    Args:
      predicted: log(1 + steps).
      source_mask: False for padding.
    """
    durations = jnp.where(source_mask, jnp.maximum(jnp.expm1(predicted), 0), 0)
    ends = jnp.round(jnp.cumsum(durations, axis=1)).astype(jnp.int32)
    return jnp.diff(ends, axis=1, prepend=0)
