"""Hooks, which steer a search: forbidden or forced tokens, constraints, control of repetition.

A hook sees the logits of every step before a token is chosen, and has a state that follows its beam. What it
forbids has no probability; scores stay those of the model. A hook with a true attribute `penalises` is given
log-probabilities, and what it returns is what the search adds up to rank by; it must not be positive. Its
method `is_free`, if it has one, says where a token that it forces counts nothing in the log-probability, and
`forced_end` what an end counts that the limit forces: without it, its log-probability under the model. A
`BoostingHook` may return what is positive, within bounds; a search has one at most, as the last of its hooks.
"""

import functools
import hashlib
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import SpecialIds
from transformer.model.cache import is_shared
from transformer.runtime.errors import UserError

HookState = Any
"""A pytree of arrays with rows first."""


@runtime_checkable
class SearchHook(Protocol):
    """A hook. It must be hashable, since compiled programs depend on it."""

    def init(self, inputs: Mapping[str, Array]) -> HookState:
        """The state before the first token: arrays `[b, ...]`, one row for each row of the inputs. Those in
        `transformer.model.cache.Shared` do not follow the beams.

        Args:
          inputs: what the search reads, and what the model gives to hooks (`steering`, if it has it).
        """
        ...

    def filter(
        self, logits: Float[Array, "b n v"], state: HookState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The logits to choose from, with -inf for what is forbidden.

        Args:
          logits: of the next token.
          state: arrays `[b, n, ...]`.
          steps_left: how many tokens the output may still have, this one and <eos> included. Where it is 1,
            the search outputs <eos> whatever the hook forbids.
        """
        ...

    def advance(self, tokens: Int[Array, "b n"], state: HookState) -> HookState:
        """The state after these tokens. It is already that of each token's own beam."""
        ...


@runtime_checkable
class BoostingHook(SearchHook, Protocol):
    """A hook that penalises, and may return what is positive where it has taken as much from the beam. It
    reads log-probabilities that all other hooks have changed, and the scores of the beams stay below 0."""

    boosts: bool
    """True."""

    def follow(self, tokens: Int[Array, "b n"], state: HookState, log_p: Float[Array, "b n"]) -> HookState:
        """`advance` by tokens for which `filter` was given these log-probabilities."""
        ...

    def reach(self, state: HookState) -> Float[Array, "b n"]:
        """How much the hook may still add to each beam, whatever follows."""
        ...

    def end(self, state: HookState) -> Float[Array, "b n"]:
        """What it adds to an end that the limit forces."""
        ...


class EqualByContent:
    """A hook with arrays: one is as good as another that was made of the same, and programs serve both."""

    def __init__(self, *content: object) -> None:
        self.identity = hashlib.blake2b(repr(content).encode(), digest_size=16).digest()

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.identity == other.identity


@dataclass(frozen=True)
class NoHook:
    """Forbids nothing."""

    def init(self, inputs: Mapping[str, Array]) -> HookState:
        """No state."""
        return ()

    def filter(
        self, logits: Float[Array, "b n v"], state: HookState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """All logits."""
        return logits

    def advance(self, tokens: Int[Array, "b n"], state: HookState) -> HookState:
        """No state."""
        return state


@dataclass(frozen=True)
class Hooks:
    """Several hooks, one after another."""

    each: tuple[SearchHook, ...]

    @property
    def penalises(self) -> bool:
        """Whether one of them does."""
        return any(getattr(hook, "penalises", False) for hook in self.each)

    def init(self, inputs: Mapping[str, Array]) -> HookState:
        """Their states."""
        return tuple(hook.init(inputs) for hook in self.each)

    def filter(
        self, logits: Float[Array, "b n v"], state: HookState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """What all of them leave."""
        for hook, hook_state in zip(self.each, state, strict=True):
            logits = filtered(hook, logits, hook_state, steps_left)
        return logits

    def advance(self, tokens: Int[Array, "b n"], state: HookState) -> HookState:
        """Their states after these tokens."""
        return tuple(
            hook.advance(tokens, hook_state) for hook, hook_state in zip(self.each, state, strict=True)
        )


@dataclass(frozen=True)
class Renormalised:
    """A hook whose tokens have the probabilities that a softmax over what it leaves gives them."""

    hook: SearchHook
    special: SpecialIds

    penalises = True

    def init(self, inputs: Mapping[str, Array]) -> HookState:
        """Its state."""
        return self.hook.init(inputs)

    def filter(
        self, logits: Float[Array, "b n v"], state: HookState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The log-probabilities of what it leaves."""
        left = filtered(self.hook, logits, state, steps_left)
        left = jnp.where(never_predicted(self.special, left.shape[-1]), -jnp.inf, left)
        total = jax.nn.logsumexp(left, axis=-1, keepdims=True)
        return left - jnp.where(jnp.isfinite(total), total, 0)

    def advance(self, tokens: Int[Array, "b n"], state: HookState) -> HookState:
        """Its state after these tokens."""
        return self.hook.advance(tokens, state)


def parts_of(hook: SearchHook) -> tuple[SearchHook, ...]:
    """The hooks that a hook consists of, in the order of their states; a single one has no parts."""
    if isinstance(hook, Renormalised):
        return parts_of(hook.hook)
    return hook.each if isinstance(hook, Hooks) else ()


def boosting(hook: SearchHook) -> BoostingHook | None:
    """The hook among the others that boosts. None: there is none."""
    last = parts_of(hook)[-1:]
    return last[0] if last and isinstance(last[0], BoostingHook) else None


def others(hook: SearchHook) -> SearchHook:
    """A hook without the one that boosts, which is its last part."""
    if isinstance(hook, Renormalised):
        return replace(hook, hook=others(hook.hook))
    return Hooks(parts_of(hook)[:-1])


def advanced(
    hook: SearchHook, tokens: Int[Array, "b n"], state: HookState, log_p: Float[Array, "b n"] | None
) -> HookState:
    """The state after these tokens.

    Args:
      hook: of the search.
      tokens: of the beams.
      state: before them.
      log_p: for which the hook that boosts was given them. None: there is none.
    """
    last = boosting(hook)
    if last is None or log_p is None:
        return hook.advance(tokens, state)
    return *others(hook).advance(tokens, state[:-1]), last.follow(tokens, state[-1], log_p)


NO_HOOK = NoHook()
NO_OUTPUT = (
    "the search found nothing: what is asked for cannot be (its prefix, its terms and the rules contradict "
    "each other, or a hook forbids every token), or the model's parameters are not finite (choose an earlier "
    "checkpoint)"
)


def filtered(
    hook: SearchHook, logits: Float[Array, "b n v"], state: HookState, steps_left: Int[Array, " b"]
) -> Float[Array, "b n v"]:
    """What a hook allows.

    Raises:
      UserError: the hook returned logits of another shape.
    """
    restricted = hook.filter(logits, state, steps_left)
    if restricted.shape != logits.shape:
        raise UserError(
            f"{type(hook).__name__}.filter returned the shape {restricted.shape}, not {logits.shape}"
        )
    return restricted


def free(hook: SearchHook, state: HookState) -> Bool[Array, "b n"] | None:
    """Where the next token of a beam is no choice of the model. None: nowhere."""
    if isinstance(hook, Renormalised):
        return free(hook.hook, state)
    if isinstance(hook, Hooks):
        masks = (free(*pair) for pair in zip(hook.each, state, strict=True))
        some = [mask for mask in masks if mask is not None]
        return functools.reduce(operator.or_, some) if some else None
    is_free = getattr(hook, "is_free", None)
    return None if is_free is None else is_free(state)


def forced_end(hook: SearchHook, log_p: Float[Array, "b n"], state: HookState) -> Float[Array, "b n"]:
    """What an end that the limit forces counts in the sums of hooks that weigh, given its log-probability."""
    if isinstance(hook, Renormalised):
        return forced_end(hook.hook, log_p, state)
    if isinstance(hook, Hooks):
        for part, part_state in zip(hook.each, state, strict=True):
            log_p = forced_end(part, log_p, part_state)
        return log_p
    if isinstance(hook, BoostingHook):
        return log_p + hook.end(state)
    weighed = getattr(hook, "forced_end", None)
    return log_p if weighed is None else weighed(log_p, state)


def never_predicted(special: SpecialIds, size: int) -> Bool[Array, " v"]:
    """Which ids of a vocabulary no prediction is ever chosen from: <pad>, <bos>."""
    return jnp.isin(jnp.arange(size), jnp.array(special.never_predicted))


def allowed(
    hook: SearchHook,
    logits: Float[Array, "b n v"],
    state: HookState,
    special: SpecialIds,
    steps_left: Int[Array, " b"],
) -> tuple[Float[Array, "b n v"], Float[Array, "b n v"] | None]:
    """The logits to choose from, and what a hook that boosts was given, if there is one. They are without
    <pad>, <bos> and what the hook forbids. Where it is the last step, only <eos> is left, even if the hook
    forbids it."""
    last, before = boosting(hook), None
    if last is None:
        restricted = filtered(hook, logits, state, steps_left)
    else:
        before = filtered(others(hook), logits, state[:-1], steps_left)
        restricted = filtered(last, before, state[-1], steps_left)
    forced = forced_end(hook, logits[..., special.eos], state)
    if isinstance(hook, Renormalised):
        end = restricted[..., special.eos]
        forced = jnp.where(jnp.isfinite(end), end, forced)
    never = never_predicted(special, logits.shape[-1])
    continuing = jnp.where(never, -jnp.inf, restricted)
    ending = jnp.where(jnp.arange(logits.shape[-1]) == special.eos, forced[..., None], -jnp.inf)
    return jnp.where((steps_left <= 1)[:, None, None], ending, continuing), before


def first_states(hook: SearchHook, inputs: Mapping[str, Array], beams: int) -> HookState:
    """The hook's states of all beams before the first token. What they share is not repeated."""

    def repeat(x: Any) -> Any:
        return x if is_shared(x) else jnp.repeat(x[:, None], beams, axis=1)

    return jax.tree.map(repeat, hook.init(inputs), is_leaf=is_shared)
