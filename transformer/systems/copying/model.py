"""Pointer-generator output (See et al. 2017; Vinyals et al. 2015; Gu et al. 2016) for the Transformer.

An id at or above the vocabulary size stands for an out-of-vocabulary word, the same in source and target.
The network reads all of these as <unk>, and outputs one by pointing to its position in the source. In
searches such a word is `vocab_size` + its first position.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.copying import CopyingConfig
from transformer.model.cache import Cache
from transformer.model.encoder_decoder import Segments
from transformer.model.parameters import Variables, dense
from transformer.model.statistics import INTERMEDIATES
from transformer.model.transformer import Memory, Transformer

TINY = 1e-30  # keeps logarithms finite; smaller than all probabilities that matter


@struct.dataclass
class SourceMemory(Memory):
    """The encoder's output, and the source ids."""

    ids: Int[Array, "b s"]


@struct.dataclass
class Mixture:
    """The mixture of generating and copying at each target position."""

    log_generate: Float[Array, "b t"]
    """log of the gate p_gen (See et al. 2017, Eq. 8)."""
    log_copy: Float[Array, "b t"]
    """log of 1 - p_gen."""
    pointer: Float[Array, "b t s"]
    """Attention over the source, rows summing to 1 (Eq. 2)."""


class CopyingTransformer(Transformer):
    """The Transformer with one more attention over the source, as the pointer."""

    config: CopyingConfig

    def setup(self) -> None:
        super().setup()
        width = self.config.d_model
        self.pointer_query, self.pointer_key = (dense(width, use_bias=False) for _ in range(2))
        self.gate = dense(1)

    def known(self, ids: Int[Array, "*time"]) -> Int[Array, "*time"]:
        """Ids as the network reads them: <unk> for every word outside the vocabulary."""
        return jnp.where(ids >= self.config.output_size, self.config.special.unk, ids)

    def __call__(
        self,
        source: Int[Array, "b s"],
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t extended"]:
        """Teacher forcing: log-probabilities of every next token, over the vocabulary and then the source
        positions (`extended`)."""
        memory = self.encode(source, deterministic=deterministic)
        hidden = self.decode(memory, target, deterministic=deterministic)
        return self.extended(hidden, memory)

    def encode(
        self,
        source: Int[Array, "b s"],
        *,
        segments: Int[Array, "b s"] | None = None,
        deterministic: bool = True,
        every_layer: bool = False,
    ) -> SourceMemory:
        memory = super().encode(self.known(source), deterministic=deterministic, every_layer=every_layer)
        return SourceMemory(memory.states, memory.mask, memory.layers, source)

    def decode(
        self,
        memory: Memory,
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        return super().decode(memory, self.known(target), deterministic=deterministic, embedded=embedded)

    def mixture(self, hidden: Float[Array, "b t m"], memory: SourceMemory) -> Mixture:
        """The gate and the pointer, for every state of the decoder."""
        query, key = self.pointer_query(hidden), self.pointer_key(memory.states)
        scores = jnp.einsum("btm,bsm->bts", query, key, preferred_element_type=jnp.float32)
        scores = scores / math.sqrt(key.shape[-1])
        pointer = jax.nn.softmax(jnp.where(memory.mask[:, None, :], scores, jnp.finfo(jnp.float32).min))
        context = jnp.einsum("bts,bsm->btm", pointer.astype(hidden.dtype), memory.states)
        self.sow(INTERMEDIATES, "pointer", pointer)
        gate = self.gate(jnp.concatenate([hidden, context], axis=-1)).astype(jnp.float32)[..., 0]
        return Mixture(jax.nn.log_sigmoid(gate), jax.nn.log_sigmoid(-gate), pointer)

    def extended(self, hidden: Float[Array, "b t m"], memory: SourceMemory) -> Float[Array, "b t extended"]:
        """log P of every word of the vocabulary, then of every source position. If the word at a position is
        in the vocabulary or at an earlier position, its probability is added to that one."""
        mixture = self.mixture(hidden, memory)
        generated = jax.nn.log_softmax(self.output(hidden)) + mixture.log_generate[..., None]
        size, places = generated.shape[-1], memory.ids.shape[1]
        copied = mixture.pointer * jnp.exp(mixture.log_copy)[..., None]
        share = jnp.exp(jnp.pad(generated, ((0, 0), (0, 0), (0, places)), constant_values=-jnp.inf))
        rows = jnp.arange(memory.ids.shape[0])[:, None]
        share = share.at[rows, :, extended_ids(memory.ids, memory.ids, size)].add(jnp.swapaxes(copied, 1, 2))
        return jnp.log(share + TINY)

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        """The Transformer's cache, and the source to point to."""
        assert isinstance(memory, SourceMemory)
        cache = super().init_cache(memory, beam_size, length)
        return replace(cache, source=(cache.source, memory))

    def decode_step(
        self, cache: Cache, tokens: Int[Array, "b n"]
    ) -> tuple[Float[Array, "b n extended"], Cache]:
        read, memory = cache.source
        hidden, cache = self.hidden_step(replace(cache, source=read), self.known(tokens))
        return self.extended(hidden, memory), replace(cache, source=(read, memory))


def pointer(intermediates: Variables) -> Float[Array, "1 b 1 t s"]:
    """The pointer's attention."""
    (weights,) = intermediates["pointer"]
    return weights[None, :, None]  # type: ignore[no-any-return]


def extended_ids(ids: Int[Array, "b t"], source: Int[Array, "b s"], vocab_size: int) -> Int[Array, "b t"]:
    """Ids over vocabulary and source positions: an out-of-vocabulary word is `vocab_size` + its first source
    position, or `vocab_size` + s if it is not in the source."""
    same: Bool[Array, "b t s"] = ids[:, :, None] == source[:, None, :]
    place = jnp.where(same.any(axis=-1), same.argmax(axis=-1), source.shape[1])
    return jnp.where(ids >= vocab_size, vocab_size + place, ids)
