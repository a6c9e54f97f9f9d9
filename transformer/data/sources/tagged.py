"""Sentences whose words have labels: read from CoNLL files, or the built-in treebank."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.config.corpus import SPLITS
from transformer.config.records import TaggedConfig
from transformer.data.built_in import treebank
from transformer.data.sources.source import Source, all_but_last, files_of, read_files
from transformer.data.sources.text_files import bad_line, numbered_lines
from transformer.data.store import LINES, Corpus, Form, Progress, silent
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import brief
from transformer.runtime.text import has_text

# Reads sentences whose words have labels from CoNLL files.


UNIVERSAL = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
"""The columns of CoNLL-U."""
_PLUS = re.compile(r"#\s*global\.columns\s*=(.*)", re.IGNORECASE)  # names the columns of CoNLL-U Plus
_NUMBER = re.compile(r"\d+([-.]\d+)?")
_COMMENT = re.compile(r"\s*#(\s|$)")
_DOCUMENT = re.compile(r"\s*(-DOCSTART-(\s|$)|#begin document \(|#end document\s*$)")

Line = tuple[int, str]
"""The number of a line, and its text."""
Row = tuple[int, list[str]]
"""The number of a line, and its columns."""


class TaggedSentence(NamedTuple):
    """The words of a sentence, and the label of each; none if they are to be predicted."""

    words: tuple[str, ...]
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.words)


def read_conll(
    path: Path,
    word_column: int | None = None,
    label_column: int | None = None,
    notes: list[str] | None = None,
) -> list[TaggedSentence]:
    """The sentences of a file. One with a line that cannot be read is left out, if `bad_line` does not refuse
    it.

    Args:
      path: of a UTF-8 file.
      word_column: of the words, from 1. None: FORM of CoNLL-U and CoNLL-U Plus; of other files the second if
        the first numbers the words of each sentence, otherwise the first.
      label_column: of the labels, from 1. None: UPOS of CoNLL-U and CoNLL-U Plus; otherwise the last.
      notes: gets a sentence about each thing that the file leaves open.

    Raises:
      UserError: the file cannot be read, has no sentence, or not the columns that are asked for.
    """
    notes = [] if notes is None else notes
    groups = _groups(path)
    layout = _layout(path, groups)
    labels = label_column or layout.column("UPOS") or layout.width
    _check_column("label", labels, path, layout.width)
    groups = _without_comments(path, groups, layout, labels, notes)
    sentences = [rows for group in groups if (rows := _words_of(path, group, layout))]
    is_numbered = not layout.names and layout.width > 2 and _numbers_words(sentences)
    words = word_column or layout.column("FORM") or (2 if is_numbered else 1)
    _check_column("word", words, path, layout.width)
    if words == labels:
        raise UserError(
            f"{path}: column {words} cannot have both words and labels: see --data.word-column and "
            "--data.label-column"
        )
    if is_numbered and not word_column:
        notes.append(f"{path}: column 1 numbers the words, which are read from column 2 (--data.word-column)")
    tagged = [_tagged(path, rows, words, labels) for rows in sentences]
    sentences_read = [sentence for sentence in tagged if sentence]
    if sentences_read and all(label == "_" for some in sentences_read for label in some.labels):
        raise UserError(f"{path}: there are no labels in column {labels}; see --data.label-column")
    return sentences_read


class _Layout(NamedTuple):
    """The columns of a file."""

    names: tuple[str, ...]
    """Names of the columns of CoNLL-U and CoNLL-U Plus files; none of other files."""
    width: int
    """The number of columns."""
    by_blanks: bool
    """Whether any blanks separate them, beside tabs."""

    @property
    def is_plus(self) -> bool:
        """Whether the file names its columns."""
        return self.names not in ((), UNIVERSAL)

    def column(self, name: str) -> int | None:
        """The number of a column, from 1."""
        return self.names.index(name) + 1 if name in self.names else None

    def of(self, line: str) -> list[str]:
        """The columns of a line. With tabs, a column may have blanks."""
        if self.by_blanks:
            return line.split()
        return line.rstrip("\t").split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _groups(path: Path) -> list[list[Line]]:
    """The lines between empty lines and those that begin or end documents, without groups that have a line
    which cannot be read.

    Raises:
      UserError: there is no line with text.
    """
    groups = list[list[tuple[int, str | None]]]([[]])
    for number, line in numbered_lines(path):
        if line is None or (has_text(line) and not _DOCUMENT.match(line)):
            groups[-1].append((number, line))
        elif groups[-1]:
            groups.append([])
    if not groups[0]:
        raise UserError(f"{path} is empty: there is no sentence in it")
    readable = [[(number, line) for number, line in group if line is not None] for group in groups]
    return [
        lines for group, lines in zip(groups, readable, strict=True) if lines and len(lines) == len(group)
    ]


def _layout(path: Path, groups: Sequence[Sequence[Line]]) -> _Layout:
    """The columns: those that CoNLL-U Plus names, or those of the first line that is no comment.

    Raises:
      UserError: there is one column.
    """
    lines = [line for _, line in itertools.chain.from_iterable(groups)]
    if plus := _PLUS.match(lines[0]):
        names = tuple(plus[1].upper().split())
        return _Layout(names, len(names), by_blanks=False)
    first = next((line for line in lines if not line.lstrip().startswith("#")), lines[0])
    for by_blanks in (False, True):
        columns = _Layout((), 0, by_blanks).of(first)
        if len(columns) == len(UNIVERSAL) and _NUMBER.fullmatch(columns[0]):
            return _Layout(UNIVERSAL, len(UNIVERSAL), by_blanks)
    width = len(_Layout((), 0, by_blanks=False).of(first))
    if width < 2:
        raise UserError(f"{path}: a line needs a word and its label, separated by blanks or a tab")
    return _Layout((), width, by_blanks=False)


def _without_comments(
    path: Path, groups: list[list[Line]], layout: _Layout, labels: int, notes: list[str]
) -> list[list[Line]]:
    """The lines of words. Where words are numbered, all that begin with # are comments; elsewhere those with
    # alone, before the first word of a sentence.

    The word # may begin a sentence too, as in the shared task of 2000. So if some sentences do not begin with
    such a line, and all of these lines have a label that other words have, they are words.
    """
    if layout.names[:1] == UNIVERSAL[:1]:
        return [[line for line in group if not line[1].startswith("#")] for group in groups]
    parted = list[tuple[list[Line], list[Line]]]()
    for group in groups:
        size = sum(1 for _ in itertools.takewhile(lambda line: _COMMENT.match(line[1]), group))
        parted.append((group[:size], group[size:]))
    known = {
        columns[labels - 1]
        for _, words in parted
        for _, line in words
        if len(columns := layout.of(line)) == layout.width
    }
    comments = list(itertools.chain.from_iterable(comments for comments, _ in parted))
    like_words = [
        (number, line)
        for number, line in comments
        if len(columns := layout.of(line)) == layout.width and columns[labels - 1] in known
    ]
    if like_words:
        are_words = like_words == comments and not all(comments for comments, _ in parted)
        number, line = like_words[0]
        notes.append(
            f"{path}, line {number}: {brief(line)} could be a word or a comment; such lines "
            f"({len(like_words):,}) are read as {'words' if are_words else 'comments'}"
        )
        if are_words:
            return groups
    return [words for _, words in parted]


def _words_of(path: Path, group: Sequence[Line], layout: _Layout) -> list[Row]:
    """The columns of each word of a sentence; none if one of its lines cannot be read."""
    rows, is_readable = list[Row](), True
    ids = layout.column("ID")
    for number, line in group:
        columns = layout.of(line)
        if len(columns) != layout.width:
            others = f"{layout.width} {'are named' if layout.is_plus else 'in the lines before'}"
            bad_line(path, number, f"{counted(len(columns), 'column')}, and {others}")
            is_readable = False
        elif ids and not _NUMBER.fullmatch(columns[ids - 1]):
            what = "is no number of a word, such as 1, 1-2 or 1.1"
            bad_line(path, number, f"its ID {what}", f": {brief(columns[ids - 1])}")
            is_readable = False
        elif ids and columns[ids - 1].isdecimal() and columns[ids - 1] != str(len(rows) + 1):
            if is_readable:
                expected = f": {brief(columns[ids - 1])}, not {len(rows) + 1}"
                bad_line(path, number, "its ID does not count the words of the sentence", expected)
            is_readable = False
        elif not ids or columns[ids - 1].isdecimal():
            rows.append((number, columns))
    return rows if is_readable else []


def _numbers_words(sentences: Sequence[Sequence[Row]]) -> bool:
    """Whether the first column counts the words of each sentence, of which one has several words."""
    return any(len(rows) > 1 for rows in sentences) and all(
        columns[0] == str(position)
        for rows in sentences
        for position, (_, columns) in enumerate(rows, start=1)
    )


def _tagged(path: Path, rows: Sequence[Row], words: int, labels: int) -> TaggedSentence | None:
    """The sentence of rows; None if a word or a label is empty."""
    is_readable = True
    for number, columns in rows:
        if not (columns[words - 1] and columns[labels - 1]):
            bad_line(path, number, f"its {'label' if columns[words - 1] else 'word'} is empty")
            is_readable = False
    if not is_readable:
        return None
    return TaggedSentence(
        tuple(columns[words - 1] for _, columns in rows), tuple(columns[labels - 1] for _, columns in rows)
    )


def _check_column(option: str, column: int, path: Path, width: int) -> None:
    """Raises UserError if lines have no such column."""
    if column > width:
        raise UserError(
            f"--data.{option}-column {column}: the lines of {path} have {counted(width, 'column')}"
        )


HELD_OUT_NOTE = "no validation sentences were given: the last tenth of the training sentences is held out"
TAGGED = Form("tagged_sentences", {"words": LINES, "labels": LINES}, TaggedSentence)


def open_tagged(data: TaggedConfig, progress: Progress = silent) -> Corpus:
    """The sentences of the config, prepared on first use.

    Raises:
      UserError: a file is missing, empty or not as `read_conll` expects it.
    """
    source = _files(data) if files_of(data) else _built_in(data)
    return source.open(data.cache_dir, progress)


def read_tagged(data: TaggedConfig, notes: list[str] | None = None) -> dict[str, list[TaggedSentence]]:
    """The sentences of the files of each split. `notes` as of `read_conll`.

    Raises:
      UserError: a file is missing or not as `read_conll` expects it, or there are no training sentences among
        them.
    """

    def read(path: Path) -> list[TaggedSentence]:
        return read_conll(path, data.word_column, data.label_column, notes)

    sentences = read_files(data, "sentences", read)
    for split, some in sentences.items():
        if not some:
            raise UserError(f"{getattr(data, split)} is empty: there is no sentence in it")
    return sentences


def _files(data: TaggedConfig) -> Source:
    notes = list[str]()
    sentences = read_tagged(data, notes)
    if "validation" not in sentences:
        notes.append(HELD_OUT_NOTE)
        train = sentences["train"]
        refusal = f"{data.train} has one sentence, of which nothing can be held out: give --data.validation"
        rest = all_but_last(len(train), refusal)
        sentences |= {"train": train[:rest], "validation": train[rest:]}
    digest = hashlib.blake2b(repr(sorted(sentences.items())).encode()).hexdigest()
    return Source(str(data.train), TAGGED, "tagged", (digest,), sentences.__getitem__, sentences, notes)


def _built_in(data: TaggedConfig) -> Source:
    sizes = {"train": data.built_in_size, **dict.fromkeys(SPLITS[1:], max(1, data.built_in_size // 10))}

    def read(split: str) -> Iterator[TaggedSentence]:
        for record in itertools.islice(treebank.records(split), sizes[split]):
            yield TaggedSentence(record.words, record.tags)

    prefix = f"built-in-tagged-v{treebank.VERSION}"
    return Source("built-in English parts of speech", TAGGED, prefix, (sizes,), read)
