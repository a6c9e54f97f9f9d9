"""Hooks, which steer a search: it ranks by a sum of terms, over the tokens that masks leave.

The model is the first term. A mask (`SearchHook`) forbids tokens, which have no probability then; scores stay
those of the model. A term (`Term`) is given log-probabilities and changes them: what it returns is what the
search adds up to rank by, while log P of a hypothesis stays that of the model. Each has a state that follows
its beam.
"""

import functools
import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.model import SpecialIds
from transformer.model.cache import is_shared
from transformer.runtime.errors import UserError

HookState = Any
"""A pytree of arrays with rows first."""
NO_OUTPUT = (
    "the search found nothing: what is asked for cannot be (its prefix, its terms and the rules contradict "
    "each other, or a hook forbids every token), or the model's parameters are not finite (choose an earlier "
    "checkpoint)"
)


class SearchHook:
    """A mask, which forbids nothing yet: a subclass says what. It must be hashable, since compiled programs
    depend on it."""

    ranks: bool = False
    """Whether it is given log-probabilities, and the search ranks by what it makes of them."""

    def init(self, inputs: Mapping[str, Array]) -> HookState:
        """The state before the first token: arrays `[b, ...]`, one row for each row of the inputs. Those in
        `transformer.model.cache.Shared` do not follow the beams.

        Args:
          inputs: what the search reads, and what the model gives to hooks (`steering`, if it has it).
        """
        return ()

    def filter(
        self, logits: Float[Array, "b n v"], state: HookState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """The logits to choose from, with -inf for what is forbidden.

        Args:
          logits: of the next token, as the hooks before this one leave them.
          state: arrays `[b, n, ...]`.
          steps_left: how many tokens the output may still have, this one and <eos> included. Where it is 1,
            the search outputs <eos> whatever the hook forbids.
        """
        return logits

    def advance(self, tokens: Int[Array, "b n"], state: HookState) -> HookState:
        """The state after these tokens. It is already that of each token's own beam."""
        return state


class Term(SearchHook):
    """A term of the sum: its `filter` is given log-probabilities and returns them with what it adds, which is
    not positive, unless it `rises`."""

    ranks = True
    rises: bool = False
    """Whether it may also add what is positive, where it has taken as much from the beam: the score of a beam
    stays below 0. It comes after all hooks that do not, and learns which log-probabilities it was given for
    each token (`follow`)."""

    def forced_mask(self, state: HookState) -> Bool[Array, "b n"] | None:
        """True where the term forces the next token, so that it costs nothing in log P. None if it never
        does."""
        return None

    def end(self, log_p: Float[Array, "b n"], state: HookState) -> Float[Array, "b n"]:
        """What an end that the limit forces counts in the sum, given what it counts without this term."""
        return log_p

    def follow(self, tokens: Int[Array, "b n"], state: HookState, log_p: Float[Array, "b n"]) -> HookState:
        """As `advance`, by tokens for which `filter` was given these log-probabilities."""
        return self.advance(tokens, state)

    def reach(self, state: HookState) -> Float[Array, "b n"] | float:
        """How much it may still add to each beam, whatever follows: so much a search that stops exactly must
        wait for."""
        return 0.0


class EqualByContent:
    """A hook with arrays: one is as good as another that was made of the same, and programs serve both."""

    def __init__(self, *content: object) -> None:
        self.identity = hashlib.blake2b(repr(content).encode(), digest_size=16).digest()

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.identity == other.identity


@dataclass(frozen=True)
class Hooks:
    """The hooks of a search, one after another: first those that do not rise. Their states are a tuple.

    Raises:
      UserError: one of them is no `SearchHook`.
    """

    each: tuple[SearchHook, ...] = ()
    normalised: SpecialIds | None = None
    """The special ids, if tokens have the probabilities that a softmax over what is left gives them."""

    def __post_init__(self) -> None:
        for hook in self.each:
            if not isinstance(hook, SearchHook):
                raise UserError(f"{type(hook).__name__}: a hook of a search must be a subclass of SearchHook")
        object.__setattr__(self, "each", (*self.level, *self.rising))

    @property
    def level(self) -> tuple[SearchHook, ...]:
        """The hooks that do not rise."""
        return tuple(hook for hook in self.each if not (isinstance(hook, Term) and hook.rises))

    @property
    def rising(self) -> tuple[Term, ...]:
        """The terms that rise."""
        return tuple(hook for hook in self.each if isinstance(hook, Term) and hook.rises)

    @property
    def rank(self) -> bool:
        """Whether the search ranks by another sum than log P under the model."""
        return self.normalised is not None or any(hook.ranks for hook in self.each)

    def init(self, inputs: Mapping[str, Array], beams: int) -> tuple[HookState, ...]:
        """The states of all beams before the first token."""
        return tuple(first_states(hook, inputs, beams) for hook in self.each)

    def allowed(
        self,
        logits: Float[Array, "b n v"],
        states: Sequence[HookState],
        special: SpecialIds,
        steps_left: Int[Array, " b"],
    ) -> tuple[Float[Array, "b n v"], tuple[Float[Array, "b n v"], ...]]:
        """The logits to choose from, and what each term that rises was given. They are without <pad>, <bos>
        and what is forbidden. Where it is the last step, only <eos> is left, even if it is forbidden.

        Raises:
          UserError: a hook returned logits of another shape.
        """
        left, before = logits, []
        for hook, state in zip(self.level, states, strict=False):
            left = _filtered(hook, left, state, steps_left)
        end = logits[..., special.eos]
        for hook, state in zip(self.each, states, strict=True):
            end = hook.end(end, state) if isinstance(hook, Term) else end
        if self.normalised is not None:
            left = jnp.where(never_predicted(self.normalised, left.shape[-1]), -jnp.inf, left)
            total = jax.nn.logsumexp(left, axis=-1, keepdims=True)
            left = left - jnp.where(jnp.isfinite(total), total, 0)
        for hook, state in zip(self.rising, states[len(self.level) :], strict=True):
            before.append(left)
            left = _filtered(hook, left, state, steps_left)
        if self.normalised is not None:
            of_end = left[..., special.eos]
            end = jnp.where(jnp.isfinite(of_end), of_end, end)
        continuing = jnp.where(never_predicted(special, logits.shape[-1]), -jnp.inf, left)
        ending = jnp.where(jnp.arange(logits.shape[-1]) == special.eos, end[..., None], -jnp.inf)
        return jnp.where((steps_left <= 1)[:, None, None], ending, continuing), tuple(before)

    def forced_mask(self, states: Sequence[HookState]) -> Bool[Array, "b n"] | None:
        """True where a term forces the next token, so that it costs nothing. None if no term ever does."""
        pairs = zip(self.each, states, strict=True)
        masks = [hook.forced_mask(state) for hook, state in pairs if isinstance(hook, Term)]
        forced = [mask for mask in masks if mask is not None]
        return functools.reduce(operator.or_, forced) if forced else None

    def advance(
        self,
        tokens: Int[Array, "b n"],
        states: Sequence[HookState],
        log_ps: Sequence[Float[Array, "b n"]],
    ) -> tuple[HookState, ...]:
        """The states after tokens for which the terms that rise were given these log-probabilities."""
        first = len(self.level)
        after = [hook.advance(tokens, state) for hook, state in zip(self.level, states, strict=False)]
        rising = zip(self.rising, states[first:], log_ps, strict=True)
        return *after, *(hook.follow(tokens, state, log_p) for hook, state, log_p in rising)

    def reach(self, states: Sequence[HookState]) -> Float[Array, "b n"] | float:
        """The most that all terms together may still add to each beam."""
        return sum(
            hook.reach(state) for hook, state in zip(self.rising, states[len(self.level) :], strict=True)
        )


NO_HOOKS = Hooks()


def first_states(hook: SearchHook, inputs: Mapping[str, Array], beams: int) -> HookState:
    """A hook's states of all beams before the first token. What they share is not repeated."""

    def repeat(x: Any) -> Any:
        return x if is_shared(x) else jnp.repeat(x[:, None], beams, axis=1)

    return jax.tree.map(repeat, hook.init(inputs), is_leaf=is_shared)


def _filtered(
    hook: SearchHook, logits: Float[Array, "b n v"], state: HookState, steps_left: Int[Array, " b"]
) -> Float[Array, "b n v"]:
    restricted = hook.filter(logits, state, steps_left)
    if restricted.shape != logits.shape:
        raise UserError(
            f"{type(hook).__name__}.filter returned the shape {restricted.shape}, not {logits.shape}"
        )
    return restricted


def never_predicted(special: SpecialIds, size: int) -> Bool[Array, " v"]:
    """Which ids of a vocabulary no prediction is ever chosen from: <pad>, <bos>."""
    return jnp.isin(jnp.arange(size), jnp.array(special.never_predicted))
