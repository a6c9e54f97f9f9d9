"""Steps of a search in all its slots: the model predicts, a `Strategy` chooses, and the slots are extended.

What a step chooses is up to the strategy: beam search or sampling.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.decoding.calls import Inputs, advance, as_variables, special_ids
from transformer.decoding.hooks import NO_HOOKS, Hooks, HookState
from transformer.decoding.scores import LengthPenalty, Limits, SearchResult
from transformer.decoding.slots import Finished, LogP, Noise, Slots, init_slots, results
from transformer.decoding.top_k import Best, Unrestricted, best_of, top_k
from transformer.model.cache import AnyCache, States
from transformer.model.encoder_decoder import NOISE, OF_INPUTS
from transformer.model.parameters import Variables

Reach = Callable[[Int[Array, "b n"], Int[Array, "b n"]], Float[Array, "b n"]]
"""From the newest tokens of beams, and the beams that they continue."""


@struct.dataclass
class Selection:
    """The beams with which a step continues, and its finished hypotheses."""

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
    """Logits to choose the next token from: -inf for what is forbidden."""
    log_normaliser: Float[Array, "b n 1"]
    """The log-sum-exp of all logits."""
    cache: AnyCache
    log_p: Float[Array, "b n v"] | None
    """log P of each token under the model alone. None: slots need none (`Slots.log_p`)."""
    noiseless: AnyCache | None
    """The cache without noise, if there is some."""
    unrestricted: Unrestricted | None
    """The same logits, if only special ids and limits restrict them. None: a hook may do so."""
    before_rising: tuple[Float[Array, "b n v"], ...] = ()
    """What each term that rises was given."""
    reach: Reach | None = struct.field(pytree_node=False, default=None)
    """How much these may still add to beams, after what they chose. None: there are none."""

    def best(self, k: int) -> Best:
        """The logits of the k best tokens of each beam, these tokens, and `log_normaliser`."""
        if self.unrestricted is None:
            return *top_k(self.logits, k), self.log_normaliser
        return best_of(self.unrestricted, k, self.logits, self.log_normaliser)


@runtime_checkable
class Strategy(Protocol):
    """Chooses how the beams of all slots continue. It is hashable: compiled programs depend on it."""

    def first(self) -> Float[Array, " n"]:
        """The log-probabilities of a slot's beams before the first step: -inf for those that would repeat
        another."""
        ...

    def __call__(self, slots: Slots, predicted: Predicted, eos: int) -> Selection:
        """The next step. Slots that are done must keep their finished hypotheses."""
        ...


def step(model: nn.Module, variables: Variables, slots: Slots, strategy: Strategy, hooks: Hooks) -> Slots:
    """One more token in every slot."""
    eos = special_ids(model).eos
    predicted = predict(model, variables, slots, hooks)
    return extend(slots, predicted, strategy(slots, predicted, eos), hooks, eos)


def predict(model: nn.Module, variables: Variables, slots: Slots, hooks: Hooks) -> Predicted:
    """The prediction for the next token, and the caches that include the newest: log P under the model, or
    what a language model beside it and the hooks make of it."""
    noise = {} if slots.noise is None else {NOISE: {OF_INPUTS: slots.noise.at(slots.length)}}
    logits, cache = advance(model, {**variables, **noise}, slots.cache, slots.newest)
    log_normaliser = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    special, steps_left = special_ids(model), slots.limits - slots.length
    added = cache.added  # by a language model
    if not hooks.each and not hooks.rank and added is None:
        unrestricted = Unrestricted(logits, steps_left <= 1, special)
        log_p, noiseless = _under_the_model(model, variables, slots, None)
        logits, _ = hooks.allowed(logits, (), special, steps_left)
        return Predicted(logits, log_normaliser, cache, log_p, noiseless, unrestricted)
    if ranked := added is not None or hooks.rank:
        logits, log_normaliser = logits - log_normaliser, jnp.zeros_like(log_normaliser)
    log_p, noiseless = _under_the_model(model, variables, slots, logits if ranked else None)
    states = slots.hooks.value
    if log_p is not None and (forced_mask := hooks.forced_mask(states)) is not None:
        log_p = jnp.where(forced_mask[..., None], 0, log_p)
    logits, before = hooks.allowed(logits if added is None else logits + added, states, special, steps_left)
    if added is not None:  # an end that the limit forces costs nothing
        logits = jnp.where((steps_left <= 1)[:, None, None], logits - added, logits)
    predicted = Predicted(logits, log_normaliser, cache, log_p, noiseless, None, before)

    def reach(tokens: Int[Array, "b n"], parents: Int[Array, "b n"]) -> Float[Array, "b n"]:
        return jnp.asarray(hooks.reach(states_after(hooks, slots, predicted, tokens, parents)))

    return replace(predicted, reach=reach) if before else predicted


def _under_the_model(
    model: nn.Module, variables: Variables, slots: Slots, log_p: Float[Array, "b n v"] | None
) -> tuple[Float[Array, "b n v"] | None, AnyCache | None]:
    """log P of each token under the model alone, and its cache, where there is noise. Without: `log_p`."""
    if slots.log_p is None or slots.log_p.cache is None:
        return log_p, None
    logits, cache = advance(model, variables, slots.log_p.cache, slots.newest)
    return jax.nn.log_softmax(logits), cache


def states_after(
    hooks: Hooks,
    slots: Slots,
    predicted: Predicted,
    tokens: Int[Array, "b n"],
    parents: Int[Array, "b n"],
) -> tuple[HookState, ...]:
    """The states of the hooks after tokens of beams that continue others."""
    log_ps = [of_tokens(log_p, tokens, parents) for log_p in predicted.before_rising]
    return hooks.advance(tokens, slots.hooks.select(parents).value, log_ps)


def extend(slots: Slots, predicted: Predicted, chosen: Selection, hooks: Hooks, eos: int) -> Slots:
    """The slots after a step."""
    column = slots.column
    columns = slots.tokens.shape[1]

    def write(ring: Array, new: Array) -> Array:  # slots that are done keep theirs
        old = jax.lax.dynamic_index_in_dim(ring, column, axis=1, keepdims=False)
        new = jnp.where(slots.done[:, None], old, new)
        return jax.lax.dynamic_update_index_in_dim(ring, new, column, axis=1)

    hooks_after = states_after(hooks, slots, predicted, chosen.tokens, chosen.parents)
    log_p = slots.log_p
    if log_p is not None:
        assert predicted.log_p is not None
        total = log_p.live[:, :, None] + predicted.log_p
        noiseless: Any = predicted.noiseless and predicted.noiseless.select(chosen.parents)
        log_p = LogP(
            of_tokens(total, chosen.tokens, chosen.parents), write(log_p.ended, total[..., eos]), noiseless
        )
    length = jnp.where(slots.done, slots.length, slots.length + 1)
    complete = slots.done | chosen.enough | (length >= slots.limits)
    return replace(
        slots,
        cache=predicted.cache.select(chosen.parents),
        hooks=States(hooks_after),
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


def of_tokens(
    values: Float[Array, "b n v"], tokens: Int[Array, "b n"], parents: Int[Array, "b n"]
) -> Float[Array, "b n"]:
    """The values of tokens, of the beams that they continue."""
    of_parents = jnp.take_along_axis(values, parents[:, :, None], axis=1)
    return jnp.take_along_axis(of_parents, tokens[:, :, None], axis=2)[:, :, 0]


def run(
    model: nn.Module,
    variables: Variables,
    slots: Slots,
    strategy: Strategy,
    hooks: Hooks,
    running: int | Int[Array, ""] = 0,
    steps: int | Int[Array, ""] | None = None,
) -> Slots:
    """Steps until no more than `running` slots are not done, and at most `steps` times."""

    def is_running(carry: tuple[Slots, Array]) -> Array:
        busy = (~carry[0].done).sum() > running
        return busy if steps is None else busy & (carry[1] < steps)

    def body(carry: tuple[Slots, Array]) -> tuple[Slots, Array]:
        return step(model, variables, carry[0], strategy, hooks), carry[1] + 1

    slots, _ = jax.lax.while_loop(is_running, body, (slots, jnp.zeros((), jnp.int32)))
    return slots


def search_all(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    limits: Limits,
    strategy: Strategy,
    penalty: LengthPenalty,
    hooks: Hooks = NO_HOOKS,
    row_inputs: Any = (),
    noise: Noise | None = None,
) -> SearchResult:
    """The search of all rows at once: each fills a slot, which is never refilled.

    Args:
      model: as in `transformer.decoding.beam.beam_search`.
      params: its parameters, or its variables.
      inputs: the arguments of `encode`.
      limits: the maximum length of each output. Rows with limit 0 are skipped.
      strategy: of a step.
      penalty: of all rows, or that of each.
      hooks: what it ranks by, and may choose from, besides the model, see `transformer.decoding.hooks`.
      row_inputs: what the strategy reads for each row.
      noise: on the decoder's inputs.
    """
    variables = as_variables(params)
    slots = init_slots(
        model, variables, inputs, limits, limits.longest, strategy.first(), penalty, hooks, row_inputs, noise
    )
    return results(run(model, variables, slots, strategy, hooks), special_ids(model))
