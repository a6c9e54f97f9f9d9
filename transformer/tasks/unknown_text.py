"""What a vocabulary lacks: the characters or words of a text that become <unk>, and how often they occur."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from transformer.data.features.tokenizer import Tokenizer
from transformer.runtime.errors import counted
from transformer.runtime.files import brief

log = logging.getLogger("transformer")
NAMED = 10  # characters or words that a message names


def described(unknown: Counter[str]) -> str:
    """The most frequent characters or words, with their numbers, for people."""
    named = [f"{brief(part)} ({counted(count, 'time')})" for part, count in unknown.most_common(NAMED)]
    more = len(unknown) - len(named)
    return ", ".join(named) + f" and {more:,} more" * bool(more)


def unknown_of(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """The characters or words of texts that are unknown to a vocabulary."""
    return Counter(itertools.chain.from_iterable(map(tokenizer.unknown, texts)))


class UnknownText:
    """Warns of text to decode that a vocabulary lacks: once, since a text that has such characters has many.

    Args:
      remedy: what to do about it, at the end of the sentence.
    """

    def __init__(self, remedy: str = "") -> None:
        self._remedy = remedy
        self._has_warned = False

    def warn(
        self,
        lines: Sequence[int],
        texts: Sequence[str],
        ids: Sequence[Sequence[int]],
        tokenizer: Tokenizer,
        part: str = "",
    ) -> None:
        """Logs what is unknown in the first texts that have something unknown.

        Args:
          lines: numbers of the texts. Empty: nothing is logged.
          texts: as they are read.
          ids: of each.
          tokenizer: which made the ids.
          part: what of a line they are, such as "the target of ", or empty.
        """
        unk = tokenizer.special.unk
        unknown = (
            []
            if self._has_warned
            else [(line, text) for line, text, some in zip(lines, texts, ids, strict=False) if unk in some]
        )
        if not unknown:
            return
        self._has_warned = True
        (line, _), *others = unknown
        more = f" and {counted(len(others), 'line')} after it" * bool(others)
        log.warning(
            "%sline %d%s: the vocabulary lacks %s, which are read as unknown%s. Further lines are not named",
            part,
            line,
            more,
            described(unknown_of((text for _, text in unknown), tokenizer)),
            self._remedy,
        )
