"""Running text in parallel: each row of a batch reads a part of it, and continues where it was."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from transformer.data.plans import Example, Plan, Rows


@dataclass(frozen=True)
class Document:
    """The tokens of a document."""

    ids: Int[np.ndarray, " tokens"]
    """With <eos> at the end."""
    characters: int
    """Of its text, and one for its end."""
    words: int
    """Of its text, and one for its end."""


class Stream:
    """Documents one after the other.

    Args:
      lengths: the number of tokens of each; those without any are left out.
      document: gives the document of an index.
      bos: the id before the first token of each.
      order: of the documents. None: as they are.
    """

    def __init__(
        self,
        lengths: Int[np.ndarray, " documents"],
        document: Callable[[int], Document],
        bos: int,
        order: Int[np.ndarray, " documents"] | None = None,
    ) -> None:
        order = np.arange(len(lengths)) if order is None else order
        self._order, self._document, self._bos = order[lengths[order] > 0], document, bos
        self._ends = np.cumsum(lengths[self._order], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, stop: int, begins: bool) -> Example:
        """The tokens [start, stop) as `target`; `source`, the tokens before them, <bos> if a document begins;
        the `characters` and `words` of each, on average over its document.

        Args:
          start: first token of the stream.
          stop: after the last one.
          begins: whether the row begins anew, so that <bos> stands before its first token.
        """
        parts: list[tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Float[np.ndarray, "2 n"]]] = []
        place = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            first = int(self._ends[place - 1]) if place else 0
            found = self._document(int(self._order[place]))
            targets = found.ids[start - first : stop - first]
            sources = np.concatenate([[self._bos], found.ids[:-1]])[start - first : stop - first]
            sizes = np.array([[found.characters], [found.words]]) / len(found.ids)
            parts.append((sources, targets, np.repeat(sizes, len(targets), axis=1)))
            start, place = start + len(targets), place + 1
        if not parts:
            return {name: [] for name in FIELDS}
        source, target, sizes = (np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
        if begins:
            source[0] = self._bos
        return dict(zip(FIELDS, (source, target, *sizes), strict=True))


FIELDS = ("source", "target", "characters", "words")
"""The arrays of a batch."""


class StreamPlan(Plan):
    """Each row of a batch reads its own part of a stream, a segment a step. Every epoch shuffles the
    documents and begins a little later in the first segment, so that segments are cut elsewhere.

    Args:
      lengths: tokens of each document.
      document: gives the document of an index.
      bos: the id before each.
      rows: number of rows.
      segment: tokens of a row in a batch.
      seed: of the order.
    """

    padding = 0.0

    def __init__(
        self,
        lengths: Int[np.ndarray, " documents"],
        document: Callable[[int], Document],
        bos: int,
        rows: int,
        segment: int,
        seed: int,
    ) -> None:
        self._rows, self._segment, self._seed = rows, segment, seed
        self._part = int(lengths.sum()) // rows
        whole = self._part // segment
        self.dropped = int((lengths == 0).sum())
        self.steps_per_epoch = whole - 1 if self._part % segment == 0 and whole > 1 else whole

        def epoch(number: int) -> tuple[Stream, int]:
            random = np.random.default_rng((seed, number))
            slack = self._part - self.steps_per_epoch * segment
            order = random.permutation(len(lengths))
            return Stream(lengths, document, bos, order), int(random.integers(slack + 1))

        self._epoch = functools.lru_cache(maxsize=2)(epoch)

    def __call__(self, step: int) -> Rows:
        epoch, index = divmod(step, self.steps_per_epoch)
        stream, offset = self._epoch(epoch)
        starts = [row * self._part + offset + index * self._segment for row in range(self._rows)]
        examples = {
            row: stream.read(start, start + self._segment, begins=index == 0)
            for row, start in enumerate(starts)
        }
        return Rows([[row] for row in examples], (self._segment,) * len(FIELDS), self._rows, examples)


def whole_stream(stream: Stream, rows: int, segment: int) -> Iterator[list[Example]]:
    """The segments of all rows, step by step, with every token once: for evaluation. The last ones are
    shorter, or empty."""
    part = math.ceil(len(stream) / rows)
    for first in range(0, part, segment):
        starts = [min(row * part + first, len(stream)) for row in range(rows)]
        stops = [min(row * part + min(first + segment, part), len(stream)) for row in range(rows)]
        yield [stream.read(a, b, begins=first == 0) for a, b in zip(starts, stops, strict=True)]
