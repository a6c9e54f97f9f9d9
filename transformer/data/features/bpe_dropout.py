"""BPE-dropout (Provilkov et al. 2020, algorithm 1) of many words at once.

A step drops each possible merge with probability p, and applies the best of the others. So the best merge is
applied with probability 1 - p, the second best with p(1 - p), and so on: the number of dropped merges is
geometric, and if it is that of all, the word is done. All words step together. Occurrences of a word that
have come to the same pieces by the same steps share a row, so the work depends on the number of rows.
"""

import math

import numpy as np
from jaxtyping import Int

from transformer.data.features.pair_table import PairTable
from transformer.data.features.subwords import Subwords
from transformer.data.sequences import Sequences, concatenated, ends_of, spans


class DropoutSampler:
    """Samples words of a BPE model.

    Args:
      subwords: the vocabulary.
      dropout: the probability, from 0 to 1.
    """

    def __init__(self, subwords: Subwords, dropout: float) -> None:
        ids = subwords.ids
        merges = {
            (ids[piece[:middle]], ids[piece[middle:]]): index
            for piece, index in ids.items()
            for middle in range(1, len(piece))
            if piece[:middle] in ids and piece[middle:] in ids
        }
        self._merge = PairTable(merges, subwords.size)
        self._dropout = dropout
        # the highest score is the best; equal ones are equally good
        self._ranks = np.unique(-np.asarray(subwords.scores), return_inverse=True)[1]

    def __call__(
        self, words: Sequences, chosen: Int[np.ndarray, " n"], rng: np.random.Generator
    ) -> Sequences:
        """A segmentation of each chosen word, drawn independently.

        Args:
          words: different words, as the ids of their characters.
          chosen: words, any number of times.
          rng: what all randomness comes from.
        """
        rows = Sequences(words.values.astype(np.int32), words.ends)
        merged = self._merge(rows.values, np.append(rows.values[1:], 0))
        merged[rows.ends[1:] - 1] = -1  # the last piece of a row has no right neighbour
        active = np.arange(len(chosen))
        row = chosen
        done: list[Sequences] = []  # the different outcomes of each step
        outcome = np.empty(len(chosen), np.int64)
        num_outcomes = 0
        while len(active):
            lefts, counts = self._possible(rows, merged)
            dropped = self._draw(len(active), rng)
            is_done = dropped >= counts[row]
            ended, which = _distinct(row[is_done], len(rows))
            outcome[active[is_done]] = num_outcomes + which
            num_outcomes += len(ended)
            done.append(rows.take(ended))

            active, row, dropped = (x[~is_done] for x in (active, row, dropped))
            first = np.cumsum(counts) - counts
            applied, row = _distinct(first[row] + dropped.astype(np.int64), len(lefts))
            rows, merged = self._apply(rows, merged, lefts[applied])
        outcomes = concatenated([{"ids": pieces} for pieces in done])["ids"]
        return outcomes.take(outcome)

    def _draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """How many merges are dropped before the first that is not."""
        if self._dropout in (0, 1):
            return np.full(count, math.inf if self._dropout else 0.0)
        return np.floor(np.log1p(-rng.random(count)) / math.log(self._dropout))

    def _possible(
        self, rows: Sequences, merged: Int[np.ndarray, " pieces"]
    ) -> tuple[Int[np.ndarray, " merges"], Int[np.ndarray, " rows"]]:
        """The left piece of each possible merge, row by row, the best first; and how many each row has."""
        lefts = np.flatnonzero(merged >= 0)
        owners = np.repeat(np.arange(len(rows)), np.diff(rows.ends))[lefts]
        order = np.argsort(owners * len(self._ranks) + self._ranks[merged[lefts]], kind="stable")
        return lefts[order], np.bincount(owners, minlength=len(rows))

    def _apply(
        self, rows: Sequences, merged: Int[np.ndarray, " pieces"], lefts: Int[np.ndarray, " n"]
    ) -> tuple[Sequences, Int[np.ndarray, " new"]]:
        """New rows, each by one merge from an old one, and what their neighbours merge to.

        Args:
          rows: the old ones.
          merged: what each piece and the next of its row merge to; -1 if they do not.
          lefts: the left pieces of the merges.
        """
        owners = np.searchsorted(rows.ends, lefts, side="right") - 1
        starts = rows.ends[owners]
        sizes = rows.sizes(owners) - 1
        ends = ends_of(sizes)
        old = spans(starts, sizes)
        old += old > np.repeat(lefts, sizes)  # without the right piece
        at = ends[:-1] + lefts - starts
        values = rows.values[old]
        after = merged[old]
        values[at] = merged[lefts]
        after[at] = -1
        for left in at[lefts + 2 < rows.ends[owners + 1]], at[lefts > starts] - 1:
            after[left] = self._merge(values[left], values[left + 1])
        return Sequences(values, ends), after


def _distinct(
    numbers: Int[np.ndarray, " n"], limit: int
) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " n"]]:
    """The different numbers below a limit, ascending, and the index of each number among them."""
    is_there = np.zeros(limit, bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[numbers]
