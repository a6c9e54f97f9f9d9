"""Scores of answers (exact match and F1, as SQuAD defines them: Rajpurkar et al. 2016, 2018) and of summaries
(ROUGE, Lin 2004)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, Literal

import regex

from transformer.runtime.machine import library
from transformer.runtime.words import words
from transformer.tasks.metrics.scores import References, Score, all_of, percentage

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
    return _mean("exact match", lambda x, y: float(normalised(x) == normalised(y)), hypotheses, references)


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


# ROUGE (Lin 2004), by rouge-score.


ROUGE_1 = percentage("rouge_1", "ROUGE-1")
ROUGE_2 = percentage("rouge_2", "ROUGE-2")
ROUGE_L = percentage("rouge_l", "ROUGE-L")
_OTHER_LETTER = regex.compile(r"[\p{L}\p{M}--[a-zA-Z]]", regex.VERSION1)


class AllScripts:
    """Words in any script, and single characters of scripts without spaces. The tokenizer of rouge-score
    drops all letters but a to z."""

    def tokenize(self, text: str) -> list[str]:
        """The words, in lower case."""
        return words(text.lower().replace("_", " "))


def rouge(hypotheses: Sequence[str], references: References, variant: Literal["1", "2", "L"]) -> Score:
    """The mean F1 of n-grams (ROUGE-1, ROUGE-2) or of the longest common subsequence (ROUGE-L, over the whole
    text).

    Args:
      hypotheses: one output each.
      references: one or several for each. The one with the highest F1 counts, for each variant by itself.
      variant: of ROUGE.

    Returns:
      The score. Its signature says whether words are those of rouge-score (a to z, digits), or of all
      scripts, which are used if a reference has letters beyond a to z.

    Raises:
      UserError: rouge-score is not installed.
    """
    best, signature = rouge_of_each(hypotheses, references, variant)
    mean = 100 * sum(best) / max(len(best), 1)
    return Score(mean, signature, f"ROUGE-{variant} = {mean:.2f} (F1, mean of {len(best)})")


def rouge_of_each(
    hypotheses: Sequence[str], references: References, variant: Literal["1", "2", "L"]
) -> tuple[list[float], str]:
    """The F1 of each output, from 0 to 1, and the signature of their mean. Arguments as of `rouge`."""
    scorers: Any = library("rouge_score.rouge_scorer")
    lists = [all_of(reference) for reference in references]
    has_others = any(_OTHER_LETTER.search(text) for texts in lists for text in texts)
    name = f"rouge{variant}"
    scorer = scorers.RougeScorer([name], tokenizer=AllScripts() if has_others else None)
    pairs = zip(hypotheses, lists, strict=True)
    best = [scorer.score_multi(texts, hypothesis)[name].fmeasure for hypothesis, texts in pairs]
    counts = sorted({len(texts) for texts in lists})
    signature = "|".join(
        (
            f"nrefs:{counts[0] if len(counts) == 1 else 'var'}",
            "multi:best-f1",
            "stem:no",
            f"tok:{'all-scripts' if has_others else 'rouge-score'}",
            f"rouge-score:{metadata.version('rouge-score')}",
        )
    )
    return best, signature
