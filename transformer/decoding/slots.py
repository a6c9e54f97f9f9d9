"""Slots: the sentences that enter and leave one running search.

A state has a slot for each of `b` sentences, with `n` beams each. All slots step together
(`transformer.decoding.steps`) and write the same column of a ring, and each has its own first column, length
and limit. So a slot whose sentence is done can be given another one while the others continue.
"""

from dataclasses import fields, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import SpecialIds
from transformer.decoding.calls import Inputs, init_search, special_ids
from transformer.decoding.hooks import Hooks, HookState
from transformer.decoding.scores import (
    NEVER,
    LengthPenalty,
    Limits,
    SearchResult,
    for_rows,
    in_order,
    lengths,
)
from transformer.model.cache import AnyCache, ByRows, States, put_rows
from transformer.model.parameters import Variables

Noise = Any
"""What is done to the embedded newest tokens (`transformer.decoding.searches.search.Noise`)."""


@struct.dataclass
class Finished:
    """The best finished hypotheses so far: each continues live beam `beam` with <eos> as token `step`."""

    scores: Float[Array, "b n"]
    step: Int[Array, "b n"]
    beam: Int[Array, "b n"]

    @classmethod
    def none(cls, rows: int, beams: int) -> "Finished":
        zeros = jnp.zeros((rows, beams), jnp.int32)
        return cls(jnp.full((rows, beams), NEVER, jnp.float32), zeros, zeros)


@struct.dataclass
class LogP(ByRows):
    """log P under the model alone, where beams are ranked by another sum: with terms, or with noise."""

    live: Float[Array, "b n"]
    """log P of the unfinished beams."""
    ended: Float[Array, "b columns n"]
    """A ring: log P of each beam, if <eos> is its token at that step."""
    cache: AnyCache | None
    """The cache of the model without noise. None: there is no noise."""

    def put_rows(self, rows: Int[Array, " r"], new: "LogP") -> "LogP":
        """Resets some rows. The ring stays as it is."""
        new_cache: Any = new.cache
        cache = self.cache and self.cache.put_rows(rows, new_cache)
        return replace(self, live=put_rows(self.live, rows, new.live), cache=cache)


@struct.dataclass
class Slots(ByRows):
    """The sentences of a search."""

    cache: AnyCache
    hooks: States[tuple[HookState, ...]]
    column: Int[Array, ""]
    """The column of the rings that is written next."""
    start: Int[Array, " b"]
    """The column of each slot's first token."""
    length: Int[Array, " b"]
    """The number of tokens of its live beams."""
    limits: Int[Array, " b"]
    """The maximum length of its output."""
    live: Float[Array, "b n"]
    """What the unfinished beams are ranked by: their log-probabilities, under the noise and with what a hook
    takes from them."""
    newest: Int[Array, "b n"]
    """The last token of each unfinished beam."""
    tokens: Int[Array, "b columns n"]
    """A ring: the token of each beam at each step."""
    parents: Int[Array, "b columns n"]
    """A ring: the beam that it continued."""
    finished: Finished
    done: Bool[Array, " b"]
    """Nothing better can come, or the slot is free, or it overflowed."""
    overflowed: Bool[Array, " b"]
    """Its rings were full before its limit: it must be searched again in longer ones."""
    penalty: LengthPenalty
    """What the log-probabilities of its outputs are divided by."""
    row_inputs: Any
    """What the strategy reads for each slot, such as random keys: arrays with rows first."""
    noise: Noise | None = None
    """Noise on the inputs of the decoder. None: there is none."""
    log_p: LogP | None = None
    """log P of the beams under the model alone. None: it is `live`."""

    def put_rows(self, rows: Int[Array, " r"], new: "Slots") -> "Slots":
        """These slots begin anew, as in `new`, whose rings may have any length. Rows beyond the last are
        dropped."""
        separate = "cache", "column", "start", "tokens", "parents", "log_p"
        changed: dict[str, Any] = {
            field.name: put_rows(getattr(self, field.name), rows, getattr(new, field.name))
            for field in fields(self)
            if field.name not in separate
        }
        start = self.start.at[rows].set(self.column, mode="drop")
        new_cache: Any = new.cache
        log_p = None if self.log_p is None or new.log_p is None else self.log_p.put_rows(rows, new.log_p)
        return replace(self, **changed, cache=self.cache.put_rows(rows, new_cache), start=start, log_p=log_p)


def init_slots(
    model: nn.Module,
    variables: Variables,
    inputs: Inputs,
    limits: Limits,
    columns: int,
    live: Float[Array, " n"],
    penalty: LengthPenalty,
    hooks: Hooks,
    row_inputs: Any,
    noise: Noise | None = None,
) -> Slots:
    """Slots for the rows of the inputs before their first step, with rings of so many columns. `live` is what
    their beams are ranked by at first (`Strategy.first`). The length penalty is that of all, or of each."""
    rows = len(limits.each)
    shape = (rows, len(live))
    rings = jnp.zeros((rows, columns, len(live)), jnp.int32)
    cache, hook_inputs = init_search(model, variables, inputs, len(live), columns)
    log_p = None
    if noise is not None or hooks.rank or cache.added is not None:
        log_p = LogP(jnp.zeros(shape), jnp.zeros(rings.shape), None if noise is None else cache)
    return Slots(
        cache=cache,
        hooks=States(hooks.init(hook_inputs, len(live))),
        column=jnp.zeros((), jnp.int32),
        start=jnp.zeros(rows, jnp.int32),
        length=jnp.zeros(rows, jnp.int32),
        limits=limits.each,
        live=jnp.broadcast_to(live, shape),
        newest=jnp.full(shape, special_ids(model).bos, jnp.int32),
        tokens=rings,
        parents=rings,
        finished=Finished.none(*shape),
        done=limits.each == 0,
        overflowed=jnp.zeros(rows, bool),
        penalty=for_rows(penalty, rows),
        row_inputs=row_inputs,
        noise=noise,
        log_p=log_p,
    )


def results(slots: Slots, special: SpecialIds) -> SearchResult:
    """The finished hypotheses of every slot, best first."""
    finished = slots.finished
    columns = slots.tokens.shape[1]
    unfilled = finished.scores == NEVER
    order = (slots.start[:, None] + jnp.arange(columns)) % columns

    def back(beam: Int[Array, "b n"], x: tuple[Array, ...]) -> tuple[Int[Array, "b n"], Int[Array, "b n"]]:
        step, tokens, parents = x
        token = jnp.take_along_axis(tokens, beam, axis=1)
        token = jnp.where(step < finished.step, token, special.pad)
        token = jnp.where(step == finished.step, special.eos, token)
        before = jnp.where(step < finished.step, jnp.take_along_axis(parents, beam, axis=1), beam)
        return before, jnp.where(unfilled, special.pad, token)

    rings = (jnp.take_along_axis(x, order[:, :, None], axis=1) for x in (slots.tokens, slots.parents))
    steps = (jnp.arange(columns), *(jnp.moveaxis(x, 1, 0) for x in rings))
    _, tokens = jax.lax.scan(back, finished.beam, steps, reverse=True)
    tokens = tokens.transpose(1, 2, 0)
    log_p = finished.scores * slots.penalty(lengths(tokens, special.pad))
    if slots.log_p is not None:
        row = jnp.arange(len(order))[:, None]
        end = (slots.start[:, None] + finished.step) % columns
        log_p = jnp.where(unfilled, NEVER, slots.log_p.ended[row, end, finished.beam])
    return in_order(tokens, finished.scores, log_p)
