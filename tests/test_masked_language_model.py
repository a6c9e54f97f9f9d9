"""Masked language models: what is hidden, and what is learned."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_run import drawn_run, quiet

from transformer import Context, Run, UserError, init_state, make_train_step, train
from transformer.commands import given_outputs
from transformer.commands.decode import decode_main
from transformer.commands.given_outputs import score_main
from transformer.commands.models import average_main
from transformer.config.model import SpecialIds
from transformer.config.records import SentencesConfig
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig
from transformer.systems.masked_language_model.system import MaskedLanguageModel, hide, masked_lm_objective
from transformer.systems.presets import PRESETS

SIZES = {"vocab_size": 50, "num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0}
CONFIG = MaskedLanguageModelConfig(**SIZES)


def sentences(rows: int, length: int = 40) -> jax.Array:
    """Random ids, each sentence closed by </s>; half of the rows are padded."""
    ids = np.random.default_rng(0).integers(4, 50, (rows, length))
    ids[:, 0] = 1
    ids[:, -1] = 2
    ids[::2, length // 2 :] = [2] + [0] * (length // 2 - 1)
    return jnp.asarray(ids)


def test_shares_are_those_of_the_paper():
    """15 % of the tokens; of these 80 % masked, 10 % random, 10 % unchanged: within four deviations."""
    ids = sentences(2000)
    hidden = hide(jax.random.key(3), ids, CONFIG)
    is_text = np.asarray(ids) > 3
    predicted = np.asarray(hidden.predicted)
    assert not predicted[~is_text].any()
    source = np.asarray(hidden.source)
    np.testing.assert_array_equal(source[~predicted], np.asarray(ids)[~predicted])

    def assert_share(which, of, expected):
        count = of.sum()
        assert abs((which & of).sum() / count - expected) < 4 * (expected * (1 - expected) / count) ** 0.5

    assert_share(predicted, is_text, 0.15)
    masked, same = source == CONFIG.mask, source == np.asarray(ids)
    assert_share(masked, predicted, 0.8 + 0.1 / 50)
    assert_share(same, predicted, 0.1 + 0.1 / 50)
    others = source[predicted & ~masked & ~same]
    assert set(others) == {*range(50)} - {CONFIG.mask}  # any other id, special ones too
    assert np.bincount(others).max() < 3 * len(others) / 50


@pytest.mark.slow
def test_what_is_hidden_depends_on_the_sentence_alone():
    """Not on the rows beside it, its row, nor its padding."""
    ids, key = sentences(8), jax.random.key(0)
    together = hide(key, ids, CONFIG)
    turned = hide(key, ids[::-1], CONFIG)
    longer = hide(key, jnp.pad(ids, ((0, 1), (0, 7))), CONFIG)
    for x, y, z in zip(together, turned, longer, strict=True):
        np.testing.assert_array_equal(x, y[::-1])
        np.testing.assert_array_equal(x, z[:8, :40])
    changed = ids.at[:, 1].set(jnp.where(ids[:, 1] == 9, 10, 9))
    assert (hide(key, changed, CONFIG).predicted != together.predicted).any(axis=1).all()
    assert (hide(jax.random.key(1), ids, CONFIG).predicted != together.predicted).any()


@pytest.mark.slow
def test_a_batch_in_slices_hides_the_same():
    config = replace(PRESETS["masked-lm"], model=CONFIG)
    model, objective = MaskedLanguageModel(CONFIG), masked_lm_objective(config)
    optimizer, batch = optax.sgd(1.0), {"source": sentences(8)}
    results = []
    for accumulate in (1, 4):
        state = init_state(model, optimizer, 0, (batch["source"],))
        step = make_train_step(model, objective, optimizer, seed=0, accumulate=accumulate)
        state, means = jax.jit(step)(state, batch)
        results.append((state.params, means))
    leaves = zip(*map(jax.tree.leaves, results), strict=True)
    for x, y in leaves:
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_training_hides_anew_at_each_update_and_an_evaluation_always_the_same():
    config = replace(PRESETS["masked-lm"], model=CONFIG)
    model, objective = MaskedLanguageModel(CONFIG), masked_lm_objective(config)
    batch = {"source": sentences(8)}
    variables = model.init(jax.random.key(0), batch["source"])

    def weight(**context):
        return float(objective(model, variables, batch, Context(**context)).total)

    key = jax.random.key(5)  # of a replica, on which nothing that is hidden depends
    assert weight(step=0) == weight(step=9)
    assert weight(key=key, step=1) == weight(key=jax.random.key(6), step=1) != weight(key=key, step=2)


def test_another_mask_id_is_one_that_the_vocabulary_has():
    special = SpecialIds(0, 1, 2, 3)
    assert MaskedLanguageModelConfig(**SIZES, special=special).mask == 1
    assert MaskedLanguageModelConfig(**SIZES, mask_id=49).mask == 49
    with pytest.raises(UserError, match="--model.mask-id 50: the vocabulary has 50 ids"):
        MaskedLanguageModelConfig(**SIZES, mask_id=50)
    with pytest.raises(UserError, match="--model.mask-share 0 leaves nothing"):
        MaskedLanguageModelConfig(**SIZES, mask_share=0.0)
    with pytest.raises(UserError, match="--model.share-embeddings: this system has no use for it"):
        MaskedLanguageModelConfig(**SIZES, share_embeddings="none")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Letters in the order of the alphabet."""
    folder = tmp_path_factory.mktemp("masked")
    text = folder / "text.en"
    words, lengths = "abcdefghijkl", (3, 4, 5, 6, 7)
    rows = [[words[(first + k) % 12] for k in range(length)] for first in range(12) for length in lengths]
    text.write_text("".join(" ".join(row) + "\n\n" for row in rows * 4))
    base, data = PRESETS["masked-lm"], {"max_length": 8, "buckets": (8,), "batch_tokens": 256}
    return replace(
        base,
        model=replace(base.model, **SIZES | {"vocab_size": 0, "d_model": 32, "mask_share": 0.3}),
        data=SentencesConfig(train=text, tokenizer="word", **data, cache_dir=folder / "cache"),
        optimizer=replace(base.optimizer, peak=1e-2, warmup_steps=20),
        training=replace(base.training, steps=200, evaluate_every=100),
    )


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    return train(config, tmp_path_factory.mktemp("trained") / "run", watch=quiet())


@pytest.fixture(scope="module")
def drawn(config, tmp_path_factory):
    """A run of random parameters."""
    return drawn_run(config, tmp_path_factory.mktemp("drawn") / "run").path


@pytest.mark.slow
def test_it_learns_what_is_hidden(trained):
    results = json.loads((trained / "results.json").read_text())
    assert results["accuracy"]["value"] > 50
    assert results["perplexity"]["value"] < 4
    run = Run(trained)
    records = run.log.records("evaluation")
    assert [set(record) >= {"loss", "nll", "accuracy", "perplexity"} for record in records] == [True] * 2
    assert len(run.task.tokenizer.ids_by_piece) == 12
    assert json.loads((trained / "config.json").read_text())["system"] == "masked-lm"


def test_a_line_is_an_example_and_the_last_tenth_validates(drawn):
    corpus = Run(drawn).task.open_corpus(Run(drawn).config)
    assert len(corpus.splits["train"]) == 216
    assert len(corpus.splits["validation"]) == 24
    assert next(iter(corpus.splits["train"])) == "a b c"


def test_it_decodes_nothing(drawn, call, refused):
    error = refused(decode_main, drawn)
    assert "masked-lm" in error
    assert "Traceback" not in error
    status, out, _ = call(average_main, drawn)
    assert status == 0
    assert "decode" not in out  # which it would suggest for other systems


def test_a_sentence_is_scored_by_each_of_its_tokens_given_all_others(drawn, tmp_path, call, monkeypatch):
    monkeypatch.setattr(given_outputs, "WINDOW", 3)
    run = Run(drawn)
    pairs = [("a", "a b c"), ("b", "c a b b c unknown a b"), ("", "a"), ("c", "")]
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    for side, path in enumerate(files):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs))
    words = [run.path, "--source", files[0], "--target", files[1]]
    status, output, errors = call(score_main, *words)
    assert status == 0, errors
    model, variables = run.system.model(run.config.model), run.variables("best")
    special, mask = run.config.model.special, run.config.model.mask
    rows = [[float(number) for number in line.split("\t")] for line in output.splitlines()]
    assert rows[2:] == [[-np.inf, -np.inf, 0]] * 2
    for row, (_, target) in zip(rows[:2], pairs, strict=False):
        (example,) = run.task.examples([target])
        ids, total, counted = np.array(example["source"]), 0.0, 0
        for position, token in enumerate(ids[:-1]):
            if token in (special.unk, special.bos):
                continue
            hidden = np.where(np.arange(len(ids)) == position, mask, ids)
            logits = np.asarray(model.apply(variables, jnp.asarray(hidden[None])), np.float64)[0, position]
            total += logits[token] - np.log(np.exp(logits).sum())
            counted += 1
        assert row == pytest.approx([total / counted, total, counted], rel=1e-4)
    for option in (["--reverse", run.path], ["--int8"], ["--source-language", "en"]):
        assert "masked language model" in call(score_main, *words, *option)[2]
