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
from transformer.decoding.hooks import NO_HOOK, HookState, SearchHook, advanced, allowed, boosting, free
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
    boosted: Float[Array, "b n v"] | None = None
    """What a hook that boosts was given. None: there is none."""
    reach: Reach | None = struct.field(pytree_node=False, default=None)
    """How much that hook may still add to beams, after what they chose."""

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


def step(model: nn.Module, variables: Variables, slots: Slots, strategy: Strategy, hook: SearchHook) -> Slots:
    """One more token in every slot."""
    eos = special_ids(model).eos
    predicted = predict(model, variables, slots, hook)
    return extend(slots, predicted, strategy(slots, predicted, eos), hook, eos)


def predict(model: nn.Module, variables: Variables, slots: Slots, hook: SearchHook) -> Predicted:
    """The prediction for the next token, and the caches that include the newest one."""
    noise = {} if slots.noise is None else {NOISE: {OF_INPUTS: slots.noise.at(slots.length)}}
    logits, cache = advance(model, {**variables, **noise}, slots.cache, slots.newest)
    log_normaliser = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    log_p = noiseless = None
    added = getattr(cache, "added", None)  # by a language model
    if added is not None or getattr(hook, "penalises", False):
        log_p = logits = logits - log_normaliser
        log_normaliser = jnp.zeros_like(log_normaliser)
    if added is not None:
        logits = logits + added
    if slots.log_p is not None and slots.log_p.cache is not None:
        noiseless_logits, noiseless = advance(model, variables, slots.log_p.cache, slots.newest)
        log_p = jax.nn.log_softmax(noiseless_logits)
    if log_p is not None and (is_free := free(hook, slots.hook.value)) is not None:
        log_p = jnp.where(is_free[..., None], 0, log_p)
    special = special_ids(model)
    steps_left = slots.limits - slots.length
    is_unrestricted = hook is NO_HOOK and added is None
    unrestricted = Unrestricted(logits, steps_left <= 1, special) if is_unrestricted else None
    logits, boosted = allowed(hook, logits, slots.hook.value, special, steps_left)
    if added is not None:  # an end that the limit forces costs nothing
        logits = jnp.where((steps_left <= 1)[:, None, None], logits - added, logits)
    predicted = Predicted(logits, log_normaliser, cache, log_p, noiseless, unrestricted, boosted)
    if (boost := boosting(hook)) is None:
        return predicted

    def reach(tokens: Int[Array, "b n"], parents: Int[Array, "b n"]) -> Float[Array, "b n"]:
        return boost.reach(hook_state(hook, slots, predicted, tokens, parents)[-1])

    return replace(predicted, reach=reach)


def hook_state(
    hook: SearchHook,
    slots: Slots,
    predicted: Predicted,
    tokens: Int[Array, "b n"],
    parents: Int[Array, "b n"],
) -> HookState:
    """The state of the hook after tokens of beams that continue others."""
    boosted = None if predicted.boosted is None else of_tokens(predicted.boosted, tokens, parents)
    return advanced(hook, tokens, slots.hook.select(parents).value, boosted)


def extend(slots: Slots, predicted: Predicted, chosen: Selection, hook: SearchHook, eos: int) -> Slots:
    """The slots after a step."""
    column = slots.column
    columns = slots.tokens.shape[1]

    def write(ring: Array, new: Array) -> Array:  # slots that are done keep theirs
        old = jax.lax.dynamic_index_in_dim(ring, column, axis=1, keepdims=False)
        new = jnp.where(slots.done[:, None], old, new)
        return jax.lax.dynamic_update_index_in_dim(ring, new, column, axis=1)

    hook_after = hook_state(hook, slots, predicted, chosen.tokens, chosen.parents)
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
        hook=States(hook_after),
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
    hook: SearchHook,
    running: int | Int[Array, ""] = 0,
    steps: int | Int[Array, ""] | None = None,
) -> Slots:
    """Steps until no more than `running` slots are not done, and at most `steps` times."""

    def is_running(carry: tuple[Slots, Array]) -> Array:
        busy = (~carry[0].done).sum() > running
        return busy if steps is None else busy & (carry[1] < steps)

    def body(carry: tuple[Slots, Array]) -> tuple[Slots, Array]:
        return step(model, variables, carry[0], strategy, hook), carry[1] + 1

    slots, _ = jax.lax.while_loop(is_running, body, (slots, jnp.zeros((), jnp.int32)))
    return slots


def search_all(
    model: nn.Module,
    params: Variables,
    inputs: Inputs,
    limits: Limits,
    strategy: Strategy,
    penalty: LengthPenalty,
    hook: SearchHook = NO_HOOK,
    read: Any = (),
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
      hook: restricts the tokens, see `transformer.decoding.hooks`.
      read: what the strategy reads for each row.
      noise: on the decoder's inputs.
    """
    variables = as_variables(params)
    slots = init_slots(
        model, variables, inputs, limits, limits.longest, strategy.first(), penalty, hook, read, noise
    )
    return results(run(model, variables, slots, strategy, hook), special_ids(model))
