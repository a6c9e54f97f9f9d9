"""Non-autoregressive decoders: inputs, losses and search, compared with the papers position by position."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import apply
from reference_search import random_variables
from tiers import mostly_slow

from transformer.config.options import Config
from transformer.config.searches import changed_search
from transformer.runtime.errors import UserError
from transformer.systems.nonautoregressive.options import (
    NonAutoregressiveConfig,
    NonAutoregressiveDecodingConfig,
)
from transformer.systems.nonautoregressive.system import (
    NonAutoregressiveTransformer,
    copied_source,
    draft_sizes,
    length_class,
    nonautoregressive_attention,
    nonautoregressive_objective,
    nonautoregressive_scores,
    nonautoregressive_search,
    sample_fertilities,
    sample_mask,
    truncate_at_eos,
)
from transformer.training.objective import Context
from transformer.training.step import init_state, make_train_step

PAD, BOS, EOS = 0, 1, 2
SIZES = {"vocab_size": 13, "num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0}
CONFIGS = {
    "length": NonAutoregressiveConfig(**SIZES, decoder_input="length", length_span=4),
    "bos": NonAutoregressiveConfig(**SIZES, decoder_input="bos", bos_length=12),
    "fertility": NonAutoregressiveConfig(**SIZES, decoder_input="fertility"),
    "masked": NonAutoregressiveConfig(**SIZES, decoder_input="masked", length_span=4),
}
MODELS = {name: NonAutoregressiveTransformer(config) for name, config in CONFIGS.items()}
every_model = pytest.mark.parametrize("name", MODELS)
SOURCE = jnp.asarray([[4, 5, 6, 2, 0, 0], [7, 2, 0, 0, 0, 0], [9, 8, 4, 5, 10, 2], [3, 3, 7, 6, 2, 0]])
TARGET = jnp.asarray(
    [[5, 6, 7, 4, 4, 9, 2], [4, 2, 0, 0, 0, 0, 0], [8, 8, 5, 2, 0, 0, 0], [3, 9, 12, 2, 0, 0, 0]]
)


@functools.cache
def variables_of(name, seed=1):
    return jax.tree.map(jnp.asarray, random_variables(MODELS[name], seed))


def find(name, source=SOURCE, lines=None, seed=1, **options):
    lines = jnp.arange(1, len(source) + 1) if lines is None else lines
    settings = NonAutoregressiveDecodingConfig(extra_length=4, **options)
    found = nonautoregressive_search(
        MODELS[name], variables_of(name, seed), {"source": source}, lines, settings
    )
    return np.asarray(found.tokens), np.asarray(found.scores)


SAMPLE = {"method": "sample"}


def lengths_of(tokens):
    return (tokens != PAD).sum(axis=-1)


# --- decoder input ---


def test_copies_follow_their_fertilities():
    source, fertility = jnp.asarray([[4, 5, 6, 2, 0]]), jnp.asarray([[2, 0, 1, 3, 0]])
    exactly = jnp.arange(8) < 6
    copied = copied_source(source, fertility, exactly[None], PAD)
    np.testing.assert_array_equal(copied, [[4, 4, 6, 2, 2, 2, 0, 0]])
    # with twice the positions each copy appears twice, with half of them every other copy
    np.testing.assert_array_equal(
        copied_source(source, fertility, (jnp.arange(12) < 12)[None], PAD), [[4] * 4 + [6] * 2 + [2] * 6]
    )
    np.testing.assert_array_equal(
        copied_source(source, fertility, (jnp.arange(3) < 3)[None], PAD), [[4, 6, 2]]
    )


@pytest.mark.parametrize("seed", range(5))
def test_copies_against_repetition(seed):
    rng = np.random.default_rng(seed)
    source, fertility = rng.integers(4, 99, 9), rng.integers(0, 4, 9)
    expected = np.repeat(source, fertility)
    positions = np.arange(30) < len(expected)
    copied = copied_source(
        jnp.asarray(source)[None], jnp.asarray(fertility)[None], jnp.asarray(positions)[None], PAD
    )
    np.testing.assert_array_equal(np.asarray(copied)[0, : len(expected)], expected)
    assert (np.asarray(copied)[0, len(expected) :] == PAD).all()


@pytest.mark.by_default("bos")
@every_model
def test_every_position_attends_to_all_but_padding(name):
    model, variables = MODELS[name], variables_of(name)
    draft = jnp.where(TARGET == PAD, PAD, BOS)
    memory = apply(model, variables, SOURCE, method="encode")

    def first_position(extra):
        def run(model):
            embed = "source_embedding" if name == "fertility" else "embed_target"
            ordinary = getattr(model, embed)
            object.__setattr__(model, embed, lambda ids: ordinary(ids) + extra)
            return model.decode(memory, draft)

        return model.apply(variables, method=run)[:, 0].sum()

    gradient = jax.jit(jax.grad(first_position))(jnp.zeros((*draft.shape, 16)))
    felt = np.abs(np.asarray(gradient)).sum(axis=-1) > 0
    np.testing.assert_array_equal(felt, TARGET != PAD)


# --- training ---


def objective_of(name, **changes):
    config = dataclasses.replace(CONFIGS[name], **changes)
    decoding = NonAutoregressiveDecodingConfig()
    return nonautoregressive_objective(
        Config(system="nonautoregressive", model=config, decoding=decoding), lambda path: None
    )


@pytest.mark.by_default("masked")
@pytest.mark.parametrize("name", ["length", "bos", "masked"])
def test_the_loss_is_that_of_the_tokens_and_of_the_plan(name):
    config = Config(
        system="nonautoregressive", model=CONFIGS[name], decoding=NonAutoregressiveDecodingConfig()
    )
    data = dataclasses.replace(config.data, max_length=8, batch_tokens=64)
    objective = nonautoregressive_objective(dataclasses.replace(config, data=data), lambda path: None)
    variables = variables_of(name)
    batch = {"source": SOURCE, "target": TARGET}
    loss = jax.jit(lambda v: objective(MODELS[name], v, batch, Context()))(variables)
    metrics = {metric: total for metric, (total, _) in loss.metrics.items()}
    assert loss.weight == (TARGET != PAD).sum()
    scored = jax.jit(nonautoregressive_scores, static_argnums=0)
    log_p = np.asarray(scored(MODELS[name], variables, {"source": SOURCE}, TARGET).log_p)
    assert float(metrics["nll"]) == pytest.approx(-float(log_p.sum()), rel=1e-5)
    if name == "bos":
        assert metrics["plan"] == 0
        return
    memory = apply(MODELS[name], variables, SOURCE, method="encode")
    plan = jax.nn.log_softmax(apply(MODELS[name], variables, memory, method="plan"))
    differences = [3, 0, -2, -1]
    expected = -sum(float(plan[row, difference + 4]) for row, difference in enumerate(differences))
    assert float(metrics["plan"]) == pytest.approx(expected, rel=1e-5)


def test_differences_beyond_the_span_are_its_ends():
    words = jnp.arange(30)[None, :] < jnp.asarray([[1], [30], [6]])
    source = jnp.asarray([[4] * 12, [4] * 6 + [0] * 6, [4] * 6 + [0] * 6])
    np.testing.assert_array_equal(length_class(source, words, CONFIGS["length"]), [0, 8, 4])


def test_masks_cover_every_number_of_words_evenly():
    words = jnp.tile(jnp.arange(7) < 5, (4000, 1))
    masked = np.asarray(jax.jit(sample_mask)(jax.random.key(0), words))
    assert not masked[:, 5:].any()
    counts = np.bincount(masked.sum(axis=1), minlength=8)
    assert counts[0] == counts[6] == counts[7] == 0
    assert np.abs(counts[1:6] - 800).max() < 5 * np.sqrt(800)
    share = masked[:, :5].mean(axis=0)  # each position in 3 of 5 samples
    assert np.abs(share - 0.6).max() < 5 * np.sqrt(0.24 / 4000)


def test_only_masked_words_are_learned():
    objective, variables = objective_of("masked"), variables_of("masked")
    batch = {"source": SOURCE, "target": TARGET}
    context = Context(jax.random.key(3))
    loss = jax.jit(lambda v: objective(MODELS["masked"], v, batch, context))(variables)
    masked = sample_mask(context.rngs("mask")["mask"], TARGET != PAD)
    assert loss.weight == masked.sum()
    memory = apply(MODELS["masked"], variables, SOURCE, method="encode")
    draft = jnp.where(masked, BOS, TARGET)
    log_p = jax.nn.log_softmax(apply(MODELS["masked"], variables, memory, draft, method="logits"))
    chosen = jnp.take_along_axis(log_p, TARGET[..., None], axis=-1)[..., 0]
    others = (log_p.sum(axis=-1) - chosen) / (log_p.shape[-1] - 1)
    expected = -((0.9 * chosen + 0.1 * others) * masked).sum()
    assert float(loss.total - loss.metrics["plan"][0]) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["length", "masked"])
def test_another_token_masks(name):
    """With the rows of <s> and of the other token exchanged, it is the same model; no output has either."""
    mask = 11
    config = dataclasses.replace(CONFIGS[name], mask_id=mask)
    table = variables_of(name)["params"]["source_embedding"]["table"]
    exchanged = table.at[jnp.asarray([BOS, mask])].set(table[jnp.asarray([mask, BOS])])
    variables = {"params": variables_of(name)["params"] | {"source_embedding": {"table": exchanged}}}
    batch, context = {"source": SOURCE, "target": TARGET}, Context(jax.random.key(3))
    expected = objective_of(name)(MODELS[name], variables_of(name), batch, context)
    model = NonAutoregressiveTransformer(config)
    loss = objective_of(name, mask_id=mask)(model, variables, batch, context)
    assert float(loss.total) == pytest.approx(float(expected.total), rel=1e-5)
    iterations = 4 if name == "masked" else 1
    settings = NonAutoregressiveDecodingConfig(extra_length=4, iterations=iterations)
    for seed in range(4):
        changed = jax.tree.map(jnp.asarray, random_variables(model, seed))
        found = nonautoregressive_search(model, changed, {"source": SOURCE}, jnp.arange(1, 5), settings)
        assert not np.isin(np.asarray(found.tokens), [BOS, mask]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder_input": "fertility", "mask_id": 5}, "fertility nothing is masked"),
        ({"mask_id": 13}, "the target vocabulary has 13 ids"),
        ({"mask_id": 2}, "is <pad> or </s>"),
    ],
)
def test_what_cannot_mask_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        NonAutoregressiveConfig(**SIZES, **options)


@pytest.mark.slow
def test_one_update_teaches_every_parameter():
    for name in ("length", "masked"):
        optimizer, step = optax.sgd(0.1), None
        state = init_state(MODELS[name], optimizer, 0, (SOURCE, TARGET))
        step = jax.jit(make_train_step(MODELS[name], objective_of(name), optimizer, seed=0))
        after, metrics = step(state, {"source": SOURCE, "target": TARGET})
        assert np.isfinite(float(metrics["loss"]))
        moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.params, after.params)
        assert all(jax.tree.leaves(moved)), moved


# --- search ---


@pytest.mark.by_default("bos")
@every_model
def test_translations_end_in_eos_and_hold_no_special_ids(name):
    tokens, scores = find(name, beam_size=3)
    assert (np.diff(scores, axis=1) <= 0).all()
    for row in tokens.reshape(-1, tokens.shape[-1]):
        length = lengths_of(row)
        assert row[length - 1] == EOS
        assert (row[length:] == PAD).all()
        assert not np.isin(row[: length - 1], [PAD, BOS, EOS]).any()


@pytest.mark.by_default("bos")
@every_model
def test_neighbours_change_nothing(name):
    together, scores = find(name, beam_size=2)
    for row in range(4):
        alone, score = find(name, SOURCE[row : row + 1], jnp.asarray([row + 1]), beam_size=2)
        np.testing.assert_array_equal(alone[0], together[row])
        np.testing.assert_allclose(score[0], scores[row], atol=1e-5)


@pytest.mark.thorough
def test_lengths_are_the_likeliest_and_can_be_scaled():
    model, variables = MODELS["length"], variables_of("length")
    memory = apply(model, variables, SOURCE, method="encode")
    plan = np.asarray(apply(model, variables, memory, method="plan"))
    read = np.asarray((SOURCE != PAD).sum(axis=1))
    predicted = np.clip(read + plan.argmax(axis=1) - 4, 1, read + 4)
    for scale in (1.0, 0.5, 2.0):
        tokens, _ = find("length", length_scale=scale)
        expected = np.clip(np.round((read + plan.argmax(axis=1) - 4) * scale), 1, read + 4)
        np.testing.assert_array_equal(lengths_of(tokens[:, 0]), expected)
    tokens, _ = find("length", beam_size=3)
    assert all(length in lengths_of(tokens[row]) for row, length in enumerate(predicted))


@pytest.mark.parametrize("iterations", mostly_slow([1, 2, 4], [1, 4]))
def test_mask_predict_position_by_position(iterations):
    model, variables = MODELS["masked"], variables_of("masked")
    memory = apply(model, variables, SOURCE, method="encode")
    found, scores = find("masked", iterations=iterations)
    for row in range(4):
        length = lengths_of(found[row, 0])
        size = next(size for size in draft_sizes(10) if size >= lengths_of(found[:, 0]).max())
        draft = np.where(np.arange(size) < length, BOS, PAD)
        log_p = np.zeros(size)
        masked = np.arange(length)
        for turn in range(iterations):
            if turn:
                number = length * (iterations - turn) // iterations
                masked = np.argsort(log_p[:length], kind="stable")[:number]
                draft[masked] = BOS
            one = jax.tree.map(lambda x, row=row: x[row : row + 1], memory)
            all_log_p = np.asarray(
                jax.nn.log_softmax(apply(model, variables, one, jnp.asarray(draft)[None], method="logits"))[0]
            )
            for position in masked:
                words = [i for i in range(13) if i not in (PAD, BOS, EOS)]
                allowed = [EOS] if position == length - 1 else words
                draft[position] = allowed[all_log_p[position, allowed].argmax()]
                log_p[position] = all_log_p[position, draft[position]]
        np.testing.assert_array_equal(found[row, 0, :length], draft[:length])
        assert scores[row, 0] == pytest.approx(log_p[:length].mean(), abs=1e-5)


@pytest.mark.thorough
def test_the_first_fertilities_are_the_likeliest_and_the_others_drawn():
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((2, 5, 4)), jnp.float32)
    words = jnp.asarray([[True] * 5, [True] * 3 + [False] * 2])
    drawn = np.asarray(sample_fertilities(logits, words, jnp.asarray([1, 2]), 4000, jax.random.key(0)))
    np.testing.assert_array_equal(drawn[:, 0], np.where(words, logits.argmax(-1), 0))
    assert (drawn[1, :, 3:] == 0).all()
    share = np.stack([(drawn[0, 1:, 0] == value).mean() for value in range(4)])
    np.testing.assert_allclose(share, jax.nn.softmax(logits[0, 0]), atol=5 * np.sqrt(0.25 / 4000))
    again = np.asarray(sample_fertilities(logits[1:], words[1:], jnp.asarray([2]), 4000, jax.random.key(0)))
    np.testing.assert_array_equal(again[0], drawn[1])


def test_text_ends_at_the_first_eos_or_at_the_limit():
    words = [[5, 2, 6, 2], [5, 6, 7, 8], [2, 5, 5, 5]]
    logits = jax.nn.one_hot(jnp.asarray(words), 13) * 9.0
    tokens, log_p = truncate_at_eos(logits, jnp.asarray([4, 3, 9]), CONFIGS["bos"])
    np.testing.assert_array_equal(tokens, [[5, 2, 0, 0], [5, 6, 2, 0], [2, 0, 0, 0]])
    certain = float(jax.nn.log_softmax(logits[0, 0])[5])
    # in the second row <eos> replaces the 7, which makes its logit 9 less
    np.testing.assert_allclose(log_p, [2 * certain, 3 * certain - 9, certain], atol=1e-6)


@every_model
def test_attention_is_over_the_words_of_the_source(name):
    attention = jax.jit(nonautoregressive_attention, static_argnums=0)
    weights = np.asarray(attention(MODELS[name], variables_of(name), {"source": SOURCE}, TARGET))
    assert weights.shape == (*TARGET.shape, SOURCE.shape[1])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert (weights[np.broadcast_to((SOURCE == PAD)[:, None], weights.shape)] == 0).all()


# --- bad input ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NonAutoregressiveDecodingConfig(iterations=0), "iterations must be"),
        (lambda: find("length", iterations=3), "decoder-input length predicts all tokens in one iteration"),
        (lambda: find("bos", length_scale=2.0), "decoder-input bos predicts no length"),
        (lambda: NonAutoregressiveDecodingConfig(length_scale=0.0), "length-scale must be"),
        (lambda: NonAutoregressiveDecodingConfig(method="sample"), "choose beam or greedy"),
        (
            lambda: changed_search(NonAutoregressiveDecodingConfig(), {"method": "sample"}),
            "all tokens at once",
        ),
        (lambda: NonAutoregressiveDecodingConfig(min_length=3), "min-length needs an autoregressive model"),
        (
            lambda: NonAutoregressiveConfig(
                **SIZES, decoder_input="bos", positions="learned", max_positions=100
            ),
            "bos-length",
        ),
        (lambda: objective_of("fertility"), "--model.teacher RUN"),
        (lambda: objective_of("bos"), "--model.bos-length 12 is less than"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
