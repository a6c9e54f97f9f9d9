"""Monotonic attention (Raffel et al. 2017): each step goes on in the source from where the last one stopped.

In training every path has its probability, and a step reads the mean over all paths. In decoding, also with
given targets, a step stops at the first key whose probability is above one half.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config import TransformerConfig
from transformer.model.cache import KeysValues
from transformer.model.masks import Mask
from transformer.model.mechanism import Attended, Mechanism, State
from transformer.model.parameters import param
from transformer.model.positions import Positions


class MonotonicAttention(Mechanism):
    """Hard monotonic attention, of each head for itself. A step stops at key j with probability p_j =
    sigmoid(g w . tanh(q + k_j) / |w| + r) (Eq. 16), otherwise it goes on to j + 1. After the last key it
    reads zeros, as do all later steps. Its state is the key that each head reads.

    Training adds normal noise to the energy, so that p becomes near to 0 or 1 (section 2.4). The paper's
    initial energies are between -1 and 1, which takes long trainings to exceed the noise; here they begin
    larger.
    """

    config: TransformerConfig

    def setup(self) -> None:
        c, uniform = (
            self.config,
            nn.initializers.variance_scaling(1.0, "fan_in", "uniform", in_axis=1, out_axis=0),
        )
        heads = ("heads",)
        self.energy = param(self, "energy", uniform, (c.num_heads, c.key_width), ("heads", None))
        scale, offset = c.monotonic_scale * c.key_width**-0.5, c.monotonic_offset
        self.gain = param(self, "gain", nn.initializers.constant(scale), (c.num_heads,), heads)
        self.offset = param(self, "offset", nn.initializers.constant(offset), (c.num_heads,), heads)

    def init_state(self, rows: int, beams: int, keys: int) -> Int[Array, "b n h"]:
        return jnp.zeros((rows, beams, self.config.num_heads), jnp.int32)

    def energies(self, summed: Float[Array, "b h ... d"]) -> Float[Array, "b h ..."]:
        """The energy of sums of query and key, in float32."""
        unit = self.gain[:, None] * self.energy / jnp.linalg.norm(self.energy, axis=-1, keepdims=True)
        found = jnp.einsum("bh...d,hd->bh...", jnp.tanh(summed.astype(jnp.float32)), unit)
        return found + self.offset.reshape(-1, *(1,) * (found.ndim - 2))

    def __call__(
        self,
        query: Float[Array, "b h q d_k"],
        keys_values: KeysValues,
        mask: Mask,
        positions: tuple[Positions, Positions] | None,
        bias: Float[Array, "#b h #q k"] | None,
        state: State,
        *,
        deterministic: bool,
        weights: bool,
    ) -> Attended:
        keys, values = keys_values.keys, keys_values.values
        allowed = mask.dense(1, keys.shape[2])
        if state is not None:  # the queries are beams
            return self._one_step(query, keys_values, allowed, state)
        energy = self.energies(query[:, :, :, None] + keys[:, :, None])
        if deterministic:
            stops = (energy > 0).astype(jnp.float32)
        else:
            noise = jax.random.normal(self.make_rng("dropout"), energy.shape)
            stops = jax.nn.sigmoid(energy + self.config.monotonic_noise * noise)
        attended = expected_alignment(jnp.where(allowed, stops, 0))
        return jnp.einsum("bhqk,bhkd->bhqd", attended.astype(values.dtype), values), attended, None

    def _one_step(
        self, query: Array, keys_values: KeysValues, allowed: Bool[Array, "..."], state: Int[Array, "b n h"]
    ) -> Attended:
        """Goes on from the state: as many keys are looked at as are passed."""
        keys, values, last = keys_values.keys, keys_values.values, keys_values.keys.shape[2]
        allowed = jnp.broadcast_to(allowed[:, 0, 0, None, :], (*keys.shape[:2], last))

        def at(place: Array, x: Array) -> Array:
            return jnp.take_along_axis(x, jnp.minimum(place, last - 1)[..., None], axis=2)

        def stopped(place: Array) -> Array:
            here = jnp.take_along_axis(allowed, jnp.minimum(place, last - 1), axis=2)
            ended: Array = (place >= last) | (here & (self.energies(query + at(place, keys)) > 0))
            return ended

        def go_on(walk: tuple[Array, Array]) -> tuple[Array, Array]:
            place, done = walk
            place = jnp.where(done, place, place + 1)
            return place, stopped(place)

        place = state.swapaxes(1, 2)
        place, _ = jax.lax.while_loop(lambda walk: ~walk[1].all(), go_on, (place, stopped(place)))
        context = jnp.where((place < last)[..., None], at(place, values), 0)
        return context, None, place.swapaxes(1, 2)


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
        goes_on = jnp.pad(1 - stops[..., :-1], ((0, 0), (0, 0), (1, 0)))
        _, arrives = jax.lax.associative_scan(add, (goes_on, before), axis=-1)
        read = stops * arrives
        return read, read

    first = jnp.zeros_like(stops[:, :, 0]).at[..., 0].set(1)
    _, each = jax.lax.scan(step, first, jnp.moveaxis(stops, 2, 0))
    return jnp.moveaxis(each, 0, 2)
