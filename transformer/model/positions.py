"""Position schemes. What a scheme adds to the embeddings is a module of the stack (section 3.5), as is a term
that the scores of all layers share; what it does to queries, keys and scores otherwise is a module of every
self-attention.

| scheme | embeddings | attention |
|---|---|---|
| sinusoidal | sines and cosines (section 3.5) | |
| sinusoidal-halves | sines, then cosines | |
| learned | a table (Table 3, row E) | |
| rotary | | queries and keys are rotated (Su et al. 2021) |
| alibi | | scores decrease with the distance (Press et al. 2022) |
| relative | | a second score of query and distance (Dai et al. 2019) |
| buckets | | a learned score of the distance, the same in all layers (Raffel et al. 2020) |
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.transformer import StackConfig
from transformer.model.layers import Dropout
from transformer.model.normalization import normalization
from transformer.model.parameters import Module, by_rows, param, variant

Positions = Int[Array, "... _"]
"""`[time]`, or `[b, time]` if rows differ. Those of shape `[time]` are consecutive, and the last query is
where the last key is."""


def sinusoids(positions: Int[Array, "*batch t"], d_model: int) -> Float[Array, "*batch t m"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(same) (section 3.5)."""
    return jnp.stack(sines_cosines(positions, d_model), axis=-1).reshape(*positions.shape, d_model)


def halves(positions: Int[Array, "*batch t"], d_model: int) -> Float[Array, "*batch t m"]:
    """sin(pos / 10000^(i / (d_model / 2 - 1))) for all i, then the cosines: those of tensor2tensor, which
    fairseq, M2M-100 and Whisper have."""
    exponents = jnp.arange(d_model // 2) / (d_model // 2 - 1)
    angles = positions[..., None].astype(jnp.float32) * 10_000.0**-exponents
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def sines_cosines(
    positions: Int[Array, "*batch t"], width: int
) -> tuple[Float[Array, "*batch t half"], Float[Array, "*batch t half"]]:
    """The sines and the cosines of positions, at width / 2 rates (section 3.5)."""
    rates = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    angles = positions[..., None].astype(jnp.float32) * rates
    return jnp.sin(angles), jnp.cos(angles)


def positions_in(segments: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """Positions that count from 0 in every segment of a packed row."""
    index = jnp.arange(segments.shape[1])[None, :]
    first = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index - jax.lax.cummax(jnp.where(first, index, 0), axis=1)


SINUSOIDS = {"sinusoidal": sinusoids, "sinusoidal-halves": halves}


class PositionEncoding(Module):
    """Embedding + position, then dropout (sections 3.5, 5.4). Between them a normalisation, if the config
    asks for it."""

    config: StackConfig

    @nn.compact
    def __call__(
        self,
        embedded: Float[Array, "b t m"],
        positions: Positions,
        deterministic: bool = True,
        mask: Bool[Array, "b t"] | None = None,
    ) -> Float[Array, "b t m"]:
        """The sum. `mask` is False for padding, as in `Residual`."""
        c = self.config
        if c.positions in SINUSOIDS:
            added = SINUSOIDS[c.positions](positions + c.first_position, c.d_model)
            embedded += added.astype(embedded.dtype)
        elif c.positions == "learned":
            normal = nn.initializers.normal(c.d_model**-0.5)
            table = param(self, "table", normal, (c.max_positions, c.d_model), ("positions", "model"))
            embedded += table[positions].astype(embedded.dtype)
        if c.token_type:
            normal = nn.initializers.normal(c.d_model**-0.5)
            embedded += param(self, "token_type", normal, (1, c.d_model), ("positions", "model")).astype(
                embedded.dtype
            )
        if c.embedding_norm:
            embedded = normalization(c, name="norm")(embedded, mask, deterministic)
        return by_rows(Dropout(c.dropout)(embedded, deterministic))


def distance_scores(config: StackConfig, is_causal: bool) -> Callable[..., Any]:
    """What the scores of all layers of a stack share, as a function of the positions of queries and keys: a
    module `variants.positions.DistanceScores` if the scheme is buckets, otherwise nothing."""
    if config.positions == "buckets":
        return variant("positions.DistanceScores")(config, is_causal)  # type: ignore[no-any-return]
    return lambda queries, keys: None


def distances(queries: Positions, keys: Positions) -> Int[Array, "#b q k"]:
    """How far each key is before each query."""
    return jnp.atleast_2d(queries)[:, :, None] - jnp.atleast_2d(keys)[:, None, :]


SCHEMES: dict[str, str | None] = {
    "sinusoidal": None,
    "sinusoidal-halves": None,
    "learned": None,
    "rotary": "positions.Rotary",
    "alibi": "positions.Alibi",
    "relative": "positions.Relative",
    "buckets": None,
}
"""What each scheme of `StackConfig.positions` does in self-attention, as `variant` finds it."""
