"""A recurrence that a decoder layer can have instead of self-attention. Axes as in
`transformer.model.attention`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config import StackConfig
from transformer.model.layers import Affine
from transformer.model.masks import Mask
from transformer.model.parameters import Module
from transformer.model.statistics import INTERMEDIATES

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
