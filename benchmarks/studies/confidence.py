"""Which number of a model tells best which of its words are wrong.

`python -m benchmarks.studies.confidence RUN --validation SOURCE REFERENCE --test SOURCE REFERENCE`
translates two texts. Words are right by their edit alignment with the references. The confidence of words,
as `transformer calibrate` learns it, is fitted on the first text. On the second it is compared with the
probability of each word, the entropy of its tokens' distributions, and the mean and the variance of its
probability under dropout (Gal and Ghahramani 2016): several passes with teacher forcing, each with other
dropout masks. Entropy and variance are no probabilities: each becomes one by a logistic regression of its
own on the first text, as does the logarithm of the probability. Prints the area under the ROC curve and the
expected calibration error with bootstrap intervals over sentences, and draws a reliability diagram.
"""

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.plotting import picture
from transformer import Translator, UserError
from transformer.data.sources.text_files import read_pairs
from transformer.decoding.calls import whole
from transformer.decoding.scores import score_tokens
from transformer.model.encoder_decoder import EncoderDecoder, decoder_input
from transformer.runtime.text import has_text
from transformer.tasks.text import Hypothesis
from transformer.translator.calibration import BINS, Quality, labels_of, scored_outputs
from transformer.translator.confidence import FEATURES, Confidence, features_of, word_features
from transformer.translator.search_inputs import of_any_length, padded

METHODS = (
    "probability",
    "probability, regression",
    "entropy, regression",
    "mean probability under dropout",
    "dropout variance, regression",
    "all features: the confidence of words",
    "all features and dropout variance",
)
DRAWN = METHODS[0], METHODS[5]
RESAMPLED = 1_000


@dataclass(frozen=True)
class Words:
    """The words of a translated text."""

    features: np.ndarray
    """[words, features]: those of `FEATURES`."""
    dropped: np.ndarray
    """[passes, words]: the probability of each word under dropout."""
    right: np.ndarray
    sentences: np.ndarray
    """The index of each word's sentence."""


@functools.partial(jax.jit, static_argnums=0)
def _dropped(model: nn.Module, variables: Any, source: Any, target: Any, key: Any) -> Any:
    """log P of target tokens, and entropies, under one set of dropout masks."""
    special = model.config.special  # type: ignore[attr-defined]
    inputs = {"source": source}
    logits = whole(
        model, variables, inputs, decoder_input(target, special), deterministic=False, rngs={"dropout": key}
    )
    return score_tokens(jnp.asarray(logits), target, special.pad)


def under_dropout(
    translator: Translator, sources: Sequence[str], outputs: Sequence[Hypothesis], passes: int, seed: int = 0
) -> np.ndarray:
    """[passes, words]: the probability of each word of the outputs in each pass."""
    settings = translator.settings(1, {})
    pad = translator.task.special.pad
    source_ids = translator.task.ids(sources, translator.tokenizers[0], settings.buckets[-1])
    target_ids = [output.ids for output in outputs]
    lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
    batches = list(of_any_length(lengths, settings, None))
    found: list[list[np.ndarray]] = [[np.zeros(0)] * len(outputs) for _ in range(passes)]
    for number, (rows, length, count) in enumerate(track(batches, "dropout", console=Console(stderr=True))):
        source, target = (
            padded([ids[row] for row in rows], length, count, pad) for ids in (source_ids, target_ids)
        )
        for index in range(passes):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number), index)
            scores = _dropped(translator.model, translator.variables, source, target, key)
            for row, log_p in zip(rows, np.asarray(scores.log_p), strict=False):
                drawn = tuple(log_p[: len(target_ids[row])].tolist())
                changed = dataclasses.replace(outputs[row], token_log_probabilities=drawn)
                found[index][row] = word_features(changed)[:, FEATURES.index("probability")]
    return np.stack([np.concatenate(each) for each in found])


def measured(translator: Translator, pairs: Sequence[tuple[str, str]], passes: int) -> Words:
    """The words of the translations of some sources, compared with their references."""
    sources, references = map(list, zip(*pairs, strict=True))
    console = Console(stderr=True)
    outputs = scored_outputs(
        translator, pairs, lambda items, total: track(items, "translations", total, console=console)
    )
    labels = labels_of(outputs, references)
    drawn = under_dropout(translator, sources, outputs, passes)
    numbers = np.repeat(np.arange(len(labels)), list(map(len, labels)))
    return Words(features_of(outputs), drawn, np.concatenate(labels), numbers)


def probabilities(fitted: Words, tested: Words) -> dict[str, np.ndarray]:
    """P(right) of the tested words by every method, with what is learned from the fitted ones."""

    def columns(words: Words, names: Sequence[str]) -> np.ndarray:
        """Features by name. The logarithm of the variance is used, which is closer to linear."""
        log = np.log(np.maximum(words.dropped.var(axis=0), 1e-12))
        known = {**dict(zip(FEATURES, words.features.T, strict=True)), "variance": log}
        return np.stack([known[name] for name in names], axis=1)

    def by(*names: str) -> np.ndarray:
        regression = Confidence.fitted(columns(fitted, names), fitted.right)
        return regression.probabilities(columns(tested, names))

    values = (
        tested.features[:, FEATURES.index("probability")],
        by("log_probability"),
        by("entropy"),
        tested.dropped.mean(axis=0),
        by("variance"),
        by(*FEATURES),
        by(*FEATURES, "variance"),
    )
    return dict(zip(METHODS, values, strict=True))


def intervals(words: Words, found: dict[str, np.ndarray], seed: int = 0) -> dict[str, dict[str, list[float]]]:
    """For each method the area and the error, each with the ends of its 95 % interval, and the interval of
    the difference of the area from that of the probability. Sentences are resampled, the same for all
    methods."""
    random = np.random.default_rng(seed)
    count = int(words.sentences.max()) + 1
    rows = [np.flatnonzero(words.sentences == sentence) for sentence in range(count)]
    drawn: dict[str, list[Quality]] = {name: [] for name in found}
    for _ in range(RESAMPLED):
        chosen = np.concatenate([rows[sentence] for sentence in random.integers(count, size=count)])
        for name, values in found.items():
            drawn[name].append(Quality.of(words.right[chosen], values[chosen]))
    results = {}
    base = np.array([quality.area for quality in drawn[METHODS[0]]])
    for name, values in found.items():
        quality = Quality.of(words.right, values)
        areas = np.array([each.area for each in drawn[name]])
        errors = np.array([each.error for each in drawn[name]])
        results[name] = {
            "area": [quality.area, *np.nanquantile(areas, [0.025, 0.975])],
            "error": [quality.error, *np.nanquantile(errors, [0.025, 0.975])],
            "gain": [*np.nanquantile(areas - base, [0.025, 0.975])],
        }
    return results


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Markdown: a row for each method."""
    lines = [
        "| | area under the ROC curve | more than the probability alone | calibration error |",
        "|---|---|---|---|",
    ]
    for name, numbers in results.items():
        area, error = ("{:.3f} ({:.3f} to {:.3f})".format(*numbers[key]) for key in ("area", "error"))
        gain = "" if name == METHODS[0] else "{:+.3f} to {:+.3f}".format(*numbers["gain"])
        lines.append(f"| {name} | {area} | {gain} | {error} |")
    return "\n".join(lines)


def plot(words: Words, found: dict[str, np.ndarray], path: Path) -> None:
    """A reliability diagram: how many words are right among those of each predicted probability."""
    with picture(path, size=(4.8, 4.4)) as (_, [axes]):
        axes.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="calibrated")
        for name in DRAWN:
            which = np.minimum((found[name] * BINS).astype(int), BINS - 1)
            bins = [which == index for index in range(BINS) if (which == index).any()]
            points = [(found[name][some].mean(), words.right[some].mean()) for some in bins]
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(xlabel="predicted probability that a word is right", ylabel="share of words that are right")
        axes.grid(alpha=0.3)
        axes.legend()


def main(arguments: list[str] | None = None) -> None:
    """Prints the table, and writes OUT/confidence.md, .json and .svg."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory of a Transformer that was trained with dropout")
    for name, use in ("validation", "fit on"), ("test", "compare on"):
        files = {"nargs": 2, "type": Path, "metavar": ("SOURCE", "REFERENCE"), "required": True}
        parser.add_argument(f"--{name}", help=f"texts to {use}", **files)  # type: ignore[arg-type]
    parser.add_argument("--sentences", type=positive, default=1_000, help="of each text (1,000)")
    parser.add_argument("--passes", type=positive, default=8, help="under dropout (8)")
    parser.add_argument("--out", type=work_folder, default=Path(), help="folder for the results (this one)")
    given = parser.parse_args(arguments)
    needs("matplotlib")
    translator = Translator.load(given.run)
    is_transformer = isinstance(translator.model, EncoderDecoder)
    if not is_transformer or not getattr(translator.config.model, "dropout", 0.0):
        raise UserError(f"{given.run}: give a Transformer that was trained with dropout")
    texts = []
    for name in "validation", "test":
        files = getattr(given, name)
        pairs = [pair for pair in read_pairs(*files) if all(map(has_text, pair))]
        if not pairs:
            raise UserError(f"--{name}: {files[0]} has no sentence with a reference")
        texts.append(measured(translator, pairs[: given.sentences], given.passes))
    fitted, tested = texts
    found = probabilities(fitted, tested)
    results = intervals(tested, found)
    given.out.mkdir(parents=True, exist_ok=True)
    settings = {name: str(value) for name, value in vars(given).items() if name != "out"}
    counts = {"words": len(tested.right), "wrong": float(1 - tested.right.mean())}
    plot(tested, found, given.out / "confidence.svg")
    about = machine() | settings | counts
    report(given.out / "confidence", {"about": about, "methods": results}, table(results))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
