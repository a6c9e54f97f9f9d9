"""F1 of the spans that labels of words mark, such as B-NP I-NP O."""

import re
from collections.abc import Iterable, Sequence

from transformer.runtime.extras import library
from transformer.tasks.metrics.scores import Score, percentage

SPAN_F1 = percentage("span_f1", "span F1")
OUTSIDE = "O"
_IN_SPAN = re.compile(r"[BIES]-.+")


def span_f1(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Score:
    """F1 of spans with their types, in percent, as the program conlleval of the shared tasks CoNLL-2000 and
    CoNLL-2003 counts them: by seqeval (Nakayama 2018).

    Args:
      hypotheses: the labels of the words of each sentence.
      references: what is right.

    Raises:
      UserError: seqeval is not installed.
    """
    metrics = library("seqeval.metrics")
    both = [list(labels) for labels in references], [list(labels) for labels in hypotheses]
    precision, recall, f1 = (
        100 * float(getattr(metrics, f"{name}_score")(*both, zero_division=0))
        for name in ("precision", "recall", "f1")
    )
    detail = f"span F1 = {f1:.2f} (precision {precision:.2f}, recall {recall:.2f})"
    return Score(f1, "seqeval, as conlleval", detail)


def mark_spans(labels: Iterable[str]) -> bool:
    """Whether labels mark spans: all are O, or begin with B-, I-, E- or S-, and not all are O."""
    marks = set(labels) - {OUTSIDE}
    return bool(marks) and all(map(_IN_SPAN.fullmatch, marks))
