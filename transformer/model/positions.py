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

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.transformer import StackConfig
from transformer.model.layers import Dropout
from transformer.model.normalization import normalization
from transformer.model.parameters import Module, by_rows, param

Positions = Int[Array, "... _"]
"""`[time]`, or `[b, time]` if rows differ. Those of shape `[time]` are consecutive, and the last query is
where the last key is."""


def sinusoids(positions: Int[Array, "*batch t"], d_model: int) -> Float[Array, "*batch t m"]:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(same) (section 3.5)."""
    return jnp.stack(_sines_cosines(positions, d_model), axis=-1).reshape(*positions.shape, d_model)


def halves(positions: Int[Array, "*batch t"], d_model: int) -> Float[Array, "*batch t m"]:
    """sin(pos / 10000^(i / (d_model / 2 - 1))) for all i, then the cosines: those of tensor2tensor, which
    fairseq, M2M-100 and Whisper have."""
    exponents = jnp.arange(d_model // 2) / (d_model // 2 - 1)
    angles = positions[..., None].astype(jnp.float32) * 10_000.0**-exponents
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def _sines_cosines(positions: Array, width: int) -> tuple[Array, Array]:
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


class DistanceScores(Module):
    """What the scores of all layers of a stack share: with positions buckets a learned number for each range
    of distances and each head (Raffel et al. 2020, section 2.1), otherwise nothing."""

    config: StackConfig
    is_causal: bool
    """Whether later keys do not matter. Otherwise half of the ranges are for them."""

    @nn.compact
    def __call__(self, queries: Positions, keys: Positions) -> Float[Array, "#b h #q k"] | None:
        """What is added to the scores of queries and keys at these positions, in float32."""
        c = self.config
        if c.positions != "buckets":
            return None
        shape = (c.position_buckets, c.num_heads)
        normal = nn.initializers.normal(c.d_model**-0.5)
        table = param(self, "table", normal, shape, (None, "heads"))
        index = bucket(_distances(queries, keys), *shape[:1], c.bucket_distance, self.is_causal)
        return jnp.moveaxis(table[index], -1, 1)


def bucket(
    distances: Int[Array, "*shape"], buckets: int, farthest: int, is_causal: bool
) -> Int[Array, "*shape"]:
    """The range of each distance: one each for the nearest, then ranges that grow exponentially.

    Args:
      distances: how far each key is before its query.
      buckets: number of ranges.
      farthest: distance from which all are in the last range.
      is_causal: whether no key comes after its query; otherwise the second half of the ranges is for those.
    """
    if not is_causal:
        buckets //= 2
        after = jnp.where(distances < 0, buckets, 0)
        return after + bucket(jnp.abs(distances), buckets, farthest, True)
    distances = jnp.maximum(distances, 0)
    single = buckets // 2
    relative = jnp.log(jnp.maximum(distances, 1).astype(jnp.float32) / single) / math.log(farthest / single)
    far = single + (relative * (buckets - single)).astype(jnp.int32)
    return jnp.where(distances < single, distances, jnp.minimum(far, buckets - 1))


class RelativePositions(Module):
    """What a position scheme does in self-attention; this one does nothing."""

    config: StackConfig

    def queries(self, x: Float[Array, "b h t d"], positions: Positions) -> Float[Array, "b h t d"]:
        """The queries that are multiplied with keys."""
        return x

    def keys(self, x: Float[Array, "b h t d"], positions: Positions) -> Float[Array, "b h t d"]:
        """The keys that are multiplied with queries."""
        return x

    def scores(
        self, query: Float[Array, "b h q d"], positions: tuple[Positions, Positions], causal: bool
    ) -> Float[Array, "#b h #q k"] | None:
        """What is added to the scores of queries and keys, which may depend on the queries.

        Args:
          query: as projected.
          positions: of queries and keys.
          causal: whether scores of later keys do not matter.
        """
        return None


class Rotary(RelativePositions):
    """Rotates each pair of coordinates by an angle proportional to the position, so that the product of query
    and key depends on their distance (Su et al. 2021, Eq. 34)."""

    def queries(self, x: Float[Array, "b h t d"], positions: Positions) -> Float[Array, "b h t d"]:
        sine, cosine = _sines_cosines(jnp.atleast_2d(positions)[:, None, :], x.shape[-1])
        even, odd = x[..., ::2], x[..., 1::2]
        rotated = jnp.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
        return rotated.reshape(x.shape).astype(x.dtype)

    def keys(self, x: Float[Array, "b h t d"], positions: Positions) -> Float[Array, "b h t d"]:
        return self.queries(x, positions)


class Alibi(RelativePositions):
    """Subtracts from each score the distance times a slope, which differs between heads (Press et al. 2022,
    section 3)."""

    def scores(
        self, query: Float[Array, "b h q d"], positions: tuple[Positions, Positions], causal: bool
    ) -> Float[Array, "#b h #q k"]:
        distance = jnp.abs(_distances(*positions))[:, None]
        return -distance * jnp.asarray(slopes(self.config.num_heads))[:, None, None]


class Relative(RelativePositions):
    """The relative positions of Transformer-XL (Dai et al. 2019, section 3.3): the score of query i and key j
    is ((q_i + u) . k_j + (q_i + v) . W_R R_{i-j}) / sqrt(d_k), where R are sinusoids of the distance, and u
    and v are what queries of all positions share."""

    def setup(self) -> None:
        c = self.config
        glorot = nn.initializers.glorot_uniform(in_axis=0, out_axis=(1, 2))
        shape = (c.num_heads, c.key_width)
        zeros = nn.initializers.zeros_init()
        self.distance = param(self, "distance", glorot, (c.d_model, *shape), ("model", "heads", None))
        self.content_bias = param(self, "content_bias", zeros, shape, ("heads", None))
        self.distance_bias = param(self, "distance_bias", zeros, shape, ("heads", None))

    def queries(self, x: Float[Array, "b h t d"], positions: Positions) -> Float[Array, "b h t d"]:
        return x + self.content_bias[:, None].astype(x.dtype)

    def scores(
        self, query: Float[Array, "b h q d"], positions: tuple[Positions, Positions], causal: bool
    ) -> Float[Array, "b h q k"]:
        at, of = positions
        consecutive = at.ndim == of.ndim == 1
        keys = of.shape[-1]
        nearest = 0 if causal and consecutive else 1 - (at.shape[-1] if consecutive else keys)
        by_distance = self._of_distances(query, jnp.arange(keys - 1, nearest - 1, -1))
        if consecutive:
            return shifted(
                jnp.pad(by_distance, ((0, 0), (0, 0), (0, 0), (0, at.shape[0] - 1 + nearest))), keys
            )
        index = keys - 1 - jnp.clip(_distances(*positions), nearest, keys - 1)
        return jnp.take_along_axis(by_distance, index[:, None], axis=3)

    def _of_distances(
        self, query: Float[Array, "b h q d"], distances: Int[Array, " n"]
    ) -> Float[Array, "b h q n"]:
        """(q + v) . W_R R / sqrt(d_k) of every query and distance, in float32."""
        c = self.config
        encoded = sinusoids(distances, c.d_model)
        projected = jnp.einsum("nm,mhd->hnd", encoded, self.distance).astype(query.dtype)
        # XLA for CPUs multiplies no transposed matrices of bfloat16, which this would become
        projected = jax.lax.optimization_barrier(projected)
        query = query + self.distance_bias[:, None].astype(query.dtype)
        scores = jnp.einsum("bhqd,hnd->bhqn", query, projected, preferred_element_type=jnp.float32)
        return scores / math.sqrt(c.key_width)


def shifted(x: Float[Array, "b h q n"], keys: int) -> Float[Array, "b h q k"]:
    """The relative shift (Dai et al. 2019, appendix B): row i becomes its `keys` elements from q - 1 - i on.
    So if column n has the distance keys - 1 - n, element (i, j) is that of query i and key j, the last query
    being where the last key is. It copies the array once, and gathers nothing."""
    *batch, queries, columns = x.shape
    assert columns == queries + keys - 1
    flat = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(*batch, -1)
    flat = flat[..., queries - 1 : queries - 1 + queries * columns]
    return flat.reshape(*batch, queries, columns)[..., :keys]


def _distances(queries: Positions, keys: Positions) -> Int[Array, "#b q k"]:
    """How far each key is before each query."""
    return jnp.atleast_2d(queries)[:, :, None] - jnp.atleast_2d(keys)[:, None, :]


def slopes(num_heads: int) -> list[float]:
    """The slope of each head of ALiBi: 2^(-8/n), 2^(-16/n), ... for n heads if n is a power of 2; otherwise
    those of the next lower power, then every other one of the next higher power."""
    power = 2 ** math.floor(math.log2(num_heads))
    lower = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    higher = [2 ** (-4 * (head + 1) / power) for head in range(2 * power)]
    return lower + higher[::2][: num_heads - power]


SCHEMES: dict[str, type[RelativePositions] | None] = {
    "sinusoidal": None,
    "sinusoidal-halves": None,
    "learned": None,
    "rotary": Rotary,
    "alibi": Alibi,
    "relative": Relative,
    "buckets": None,
}
"""What each scheme of `StackConfig.positions` does in self-attention."""
