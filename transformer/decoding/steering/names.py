"""Biasing: names that a search expects (Zhao et al. 2019), found in each hypothesis while it grows, by an
automaton that reads one token after another.

Names are found from left to right, the longest one wherever a word begins. A name is whole if a
word ends with it, and no token belongs to two of them. Each token of a name is worth its weight. A beginning
of a name is worth as much until another token follows: then it is worth what the names in it are. So what
has been counted of a sequence, when it ends, is the worth of its names alone.

The states are the nodes of the trie of the names. Where a name is broken off, the names within what was read
of it are found, and the rest may be the beginning of another one (as failure arcs do, Aho and Corasick 1975).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.data.sequences import Field, Fields
from transformer.decoding.hooks import EqualByContent, Term
from transformer.model.cache import Shared

# Tables of arcs in sorted arrays: what leaves a state is consecutive, sorted by token.


AT_ONCE = 64
"""Arcs of a state that are read together."""


def with_arcs(
    values: Float[Array, "b n v"],
    first: Int[Array, "b n"],
    last: Int[Array, "b n"],
    tokens: Int[Array, " a"],
    of_arcs: Float[Array, " a"],
) -> Float[Array, "b n v"]:
    """Values of all tokens, replaced for those of a state's arcs.

    Args:
      values: of each token.
      first: where the arcs of each state begin.
      last: where they end.
      tokens: of the arcs.
      of_arcs: their values.
    """
    rows, beams = first.shape
    row, beam = jnp.arange(rows)[:, None, None], jnp.arange(beams)[None, :, None]
    begin, end = first[..., None], last[..., None]

    def some(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        offset, values = carry
        arc = begin + offset + jnp.arange(AT_ONCE)
        inside = arc < end
        arc = jnp.minimum(arc, len(of_arcs) - 1)
        token = jnp.where(inside, tokens[arc], values.shape[-1])
        return offset + AT_ONCE, values.at[row, beam, token].set(of_arcs[arc], mode="drop")

    def is_left(carry: tuple[Array, Array]) -> Array:
        return (begin + carry[0] < end).any()

    return jax.lax.while_loop(is_left, some, (jnp.zeros((), jnp.int32), values))[1]


def arc_of(
    first: Int[Array, "b n"],
    last: Int[Array, "b n"],
    tokens: Int[Array, " a"],
    token: Int[Array, "b n"],
    max_arcs: int,
) -> tuple[Int[Array, "b n"], Bool[Array, "b n"]]:
    """Where the arc of a token is among those of a state, and whether there is one.

    Args:
      first: where the arcs of each state begin.
      last: where they end.
      tokens: of the arcs.
      token: the token of each state.
      max_arcs: arcs of a state.
    """
    low, high, end = first, last, last

    def halved(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        is_later = (low < high) & (tokens[jnp.minimum(middle, len(tokens) - 1)] < token)
        return jnp.where(is_later, middle + 1, low), jnp.where(is_later, high, middle)

    low, _ = jax.lax.fori_loop(0, max_arcs.bit_length(), halved, (low, high))
    return low, (low < end) & (tokens[jnp.minimum(low, len(tokens) - 1)] == token)


Tokens = tuple[int, ...]


class NameAutomaton:
    """The automaton of names, as arrays. State 0 is outside all names.

    Args:
      names: the tokens of each, and the weight of a token.
      starts: for each id, whether it begins with a letter, so that it continues the word before it.
      ends: for each id, whether it ends with a letter, so that the next token may continue its word.
      max_arcs: the arcs that it may have.

    Raises:
      OverflowError: it would have more.

    Attributes:
      first: where the arcs of each state begin, and at the end their number.
      tokens: of each arc, sorted for each state.
      target: the state to which it leads.
      gain: what it counts.
      leave: what it counts to leave a state by a token without an arc, if that continues a word and if not.
        Such a token follows an arc of state 0, if that has one and a word begins with it.
    """

    def __init__(
        self,
        names: Mapping[Tokens, float],
        starts: Bool[np.ndarray, " v"],
        ends: Bool[np.ndarray, " v"],
        max_arcs: int = 2**31 - 1,
    ) -> None:
        self._starts, self._ends = starts.tolist(), ends.tolist()
        self._lengths, self._newest = [0], [-1]
        """The number of tokens that lead to a node, and the last of them."""
        self._children: list[dict[int, int]] = [{}]
        self._weights, self._own = [0.0], [0.0]
        for name, weight in names.items():
            self._add(name, weight)
            if len(self._lengths) > max_arcs + 1:
                raise OverflowError("too many arcs")
        order = sorted(range(len(self._lengths)), key=self._lengths.__getitem__)
        self._worth = [0.0] * len(order)  # of a beginning
        self._rest: list[tuple[int, float]] = [(0, 0.0)] * len(order)
        """The longest whole name that begins a path and is not all of it is found, and the path read on: the
        state after that, and what the names are worth."""
        arcs: list[dict[int, tuple[int, float]]] = [{} for _ in order]
        leave = np.zeros((len(order), 2), np.float32)
        for node in order:  # those with fewer tokens come first
            for token, child in self._children[node].items():
                self._worth[child] = self._worth[node] + self._weights[child]
                if node:
                    begins = self._begins(self._newest[node], token)
                    after, total = self._found(node) if begins and self._own[node] else self._rest[node]
                    after, gain = self._step(after, begins, token)
                    self._rest[child] = after, total + gain
            arcs[node] = self._arcs_of(node, arcs)
            max_arcs -= len(arcs[node])
            if max_arcs < 0:
                raise OverflowError("too many arcs")
            for begins in (False, True) if node else ():
                after, gain = self._leave(node, begins)
                leave[node, int(begins)] = gain + leave[after, int(begins)]
        self._set_arrays(arcs, leave)

    def _set_arrays(self, arcs: list[dict[int, tuple[int, float]]], leave: Float[np.ndarray, "s 2"]) -> None:
        every = [(token, *arc) for several in arcs for token, arc in sorted(several.items())]
        tokens, target, gain = zip(*every, strict=True) if every else ((), (), ())
        self.first: Int[np.ndarray, " s+1"] = np.cumsum([0, *map(len, arcs)], dtype=np.int32)
        self.tokens: Int[np.ndarray, " a"] = np.array(tokens, np.int32)
        self.target: Int[np.ndarray, " a"] = np.array(target, np.int32)
        self.gain: Float[np.ndarray, " a"] = np.array(gain, np.float32)
        self.leave: Float[np.ndarray, "s 2"] = leave

    def _add(self, name: Tokens, weight: float) -> None:
        node = 0
        for length, token in enumerate(name, 1):
            if token not in self._children[node]:
                self._children[node][token] = len(self._lengths)
                self._lengths.append(length)
                self._newest.append(token)
                self._children.append({})
                self._weights.append(0.0)
                self._own.append(0.0)
            node = self._children[node][token]
            self._weights[node] = max(self._weights[node], weight)
        self._own[node] = max(self._own[node], weight)

    def _begins(self, before: int, token: int) -> bool:
        """Whether a word begins with a token after another one."""
        return not (self._ends[before] and self._starts[token])

    def _found(self, node: int) -> tuple[int, float]:
        """The state after the name that ends at a node, and its worth."""
        return 0, self._own[node] * self._lengths[node]

    def _leave(self, node: int, begins: bool) -> tuple[int, float]:
        """The state of what remains when a name is broken off before a token, which begins a word or not, and
        what that counts."""
        after, total = self._found(node) if begins and self._own[node] else self._rest[node]
        return after, total - self._worth[node]

    def _step(self, node: int, begins: bool, token: int) -> tuple[int, float]:
        """The state after a token, which begins a word or not, and what that counts."""
        total = 0.0
        while True:
            child = self._children[node].get(token)
            if child is not None and (node or begins):
                return child, total + self._worth[child] - self._worth[node]
            if not node:
                return 0, total
            node, gain = self._leave(node, begins)
            total += gain

    def _arcs_of(self, node: int, arcs: list[dict[int, tuple[int, float]]]) -> dict[int, tuple[int, float]]:
        """The arcs to the children of a state, and those of what remains if it is broken off."""
        several = {
            token: (child, self._worth[child] - self._worth[node])
            for token, child in self._children[node].items()
        }
        for begins in (False, True) if node else ():
            after, gain = self._leave(node, begins)
            for token, (target, further) in arcs[after].items() if after else ():
                if self._begins(self._newest[node], token) == begins:
                    several.setdefault(token, (target, gain + further))
        return several


# Biasing: names that a search expects (Zhao et al. 2019), found in each hypothesis while it grows.


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


class Bias(EqualByContent, Term):
    """A hook that counts names.

    Args:
      size: how many arcs there may be, of `SIZES`.
      starts: for each id, whether it begins with a letter, so that it continues the word before it.
      ends: for each id, whether it ends with a letter.
      silent: for each id, whether it is no text, such as the code of a language. Those change nothing.
    """

    rises = True

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
        arc, is_within = arc_of(*self._within(state), tokens, self.size)
        first, is_first = arc_of(*self._arcs(state, jnp.zeros_like(tokens)), tokens, self.size)
        is_first &= ~(state.is_letter & starts)
        node = jnp.where(is_within, target[arc], jnp.where(is_first, target[first], 0))
        net = jnp.where(is_within, state.net + log_p + gain[arc], jnp.where(is_first, log_p + gain[first], 0))
        return replace(
            state,
            node=jnp.where(silent, state.node, node),
            is_letter=jnp.where(silent, state.is_letter, ends),
            net=jnp.where(silent, state.net, jnp.maximum(net, LEAST)),
        )

    def reach(self, state: BiasState) -> Float[Array, "b n"]:
        """What may at most be added to a beam: what its run has cost."""
        return -jnp.minimum(state.net, 0)

    def end(self, log_p: Float[Array, "b n"], state: BiasState) -> Float[Array, "b n"]:
        """Adds what <eos> changes in the worth of a beam."""
        return log_p + (self._left(state)[..., 1] + self.reach(state))

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
        first, last = (jnp.take_along_axis(table.first, node + shift, axis=1) + offset for shift in (0, 1))
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
