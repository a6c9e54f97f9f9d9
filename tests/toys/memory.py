"""A decoder-only language model that carries memory from batch to batch."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from toys.task import DIGITS, FIRST, ToyTask
from transformer import Context, DecodingTask, Lines, Loss, System
from transformer.config.model import ModelConfig
from transformer.data.plans import Plan, Rows
from transformer.data.sequences import Field, stacked
from transformer.model.parameters import Module
from transformer.tasks.metrics.scores import PERPLEXITY, Score
from transformer.training.cross_entropy import cross_entropy


class Stream(ToyTask, DecodingTask, Lines):
    """One long row of digits, each the sum of the two before, in pieces of eight."""

    criterion = PERPLEXITY
    decodes = False
    unit = "pieces"
    inputs = ("ids",)
    rows = 8

    def __init__(self, config):
        super().__init__(config)
        self.fields = {"ids": Field(fill=self.special.pad)}

    @classmethod
    def records(cls, seed, count):
        digits = [seed % DIGITS, 1]
        while len(digits) < 8 * count:
            digits.append((digits[-1] + digits[-2]) % DIGITS)
        return [digits[start : start + 8] for start in range(0, 8 * count, 8)]

    @staticmethod
    def example(config):
        return jax.ShapeDtypeStruct((1, 3), "int32"), jax.ShapeDtypeStruct((1, 16), "float32")

    def examples(self, records, *, truncate=False):
        return [{"ids": [digit + FIRST for digit in digits]} for digits in records]

    def plan(self, records, examples, progress=None):
        return Contiguous(len(records), self.rows)

    def fixed_batches(self, records, host, hosts):
        plan, examples = Contiguous(len(records), 2), self.examples(list(records))
        for step in range(plan.steps_per_epoch):
            rows, share = [examples[index] for index in plan(step).chosen], self.rows // hosts
            yield stacked(rows[host * share :][:share], self.fields, (8,), share)

    def summary(self, means):
        return {"nll": means["nll"], "perplexity": float(np.exp(means["nll"]))}

    def measures(self):
        return {PERPLEXITY: lambda given: Score(float(np.exp(given.means["nll"])), "per digit", "")}

    def outputs(self, result, record, n_best):
        return [" ".join(str(int(index) - FIRST) for index in result["next"])]

    def record(self, line):
        return [int(word) for word in line.split()]


class Contiguous(Plan):
    """Row r reads one part of the stream from its beginning to its end."""

    dropped, padding = 0, 0.0

    def __init__(self, pieces: int, rows: int) -> None:
        self.rows, self.steps_per_epoch = rows, pieces // rows

    def __call__(self, step):
        index = step % self.steps_per_epoch
        members = [[row * self.steps_per_epoch + index] for row in range(self.rows)]
        return Rows.of(members, (8,), self.rows)


class MemoryModel(Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, ids, memory):
        """Logits of the next digit at every position, and the memory after the last."""
        c = self.config
        embedded = nn.Embed(c.vocab_size, c.d_model)(ids)
        cell = nn.RNN(nn.GRUCell(c.d_model), return_carry=True)
        memory, states = cell(embedded, initial_carry=memory)
        return nn.Dense(c.vocab_size)(states), memory


def memory_objective(config, load_teacher):
    def objective(model, variables, batch, context: Context) -> Loss:
        ids = batch["ids"]
        logits, memory = model.apply(variables, ids, context.carry)
        there = (ids[:, 1:] != 0).astype(jnp.float32)
        nll = (cross_entropy(logits[:, :-1], ids[:, 1:]) * there).sum()
        return Loss(nll, there.sum(), {"nll": (nll, there.sum())}, carry=jax.lax.stop_gradient(memory))

    return objective


@functools.partial(jax.jit, static_argnums=(0, 4))
def memory_search(model, variables, inputs, lines, options):
    """The five most probable digits after the prompt."""
    ids = inputs["ids"]
    last = jnp.maximum((ids != 0).sum(axis=1) - 1, 0)
    memory, found = jnp.zeros((len(ids), 16)), []
    for position in range(ids.shape[1]):
        _, after = model.apply(variables, ids[:, position : position + 1], memory)
        memory = jnp.where((position < last)[:, None], after, memory)
    token = jnp.take_along_axis(ids, last[:, None], axis=1)
    for _ in range(5):
        logits, memory = model.apply(variables, token, memory)
        token = logits.argmax(axis=-1)
        found.append(token[:, 0])
    return {"next": jnp.stack(found, axis=1)}


SYSTEM = System(
    model=MemoryModel,
    objective=memory_objective,
    search=memory_search,
    task=Stream,
    carry=lambda config, evaluating: jnp.zeros((Stream.rows, 16)),
)
