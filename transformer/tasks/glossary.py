"""Glossaries: the terms that a translation must have, found in its source."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from transformer.data.sources.corpora import read_lines
from transformer.errors import UserError
from transformer.files import shown
from transformer.text import has_text


class Glossary:
    """Terms by what they translate, and what is copied as it is.

    An entry is found where it stands as whole words, the longest first. One without capitals is found in any
    case; one with capitals only as it is written.

    Args:
      entries: the translation of each term.
      keep: a regular expression. What it matches in a source must occur in its translation, such as
        "https?://[^ ]+".

    Raises:
      UserError: the expression is invalid.
    """

    def __init__(self, entries: Mapping[str, str], keep: str = "") -> None:
        for term, target in dict(entries).items():
            if not all(isinstance(text, str) and has_text(text) for text in (term, target)):
                raise UserError(f"the glossary entry {term!r}: {target!r} must be a term and its translation")
        self.entries = {_words(term): target for term, target in entries.items()}
        self._any_case = {
            tuple(map(str.casefold, words)): target
            for words, target in self.entries.items()
            if all(word == word.lower() for word in words)
        }
        self._longest = max(map(len, self.entries), default=0)
        try:
            self._keep = re.compile(keep or "(?!)")
        except re.error as error:
            raise UserError(f"the regular expression {keep!r} is invalid: {error}") from error

    @classmethod
    def read(cls, path: Path | str, keep: str = "") -> "Glossary":
        """From a file with a term, a tab and its translation on each line. Empty lines are skipped.

        Raises:
          UserError: the file is missing, or a line is not like that.
        """
        entries: dict[str, str] = {}
        for number, line in enumerate(read_lines(Path(path)), start=1):
            if not has_text(line):
                continue
            where = f"{shown(path)}, line {number}"
            columns = [column.strip() for column in line.split("\t")]
            if len(columns) != 2 or not all(map(has_text, columns)):
                raise UserError(f"{where}: must be a term, a tab and its translation")
            if entries.setdefault(columns[0], columns[1]) != columns[1]:
                raise UserError(f"{where}: {columns[0]!r} has another translation above")
        return cls(entries, keep)

    def terms(self, source: str) -> tuple[str, ...]:
        """What the translation of a sentence must have; twice what stands there twice. One that is a part of
        another is there once more, since an occurrence in a translation counts for both."""
        found, end = [], 0
        for match in self._keep.finditer(source):
            found += [*self._found(source[end : match.start()]), match[0].strip()]
            end = match.end()
        found = list(filter(has_text, [*found, *self._found(source[end:])]))
        parts = [text for text in dict.fromkeys(found) for other in found for _ in range(_times(text, other))]
        return (*found, *parts)

    def _found(self, text: str) -> Iterator[str]:
        """The translations of the entries in a text."""
        words, start = _words(text), 0
        while start < len(words):
            for size in range(min(self._longest, len(words) - start), 0, -1):
                written = words[start : start + size]
                target = self.entries.get(written) or self._any_case.get(tuple(map(str.casefold, written)))
                if target:
                    yield target
                    break
            else:
                size = 1
            start += size


def _times(text: str, other: str) -> int:
    """How often the words of a text are in another text."""
    words, around = _words(text), _words(other)
    starts = range(len(around) - len(words) + 1) if words != around else ()
    return sum(around[start : start + len(words)] == words for start in starts)


def _words(text: str) -> tuple[str, ...]:
    """Words and signs."""
    return tuple(re.findall(r"\w+|[^\w\s]", text))
