"""Additive attention (Bahdanau et al. 2015), and with the location of the previous step (Chorowski et al.
2015)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config import TransformerConfig
from transformer.model.dropout import Dropout
from transformer.model.masks import masked_softmax
from transformer.model.mechanism import Attended, AttentionInputs, Mechanism
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
