"""The parts of an evaluation that are scored alone, such as directions."""

from collections.abc import Callable
from typing import Any

from transformer.data.corpus import Record
from transformer.tasks.requests import languages_of
from transformer.tasks.task import Evaluation


def by_name(evaluation: Evaluation, name_of: Callable[[Record], str]) -> dict[str, Evaluation]:
    """The records of each name with their outputs, in the order of the records."""
    indices = dict[str, list[int]]()
    for index, record in enumerate(evaluation.records):
        indices.setdefault(name_of(record), []).append(index)

    def some(values: Any, chosen: list[int]) -> list[Any]:
        return [values[index] for index in chosen] if values else []

    return {
        name: Evaluation(some(evaluation.records, chosen), some(evaluation.outputs, chosen), evaluation.means)
        for name, chosen in indices.items()
    }


def direction_of(record: Record) -> str:
    """The direction of a record, such as "en to de"."""
    return " to ".join(language or "unknown" for language in languages_of(record))
