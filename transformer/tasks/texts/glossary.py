"""Glossaries: the terms that a translation must have, found in its source."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import regex

from transformer.config.ranges import shown
from transformer.data.sources.text_files import read_lines
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief, display_path
from transformer.runtime.text import has_text, without_formatting
from transformer.runtime.words import WORD_OR_SIGN

LONGEST = 100  # words and signs of a term, and of its translation
SECONDS = 1.0  # for the regular expression, in each line
Phrases = dict[Any, Any]
"""Phrases by their words, a dictionary for each. What belongs to one is under None after its last word."""


class Glossary:
    """Terms by what they translate, and what is copied as it is.

    An entry is found where it stands as whole words, the longest first. One without capitals is found in any
    case; one with capitals only as it is written.

    Args:
      entries: the translation of each term.
      keep: a regular expression. What it matches in a source must occur in its translation, such as
        "https?://[^ ]+". It has a second for each source.

    Raises:
      UserError: an entry is no term with its translation, or too long, or the expression is invalid.
    """

    def __init__(self, entries: Mapping[str, str], keep: str = "") -> None:
        if not isinstance(entries, Mapping):
            raise UserError(f"entries {shown(entries)}: must be a dictionary of terms and translations")
        self._exact: Phrases = {}
        self._any_case: Phrases = {}
        self.entries: dict[tuple[str, ...], str] = {}
        """The translation of each term, by its words."""
        for term, target in entries.items():
            texts = [without_formatting(text) for text in (term, target) if isinstance(text, str)]
            if not (len(texts) == 2 and all(map(has_text, texts)) and _words(texts[0])):
                entry = f"{shown(term)}: {shown(target)}"
                raise UserError(f"the glossary entry {entry} must be a term and its translation")
            for text in texts:
                if (size := len(_words(text))) > LONGEST:
                    raise UserError(
                        f"the glossary entry {brief(text)} has {size:,} words and signs, and may have "
                        f"{LONGEST}"
                    )
            words = _words(texts[0])
            translation = texts[1]
            self.entries[words] = translation
            _add(self._exact, words, translation)
            if all(word == word.lower() for word in words):
                _add(self._any_case, tuple(map(str.casefold, words)), translation)
        self._keep = _compiled(keep)

    @classmethod
    def read(cls, path: Path | str, keep: str = "") -> "Glossary":
        """From a file with a term, a tab and its translation on each line. Empty lines are skipped.

        Raises:
          UserError: the file is missing, or a line is not like that.
        """
        if not isinstance(path, Path | str):
            raise UserError(f"path {shown(path)}: must be that of a file of terms and translations")
        entries: dict[str, str] = {}
        for number, line in enumerate(read_lines(Path(path)), start=1):
            if not has_text(line):
                continue
            where = f"{display_path(path)}, line {number}"
            columns = [column.strip() for column in without_formatting(line).split("\t")]
            if len(columns) != 2 or not all(map(has_text, columns)):
                raise UserError(f"{where}: must be a term, a tab and its translation")
            if entries.setdefault(columns[0], columns[1]) != columns[1]:
                raise UserError(f"{where}: {columns[0]!r} has another translation above")
            if (size := max(len(_words(column)) for column in columns)) > LONGEST:
                raise UserError(f"{where}: {size:,} words and signs, and an entry may have {LONGEST}")
        return cls(entries, keep)

    def terms(self, source: str) -> tuple[str, ...]:
        """What the translation of a sentence must have; twice what stands there twice. One that is a part of
        another is there once more, since an occurrence in a translation counts for both.

        Raises:
          UserError: the regular expression takes too long.
        """
        if not isinstance(source, str):
            raise UserError(f"source must be a sentence, not {type(source).__name__}")
        try:
            matches = list(self._keep.finditer(source, timeout=SECONDS)) if self._keep else []
        except TimeoutError as error:
            pattern = brief(self._keep.pattern)
            text = brief(source)
            raise UserError(
                f"the regular expression {pattern} takes more than {SECONDS:.0f} s on {text}: make it simpler"
            ) from error
        terms = list[str]()
        end = 0
        for match in matches:
            terms += [*self._found(source[end : match.start()]), match[0].strip()]
            end = match.end()
        terms = list(filter(has_text, [*terms, *self._found(source[end:])]))
        return (*terms, *_contained_terms(terms))

    def _found(self, text: str) -> Iterator[str]:
        """The translations of the entries in a text."""
        words = _words(text)
        start = 0
        folded = tuple(map(str.casefold, words))
        while start < len(words):
            # of equal length, the entry that is written so comes first
            matches = [*_at(self._exact, words, start), *_at(self._any_case, folded, start)]
            size, target = max(matches, key=lambda candidate: candidate[0], default=(1, ""))
            if target:
                yield target
            start += size


def _compiled(keep: str) -> Any:
    """A regular expression. None: there is none.

    Raises:
      UserError: it is invalid.
    """
    if not isinstance(keep, str):
        raise UserError(f"keep {shown(keep)}: must be a regular expression")
    try:
        return regex.compile(keep) if keep else None
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise UserError(f"the regular expression {brief(keep)} is invalid: {reason}") from error


def _contained_terms(terms: Sequence[str]) -> Iterator[str]:
    """The texts that are a part of others, as often as they are."""
    phrases: Phrases = {}
    words = {text: _words(text) for text in terms}
    for text, phrase in words.items():
        if phrase and len(phrase) <= LONGEST:
            _add(phrases, phrase, text, several=True)
    times: Counter[str] = Counter()
    for term, count in Counter(terms).items():
        around = words[term]
        for start in range(len(around)):
            for size, texts in _at(phrases, around, start):
                if size < len(around):
                    times.update(dict.fromkeys(texts, count))
    return (text for text in words for _ in range(times[text]))


def _add(phrases: Phrases, words: Sequence[str], value: str, several: bool = False) -> None:
    """Adds a phrase; with `several`, a list of all its values is under None."""
    for word in words:
        phrases = phrases.setdefault(word, {})
    if several:
        phrases.setdefault(None, []).append(value)
    else:
        phrases[None] = value


def _at(phrases: Phrases, words: Sequence[str], start: int) -> Iterator[tuple[int, Any]]:
    """The phrases that begin at a word: how many words each has, and what belongs to it, the shortest
    first."""
    for index in range(start, len(words)):
        if words[index] not in phrases:
            return
        phrases = phrases[words[index]]
        if None in phrases:
            yield index + 1 - start, phrases[None]


def _words(text: str) -> tuple[str, ...]:
    """Words and signs."""
    return tuple(match[0] for match in WORD_OR_SIGN.finditer(text))
