"""Attention as recurrent models have it: additive (Bahdanau et al. 2015), with the location of the previous
step (Chorowski et al. 2015), monotonic (Raffel et al. 2017)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.transformer import TransformerConfig
from transformer.model.layers import Dropout
from transformer.model.masks import Attended, AttentionInputs, Mechanism, masked_softmax
from transformer.model.parameters import param


class AdditiveAttention(Mechanism):
    """softmax(w . tanh(q + k)) V, with the projected query and key of each head (Bahdanau et al. 2015,
    A.1.2). It takes q x k x d_k numbers of memory."""

    def setup(self) -> None:
        c = self.config
        uniform = nn.initializers.variance_scaling(1.0, "fan_in", "uniform", in_axis=1, out_axis=0)
        self.energy = param(self, "energy", uniform, (c.num_heads, c.key_width), ("heads", None))
        self.dropout = Dropout(c.attention_dropout)

    def scores(
        self, query: Float[Array, "b h q d"], keys: Float[Array, "b h k d"], location: Any = 0.0
    ) -> Float[Array, "b h q k"]:
        """The energy of each query and key, in float32. `location` is added to their sum."""
        summed = query[:, :, :, None] + keys[:, :, None] + location
        return jnp.einsum("bhqkd,hd->bhqk", jnp.tanh(summed.astype(jnp.float32)), self.energy)

    def __call__(self, inputs: AttentionInputs) -> Attended:
        weights = masked_softmax(self.scores(inputs.query, inputs.keys), inputs.allowed())
        return self.context(weights, inputs), weights, inputs.state

    def context(self, weights: Float[Array, "b h q k"], inputs: AttentionInputs) -> Float[Array, "b h q d"]:
        """The weighted sum of values, with dropout on the weights."""
        dropped = self.dropout(weights, inputs.deterministic).astype(inputs.values.dtype)
        return jnp.einsum("bhqk,bhkd->bhqd", dropped, inputs.values)


class LocationAttention(AdditiveAttention):
    """Location-sensitive attention (Chorowski et al. 2015, section 2.2): w . tanh(q + k + U f), where f is
    the weights of the step before, convolved with learned filters (Eq. 8-9). So a step knows where the last
    one was. Its state is these weights, zeros at first. Training goes through the queries one by one."""

    config: TransformerConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        glorot = nn.initializers.glorot_uniform(in_axis=1, out_axis=2)
        shape = (c.num_heads, c.location_width, c.location_filters)
        self.filters = param(self, "filters", glorot, shape, ("heads", None, None))
        shape = (c.num_heads, c.location_filters, c.key_width)
        self.projection = param(self, "projection", glorot, shape, ("heads", None, None))

    def init_state(self, rows: int, beams: int, keys: int) -> Float[Array, "b n h k"]:
        return jnp.zeros((rows, beams, self.config.num_heads, keys))

    def located(self, before: Float[Array, "b h q k"]) -> Float[Array, "b h q k d"]:
        """U f for each key: what the weights of the step before are around it."""
        width = self.config.location_width
        around = jnp.pad(before, ((0, 0), (0, 0), (0, 0), (width // 2, width // 2)))
        index = jnp.arange(before.shape[-1])[:, None] + jnp.arange(width)
        both = jnp.einsum("hwf,hfd->hwd", self.filters, self.projection)
        return jnp.einsum("bhqkw,hwd->bhqkd", around[..., index], both)

    def __call__(self, inputs: AttentionInputs) -> Attended:
        query, keys = inputs.query, inputs.keys
        allowed = inputs.mask.dense(1, keys.shape[2])

        def attend(query: Array, before: Array) -> Array:
            return masked_softmax(self.scores(query, keys, self.located(before)), allowed)

        if inputs.state is not None:  # the queries are beams
            weights = attend(query, inputs.state.swapaxes(1, 2))
            return self.context(weights, inputs), weights, weights.swapaxes(1, 2)

        def step(before: Array, query: Array) -> tuple[Array, Array]:
            weights = attend(query[:, :, None], before)
            return weights, weights[:, :, 0]

        first = jnp.zeros((*query.shape[:2], 1, keys.shape[2]))
        _, by_query = jax.lax.scan(step, first, jnp.moveaxis(query, 2, 0))
        weights = jnp.moveaxis(by_query, 0, 2)
        return self.context(weights, inputs), weights, None


# Monotonic attention (Raffel et al. 2017): each step continues in the source where the last stopped.


class MonotonicAttention(Mechanism):
    """Hard monotonic attention, of each head for itself. A step stops at key j with probability p_j =
    sigmoid(g w . tanh(q + k_j) / |w| + r) (Eq. 16), otherwise it moves on to j + 1. After the last key it
    reads zeros, as do all later steps. Its state is the key that each head reads.

    Training adds normal noise to the energy, so that p becomes near to 0 or 1 (section 2.4). The paper's
    initial energies are between -1 and 1, which takes long trainings to exceed the noise; here
    they are larger.
    """

    config: TransformerConfig

    def setup(self) -> None:
        c = self.config
        heads = ("heads",)
        uniform = nn.initializers.variance_scaling(1.0, "fan_in", "uniform", in_axis=1, out_axis=0)
        self.energy = param(self, "energy", uniform, (c.num_heads, c.key_width), ("heads", None))
        scale = c.monotonic_scale * c.key_width**-0.5
        offset = c.monotonic_offset
        self.gain = param(self, "gain", nn.initializers.constant(scale), (c.num_heads,), heads)
        self.offset = param(self, "offset", nn.initializers.constant(offset), (c.num_heads,), heads)

    def init_state(self, rows: int, beams: int, keys: int) -> Int[Array, "b n h"]:
        return jnp.zeros((rows, beams, self.config.num_heads), jnp.int32)

    def energies(self, summed: Float[Array, "b h ... d"]) -> Float[Array, "b h ..."]:
        """The energy of sums of query and key, in float32."""
        unit = self.gain[:, None] * self.energy / jnp.linalg.norm(self.energy, axis=-1, keepdims=True)
        energies = jnp.einsum("bh...d,hd->bh...", jnp.tanh(summed.astype(jnp.float32)), unit)
        return energies + self.offset.reshape(-1, *(1,) * (energies.ndim - 2))

    def __call__(self, inputs: AttentionInputs) -> Attended:
        keys, values = inputs.keys, inputs.values
        allowed = inputs.mask.dense(1, keys.shape[2])
        if inputs.state is not None:  # the queries are beams
            return self._one_step(inputs, allowed)
        energy = self.energies(inputs.query[:, :, :, None] + keys[:, :, None])
        if inputs.deterministic:
            stops = (energy > 0).astype(jnp.float32)
        else:
            noise = jax.random.normal(self.make_rng("dropout"), energy.shape)
            stops = jax.nn.sigmoid(energy + self.config.monotonic_noise * noise)
        weights = expected_alignment(jnp.where(allowed, stops, 0))
        return jnp.einsum("bhqk,bhkd->bhqd", weights.astype(values.dtype), values), weights, None

    def _one_step(self, inputs: AttentionInputs, allowed: Bool[Array, "#b 1 1 k"]) -> Attended:
        """Continues from the state: computes the energies of as many keys as are passed."""
        query = inputs.query
        keys = inputs.keys
        num_keys = inputs.keys.shape[2]
        allowed = jnp.broadcast_to(allowed[:, 0, 0, None, :], (*keys.shape[:2], num_keys))

        def at(key: Array, x: Array) -> Array:
            return jnp.take_along_axis(x, jnp.minimum(key, num_keys - 1)[..., None], axis=2)

        def stops(key: Array) -> Array:
            may_stop = jnp.take_along_axis(allowed, jnp.minimum(key, num_keys - 1), axis=2)
            stops_here: Array = (key >= num_keys) | (may_stop & (self.energies(query + at(key, keys)) > 0))
            return stops_here

        def advance(walk: tuple[Array, Array]) -> tuple[Array, Array]:
            key, done = walk
            key = jnp.where(done, key, key + 1)
            return key, stops(key)

        key = inputs.state.swapaxes(1, 2)
        key, _ = jax.lax.while_loop(lambda walk: ~walk[1].all(), advance, (key, stops(key)))
        context = jnp.where((key < num_keys)[..., None], at(key, inputs.values), 0)
        return context, None, key.swapaxes(1, 2)


def expected_alignment(stops: Float[Array, "b h q k"]) -> Float[Array, "b h q k"]:
    """The probability that query i reads key j, alpha_ij, over all monotonic paths (Eq. 8-9), given the
    probabilities p_ij that query i stops at key j when it gets there.

    alpha_ij = p_ij q_ij, where q_ij = (1 - p_i,j-1) q_i,j-1 + alpha_i-1,j is the probability that it gets
    there: a parallel scan over keys. (The paper's form with cumulative products divides by numbers near
    zero.)
    """

    def add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], left[1] * right[0] + right[1]

    def step(before: Array, stops: Array) -> tuple[Array, Array]:
        continues = jnp.pad(1 - stops[..., :-1], ((0, 0), (0, 0), (1, 0)))
        _, arrives = jax.lax.associative_scan(add, (continues, before), axis=-1)
        read = stops * arrives
        return read, read

    first = jnp.zeros_like(stops[:, :, 0]).at[..., 0].set(1)
    _, by_query = jax.lax.scan(step, first, jnp.moveaxis(stops, 2, 0))
    return jnp.moveaxis(by_query, 0, 2)
