"""Tasks whose records are texts, by their names in `--data.task`, and what steers their outputs."""

import pkgutil
from typing import Any

TASKS = {
    "translation": "translation.Translation",
    "summaries": "translation.Summaries",
    "answers": "translation.Answers",
    "labels": "labels.Classification",
    "label-sets": "labels.LabelSets",
    "trees": "trees.Trees",
}
"""The class of each, in a module of this package, which is imported when it is needed."""


def text_task_of(name: str) -> Any:
    """The type of that task, a subclass of `TextToText`."""
    return pkgutil.resolve_name(f"transformer.tasks.texts.{TASKS[name]}")
