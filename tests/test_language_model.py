"""The language model with memory, against definitions that share none of its code."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init
from tiers import combinations

from transformer import Context, UserError
from transformer.config.records import StreamConfig
from transformer.model.encoder_decoder import shift_right
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.language_model.system import LanguageModel, Past, language_model_objective
from transformer.systems.presets import PRESETS
from transformer.systems.registry import find_system

BOS, EOS = 1, 2
SIZES = {
    **{"vocab_size": 11, "num_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2},
    "dropout": 0.0,
}
SCHEMES = ("relative", "rotary", "alibi")
IDS = jnp.asarray([[BOS, 4, 5, 6, 7, 8, 9, 10], [BOS, 7, 7, BOS, 4, 6, 5, 9]])


def built(**options):
    """A model with random parameters, biases too."""
    model = LanguageModel(LanguageModelConfig(**SIZES | options))
    shapes = init(model, jax.random.key(0), IDS, IDS)
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    drawn = [0.5 * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
    return model, jax.tree.unflatten(structure, drawn)


def read(model, variables, ids, past):
    return apply(model, variables, ids, past, method="advance")


def in_segments(model, variables, ids, memory, segment):
    past, found = Past.empty(model.config, len(ids), memory), []
    for start in range(0, ids.shape[1], segment):
        hidden, past = read(model, variables, ids[:, start : start + segment], past)
        found.append(hidden)
    return jnp.concatenate(found, axis=1), past


@pytest.mark.thorough
@pytest.mark.by_default("kind13-3")
@pytest.mark.parametrize(
    ("kind", "segment"), combinations([*itertools.product(SCHEMES, ("pre", "post"))], [1, 3, 4])
)
def test_segments_with_full_memory_equal_one_pass(kind, segment):
    positions, norm = kind
    model, variables = built(positions=positions, norm=norm)
    whole, _ = read(model, variables, IDS, Past.empty(model.config, 2, 0))
    found, _ = in_segments(model, variables, IDS, IDS.shape[1], segment)
    np.testing.assert_allclose(found, whole, atol=2e-5)


@pytest.mark.thorough
def test_a_short_memory_is_a_window_at_every_layer():
    """Segments of one token with a memory of M read as much as one pass with a window of M."""
    model, variables = built(positions="relative")
    found, _ = in_segments(model, variables, IDS, 3, 1)
    windowed, _ = built(positions="relative", window=3)
    whole, _ = read(windowed, variables, IDS, Past.empty(model.config, 2, 0))
    np.testing.assert_allclose(found, whole, atol=2e-5)
    full, _ = in_segments(model, variables, IDS, 8, 1)
    assert np.abs(found - full).max() > 1e-3


@pytest.mark.thorough
def test_a_short_window_goes_with_a_memory():
    """Without a memory, a short window is computed in blocks; with one it is not."""
    model, variables = built(positions="rotary", window=3)
    ids = jnp.asarray(np.random.default_rng(0).integers(4, 11, (1, 128))).at[0, 0].set(BOS)
    whole, _ = read(model, variables, ids, Past.empty(model.config, 1, 0))
    found, _ = in_segments(model, variables, ids, 8, 64)
    np.testing.assert_allclose(found, whole, atol=5e-5)


@pytest.mark.thorough
def test_documents_do_not_see_each_other():
    model, variables = built(positions="relative")
    hidden, _ = in_segments(
        model, variables, IDS, 8, 2
    )  # the second row's second document begins mid-segment
    alone, _ = read(model, variables, IDS[1:, 3:], Past.empty(model.config, 1, 0))
    np.testing.assert_allclose(hidden[1, 3:], alone[0], atol=2e-5)


@pytest.mark.thorough
def test_gradients_do_not_reach_the_memory():
    model, variables = built(positions="relative", memory=4)
    _, past = read(model, variables, IDS[:, :4], Past.empty(model.config, 2, 4))

    def later(states, layers):
        hidden, after = read(model, variables, IDS[:, 4:], dataclasses.replace(past, layers=layers))
        return (hidden**2).sum() + (states * 0).sum(), after

    def through(embeddings):
        """Both segments, as a function of all embeddings: only the second may have a gradient."""
        changed = {"params": {**variables["params"], "source_embedding": {"table": embeddings}}}
        _, past = read(model, changed, IDS[:, :4], Past.empty(model.config, 2, 4))
        hidden, after = read(model, changed, IDS[:, 4:], past)
        return (hidden**2).sum(), after

    table = variables["params"]["source_embedding"]["table"]
    gradient, after = jax.grad(through, has_aux=True)(table)
    inputs = set(np.asarray(IDS[:, 4:]).ravel().tolist())
    for index in range(11):
        touched = bool(np.abs(gradient[index]).max() > 0)
        assert touched == (index in inputs), index
    assert all(np.abs(np.asarray(x)).max() > 0 for x in after.layers)


def test_the_past_of_the_objective_has_no_gradient_and_the_size_of_the_memory():
    base = PRESETS["language-model"]
    model_config = LanguageModelConfig(**SIZES | {"memory": 3, "evaluation_memory": 5})
    config = dataclasses.replace(base, model=model_config, data=StreamConfig(max_length=8, batch_tokens=16))
    model, variables = LanguageModel(model_config), built()[1]
    system = find_system("language-model")
    target = jnp.asarray([[4, 5, 6, 7, 8, 9, 10, EOS], [7, 7, EOS, 4, 6, 5, 9, 0]])
    ones = (target > 0).astype(jnp.float32)
    batch = {"source": IDS, "target": target, "characters": ones, "words": ones / 4}
    carry = system.carry(config, False)
    objective = language_model_objective(config)
    loss = jax.jit(lambda v: objective(model, v, batch, Context(carry=carry)))(variables)
    assert jax.tree.map(jnp.shape, loss.carry) == jax.tree.map(jnp.shape, carry)
    assert carry.documents.shape == (2, 3)
    assert system.carry(config, True).documents.shape == (2, 5)
    logits = apply(model, variables, IDS, Past.empty(model_config, 2, 0), method="advance")[0]
    table = np.asarray(variables["params"]["source_embedding"]["table"])
    log_p = np.asarray(jax.nn.log_softmax(np.asarray(logits) @ table.T))
    nll = -sum(float(log_p[r, t, target[r, t]]) for r, t in np.argwhere(np.asarray(target) > 0))
    assert float(loss.metrics["nll"][0]) == pytest.approx(nll, rel=1e-4)
    assert float(loss.metrics["bits"][0] / loss.metrics["bits"][1]) == pytest.approx(
        nll / np.log(2) / 15, rel=1e-4
    )
    assert float(loss.metrics["word_nll"][1]) == pytest.approx(15 / 4)


@pytest.mark.by_default("sinusoidal-0")
@pytest.mark.parametrize(
    ("positions", "memory"), [*combinations(SCHEMES, (0, 2)), ("sinusoidal", 0), ("learned", 0)]
)
def test_prompts_and_cached_steps_equal_one_pass(positions, memory):
    """Generation attends as far back as the memory, at every layer."""
    model, variables = built(positions=positions, evaluation_memory=memory)
    windowed = LanguageModel(
        LanguageModelConfig(**SIZES | {"positions": positions, "window": memory or None})
    )
    text = jnp.asarray([[BOS, 4, 5, 6, 7, 8, 9, 10], [BOS, 7, 7, 8, 4, 6, 5, 9]])
    whole = apply(windowed, variables, text, Past.empty(model.config, 2, 0), method="advance")[0]
    whole = whole @ variables["params"]["source_embedding"]["table"].T
    lengths, prompts = (4, 2), np.zeros((2, 5), np.int32)  # prompts of two lengths, padded
    for row, length in enumerate(lengths):
        prompts[row, :length] = text[row, :length]
    prompt = apply(model, variables, jnp.asarray(prompts), method="encode")
    beams = 2
    cache = apply(model, variables, prompt, beams, 4, method="init_cache")
    given = jnp.full((2, beams), BOS)
    for step in range(4):
        logits, cache = apply(model, variables, cache, given, method="decode_step")
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(logits[row, 1], whole[row, length - 1 + step], atol=5e-5)
        given = jnp.stack([jnp.full(beams, text[row, length + step]) for row, length in enumerate(lengths)])
    following = np.stack([text[row, length : length + 4] for row, length in enumerate(lengths)])
    scored = apply(model, variables, jnp.asarray(prompts), shift_right(jnp.asarray(following), BOS))
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(scored[row], whole[row, length - 1 : length + 3], atol=5e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 4, "positions": "learned"}, "counts? distances"),
        ({"evaluation_memory": 4, "positions": "sinusoidal"}, "counts? distances"),
        ({"mechanism": "linear", "positions": "sinusoidal"}, "cannot keep the documents"),
        ({"share_embeddings": "target"}, "one vocabulary"),
        ({"memory": -1}, "memory"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(UserError, match=message):
        LanguageModelConfig(**SIZES | options)
