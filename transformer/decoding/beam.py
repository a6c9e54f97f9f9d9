"""Beam search (section 6.1) as one compiled program, with a cache of fixed size that is never reordered.

The default stopping criterion is exact: log-probabilities only decrease, but for what a hook may still add,
so a sentence is done as soon as no live beam could beat the worst finished hypothesis that is wanted, even at
the best length that it can still reach.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.ranges import LENGTH, LENGTH_PENALTY, SIZE
from transformer.decoding.calls import checked, special_ids
from transformer.decoding.scores import NEVER, SearchResult, as_penalty, source_limits
from transformer.decoding.slots import Finished, Slots
from transformer.decoding.steps import Predicted, Reach, Selection, search_all
from transformer.model.parameters import Variables


@struct.dataclass
class Candidates:
    """The most probable continuations of the live beams of each slot, best first."""

    log_p: Float[Array, "b c"]
    """log P of all their tokens."""
    parent: Int[Array, "b c"]
    """The beam that they continue."""
    token: Int[Array, "b c"]


@dataclass(frozen=True)
class BeamSearch:
    """The strategy of beam search: the most probable continuations of all beams."""

    beam_size: int = 4
    stop: str = "exact"
    """When the search stops, as `DecodingConfig.stop` defines it."""

    def first(self) -> Float[Array, " n"]:
        return jnp.full(self.beam_size, NEVER, jnp.float32).at[0].set(0.0)  # all beams are equal at first

    def __call__(self, slots: Slots, predicted: Predicted, eos: int) -> Selection:
        return self.chosen(slots, self.candidates(slots, predicted), eos, predicted.reach)

    def chosen(self, slots: Slots, candidates: Candidates, eos: int, reach: Reach | None = None) -> Selection:
        """What becomes of the candidates: the first of them, in their order, continue or end.

        Args:
          slots: before this step.
          candidates: in the order in which they are chosen.
          eos: the id of the end.
          reach: as of `Predicted`.
        """
        n = self.beam_size
        ended = candidates.token == eos
        length = (slots.length + 1).astype(jnp.float32)
        # <eos> counts only among the n best candidates
        complete = ended & (jnp.arange(ended.shape[1]) < n) & ~slots.done[:, None]
        normalised = jnp.where(complete, candidates.log_p, NEVER) / slots.penalty(length)[:, None]
        step = jnp.broadcast_to(slots.length[:, None], ended.shape)
        finished = _merge(slots.finished, Finished(normalised, step, candidates.parent))

        unfinished = jnp.argsort(ended, axis=1, stable=True)[:, :n]
        parent, token = (
            jnp.take_along_axis(x, unfinished, axis=1) for x in (candidates.parent, candidates.token)
        )
        live = jnp.take_along_axis(jnp.where(ended, NEVER, candidates.log_p), unfinished, axis=1)
        certain = slots.row_inputs
        num_certain = jnp.full(len(live), n, jnp.int32) if isinstance(certain, tuple) else certain
        bound = live if reach is None else live + reach(token, parent)
        enough = self._enough(slots, finished, live, bound, length, num_certain)
        return Selection(token, parent, live, finished, enough)

    def candidates(self, slots: Slots, predicted: Predicted) -> Candidates:
        """The 2n best: even if n of them end in <eos>, n beams continue."""
        rows, n = slots.live.shape
        best, token, log_normaliser = predicted.best(2 * n)
        candidates = (slots.live[:, :, None] + best - log_normaliser).reshape(rows, -1)
        log_p, chosen = jax.lax.top_k(candidates, min(2 * n, candidates.shape[1]))
        chosen_token = jnp.take_along_axis(token.reshape(rows, -1), chosen, axis=1)
        return Candidates(log_p, chosen // token.shape[-1], chosen_token)

    def _enough(
        self,
        slots: Slots,
        finished: Finished,
        live: Float[Array, "b n"],
        bound: Float[Array, "b n"],
        length: Float[Array, " b"],
        num_certain: Int[Array, " b"],
    ) -> Bool[Array, " b"]:
        """Whether the search of each sentence can stop. The live beams cannot become better than `bound`."""
        worst = finished.scores[:, -1]  # of the best, which are in order
        match self.stop:
            case "full":
                return worst > NEVER
            case "present":
                return worst >= live.max(axis=1) / slots.penalty(length)
            case _:  # the penalty is monotonic: the best reachable length is the next one or the last one
                worst = jnp.take_along_axis(finished.scores, num_certain[:, None] - 1, axis=1)[:, 0]
                ends = length + 1, jnp.maximum(slots.limits, length + 1)
                return worst >= bound.max(axis=1) / jnp.maximum(*map(slots.penalty, ends))


@checked
@functools.partial(
    jax.jit, static_argnames=("model", "beam_size", "length_penalty", "stop", "max_length", "extra_length")
)
def beam_search(
    model: nn.Module,
    params: Variables,
    source_ids: Int[Array, "batch s"],
    *,
    beam_size: Annotated[int, SIZE] = 4,
    length_penalty: Annotated[float, LENGTH_PENALTY] | Callable[[Any], Any] = 0.6,
    stop: Literal["exact", "present", "full"] = "exact",
    max_length: Annotated[int, SIZE] | None = None,
    extra_length: Annotated[int, LENGTH] = 50,
) -> SearchResult:
    """The `beam_size` best translations of each sentence.

    Args:
      model: anything with `encode`, `init_cache`, `decode_step` and `config.special`
        (`transformer.model.encoder_decoder.EncoderDecoder`).
      params: its parameters, or its variables.
      source_ids: each sentence closed by <eos>, then <pad>. Rows of <pad> alone are skipped.
      beam_size: number of live hypotheses, and of translations returned.
      length_penalty: alpha of `wu_penalty`, or a monotonic function of |Y| to divide by.
      stop: "exact", "present" or "full", see `DecodingConfig.stop`.
      max_length: maximum length of a translation, counting <eos>. None: only extra_length limits it.
      extra_length: maximum length relative to the source, counting <eos>.
    """
    limits = source_limits(source_ids, special_ids(model).pad, extra_length, max_length)
    strategy = BeamSearch(beam_size, stop)
    return search_all(model, params, {"source": source_ids}, limits, strategy, as_penalty(length_penalty))


def _merge(old: Finished, new: Finished) -> Finished:
    """The best of both, as many as in `old`; ties go to the older."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), old, new)
    scores, chosen = jax.lax.top_k(both.scores, old.scores.shape[1])
    step, beam = (jnp.take_along_axis(x, chosen, axis=1) for x in (both.step, both.beam))
    return Finished(scores, step, beam)
