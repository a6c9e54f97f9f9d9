"""Samples segmentations of many sentences at once: of a unigram model (Kudo 2018), or by BPE-dropout
(Provilkov et al. 2020). Pieces do not cross spaces, so the words of a sentence are independent, and what is
computed of a word serves all its occurrences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, UInt64

from transformer.data.sequences import Field, Sequences, concatenated, ends_of, spans
from transformer.data.tokenizers.lossless import SPACE
from transformer.runtime.errors import UserError

# Vocabularies of which the words of a sentence are segmented independently.


@dataclass(frozen=True)
class Subwords:
    """A vocabulary in which a space is only at the beginning of a piece, and each character is a piece."""

    kind: Literal["unigram", "bpe"]
    ids: Mapping[str, int]
    """The ids of the pieces of text."""
    scores: Sequence[float]
    """Scores of all ids: log-probabilities (unigram), or priorities of merges (bpe)."""

    @property
    def size(self) -> int:
        """The number of ids."""
        return len(self.scores)


# Random segmentations for training: sampling among candidates, and BPE-dropout.


def check_strength(strength: float, model_type: str) -> None:
    """Raises UserError if this is no alpha of a unigram model, or no dropout of a BPE model."""
    if not 0 <= strength < np.inf or (strength > 1 and model_type == "bpe"):
        raise UserError(f"--data.subword-sampling {strength}: at least 0; with bpe a probability, at most 1")


def choose_candidate(log_probabilities: Sequence[float], sharpness: float, rng: np.random.Generator) -> int:
    """Samples the index of a candidate in proportion to probability^sharpness.

    Kudo 2018, section 3.2, where the sharpness is alpha. Only differences of log-probabilities matter.
    """
    log_weights = sharpness * np.asarray(log_probabilities)
    weights = np.exp(log_weights - log_weights.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def merge_with_dropout(
    word: str, scores: Mapping[str, float], dropout: float, draws: Iterator[float]
) -> list[str]:
    """Merges the characters of a word into pieces, until all possible merges are dropped.

    Provilkov et al. 2020, algorithm 1: every step drops each possible merge with probability `dropout`, and
    applies the best of the others. `scores` has the possible pieces and their priority (the highest score,
    then the leftmost); `draws` are uniform on [0, 1).
    """
    symbols = list(word)
    while True:
        best_score, best_index = -np.inf, -1
        for index in range(len(symbols) - 1):
            score = scores.get(symbols[index] + symbols[index + 1])
            # A merge that would lose anyway needs no draw: whether it drops makes no difference.
            if score is not None and score > best_score and next(draws) >= dropout:
                best_score, best_index = score, index
        if best_index < 0:
            return symbols
        symbols[best_index : best_index + 2] = [symbols[best_index] + symbols[best_index + 1]]


def uniform_draws(rng: np.random.Generator) -> Iterator[float]:
    """Endless uniform numbers on [0, 1), drawn in blocks because single calls are slow."""
    while True:
        yield from rng.random(64).tolist()


# A function of two numbers as a sorted table, which is asked for many pairs at once.


class PairTable:
    """What a mapping gives for pairs of numbers.

    Args:
      values: of each pair, not negative.
      size: one more than the largest second number.
    """

    def __init__(self, values: Mapping[tuple[int, int], int], size: int) -> None:
        pairs = np.array([*values], np.int64).reshape(-1, 2)
        keys = pairs[:, 0] * size + pairs[:, 1]
        order = np.argsort(keys)
        # the last one is found for pairs behind all others
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._values = np.append(np.fromiter(values.values(), np.int32, len(values))[order], np.int32(-1))
        self._size = size

    def __call__(self, left: Int[np.ndarray, " n"], right: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The value of each pair; -1 if it has none."""
        keys = left.astype(np.int64) * self._size + right
        index = np.searchsorted(self._keys, keys)
        return np.where(self._keys[index] == keys, self._values[index], np.int32(-1))


# BPE-dropout (Provilkov et al. 2020, algorithm 1) of many words at once.


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
        merges = ends[:-1] + lefts - starts
        values = rows.values[old]
        after = merged[old]
        values[merges] = merged[lefts]
        after[merges] = -1
        for left in merges[lefts + 2 < rows.ends[owners + 1]], merges[lefts > starts] - 1:
            after[left] = self._merge(values[left], values[left + 1])
        return Sequences(values, ends), after


def _distinct(
    numbers: Int[np.ndarray, " n"], limit: int
) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " n"]]:
    """The different numbers below a limit, ascending, and the index of each number among them."""
    is_there = np.zeros(limit, bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[numbers]


# Samples segmentations of words from a unigram model (Kudo 2018, section 3.2), many words at once.


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
        ids = subwords.ids
        edges: dict[tuple[int, int], int] = {}
        whole: dict[int, int] = {}
        for piece, index in ids.items():
            node = ids[piece[0]]
            for character in piece[1:]:
                node = edges.setdefault((node, ids[character]), self._size + len(edges))
            whole[node] = index
        named = {(whole.get(left, left), right): whole.get(n, n) for (left, right), n in edges.items()}
        self._longer = PairTable(named, self._size)

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
        for index, (rows, pieces) in enumerate(steps):
            values[ends[rows] + index] = pieces
        return Sequences(values, ends)

    def _lattice(self, words: Sequences) -> _Lattice:
        count = len(words.values)
        left = np.repeat(words.ends[1:], np.diff(words.ends)) - np.arange(count)  # characters of each suffix
        order = np.argsort(left, kind="stable")
        suffix = np.empty(count + 1, np.int32)
        suffix[order] = np.arange(count)

        matches = self._matches(words.values, left)
        sizes = np.zeros(count, np.int64)  # how many pieces each suffix may begin with
        for positions, _, _ in matches:
            sizes[suffix[positions]] += 1
        starts = np.cumsum(sizes) - sizes
        free = starts.copy()
        total = int(sizes.sum())
        pieces, rests = np.empty(total, np.int32), np.empty(total, np.int32)
        for positions, nodes, length in matches:
            entries = free[suffix[positions]]
            free[suffix[positions]] += 1
            pieces[entries] = nodes
            rests[entries] = np.where(left[positions] == length, count, suffix[positions + length])

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
        positions: np.ndarray = np.arange(len(characters))
        nodes: np.ndarray = characters.astype(np.int32)
        while len(positions):
            whole = nodes < self._size
            matches.append((positions[whole], nodes[whole], length))
            continues = left[positions] > length
            positions, nodes = positions[continues], nodes[continues]
            nodes = self._longer(nodes, characters[positions + length])
            positions, nodes = positions[nodes >= 0], nodes[nodes >= 0]
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


class WordSampler:
    """Samples segmentations of sentences.

    Args:
      subwords: the vocabulary.
      eos: the id that closes a sentence.
      strength: alpha of a unigram model, or the dropout of BPE, as in `Tokenizer.sample`.

    Raises:
      UserError: an invalid strength.
    """

    def __init__(self, subwords: Subwords, eos: int, strength: float) -> None:
        check_strength(strength, subwords.kind)
        self._sample = (UnigramSampler if subwords.kind == "unigram" else DropoutSampler)(subwords, strength)
        # what is no text, such as <eos> and the bytes of rare characters, stays as it is
        characters = [[index] for index in range(subwords.size)]
        is_first = np.zeros(subwords.size, bool)
        is_first[eos] = True
        for piece, index in subwords.ids.items():
            characters[index] = [subwords.ids[character] for character in piece]
            is_first[index] = piece.startswith(SPACE)
        self._characters = Sequences.of(characters, Field())
        self._is_first = is_first

    def __call__(self, sentences: Sequences, rng: np.random.Generator) -> Sequences:
        """Sampled segmentations of sentences, in ids of the same type.

        Args:
          sentences: the ids that `encode` gives, closed by <eos>.
          rng: what all randomness comes from.
        """
        ids = sentences.values
        is_first = self._is_first[ids]
        is_first[sentences.ends[:-1]] = True
        words = Sequences(ids, np.append(np.flatnonzero(is_first), len(ids)))
        examples, numbers = self._distinct(words)
        sampled = self._sample(self._spelled(words, examples), numbers, rng)
        before = ends_of(is_first)  # words before each id
        return Sequences(sampled.values.astype(ids.dtype), sampled.ends[before[sentences.ends]])

    def _spelled(self, words: Sequences, chosen: Int[np.ndarray, " n"]) -> Sequences:
        """The characters of some words."""
        some = words.take(chosen)
        characters = self._characters.take(some.values)
        return Sequences(characters.values, characters.ends[some.ends])

    def _distinct(self, words: Sequences) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " words"]]:
        """One occurrence of each different word, and which of them each word is.

        A word gets a number by its first id, then one by that number and its second id, and so on.
        """
        starts = words.ends[:-1]
        sizes = np.diff(words.ends)
        numbers = words.values[starts].astype(np.int64)
        used = len(self._is_first)
        longer = np.flatnonzero(sizes > 1)
        length = 1
        while len(longer):
            pairs = numbers[longer] * len(self._is_first) + words.values[starts[longer] + length]
            distinct, inverse = np.unique(pairs, return_inverse=True)
            numbers[longer] = used + inverse
            used, length = used + len(distinct), length + 1
            longer = longer[sizes[longer] > length]
        _, examples, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        return examples, inverse
