"""A decoder whose cache is one matrix per head."""

import flax.linen as nn
import jax.numpy as jnp

from toys.task import text
from transformer import TransformerConfig
from transformer.model.cache import Cache, States
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.layers import Affine


class MatricesModel(EncoderDecoder):
    """Linear attention (Katharopoulos et al. 2020): the decoder's past is a sum of outer products."""

    config: TransformerConfig

    def setup(self) -> None:
        super().setup()
        width = self.config.d_model
        self.query, self.key, self.value, self.source = (Affine(width, ("model", "hidden")) for _ in range(4))

    def encode(self, source, *, segments=None, deterministic=True):
        there = (source != self.config.special.pad)[..., None]
        states = self.source(self.source_embedding(source)) * there
        return states.sum(axis=1) / jnp.maximum(there.sum(axis=1), 1)

    def step(self, matrix, x, memory):
        """One token of every beam: x `[b, n, m]`, matrix `[b, n, h, d, d]`."""

        def heads(x):
            return x.reshape(*x.shape[:2], self.config.num_heads, -1)

        query, key, value = (heads(nn.tanh(layer(x))) for layer in (self.query, self.key, self.value))
        matrix = matrix + key[..., :, None] * value[..., None, :]
        context = (query[..., None, :] @ matrix)[..., 0, :].reshape(x.shape)
        return matrix, x + context + memory[:, None]

    def decode(self, memory, target, *, segments=None, deterministic=True):
        matrix, found = self.empty(memory, 1).value, []
        embedded = self.embed_target(target)
        for time in range(target.shape[1]):
            matrix, x = self.step(matrix, embedded[:, time : time + 1], memory)
            found.append(x)
        return jnp.concatenate(found, axis=1)

    def empty(self, memory, beams):
        c = self.config
        width = c.d_model // c.num_heads
        return States(jnp.zeros((len(memory), beams, c.num_heads, width, width), memory.dtype))

    def init_cache(self, memory, beam_size, length):
        return Cache.empty((self.empty(memory, beam_size),), memory, rows=len(memory))

    def decode_step(self, cache, tokens):
        (layer,) = cache.layers
        matrix, x = self.step(layer.value, self.embed_target(tokens), cache.source)
        return self.output(x), cache.end_step([layer.append(matrix, cache.column, cache.positions)])


SYSTEM = text(model=MatricesModel, alignment=None)
