"""Non-autoregressive speech synthesis: durations, the model, its loss and its search."""

import dataclasses
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from small_run import quiet
from toy_runs import nonautoregressive_config, synthesis_config
from untrained_teacher import untrained_teacher

from transformer import PRESETS, Synthesizer, UserError, train
from transformer.runs.exhibits import read_exhibits
from transformer.systems.nonautoregressive_synthesis.options import (
    NonAutoregressiveSynthesisConfig,
    NonAutoregressiveSynthesisDecodingConfig,
)
from transformer.systems.nonautoregressive_synthesis.system import (
    NonAutoregressiveSynthesiser,
    Spoken,
    durations,
    nonautoregressive_synthesis_objective,
    nonautoregressive_synthesis_search,
    steps_of,
    teacher_durations,
)
from transformer.training.objective import Context

SIZES = {"vocab_size": 9, "num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "bands": 3}
SIZES |= {"postnet_layers": 2, "postnet_width": 6, "dropout": 0.0, "teacher": "untrained"}
SOURCE = jnp.array([[4, 5, 6, 2, 0], [7, 2, 0, 0, 0], [8, 4, 4, 5, 2]])
TOKENS = SOURCE > 0


def network(**options):
    model = NonAutoregressiveSynthesiser(NonAutoregressiveSynthesisConfig(**SIZES | options))
    return model, init(model, jax.random.key(0), SOURCE[:1], jnp.zeros((1, 8, 3)))


def frames(lengths, size=None):
    rng = np.random.default_rng(0)
    batch = np.full((len(lengths), size or max(lengths), 3), float("-inf"), np.float32)
    for row, length in zip(batch, lengths, strict=True):
        row[:length] = rng.normal(size=(length, 3))
    return jnp.asarray(batch)


def config_of(model):
    return dataclasses.replace(PRESETS["nonautoregressive-synthesis"], model=model.config)


def test_durations_are_those_of_the_best_order_of_tokens():
    """Against all sequences of tokens that never go back."""
    rng = np.random.default_rng(1)
    attention = rng.dirichlet(np.ones(4), (6, 5)).astype(np.float32)
    for lengths, words in (([5] * 6, 4), ([3, 5, 1, 4, 2, 5], 3)):
        steps = jnp.arange(5) < jnp.array(lengths)[:, None]
        found = durations(jnp.asarray(attention), steps, jnp.broadcast_to(jnp.arange(4) < words, (6, 4)))
        for row, length in enumerate(lengths):
            paths = itertools.combinations_with_replacement(range(words), length)
            best = max(paths, key=lambda path: sum(attention[row, t, n] for t, n in enumerate(path)))
            assert found[row].tolist() == [best.count(token) for token in range(4)]


def test_rounding_keeps_the_length_of_an_utterance():
    predicted = jnp.log1p(jnp.array([[1.4, 1.4, 1.4, 9.0], [0.3, 0.3, 0.3, 0.3]]))
    words = jnp.array([[True, True, True, False], [True] * 4])
    assert steps_of(predicted, words).tolist() == [[1, 2, 1, 0], [0, 1, 0, 0]]
    assert steps_of(jnp.full((1, 3), -5.0), jnp.ones((1, 3), bool)).tolist() == [[0, 0, 0]]


@pytest.mark.slow
def test_a_step_reads_its_token_and_an_utterance_does_not_depend_on_padding():
    model, variables = network()
    given = jnp.array([[1, 0, 2, 1, 0], [1, 0, 0, 0, 0], [2, 1, 0, 1, 1]])
    lengths = [8, 1, 10]
    together = Spoken(*apply(model, variables, SOURCE, frames(lengths, size=14), given))
    assert np.isfinite(together.refined).all()
    for row, length in enumerate(lengths):
        text = SOURCE[row : row + 1, : int(TOKENS[row].sum())]
        spoken = given[row : row + 1, : text.shape[1]]
        alone = Spoken(*apply(model, variables, text, frames([length]), spoken))
        np.testing.assert_allclose(together.refined[row, :length], alone.refined[0], atol=1e-5)
        np.testing.assert_allclose(together.durations[row, : text.shape[1]], alone.durations[0], atol=1e-5)
    # the frames of the target are not read, and other durations give other frames
    again = Spoken(*apply(model, variables, SOURCE, frames(lengths, size=14) * 2, given))
    np.testing.assert_array_equal(again.frames, together.frames)
    moved = Spoken(*apply(model, variables, SOURCE, frames(lengths, size=14), given[:, ::-1]))
    assert np.abs(moved.frames[0] - together.frames[0]).max() > 1e-3


@pytest.mark.thorough
def test_the_loss_is_that_of_its_parts():
    model, variables = network()
    config, target = config_of(model), frames([7, 2, 10])
    load = untrained_teacher(config)
    objective = nonautoregressive_synthesis_objective(config, load)
    batch = {"source": SOURCE, "target": target}
    loss = jax.jit(lambda variables: objective(model, variables, batch, Context()))(variables)
    given = teacher_durations(config, load)(SOURCE, target)
    assert given.sum(axis=1).tolist() == [4, 1, 5]  # two frames a step
    found = Spoken(*map(np.asarray, apply(model, variables, SOURCE, target, given)))
    target, given = np.asarray(target), np.asarray(given)
    total = refined = duration = 0.0
    for row, length in enumerate([7, 2, 10]):
        for each in (found.frames, found.refined):
            error = np.abs(each[row, :length] - target[row, :length]).mean(axis=1).sum()
            total += error
        refined += error
        for token in np.flatnonzero(TOKENS[row]):
            duration += (float(found.durations[row, token]) - np.log(1 + int(given[row, token]))) ** 2
    assert float(loss.total) == pytest.approx(total + duration, rel=1e-5)
    assert float(loss.weight) == 19
    assert float(loss.metrics["mel"][0]) == pytest.approx(refined, rel=1e-5)
    assert float(loss.metrics["duration"][0]) == pytest.approx(duration, rel=1e-5)
    assert float(loss.metrics["duration"][1]) == TOKENS.sum()


@pytest.mark.slow
def test_a_teacher_with_other_steps_gives_the_same_times():
    model, _ = network(reduction=1)
    load = untrained_teacher(config_of(network(reduction=2)[0]))
    single = teacher_durations(config_of(model), load)(SOURCE, frames([8, 2, 10]))
    double = teacher_durations(config_of(network(reduction=2)[0]), load)(SOURCE, frames([8, 2, 10]))
    np.testing.assert_array_equal(single, 2 * double)


def options(**changed):
    return NonAutoregressiveSynthesisDecodingConfig(**{"max_length": 40, "buckets": (5,)} | changed)


@pytest.mark.slow
def test_the_length_follows_the_scale_up_to_the_limit():
    model, variables = network(reduction=1)
    bias = variables["params"]["duration_predictor"]["out"]["bias"]
    variables["params"]["duration_predictor"]["out"]["bias"] = jnp.full_like(bias, np.log(5.0))
    kernel = variables["params"]["duration_predictor"]["out"]["kernel"]
    variables["params"]["duration_predictor"]["out"]["kernel"] = jnp.zeros_like(kernel)
    spoken = {
        scale: nonautoregressive_synthesis_search(
            model, variables, {"source": SOURCE}, jnp.arange(3), options(length_scale=scale)
        )
        for scale in (0.5, 1.0, 2.0, 4.0)
    }
    assert spoken[1.0].lengths.tolist() == [16, 8, 20]  # four steps for each token
    assert spoken[0.5].lengths.tolist() == [8, 4, 10]
    assert spoken[2.0].lengths.tolist() == [32, 16, 40]
    assert spoken[2.0].stopped.all()
    assert spoken[4.0].lengths.tolist() == [40, 32, 40]
    assert spoken[4.0].stopped.tolist() == [False, True, False]
    for row, length in enumerate(spoken[1.0].lengths.tolist()):
        for scale in (0.5, 2.0):
            places = (np.arange(round(scale * length)) + 0.5) / scale - 0.5
            for band in range(3):
                wanted = np.interp(places, np.arange(length), spoken[1.0].frames[row, :length, band])
                found = spoken[scale].frames[row, : len(places), band]
                np.testing.assert_allclose(found, wanted, atol=1e-5)
    empty = nonautoregressive_synthesis_search(
        model, variables, {"source": SOURCE * 0}, jnp.arange(3), options()
    )
    assert empty.lengths.tolist() == [0, 0, 0]


@pytest.mark.thorough
def test_an_utterance_does_not_depend_on_the_size_of_the_program(monkeypatch):
    model, variables = network(reduction=1)
    inputs = {"source": SOURCE}
    one = nonautoregressive_synthesis_search(model, variables, inputs, jnp.arange(3), options(max_length=40))
    other = nonautoregressive_synthesis_search(
        model, variables, inputs, jnp.arange(3), options(max_length=500)
    )
    assert one.lengths.tolist() == other.lengths.tolist()
    for row, length in enumerate(one.lengths.tolist()):
        np.testing.assert_allclose(one.frames[row, :length], other.frames[row, :length], atol=1e-5)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="--decoding.length-scale"):
        NonAutoregressiveSynthesisDecodingConfig(length_scale=0.0)


@pytest.mark.thorough
def test_a_teacher_must_be_a_synthesiser():
    with pytest.raises(UserError, match="--model.teacher RUN"):
        teacher_durations(config_of(network(teacher=None)[0]), lambda _: None)
    with pytest.raises(UserError, match="must be a run of system synthesis"):
        teacher_durations(config_of(network()[0]), lambda _: SimpleNamespace(model=None))


@pytest.mark.slow
def test_a_run_learns_from_another(decoder, tmp_path):
    train(synthesis_config(tmp_path, "one"), tmp_path / "synthesis" / "one-whole", watch=quiet())
    (tmp_path / "student").mkdir()
    config = nonautoregressive_config(tmp_path / "student", "one", samples=1)
    path = train(config, tmp_path / "run", watch=quiet())
    (exhibit,) = read_exhibits(path)[1]
    assert [len(exhibit[name]) for name in ("sounds", "pictures")] == [2, 2]
    voice = Synthesizer.load(path)
    for scale in (1.0, 2.0):
        (said,) = voice.utterances(["one"], length_scale=scale, max_length=400)
        assert said.features.shape == (said.seconds * 100, 8)
    louder = dataclasses.replace(config, data=dataclasses.replace(config.data, speeds=(0.5, 1.0)))
    with pytest.raises(UserError, match=r"another vocabulary or scale of the features: train both"):
        train(louder, tmp_path / "other", watch=quiet())
    wrong = dataclasses.replace(config, model=dataclasses.replace(config.model, teacher=decoder))
    with pytest.raises(UserError, match=r"nonautoregressive-synthesis cannot learn from transformer"):
        train(wrong, tmp_path / "other", watch=quiet())
    config = nonautoregressive_config(tmp_path / "no" / "student", "one")
    with pytest.raises(UserError, match="--model.teacher .*: no such run directory"):
        train(config, tmp_path / "other", watch=quiet())
    assert not (tmp_path / "other").exists()
