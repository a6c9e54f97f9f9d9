"""Pictures become labels: no array of an example is a sequence."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from toys.task import ToyTask
from transformer import Context, DecodingTask, Lines, Loss, System
from transformer.config.model import ModelConfig
from transformer.data.sequences import Field
from transformer.model.parameters import Module
from transformer.tasks.metrics.scores import Metric, Score

SIZE = 3
LABELS = 2 * SIZE


class Images(ToyTask, DecodingTask, Lines):
    """Pictures of one bright row or column, whose number is the label."""

    criterion = Metric("accuracy", "accuracy")
    unit = "pictures"
    inputs = ("picture",)

    def __init__(self, config):
        super().__init__(config)
        self.fields = {
            "picture": Field("float32", fill=-np.inf, shape=(SIZE, SIZE), padded=False),
            "label": Field(padded=False, fill=-1),
        }

    @classmethod
    def records(cls, seed, count):
        random = np.random.default_rng(seed)
        found = []
        for label in random.integers(0, LABELS, count).tolist():
            picture = 0.1 * random.normal(size=(SIZE, SIZE))
            if label < SIZE:
                picture[label] += 1
            else:
                picture[:, label - SIZE] += 1
            found.append((picture.round(2).tolist(), label))
        return found

    @staticmethod
    def example(config):
        return (jax.ShapeDtypeStruct((1, SIZE, SIZE), "float32"),)

    def examples(self, records, *, truncate=False):
        return [{"picture": picture, "label": label} for picture, label in records]

    def outputs(self, result, record, n_best):
        return [int(label) for label in result["labels"][:n_best]]

    def measures(self):
        return {self.criterion: self.accuracy}

    def accuracy(self, given):
        right = [out == label for out, (_, label) in zip(given.outputs, given.records, strict=True)]
        return Score(100 * float(np.mean(right)), "all pictures", "")

    def record(self, line):
        return np.array(line.split(), float).reshape(SIZE, SIZE), 0

    def line(self, output):
        return str(output)


class ImagesModel(Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, picture):
        inner = nn.tanh(nn.Dense(self.config.d_model)(picture.reshape(len(picture), -1)))
        return nn.Dense(LABELS)(inner)


def images_objective(config, load_teacher):
    def objective(model, variables, batch, context: Context) -> Loss:
        there = batch["label"] >= 0
        logits = model.apply(variables, jnp.where(there[:, None, None], batch["picture"], 0))
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["label"][:, None] % LABELS, axis=1)
        return Loss(-(log_p[:, 0] * there).sum(), there.sum().astype(jnp.float32))

    return objective


@functools.partial(jax.jit, static_argnums=(0, 4))
def images_search(model, variables, inputs, lines, options):
    logits = model.apply(variables, inputs["picture"])
    return {"labels": jnp.argsort(-logits, axis=-1)}


SYSTEM = System(model=ImagesModel, objective=images_objective, search=images_search, task=Images)
