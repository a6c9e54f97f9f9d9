"""Texts that are read after those before them: sentences of a document, and turns of a conversation."""

import bisect
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transformer.runtime.text import has_text

TURN = " <turn> "
"""Between the texts of an input that is a list, such as the turns of a conversation, and between a sentence
and those before it. (The words of a sentence that is parsed have spaces.)"""
SEPARATOR = TURN.strip()


def after(context: Iterable[str], text: str) -> str:
    """A text as a model reads it after others, oldest first. One that has the separator has its context."""
    return text if TURN in text else TURN.join([*context, text])


def sentence_of(source: str) -> str:
    """What a model reads last: a source without its context."""
    return source.rpartition(TURN)[2]


def context_of(source: str) -> list[str]:
    """What a model reads before the sentence, oldest first."""
    return source.split(TURN)[:-1]


class History:
    """The last texts of a document or a conversation.

    Args:
      count: the most that are remembered.
    """

    def __init__(self, count: int) -> None:
        self._texts = deque[str](maxlen=count)

    def before(self, text: str) -> str:
        """A text after those that are remembered. An empty one begins a new document or conversation."""
        if not has_text(text):
            self._texts.clear()
            return text
        return after(self._texts, text)

    def add(self, *texts: str) -> None:
        """Remembers texts, oldest first; of more than `count`, the last ones."""
        self._texts.extend(map(sentence_of, texts))


def in_context(texts: Iterable[str], count: int) -> Iterator[str]:
    """Yields each text after those before it in its document. An empty one begins a new document.

    Args:
      texts: in the order of their document.
      count: of texts before each. 0: none, and the texts stay as they are.
    """
    history = History(count)
    for text in texts:
        yield history.before(text)
        if has_text(text):
            history.add(text)


def pairs_in_context(pairs: Iterable[Any], count: int) -> Iterator[Any]:
    """Yields the pairs of documents, each source after those before it. Pairs without text are the ends of
    documents, and are left out; so does a document end where languages change.

    Args:
      pairs: tuples of a source, a target and perhaps their languages.
      count: of sources before each.
    """
    history, languages = History(count), None
    for source, target, *others in pairs:
        if not (has_text(source) or has_text(target)) or others != languages:
            history, languages = History(count), others
        if not (has_text(source) or has_text(target)):
            continue
        read = history.before(source) if has_text(source) else source
        if has_text(source):
            history.add(source)
        yield read, target, *others


def first_pairs(pairs: Iterable[Any], count: int) -> Iterator[Any]:
    """Yields pairs until `count` of them had a source: those without are the ends of documents."""
    for pair in pairs:
        if not count:
            return
        yield pair
        count -= has_text(pair[0])


def shortened(source: str, size: Callable[[str], int], longest: int) -> str:
    """A source without so much of its oldest context that it has at most `longest` tokens. The sentence
    stays whole.

    Args:
      source: a sentence after its context.
      size: tokens of a text.
      longest: tokens that a model reads.
    """
    starts = [0, *(match.end() for match in re.finditer(re.escape(TURN), source))]
    index = bisect.bisect_left(starts, True, key=lambda start: size(source[start:]) <= longest)
    return source[starts[min(index, len(starts) - 1)] :]
