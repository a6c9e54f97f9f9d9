"""Biasing: names that a search expects (Zhao et al. 2019), found in each hypothesis while it grows.

A hypothesis gains the worth of the names in it, which are found as `transformer.decoding.names` says: each
token of a beginning counts at once, so that the beam keeps it, and what was counted is taken back if the name
is broken off. What a run of such tokens gains is at most what it costs, so a name becomes certain at best:

    log P(run) + min(worth of its names, -log P(run))

where a run begins with the first token of a name and ends where no name is left unfinished, and log P is that
of the model with what other hooks have changed. So nothing can become better than it was before the run,
except for the length penalty, and the stopping criterion stays exact.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.data.sequences import Field, Fields
from transformer.decoding.arcs import arc_of, with_arcs
from transformer.decoding.hooks import EqualByContent
from transformer.decoding.names import NameAutomaton
from transformer.model.cache import Shared

SIZES = (256, 4096, 65536)
"""The arcs that a program has room for: about the tokens of all names."""
PREFIX = "steer_bias_"
"""Begins the names of what is read of each input."""
LEAST = -1e9
"""Bounds what a forbidden token costs."""


@struct.dataclass
class Table:
    """The automaton of each row: s states and a arcs, of which the last ones may be unused."""

    first: Int[Array, "b s+1"]
    tokens: Int[Array, "b a"]
    target: Int[Array, "b a"]
    gain: Float[Array, "b a"]
    leave: Float[Array, "b s 2"]


@struct.dataclass
class BiasState:
    """How far each beam is in a name."""

    table: Shared[Table]
    node: Int[Array, "*b"]
    """The state of the automaton."""
    is_letter: Bool[Array, "*b"]
    """Whether its last token ends with a letter."""
    net: Float[Array, "*b"]
    """log P of its run and the worth of the names in it; 0 outside of runs."""


class Bias(EqualByContent):
    """A hook that counts names.

    Args:
      size: how many arcs there may be, of `SIZES`.
      starts: for each id, whether it begins with a letter, so that it continues the word before it.
      ends: for each id, whether it ends with a letter.
      silent: for each id, whether it is no text, such as the code of a language. Those change nothing.
    """

    penalises = True
    boosts = True

    def __init__(
        self,
        size: int,
        starts: Bool[np.ndarray, " v"],
        ends: Bool[np.ndarray, " v"],
        silent: Bool[np.ndarray, " v"],
    ) -> None:
        self.size = size
        self._letters = np.append(np.stack([starts, ends, silent]), np.zeros((3, 1), bool), axis=1)
        super().__init__(size, self._letters.tobytes())

    @property
    def fields(self) -> Fields:
        """What a search reads of each input."""
        fields = {
            "first": Field(shape=(self.size + 2,), padded=False),
            "tokens": Field(shape=(self.size,), padded=False),
            "target": Field(shape=(self.size,), padded=False),
            "gain": Field("float32", shape=(self.size,), padded=False),
            "leave": Field("float32", shape=(self.size + 1, 2), padded=False),
            "weight": Field("float32", padded=False),
        }
        return {PREFIX + name: field for name, field in fields.items()}

    def example(self, names: NameAutomaton, weight: float) -> dict[str, Any]:
        """The arrays of one input. All worths are multiplied by the weight."""
        arrays: dict[str, Any] = {"weight": weight}
        for name, field in self.fields.items():
            name = name.removeprefix(PREFIX)
            if name != "weight":
                values = getattr(names, name)
                more = [(0, field.shape[0] - len(values)), *[(0, 0)] * (values.ndim - 1)]
                arrays[name] = np.pad(values, more, "edge" if name == "first" else "constant")
        return {PREFIX + name: value for name, value in arrays.items()}

    def init(self, inputs: Mapping[str, Array]) -> BiasState:
        """At the beginning of an output."""
        arrays = {name.removeprefix(PREFIX): inputs[name] for name in self.fields}
        weight = arrays.pop("weight")
        arrays["gain"] *= weight[:, None]
        arrays["leave"] *= weight[:, None, None]
        rows = weight.shape
        table = Shared(Table(**arrays))
        return BiasState(table, jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool), jnp.zeros(rows))

    def filter(
        self, logits: Float[Array, "b n v"], state: BiasState, steps_left: Int[Array, " b"]
    ) -> Float[Array, "b n v"]:
        """log P of each token and what it changes in the worth of the beam."""
        starts, _, silent = self._properties(jnp.arange(logits.shape[-1]))
        begins = ~(state.is_letter[..., None] & starts)
        left = self._left(state)
        gain = self._flat(state.table.value.gain)
        nothing = jnp.zeros((len(logits), 1, logits.shape[-1]))
        fresh = with_arcs(nothing, *self._arcs(state, jnp.zeros_like(state.node[:, :1])), gain)
        after = jnp.where(begins, left[..., 1:], left[..., :1])
        after += jnp.minimum(logits + jnp.where(begins, fresh, 0), 0)
        along = with_arcs(jnp.full(logits.shape, jnp.inf), *self._within(state), gain)
        within = jnp.minimum(state.net[..., None] + logits + along, 0)
        counted = jnp.where(jnp.isinf(along), after, within) - jnp.minimum(state.net, 0)[..., None]
        return jnp.where(silent, logits, counted)

    def advance(self, tokens: Int[Array, "b n"], state: BiasState) -> BiasState:
        """The state after tokens that cost nothing."""
        return self.follow(tokens, state, jnp.zeros(tokens.shape))

    def follow(self, tokens: Int[Array, "b n"], state: BiasState, log_p: Float[Array, "b n"]) -> BiasState:
        """The state after tokens with these log-probabilities."""
        table = state.table.value
        starts, ends, silent = self._properties(tokens)
        log_p = jnp.maximum(log_p, LEAST)
        target, gain = self._flat(table.target), self._flat(table.gain)
        at, is_within = arc_of(*self._within(state), tokens, self.size)
        first, is_first = arc_of(*self._arcs(state, jnp.zeros_like(tokens)), tokens, self.size)
        is_first &= ~(state.is_letter & starts)
        node = jnp.where(is_within, target[at], jnp.where(is_first, target[first], 0))
        net = jnp.where(is_within, state.net + log_p + gain[at], jnp.where(is_first, log_p + gain[first], 0))
        return replace(
            state,
            node=jnp.where(silent, state.node, node),
            is_letter=jnp.where(silent, state.is_letter, ends),
            net=jnp.where(silent, state.net, jnp.maximum(net, LEAST)),
        )

    def reach(self, state: BiasState) -> Float[Array, "b n"]:
        """What may at most be added to a beam: what its run has cost."""
        return -jnp.minimum(state.net, 0)

    def end(self, state: BiasState) -> Float[Array, "b n"]:
        """What <eos> changes in the worth of a beam."""
        return self._left(state)[..., 1] + self.reach(state)

    def _left(self, state: BiasState) -> Float[Array, "b n 2"]:
        """What the run counts if it ends before a token that continues a word, and one that does not."""
        leave = jnp.take_along_axis(state.table.value.leave, state.node[..., None], axis=1)
        return jnp.minimum(state.net[..., None] + leave, 0)

    def _arcs(
        self, state: BiasState, node: Int[Array, "b m"]
    ) -> tuple[Int[Array, "b m"], Int[Array, "b m"], Int[Array, " arcs"]]:
        """Where the arcs of states of the automaton begin and end, and the tokens of all arcs."""
        table = state.table.value
        offset = jnp.arange(len(table.first))[:, None] * self.size
        first, last = (jnp.take_along_axis(table.first, node + at, axis=1) + offset for at in (0, 1))
        return first, last, self._flat(table.tokens)

    def _within(self, state: BiasState) -> tuple[Int[Array, "b n"], Int[Array, "b n"], Int[Array, " arcs"]]:
        """Those of the state of each beam, which has none outside of runs."""
        first, last, tokens = self._arcs(state, state.node)
        return first, jnp.where(state.node == 0, first, last), tokens

    def _flat(self, arcs: Array) -> Array:
        """The arcs of all rows, one after the other."""
        return arcs.reshape(-1)

    def _properties(self, tokens: Int[Array, "..."]) -> Bool[Array, "3 ..."]:
        """Whether tokens begin and end with a letter, and whether they are silent."""
        return jnp.asarray(self._letters)[:, jnp.minimum(tokens, self._letters.shape[1] - 1)]
