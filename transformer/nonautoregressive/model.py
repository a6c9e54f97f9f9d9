"""The Transformer with a decoder that looks both ways: all places of the target at once."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.model.attention import padding_mask, window_mask
from transformer.model.encoder_decoder import Segments
from transformer.model.transformer import Memory, Transformer
from transformer.nonautoregressive.config import NonAutoregressiveConfig


class NonAutoregressiveTransformer(Transformer):
    """Encoder and layers are the Transformer's; the decoder is fed a draft, not the words before.

    In `__call__` and `hidden` the target is that draft: <bos> where nothing is decided, <pad>
    beyond the end, source tokens where it was made by copying.
    """

    config: NonAutoregressiveConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.decoder_input in ("length", "masked"):
            self.length = nn.Dense(2 * c.length_span + 1)
        if c.decoder_input == "fertility":
            self.fertility = nn.Dense(c.max_fertility + 1)

    def hidden(
        self,
        source: Int[Array, "b s"],
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        memory = self.encode(source, deterministic=deterministic)
        if self.is_initializing():
            self.plan(memory)
        return self.decode(memory, target, deterministic=deterministic)

    def decode(
        self,
        memory: Memory,
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        """The decoder's last states, at every place of the draft."""
        copied = self.config.decoder_input == "fertility"
        embedded = self.source_embedding(target) if copied else self.embed_target(target)
        places = target.shape[1]
        mask = padding_mask(target, self.config.special.pad) & window_mask(places, self.config.window)
        x = self.target_positions(embedded, jnp.arange(places), deterministic)
        for layer in self.decoder:
            x = layer(x, memory.states, mask, memory.mask, deterministic)
        return self.decoder_norm(x) if self.config.norm == "pre" else x

    def logits(self, memory: Memory, target: Int[Array, "b t"]) -> Float[Array, "b t v"]:
        """Of every word at every place of the draft."""
        return self.output(self.decode(memory, target))

    def plan(self, memory: Memory) -> Float[Array, "b *_"] | None:
        """What is predicted before any word, as logits: `[b, 2 length_span + 1]` of target minus
        source length; `[b, s, max_fertility + 1]` of each source token's fertility; or nothing."""
        states = memory.states.astype(jnp.float32)
        if self.config.decoder_input == "fertility":
            return self.fertility(states)
        if self.config.decoder_input == "bos":
            return None
        words = memory.mask[:, 0, 0, :, None]
        return self.length(jnp.where(words, states, 0).sum(axis=1) / jnp.maximum(words.sum(axis=1), 1))


def copied_places(
    source: Int[Array, "*b s"], fertility: Int[Array, "*b s"], places: Bool[Array, "*b t"], pad: int
) -> Int[Array, "*b t"]:
    """Each source token as often as its fertility says, in order, spread evenly over as many places
    as there are (Gu et al. 2018, section 3.1); <pad> beyond them."""
    ends = jnp.cumsum(fertility, axis=-1)
    many = places.sum(axis=-1, keepdims=True)
    # place j of many stands at (j + 1/2) / many of the way through the copies
    through = (jnp.arange(places.shape[-1]) + 0.5) * ends[..., -1:] / jnp.maximum(many, 1)
    origin = (through[..., :, None] > ends[..., None, :]).sum(axis=-1)
    origin = jnp.minimum(origin, source.shape[-1] - 1)
    return jnp.where(places, jnp.take_along_axis(source, origin, axis=-1), pad)
