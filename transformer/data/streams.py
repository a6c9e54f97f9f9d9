"""Running text in parallel: each row of a batch reads a part of it, and continues where it was."""

import functools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from transformer.data.plans import Plan, Rows
from transformer.data.sequences import Arrays, Field, Fields, Sequences, side_lengths, spans

DOCUMENTS: Fields = {
    "ids": Field("uint32"),  # with <eos> at the end; none of an empty document
    "characters": Field(padded=False),  # of the text, and one for its end
    "words": Field(padded=False),  # likewise
}
"""The arrays of a document."""
SEGMENT = ("source", "target", "characters", "words")
"""The arrays of a batch."""


class Stream:
    """Documents one after the other.

    Args:
      documents: with the fields `DOCUMENTS`. Those without ids are dropped.
      bos: the id before the first token of each.
      order: of the documents. None: as they are.
    """

    def __init__(
        self, documents: Arrays, bos: int, order: Int[np.ndarray, " documents"] | None = None
    ) -> None:
        ids, characters, words = (documents[name] for name in DOCUMENTS)
        assert isinstance(ids, Sequences)
        assert isinstance(characters, np.ndarray)
        assert isinstance(words, np.ndarray)
        self._ids, self._characters, self._words, self._bos = ids, characters, words, bos
        order = np.arange(len(ids)) if order is None else order
        sizes = ids.sizes(order)
        self._order, self._sizes = order[sizes > 0], sizes[sizes > 0]
        self._ends = np.cumsum(self._sizes)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(
        self, starts: Int[np.ndarray, " rows"], stops: Int[np.ndarray, " rows"], begins: bool
    ) -> dict[str, Sequences]:
        """The tokens [start, stop) of each row as `target`; `source`, the tokens before them, <bos> if a
        document begins; the `characters` and `words` of each, on average over its document.

        Args:
          starts: the first token of each row, counted from the beginning of the stream.
          stops: after its last one.
          begins: whether rows start over, so that <bos> stands before their first token.
        """
        sizes = stops - starts
        ends = np.concatenate([[0], np.cumsum(sizes)])
        tokens = spans(starts, sizes)
        number = np.searchsorted(self._ends, tokens, side="right")
        document, size = self._order[number], self._sizes[number]
        offset = tokens - (self._ends[number] - size)
        index = self._ids.ends[document] + offset
        source = np.where(offset == 0, self._bos, self._ids.values[index - 1])
        if begins:
            source[ends[:-1][sizes > 0]] = self._bos
        characters, words = (counts[document] / size for counts in (self._characters, self._words))
        arrays = (source, self._ids.values[index], characters, words)
        return {name: Sequences(values, ends) for name, values in zip(SEGMENT, arrays, strict=True)}


class StreamPlan(Plan):
    """Each row of a batch reads its own part of a stream, a segment a step. Every epoch shuffles the
    documents and begins a little later in the first segment, so that segments have other borders.

    Args:
      documents: with the fields `DOCUMENTS`.
      bos: the id before each.
      rows: number of rows.
      segment: tokens of a row in a batch.
      seed: of the order.
    """

    padding = 0.0

    def __init__(self, documents: Arrays, bos: int, rows: int, segment: int, seed: int) -> None:
        self._rows, self._segment, self._seed = rows, segment, seed
        lengths = side_lengths(documents)[:, 0]
        self._part = int(lengths.sum()) // rows
        whole = self._part // segment
        self.dropped = int((lengths == 0).sum())
        self.steps_per_epoch = whole - 1 if self._part % segment == 0 and whole > 1 else whole

        def epoch(number: int) -> tuple[Stream, int]:
            random = np.random.default_rng((seed, number))
            slack = self._part - self.steps_per_epoch * segment
            order = random.permutation(len(lengths))
            return Stream(documents, bos, order), int(random.integers(slack + 1))

        self._epoch = functools.lru_cache(maxsize=2)(epoch)

    def __call__(self, step: int) -> Rows:
        epoch, index = divmod(step, self.steps_per_epoch)
        stream, offset = self._epoch(epoch)
        starts = np.arange(self._rows) * self._part + offset + index * self._segment
        examples = stream.read(starts, starts + self._segment, begins=index == 0)
        every = np.arange(self._rows)
        lengths = (self._segment,) * len(SEGMENT)
        return Rows(every, np.ones_like(every), lengths, self._rows, (examples, every))


def whole_stream(stream: Stream, rows: int, segment: int) -> Iterator[dict[str, Sequences]]:
    """The segments of all rows, step by step, with every token once: for evaluation. The last ones are
    shorter, or empty."""
    part = math.ceil(len(stream) / rows)
    row_starts = np.arange(rows) * part
    for first in range(0, part, segment):
        starts = np.minimum(row_starts + first, len(stream))
        stops = np.minimum(row_starts + min(first + segment, part), len(stream))
        yield stream.read(starts, stops, begins=first == 0)
