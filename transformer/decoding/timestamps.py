"""Times among the tokens of an output: when its segments begin and end (Whisper, Radford et al. 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.data.sequences import Field
from transformer.decoding.opening import COUNT

FIELDS = {COUNT: Field(padded=False)}
"""What the hook reads of each input: the number of tokens before the first time."""


@struct.dataclass
class Times:
    """What is known of the tokens of each beam."""

    left: Int[Array, "b n"]
    """Tokens of the opening that are still to come; negative after it."""
    last: Bool[Array, "b n"]
    """Whether the last token was a time."""
    before: Bool[Array, "b n"]
    """Whether the one before it was a time, or there is none."""
    latest: Int[Array, "b n"]
    """The last time so far; less than all if there is none."""


@dataclass(frozen=True)
class Timestamps:
    """A hook: outputs are segments, each with its begin before and its end after its text, so that times are
    in pairs between segments, and never decrease. Where all times together are more probable than any other
    token, a time comes next.

    Args:
      first: the id of the first time. All ids from it are times.
      eos: the id of <eos>. Ids below it are text.
      latest: the largest number of the first time.
    """

    first: int
    eos: int
    latest: int | None = None

    def init(self, inputs: Mapping[str, Array]) -> Times:
        """Before the first token."""
        left = inputs[COUNT].astype(jnp.int32)
        no = jnp.zeros(left.shape, bool)
        return Times(left, no, ~no, jnp.full_like(left, self.first - 1))

    def filter(
        self, logits: Float[Array, "b n v"], state: Times, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """Without the tokens that cannot follow."""
        token = jnp.arange(logits.shape[-1])
        is_time = token >= self.first
        last, before, at_start = (x[..., None] for x in (state.last, state.before, state.left == 0))
        earliest = state.latest[..., None] + jnp.where(
            last & ~before, 0, 1
        )  # a segment begins where one ends
        banned = is_time & ((token < earliest) | last & before)
        banned |= last & ~before & (token < self.eos)
        banned |= at_start & ~is_time
        if self.latest is not None:
            banned |= at_start & (token > self.first + self.latest)
        banned |= token == self.first - 1  # <|notimestamps|>
        left = jnp.where(banned, -jnp.inf, logits)
        times = jax.nn.logsumexp(jnp.where(is_time, left, -jnp.inf), axis=-1, keepdims=True)
        texts = jnp.where(is_time, -jnp.inf, left).max(axis=-1, keepdims=True)
        left = jnp.where((times > texts) & ~is_time, -jnp.inf, left)
        return jnp.where((state.left > 0)[..., None], logits, left)

    def advance(self, tokens: Int[Array, "b n"], state: Times) -> Times:
        """One token later."""
        is_time = (tokens >= self.first) & (state.left <= 0)
        latest = jnp.where(is_time, tokens, state.latest)
        return replace(
            state, left=state.left - 1, last=is_time, before=state.last | (state.left >= 0), latest=latest
        )
