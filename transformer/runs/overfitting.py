"""Whether a model memorises its training text: its validation loss rises while its training loss falls."""

from collections.abc import Sequence

from transformer.runs.log import LOSSES
from transformer.runtime.files import Json

RISE = 1.02  # of the lowest validation loss: less is noise


def overfitting(training: Sequence[Json], evaluations: Sequence[Json]) -> str:
    """A sentence about a run that overfits; empty if it does not.

    Args:
      training: records of training.
      evaluations: records of evaluations.
    """
    name = next(
        (name for name in LOSSES if evaluations and all(name in record for record in evaluations)), None
    )
    if name is None:
        return ""
    best, last = min(evaluations, key=lambda record: record[name]), evaluations[-1]
    before, after = (_training_loss(training, name, evaluations, record["step"]) for record in (best, last))
    rises = 0 < best[name] * RISE < last[name]
    if not rises or before is None or after is None or after >= before:
        return ""
    return (
        f"overfitting: since step {best['step']:,} the validation loss rises from {best[name]:.2f} to "
        f"{last[name]:.2f} while that of training falls from {before:.2f} to {after:.2f}. More text, more "
        "dropout (--model.dropout) or fewer updates help"
    )


def _training_loss(
    training: Sequence[Json], name: str, evaluations: Sequence[Json], step: int
) -> float | None:
    """The mean training loss between an evaluation and the one before it; None if it was not logged."""
    previous = max((record["step"] for record in evaluations if record["step"] < step), default=0)
    losses = [record[name] for record in training if previous < record["step"] <= step and name in record]
    return sum(losses) / len(losses) if losses else None
