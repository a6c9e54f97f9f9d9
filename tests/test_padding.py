"""Rows and columns of padding change nothing, in any system and with any normalisation."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from drawn_batches import with_pictures
from of_a_config import model_shapes, objective_of
from systems_on_a_mesh import config_of
from tiers import mostly_slow
from untrained_teacher import untrained_teacher

from transformer import Config, Context, TrainState, make_train_step
from transformer.config.methods import GuidanceConfig, RDropConfig, RewardConfig, ScheduledConfig
from transformer.config.transformer import StackConfig
from transformer.model.normalization import NORMALIZATIONS
from transformer.systems.registry import REGISTRY, find_system
from transformer.systems.tagging.system import NO_LABEL

ROWS, COLUMNS = 2, 4
"""Of padding."""
EOS = 2
FILLS = {"classes": -1, "boxes": 0}
"""Of arrays without columns, that rows of padding have."""
FRAMES = {"speech": "source", "synthesis": "target", "nonautoregressive-synthesis": "target"}
VARIANTS = {
    "nonautoregressive, bos": {"decoder_input": "bos", "bos_length": 128},
    "nonautoregressive, fertility": {"decoder_input": "fertility", "teacher": "untrained"},
    "synthesis, own frames": {"own_frames": 1.0},
}
METHODS = {
    "guided": {"guidance": GuidanceConfig(weight=1.0)},
    "rdrop": {"rdrop": RDropConfig(weight=1.0)},
    "scheduled": {"scheduled": ScheduledConfig(share=1.0, updates=1, tokens="mixture", gradient="all")},
    "risk": {"reward": RewardConfig(share=0.5, candidates="beam", extra_length=2)},
}


def is_stack(name: str) -> bool:
    """Whether a system has the normalisations of a stack."""
    return isinstance(config_of(name.split(",")[0]).model, StackConfig)


def cases():
    """Each system that normalises by this package's module, with each normalisation; the others once."""
    for name in (*REGISTRY, *VARIANTS):
        for norm in NORMALIZATIONS if is_stack(name) else ("layer",):
            quick = (name, norm) == ("transformer", "power")
            yield pytest.param(name, norm, marks=() if quick else pytest.mark.slow)


def configured(name: str, norm: str, **methods) -> Config:
    config = config_of(name.split(",")[0])
    options = VARIANTS.get(name, {}) | {"norm": "pre", "normalization": norm}
    known = {item.name for item in dataclasses.fields(config.model)}
    model = {key: value for key, value in options.items() if key in known}
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **model), **methods)


def sentences(random: np.random.Generator, rows: int) -> np.ndarray:
    """Ids of one to six tokens, each closed by <eos>."""
    ids = random.integers(4, 13, (rows, 6)).astype(np.int32)
    ends = np.arange(rows) % 6
    ids[np.arange(rows), ends] = EOS
    return np.where(np.arange(6) <= ends[:, None], ids, 0)


def batch_of(config: Config) -> dict[str, np.ndarray]:
    random, rows = np.random.default_rng(0), 6
    batch = {"source": sentences(random, rows)[::-1], "target": sentences(random, rows)}
    if side := FRAMES.get(config.system):
        frames = random.normal(size=(rows, 12, config.data.bands)).astype(np.float32)
        there = np.arange(12) < random.integers(3, 13, rows)[:, None]
        batch[side] = np.where(there[..., None], frames, -np.inf).astype(np.float32)
    if config.system == "tagging":
        batch["labels"] = np.where(batch["source"] != 0, batch["source"] - 1, NO_LABEL)
    if config.system == "language-model":
        first = np.pad(batch["target"], ((0, 0), (1, 0)), constant_values=1)[:, :-1]
        there = batch["target"] != 0
        batch |= {"source": np.where(there, first, 0), "characters": 3.0 * there, "words": 1.0 * there}
    return with_pictures(config, batch)


def padded(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The batch with rows and columns of padding."""
    rows_and_columns = {}
    for name, x in batch.items():
        columns = 0 if name in FILLS or x.ndim == 4 else COLUMNS
        fill = FILLS.get(name, -np.inf if x.ndim >= 3 else NO_LABEL if name == "labels" else 0)
        sides = ((0, ROWS), (0, columns), *((0, 0),) * (x.ndim - 2))
        rows_and_columns[name] = np.pad(x, sides, constant_values=fill)
    return rows_and_columns


def teacher_of(config: Config):
    """Each target token is aligned to the source token at its position, or the last one."""
    if config.system != "nonautoregressive":
        return untrained_teacher(config)

    def alignment(model, variables, inputs, target):
        source = inputs["source"]
        last = (source != 0).sum(axis=1)[:, None] - 1
        place = jnp.minimum(jnp.arange(target.shape[1]), last)
        return jax.nn.one_hot(place, source.shape[1])

    teacher = SimpleNamespace(
        variables={}, model=None, system=SimpleNamespace(required=lambda ability: alignment)
    )
    return lambda _: teacher


def built(config: Config, batch: dict[str, np.ndarray]):
    """The model, its objective, random variables, and the memory of the rows."""
    system, random = find_system(config.system), np.random.default_rng(1)

    def draw(path, like):
        usual = 1.0 if path[-1].key in ("scale", "variance", "quadratic") else 0.0
        return jnp.asarray(usual + random.uniform(-0.3, 0.3, like.shape), like.dtype)

    variables = jax.tree_util.tree_map_with_path(draw, model_shapes(config))
    carry = jax.tree.map(lambda x: x[: len(batch["source"])], system.carry(config, False))
    objective = objective_of(config, teacher_of(config), str)
    return system.model(config.model), objective, variables, carry


def measured(config: Config, batch: dict[str, np.ndarray]):
    """The loss and its sums, in training."""
    model, objective, variables, carry = built(config, batch)
    context = Context(jax.random.key(0), carry=carry)
    loss = jax.jit(lambda variables, batch: objective(model, variables, batch, context))(variables, batch)
    return {"total": loss.total, "metrics": loss.metrics, "statistics": loss.statistics}


def updated(config: Config, batch: dict[str, np.ndarray]):
    """Parameters, running statistics and metrics after an update by the gradient itself."""
    model, objective, variables, carry = built(config, batch)
    optimizer, params = optax.sgd(1.0), variables.pop("params")
    step = make_train_step(model, objective, optimizer, seed=0)
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), variables, None, carry)
    state, metrics = jax.jit(step)(state, jax.tree.map(jnp.asarray, batch))
    return {"params": state.params, "statistics": state.statistics, "metrics": metrics}


def assert_close(found, expected):
    leaves = jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected)
    for (path, x), y in zip(*leaves, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=jax.tree_util.keystr(path))


NORMALISED = [name for name in (*REGISTRY, *VARIANTS) if is_stack(name)]


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("name", mostly_slow([*REGISTRY, *VARIANTS], NORMALISED))
def test_padding_changes_no_loss_and_no_statistic(name):
    config = configured(name, "batch")
    batch = batch_of(config)
    assert_close(measured(config, padded(batch)), measured(config, batch))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), list(cases()))
def test_padding_changes_no_update(name, norm):
    config = configured(name, norm)
    batch = batch_of(config)
    assert_close(updated(config, padded(batch)), updated(config, batch))


@pytest.mark.thorough
@pytest.mark.by_default("guided")
@pytest.mark.parametrize("method", METHODS)
def test_padding_changes_no_training_method(method):
    config = configured("transformer", "batch", **METHODS[method])
    batch = batch_of(config)
    assert_close(measured(config, padded(batch)), measured(config, batch))


def test_packed_rows_have_the_statistics_of_their_sentences():
    config = configured("transformer", "batch")
    batch = batch_of(config)
    packed = {}
    for side in ("source", "target"):
        segments = np.where(batch[side] != 0, np.arange(1, 7)[:, None], 0)
        ids, sentences = (x[batch[side] != 0] for x in (batch[side], segments))
        packed |= {side: np.pad(ids, (0, 3))[None], f"{side}_segments": np.pad(sentences, (0, 3))[None]}
    assert_close(measured(config, packed), measured(config, batch))
