"""Texts of several sentences and lines: what is translated of them, and how a translation is put together."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float

from transformer.tasks.hypotheses import Hypothesis, WordConfidence

END = "</s>"
"""The token after each sentence but the last: its end."""
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff。！？]")


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


def space_after(sentence: str) -> str:
    """What is between a sentence and the next where no white space is given: none in a script without."""
    return "" if _WITHOUT_SPACES.match(sentence[-1:]) else " "


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
    written, words = text.gaps[0], list[WordConfidence]()
    sentences = zip(text.sentences, text.read, parts, text.gaps[1:], strict=True)
    for index, (sentence, is_read, part, gap) in enumerate(sentences, 1):
        words += [replace(word, start=len(written) + word.start) for word in part.word_confidences or ()]
        translation = part.text if is_read else sentence
        is_last = index == len(parts)
        written += translation + (gap if gap or is_last else space_after(translation))
    searched = [part for part in parts if part.ids]
    return Hypothesis(
        written,
        with_ends(part.tokens for part in searched),
        sum(part.score for part in parts),
        sum(part.log_probability for part in parts),
        _blocks([part.alignment for part in searched]),
        _chained([part.ids for part in searched]) or (),
        _chained([part.token_log_probabilities for part in searched]),
        _chained([part.entropies for part in searched]),
        tuple(words) if any(part.word_confidences is not None for part in parts) else None,
        any(part.truncated for part in parts),
    )


def with_ends(sentences: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The tokens of sentences, with `END` between them."""
    tokens = list[str]()
    for index, sentence in enumerate(sentences):
        tokens += [END, *sentence] if index else sentence
    return tuple(tokens)


def _chained(sequences: Sequence[Sequence[Any] | None]) -> tuple[Any, ...] | None:
    """The values of all sentences; None where they were not requested."""
    values = [sequence for sequence in sequences if sequence is not None]
    return tuple(itertools.chain.from_iterable(values)) if values else None


def _blocks(
    alignments: Sequence[Float[np.ndarray, "_ _"] | None],
) -> Float[np.ndarray, "target source"] | None:
    """The alignments of all sentences as the blocks of one matrix, which is zero elsewhere."""
    blocks = [alignment for alignment in alignments if alignment is not None]
    return scipy.linalg.block_diag(*blocks).astype(blocks[0].dtype) if blocks else None
