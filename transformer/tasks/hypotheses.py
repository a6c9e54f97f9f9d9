"""Texts that a search has found."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from transformer.config import SpecialIds
from transformer.data.features.tokenizer import Tokenizer
from transformer.decoding.scores import SearchResult
from transformer.evaluation.consensus import expected_chrf


@dataclass(frozen=True)
class Hypothesis:
    """One output for one input: a translation, or what was said."""

    text: str
    tokens: tuple[str, ...]
    """Its subwords."""
    score: float
    """The log-probability divided by the length penalty, by which hypotheses are ranked."""
    log_probability: float
    """log P(output | input) in nats, including <eos>: equal to `Translator.score` up to rounding. (For
    a parallel decoder that re-predicts tokens or samples fertilities, each token has the probability with
    which it was chosen.)"""
    alignment: Float[np.ndarray, "target source"] | None = None
    """Cross-attention, if requested: a row for every token and <eos>, a column for every source subword (see
    `Translator.subwords`; without those that were truncated) and <eos>, or for every encoded frame. Each row
    sums to 1."""
    ids: tuple[int, ...] = field(default=(), repr=False)
    """The generated ids: the tokens, then <eos>."""
    token_log_probabilities: tuple[float, ...] | None = field(default=None, repr=False)
    """If requested: log P of every token and of <eos>, in nats, with all tokens before it given."""
    entropies: tuple[float, ...] | None = field(default=None, repr=False)
    """If requested: of the distribution that each of them comes from, in nats."""

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability of its tokens, counting <eos>."""
        total = self.log_probability
        if self.token_log_probabilities is not None:  # without penalties of the search
            total = sum(self.token_log_probabilities)
        return math.exp(min(-total / max(len(self.ids), 1), 700))


def hypotheses(
    found: SearchResult, tokenizer: Tokenizer, special: SpecialIds, n_best: int | None
) -> list[Hypothesis]:
    """The texts of one row of a search, best first."""
    several: list[Hypothesis] = []
    scores, log_probabilities = found.scores[:n_best].tolist(), found.log_probabilities[:n_best].tolist()
    for score, log_probability, ids in zip(scores, log_probabilities, found.tokens, strict=False):
        if math.isfinite(score):
            words = words_of(ids, special)
            text, pieces = tokenizer.decode(words), tuple(tokenizer.pieces(words))
            several.append(Hypothesis(text, pieces, score, log_probability, ids=(*words, special.eos)))
    return several


def by_consensus(outputs: list[Hypothesis]) -> list[Hypothesis]:
    """The different texts by expected chrF, which becomes their score. One that was found several times
    counts as often."""
    utilities = expected_chrf([hypothesis.text for hypothesis in outputs]).tolist()
    rated = [replace(each, score=utility) for each, utility in zip(outputs, utilities, strict=True)]
    ordered = sorted(rated, key=lambda each: (-each.score, -each.log_probability))
    return list({each.text: each for each in reversed(ordered)}.values())[::-1]


def words_of(ids: Sequence[int] | np.ndarray, special: SpecialIds) -> list[int]:
    """The ids that are text."""
    return [int(index) for index in ids if index not in (special.pad, special.eos)]
