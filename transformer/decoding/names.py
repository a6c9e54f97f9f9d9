"""The names in a sequence of tokens, as an automaton that reads one token after another.

Names are found from left to right, the longest one wherever a word begins. A name is whole if a
word ends with it, and no token belongs to two of them. Each token of a name is worth its weight. A beginning
of a name is worth as much until another token follows: then it is worth what the names in it are. So what
has been counted of a sequence, when it ends, is the worth of its names alone.

The states are the nodes of the trie of the names. Where a name is broken off, the names within what was read
of it are found, and the rest may be the beginning of another one (as failure arcs do, Aho and Corasick 1975).
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

Tokens = tuple[int, ...]


class NameAutomaton:
    """The automaton of names, as arrays. State 0 is outside all names.

    Args:
      names: the tokens of each, and the weight of a token.
      starts: for each id, whether it begins with a letter, so that it continues the word before it.
      ends: for each id, whether it ends with a letter, so that the next token may continue its word.
      most: the arcs that it may have.

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
        most: int = 2**31 - 1,
    ) -> None:
        self._starts, self._ends = starts.tolist(), ends.tolist()
        self._lengths, self._newest = [0], [-1]
        """The number of tokens that lead to a node, and the last of them."""
        self._children: list[dict[int, int]] = [{}]
        self._weights, self._own = [0.0], [0.0]
        for name, weight in names.items():
            self._add(name, weight)
            if len(self._lengths) > most + 1:
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
            most -= len(arcs[node])
            if most < 0:
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
