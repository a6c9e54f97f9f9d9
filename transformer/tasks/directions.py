"""Scores of several directions: each is scored alone, and their means decide."""

from typing import Any

from transformer.tasks.requests import languages_of
from transformer.tasks.task import Evaluation


def by_direction(evaluation: Evaluation) -> dict[str, Evaluation]:
    """The part of each direction, by a name such as "en to de", in the order of the records."""
    indices = dict[str, list[int]]()
    for index, record in enumerate(evaluation.records):
        name = " to ".join(language or "unknown" for language in languages_of(record))
        indices.setdefault(name, []).append(index)

    def some(values: Any, chosen: list[int]) -> list[Any]:
        return [values[index] for index in chosen] if values else []

    return {
        name: Evaluation(some(evaluation.records, chosen), some(evaluation.outputs, chosen), evaluation.means)
        for name, chosen in indices.items()
    }
