"""A Transformer whose decoder self-attention is bidirectional: it predicts all target positions at once."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.model.encoder import Memory
from transformer.model.encoder_decoder import Segments
from transformer.model.masks import Mask
from transformer.model.parameters import dense
from transformer.model.transformer import Transformer
from transformer.systems.nonautoregressive.options import NonAutoregressiveConfig


class NonAutoregressiveTransformer(Transformer):
    """Encoder and layers are those of the Transformer. The decoder's input is a draft of the target instead
    of the previous tokens.

    In `__call__` and `hidden`, `decoder_input` is that draft: `config.mask` at masked positions, <pad> after
    the end; with fertilities, copied source tokens.
    """

    config: NonAutoregressiveConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.decoder_input in ("length", "masked"):
            self.length = dense(2 * c.length_span + 1)
        if c.decoder_input == "fertility":
            self.fertility = dense(c.max_fertility + 1)

    def hidden(
        self,
        source: Int[Array, "b s"],
        decoder_input: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        memory = self.encode(source, deterministic=deterministic)
        if self.is_initializing():
            self.plan(memory)
        return self.decode(memory, decoder_input, deterministic=deterministic)

    def embed_target(self, ids: Int[Array, "b t"]) -> Float[Array, "b t m"]:
        """Embeds the draft."""
        copied = self.config.decoder_input == "fertility"
        return self.source_embedding(ids) if copied else super().embed_target(ids)

    def decoder_mask(self, decoder_input: Int[Array, "b t"]) -> Mask:
        """Every position of the draft attends to all others."""
        return Mask(keys=decoder_input != self.config.special.pad, window=self.config.window)

    def logits(self, memory: Memory, decoder_input: Int[Array, "b t"]) -> Float[Array, "b t v"]:
        """Logits over the vocabulary at every position of the draft."""
        return self.output(self.decode(memory, decoder_input))

    def plan(self, memory: Memory) -> Float[Array, "b *_"] | None:
        """Logits of what is predicted before any token: target minus source length, `[b, 2 length_span + 1]`,
        or the fertility of each source token, `[b, s, max_fertility + 1]`. None for decoder input bos."""
        states = memory.states.astype(jnp.float32)
        if self.config.decoder_input == "fertility":
            return self.fertility(states)
        if self.config.decoder_input == "bos":
            return None
        is_token = memory.mask[:, :, None]
        return self.length(jnp.where(is_token, states, 0).sum(axis=1) / jnp.maximum(is_token.sum(axis=1), 1))


def copied_source(
    source: Int[Array, "*b s"], fertility: Int[Array, "*b s"], positions: Bool[Array, "*b t"], pad: int
) -> Int[Array, "*b t"]:
    """The decoder's input from fertilities: each source token is repeated as often as its fertility, in order
    (Gu et al. 2018, section 3.1).

    Args:
      positions: True at the positions to fill, over which the copies are spread evenly. The other positions
        are <pad>.
    """
    ends = jnp.cumsum(fertility, axis=-1)
    length = positions.sum(axis=-1, keepdims=True)
    # the centre of position j, (j + 1/2) / length, as a number of copies
    copies = (jnp.arange(positions.shape[-1]) + 0.5) * ends[..., -1:] / jnp.maximum(length, 1)
    origin = (copies[..., :, None] > ends[..., None, :]).sum(axis=-1)
    origin = jnp.minimum(origin, source.shape[-1] - 1)
    return jnp.where(positions, jnp.take_along_axis(source, origin, axis=-1), pad)
