"""Scores of texts with several references each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer.tasks.metrics.scores import Score, bleu_metric, exact_match

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreBleuMetric

References = Sequence[Sequence[str]]
"""Those of each text: one or more."""


def captions_bleu(hypotheses: Sequence[str], references: References, tokenize: str = "13a") -> Score:
    """Corpus BLEU with several references (Papineni et al. 2002; Post 2018).

    Raises:
      UserError: the tokenizer is not installed.
    """
    return _scored(bleu_metric(tokenize), hypotheses, references)


def captions_chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Character n-gram F-score (Popovic 2015), of each text with its best reference."""
    from sacrebleu.metrics.chrf import CHRF

    return _scored(CHRF(), hypotheses, references)


def captions_exact(hypotheses: Sequence[str], references: References) -> Score:
    """Percentage of texts that are equal to one of their references."""
    nearest = [
        text if text in several else several[0] for text, several in zip(hypotheses, references, strict=True)
    ]
    return exact_match(hypotheses, nearest)


def _scored(metric: "SacreBleuMetric", hypotheses: Sequence[str], references: References) -> Score:
    most = max(map(len, references), default=0)
    streams: list[Any] = [  # sacreBLEU leaves out those that are None
        [several[index] if index < len(several) else None for several in references] for index in range(most)
    ]
    result = metric.corpus_score(list(hypotheses), streams)
    return Score(result.score, str(metric.get_signature()), str(result))
