"""Samples segmentations of words from a unigram model (Kudo 2018, section 3.2), many words at once.

All segmentations X of a word are candidates, in proportion to P(X)^alpha. They are the paths through a
lattice, whose states are the suffixes of the words: a piece at the beginning of a suffix leads to a shorter
one. A sum from the end of each word gives the weight of all segmentations of each suffix, so the first piece
can be drawn with its exact probability, then the next one, and so on.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt64

from transformer.data.features.pair_table import PairTable
from transformer.data.features.subwords import Subwords
from transformer.data.sequences import Sequences, ends_of


@dataclass(frozen=True)
class _Lattice:
    """The suffixes of all words, the shortest first, each with the pieces that it may begin with."""

    words: Int[np.ndarray, " words"]
    """The suffix that is the whole word."""
    bounds: UInt64[np.ndarray, " entries"]
    """Of each piece its suffix in the upper 32 bits, and below where its share of the draws starts."""
    pieces: Int[np.ndarray, " entries"]
    rests: Int[np.ndarray, " entries"]
    """The suffix behind the piece; the number of suffixes if nothing is left."""


class UnigramSampler:
    """Samples words of a unigram model.

    Args:
      subwords: the vocabulary.
      alpha: exponent of the probabilities.
    """

    def __init__(self, subwords: Subwords, alpha: float) -> None:
        self._size = subwords.size
        self._log_weights = alpha * np.asarray(subwords.scores)
        # a trie: prefixes of pieces, of which those that are pieces have their ids
        number: dict[str, int] = dict(subwords.ids)
        edges: dict[tuple[int, int], int] = {}
        for piece in subwords.ids:
            for end in range(2, len(piece) + 1):
                whole = number.setdefault(piece[:end], self._size + len(edges))
                edges[number[piece[: end - 1]], subwords.ids[piece[end - 1]]] = whole
        self._longer = PairTable(edges, self._size)

    def __call__(
        self, words: Sequences, chosen: Int[np.ndarray, " n"], rng: np.random.Generator
    ) -> Sequences:
        """A segmentation of each chosen word, drawn independently.

        Args:
          words: different words, as the ids of their characters.
          chosen: words, any number of times.
          rng: what all randomness comes from.
        """
        lattice = self._lattice(words)
        active = np.argsort(chosen, kind="stable")  # neighbours in the order of the table are found faster
        suffixes = lattice.words[chosen[active]]
        steps = []
        sizes = np.zeros(len(chosen), np.int64)
        while len(active):
            draws = rng.integers(2**32, size=len(active), dtype=np.uint32)
            keys = (suffixes.astype(np.uint64) << np.uint64(32)) | draws
            entries = np.searchsorted(lattice.bounds, keys, side="right") - 1
            steps.append((active, lattice.pieces[entries]))
            sizes[active] += 1
            suffixes = lattice.rests[entries]
            unfinished = suffixes < len(words.values)
            active, suffixes = active[unfinished], suffixes[unfinished]
        ends = ends_of(sizes)
        values = np.empty(ends[-1], np.int32)
        for index, (at, pieces) in enumerate(steps):
            values[ends[at] + index] = pieces
        return Sequences(values, ends)

    def _lattice(self, words: Sequences) -> _Lattice:
        count = len(words.values)
        left = np.repeat(words.ends[1:], np.diff(words.ends)) - np.arange(count)  # characters of each suffix
        order = np.argsort(left, kind="stable")
        suffix = np.empty(count + 1, np.int32)
        suffix[order] = np.arange(count)

        matches = self._matches(words.values, left)
        sizes = np.zeros(count, np.int64)  # how many pieces each suffix may begin with
        for at, _, _ in matches:
            sizes[suffix[at]] += 1
        starts = np.cumsum(sizes) - sizes
        free = starts.copy()
        total = int(sizes.sum())
        pieces, rests = np.empty(total, np.int32), np.empty(total, np.int32)
        for at, nodes, length in matches:
            entries = free[suffix[at]]
            free[suffix[at]] += 1
            pieces[entries] = nodes
            rests[entries] = np.where(left[at] == length, count, suffix[at + length])

        shares = self._shares(left[order], starts, sizes, pieces, rests)
        before = np.cumsum(shares) - shares
        before -= np.repeat(before[starts], sizes)
        low = np.clip(before * 2.0**32, 0, 2**32 - 1).astype(np.uint64)
        owners = np.repeat(np.arange(count, dtype=np.uint64), sizes)
        return _Lattice(suffix[words.ends[:-1]], (owners << np.uint64(32)) | low, pieces, rests)

    def _matches(
        self, characters: Int[np.ndarray, " n"], left: Int[np.ndarray, " n"]
    ) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """The pieces of each length: where they are, their ids, and the length."""
        matches = []
        length = 1
        at: np.ndarray = np.arange(len(characters))
        nodes: np.ndarray = characters.astype(np.int32)
        while len(at):
            whole = nodes < self._size
            matches.append((at[whole], nodes[whole], length))
            continues = left[at] > length
            at, nodes = at[continues], nodes[continues]
            nodes = self._longer(nodes, characters[at + length])
            at, nodes = at[nodes >= 0], nodes[nodes >= 0]
            length += 1
        return matches

    def _shares(
        self,
        left: Int[np.ndarray, " suffixes"],
        starts: Int[np.ndarray, " suffixes"],
        sizes: Int[np.ndarray, " suffixes"],
        pieces: Int[np.ndarray, " entries"],
        rests: Int[np.ndarray, " entries"],
    ) -> Float[np.ndarray, " entries"]:
        """The probability of each piece in its suffix."""
        log_weights = self._log_weights[pieces]
        log_sums = np.zeros(len(left) + 1)  # over the segmentations of each suffix; 1 of the empty one
        ends = np.append(starts, len(pieces))
        for first, last in zip(*_runs(left), strict=True):  # suffixes of one length
            entries = slice(ends[first], ends[last])
            suffixes = slice(first, last)
            weights = log_weights[entries] + log_sums[rests[entries]]
            peaks = np.maximum.reduceat(weights, starts[suffixes] - ends[first])
            scaled = np.exp(weights - np.repeat(peaks, sizes[suffixes]))
            log_sums[suffixes] = peaks + np.log(np.add.reduceat(scaled, starts[suffixes] - ends[first]))
            log_weights[entries] = weights - np.repeat(log_sums[suffixes], sizes[suffixes])
        return np.exp(log_weights)


def _runs(ascending: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " runs"], Int[np.ndarray, " runs"]]:
    """Where each run of equal numbers begins and ends."""
    borders = np.flatnonzero(np.diff(ascending, prepend=-1, append=-1))
    return borders[:-1], borders[1:]
