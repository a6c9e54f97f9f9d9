"""Checks of a system and its corpus before training, so that a mistake in a task is named at once."""

from collections.abc import Sequence

import numpy as np

from transformer.config import Config
from transformer.data.corpus import Corpus, Record
from transformer.data.sequences import sides
from transformer.runtime.errors import UserError, counted
from transformer.systems.system import System
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.task import Task

FEW = 100  # records of each split that are checked


def check_task(config: Config, system: System, task: Task, corpus: Corpus) -> None:
    """Checks what a task declares against its first examples.

    Raises:
      UserError: a split is missing or empty; the examples are not as declared; there is no score, or no
        search though the task decodes.
    """
    _check_fields(task)
    for split in ("train", "validation"):
        if split not in corpus.splits or not len(corpus.splits[split]):
            raise UserError(f"corpus {corpus.name}: its {split} split is missing or empty")
    if next(iter(task.measures()), None) != task.criterion:
        raise UserError(f"{_name(task)}.measures() must begin with its criterion, {task.criterion.name}")
    if task.decodes and not system.search:
        raise UserError(
            f"system {config.system} does not decode: give it a search, or set {_name(task)}.decodes = False"
        )
    check_filled(task, corpus)
    for split, records in corpus.splits.items():
        few = records.__getitems__(range(min(FEW, len(records))))
        check_examples(task, few, split)
        if config.model.output_size and not system.copies:
            _check_ids(task, few, split, config.model.output_size)


def _check_fields(task: Task) -> None:
    """Raises UserError if the arrays of an example, or those that decoding has, are not declared."""
    name, fields = _name(task), getattr(task, "fields", None)
    if not fields:
        raise UserError(f"{name} has no fields: its __init__ must set self.fields, the arrays of an example")
    if isinstance(task, DecodingTask):
        inputs = getattr(task, "inputs", None)
        if not isinstance(inputs, tuple) or not inputs or not set(inputs) <= set(fields):
            raise UserError(
                f"{name}.inputs must be a tuple of names of its fields ({', '.join(fields)}), not {inputs!r}"
            )


def check_filled(task: Task, corpus: Corpus) -> None:
    """Raises UserError if all records of the validation or test split lack something, such as their
    references: no score would mean anything, nor the choice of the best checkpoint."""
    for split in corpus.splits:
        if split != "train":
            _check_filled(task, corpus, split)


def _check_filled(task: Task, corpus: Corpus, split: str) -> None:
    records = corpus.splits[split]
    seen = dict[str, bool]()
    for start in range(0, len(records), FEW):
        for record in records.__getitems__(range(start, min(start + FEW, len(records)))):
            seen |= {part: seen.get(part, False) or filled for part, filled in task.filled(record).items()}
        if all(seen.values()):
            return
    part = next(part for part, filled in seen.items() if not filled)
    raise UserError(
        f"corpus {corpus.name}: every {part} of its {split} split is empty, so nothing could be compared "
        f"with it: give another {split} set"
    )


def check_examples(task: Task, records: Sequence[Record], split: str) -> None:
    """Checks the arrays that a task makes of records.

    Raises:
      UserError: they are not as its fields declare, or longer than the last bucket.
    """
    where = f"{_name(task)}.examples, {split} split"
    longest = task.batching().buckets[-1]
    examples = task.examples(records, truncate=True)
    if len(examples) != len(records):
        raise UserError(f"{where}: {counted(len(examples), 'example')} of {counted(len(records), 'record')}")
    for example in examples:
        if wrong := sorted(example.keys() ^ task.fields.keys()):
            raise UserError(f"{where}: {wrong[0]} is not in both the fields and the example")
        for name, field in task.fields.items():
            shape = np.shape(example[name])
            if shape[int(field.padded) :] != field.shape and not (field.padded and shape[:1] == (0,)):
                expected = (
                    f"[length, {', '.join(map(str, field.shape))}]" if field.padded else f"{field.shape}"
                )
                raise UserError(f"{where}: {name} has the shape {shape}, not {expected}")
        for name, most in zip(sides(task.fields), longest, strict=True):
            if len(example[name]) > most:
                raise UserError(
                    f"{where}: {name} has {len(example[name])} elements, more than the longest bucket, "
                    f"{most}: shorten it if `truncate` is given"
                )


def _check_ids(task: Task, records: Sequence[Record], split: str, size: int) -> None:
    """Raises UserError if a target has ids that the model cannot predict."""
    field = task.fields.get("target")
    if field is None or not np.issubdtype(field.dtype, np.integer):
        return
    ids = {int(i) for example in task.examples(records, truncate=True) for i in np.ravel(example["target"])}
    if wrong := sorted(i for i in ids if not 0 <= i < size):
        raise UserError(
            f"{_name(task)}.examples, {split} split: target has the id {wrong[-1]}, and the vocabulary those "
            f"from 0 to {size - 1:,} (--model.vocab-size)"
        )


def _name(task: Task) -> str:
    return type(task).__name__
