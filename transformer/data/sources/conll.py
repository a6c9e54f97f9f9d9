"""Reads sentences whose words have labels from CoNLL files.

A line has a word and its annotations, in columns separated by tabs or blanks; an empty line ends a sentence.
Files of CoNLL-U (https://universaldependencies.org/format.html), which have ten columns of which the first
numbers the words, also have comments, ranges of words such as 1-2, and empty nodes such as 1.1. All of these
are left out. Lines of -DOCSTART-, which begin documents in CoNLL-2003, are no sentences.
"""

import re
from pathlib import Path
from typing import NamedTuple

from transformer.data.sources.text_files import read_lines
from transformer.runtime.errors import UserError, counted
from transformer.runtime.text import has_text

UNIVERSAL = 10  # columns of CoNLL-U
UNIVERSAL_WORD, UNIVERSAL_LABEL = 2, 4
_NUMBER = re.compile(r"\d+([-.]\d+)?")
_DOCUMENT = "-DOCSTART-"


class TaggedSentence(NamedTuple):
    """The words of a sentence, and the label of each; none if they are to be predicted."""

    words: tuple[str, ...]
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.words)


def read_conll(
    path: Path, word_column: int | None = None, label_column: int | None = None
) -> list[TaggedSentence]:
    """The sentences of a file.

    Args:
      path: of a UTF-8 file.
      word_column: of the words, from 1. None: 1; in CoNLL-U files 2.
      label_column: of the labels, from 1. None: the last; in CoNLL-U files 4.

    Raises:
      UserError: the file cannot be read, has no sentence, or a line has another number of columns than the
        first, or not the columns that are asked for (the message names the line).
    """
    lines = [(number, _columns(line)) for number, line in enumerate(read_lines(path), start=1)]
    width, is_universal = _format(path, [columns for _, columns in lines])
    words = word_column or (UNIVERSAL_WORD if is_universal else 1)
    labels = label_column or (UNIVERSAL_LABEL if is_universal else width)
    for option, column in (("word", words), ("label", labels)):
        if column > width:
            raise UserError(
                f"--data.{option}-column {column}: the lines of {path} have {counted(width, 'column')}"
            )
    if words == labels:
        raise UserError(
            f"{path}: column {words} cannot have both words and labels: see --data.word-column and "
            "--data.label-column"
        )
    sentences, sentence = list[TaggedSentence](), list[tuple[str, str]]()
    for number, columns in [*lines, (0, [])]:
        if is_universal and columns[:1] and columns[0].startswith("#"):
            continue
        if columns and len(columns) != width:
            raise UserError(
                f"{path}, line {number}: {counted(len(columns), 'column')}, and {width} in the lines before"
            )
        if columns and columns[0] != _DOCUMENT:
            if not is_universal or columns[0].isdecimal():
                word, label = columns[words - 1], columns[labels - 1]
                if not (word and label):
                    raise UserError(f"{path}, line {number}: its {'label' if word else 'word'} is empty")
                sentence.append((word, label))
        elif sentence:
            sentences.append(TaggedSentence(*zip(*sentence, strict=True)))
            sentence = []
    if all(label == "_" for _, labels_of in sentences for label in labels_of):
        raise UserError(f"{path}: there are no labels in column {labels}; see --data.label-column")
    return sentences


def _columns(line: str) -> list[str]:
    """The columns of a line; none of an empty one. With tabs, a column may have blanks."""
    if not has_text(line):
        return []
    return line.rstrip("\t").split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _format(path: Path, lines: list[list[str]]) -> tuple[int, bool]:
    """The number of columns of a file, and whether it is CoNLL-U, which its first line tells that is no
    comment.

    Raises:
      UserError: there is no sentence, or the first line has one column.
    """
    filled = [columns for columns in lines if columns and columns[0] != _DOCUMENT]
    if not filled:
        raise UserError(f"{path} is empty: there is no sentence in it")
    first = next((columns for columns in filled if not columns[0].startswith("#")), filled[0])
    if len(first) == UNIVERSAL and _NUMBER.fullmatch(first[0]):
        return UNIVERSAL, True
    if len(filled[0]) < 2:
        raise UserError(f"{path}: a line needs a word and its label, separated by blanks or a tab")
    return len(filled[0]), False
