"""Noise on the decoder's inputs while it generates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import random_variables
from small_translator import small_translator
from test_methods import BATCH, MODELS
from tiers import combinations

from transformer import BeamConfig, GreedyConfig, SampleConfig, Translator, UserError
from transformer.decoding.searches.search import RowOptions, autoregressive_search, noise_of
from transformer.decoding.slots import Noise
from transformer.explorer.tree import search_tree
from transformer.model.encoder_decoder import shift_right
from transformer.systems.nonautoregressive.options import NonAutoregressiveDecodingConfig
from transformer.systems.registry import find_system

KEYS = jax.random.split(jax.random.key(0), 50)
SOURCES = ["a b c", "d e f g", "h", "a b c"]


@pytest.mark.thorough
@pytest.mark.by_default("transformer-options0")
@pytest.mark.parametrize(
    ("system", "options"),
    combinations(["transformer", "recurrent", "convolutional"], [{"noise": 0.7}, {"input_dropout": 0.5}]),
)
def test_scores_are_those_of_teacher_forcing_with_the_same_noise(system, options):
    model = find_system(system).model(MODELS[system])
    variables = jax.tree.map(jnp.asarray, random_variables(model, 1))
    settings = SampleConfig(samples=3, length_penalty=0.0, extra_length=3, seed=4, **options)
    source, lines = BATCH["source"], jnp.asarray([7, 9])
    found = autoregressive_search(model, variables, {"source": source}, lines, settings)
    noise = noise_of(settings, jax.tree.map(jnp.asarray, RowOptions.of([settings] * 2, [7, 9], 2)))
    given = jnp.stack([shift_right(found.tokens[:, beam], 1) for beam in range(3)], axis=1)

    # which beam a sample came from is forgotten when they are sorted: one of the three noises fits
    @jax.jit
    def log_p(beam, place):
        def run(model):
            embedded = model.embed_target(given[:, beam])
            steps = []
            for time in range(given.shape[-1]):
                three = jnp.repeat(embedded[:, time][:, None], 3, axis=1)
                steps.append(noise.at(jnp.full(2, time))(three)[:, place])
            memory = model.encode(source)
            return model.output(model.decode(memory, given[:, beam], embedded=jnp.stack(steps, axis=1)))

        logits = jax.nn.log_softmax(model.apply(variables, method=run))
        each = jnp.take_along_axis(logits, found.tokens[:, beam][..., None], axis=-1)[..., 0]
        return (each * (found.tokens[:, beam] != 0)).sum(axis=-1)

    for beam in range(3):
        fits = np.stack([np.asarray(log_p(beam, place)) for place in range(3)])
        near = np.abs(fits - np.asarray(found.scores[:, beam]))
        assert (near.min(axis=0) < 1e-4).all()
        assert (near.max(axis=0) > 1e-3).all()


def test_its_size():
    keys, kind = jax.random.key_data(KEYS), str(jax.random.key_impl(KEYS))
    x = 3 * jax.random.normal(jax.random.key(1), (50, 4, 200))
    added = Noise(keys, 0.5, 0.0, kind)(x) - x
    size = np.sqrt(np.square(x).mean(axis=-1, keepdims=True))
    assert np.std(added / size) == pytest.approx(0.5, rel=0.02)
    dropped = np.asarray(Noise(keys, 0.0, 0.25, kind)(x))
    assert (dropped == 0).mean() == pytest.approx(0.25, rel=0.05)
    np.testing.assert_allclose(dropped[dropped != 0], np.asarray(x / 0.75)[dropped != 0], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.by_default("transformer-beam")
@pytest.mark.parametrize(
    ("system", "method"), combinations(["transformer", "recurrent", "copying"], ["beam", "greedy", "sample"])
)
def test_a_line_meets_the_same_noise_in_any_batch(system, method):
    translator = small_translator(system)

    def said(sources, **options):
        found = translator.search(sources, method=method, input_dropout=0.4, noise=0.5, **options)
        return [(each[0].text, round(each[0].score, 3)) for each in found]

    together = said(SOURCES, rows=4)
    assert together == said(SOURCES, rows=1)
    assert together != said(SOURCES, rows=4, seed=1)
    assert together[0] != together[3]  # the same sentence on another line
    assert together[:2] == said(SOURCES[:2], rows=4)


@pytest.mark.slow
def test_an_ensemble_of_one_model_is_that_model():
    one = small_translator("transformer")
    options = {"method": "greedy", "noise": 0.5}
    alone, both = (each.search(SOURCES, **options) for each in (one, Translator.together([one, one])))
    assert [each[0].text for each in alone] == [each[0].text for each in both]
    scores = [[each[0].score for each in found] for found in (alone, both)]
    np.testing.assert_allclose(*scores, atol=1e-4)


@pytest.mark.slow
def test_the_search_tree_has_it():
    translator = small_translator("transformer")
    options = {"beam_size": 2, "noise": 2.0, "seed": 3}
    found = translator.search(["a b c"], **options)[0][0]
    best = search_tree(translator, "a b c", **options).hypotheses()[0]
    assert best.score == pytest.approx(found.score, abs=1e-4)
    assert found.score != pytest.approx(translator.search(["a b c"], beam_size=2)[0][0].score, abs=1e-3)


def test_what_it_cannot_be():
    with pytest.raises(UserError, match="--decoding.noise needs an autoregressive model"):
        NonAutoregressiveDecodingConfig(noise=0.1)
    with pytest.raises(UserError, match="--decoding.noise must be from 0 to 100"):
        BeamConfig(noise=-1)
    with pytest.raises(UserError, match=r"--decoding.input-dropout must be in \[0, 1\)"):
        GreedyConfig(input_dropout=1.0)
