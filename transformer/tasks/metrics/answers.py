"""Exact match and F1 of answers, as SQuAD defines them (Rajpurkar et al. 2016, and 2018 for questions that
have no answer)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from transformer.tasks.metrics.references import References, all_of
from transformer.tasks.metrics.scores import Score, percentage

ANSWER_EXACT = percentage("answer_exact", "exact match (SQuAD)")
ANSWER_F1 = percentage("answer_f1", "answer F1")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalised(answer: str) -> str:
    """An answer in lower case, without ASCII punctuation and English articles, with single spaces."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def answer_exact(hypotheses: Sequence[str], references: References) -> Score:
    """Percentage of answers that, normalised, are equal to one of their references.

    Args:
      hypotheses: one answer for each question; empty: "there is none".
      references: one or several for each; empty if the question has no answer.
    """
    return _mean(
        "exact match", lambda one, other: float(normalised(one) == normalised(other)), hypotheses, references
    )


def answer_f1(hypotheses: Sequence[str], references: References) -> Score:
    """Mean F1 of the words of normalised answers, with the best reference of each. Where one of the two is
    empty, it is 1 if both are, and otherwise 0. Arguments as of `answer_exact`."""
    return _mean("F1", word_f1, hypotheses, references)


def word_f1(answer: str, reference: str) -> float:
    """F1 from 0 to 1 of the words that two answers share, each as often as in both."""
    words, expected = normalised(answer).split(), normalised(reference).split()
    if not words or not expected:
        return float(words == expected)
    shared = sum((Counter(words) & Counter(expected)).values())
    return 2 * shared / (len(words) + len(expected))


def _mean(
    name: str, similarity: Callable[[str, str], float], hypotheses: Sequence[str], references: References
) -> Score:
    pairs = zip(hypotheses, references, strict=True)
    best = [max(similarity(answer, text) for text in all_of(texts)) for answer, texts in pairs]
    mean = 100 * sum(best) / max(len(best), 1)
    return Score(
        mean, "normalised:squad|multi:best", f"{name} = {mean:.2f} (SQuAD's normalisation, of {len(best)})"
    )
