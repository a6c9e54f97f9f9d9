"""Pointer models: the mixture is a distribution, decoding steps equal teacher forcing, and out-of-vocabulary
words are copied unchanged."""

import dataclasses
import functools
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from reference_search import hypotheses, random_variables, slow_search

from transformer import Config, Translator, UserError
from transformer.config.model import SpecialIds
from transformer.data.built_in import copying
from transformer.data.tokenizers.trained import load_tokenizer, train_tokenizer
from transformer.data.tokenizers.words import OpenWordTokenizer, WordTokenizer
from transformer.decoding.beam import beam_search
from transformer.decoding.scores import wu_penalty
from transformer.model.encoder_decoder import decoder_input
from transformer.runtime.console import ProgressReporter
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.copying.system import (
    CopyingTransformer,
    copying_objective,
    copying_scores,
    extended_ids,
    forced,
    named,
    pointers,
)
from transformer.systems.presets import PRESETS, variant
from transformer.trainer.train import train
from transformer.training.objective import Context

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SIZE = 8
A, B, C = 1000, 2000, 3000  # words outside the vocabulary
CONFIG = CopyingConfig(vocab_size=SIZE, num_layers=1, d_model=16, d_ff=32, num_heads=2, dropout=0.0)
MODEL = CopyingTransformer(CONFIG)
SOURCE = jnp.asarray([[4, A, 5, B, A, EOS], [C, EOS, 0, 0, 0, 0], [6, 6, 7, EOS, 0, 0]])
TARGET = jnp.asarray([[A, 5, B, 4, EOS, 0, 0], [C, C, 6, EOS, 0, 0, 0], [A, 6, 3, EOS, 0, 0, 0]])


@functools.cache
def variables():
    return jax.tree.map(jnp.asarray, random_variables(MODEL, 1))


@functools.cache
def extended():
    return np.asarray(jax.jit(MODEL.apply)(variables(), SOURCE, decoder_input(TARGET, SpecialIds())))


# --- the mixture ---


def test_vocabulary_and_places_are_one_distribution():
    assert extended().shape == (3, 7, SIZE + 6)
    np.testing.assert_allclose(np.exp(extended()).sum(axis=-1), 1, atol=1e-5)


def test_words_the_vocabulary_has_or_that_stand_twice_are_counted_once():
    ids = extended_ids(SOURCE, SOURCE, SIZE)
    np.testing.assert_array_equal(ids[0], [4, SIZE + 1, 5, SIZE + 3, SIZE + 1, EOS])
    np.testing.assert_array_equal(extended_ids(TARGET, SOURCE, SIZE)[2], [SIZE + 6, 6, 3, 2, 0, 0, 0])
    share = np.exp(extended())
    assert (share[0, :, [SIZE, SIZE + 2, SIZE + 4, SIZE + 5]] < 1e-20).all()  # 4, 5, A again, <eos>
    assert (share[0, :, [SIZE + 1, SIZE + 3]] > 1e-6).all()


def test_the_loss_is_that_of_the_distribution():
    found = jax.jit(forced, static_argnums=0)(MODEL, variables(), SOURCE, TARGET)
    (log_p, _, mixture), _ = jax.tree.map(np.asarray, found)
    places = np.asarray(extended_ids(TARGET, SOURCE, SIZE))
    # A is not in the third source: it can only be generated as <unk>
    expected = np.take_along_axis(extended(), np.where(places == SIZE + 6, UNK, places)[..., None], -1)[
        ..., 0
    ]
    np.testing.assert_allclose(log_p[0], expected[0], atol=1e-4)
    np.testing.assert_allclose(log_p[1], expected[1], atol=1e-4)
    np.testing.assert_allclose(log_p[2], expected[2], atol=1e-4)
    np.testing.assert_allclose(np.exp(mixture.log_copy) + np.exp(mixture.log_generate), 1, atol=1e-6)
    scored = jax.jit(copying_scores, static_argnums=0)(MODEL, variables(), {"source": SOURCE}, TARGET)
    scores = np.asarray(scored.log_p).sum(axis=1)
    np.testing.assert_allclose(scores, (log_p * np.asarray(TARGET != PAD)).sum(axis=1), rtol=1e-6)


@pytest.mark.slow
def test_the_pointer_looks_at_words_only():
    weights = np.asarray(pointers(MODEL, variables(), {"source": SOURCE}, TARGET))
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert (weights[np.broadcast_to((SOURCE == PAD)[:, None], weights.shape)] == 0).all()


def test_coverage_counts_attention_paid_twice():
    config = dataclasses.replace(CONFIG, coverage_weight=0.5)
    preset = PRESETS["dialogue-en"]
    batch = {"source": SOURCE, "target": TARGET}

    def loss_of(model):
        objective = copying_objective(dataclasses.replace(preset, model=model))
        return jax.jit(lambda v: objective(CopyingTransformer(model), v, batch, Context()))(variables())

    plain, covered = loss_of(CONFIG), loss_of(config)
    (_, _, mixture), _ = jax.jit(forced, static_argnums=0)(MODEL, variables(), SOURCE, TARGET)
    pointer, expected = np.asarray(mixture.pointer), 0.0
    for row, time in itertools.product(range(3), range(7)):
        if TARGET[row, time] != PAD:
            expected += np.minimum(pointer[row, time], pointer[row, :time].sum(axis=0)).sum()
    assert float(covered.metrics["coverage"][0]) == pytest.approx(expected, rel=1e-4)
    assert float(covered.total - plain.total) == pytest.approx(0.5 * expected, rel=1e-3)


# --- searching ---


def test_step_by_step_is_teacher_forcing():
    memory = apply(MODEL, variables(), SOURCE, method="encode")
    cache = apply(MODEL, variables(), memory, 1, 8, method="init_cache")
    step = jax.jit(functools.partial(MODEL.apply, method="decode_step"))
    given = decoder_input(extended_ids(TARGET, SOURCE, SIZE), SpecialIds())
    for time in range(TARGET.shape[1]):
        log_p, cache = step(variables(), cache, given[:, time : time + 1])
        # as probabilities: at 1e-30, logarithms are only rounding errors
        np.testing.assert_allclose(np.exp(log_p[:, 0]), np.exp(extended()[:, time]), atol=2e-6)


def test_beam_search_finds_what_a_slow_search_finds(monkeypatch):
    found = beam_search(MODEL, variables(), SOURCE, beam_size=3, extra_length=1)
    full = jax.jit(MODEL.apply)
    for row in range(3):
        source = SOURCE[row : row + 1]

        def ask(prefixes, source=source):
            targets = np.full((32, 9), BOS, np.int32)
            for index, prefix in enumerate(prefixes):
                targets[index, 1 : len(prefix) + 1] = prefix
            log_p = np.asarray(full(variables(), jnp.repeat(source, 32, axis=0), jnp.asarray(targets)))
            return np.array([log_p[index, len(prefix)] for index, prefix in enumerate(prefixes)])

        limit = int((source != PAD).sum()) + 1
        expected = slow_search(ask, CONFIG.special, 3, wu_penalty(0.6), limit)
        for (score, tokens), (slow_score, slow_tokens) in zip(
            hypotheses(found, row, CONFIG.special), expected, strict=True
        ):
            assert tokens == slow_tokens
            assert score == pytest.approx(slow_score, abs=1e-4)


def test_places_become_the_words_that_stand_there():
    tokens = jnp.asarray([[[SIZE + 1, 4, SIZE + 3, EOS, 0]]])
    np.testing.assert_array_equal(named(tokens, SOURCE[:1], SIZE), [[[A, 4, B, EOS, 0]]])


# --- words ---


def test_text_comes_back_whatever_it_is():
    random.seed(0)
    alphabet = "ab 你好,.!?\t\n'-1<>é“”glue unk"
    for _ in range(3000):
        text = "".join(random.choices(alphabet, k=random.randint(0, 9)))
        tokenizer = OpenWordTokenizer(["a", ","], SpecialIds()).for_source(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_name_is_the_same_word_wherever_it_stands():
    tokenizer = train_tokenizer(["Hello, I am nice to meet you."], "open-word", 20)
    (name,) = (index for index in tokenizer.encode("Hello, I am Kuroro.") if index >= tokenizer.vocab_size)
    for text in ("Kuroro, hello", "“Kuroro”", "Hello Kuroro!", "我是Kuroro。", "Kuroro"):
        assert name in tokenizer.encode(text)
    assert tokenizer.decode([name]) == "<unk>"
    assert tokenizer.for_source("am Kuroro").decode([name]) == "Kuroro"
    assert tokenizer.for_source("am Kuroro").pieces([name]) == ["Kuroro"]


@pytest.mark.parametrize("kind", ["word", "open-word"])
def test_saved_vocabularies_come_back(kind, tmp_path):
    tokenizer = train_tokenizer(["你好，我 am here, here."], kind, 11)
    tokenizer.save(tmp_path / "source.model")
    loaded = load_tokenizer(tmp_path / "source.model")
    assert type(loaded) is type(tokenizer)
    text = "你好 am there"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.vocab_size == 11
    unknown = [index for index in loaded.encode(text) if index == UNK or index >= 11]
    assert all(index == UNK for index in unknown) == (kind == "word")
    assert unknown


# --- the corpus ---


@pytest.mark.thorough
@pytest.mark.parametrize("language", ["en", "zh"])
def test_names_are_outside_the_vocabulary_and_of_one_split_only(language):
    splits = {
        split: list(itertools.islice(copying.dialogue_pairs(language, split), 3000))
        for split in ("train", "validation", "test")
    }
    preset = PRESETS[f"dialogue-{language}"].data
    tokenizer = train_tokenizer(itertools.chain(*splits["train"]), "open-word", preset.vocab_size)
    patterns = {
        word
        for said, answered, words in copying.PATTERNS[language]
        for text, x in itertools.product((said, answered), words.split("|"))
        for word in WordTokenizer.cut(text.format(a="Q", b="Q", x=x))
    } - {"Q"}
    assert set(tokenizer._words) == patterns
    names = {
        split: {word for pair in pairs for text in pair for word in WordTokenizer.cut(text)} - patterns
        for split, pairs in splits.items()
    }
    for one, other in itertools.combinations(names.values(), 2):
        assert one
        assert not one & other
    for pairs in splits.values():
        assert len({source for source, _ in pairs}) == len(pairs)
        for source, target in pairs:  # every name of an answer was given
            assert set(WordTokenizer.cut(target)) - patterns <= set(WordTokenizer.cut(source))


@pytest.mark.thorough
def test_an_answer_is_a_function_of_the_greeting():
    for language in ("en", "zh"):
        answers = {}
        for seed, split in itertools.product(range(3), ("train", "test")):
            for source, target in itertools.islice(copying.dialogue_pairs(language, split, seed), 4000):
                assert answers.setdefault(source, target) == target


# --- end to end ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copying")
    preset = PRESETS["dialogue-en"]
    config = dataclasses.replace(
        preset,
        model=dataclasses.replace(preset.model, num_layers=1, d_model=48),
        data=dataclasses.replace(
            preset.data, built_in_size=2000, cache_dir=folder / "cache", max_length=20, buckets=(20,)
        ),
        training=dataclasses.replace(preset.training, steps=160, evaluate_every=160, evaluate_sentences=20),
        decoding=dataclasses.replace(preset.decoding, beam_size=2, buckets=(20,)),
    )
    return train(config, folder / "run", watch=ProgressReporter(quiet=True))


@pytest.mark.slow  # a training of 160 updates; test_systems.py has runs that copy words
def test_unseen_names_come_out_as_they_went_in(trained):
    translator = Translator.load(trained)
    sources = ["Hello, I am Kuroro.", "Please tell Xanthippe-Zoë that Bzrk42 called."]
    found = translator.search(sources, alignments=True)
    assert found[0][0].text == "Hello Kuroro, nice to meet you."
    assert found[1][0].text == "I will tell Xanthippe-Zoë that you called, Bzrk42."
    assert "Kuroro" in found[0][0].tokens
    place = found[0][0].tokens.index("Kuroro")
    assert translator.subwords(sources[0])[found[0][0].alignment[place].argmax()] == "Kuroro"
    scores = translator.score(sources, [several[0].text for several in found])
    assert (scores > np.log(0.5)).all()
    assert scores[0] == pytest.approx(translator.search(sources, length_penalty=0.0)[0][0].score, abs=1e-3)
    for options in ({"method": "greedy"}, {"method": "sample", "top_k": 1}):
        assert translator.translate(sources[:1], **options) == [found[0][0].text]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: dataclasses.replace(c, data=dataclasses.replace(c.data, tokenizer="word")),
            "use open-word",
        ),
        (
            lambda c: dataclasses.replace(c, training=dataclasses.replace(c.training, label_smoothing=0.1)),
            "label-smoothing must be 0",
        ),
        (
            lambda c: dataclasses.replace(
                c,
                model=dataclasses.replace(c.model, share_embeddings="target"),
                data=dataclasses.replace(c.data, joint_vocabulary=False),
            ),
            "a joint vocabulary",
        ),
    ],
)
def test_what_cannot_be_is_refused(change, message, tmp_path):
    config: Config = change(PRESETS["dialogue-en"])
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run", watch=ProgressReporter(quiet=True))
    assert not (tmp_path / "run").exists()


def test_open_words_are_for_models_that_copy(tmp_path):
    preset = variant(PRESETS["dialogue-en"], "plain")
    config = dataclasses.replace(preset, data=dataclasses.replace(preset.data, tokenizer="open-word"))
    with pytest.raises(UserError, match="cannot output out-of-vocabulary"):
        train(config, tmp_path / "run", watch=ProgressReporter(quiet=True))
    with pytest.raises(UserError, match="coverage-weight"):
        CopyingConfig(coverage_weight=-1.0)


def test_any_preset_of_the_transformer_can_copy():
    preset = PRESETS["summarisation"]
    config = variant(preset, "copying")
    assert (config.system, config.data.tokenizer) == ("copying", "open-word")
    assert (config.model.d_model, config.training) == (preset.model.d_model, preset.training)
    assert config.decoding == dataclasses.replace(preset.decoding, suppress=(config.model.special.unk,))
