"""Position schemes. What a scheme adds to the embeddings is a module of the stack (section 3.5); what it does
to queries, keys and scores is a module of every self-attention.

| scheme | embeddings | attention |
|---|---|---|
| sinusoidal | sines and cosines (section 3.5) | |
| learned | a table (Table 3, row E) | |
| rotary | | queries and keys are rotated (Su et al. 2021) |
| alibi | | scores decrease with the distance (Press et al. 2022) |
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer.config import TransformerConfig
from transformer.model.dropout import Dropout
from transformer.model.parameters import Module, param
from transformer.model.placement import by_rows

Positions = Int[Array, "... _"]
"""`[time]`, or `[b, time]` if rows differ."""


def sinusoids(positions: Int[Array, "*batch t"], d_model: int) -> Float[Array, "*batch t m"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(same) (section 3.5)."""
    return jnp.stack(_sines_cosines(positions, d_model), axis=-1).reshape(*positions.shape, d_model)


def _sines_cosines(positions: Array, width: int) -> tuple[Array, Array]:
    rates = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    angles = positions[..., None].astype(jnp.float32) * rates
    return jnp.sin(angles), jnp.cos(angles)


def positions_in(segments: Int[Array, "b t"]) -> Int[Array, "b t"]:
    """Positions that count from 0 in every segment of a packed row."""
    index = jnp.arange(segments.shape[1])[None, :]
    first = segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return index - jax.lax.cummax(jnp.where(first, index, 0), axis=1)


class PositionEncoding(Module):
    """Embedding + position, then dropout (sections 3.5, 5.4)."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self, embedded: Float[Array, "b t m"], positions: Positions, deterministic: bool = True
    ) -> Float[Array, "b t m"]:
        c = self.config
        if c.positions == "sinusoidal":
            embedded += sinusoids(positions, c.d_model).astype(embedded.dtype)
        elif c.positions == "learned":
            normal = nn.initializers.normal(c.d_model**-0.5)
            table = param(self, "table", normal, (c.max_positions, c.d_model), ("vocabulary", "model"))
            embedded += table[positions].astype(embedded.dtype)
        return by_rows(Dropout(c.dropout)(embedded, deterministic))


class RelativePositions(Module):
    """What a position scheme does in self-attention; this one does nothing."""

    config: TransformerConfig

    def rotate(self, x: Float[Array, "b h t d"], positions: Positions) -> Float[Array, "b h t d"]:
        """Queries or keys, changed by their positions."""
        return x

    def scores(
        self, query: Float[Array, "b h q d"], query_positions: Positions, key_positions: Positions
    ) -> Float[Array, "#b h #q k"] | None:
        """What is added to the scores of queries and keys, which may depend on the queries."""
        return None


class Rotary(RelativePositions):
    """Rotates each pair of coordinates by an angle proportional to the position, so that the product of query
    and key depends on their distance (Su et al. 2021, Eq. 34)."""

    def rotate(self, x: Float[Array, "b h t d"], positions: Positions) -> Float[Array, "b h t d"]:
        sine, cosine = _sines_cosines(jnp.atleast_2d(positions)[:, None, :], x.shape[-1])
        even, odd = x[..., ::2], x[..., 1::2]
        rotated = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
        return rotated.reshape(x.shape).astype(x.dtype)


class Alibi(RelativePositions):
    """Subtracts from each score the distance times a slope, which differs between heads (Press et al. 2022,
    section 3)."""

    def scores(
        self, query: Float[Array, "b h q d"], query_positions: Positions, key_positions: Positions
    ) -> Float[Array, "#b h #q k"]:
        queries, keys = jnp.atleast_2d(query_positions), jnp.atleast_2d(key_positions)
        distance = jnp.abs(queries[:, None, :, None] - keys[:, None, None, :])
        return -distance * jnp.asarray(slopes(self.config.num_heads))[:, None, None]


def slopes(num_heads: int) -> list[float]:
    """The slope of each head of ALiBi: 2^(-8/n), 2^(-16/n), ... for n heads if n is a power of 2; otherwise
    those of the next lower power, then every other one of the next higher power."""
    power = 2 ** math.floor(math.log2(num_heads))
    lower = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    higher = [2 ** (-4 * (head + 1) / power) for head in range(2 * power)]
    return lower + higher[::2][: num_heads - power]


SCHEMES: dict[str, type[RelativePositions] | None] = {
    "sinusoidal": None,
    "learned": None,
    "rotary": Rotary,
    "alibi": Alibi,
}
"""What each scheme of `TransformerConfig.positions` does in self-attention."""
