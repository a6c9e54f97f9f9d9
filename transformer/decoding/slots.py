"""Search in slots: sentences that enter and leave one running search.

A state has a slot for each of `b` sentences, with `n` beams each. All slots step together and write the same
column of a ring, and each has its own first column, length and limit. So a slot whose sentence is done can be
given another one while the others go on. What a step chooses is up to a `Strategy`: beam search or sampling.
"""

from dataclasses import fields, replace
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config import SpecialIds
from transformer.decoding.calls import Inputs, advance, as_variables, init_cache, special_ids
from transformer.decoding.hooks import NO_HOOK, HookState, SearchHook, allowed, first_states
from transformer.decoding.limits import Limits
from transformer.decoding.scores import NEVER, LengthPenalty, SearchResult, in_order, lengths
from transformer.decoding.top_k import Best, Unrestricted, best_of, top_k
from transformer.model.cache import AnyCache, ByRows, States, put_rows
from transformer.model.noise import NOISE, OF_INPUTS, Noise
from transformer.model.parameters import Variables


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
    """log P under the model alone, where beams are ranked by another sum: with a hook that penalises, or with
    noise."""

    live: Float[Array, "b n"]
    """Of the unfinished beams."""
    ended: Float[Array, "b columns n"]
    """A ring: of each beam, if <eos> is its token at that step."""
    cache: AnyCache | None
    """Of the model without noise. None: there is no noise."""

    def put_rows(self, rows: Int[Array, " r"], new: "LogP") -> "LogP":
        """These rows begin anew. The ring is kept."""
        init_slots: Any = new.cache
        cache = self.cache and self.cache.put_rows(rows, init_slots)
        return replace(self, live=put_rows(self.live, rows, new.live), cache=cache)


@struct.dataclass
class Slots(ByRows):
    """The sentences of a search."""

    cache: AnyCache
    hook: States[HookState]
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
    """Their last tokens."""
    tokens: Int[Array, "b columns n"]
    """A ring: the token of each beam at each step."""
    parents: Int[Array, "b columns n"]
    """A ring: the beam that it continued."""
    finished: Finished
    done: Bool[Array, " b"]
    """Nothing better can come, or the slot is free, or it overflowed."""
    overflowed: Bool[Array, " b"]
    """Its rings were full before its limit: it must be searched again in longer ones."""
    read: Any
    """What the strategy reads for each slot, such as random keys: arrays with rows first."""
    noise: Noise | None = None
    """On the decoder's inputs."""
    log_p: LogP | None = None
    """Of the beams. None: it is `live`."""

    def put_rows(self, rows: Int[Array, " r"], new: "Slots") -> "Slots":
        """These slots begin anew, as in `new`, whose rings may have any length. Rows beyond the last are
        dropped."""
        kept = "cache", "column", "start", "tokens", "parents", "log_p"
        changed: dict[str, Any] = {
            field.name: put_rows(getattr(self, field.name), rows, getattr(new, field.name))
            for field in fields(self)
            if field.name not in kept
        }
        start = self.start.at[rows].set(self.column, mode="drop")
        init_slots: Any = new.cache
        log_p = None if self.log_p is None or new.log_p is None else self.log_p.put_rows(rows, new.log_p)
        return replace(self, **changed, cache=self.cache.put_rows(rows, init_slots), start=start, log_p=log_p)


@struct.dataclass
class Selection:
    """What a step chose."""

    tokens: Int[Array, "b n"]
    """The newest token of each live beam."""
    parents: Int[Array, "b n"]
    """The beam that it continues."""
    live: Float[Array, "b n"]
    finished: Finished
    enough: Bool[Array, " b"]
    """Whether the slot is done."""


@struct.dataclass
class Predicted:
    """What the model predicts for the next token of each beam."""

    logits: Float[Array, "b n v"]
    """To choose from: -inf for what is forbidden."""
    log_normaliser: Float[Array, "b n 1"]
    """The log-sum-exp of all logits."""
    cache: AnyCache
    log_p: Float[Array, "b n v"] | None
    """Of each token under the model alone. None: slots need none (`Slots.log_p`)."""
    noiseless: AnyCache | None
    """The cache without noise, if there is some."""
    unrestricted: Unrestricted | None
    """The same logits, if only special ids and limits restrict them. None: a hook may do so."""

    def best(self, k: int) -> Best:
        """The logits of the k best tokens of each beam, these tokens, and `log_normaliser`."""
        if self.unrestricted is None:
            return *top_k(self.logits, k), self.log_normaliser
        return best_of(self.unrestricted, k, self.logits, self.log_normaliser)


@runtime_checkable
class Strategy(Protocol):
    """Chooses how the beams of all slots go on. It is hashable: compiled programs depend on it."""

    @property
    def penalty(self) -> LengthPenalty:
        """The length penalty."""
        ...

    def first(self) -> Float[Array, " n"]:
        """The log-probabilities of a slot's beams before the first step: -inf for those that would repeat
        another."""
        ...

    def __call__(self, slots: Slots, predicted: Predicted, eos: int) -> Selection:
        """The next step. Slots that are done must keep what they have finished."""
        ...


def step(model: nn.Module, variables: Variables, slots: Slots, strategy: Strategy, hook: SearchHook) -> Slots:
    """One more token in every slot."""
    eos, predicted = special_ids(model).eos, predict(model, variables, slots, hook)
    return extend(slots, predicted, strategy(slots, predicted, eos), hook, eos)


def predict(model: nn.Module, variables: Variables, slots: Slots, hook: SearchHook) -> Predicted:
    """The prediction for the next token, and the caches that include the newest one."""
    noise, log_p, noiseless = {}, None, None
    if slots.noise is not None:
        noise = {NOISE: {OF_INPUTS: slots.noise.at(slots.length)}}
    logits, cache = advance(model, {**variables, **noise}, slots.cache, slots.newest)
    log_normaliser = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    if getattr(hook, "penalises", False):
        logits, log_normaliser = logits - log_normaliser, jnp.zeros_like(log_normaliser)
        log_p = logits
    if slots.log_p is not None and slots.log_p.cache is not None:
        by_itself, noiseless = advance(model, variables, slots.log_p.cache, slots.newest)
        log_p = jax.nn.log_softmax(by_itself)
    special, last = special_ids(model), slots.length + 1 >= slots.limits
    unrestricted = Unrestricted(logits, last, special) if hook is NO_HOOK else None
    logits = allowed(hook, logits, slots.hook.value, special, last)
    return Predicted(logits, log_normaliser, cache, log_p, noiseless, unrestricted)


def extend(slots: Slots, predicted: Predicted, chosen: Selection, hook: SearchHook, eos: int) -> Slots:
    """The slots after a step."""
    column, columns = slots.column, slots.tokens.shape[1]

    def write(ring: Array, new: Array) -> Array:  # slots that are done keep theirs
        old = jax.lax.dynamic_index_in_dim(ring, column, axis=1, keepdims=False)
        new = jnp.where(slots.done[:, None], old, new)
        return jax.lax.dynamic_update_index_in_dim(ring, new, column, axis=1)

    log_p = slots.log_p
    if log_p is not None:
        assert predicted.log_p is not None
        total = log_p.live[:, :, None] + predicted.log_p
        noiseless: Any = predicted.noiseless and predicted.noiseless.select(chosen.parents)
        log_p = LogP(of_chosen(total, chosen), write(log_p.ended, total[..., eos]), noiseless)
    length = jnp.where(slots.done, slots.length, slots.length + 1)
    complete = slots.done | chosen.enough | (length >= slots.limits)
    return replace(
        slots,
        cache=predicted.cache.select(chosen.parents),
        hook=States(hook.advance(chosen.tokens, slots.hook.select(chosen.parents).value)),
        column=(column + 1) % columns,
        length=length,
        live=chosen.live,
        newest=chosen.tokens,
        tokens=write(slots.tokens, chosen.tokens),
        parents=write(slots.parents, chosen.parents),
        finished=chosen.finished,
        done=complete | (length >= columns),
        overflowed=slots.overflowed | (~complete & (length >= columns)),
        log_p=log_p,
    )


def of_chosen(values: Float[Array, "b n v"], chosen: Selection) -> Float[Array, "b n"]:
    """The values of the tokens that a step chose, for the beams that they continue."""
    of_parents = jnp.take_along_axis(values, chosen.parents[:, :, None], axis=1)
    return jnp.take_along_axis(of_parents, chosen.tokens[:, :, None], axis=2)[:, :, 0]


def run(
    model: nn.Module,
    variables: Variables,
    slots: Slots,
    strategy: Strategy,
    hook: SearchHook,
    running: int | Int[Array, ""] = 0,
    steps: int | Int[Array, ""] | None = None,
) -> Slots:
    """Steps until no more than `running` slots are not done, and at most `steps` times."""

    def going_on(carry: tuple[Slots, Array]) -> Array:
        busy = (~carry[0].done).sum() > running
        return busy if steps is None else busy & (carry[1] < steps)

    def body(carry: tuple[Slots, Array]) -> tuple[Slots, Array]:
        return step(model, variables, carry[0], strategy, hook), carry[1] + 1

    found, _ = jax.lax.while_loop(going_on, body, (slots, jnp.zeros((), jnp.int32)))
    return found


def results(slots: Slots, special: SpecialIds, penalty: LengthPenalty) -> SearchResult:
    """The finished hypotheses of every slot, best first."""
    finished, columns = slots.finished, slots.tokens.shape[1]
    unfilled = finished.scores == NEVER
    order = (slots.start[:, None] + jnp.arange(columns)) % columns

    def back(beam: Int[Array, "b n"], at: tuple[Array, ...]) -> tuple[Int[Array, "b n"], Int[Array, "b n"]]:
        step, tokens, parents = at
        token = jnp.take_along_axis(tokens, beam, axis=1)
        token = jnp.where(step < finished.step, token, special.pad)
        token = jnp.where(step == finished.step, special.eos, token)
        before = jnp.where(step < finished.step, jnp.take_along_axis(parents, beam, axis=1), beam)
        return before, jnp.where(unfilled, special.pad, token)

    rings = (jnp.take_along_axis(x, order[:, :, None], axis=1) for x in (slots.tokens, slots.parents))
    steps = (jnp.arange(columns), *(jnp.moveaxis(x, 1, 0) for x in rings))
    _, tokens = jax.lax.scan(back, finished.beam, steps, reverse=True)
    tokens = tokens.transpose(1, 2, 0)
    log_p = finished.scores * penalty(lengths(tokens, special.pad))
    if slots.log_p is not None:
        row, at = jnp.arange(len(order))[:, None], (slots.start[:, None] + finished.step) % columns
        log_p = jnp.where(unfilled, NEVER, slots.log_p.ended[row, at, finished.beam])
    return in_order(tokens, finished.scores, log_p)


def search_all(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    limits: Limits,
    strategy: Strategy,
    hook: SearchHook = NO_HOOK,
    read: Any = (),
    noise: Noise | None = None,
) -> SearchResult:
    """The search of all rows at once: each fills a slot, and no other takes its place.

    Args:
      model: as in `transformer.decoding.beam.beam_search`.
      params: its parameters, or its variables.
      inputs: the arguments of `encode`.
      limits: the maximum length of each output. Rows with limit 0 are skipped.
      strategy: of a step.
      hook: restricts the tokens, see `transformer.decoding.hooks`.
      read: what the strategy reads for each row.
      noise: on the decoder's inputs.
    """
    variables = as_variables(params)
    slots = init_slots(model, variables, inputs, limits, limits.longest, strategy, hook, read, noise)
    return results(run(model, variables, slots, strategy, hook), special_ids(model), strategy.penalty)


def init_slots(
    model: nn.Module,
    variables: Variables,
    inputs: Inputs,
    limits: Limits,
    columns: int,
    strategy: Strategy,
    hook: SearchHook,
    read: Any,
    noise: Noise | None = None,
) -> Slots:
    """Slots for the rows of the inputs before their first step, with rings of so many columns."""
    live, rows = strategy.first(), len(limits.each)
    shape = (rows, len(live))
    rings = jnp.zeros((rows, columns, len(live)), jnp.int32)
    cache, log_p = init_cache(model, variables, inputs, len(live), columns), None
    if noise is not None or getattr(hook, "penalises", False):
        log_p = LogP(jnp.zeros(shape), jnp.zeros(rings.shape), None if noise is None else cache)
    return Slots(
        cache=cache,
        hook=States(first_states(hook, inputs, len(live))),
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
        read=read,
        noise=noise,
        log_p=log_p,
    )
