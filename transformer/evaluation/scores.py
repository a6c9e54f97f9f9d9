"""BLEU, chrF and exact match, each with a signature of how it was computed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


@dataclass(frozen=True)
class Score:
    """A corpus score out of 100, and how it was computed."""

    value: float
    signature: str
    detail: str
    """As sacreBLEU writes it, n-gram precisions and brevity penalty included."""

    def as_dict(self) -> dict[str, float | str]:
        """For a JSON file."""
        return asdict(self)


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Corpus BLEU (Papineni et al. 2002; Post 2018).

    Args:
      hypotheses: one translation per sentence.
      references: one reference each.
      tokenize: sacreBLEU's tokenizer: "13a" for plain text; "none" for text that is already
        tokenised, which gives the tokenised BLEU of older papers.
    """
    # without `force`, sacreBLEU warns about text that looks tokenised
    metric = BLEU(tokenize=tokenize, force=tokenize == "none")
    return _scored(metric, hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Character n-gram F-score (Popovic 2015). Arguments as `bleu`."""
    return _scored(CHRF(), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percentage of translations that are equal to their references."""
    right = sum(ours == theirs for ours, theirs in zip(hypotheses, references, strict=True))
    share = 100 * right / max(len(references), 1)
    return Score(share, "exact match", f"exact match = {share:.2f} ({right} of {len(references)})")


def _scored(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(result.score, str(metric.get_signature()), str(result))
