"""CTC in a search: alone, as the best path or prefix beam search in one compiled program, or added to the
scores of a decoder (Watanabe et al. 2017).

Prefix beam search (Graves 2012, section 7.5.3; Hannun et al. 2014) reads the positions of the encoder one
after another. A beam is a text, with the probability of all its paths so far: of those that end in a blank,
and of those that end in its last token. Two ways to the same text are one beam, whose probabilities add up.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.decoding import DecodingConfig
from transformer.config.model import SpecialIds
from transformer.decoding.calls import STEERING, Inputs, as_variables, special_ids
from transformer.decoding.hooks import Term
from transformer.decoding.scores import NEVER, Limits, SearchResult, in_order
from transformer.decoding.scores import lengths as lengths_of
from transformer.decoding.searches.search import length_penalty
from transformer.model.cache import Shared
from transformer.model.parameters import Variables
from transformer.model.variants.ctc import NOTHING, log_likelihoods

# A hook that adds CTC to the scores of a search: joint decoding (Watanabe et al. 2017; Hori et al. 2017).


LOG_PROBS, POSITIONS = f"{STEERING}ctc", f"{STEERING}ctc_positions"
"""What a model gives of each input: log P of each token at each position of its encoder, and the number of
positions."""
NO_TOKEN = -1
Paths = tuple[Float[Array, "b n"], Float[Array, "b n"]]
"""log P of those that end in the last token, and in a blank."""


@struct.dataclass
class PrefixScores:
    """What CTC knows of each beam. Its probabilities are those of paths that spell the output, up to each
    position."""

    log_probs: Shared[Float[Array, "b s v"]]
    positions: Shared[Int[Array, " b"]]
    token: Float[Array, "b n s"]
    """log P of the paths that end in the last token."""
    blank: Float[Array, "b n s"]
    """log P of those that end in a blank."""
    prefix: Float[Array, "b n"]
    """The prefix score."""
    last: Int[Array, "b n"]
    """The last token; before the first, `NO_TOKEN`."""


@dataclass(frozen=True)
class CtcScores(Term):
    """Ranks outputs by (1 - w) times log P of the model and w times log P of CTC.

    In a large vocabulary, a step scores only the tokens that are most probable without CTC, and <eos>.
    """

    ctc_weight: float
    special: SpecialIds
    fewest: int = 40
    """Candidates of a step that it scores; at least four for each beam."""

    def init(self, inputs: Mapping[str, Array]) -> PrefixScores:
        """The state before the first token: the probabilities of paths of blanks."""
        log_probs, positions = inputs[LOG_PROBS], inputs[POSITIONS]
        log_probs = jnp.where(log_probs > NOTHING / 2, log_probs, NEVER)
        blank = jnp.cumsum(log_probs[..., self.special.pad], axis=1)
        return PrefixScores(
            Shared(log_probs),
            Shared(positions),
            token=jnp.full_like(blank, NEVER),
            blank=blank,
            prefix=jnp.zeros(len(blank)),
            last=jnp.full(len(blank), NO_TOKEN, jnp.int32),
        )

    def filter(
        self, logits: Float[Array, "b n v"], state: PrefixScores, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The sum of both log-probabilities."""
        size = logits.shape[-1]
        few = max(self.fewest, 4 * logits.shape[1])
        if size <= few:
            longer = _prefixes(state, jnp.broadcast_to(jnp.arange(size), logits.shape))
        else:
            _, tokens = jax.lax.top_k(logits, few)
            longer = jnp.full(logits.shape, NEVER)
            row, beam = jnp.ogrid[: logits.shape[0], : logits.shape[1]]
            longer = longer.at[row[..., None], beam[..., None], tokens].set(_prefixes(state, tokens))
        longer = jnp.where(jnp.arange(size) == self.special.eos, _whole(state)[..., None], longer)
        return self._weighed(logits, longer, state)

    def end(self, log_p: Float[Array, "b n"], state: PrefixScores) -> Float[Array, "b n"]:
        """The same sum where the limit ends an output, so that its score is that of its text."""
        return self._weighed(log_p[..., None], _whole(state)[..., None], state)[..., 0]

    def _weighed(
        self, log_p: Float[Array, "b n k"], longer: Float[Array, "b n k"], state: PrefixScores
    ) -> Float[Array, "b n k"]:
        """The weighted sum of log P of tokens and of what CTC says of the outputs with them."""
        is_possible = (state.prefix > NEVER)[..., None]
        before = jnp.where(is_possible, state.prefix[..., None], 0)
        gain = jnp.where(is_possible, jnp.minimum(longer - before, 0), NEVER)
        return (1 - self.ctc_weight) * log_p + self.ctc_weight * gain

    def advance(self, tokens: Int[Array, "b n"], state: PrefixScores) -> PrefixScores:
        """The paths of longer outputs."""
        log_probs = state.log_probs.value[:, None]
        entered = _before(state, tokens[..., None])[..., 0]
        log_p = jnp.take_along_axis(log_probs, tokens[:, :, None, None], axis=3)[..., 0]
        log_p_of_blank = jnp.broadcast_to(log_probs[..., self.special.pad], log_p.shape)
        by_position = tuple(jnp.moveaxis(x, 2, 0) for x in (entered, log_p, log_p_of_blank))

        def step(paths: Paths, frame: tuple[Array, ...]) -> tuple[Paths, Paths]:
            token, blank = paths
            entered, log_p, log_p_of_blank = frame
            after = jnp.logaddexp(token, entered) + log_p, jnp.logaddexp(token, blank) + log_p_of_blank
            return after, after

        none = jnp.full(tokens.shape, NEVER)
        _, paths = jax.lax.scan(step, (none, none), by_position)
        token, blank = (jnp.moveaxis(x, 0, 2) for x in paths)
        prefix = _prefixes(state, tokens[..., None])[..., 0]
        return replace(state, token=token, blank=blank, prefix=prefix, last=tokens)


def _whole(state: PrefixScores) -> Float[Array, "b n"]:
    """log P of the outputs alone, which nothing follows."""
    last = jnp.maximum(state.positions.value - 1, 0)[:, None, None]
    return jnp.take_along_axis(jnp.logaddexp(state.token, state.blank), last, axis=2)[..., 0]


def _before(state: PrefixScores, tokens: Int[Array, "b n k"]) -> Float[Array, "b n s k"]:
    """log P of the paths up to each position after which a token may be the next one of the output: only
    after a blank, if the last one is the same."""
    at_start = jnp.where(state.last == NO_TOKEN, 0.0, NEVER)[..., None]

    def before(paths: Float[Array, "b n s"]) -> Float[Array, "b n s 1"]:
        return jnp.concatenate([at_start, paths[..., :-1]], axis=2)[..., None]

    is_last = (tokens == state.last[..., None])[:, :, None]
    return jnp.where(is_last, before(state.blank), before(jnp.logaddexp(state.token, state.blank)))


def _prefixes(state: PrefixScores, tokens: Int[Array, "b n k"]) -> Float[Array, "b n k"]:
    """The prefix scores of the outputs with each of these tokens."""
    log_probs = state.log_probs.value[:, None]
    if tokens.shape[-1] != log_probs.shape[-1]:
        log_probs = jnp.take_along_axis(log_probs, tokens[:, :, None], axis=3)
    is_there = jnp.arange(log_probs.shape[2])[:, None] < state.positions.value[:, None, None, None]
    return jax.nn.logsumexp(jnp.where(is_there, _before(state, tokens) + log_probs, NEVER), axis=2)


@struct.dataclass
class Prefixes:
    """The beams of each row: texts, and log P of their paths so far."""

    tokens: Int[Array, "b n t"]
    """Tokens of each text, then blanks."""
    length: Int[Array, "b n"]
    blank: Float[Array, "b n"]
    """log P of the paths that end in a blank."""
    token: Float[Array, "b n"]
    """log P of those that end in the last token."""

    @classmethod
    def empty(cls, rows: int, beams: int, room: int, blank: int) -> "Prefixes":
        """The empty text, once."""
        never = jnp.full((rows, beams), NEVER)
        tokens = jnp.full((rows, beams, room), blank, jnp.int32)
        return cls(tokens, jnp.zeros((rows, beams), jnp.int32), never.at[:, 0].set(0.0), never)

    @property
    def log_p(self) -> Float[Array, "b n"]:
        """log P of all paths."""
        return jnp.logaddexp(self.blank, self.token)

    @property
    def last(self) -> Int[Array, "b n"]:
        """The last tokens; of an empty text the first blank."""
        position = jnp.maximum(self.length - 1, 0)[..., None]
        return jnp.take_along_axis(self.tokens, position, axis=2)[..., 0]


@dataclass(frozen=True)
class CtcSearch:
    """The search of CTC. Callable as the `search` of a `System`."""

    limits: Callable[[Inputs, SpecialIds, DecodingConfig], Limits]
    """The limits of outputs, as `AutoregressiveSearch.limits`."""

    def __call__(
        self,
        model: nn.Module,
        params: Variables,
        inputs: Inputs,
        lines: Int[Array, " b"],
        options: DecodingConfig,
    ) -> SearchResult:
        """The texts of a batch, best first. Their log-probabilities are those of all paths.

        Args:
          model: with `encode` and `ctc_log_probs`.
          params: its parameters, or its variables.
          inputs: the arguments of `encode`.
          lines: the numbers of the input lines, on which nothing depends.
          options: of the search: method beam or greedy.
        """
        return _searched(self, model, options.static(), params, inputs)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _searched(
    search: CtcSearch, model: nn.Module, options: DecodingConfig, params: Variables, inputs: Inputs
) -> SearchResult:
    special = special_ids(model)
    log_probs, mask = log_probs_and_mask(model, params, inputs)
    limits = search.limits(inputs, special, options)
    room = max(1, min(limits.longest - 1, log_probs.shape[1]))
    limit = jnp.minimum(limits.each - 1, room)
    if options.method == "greedy":
        tokens, is_text = best_path(log_probs, mask, limit, room, special.pad)[:, None], (limit >= 0)[:, None]
    else:
        beams = prefix_beam_search(log_probs, mask, limit, room, options.num_hypotheses, special.pad)
        tokens, is_text = beams.tokens, (beams.log_p > NEVER) & (limit >= 0)[:, None]
    rows, n, _ = tokens.shape
    texts = tokens.reshape(rows * n, room)
    log_p = log_likelihoods(
        jnp.repeat(log_probs, n, axis=0), jnp.repeat(mask, n, axis=0), texts, special.pad
    ).reshape(rows, n)
    ended = with_end(tokens, special.eos, special.pad)
    ended = jnp.where(is_text[..., None], ended, special.pad)
    log_p = jnp.where(is_text, log_p, NEVER)
    penalty = length_penalty(options)
    return in_order(ended, log_p / penalty(lengths_of(ended, special.pad)), log_p)


def log_probs_and_mask(
    model: nn.Module, params: Variables, inputs: Inputs
) -> tuple[Float[Array, "b s v"], Bool[Array, "b s"]]:
    """log P of each token at each position of the encoder, and which positions are no padding."""

    def run(model: Any) -> tuple[Array, Array]:
        memory = model.encode(**inputs)
        return model.ctc_log_probs(memory), memory.mask

    result: tuple[Array, Array] = model.apply(as_variables(params), method=run)  # type: ignore[assignment]
    return result


def with_end(tokens: Int[Array, "b n t"], eos: int, pad: int) -> Int[Array, "b n u"]:
    """Texts with <eos> after their last token, in one more column."""
    ended = jnp.pad(tokens, ((0, 0), (0, 0), (0, 1)), constant_values=pad)
    length = (tokens != pad).sum(axis=-1, keepdims=True)
    return jnp.where(jnp.arange(ended.shape[-1]) == length, eos, ended)


def best_path(
    log_probs: Float[Array, "b s v"], mask: Bool[Array, "b s"], limit: Int[Array, " b"], room: int, blank: int
) -> Int[Array, "b t"]:
    """The text of the most probable path.

    Args:
      log_probs: of each token at each position.
      mask: False for padding.
      limit: tokens of each text; what comes after them is dropped.
      room: columns of the texts.
      blank: its id.
    """
    path = jnp.where(mask, log_probs.argmax(axis=-1), blank)
    before = jnp.pad(path, ((0, 0), (1, 0)), constant_values=blank)[:, :-1]
    is_new = (path != blank) & (path != before)
    column = jnp.cumsum(is_new, axis=1) - 1
    column = jnp.where(is_new & (column < limit[:, None]), column, room)  # which is dropped
    rows = jnp.arange(len(path))[:, None]
    return jnp.full((len(path), room), blank, jnp.int32).at[rows, column].set(path, mode="drop")


def prefix_beam_search(
    log_probs: Float[Array, "b s v"],
    mask: Bool[Array, "b s"],
    limit: Int[Array, " b"],
    room: int,
    beams: int,
    blank: int,
) -> Prefixes:
    """The most probable texts, in no order.

    Args:
      log_probs: of each token at each position.
      mask: False for padding.
      limit: tokens of each text.
      room: columns of the texts.
      beams: texts that are kept at each position.
      blank: its id.
    """

    def step(prefixes: Prefixes, frame: tuple[Array, Array]) -> tuple[Prefixes, None]:
        log_p, is_there = frame
        log_p = jnp.where(log_p > NOTHING / 2, log_p, NEVER)
        new = _read(prefixes, log_p, limit, blank)
        after = jax.tree.map(
            lambda x, y: jnp.where(is_there.reshape(-1, *[1] * (x.ndim - 1)), y, x), prefixes, new
        )
        return after, None

    first = Prefixes.empty(len(log_probs), beams, room, blank)
    prefixes, _ = jax.lax.scan(step, first, (log_probs.swapaxes(0, 1), mask.T))
    return prefixes


def _read(prefixes: Prefixes, log_p: Float[Array, "b v"], limit: Int[Array, " b"], blank: int) -> Prefixes:
    """The beams after another position."""
    rows, n, room = prefixes.tokens.shape
    size = log_p.shape[-1]
    last, length, total = prefixes.last, prefixes.length, prefixes.log_p
    is_last = jnp.arange(size) == last[..., None]
    # each text with one more token; after a blank only, if that is the same as the last one
    longer = jnp.where(is_last, prefixes.blank[..., None], total[..., None]) + log_p[:, None]
    has_room = (length < limit[:, None])[..., None]
    longer = jnp.where(has_room & (jnp.arange(size) != blank), longer, NEVER)
    # where such a text is another beam, its paths are added to that
    columns = jnp.arange(room)
    before = jnp.where(columns == length[..., None] - 1, blank, prefixes.tokens)  # without the last token
    same = (prefixes.tokens[:, :, None] == before[:, None]).all(axis=-1)  # [b, shorter, longer]
    is_parent = same & (length[:, :, None] + 1 == length[:, None])
    joins = jnp.take_along_axis(longer, jnp.broadcast_to(last[:, None], (rows, n, n)), axis=2)
    joined = jax.nn.logsumexp(jnp.where(is_parent, joins, NEVER), axis=1)
    is_joined = (is_parent[..., None] & (jnp.arange(size) == last[:, None, :, None])).any(axis=2)
    longer = jnp.where(is_joined, NEVER, longer)
    stays_blank = total + log_p[:, blank, None]
    repeated = prefixes.token + jnp.take_along_axis(log_p, last, axis=1)
    stays = jnp.logaddexp(jnp.where(length > 0, repeated, NEVER), joined)

    candidates = jnp.concatenate([jnp.logaddexp(stays_blank, stays), longer.reshape(rows, -1)], axis=1)
    best, chosen = jax.lax.top_k(candidates, n)
    is_longer = chosen >= n
    parent = jnp.where(is_longer, (chosen - n) // size, chosen)
    token = (chosen - n) % size

    def of_parent(x: Array) -> Array:
        return jnp.take_along_axis(x, parent.reshape(*parent.shape, *[1] * (x.ndim - 2)), axis=1)

    old_length = of_parent(length)
    at_end = is_longer[..., None] & (columns == old_length[..., None])
    return Prefixes(
        tokens=jnp.where(at_end, token[..., None], of_parent(prefixes.tokens)),
        length=old_length + is_longer,
        blank=jnp.where(is_longer, NEVER, of_parent(stays_blank)),
        token=jnp.where(is_longer, best, of_parent(stays)),
    )
