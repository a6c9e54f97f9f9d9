"""A trained language model beside the model: against enumeration, scoring by hand, and what is refused."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import MODEL, SOURCES, enumerate_all, hypotheses, next_log_p, random_variables
from small_run import WORDS
from small_translator import small_translator, stored

from transformer import BeamConfig, Config, Run, UserError
from transformer.config.records import StreamConfig
from transformer.data.store import Corpus
from transformer.decoding.beside.ensemble import WEIGHT, WithLanguageModel, together
from transformer.decoding.searches.search import autoregressive_search
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.language_model.system import LanguageModel, Past
from transformer.systems.language_model.task import LanguageModelling

SPECIAL, SIZE = MODEL.config.special, MODEL.config.vocab_size
SIZES = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2}
LIMIT = 3


def language_model(size, seed):
    model = LanguageModel(LanguageModelConfig(vocab_size=size, **SIZES))
    return model, jax.tree.map(jnp.asarray, random_variables(model, seed))


def next_of_text(model, variables, prefixes):
    """log p of what follows each prefix, read as running text."""
    rows = []
    for prefix in prefixes:
        padded = [model.config.special.bos, *prefix, *[model.config.special.pad] * (11 - len(prefix))]
        rows.append(np.asarray(_logits(model, variables, jnp.array([padded])))[0, len(prefix)])
    return np.array(rows, np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _logits(model, variables, ids):
    def run(model):
        return model.output(model.advance(ids, Past.empty(model.config, len(ids), 0))[0])

    return jax.nn.log_softmax(model.apply(variables, method=run))


def test_the_search_is_that_of_both_models():
    """All outputs are in the order of the sum; the end that the limit forces has the probability of the model
    alone."""
    variables, weight = random_variables(MODEL, 3), 0.7
    model, of_language = language_model(SIZE, 8)
    both = WithLanguageModel(MODEL, model)
    options = BeamConfig(beam_size=80, max_length=LIMIT, length_penalty=0.6)
    inputs = {"source": jnp.asarray(SOURCES[:2]), WEIGHT: jnp.array([weight, 0.0])}
    result = autoregressive_search(both, together(variables, of_language), inputs, jnp.arange(2), options)
    words = range(3, SIZE)
    prefixes = [prefix for n in range(LIMIT) for prefix in itertools.product(words, repeat=n)]
    added = dict(zip(prefixes, next_of_text(model, of_language, prefixes), strict=True))
    for row, factor in enumerate((weight, 0.0)):
        ask = next_log_p(MODEL, variables, SOURCES[row])
        expected = []
        for log_p, tokens in enumerate_all(ask, words, SPECIAL.eos, LIMIT):
            counted = tokens[: LIMIT - 1]
            more = sum(added[tokens[:at]][token] for at, token in enumerate(counted))
            expected.append(((log_p + factor * more) / ((5 + len(tokens)) / 6) ** 0.6, tokens, log_p))
        expected.sort(reverse=True)
        found = hypotheses(result, row, SPECIAL)
        assert [tokens for _, tokens in found] == [tokens for _, tokens, _ in expected]
        np.testing.assert_allclose([x for x, _ in found], [x for x, _, _ in expected], rtol=1e-4)
        log_p = np.asarray(result.log_probabilities[row][: len(found)])
        np.testing.assert_allclose(log_p, [x for _, _, x in expected], rtol=1e-4)


LINES = [" ".join(WORDS[:3]), " ".join(WORDS[4:7]), WORDS[1], "unseen words"]


def language_run(path, tokenizer, seed):
    """A run of language-model with this vocabulary."""
    model, variables = language_model(tokenizer.vocab_size, seed)
    config = Config(system="language-model", model=model.config, data=StreamConfig())
    run = Run.create(path, config, LanguageModelling(config, tokenizer))
    run.checkpoints.store_model(1, variables)
    return model, variables


def as_lists(outputs):
    return [[each.to_dict() for each in several] for several in outputs]


@pytest.mark.slow
def test_a_translator_with_a_trained_language_model(tmp_path):
    translator = small_translator()
    model, variables = language_run(tmp_path / "lm", translator.task.tokenizers[1], 8)
    plain = translator.search(LINES)
    marks = {translator.fingerprint()}
    translator.use_language_model(tmp_path / "lm", 0)
    assert as_lists(translator.search(LINES)) == as_lists(plain)  # to the last bit
    marks.add(translator.fingerprint())
    assert len(marks) == 1
    translator.use_language_model(tmp_path / "lm", 0.8)
    found = translator.search(LINES)
    assert translator.fingerprint() not in marks
    assert [each[0].text for each in found] != [each[0].text for each in plain]
    scores = translator.score(LINES, [several[0].text for several in found])
    np.testing.assert_allclose(scores, [several[0].log_probability for several in found], rtol=1e-4)
    for line, several in zip(LINES, found, strict=True):
        (alone,) = translator.search([line])
        assert [each.text for each in alone] == [each.text for each in several]
        limit = len(line.split()) + 1 + translator.config.decoding.extra_length
        for each in several:
            ids = [*translator.task.tokenizers[1].encode(each.text), SPECIAL.eos][: limit - 1]
            rows = next_of_text(model, variables, [ids[:at] for at in range(len(ids))])
            total = each.log_probability + 0.8 * rows[np.arange(len(ids)), ids].sum()
            length = len(translator.task.tokenizers[1].encode(each.text)) + 1
            assert each.score == pytest.approx(total / ((5 + length) / 6) ** 0.6, rel=1e-4)
    language_run(tmp_path / "other", translator.task.tokenizers[1], 9)
    translator.use_language_model(tmp_path / "other", 0.8)
    assert as_lists(translator.search(LINES)) != as_lists(found)


@pytest.mark.thorough
def test_what_cannot_be_used_is_refused(tmp_path):
    translator = small_translator()
    other = small_translator(words=["one", "two", *WORDS]).task.tokenizers[1]
    language_run(tmp_path / "lm", other, 8)
    with pytest.raises(UserError, match="another vocabulary .* train one with --data.source-tokenizer"):
        translator.use_language_model(tmp_path / "lm")
    run = stored(translator, tmp_path / "run")
    with pytest.raises(UserError, match="a run of transformer; give one of language-model"):
        translator.use_language_model(run)
    copying = small_translator("copying")
    language_run(tmp_path / "own", copying.task.tokenizers[1], 8)
    with pytest.raises(UserError, match="codes of languages or copied words"):
        copying.use_language_model(tmp_path / "own")
    language_run(tmp_path / "same", translator.task.tokenizers[1], 8)
    translator.use_language_model(tmp_path / "same")
    with pytest.raises(UserError, match="--decoding.shortlist"):
        translator.translate(LINES, shortlist=True)
    translator.use_language_model(None)
    assert translator.language_model is None


def test_a_language_model_has_the_vocabulary_of_another_run(tmp_path):
    run = stored(small_translator(), tmp_path / "run")
    data = StreamConfig(source_tokenizer=run / "source.model")
    config = Config(system="language-model", model=LanguageModelConfig(**SIZES), data=data)
    task = LanguageModelling.create(config, Corpus("none", {}, tmp_path))
    tokenizer = small_translator().task.tokenizers[1]
    assert task.tokenizer.content() == tokenizer.content()
    assert task.config.model.vocab_size == tokenizer.vocab_size
    (example,) = task.stored_examples([f"{LINES[0]}\n"])
    assert example["ids"] == [*tokenizer.encode(LINES[0]), SPECIAL.eos]
