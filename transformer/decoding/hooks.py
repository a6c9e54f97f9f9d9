"""Hooks, which steer a search: forbidden or forced tokens, constraints, control of repetition.

A hook sees the logits of every step before a token is chosen, and has a state that follows its beam. What it
forbids has no probability; scores stay those of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

HookState = Any
"""A pytree of arrays with rows first."""


@runtime_checkable
class SearchHook(Protocol):
    """A hook. It must be hashable, since compiled programs depend on it."""

    def init(self, inputs: Mapping[str, Array]) -> HookState:
        """The state before the first token: arrays `[b, ...]`, one row for each row of the inputs."""
        ...

    def filter(self, logits: Float[Array, "b n v"], state: HookState) -> Float[Array, "b n v"]:
        """The logits to choose from, with -inf for what is forbidden. The state has arrays `[b, n, ...]`."""
        ...

    def advance(self, tokens: Int[Array, "b n"], state: HookState) -> HookState:
        """The state after these tokens. It is already that of each token's own beam."""
        ...


@dataclass(frozen=True)
class NoHook:
    """Forbids nothing."""

    def init(self, inputs: Mapping[str, Array]) -> HookState:
        """No state."""
        return ()

    def filter(self, logits: Float[Array, "b n v"], state: HookState) -> Float[Array, "b n v"]:
        """All logits."""
        return logits

    def advance(self, tokens: Int[Array, "b n"], state: HookState) -> HookState:
        """No state."""
        return state


NO_HOOK = NoHook()


def first_states(hook: SearchHook, inputs: Mapping[str, Array], beams: int) -> HookState:
    """The hook's states of all beams before the first token."""
    return jax.tree.map(lambda x: jnp.repeat(x[:, None], beams, axis=1), hook.init(inputs))
