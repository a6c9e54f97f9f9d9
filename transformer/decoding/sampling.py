"""Greedy search and sampling, in the slots of beam search; and draws from large vocabularies."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt

from transformer.config.ranges import LENGTH, LENGTH_PENALTY, PROBABILITY, SIZE, TEMPERATURE
from transformer.decoding.calls import checked, special_ids
from transformer.decoding.scores import NEVER, SearchResult, as_penalty, source_limits
from transformer.decoding.slots import Finished, Slots
from transformer.decoding.steps import Predicted, Selection, search_all
from transformer.model.parameters import Variables

# Random draws from large vocabularies, by inversion: one random number each, and one pass over the logits.


def drawn(uniform: Float[Array, "*b"], logits: Float[Array, "*b v"]) -> Int[Array, "*b"]:
    """The class at which the sum of probabilities passes a uniform random number of [0, 1).

    The classes are summed in about sqrt(v) blocks: first the block is found, then the class in it. A class
    without probability is never drawn. float32 sums shift probabilities by about 1e-7.
    """
    classes = logits.shape[-1]
    width = math.isqrt(classes - 1) + 1
    masses = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    masses = jnp.pad(masses, (*((0, 0),) * (masses.ndim - 1), (0, -classes % width)))
    masses = masses.reshape(*logits.shape[:-1], -1, width)
    blocks = masses.sum(axis=-1)
    block, left = _passed(uniform * blocks.sum(axis=-1), blocks)
    inside = jnp.take_along_axis(masses, block[..., None, None], axis=-2)[..., 0, :]
    return block * width + _passed(left, inside)[0]


def _passed(aim: Float[Array, "*b"], masses: Float[Array, "*b n"]) -> tuple[Int[Array, "*b"], Array]:
    """The first mass with which the sum passes the aim, and how far the aim is inside it. Rounding may raise
    the aim to the sum of all, or a sum where there is no mass."""
    sums = jnp.where(masses > 0, masses.cumsum(axis=-1), 0)
    aim = jnp.minimum(aim, jnp.nextafter(sums.max(axis=-1), 0.0))
    index = (sums > aim[..., None]).argmax(axis=-1)
    total, mass = (jnp.take_along_axis(x, index[..., None], axis=-1)[..., 0] for x in (sums, masses))
    return index, aim - (total - mass)


def restrict(
    logits: Float[Array, "... v"],
    temperature: float | Float[Array, "..."] = 1.0,
    top_k: int = 0,
    top_p: float | Float[Array, "..."] | None = None,
) -> Float[Array, "... v"]:
    """Logits of the distribution to sample from: divided by the temperature, restricted to the top_k highest
    (0: all; Fan et al. 2018), then to the smallest set of tokens whose probabilities add up to top_p (nucleus
    sampling, Holtzman et al. 2020; None: all). Ties are kept or removed together."""
    logits = logits / temperature
    if top_k:
        lowest = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
        logits = jnp.where(logits < lowest, NEVER, logits)
    if top_p is not None:
        ordered = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        inside = (before < top_p) | (jnp.asarray(top_p) >= 1)  # rounding must not exclude one of all
        lowest = jnp.where(inside, ordered, jnp.inf).min(axis=-1, keepdims=True)
        logits = jnp.where(logits < lowest, NEVER, logits)
    return logits


def draw_next(key: Array, length: Int[Array, ""] | int, logits: Float[Array, "n v"]) -> Int[Array, " n"]:
    """The next token of each of n outputs of a sentence. Their length before is folded into its key."""
    return drawn(jax.random.uniform(jax.random.fold_in(key, length), logits.shape[:1]), logits)


@struct.dataclass
class Randomness:
    """What sampling reads for each slot."""

    keys: UInt[Array, "b words"]
    """The data of a random key."""
    temperature: Float[Array, " b"]
    top_p: Float[Array, " b"]
    generator: str = struct.field(pytree_node=False)
    """The kind of the keys."""

    @classmethod
    def of(
        cls,
        keys: Array,
        lines: Int[Array, " b"],
        temperature: float | Float[Array, "..."],
        top_p: float | Float[Array, "..."] = 1.0,
    ) -> "Randomness":
        """The randomness of lines: their numbers are folded into their keys, or into the key of all."""
        keys = jnp.broadcast_to(keys, lines.shape)
        data = jax.vmap(lambda key, line: jax.random.key_data(jax.random.fold_in(key, line)))(keys, lines)
        temperatures, top_ps = (
            jnp.broadcast_to(jnp.asarray(x, jnp.float32), lines.shape) for x in (temperature, top_p)
        )
        return cls(data, temperatures, top_ps, str(jax.random.key_impl(keys)))


@dataclass(frozen=True)
class Greedy:
    """The strategy of the most probable token."""

    def first(self) -> Float[Array, " n"]:
        return jnp.zeros(1)

    def __call__(self, slots: Slots, predicted: Predicted, eos: int) -> Selection:
        return _extended(slots, predicted.logits.argmax(axis=-1), predicted, eos)


@dataclass(frozen=True)
class Sampled:
    """The strategy of a random token for each beam."""

    samples: int = 1
    top_k: int = 0
    nucleus: bool = False
    """Whether rows have a `top_p`."""

    def first(self) -> Float[Array, " n"]:
        return jnp.zeros(self.samples)

    def __call__(self, slots: Slots, predicted: Predicted, eos: int) -> Selection:
        random: Randomness = slots.row_inputs
        keys = jax.random.wrap_key_data(random.keys, impl=random.generator)
        temperature, top_p = random.temperature[:, None, None], random.top_p[:, None, None]
        restricted = restrict(predicted.logits, temperature, self.top_k, top_p if self.nucleus else None)
        tokens = jax.vmap(draw_next)(keys, slots.length, restricted)
        return _extended(slots, tokens, predicted, eos)


def _extended(
    slots: Slots,
    tokens: Int[Array, "b n"],
    predicted: Predicted,
    eos: int,
) -> Selection:
    """Every beam continues by itself, until it ends."""
    log_p = predicted.logits - predicted.log_normaliser
    total = slots.live + jnp.take_along_axis(log_p, tokens[:, :, None], axis=-1)[:, :, 0]
    itself = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    ended = (tokens == eos) & (slots.live > NEVER) & ~slots.done[:, None]
    score = total / slots.penalty((slots.length + 1).astype(jnp.float32))[:, None]
    step = jnp.broadcast_to(slots.length[:, None], tokens.shape)
    finished = jax.tree.map(
        lambda new, old: jnp.where(ended, new, old), Finished(score, step, itself), slots.finished
    )
    live = jnp.where(ended, NEVER, total)
    return Selection(tokens, itself, live, finished, ~(live > NEVER).any(axis=1))


@checked
@functools.partial(jax.jit, static_argnames=("model", "length_penalty", "max_length", "extra_length"))
def greedy_search(
    model: nn.Module,
    params: Variables,
    source_ids: Int[Array, "batch s"],
    *,
    length_penalty: Annotated[float, LENGTH_PENALTY] | Callable[[Any], Any] = 0.6,
    max_length: Annotated[int, SIZE] | None = None,
    extra_length: Annotated[int, LENGTH] = 50,
) -> SearchResult:
    """Outputs the most probable token at every step, like `beam_search` with beam_size 1 and no penalty.

    Arguments as in `beam_search`. The beam axis is 1, and the penalty only divides the score.
    """
    limits = source_limits(source_ids, special_ids(model).pad, extra_length, max_length)
    penalty = as_penalty(length_penalty)
    return search_all(model, params, {"source": source_ids}, limits, Greedy(), penalty)


@checked
@functools.partial(
    jax.jit,
    static_argnames=("model", "samples", "top_k", "top_p", "length_penalty", "max_length", "extra_length"),
)
def sample(
    model: nn.Module,
    params: Variables,
    source_ids: Int[Array, "batch s"],
    *,
    key: PRNGKeyArray,
    lines: Int[Array, " batch"] | None = None,
    samples: Annotated[int, SIZE] = 1,
    temperature: Annotated[float, TEMPERATURE] | Float[Array, ""] = 1.0,
    top_k: Annotated[int, LENGTH] = 0,
    top_p: Annotated[float, PROBABILITY] = 1.0,
    length_penalty: Annotated[float, LENGTH_PENALTY] | Callable[[Any], Any] = 0.6,
    max_length: Annotated[int, SIZE] | None = None,
    extra_length: Annotated[int, LENGTH] = 50,
) -> SearchResult:
    """Samples translations from the model.

    Args:
      model: as in `beam_search`.
      params: as in `beam_search`.
      source_ids: as in `beam_search`.
      key: a jax.random key.
      lines: a number for each sentence, folded into the key, so that a sample does not depend on the rest of
        the batch. None: 0, 1, 2, ...
      samples: number of samples per sentence: the beam axis of the result, in order of score.
      temperature: see `restrict`.
      top_k: restricts samples to the k most probable tokens. 0: all.
      top_p: restricts samples to the most probable tokens with this total probability.
      length_penalty: as in `beam_search`. It does not affect the samples.
      max_length: as in `beam_search`.
      extra_length: as in `beam_search`.

    Returns:
      Translations with their log-probabilities under the unrestricted model.
    """
    limits = source_limits(source_ids, special_ids(model).pad, extra_length, max_length)
    lines = jnp.arange(len(source_ids)) if lines is None else lines
    random = Randomness.of(key, lines, temperature, top_p)
    strategy = Sampled(samples, top_k, top_p < 1)
    penalty = as_penalty(length_penalty)
    return search_all(model, params, {"source": source_ids}, limits, strategy, penalty, row_inputs=random)
