"""Decoding in constant memory: linear attention (Katharopoulos et al. 2020), and a recurrence instead of
self-attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.transformer import StackConfig
from transformer.model.layers import Affine
from transformer.model.masks import Attended, AttentionInputs, Mask, Mechanism
from transformer.model.parameters import Module
from transformer.model.statistics import INTERMEDIATES

# Linear attention (Katharopoulos et al. 2020): time linear in the length, and a decoding state of constant
# size.


CHUNK = 64  # positions whose products with each other are computed at once
TINY = 1e-6  # keeps the quotient finite where a query may attend to nothing


def features(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """phi(x) = elu(x) + 1, which is positive (Eq. 7)."""
    return jax.nn.elu(x.astype(jnp.float32)) + 1


class LinearAttention(Mechanism):
    """phi(q) sum_j phi(k_j) v_j^T / (phi(q) sum_j phi(k_j)) (Eq. 5), with the sums over all keys, or over
    those up to the query (Eq. 9-12). Its state is the two sums, as one array: the values have one more column
    of ones.

    It has no weights that dropout could act on. Weights are computed for display only, from all pairs.
    """

    keeps_past = False

    def init_state(self, rows: int, beams: int, keys: int) -> Float[Array, "b n h d_k _"]:
        c = self.config
        return jnp.zeros((rows, beams, c.num_heads, c.key_width, c.value_width + 1))

    @nn.compact
    def __call__(self, inputs: AttentionInputs) -> Attended:
        mask = inputs.mask
        state = inputs.state
        values = inputs.values.astype(jnp.float32)
        values = jnp.concatenate([values, jnp.ones((*values.shape[:3], 1))], axis=-1)
        phi_query, phi_keys = features(inputs.query), features(inputs.keys)
        if mask.keys is not None:
            phi_keys = jnp.where(mask.keys[:, None, :, None], phi_keys, 0)
        if state is not None:
            state = state + jnp.einsum("bhnd,bhne->bnhde", phi_keys, values)
            summed = jnp.einsum("bhnd,bnhde->bhne", phi_query, state)
        elif mask.causal:
            summed = causal_sums(phi_query, phi_keys, values)
        else:
            summed = phi_query @ jnp.einsum("bhkd,bhke->bhde", phi_keys, values)
        context = (summed[..., :-1] / (summed[..., -1:] + TINY)).astype(inputs.query.dtype)
        return (
            context,
            _weights(phi_query, phi_keys, inputs.allowed()) if inputs.needs_weights else None,
            state,
        )


def causal_sums(
    query: Float[Array, "b h t d"], keys: Float[Array, "b h t d"], values: Float[Array, "b h t e"]
) -> Float[Array, "b h t e"]:
    """sum_{j <= i} (query_i . keys_j) values_j for every position i: a scan over chunks, which carries the
    sum of the outer products of all earlier chunks. Memory and time are linear in the length."""
    length = query.shape[2]
    size = min(CHUNK, length)
    whole = -(-length // size) * size

    def chunks(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, whole - length), (0, 0)))
        return jnp.moveaxis(x.reshape(*x.shape[:2], -1, size, x.shape[-1]), 2, 0)

    earlier = jnp.tril(jnp.ones((size, size)))

    def step(past: Array, chunk: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        query, keys, values = chunk
        sums = query @ past + ((query @ keys.swapaxes(2, 3)) * earlier) @ values
        return past + keys.swapaxes(2, 3) @ values, sums

    empty = jnp.zeros((*query.shape[:2], query.shape[-1], values.shape[-1]))
    _, sums = jax.lax.scan(step, empty, (chunks(query), chunks(keys), chunks(values)))
    return jnp.moveaxis(sums, 0, 2).reshape(*query.shape[:2], whole, -1)[:, :, :length]


def _weights(query: Array, keys: Array, allowed: Bool[Array, "#b 1 #q k"]) -> Float[Array, "b h q k"]:
    """The share of each key in each context."""
    products = jnp.einsum("bhqd,bhkd->bhqk", query, keys)
    products = jnp.where(allowed, products, 0)
    shares: Array = products / (products.sum(axis=-1, keepdims=True) + TINY)
    return shares


State = Float[Array, "b n m"]


class SSRU(Module):
    """The simpler simple recurrent unit (Kim et al. 2019, section 3.1), whose state has a constant size:

        f_t = sigmoid(x_t W_f + b_f)
        c_t = f_t * c_{t-1} + (1 - f_t) * x_t W
        y_t = relu(c_t)

    In training the states of all positions are an associative scan: its depth is logarithmic in the length.
    States are float32. For display, the collection "intermediates" gets the share of each input in each
    state, a mean over the features of each head; what is missing to 1 is the share of the empty state.
    """

    config: StackConfig

    def setup(self) -> None:
        width = self.config.d_model
        self.input = Affine(width, ("model", "hidden"), has_bias=False)
        self.forget = Affine(width, ("model", "hidden"))

    def init_state(self, rows: int, beams: int) -> State:
        """The state before the first step of decoding."""
        return jnp.zeros((rows, beams, self.config.d_model))

    def __call__(self, x: Float[Array, "b t m"], mask: Mask) -> Float[Array, "b t m"]:
        """The output at each position. With packed rows (`mask.segments`), each segment begins with an empty
        state."""
        forget, new = self._gated(x)
        if mask.segments is not None:
            forget = jnp.where(first_of_segments(mask.segments[0])[..., None], 0, forget)
        if self.is_mutable_collection(INTERMEDIATES):
            self.sow(INTERMEDIATES, "weights", _shares(forget, self._gates(x), self.config.num_heads))
        return jax.nn.relu(weighted_sums(forget, new)).astype(x.dtype)

    def step(self, x: Float[Array, "b n m"], state: State) -> tuple[Float[Array, "b n m"], State]:
        """The output for a new token of each of n beams, and their new states."""
        forget, new = self._gated(x)
        state = forget * state + new
        return jax.nn.relu(state).astype(x.dtype), state

    def _gates(self, x: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
        return jax.nn.sigmoid(self.forget(x).astype(jnp.float32))

    def _gated(self, x: Float[Array, "b t m"]) -> tuple[Float[Array, "b t m"], Float[Array, "b t m"]]:
        """f_t, and what a position adds to the state."""
        gates = self._gates(x)
        return gates, (1 - gates) * self.input(x).astype(jnp.float32)


def weighted_sums(factors: Float[Array, "b t m"], terms: Float[Array, "b t m"]) -> Float[Array, "b t m"]:
    """c_t = factors_t * c_{t-1} + terms_t, with c before the first position 0."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    sums: Array = jax.lax.associative_scan(combine, (factors, terms), axis=1)[1]
    return sums


def first_of_segments(segments: Int[Array, "b t"]) -> Bool[Array, "b t"]:
    """True at the first position of each segment of a packed row."""
    return segments != jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]


def _shares(
    factors: Float[Array, "b t m"], gates: Float[Array, "b t m"], heads: int
) -> Float[Array, "b h t t"]:
    """The share of each input in each state: that of input j in state i is (1 - f_j) f_{j+1} ... f_i."""

    def step(shares: Array, position: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        factor, gate, is_own = position
        shares = factor[:, None] * shares + is_own[:, None] * (1 - gate)[:, None]
        return shares, shares.reshape(*shares.shape[:2], heads, -1).mean(axis=-1)

    time = factors.shape[1]
    empty = jnp.zeros((factors.shape[0], time, factors.shape[2]))
    by_time = jnp.moveaxis(factors, 1, 0), jnp.moveaxis(gates, 1, 0), jnp.eye(time)
    _, shares = jax.lax.scan(step, empty, by_time)
    return shares.transpose(1, 3, 0, 2)
