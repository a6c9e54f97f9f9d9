"""Real-valued outputs, with a search of their own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from toys.task import DIGITS, FIRST, ToyTask
from transformer import Context, DecodingTask, Lines, Loss, System
from transformer.config.model import ModelConfig
from transformer.data.sequences import Field
from transformer.model.parameters import Module
from transformer.tasks.metrics.scores import Metric, Score


class Waves(ToyTask, DecodingTask, Lines):
    """Digits become ten samples of two sines with these frequencies."""

    criterion = Metric("mse", "mean squared error", higher_is_better=False)
    unit = "waves"
    inputs = ("digits",)

    def __init__(self, config):
        super().__init__(config)
        self.fields = {"digits": Field(), "wave": Field("float32", shape=(10, 2), padded=False)}

    @classmethod
    def records(cls, seed, count):
        digits = np.random.default_rng(seed).integers(0, DIGITS, (count, 2))
        return [(pair.tolist(), np.sin(np.arange(10)[:, None] * pair / 5)) for pair in digits]

    @staticmethod
    def example(config):
        return (jax.ShapeDtypeStruct((1, 2), "int32"),)

    def examples(self, records, *, truncate=False):
        return [{"digits": [d + FIRST for d in digits], "wave": wave} for digits, wave in records]

    def outputs(self, result, record, n_best):
        return [result["wave"]]

    def measures(self):
        return {self.criterion: self.mse}

    def scored(self, output):
        return output.tolist()

    def mse(self, given):
        pairs = zip(given.outputs, given.records, strict=True)
        return Score(float(np.mean([(out - wave) ** 2 for out, (_, wave) in pairs])), "all samples", "")

    def shown(self, record, output):
        return str(record[0]), self.line(record[1]), self.line(output)

    def line(self, output):
        return " ".join(f"{x:.2f}" for x in np.ravel(output))

    def record(self, line):
        return [int(word) for word in line.split()], np.zeros((10, 2))


class WavesModel(Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, digits):
        c = self.config
        embedded = nn.Embed(c.vocab_size, c.d_model)(digits[:, :2])
        inner = nn.tanh(nn.Dense(c.d_model)(embedded.reshape(len(digits), 2 * c.d_model)))
        return nn.Dense(20)(inner).reshape(-1, 10, 2)


def waves_objective(config, load_teacher):
    def objective(model, variables, batch, context: Context) -> Loss:
        there = (batch["digits"] != 0).any(axis=1).astype(jnp.float32)
        squares = ((model.apply(variables, batch["digits"]) - batch["wave"]) ** 2).mean(axis=(1, 2))
        return Loss((squares * there).sum(), there.sum())

    return objective


@functools.partial(jax.jit, static_argnums=(0, 4))
def waves_search(model, variables, inputs, lines, options):
    return {"wave": model.apply(variables, inputs["digits"])}


SYSTEM = System(model=WavesModel, objective=waves_objective, search=waves_search, task=Waves)
