"""Linear attention (Katharopoulos et al. 2020): time linear in the length, and a decoding state of constant
size."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer.model.mechanism import Attended, AttentionInputs, Mechanism

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
