"""The probability that each word of an output is right: a logistic regression on the scores of its
tokens, fitted to outputs with references (`transformer calibrate`)."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from transformer.documents.projection import token_spans
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, MiB, read_stored, write_whole
from transformer.runtime.words import UNIT
from transformer.tasks.text import Hypothesis, WordConfidence

FILE = "confidence.json"
REMEDY = "delete it, and make it again with transformer calibrate"
VERSION = 1
FEATURES = ("probability", "log_probability", "entropy", "sentence", "before", "after")
"""What the regression reads of a word; see `word_features`."""
LEAST = 1e-9
"""The least probability of which the logarithm is taken."""
RIDGE = 1.0
"""What the sum of the squared weights, halved, counts beside the negative log-likelihood of all words."""
STEPS = 100
CONVERGED = 1e-9
"""Of the largest component of the gradient, for each word."""
_LIMIT = 500.0
"""Logits beyond this are as good as certain."""
_MOST = 1e100
"""The largest number of a file: of larger ones the logits may be no numbers."""


def words_of(text: str) -> list[str]:
    """The words of a text, its punctuation marks, and the characters of scripts without spaces."""
    return [match[0] for match in UNIT.finditer(text)]


def word_features(hypothesis: Hypothesis) -> Float[np.ndarray, "words features"]:
    """What is measured of each of the words of `words_of`, in the order of `FEATURES`: the probability of the
    word, which is the product of those of its tokens; its logarithm; the largest entropy of a distribution
    that one of its tokens comes from; the mean log-probability of the sentence's tokens, counting <eos>; the
    probabilities of the words before and after it, which are 1 where there is none.

    Args:
      hypothesis: with the scores of its tokens.
    """
    assert hypothesis.token_log_probabilities is not None
    assert hypothesis.entropies is not None
    log_p, entropies = np.array(hypothesis.token_log_probabilities), np.array(hypothesis.entropies)
    ends = [match.end() for match in UNIT.finditer(hypothesis.text)]
    words = np.zeros(len(ends))
    entropy = np.zeros(len(ends))
    has_tokens = np.zeros(len(ends), bool)
    mean = float(log_p.mean()) if len(log_p) else 0.0
    spans = token_spans(hypothesis.tokens, hypothesis.text)
    for (start, _), token_log_p, token_entropy in zip(spans, log_p, entropies, strict=False):
        word = int(np.searchsorted(ends, start, side="right"))  # the first that ends after the token begins
        if word < len(ends):
            words[word] += token_log_p
            entropy[word] = max(entropy[word], token_entropy)
            has_tokens[word] = True
    words = np.where(has_tokens, words, mean)  # of a tokenizer that writes its tokens otherwise
    p = np.exp(words)
    edges = np.concatenate([[1.0], p, [1.0]])
    log = np.log(np.maximum(p, LEAST))
    sentence = np.full(len(p), max(mean, math.log(LEAST)))
    return np.stack([p, log, entropy, sentence, edges[:-2], edges[2:]], axis=1)


@dataclass(frozen=True)
class Confidence:
    """A logistic regression on standardised features: P(right) = 1 / (1 + exp(-bias - sum of weight *
    (feature - mean) / scale))."""

    mean: tuple[float, ...]
    """Of each feature where it was fitted."""
    scale: tuple[float, ...]
    """Its standard deviation there; 1 for a constant."""
    weights: tuple[float, ...]
    bias: float

    @classmethod
    def fitted(
        cls, features: Float[np.ndarray, "words features"], right: Bool[np.ndarray, " words"]
    ) -> "Confidence":
        """The regression of the highest likelihood, with a little ridge, by Newton's method (iteratively
        reweighted least squares). Half the step is tried where a whole one does not help.

        Args:
          features: of words.
          right: which of them are right.

        Raises:
          UserError: there is no word, all of them are right, or none.
        """
        if not len(right):
            raise UserError("there is no word in the outputs, so confidence cannot be learned from them")
        if right.all() or not right.any():
            share = "all" if right.all() else "none"
            raise UserError(
                f"{share} of {len(right):,} words are right, so confidence cannot be learned from them: give "
                "a text on which the model is sometimes right and sometimes wrong"
            )
        mean, scale = features.mean(axis=0), features.std(axis=0)
        scale = np.where(scale > 1e-12, scale, 1.0)
        x = np.concatenate([(features - mean) / scale, np.ones((len(features), 1))], axis=1)
        ridge = np.full(x.shape[1], RIDGE)
        ridge[-1] = 0.0  # none for the bias
        sign = np.where(right, 1.0, -1.0)

        def loss(candidate: np.ndarray) -> float:
            return float(np.logaddexp(0, -sign * (x @ candidate)).sum() + (ridge * candidate**2).sum() / 2)

        w = np.zeros(x.shape[1])
        for _ in range(STEPS):
            p = _sigmoid(x @ w)
            gradient = x.T @ (p - right) + ridge * w
            if np.abs(gradient).max() <= CONVERGED * len(x):
                break
            curvature = np.maximum(p * (1 - p), 1e-12)
            step = np.linalg.solve((x.T * curvature) @ x + np.diag(ridge), gradient)
            while loss(w - step) > loss(w) and np.abs(step).max() > 1e-12:
                step /= 2
            w = w - step
        return cls(tuple(mean.tolist()), tuple(scale.tolist()), tuple(w[:-1].tolist()), float(w[-1]))

    def probabilities(self, features: Float[np.ndarray, "words features"]) -> Float[np.ndarray, " words"]:
        """P(right) of words."""
        standardised = (features - np.array(self.mean)) / np.array(self.scale)
        return _sigmoid(standardised @ np.array(self.weights) + self.bias)

    def of_words(self, hypothesis: Hypothesis) -> tuple[WordConfidence, ...]:
        """The confidence of each word of a hypothesis, which has the scores of its tokens."""
        matches = UNIT.finditer(hypothesis.text)
        probabilities = self.probabilities(word_features(hypothesis)).tolist()
        pairs = zip(matches, probabilities, strict=True)
        return tuple(WordConfidence(match[0], match.start(), p) for match, p in pairs)

    def write(self, folder: Path) -> None:
        """Writes confidence.json of a run."""
        rows = zip(FEATURES, self.mean, self.scale, self.weights, strict=True)
        features = {
            name: {"mean": mean, "scale": scale, "weight": weight} for name, mean, scale, weight in rows
        }
        content = {"version": VERSION, "bias": self.bias, "features": features}
        write_whole(folder / FILE, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Confidence | None":
        """That of a run; None if it has none.

        Raises:
          UserError: its confidence.json is damaged, or of another version.
        """
        return read_stored(folder / FILE, cls._of_json, REMEDY, MiB)

    @classmethod
    def _of_json(cls, content: Json) -> "Confidence":
        if content.get("version") != VERSION:
            raise ValueError(f"it is not of version {VERSION}")
        if content.keys() != {"version", "bias", "features"}:
            raise ValueError("it must have version, bias and features")
        mean, scale, weights = map(tuple, zip(*_rows(content["features"]), strict=True))
        if min(scale) < 1 / _MOST:
            raise ValueError(f"a scale must be positive, from {1 / _MOST:g}")
        return cls(mean, scale, weights, _number("bias", content["bias"]))


def _rows(features: object) -> list[list[float]]:
    """Mean, scale and weight of each feature. Raises ValueError if they are not those of `FEATURES`."""
    if not isinstance(features, dict) or tuple(features) != FEATURES:
        raise ValueError(f"its features must be {', '.join(FEATURES)}")
    rows = []
    for name, numbers in features.items():
        if not isinstance(numbers, dict) or numbers.keys() != {"mean", "scale", "weight"}:
            raise ValueError(f"the feature {name} must have mean, scale and weight")
        rows.append([_number(key, numbers[key]) for key in ("mean", "scale", "weight")])
    return rows


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST:
        raise ValueError(f"{name} must be a number up to {_MOST:g}")
    return float(value)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -_LIMIT, _LIMIT))))


def features_of(hypotheses: Sequence[Hypothesis]) -> Float[np.ndarray, "words features"]:
    """The features of all words of some hypotheses, one after the other."""
    return np.concatenate([np.zeros((0, len(FEATURES))), *map(word_features, hypotheses)])
