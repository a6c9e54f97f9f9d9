"""Position schemes that the paper does not have: what they do to queries, keys and scores
(`transformer.model.positions`)."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.config.transformer import StackConfig
from transformer.model.masks import Bias, Part, is_long, taken
from transformer.model.parameters import Module, param
from transformer.model.positions import Positions, distances, sines_cosines, sinusoids


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
    ) -> Bias | None:
        """What is added to the scores of queries and keys, which may depend on the queries.

        Args:
          query: as projected.
          positions: of queries and keys. Where both are the same array, the queries of a sentence attend to
            its own keys only, so that distances are those of columns.
          causal: whether scores of later keys do not matter.
        """
        return None


class Rotary(RelativePositions):
    """Rotates each pair of coordinates by an angle proportional to the position, so that the product of query
    and key depends on their distance (Su et al. 2021, Eq. 34)."""

    def queries(self, x: Float[Array, "b h t d"], positions: Positions) -> Float[Array, "b h t d"]:
        sine, cosine = sines_cosines(jnp.atleast_2d(positions)[:, None, :], x.shape[-1])
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
    ) -> Bias:
        of_heads = jnp.asarray(slopes(self.config.num_heads))[:, None]
        length = positions[0].shape[-1]
        if positions[0] is positions[1] and is_long(length, length):
            return DistanceBias(-jnp.abs(distances_of(length)) * of_heads, length)
        return -jnp.abs(distances(*positions))[:, None] * of_heads[:, None]


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
        query_positions, key_positions = positions
        consecutive = query_positions.ndim == key_positions.ndim == 1
        keys = key_positions.shape[-1]
        nearest = 0 if causal and consecutive else 1 - (query_positions.shape[-1] if consecutive else keys)
        by_distance = self._of_distances(query, jnp.arange(keys - 1, nearest - 1, -1))
        if consecutive:
            return shifted(
                jnp.pad(by_distance, ((0, 0), (0, 0), (0, 0), (0, query_positions.shape[0] - 1 + nearest))),
                keys,
            )
        index = keys - 1 - jnp.clip(distances(*positions), nearest, keys - 1)
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


BLOCK = 128


def by_distances(x: Float[Array, "h n"], queries: int, keys: int) -> Float[Array, "h q k"]:
    """Element (i, j) is element q - 1 - i + j of x, as in `shifted`. Blocks of as many queries as keys repeat
    along their diagonals, so each is made once: a shift of everything is slow on a TPU."""
    height, width = -(-queries // BLOCK), -(-keys // BLOCK)
    padded = jnp.pad(x, ((0, 0), (height * BLOCK - queries, width * BLOCK - keys + 1)))
    parts = padded.reshape(len(x), height + width, BLOCK)
    windows = jnp.concatenate([parts[:, :-1], parts[:, 1:, :-1]], axis=2)[:, :, None]
    blocks = shifted(jnp.broadcast_to(windows, (*windows.shape[:2], BLOCK, 2 * BLOCK - 1)), BLOCK)
    rows = [blocks[:, first : first + width].swapaxes(1, 2) for first in reversed(range(height))]
    whole = jnp.concatenate(rows, axis=1).reshape(len(x), height * BLOCK, width * BLOCK)
    return whole[:, :queries, :keys]


def slopes(num_heads: int) -> list[float]:
    """The slope of each head of ALiBi: 2^(-8/n), 2^(-16/n), ... for n heads if n is a power of 2; otherwise
    those of the next lower power, then every other one of the next higher power."""
    power = 2 ** math.floor(math.log2(num_heads))
    lower = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    higher = [2 ** (-4 * (head + 1) / power) for head in range(2 * power)]
    return lower + higher[::2][: num_heads - power]


class DistanceScores(Module):
    """What the scores of all layers of a stack share: a learned number for each range of distances and each
    head (Raffel et al. 2020, section 2.1)."""

    config: StackConfig
    is_causal: bool
    """Whether later keys do not matter. Otherwise half of the ranges are for them."""

    @nn.compact
    def __call__(self, queries: Positions, keys: Positions) -> Bias:
        """What is added to the scores of queries and keys at these positions, in float32. Where both are the
        same array, distances are those of columns, as in `RelativePositions.scores`."""
        c = self.config
        shape = (c.position_buckets, c.num_heads)
        normal = nn.initializers.normal(c.d_model**-0.5)
        table = param(self, "table", normal, shape, (None, "heads"))
        length = keys.shape[-1]
        far = distances_of(length) if queries is keys else distances(queries, keys)
        scores = table[bucket(far, c.position_buckets, c.bucket_distance, self.is_causal)]
        if queries is not keys:
            return jnp.moveaxis(scores, -1, 1)
        bias = DistanceBias(scores.T, length)
        return bias if is_long(length, length) else bias()


@struct.dataclass
class DistanceBias:
    """A term of the scores that depends on head and distance. The last query is where the last key is."""

    by_distance: Float[Array, "h n"]
    """Those of `distances_of`."""
    keys: int = struct.field(pytree_node=False)
    """Number of keys, and of queries."""

    def __call__(self, part: Part | None = None) -> Float[Array, "1 h q k"]:
        """The term of some of the queries, or of all."""
        first, count = part or (jnp.int32(0), self.keys)
        columns = taken(self.by_distance, (self.keys - first - count, count + self.keys - 1), 1)
        return by_distances(columns, count, self.keys)[None]


def distances_of(length: int) -> Int[Array, " n"]:
    """All distances of a query and a key, as `shifted` orders them."""
    return jnp.arange(length - 1, -length, -1)


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
