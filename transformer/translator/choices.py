"""The probabilities of given outputs, such as labels: exact, as they are all scored."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar

from transformer.runtime.errors import UserError

FARTHEST = 100.0
"""Temperatures are sought from 1 / 100 to 100."""


def probabilities(
    log_p: Float[np.ndarray, "sources labels"], temperature: float = 1.0
) -> Float[np.ndarray, "sources labels"]:
    """P(label | source) of labels of which one is right: the softmax of log P / temperature.

    Args:
      log_p: log-probabilities of all labels, in nats.
      temperature: more than 1: less certain; less: more certain.

    Raises:
      UserError: the temperature is not positive.
    """
    if not 0 < temperature < float("inf"):
        raise UserError(f"temperature {temperature}: must be more than 0")
    scaled = log_p.astype(np.float64) / temperature
    shares = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    normalised: np.ndarray = shares / shares.sum(axis=1, keepdims=True)
    return normalised


def best_temperature(log_p: Float[np.ndarray, "sources labels"], right: Int[np.ndarray, " sources"]) -> float:
    """The temperature with which the right labels are most probable (Guo et al. 2017, section 4.2). It
    changes no decision, only how certain they are.

    Args:
      log_p: as of `probabilities`.
      right: the index of the right label of each source.
    """

    def surprise(log_temperature: float) -> float:
        shares = probabilities(log_p, float(np.exp(log_temperature)))
        return float(-np.log(np.maximum(shares[np.arange(len(right)), right], 1e-300)).mean())

    limit = float(np.log(FARTHEST))
    return float(np.exp(minimize_scalar(surprise, bounds=(-limit, limit), method="bounded").x))


def checked_labels(labels: Sequence[str]) -> list[str]:
    """Labels as a list. Raises UserError if there are less than two, one is no text, or one is repeated."""
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise UserError(f"labels {labels!r}: give a list of texts")
    if len(set(labels)) < len(labels):
        raise UserError(f"labels {', '.join(labels)}: one is there twice")
    if len(labels) < 2:
        raise UserError("labels: give at least two to choose from")
    return list(labels)
