"""Compares models that write sets of labels with a threshold classifier on the same encoder.

`python -m benchmarks.studies.emotions WORK RUN [RUN ...]` reads runs of `--data.task label-sets`, which may
differ in their `--data.label-order`, and trains a classifier: the encoder of the first run, the mean of its
states, and a sigmoid for each label. It has the data, batches, optimizer, seed and number of updates of that
run, and one threshold for all labels, with which micro F1 of the validation text is highest. A text without a
label above it has none, or in another row of the table its most probable one. Runs of `--data.task labels`
are compared with the most frequent label only. Everything is in WORK; what is there is not computed again.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.command import run, work_folder
from benchmarks.measure import machine, report, table
from benchmarks.runs import once, translated
from benchmarks.studies.baselines import most_frequent
from transformer import Config, Run, UserError, make_optimizer
from transformer.config.options import text_data
from transformer.data.sequences import stacked
from transformer.data.sources.tables import SEPARATOR
from transformer.data.store import Corpus
from transformer.model.parameters import Variables
from transformer.model.stack import TransformerEncoder
from transformer.tasks.preparation import prepare
from transformer.tasks.task import Evaluation
from transformer.tasks.texts.labels import Classification, LabelSets
from transformer.training.objective import Batch, Context, Loss
from transformer.training.step import init_state, make_train_step

THRESHOLDS = np.arange(0.05, 0.96, 0.01)
SAMPLES = 1000  # of the bootstrap
ROWS = 256  # that are classified at a time


class EncoderClassifier(TransformerEncoder):
    """The mean of the encoder's states, and a linear layer to labels."""

    def __call__(  # type: ignore[override]
        self, source: jax.Array, *, deterministic: bool = True
    ) -> jax.Array:
        """Logits of the labels, `[rows, labels]`, of ids `[rows, length]`."""
        memory = self.encode(source, deterministic=deterministic)
        mask = memory.mask[..., None]
        mean = (memory.states * mask).sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1)
        return self.output(mean[:, None])[:, 0]


def binary_cross_entropy(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
    """Of each label by itself. The batch has `source`, ids, and `labels`, `[rows, labels]`."""
    rngs = context.rngs("dropout")
    logits: Any = model.apply(variables, batch["source"], deterministic=False, rngs=rngs)
    rows = (batch["labels"].any(axis=1)).astype(jnp.float32)
    losses = optax.sigmoid_binary_cross_entropy(logits, batch["labels"].astype(jnp.float32)).sum(axis=1)
    return Loss((losses * rows).sum(), rows.sum())


@dataclass(frozen=True)
class Study:
    """A run of labels, with its texts."""

    path: Path
    task: Classification
    corpus: Corpus

    @classmethod
    def of(cls, path: Path) -> "Study":
        """Opens a run.

        Raises:
          UserError: it writes no labels, or its texts are not there.
        """
        task = Run(path).task
        if not isinstance(task, Classification):
            raise UserError(f"{path} writes no labels: train it with --data.task label-sets or labels")
        data = replace(text_data(task.config), batching="buckets")  # a text in each row, for the classifier
        task = task.again(replace(task.config, data=data), task.tokenizers)
        return cls(path, task, task.open_corpus(task.config))

    @property
    def split(self) -> str:
        """Of the comparison."""
        return "test" if "test" in self.corpus.splits else "validation"

    def targets(self, split: str) -> list[str]:
        """Those of a split."""
        return [record.target for record in self.corpus.splits[split]]

    def sets(self, texts: Sequence[str]) -> np.ndarray:
        """Which labels are in each of some targets or outputs, `[texts, labels]`."""
        sets = (set(self.task.labels_of(text)) for text in texts)
        return np.array([[label in labels for label in self.task.labels] for labels in sets])

    def scores(self, outputs: Sequence[str]) -> dict[str, float]:
        """The scores of outputs for the test text by title, and for the first one half the width of its 95 %
        interval: of micro F1, which is the accuracy if each text has one label."""
        records = list(self.corpus.splits[self.split])
        scores = self.task.scores(Evaluation(records, outputs, {}))
        written, right = self.sets(outputs), self.sets(self.targets(self.split))
        counts = np.stack([2 * (written & right).sum(1), written.sum(1) + right.sum(1)])
        draws = np.random.default_rng(0).integers(len(records), size=(SAMPLES, len(records)))
        both, total = np.array([counts[:, draw].sum(1) for draw in draws]).T
        low, high = np.quantile(100 * both / total, [0.025, 0.975])
        values = {metric.title: score.value for metric, score in scores.items()}
        return values | {f"± {next(iter(values))}": float(high - low) / 2}

    # The classifier

    def classified(self) -> dict[str, Any]:
        """Trains the classifier. Returns its outputs for the test text with the threshold alone, and with at
        least one label for each text; both thresholds; its parameters and CPU seconds."""
        started, config = time.process_time(), self._config()
        model = EncoderClassifier(config.model)
        optimizer = make_optimizer(config)
        state = init_state(model, optimizer, config.training.seed, (jnp.zeros((1, 2), jnp.int32),))
        step = make_train_step(model, binary_cross_entropy, optimizer, seed=config.training.seed)
        compiled = jax.jit(step, donate_argnums=0)
        batcher = prepare(self.task, self.corpus).batcher
        labels = self.sets(self.targets("train"))
        for index in range(config.training.steps):
            chosen = batcher.plan(index).chosen
            source = batcher(index)["source"]
            of_rows = np.zeros((len(source), len(self.task.labels)), bool)
            of_rows[: len(chosen)] = labels[chosen]
            state, metrics = compiled(state, {"source": source, "labels": of_rows})
        predict = jax.jit(lambda source: nn.sigmoid(model.apply(state.variables, source)))
        validation, test = (self._probabilities(predict, split) for split in ("validation", self.split))
        targets = self.sets(self.targets("validation"))
        results: dict[str, Any] = {
            "loss": float(metrics["loss"]),
            "parameters": sum(x.size for x in jax.tree.leaves(state.params)),
        }
        for name, choose in (("threshold", above), ("at least one", above_or_best)):
            best = max(THRESHOLDS, key=lambda threshold: f1_of(choose(validation, threshold), targets))
            chosen = choose(test, best)
            outputs = [
                SEPARATOR.join(label for label, has in zip(self.task.labels, row, strict=True) if has)
                for row in chosen
            ]
            results[name] = {"threshold": round(float(best), 2), "outputs": outputs}
        return results | {"cpu_seconds": time.process_time() - started}

    def _config(self) -> Config:
        model = self.task.config.model
        size = len(self.task.labels)
        classifier = replace(model, share_embeddings="target", target_vocab_size=size, output_bias=True)
        return replace(self.task.config, model=classifier)

    def _probabilities(self, predict: Callable[[np.ndarray], jax.Array], split: str) -> np.ndarray:
        examples = self.task.examples(list(self.corpus.splits[split]), truncate=True)
        length = self.task.config.data.max_length
        batches = (examples[start : start + ROWS] for start in range(0, len(examples), ROWS))
        fields = {"source": self.task.fields["source"]}
        padded = (stacked(batch, fields, (length,), ROWS)["source"] for batch in batches)
        return np.concatenate(list(map(predict, padded)))[: len(examples)]


def above(probabilities: np.ndarray, threshold: float) -> np.ndarray:
    """Whether each label is above a threshold, `[texts, labels]`."""
    return np.asarray(probabilities > threshold)


def above_or_best(probabilities: np.ndarray, threshold: float) -> np.ndarray:
    """The labels above a threshold, and the most probable one, `[texts, labels]`."""
    best = probabilities == probabilities.max(axis=1, keepdims=True)
    return above(probabilities, threshold) | best


def f1_of(chosen: np.ndarray, right: np.ndarray) -> float:
    """Micro F1, from 0 to 1."""
    return float(2 * (chosen & right).sum() / max((chosen.sum() + right.sum()), 1))


def main(arguments: list[str] | None = None) -> None:
    """Computes what is missing, prints the table and writes WORK/emotions.json and emotions.md."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for outputs and the table")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    given = parser.parse_args(arguments)
    studies = list(map(Study.of, given.runs))
    first = studies[0]
    for study in studies:
        if study.corpus.folder != first.corpus.folder or type(study.task) is not type(first.task):
            raise UserError(f"{study.path} and {first.path} have different texts or tasks; compare others")
    given.work.mkdir(parents=True, exist_ok=True)
    guess = most_frequent(first.corpus.splits["train"])
    records = list(first.corpus.splits[first.split])
    rows = {"most frequent": first.scores(list(map(guess, records)))}
    about: dict[str, Any] = machine()
    if isinstance(first.task, LabelSets):
        classifier = once(given.work / "classifier.json", first.classified)
        for name in ("threshold", "at least one"):
            rows[f"classifier, {name}"] = first.scores(classifier[name].pop("outputs"))
        about["classifier"] = classifier
    for study in studies:
        name = study.path.name
        outputs = once(
            given.work / f"{name}.json", lambda path=study.path: {"outputs": translated(path, "best")}
        )
        rows[name] = study.scores(outputs["outputs"])
    report(given.work / "emotions", {"about": about, "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
