"""The paper in one file is an oracle: what the package computes equals what it computes.

Both are float32, and sum in other orders: logits are sums of some hundred products around 1, so they differ
by about 1e-6. Gradients are sums of numbers as large as the largest gradients.
"""

import ast
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import random_variables

from transformer import paper
from transformer.config.options import Config
from transformer.config.training import OptimizerConfig
from transformer.config.transformer import TransformerConfig
from transformer.decoding.beam import beam_search
from transformer.decoding.sampling import greedy_search
from transformer.model.transformer import Transformer
from transformer.training.objective import Context, translation_objective
from transformer.training.schedule import make_optimizer
from transformer.training.step import init_state, make_train_step

MODEL = Transformer(
    TransformerConfig(vocab_size=13, num_layers=2, d_model=16, d_ff=32, num_heads=2, dropout=0.0)
)
VARIABLES = jax.tree.map(jnp.asarray, random_variables(MODEL, seed=4))
SOURCE = jnp.array([[4, 5, 6, 2, 0, 0], [7, 12, 3, 2, 0, 0], [9, 8, 4, 5, 10, 2]])
TARGET = jnp.array([[6, 7, 2, 0, 0], [5, 5, 4, 11, 2], [9, 2, 0, 0, 0]])
OBJECTIVE = translation_objective(paper.SMOOTHING)


def assert_close(ours: Any, papers: Any, tolerance: float) -> None:
    """Of two trees. The tolerance is relative to the largest number."""
    ours, papers = (jax.tree.map(np.asarray, tree) for tree in (ours, papers))
    assert jax.tree.structure(ours) == jax.tree.structure(papers)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(papers))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(papers), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def test_logits() -> None:
    params = paper.from_package(VARIABLES["params"])
    decoder_input = paper.shifted(TARGET)
    papers = paper.decode(params, paper.encode(params, SOURCE), SOURCE, decoder_input)
    ours = MODEL.apply(VARIABLES, SOURCE, decoder_input)
    is_token = TARGET != paper.PAD
    assert_close(ours[is_token], papers[is_token], 1e-5)


@pytest.mark.thorough
def test_loss_and_gradients() -> None:
    def ours(params: Any) -> jax.Array:
        batch = {"source": SOURCE, "target": TARGET}
        loss = OBJECTIVE(MODEL, {"params": params}, batch, Context())
        return loss.total / loss.weight

    loss, gradients = jax.value_and_grad(ours)(VARIABLES["params"])
    papers, of_paper = jax.value_and_grad(paper.loss)(paper.from_package(VARIABLES["params"]), SOURCE, TARGET)
    assert_close(loss, papers, 1e-6)
    assert_close(paper.from_package(gradients), of_paper, 1e-5)


@pytest.mark.thorough
def test_three_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer of the paper is the default one. The warmup is shorter: at the rates of the paper's first
    steps, about 1e-6, float32 would round the updates away."""
    monkeypatch.setattr(paper, "WARMUP", 10)
    config = Config(model=MODEL.config, optimizer=OptimizerConfig(warmup_steps=10))
    optimizer = make_optimizer(config)
    example = (SOURCE, TARGET)
    state = init_state(MODEL, optimizer, 0, example, variables=VARIABLES)
    step = jax.jit(make_train_step(MODEL, OBJECTIVE, optimizer, seed=0))
    params = paper.from_package(VARIABLES["params"])
    of_adam = paper.adam(MODEL.config.d_model).init(params)
    for _ in range(3):
        state, means = step(state, {"source": SOURCE, "target": TARGET})
        params, of_adam, loss = paper.update(params, of_adam, SOURCE, TARGET)
        assert_close(means["loss"], loss, 1e-6)
    moved = jax.tree.map(jnp.subtract, params, paper.from_package(VARIABLES["params"]))
    ours = jax.tree.map(
        jnp.subtract, paper.from_package(state.params), paper.from_package(VARIABLES["params"])
    )
    # Adam moves all elements about as far, also those whose gradients cancel but for some rounding
    assert_close(ours, moved, 1e-2)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(moved), strict=True):
        assert abs(a - b).mean() < 1e-4 * abs(b).mean()


@pytest.mark.thorough
@pytest.mark.parametrize("row", range(len(SOURCE)))
def test_the_n_best_of_beam_search(row: int) -> None:
    source = SOURCE[row : row + 1]
    ours = beam_search(MODEL, VARIABLES["params"], source)
    papers = paper.beam_search(paper.from_package(VARIABLES["params"]), source[0])
    assert [[*tokens] for _, tokens in papers] == [[t for t in row.tolist() if t] for row in ours.tokens[0]]
    np.testing.assert_allclose(ours.scores[0], [score for score, _ in papers], rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("row", range(len(SOURCE)))
def test_greedy_search(row: int) -> None:
    source = SOURCE[row : row + 1]
    ours = greedy_search(MODEL, VARIABLES["params"], source)
    papers = paper.greedy(paper.from_package(VARIABLES["params"]), source[0])
    assert papers == [token for token in ours.tokens[0, 0].tolist() if token]


@pytest.mark.thorough
def test_it_learns_and_then_translates(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its initial parameters, with dropout, and no other file: to turn three words around."""
    monkeypatch.setattr(paper, "WARMUP", 40)
    rng = np.random.default_rng(0)
    words = rng.integers(4, 9, (64, 3))
    end = np.full((64, 1), paper.EOS)
    source, target = np.hstack([words, end]), np.hstack([words[:, ::-1], end])
    params = paper.init(jax.random.key(0), vocabulary=9, layers=1, width=32, heads=2, inner=64)
    state = paper.adam(32).init(params)
    for step in range(150):
        params, state, _ = paper.update(params, state, source, target, jax.random.key(step))
    right = [paper.greedy(params, jnp.asarray(row)) for row in source[:8]]
    assert right == target[:8].tolist()
    assert paper.beam_search(params, jnp.asarray(source[0]))[0][1] == target[0].tolist()


def test_dropout_drops_a_tenth_and_keeps_the_mean() -> None:
    dropped = paper.dropout(jnp.ones((100, 100)), iter(jax.random.split(jax.random.key(1), 1)))
    assert (dropped == 0).mean() == pytest.approx(paper.DROPOUT, abs=0.01)
    assert dropped.mean() == pytest.approx(1, abs=0.02)


def test_it_reads_no_other_file_of_the_package() -> None:
    """Only JAX and optax, so that it can be read alone, and shares no fault."""
    tree = ast.parse(Path(paper.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert others == {"jax", "optax"}
