"""Outputs to be scored, as texts or ids, and the probabilities of given ones, such as labels: exact, as they
are all scored."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from transformer.config.arguments import any_number, is_list
from transformer.config.ranges import TEMPERATURE, shown
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief
from transformer.runtime.text import has_text
from transformer.tasks.texts.requests import Source
from transformer.tasks.texts.text_to_text import TextToText
from transformer.translator.decoder import Decoder

# Outputs to be scored: their texts, or their ids.


Target = Sequence[int] | Int[np.ndarray, " t"]
"""The ids of an output."""


def ids_of_targets(
    task: TextToText,
    targets: Sequence[str | Target],
    lines: Sequence[int],
    *,
    longest: int,
    most: int,
    copies: bool,
) -> list[list[int]]:
    """The ids of targets.

    Args:
      task: of the model.
      targets: a text, which is truncated, or ids, which are taken as they are.
      lines: the number of each, for messages.
      longest: tokens of a text.
      most: tokens that the model can read.
      copies: whether ids outside the vocabulary are those of words that are copied.

    Raises:
      UserError: ids are not those of an output.
    """
    size = task.config.model.output_size
    special = task.config.model.search_ids
    numbered = [(line, text) for line, text in zip(lines, targets, strict=True) if isinstance(text, str)]
    texts = [text for _, text in numbered]
    text_lines = [line for line, _ in numbered]
    tokenizer = task.tokenizers[1]
    encoded = iter(task.ids(texts, tokenizer, min(longest, most), text_lines, "the target of "))

    def checked(line: int, target: Target) -> list[int]:
        try:
            if not isinstance(target, Sequence | np.ndarray) or isinstance(target, bytes):
                raise TypeError
            ids = [operator.index(index) for index in target]
            if any(isinstance(index, bool | np.bool_) for index in target):
                raise TypeError
        except TypeError as error:
            raise UserError(
                f"line {line}: the target {shown(target)} must be a text or a list of ids"
            ) from error
        if ids[-1:] != [special.eos] or {*special.never_predicted, special.eos} & set(ids[:-1]):
            raise UserError(
                f"line {line}: the target must be ids of tokens, then <eos>, which is {special.eos} (as "
                f"Hypothesis.ids is), and not {shown(ids)}"
            )
        if outside := [i for i in ids if i < 0 or (i >= size and not copies)]:
            raise UserError(f"line {line}: the id {outside[0]}: the vocabulary has {size:,} ids, from 0")
        if len(ids) > most:
            raise UserError(f"line {line}: {len(ids):,} ids, and a target may have {most:,}")
        return ids

    pairs = zip(lines, targets, strict=True)
    return [next(encoded) if isinstance(target, str) else checked(line, target) for line, target in pairs]


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
      UserError: the temperature is not in its range.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, Real) or temperature not in TEMPERATURE:
        raise UserError(f"temperature {shown(temperature)}: {TEMPERATURE}")
    differences = log_p.astype(np.float64) - log_p.max(axis=1, keepdims=True)
    shares = np.exp(differences / temperature)
    normalised: np.ndarray = shares / shares.sum(axis=1, keepdims=True)
    return normalised


def best_temperature(log_p: Float[np.ndarray, "sources labels"], right: Int[np.ndarray, " sources"]) -> float:
    """The temperature with which the right labels are most probable (Guo et al. 2017, section 4.2). It
    changes no decision, only how certain they are.

    Args:
      log_p: as of `probabilities`.
      right: the index of the right label of each source.
    """

    from scipy.optimize import minimize_scalar  # slow to import

    def surprise(log_temperature: float) -> float:
        shares = probabilities(log_p, float(np.exp(log_temperature)))
        return float(-np.log(np.maximum(shares[np.arange(len(right)), right], 1e-300)).mean())

    limit = float(np.log(FARTHEST))
    return float(np.exp(minimize_scalar(surprise, bounds=(-limit, limit), method="bounded").x))


def checked_labels(labels: Sequence[str]) -> list[str]:
    """Labels as a list. Raises UserError if there are less than two, one is no text, empty or repeated."""
    several: list[Any] = list(labels) if is_list(labels) else [None]
    if not all(isinstance(label, str) for label in several):
        raise UserError(f"labels {shown(labels)}: give a list of texts")
    labels = several
    if len(set(labels)) < len(labels):
        raise UserError(f"labels {', '.join(labels)}: one is there twice")
    if not all(map(has_text, labels)):
        raise UserError(f"labels {', '.join(map(brief, labels))}: one is empty")
    if len(labels) < 2:
        raise UserError("labels: give at least two to choose from")
    return list(labels)


class Chooser(Decoder[TextToText], ABC):
    """What scores given outputs, and so chooses among them."""

    @abstractmethod
    def score(
        self, sources: Iterable[Source], targets: Iterable[str], *, lines: Sequence[int] | None = None
    ) -> Float[np.ndarray, " pairs"]:
        """log P(target | source) of every pair, in nats."""

    def choices(
        self, sources: Iterable[Source], labels: Sequence[str] = (), *, temperature: float = 1.0
    ) -> list[dict[str, float]]:
        """The probability of each label, by forced scores of all of them, so that they add up to 1.

        Args:
          sources: texts.
          labels: what to choose from. Empty: the labels of the training text (--data.task labels).
          temperature: see `calibrated`.

        Returns:
          For each source its labels with their probabilities, the most probable first.

        Raises:
          UserError: there are no labels, or the temperature is not in its range.
        """
        names = self._labels(labels)
        texts = list(any_number("sources", sources, "sentences"))
        shares = probabilities(self._log_p(texts, names), temperature)
        return [
            {names[index]: float(row[index]) for index in np.argsort(-row, kind="stable")} for row in shares
        ]

    def calibrated(
        self, sources: Iterable[Source], right: Iterable[str], labels: Sequence[str] = ()
    ) -> float:
        """The temperature for `choices` with which probabilities are those of being right (Guo et al. 2017).

        Args:
          sources: texts that were not trained on, such as those of the validation.
          right: the label of each.
          labels: as in `choices`.

        Raises:
          UserError: there is no text, or a label is not among the labels.
        """
        names = self._labels(labels)
        texts = list(any_number("sources", sources, "sentences"))
        expected = list(any_number("right", right, "labels"))
        if not texts or len(texts) != len(expected):
            raise UserError(f"give a label for each source: {len(texts)} sources, {len(expected)} labels")
        if unknown := [label for label in expected if label not in names]:
            raise UserError(f"{shown(unknown[0])} is not among the labels: {', '.join(names)}")
        indices = np.array([names.index(label) for label in expected])
        return best_temperature(self._log_p(texts, names), indices)

    def check_choices(self, labels: Sequence[str], temperature: float) -> list[str]:
        """Those of the labels that the training text lacks, if its labels are known. Raises UserError as
        `choices`."""
        names, trained_labels = self._labels(labels), getattr(self.task, "labels", ())
        probabilities(np.zeros((1, len(names))), temperature)
        return [name for name in names if trained_labels and name not in trained_labels]

    def _labels(self, labels: Sequence[str]) -> list[str]:
        trained_labels = getattr(self.task, "labels", ())
        labels = list(labels) if is_list(labels) else labels
        if not labels and not trained_labels:
            raise UserError(
                "labels: this model was not trained with --data.task labels; say what to choose from"
            )
        return checked_labels(labels or list(filter(has_text, trained_labels)))

    def _log_p(self, sources: Sequence[Source], labels: Sequence[str]) -> Float[np.ndarray, "sources labels"]:
        several = [source for source in sources for _ in labels]
        lines = [line for line in range(1, len(sources) + 1) for _ in labels]
        scores = self.score(several, [*labels] * len(sources), lines=lines)
        return scores.reshape(len(sources), len(labels))
