"""Sequence-level distillation (Kim and Rush 2016): a teacher's translations as a new corpus.

`python -m transformer distill RUN FOLDER` writes

    train.<source>, train.<target>   the sources RUN was trained on, and its translations of them (an empty
                                     line for a source that it cannot read whole); the names end with the
                                     languages, or source and target if these are unknown or one
    validation.*, test.*             unchanged
    distilled.json                   the checkpoint and the search options

If it is interrupted, the same command continues after the last complete line.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transformer.config.corpus import DataConfig
from transformer.config.decoding import DecodingConfig
from transformer.config.options import check_given, locations, text_data
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import (
    Json,
    MiB,
    append_flags,
    atomic_open,
    open_regular,
    parse_object,
    write_whole,
    writing,
)
from transformer.runtime.invocation import command

if TYPE_CHECKING:
    from transformer.data.store import Corpus
    from transformer.runs.run import Run
    from transformer.translator.translator import Translator

ABOUT = "distilled.json"
READ = 1024  # pairs read at a time
_LEFT = re.compile(r"\..+\.[0-9a-f]{12}")  # what a killed process left of a file (`files.beside`)


def distill(
    run_dir: Path, folder: Path, checkpoint: str, decoding: DecodingConfig, data: DataConfig | None = None
) -> None:
    """Writes the corpus; see the top of this file.

    Args:
      run_dir: run directory of the teacher.
      folder: for the new corpus.
      checkpoint: "best", "last", "average" or a step.
      decoding: search options.
      data: location of the teacher's training text. None: as in its run directory, which you must trust.

    Raises:
      UserError: the run or the checkpoint is missing, or the run has several directions or reads context; the
        folder is not empty, or holds another distillation; the corpus cannot be written; the training text
        is not the teacher's.
    """
    from transformer.data.sources.corpora import open_corpus
    from transformer.runs.run import Run
    from transformer.translator.translator import Translator

    run = Run(run_dir)
    for option, why in (
        ("directions", "translates in several directions, and a distillation is of one"),
        ("default-tag", "reads tags, and a distillation has none"),
        ("context", "reads context, and a distillation is of sentences alone"),
    ):
        if getattr(text_data(run.config), option.replace("-", "_")):
            raise UserError(f"{run_dir} {why}: train its teacher without --data.{option}")
    if data is not None:
        check_given(locations(data, "data."), locations(run.config.data, "data."), run_dir)
    step = checkpoint if checkpoint == "average" else run.checkpoints.find(checkpoint)
    translator = Translator.load(run.name, checkpoint)
    description = {
        "teacher": run.store.location,
        "checkpoint": step,
        "parameters": translator.fingerprint(),
        **dataclasses.asdict(decoding),
    }
    translator.settings(1, vars(decoding))
    corpus = open_corpus(data or text_data(run.config))
    run.check_corpus(corpus.folder.name)
    with _claimed(folder, json.loads(json.dumps(description, default=str))):
        _write(folder, run, translator, decoding, corpus)


def _write(
    folder: Path, run: "Run", translator: "Translator", decoding: DecodingConfig, corpus: "Corpus"
) -> None:
    """Writes what is missing of the corpus."""
    from transformer.data.sources.text_files import one_line
    from transformer.runtime.console import ProgressReporter

    watch = ProgressReporter()
    languages = suffixes(text_data(run.config))
    for split, pairs in corpus.splits.items():
        _write_side(folder / f"{split}.{languages[0]}", (pair[0] for pair in pairs))
        if split != "train":
            _write_side(folder / f"{split}.{languages[1]}", (pair[1] for pair in pairs))

    train = corpus.splits["train"]
    translations = folder / f"train.{languages[1]}"
    if not translations.exists():
        partial = translations.with_name(translations.name + ".partial")
        with writing(partial):
            done = min(_whole_lines(partial), len(train))
        if done:
            watch.message(f"{partial} has {counted(done, 'line')} already: continuing with the next")
        starts = range(done, len(train), READ)
        sources = (
            pair[0]
            for start in starts
            for pair in train.__getitems__(range(start, min(start + READ, len(train))))
        )
        outputs = translator.stream(sources, n_best=1, first_line=done + 1, **vars(decoding))
        # line-buffered, so that a killed process leaves complete lines
        with contextlib.ExitStack() as held:
            with writing(partial):
                file = held.enter_context(
                    open(partial, "a", 1, encoding="utf-8", newline="\n", opener=append_flags)
                )
            for best in watch.progress("translated", outputs, len(train) - done):
                text = "" if best[0].truncated else one_line(translator.as_trained(best[0]))
                with writing(partial):
                    file.write(text + "\n")
        os.replace(partial, translations)
    with open_regular(translations) as lines:
        is_blank = np.fromiter((line == b"\n" for line in lines), bool)
    if len(is_blank) != len(train):
        raise UserError(
            f"{translations} has {counted(len(is_blank), 'line')}, and the teacher's text {len(train):,}: it "
            "was changed; delete it, and the same command writes it again"
        )
    blank = np.flatnonzero(is_blank).tolist()
    cut = sum(translator.truncates(source) for source, _ in train.__getitems__(blank))
    empty = len(blank) - cut
    if cut:
        watch.message(
            f"{cut:,} of {len(train):,} sources are longer than the teacher reads: they have an empty "
            "translation, and training drops their pairs"
        )
    if empty:
        watch.message(
            f"{empty:,} of {len(train):,} translations are empty, and training drops their pairs. If they "
            "are many, the teacher has learned too little, or the beam is too wide"
        )
    watch.message(f"{counted(len(train), 'pair')} written to {folder}. Train a student with")
    files = [
        word
        for split in corpus.splits
        for side, language in zip(("source", "target"), languages, strict=True)
        for word in (f"--data.{split}-{side}", str(folder / f"{split}.{language}"))
    ]
    tokenizer = "--data.source-tokenizer", f"{run.name}/source.model"
    watch.message(f"  {command('train', 'PRESET', *files, *tokenizer)}", command=True)


def suffixes(data: DataConfig) -> tuple[str, str]:
    """What the names of the files of source and target end with: their languages, if both are known."""
    source, target = data.languages
    return (source, target) if source and target and source != target else ("source", "target")


@contextlib.contextmanager
def _claimed(folder: Path, description: Json) -> Iterator[None]:
    """Claims the folder for this distillation, or checks that it belongs to it already, and locks it."""
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / ABOUT).exists():
                if any(not _LEFT.fullmatch(path.name) for path in folder.iterdir()):
                    raise UserError(f"{folder} is not empty: choose another folder")
                write_whole(folder / ABOUT, json.dumps(description, indent=2) + "\n")
            file = held.enter_context(open_regular(folder / ABOUT, MiB))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if parse_object(file.read(MiB).decode()) != description:
                raise UserError(f"{folder} holds another distillation (see {ABOUT}): choose another folder")
            for path in folder.iterdir():
                if _LEFT.fullmatch(path.name):
                    path.unlink()
        except BlockingIOError as error:
            raise UserError(f"{folder}: another process is writing it") from error
        except ValueError as error:
            raise UserError(
                f"{folder / ABOUT} is damaged: choose another folder, or delete this one"
            ) from error
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror}") from error
        yield


def _write_side(path: Path, lines: Iterator[str]) -> None:
    from transformer.data.sources.text_files import one_line

    if not path.exists():
        with writing(path), atomic_open(path) as file:
            file.writelines(f"{one_line(line)}\n".encode() for line in lines)


def _whole_lines(path: Path) -> int:
    """Removes an incomplete last line from a file, and returns the number of lines."""
    count, size = 0, 0
    with open(path, "ab+", opener=append_flags) as file:
        file.seek(0)
        for line in file:
            if line.endswith(b"\n"):
                count, size = count + 1, size + len(line)
        file.truncate(size)
    return count
