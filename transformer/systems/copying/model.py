"""Pointer-generator output (See et al. 2017; Vinyals et al. 2015; Gu et al. 2016) for the Transformer.

An id at or above the vocabulary size stands for an out-of-vocabulary word, the same in source and target.
The network reads all of these as <unk>, and outputs one by pointing to its position in the source. In
searches such a word is `vocab_size` + its first position.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.copying import CopyingConfig
from transformer.model import attention
from transformer.model.encoder_decoder import Segments
from transformer.model.transformer import Memory, Transformer

TINY = 1e-30  # keeps logarithms finite; smaller than all probabilities that matter


@struct.dataclass
class SourceMemory(Memory):
    """The encoder's output, and the source ids."""

    ids: Int[Array, "b s"]


@struct.dataclass
class Cache:
    """The Transformer's cache, and the source to point to."""

    decoder: attention.Cache
    memory: SourceMemory

    def select(self, parents: Int[Array, "b n"]) -> "Cache":
        """The cache in which beam i continues beam parents[:, i]."""
        return self.replace(decoder=self.decoder.select(parents))  # type: ignore[attr-defined]

    def grow(self, length: int) -> "Cache":
        """The same cache with room for `length` steps."""
        return self.replace(decoder=self.decoder.grow(length))  # type: ignore[attr-defined]


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
        self.pointer_query, self.pointer_key = (nn.Dense(width, use_bias=False) for _ in range(2))
        self.gate = nn.Dense(1)

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
    ) -> SourceMemory:
        memory = super().encode(self.known(source), deterministic=deterministic)
        return SourceMemory(memory.states, memory.mask, source)

    def decode(
        self,
        memory: Memory,
        target: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        return super().decode(memory, self.known(target), deterministic=deterministic)

    def mixture(self, hidden: Float[Array, "b t m"], memory: SourceMemory) -> Mixture:
        """The gate and the pointer, for every state of the decoder."""
        query, key = self.pointer_query(hidden), self.pointer_key(memory.states)
        scores = jnp.einsum("btm,bsm->bts", query, key, preferred_element_type=jnp.float32)
        scores = jnp.where(memory.mask[:, 0], scores / math.sqrt(key.shape[-1]), jnp.finfo(jnp.float32).min)
        pointer = jax.nn.softmax(scores)
        context = jnp.einsum("bts,bsm->btm", pointer.astype(hidden.dtype), memory.states)
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

    def init_cache(self, memory: SourceMemory, beam_size: int, length: int) -> Cache:  # type: ignore[override]
        return Cache(super().init_cache(memory, beam_size, length), memory)

    def decode_step(  # type: ignore[override]
        self, cache: Cache, tokens: Int[Array, "b n"], rng: Any = None
    ) -> tuple[Float[Array, "b n extended"], Cache]:
        hidden, decoder = self.hidden_step(cache.decoder, self.known(tokens))
        return self.extended(hidden, cache.memory), cache.replace(decoder=decoder)  # type: ignore[attr-defined]


def extended_ids(ids: Int[Array, "b t"], source: Int[Array, "b s"], vocab_size: int) -> Int[Array, "b t"]:
    """Ids over vocabulary and source positions: an out-of-vocabulary word is `vocab_size` + its first source
    position, or `vocab_size` + s if it is not in the source."""
    same: Bool[Array, "b t s"] = ids[:, :, None] == source[:, None, :]
    place = jnp.where(same.any(axis=-1), same.argmax(axis=-1), source.shape[1])
    return jnp.where(ids >= vocab_size, vocab_size + place, ids)
