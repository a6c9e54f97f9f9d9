"""Text in one language: built-in, text files, and TFDS datasets. A record is a document of running text, or a
line."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer.config.corpus import SPLITS
from transformer.config.records import StreamConfig, TextsConfig
from transformer.data import built_in
from transformer.data.sources.source import Source, all_but_last, files_of, read_files
from transformer.data.sources.text_files import one_line, plain, whole_text
from transformer.data.sources.tfds_sets import tfds_folder, tfds_texts
from transformer.data.store import DOCUMENTS, Chosen, Corpus, Progress, Records, silent
from transformer.runtime.errors import UserError
from transformer.runtime.files import failing, open_regular
from transformer.runtime.text import has_text

PARAGRAPH = 8  # sentences of a built-in document
HELD_OUT_NOTE = "no validation text was given: the last tenth of the training text is held out"


def open_texts(data: TextsConfig, progress: Progress = silent) -> Corpus:
    """The text of the config, prepared on first use.

    Args:
      data: which text.
      progress: shows the progress.

    Raises:
      UserError: a file is missing, empty or not UTF-8; the dataset is unknown, or cannot be downloaded.
    """
    if files_of(data):
        return _files(data).open(data.cache_dir, progress)
    if data.dataset == "built-in":
        return _built_in(data).open(data.cache_dir, progress)
    of_splits, identity = tfds_texts(data, SPLITS)
    splits = dict[str, Records](of_splits)
    folder = tfds_folder(data, "texts", identity, splits, lambda text: bool(text) and not has_text(text))
    if "validation" in splits:
        return Corpus(data.dataset, splits, folder)
    train = splits["train"]
    refusal = f"{data.dataset} has one document, of which nothing can be held out for validation"
    size = all_but_last(len(train), refusal)
    splits |= {"train": Chosen(train, range(size)), "validation": Chosen(train, range(size, len(train)))}
    return Corpus(data.dataset, splits, folder, HELD_OUT_NOTE)


def _built_in(data: TextsConfig) -> Source:
    held_out = data.built_in_size // 10
    sizes = {"train": data.built_in_size, "validation": held_out, "test": held_out}
    name, paragraph = ("text", PARAGRAPH) if isinstance(data, StreamConfig) else ("sentences", 1)

    def read(split: str) -> Iterator[str]:
        pairs = itertools.islice(built_in.pairs(seed=0, split=split), sizes[split])
        while some := list(itertools.islice(pairs, paragraph)):
            yield "\n".join(english for english, _ in some)

    prefix = f"built-in-{name}-v{built_in.VERSION}"
    return Source(f"built-in English {name}", DOCUMENTS, prefix, (sizes,), read)


def check_texts(data: TextsConfig) -> None:
    """Raises UserError if text files are missing, or there is no training text among them."""

    def check(path: Path) -> None:
        with _opened(path):
            pass

    read_files(data, "text", check)


def _files(data: TextsConfig) -> Source:
    check_texts(data)
    texts = read_files(data, "text", _text)
    notes = []
    if "validation" not in texts:
        notes.append(HELD_OUT_NOTE)
        parts = texts["train"] if isinstance(data, StreamConfig) else _lines(texts["train"])
        refusal = f"{data.train}: nothing of so short a text can be held out: give --data.validation"
        rest = all_but_last(len(parts), refusal)
        texts |= {"train": "".join(parts[:rest]), "validation": "".join(parts[rest:])}
    if isinstance(data, StreamConfig):
        documents = {split: _documents(text, data.separator) for split, text in texts.items()}
        if data.separator is not None and not any(
            data.separator in text.splitlines() for text in texts.values()
        ):
            raise UserError(
                f"--data.separator {data.separator!r}: no line of {data.train} is that; leave it out"
            )
    else:
        documents = {split: list(map(one_line, _lines(text))) for split, text in texts.items()}
    for split, several in documents.items():
        if not several:
            raise UserError(f"{getattr(data, split) or data.train}: there is no {split} text in it")
    digest = hashlib.blake2b(repr(sorted(documents.items())).encode()).hexdigest()
    return Source(str(data.train), DOCUMENTS, "texts", (digest,), documents.__getitem__, documents, notes)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with failing(f"cannot read {path}"), open_regular(plain(path)) as file:
        yield file


def _text(path: Path) -> str:
    """The text of a file.

    Raises:
      UserError: it cannot be read, is empty, or is not UTF-8.
    """
    with _opened(path) as file:
        content: bytes = file.read()
    text = whole_text(content, str(path))
    if not has_text(text):
        raise UserError(f"{path} is empty: there is no text in it")
    return text.replace("\r\n", "\n")


def _lines(text: str) -> list[str]:
    """The lines with text, each with its line break."""
    return [f"{line}\n" for line in text.split("\n") if has_text(line)]


def _documents(text: str, separator: str | None) -> list[str]:
    """The documents between lines that are the separator; empty ones are left out."""
    if separator is None:
        return [text]
    parts, lines = [[]], text.splitlines(keepends=True)  # type: list[list[str]], list[str]
    for line in lines:
        if line.rstrip("\n") == separator:
            parts.append([])
        else:
            parts[-1].append(line)
    return [document for part in parts if has_text(document := "".join(part))]
