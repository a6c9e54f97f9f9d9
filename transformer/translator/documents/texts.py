"""Texts of several sentences and lines: what is translated of them, and how a translation is put together."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer.runtime.words import ends_unspaced
from transformer.tasks.hypotheses import Hypothesis, chained


@dataclass(frozen=True)
class DividedText:
    """A text as sentences, and what is between them."""

    sentences: tuple[str, ...]
    """Without the white space around them."""
    gaps: tuple[str, ...]
    """What is before the first sentence, between two, and after the last. Empty between two: their
    translations are joined as their script asks for it."""
    read: tuple[bool, ...]
    """Whether each sentence is translated: one without a letter is copied."""

    @property
    def is_sentence(self) -> bool:
        """Whether it is nothing but one sentence, or has none."""
        return len(self.sentences) <= 1 and not any(self.gaps)


def joined(text: DividedText, outputs: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """The translations of a text, given those of its sentences: the n-th best has the n-th best of each
    sentence. Scores and log-probabilities add up. In tokens, ids, their scores and alignments each sentence
    ends with its <eos>; an alignment has a block for each.

    Args:
      text: as it was divided.
      outputs: of each sentence, best first.
    """
    count = max(map(len, outputs))
    padded = [[*some, *[some[-1]] * (count - len(some))] for some in outputs]
    return [_joined(text, parts) for parts in zip(*padded, strict=True)]


def _joined(text: DividedText, parts: Sequence[Hypothesis]) -> Hypothesis:
    written, starts = text.gaps[0], list[int]()
    sentences = zip(text.sentences, text.read, parts, text.gaps[1:], strict=True)
    for index, (sentence, is_read, part, gap) in enumerate(sentences, 1):
        starts.append(len(written))
        translation = part.text if is_read else sentence
        has_space = gap or index == len(parts) or ends_unspaced(translation)
        written += translation + (gap if has_space else " ")
    return chained(written, starts, parts)
