"""Six small systems, written against the public contracts only: they are what the contracts are tested with.

| | |
|---|---|
| frames | real-valued inputs: up to 200 frames of 80 features become digits |
| memory | a decoder-only language model that carries memory from batch to batch |
| tracked | a layer with running statistics of its activations and of their gradients |
| matrices | a decoder whose cache is one matrix per head |
| waves | real-valued outputs, with its own search |
| forbidden | a search hook that forbids a token |
"""

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer import Config, Context, Loss, System, Task, Transformer, TransformerConfig, register
from transformer.config import CorpusConfig, DataConfig, ModelConfig
from transformer.data.batching import Field, stacked
from transformer.data.corpus import Corpus
from transformer.data.plans import Plan, Rows
from transformer.decoding.beam import Limits
from transformer.decoding.forced import forced_alignment, forced_scores
from transformer.decoding.search import autoregressive_search
from transformer.evaluation.scores import PERPLEXITY, Measure, Score
from transformer.model.cache import Cache, States
from transformer.model.encoder_decoder import EncoderDecoder, shift_right
from transformer.model.layers import Affine
from transformer.model.masks import Mask
from transformer.model.parameters import Module
from transformer.model.statistics import running_gradient, running_mean
from transformer.model.transformer import cross_attention
from transformer.systems.registry import NO_ALIGNMENT
from transformer.training.cross_entropy import cross_entropy
from transformer.training.objective import apply_training, translation_objective

SIZES = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0, "vocab_size": 14}
DIGITS, FIRST = 10, 4  # ids 4 to 13


@dataclass(frozen=True)
class ToyData(CorpusConfig):
    """Options of a made-up corpus."""

    records: int = 96
    """Size of the training split."""


class Listed(list):
    """A split in memory."""

    def __getitems__(self, indices):
        return [self[int(index)] for index in indices]


class ToyTask(Task):
    """A task without files, whose records are made up."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.special = config.model.special

    @classmethod
    def records(cls, seed: int, count: int) -> list[Any]:
        raise NotImplementedError

    @classmethod
    def open_corpus(cls, config: Config) -> Corpus:
        sizes = {"train": (0, config.data.records), "validation": (1, 20), "test": (2, 20)}
        splits = {name: Listed(cls.records(*given)) for name, given in sizes.items()}
        return Corpus(cls.__name__, splits, Path(config.data.cache_dir) / cls.__name__)

    @classmethod
    def create(cls, config, corpus, progress=None):
        return cls(config)

    @classmethod
    def load(cls, config, folder):
        return cls(config)

    def save(self, folder: Path) -> None:
        pass


# (a) real-valued inputs


class Frames(ToyTask):
    """Digits, each "spoken" as 20 to 40 noisy frames."""

    criterion = Measure("error", "digit error rate", higher_is_better=False)
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
    def example():
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

    def outputs(self, found, record, n_best):
        ids = [int(index) - FIRST for index in found.tokens[0] if index >= FIRST]
        return [" ".join(map(str, ids))]

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

    def encode(self, frames, count, *, deterministic=True):
        there = jnp.arange(frames.shape[1]) < count[:, None]
        positions = jnp.arange(frames.shape[1])
        return self.encode_embedded(self.front(frames), there, Mask(keys=there), positions, deterministic)


def token_objective(inputs, target):
    """Cross-entropy of `batch[target]`, given other fields."""

    def objective(model, variables, batch, context: Context) -> Loss:
        special, ids = model.config.special, batch[target]
        given = [batch[name] for name in inputs], shift_right(ids, special.bos)
        rngs, fixed = context.rngs("dropout"), context.deterministic
        logits, statistics = apply_training(
            model, variables, *given[0], given[1], deterministic=fixed, rngs=rngs
        )
        words = (ids != special.pad).astype(jnp.float32)
        nll = (cross_entropy(logits, ids) * words).sum()
        return Loss(nll, words.sum(), {"nll": (nll, words.sum())}, statistics)

    return objective


def frames_search(model, variables, inputs, lines, options):
    limits = Limits(jnp.where(inputs["count"] > 0, 7, 0), 7)
    return autoregressive_search(model, variables, inputs, lines, options, limits=limits)


# (b) memory from batch to batch


class Stream(ToyTask):
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
    def example():
        return jax.ShapeDtypeStruct((1, 3), "int32"), jax.ShapeDtypeStruct((1, 16), "float32")

    def examples(self, records, *, truncate=False):
        return [{"ids": [digit + FIRST for digit in digits]} for digits in records]

    def plan(self, records, lengths, progress=None):
        return Contiguous(len(records), self.rows)

    def fixed_batches(self, records, host, hosts):
        plan, examples = Contiguous(len(records), 2), self.examples(list(records))
        for step in range(plan.steps_per_epoch):
            rows = [[examples[index] for index in row] for row in plan(step).members]
            empty = [[] for _ in range(self.rows - len(rows))]
            share = self.rows // hosts
            yield stacked((rows + empty)[host * share :][:share], self.fields, (8,), share)

    def summary(self, means):
        return {"nll": means["nll"], "perplexity": float(np.exp(means["nll"]))}

    def measures(self):
        return {PERPLEXITY: lambda given: Score(float(np.exp(given.means["nll"])), "per digit", "")}

    def outputs(self, found, record, n_best):
        return [" ".join(str(int(index) - FIRST) for index in found["next"])]

    def record(self, line):
        return [int(word) for word in line.split()]


class Contiguous(Plan):
    """Row r reads one part of the stream from its beginning to its end."""

    dropped, padding = 0, 0.0

    def __init__(self, pieces: int, rows: int) -> None:
        self.rows, self.steps_per_epoch = rows, pieces // rows

    def __call__(self, step):
        index = step % self.steps_per_epoch
        return Rows([[row * self.steps_per_epoch + index] for row in range(self.rows)], (8,), self.rows)


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


# (c) running statistics


@jax.custom_vjp
def observed(x, probe):
    return x


observed.defvjp(lambda x, probe: (x, None), lambda _, g: (g, (g**2).sum(axis=(0, 1))))


class Tracked(Module):
    """Divides by the running root mean square, and measures that of the gradient."""

    @nn.compact
    def __call__(self, x, there):
        count = there.sum().astype(jnp.float32)
        squares = (jax.lax.stop_gradient(x) ** 2 * there[..., None]).sum(axis=(0, 1))
        scale = running_mean(self, "squares", squares, count, momentum=0.5, initial=1.0)
        _, probe = running_gradient(self, "gradient", scale.shape, count, momentum=0.5)
        return observed(x / jnp.sqrt(scale + 1e-3), probe)


class TrackedModel(Transformer):
    def setup(self) -> None:
        super().setup()
        self.tracked = Tracked()

    def decode(self, memory, target, *, segments=None, deterministic=True):
        states = super().decode(memory, target, segments=segments, deterministic=deterministic)
        return self.tracked(states, target != self.config.special.pad)

    def hidden_step(self, cache, tokens):
        states, cache = super().hidden_step(cache, tokens)
        return self.tracked(states, tokens != self.config.special.pad), cache


# (d) one matrix per head


class MatricesModel(EncoderDecoder):
    """Linear attention (Katharopoulos et al. 2020): the decoder's past is a sum of outer products."""

    config: TransformerConfig

    def setup(self) -> None:
        super().setup()
        width = self.config.d_model
        self.query, self.key, self.value, self.source = (Affine(width, ("model", "hidden")) for _ in range(4))

    def encode(self, source, *, segments=None, deterministic=True):
        there = (source != self.config.special.pad)[..., None]
        states = self.source(self.source_embedding(source)) * there
        return states.sum(axis=1) / jnp.maximum(there.sum(axis=1), 1)

    def step(self, matrix, x, memory):
        """One token of every beam: x `[b, n, m]`, matrix `[b, n, h, d, d]`."""

        def heads(x):
            return x.reshape(*x.shape[:2], self.config.num_heads, -1)

        query, key, value = (heads(nn.tanh(layer(x))) for layer in (self.query, self.key, self.value))
        matrix = matrix + key[..., :, None] * value[..., None, :]
        context = (query[..., None, :] @ matrix)[..., 0, :].reshape(x.shape)
        return matrix, x + context + memory[:, None]

    def decode(self, memory, target, *, segments=None, deterministic=True):
        matrix, found = self.empty(memory, 1).value, []
        embedded = self.embed_target(target)
        for time in range(target.shape[1]):
            matrix, x = self.step(matrix, embedded[:, time : time + 1], memory)
            found.append(x)
        return jnp.concatenate(found, axis=1)

    def empty(self, memory, beams):
        c = self.config
        width = c.d_model // c.num_heads
        return States(jnp.zeros((len(memory), beams, c.num_heads, width, width), memory.dtype))

    def init_cache(self, memory, beam_size, length):
        return Cache.empty((self.empty(memory, beam_size),), memory, rows=len(memory))

    def decode_step(self, cache, tokens):
        (layer,) = cache.layers
        matrix, x = self.step(layer.value, self.embed_target(tokens), cache.source)
        return self.output(x), cache.end_step([layer.append(matrix, cache.step, cache.positions)])


# (e) real-valued outputs


class Waves(ToyTask):
    """Digits become ten samples of two sines with these frequencies."""

    criterion = Measure("mse", "mean squared error", higher_is_better=False)
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
    def example():
        return (jax.ShapeDtypeStruct((1, 2), "int32"),)

    def examples(self, records, *, truncate=False):
        return [{"digits": [d + FIRST for d in digits], "wave": wave} for digits, wave in records]

    def outputs(self, found, record, n_best):
        return [found["wave"]]

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


# (f) a hook


@dataclass(frozen=True)
class Forbid:
    """Never generates a token, and counts the tokens of each beam."""

    token: int

    def init(self, inputs):
        return {"tokens": jnp.zeros(len(inputs["source"]), jnp.int32)}

    def filter(self, logits, state):
        return logits.at[..., self.token].set(-jnp.inf)

    def advance(self, tokens, state):
        return {"tokens": state["tokens"] + (tokens >= 0)}


FORBIDDEN = 5


# the registry


def text(**changes):
    """A system that translates."""
    return System(
        **{
            "model": Transformer,
            "objective": lambda config, _: translation_objective(0.1),
            "search": autoregressive_search,
            "scores": forced_scores,
            "alignment": forced_alignment(cross_attention),
            **changes,
        }
    )


TOYS = {
    "toy-frames": System(
        model=FramesModel,
        objective=lambda config, _: token_objective(("frames", "count"), "digits"),
        search=frames_search,
        task=Frames,
    ),
    "toy-memory": System(
        model=MemoryModel,
        objective=memory_objective,
        search=memory_search,
        task=Stream,
        carry=lambda config: jnp.zeros((Stream.rows, 16)),
    ),
    "toy-tracked": text(model=TrackedModel),
    "toy-matrices": text(model=MatricesModel, alignment=NO_ALIGNMENT),
    "toy-waves": System(model=WavesModel, objective=waves_objective, search=waves_search, task=Waves),
    "toy-forbidden": text(search=functools.partial(autoregressive_search, hook=Forbid(FORBIDDEN))),
}


STATEFUL = ("toy-memory", "toy-tracked")
"""Those that a checkpoint has more of than parameters."""


def register_toys() -> None:
    """Makes them known, as another package would."""
    for name, system in TOYS.items():
        register(name, system, data_config=DataConfig if is_text(name) else ToyData)


def is_text(name: str) -> bool:
    """Whether it translates."""
    return not issubclass(TOYS[name].task, ToyTask)


def buckets(name: str) -> tuple[int, ...]:
    """The padded lengths of its inputs."""
    return {"toy-frames": (80, 200), "toy-waves": (2,)}.get(name, (8,))
