"""Real-valued inputs: up to 200 frames of 80 features become digits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from toys.task import DIGITS, FIRST, ToyTask
from transformer import Context, Hypothesis, Lines, Loss, System, TextTask, Transformer
from transformer.data.sequences import Field
from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.scores import Limits
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.model.encoder_decoder import decoder_input
from transformer.model.layers import Affine
from transformer.model.masks import Mask
from transformer.model.transformer import cross_attention
from transformer.tasks.metrics.scores import Metric, Score
from transformer.training.cross_entropy import cross_entropy
from transformer.training.objective import apply_training


class Frames(ToyTask, TextTask, Lines):
    """Digits, each "spoken" as 20 to 40 noisy frames."""

    criterion = Metric("error", "digit error rate", higher_is_better=False)
    unit = "recordings"
    inputs = ("frames", "count")

    def __init__(self, config):
        super().__init__(config)
        self.fields = {
            "frames": Field("float32", shape=(80,)),
            "digits": Field(fill=self.special.pad),
            "count": Field(padded=False),
        }

    @classmethod
    def records(cls, seed, count):
        random, voices = np.random.default_rng(seed), np.random.default_rng(9).normal(size=(DIGITS, 80))
        found = []
        for _ in range(count):
            digits = random.integers(0, DIGITS, random.integers(1, 6))
            frames = np.concatenate([np.repeat(voices[[d]], random.integers(20, 41), axis=0) for d in digits])
            found.append((frames + 0.1 * random.normal(size=frames.shape), digits.tolist()))
        return found

    @staticmethod
    def example(config):
        shapes = {"frames": ((1, 4, 80), "float32"), "count": ((1,), "int32"), "target": ((1, 3), "int32")}
        return tuple(jax.ShapeDtypeStruct(*given) for given in shapes.values())

    def batching(self):
        return dataclasses.replace(super().batching(), buckets=((80, 3), (200, 6)), batch_tokens=3200)

    def examples(self, records, *, truncate=False):
        eos = self.special.eos
        return [
            {
                "frames": frames.astype(np.float32),
                "digits": [*(digit + FIRST for digit in digits), eos],
                "count": len(frames),
            }
            for frames, digits in records
        ]

    def outputs(self, result, record, n_best):
        hypotheses = []
        for row, score, log_p in zip(result.tokens, result.scores, result.log_probabilities, strict=True):
            if np.isfinite(score):
                ids = tuple(int(index) for index in row if index != self.special.pad)
                tokens = tuple(self.pieces(ids, record))
                hypotheses.append(Hypothesis(self.spell(ids), tokens, float(score), float(log_p), ids=ids))
        return hypotheses[:n_best]

    def spell(self, ids):
        return " ".join(self.pieces(ids, None))

    def pieces(self, ids, record):
        return [str(index - FIRST) for index in ids if index >= FIRST]

    def phrases(self, text):
        return [tuple(int(digit) + FIRST for digit in text.split())]

    def scored(self, output):
        return output.text

    def line(self, output):
        return output.text

    def measures(self):
        return {self.criterion: self.errors}

    def errors(self, given):
        wrong = sum(
            self.text(record) != out for record, out in zip(given.records, given.outputs, strict=True)
        )
        return Score(100 * wrong / len(given.records), "whole recordings", f"{wrong} wrong")

    @staticmethod
    def text(record):
        return " ".join(map(str, record[1]))

    def shown(self, record, output):
        return f"{len(record[0])} frames", self.text(record), output

    def record(self, line):
        return np.array([[float(x)] * 80 for x in line.split()]), []


class FramesModel(Transformer):
    def setup(self) -> None:
        super().setup()
        self.front = Affine(self.config.d_model, (None, "model"))

    def __call__(self, frames, count, target, *, deterministic=True):
        memory = self.encode(frames, count, deterministic=deterministic)
        return self.output(self.decode(memory, target, deterministic=deterministic))

    def source_mask(self, frames):
        return (frames != 0).any(axis=-1)

    def encode(self, frames, count, *, deterministic=True):
        there = jnp.arange(frames.shape[1]) < count[:, None]
        positions = jnp.arange(frames.shape[1])
        return self.encode_embedded(self.front(frames), there, Mask(keys=there), positions, deterministic)


def token_objective(inputs, target):
    """Cross-entropy of `batch[target]`, given other fields."""

    def objective(model, variables, batch, context: Context) -> Loss:
        special, ids = model.config.special, batch[target]
        given = [batch[name] for name in inputs], decoder_input(ids, special)
        rngs, fixed = context.rngs("dropout"), context.deterministic
        logits, sown = apply_training(
            model, variables, context, *given[0], given[1], deterministic=fixed, rngs=rngs
        )
        words = (ids != special.pad).astype(jnp.float32)
        nll = (cross_entropy(logits, ids) * words).sum()
        return Loss(nll, words.sum(), {"nll": (nll, words.sum())}, **sown)

    return objective


def limits(inputs, special, options):
    return Limits(jnp.where(inputs["count"] > 0, 7, 0), 7)


SYSTEM = System(
    model=FramesModel,
    objective=lambda config, _: token_objective(("frames", "count"), "digits"),
    search=AutoregressiveSearch(limits),
    alignment=forced_alignment(cross_attention),
    scores=forced_scores,
    task=Frames,
)
