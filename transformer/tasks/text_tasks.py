"""The tasks of text, by their names in `--data.task`."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer.tasks.text_to_text import TextToText

TASKS = {
    "translation": "translation.Translation",
    "summaries": "summaries.Summaries",
    "answers": "answers.Answers",
    "labels": "labels.Classification",
    "label-sets": "label_sets.LabelSets",
    "trees": "trees.Trees",
}
"""The class of each, in a module of this package, which is imported when it is needed."""


def text_task_of(name: str) -> "type[TextToText]":
    """The task of that name."""
    module, _, kind = TASKS[name].partition(".")
    task: type[TextToText] = getattr(importlib.import_module(f"transformer.tasks.{module}"), kind)
    return task
