"""Exhibits of records, for the report of a run."""

from collections.abc import Iterator, Sequence
from typing import Any

from transformer.data.corpus import Record
from transformer.tasks.exhibit import ReportSample
from transformer.translator.attention import forced_attention
from transformer.translator.decoder import Decoder


def exhibits_of(decoder: Decoder[Any], records: Sequence[Record]) -> Iterator[ReportSample]:
    """The exhibits of records: their best outputs, and the attention given their references.

    Args:
      decoder: of a task that exhibits.
      records: what `Task.exhibited` chose.
    """
    task = decoder.task
    for record, best in zip(records, decoder.stream(records, n_best=1), strict=True):
        attention = None
        if task.shows_attention:
            (example,) = task.examples([record], truncate=True)
            attention = forced_attention(decoder, example)
        yield task.exhibit(record, best[0], attention)
