"""Decoding after a prompt: the text before a recording, which its output continues (Whisper, Radford et al.
2022, section 2.3). The decoder reads the prompt in one pass, and the keys and values of its tokens are those
before the output."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from transformer.model.cache import Cache, KeysValues, join_heads, put_rows
from transformer.model.encoder import Memory
from transformer.model.masks import Mask

PROMPT = "prompt"
"""The name of the input: ids, then <pad>; as many as half of the positions of the decoder."""


@struct.dataclass
class PromptedMemory(Memory):
    """What the decoder reads: of the recording, and before its output."""

    prompt: Int[Array, "b p"]
    """Ids, then <pad>."""


@struct.dataclass
class PromptedKeysValues(KeysValues):
    """A ring as in `KeysValues`, after the entries of the prompt."""

    prompt: int = struct.field(pytree_node=False, default=0)
    """How many entries the prompt has."""

    def append(
        self, new: KeysValues, column: Int[Array, ""], positions: Int[Array, " b"]
    ) -> "PromptedKeysValues":
        """Writes the keys and values of n beams."""

        def written(old: Array, x: Array) -> Array:
            x = join_heads(x) if x.shape[1] != old.shape[1] else x
            start = self.prompt + column * x.shape[2]
            return jax.lax.dynamic_update_slice_in_dim(old, x.astype(old.dtype), start, axis=2)

        return replace(self, keys=written(self.keys, new.keys), values=written(self.values, new.values))

    def put_rows(self, rows: Int[Array, " r"], new: KeysValues) -> "PromptedKeysValues":
        """With the prompts of these rows. A row that is reset has no other past."""

        def begun(old: Array, other: Array) -> Array:
            return old.at[rows, :, : self.prompt].set(other[:, :, : self.prompt], mode="drop")

        return replace(self, keys=begun(self.keys, new.keys), values=begun(self.values, new.values))


@struct.dataclass
class PromptedCache(Cache):
    """A cache whose rows begin with a prompt."""

    prompt_mask: Bool[Array, "b p"] | None = None
    """False for padding."""

    def mask(self, window: int | None = None) -> Mask:
        """The prompt, and each beam's past."""
        assert self.prompt_mask is not None
        past = super().mask(window).pairs
        assert past is not None
        shape = (*past.shape[:2], self.prompt_mask.shape[1])
        return Mask(pairs=jnp.concatenate([jnp.broadcast_to(self.prompt_mask[:, None], shape), past], axis=2))

    def key_positions(self) -> Int[Array, "b entries"]:
        """The position of the token of each entry."""
        assert self.prompt_mask is not None
        before = jnp.broadcast_to(jnp.arange(self.prompt_mask.shape[1]), self.prompt_mask.shape)
        return jnp.concatenate([before, super().key_positions()], axis=1)

    def put_rows(self, rows: Int[Array, " r"], new: Cache) -> "PromptedCache":
        """As `Cache.put_rows`."""
        assert isinstance(new, PromptedCache)
        mask = put_rows(self.prompt_mask, rows, new.prompt_mask)
        cache = super().put_rows(rows, new)
        assert isinstance(cache, PromptedCache)
        return replace(cache, prompt_mask=mask)


def after_prompt(cache: Cache, prompts: tuple[KeysValues, ...], mask: Bool[Array, "b p"]) -> PromptedCache:
    """An empty cache whose rows begin with prompts.

    Args:
      cache: before its first step.
      prompts: the keys and values of the prompts in each layer.
      mask: False for their padding.
    """

    def with_prompt(ring: KeysValues, prompt: KeysValues) -> PromptedKeysValues:
        arrays = ((prompt.keys, ring.keys), (prompt.values, ring.values))
        keys, values = (jnp.concatenate([x.astype(y.dtype), y], axis=2) for x, y in arrays)
        return PromptedKeysValues(keys, values, prompt=mask.shape[1])

    layers = tuple(
        replace(layer, past=with_prompt(layer.past, prompt))
        for layer, prompt in zip(cache.layers, prompts, strict=True)
    )
    return PromptedCache(
        layers=layers,
        column=cache.column,
        positions=mask.sum(axis=1),
        source=cache.source,
        ancestors=cache.ancestors,
        prompt_mask=mask,
    )
