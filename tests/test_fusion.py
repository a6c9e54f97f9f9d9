"""A language model beside the model: against enumeration, and in translators, commands and all systems."""

import dataclasses
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import MODEL, SOURCES, hypotheses, next_log_p, random_variables, slow_search
from small_run import WORDS
from small_translator import LINES, as_lists, bare_task, check_alone, small_translator, stored

from transformer import BeamConfig, Translator, UserError
from transformer.commands.main import main
from transformer.decoding.beside.arpa import END, START, UNKNOWN, estimated
from transformer.decoding.beside.ngram import WEIGHT, ShallowFusion, Trie
from transformer.decoding.hooks import Hooks
from transformer.decoding.searches.search import autoregressive_search
from transformer.systems.registry import REGISTRY, find_system
from transformer.translator.beside import names_beside, output_tokenizer

SPECIAL, SIZE = MODEL.config.special, MODEL.config.vocab_size
NAMES = ["", "", "", "", *"abcdefg"]
NAMES[SPECIAL.eos], NAMES[SPECIAL.unk] = END, UNKNOWN
TEXT = [list(words) for words in ("abc", "abd", "ba", "cab", "gab", "gg", "", "dab", "efg")]
LIMIT = 3
GRAMS = estimated(TEXT, 3, SIZE - 2)


def fused(ask, weight):
    """log P with that of the language model, where the end that the limit forces is free."""

    def added(prefix):
        context = (START, *(NAMES[token] for token in prefix))
        log_p = [math.log(10) * GRAMS.log10_p(name, context) for name in NAMES]
        is_last = len(prefix) == LIMIT - 1
        return [0 if is_last and name == END else x for name, x in zip(NAMES, log_p, strict=True)]

    return lambda prefixes: ask(prefixes) + weight * np.array(list(map(added, prefixes)))


def all_of(ask):
    """All outputs, and log P of each."""
    words = [index for index, name in enumerate(NAMES) if name not in ("", END)]
    prefixes = [prefix for length in range(LIMIT) for prefix in itertools.product(words, repeat=length)]
    rows = dict(zip(prefixes, ask(prefixes), strict=True))
    outputs = [(*prefix, SPECIAL.eos) for prefix in prefixes]
    return {each: sum(rows[each[:at]][token] for at, token in enumerate(each)) for each in outputs}


@pytest.mark.by_default("0.7-80")
@pytest.mark.parametrize(("weight", "beams"), [(1.5, 3), (0.7, 80)])
def test_the_search_is_that_of_both_models(weight, beams):
    """A small beam is that of the slow reference; one for all outputs has them in order."""
    variables = random_variables(MODEL, 3)
    hook = ShallowFusion(Trie(GRAMS, NAMES, SPECIAL.eos), np.zeros(SIZE, bool))
    search = dataclasses.replace(autoregressive_search, hooks=Hooks((hook,)))
    options = BeamConfig(beam_size=beams, max_length=LIMIT, length_penalty=0.6)
    inputs = {"source": jnp.asarray(SOURCES[:2]), WEIGHT: jnp.full(2, weight)}
    result = search(MODEL, variables, inputs, jnp.arange(2), options)

    def penalty(length):
        return ((5 + length) / 6) ** 0.6

    for row, source in enumerate(SOURCES[:2]):
        ask = next_log_p(MODEL, variables, source)
        found = hypotheses(result, row, SPECIAL)
        if beams == 3:
            expected = slow_search(fused(ask, weight), SPECIAL, beams, penalty, LIMIT)
        else:
            every = all_of(fused(ask, weight)).items()
            expected = sorted(((score / penalty(len(each)), each) for each, score in every), reverse=True)
        assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
        np.testing.assert_allclose([x for x, _ in found], [x for x, _ in expected], rtol=1e-4)
        of_model = all_of(ask)
        log_p = [of_model[tokens] for _, tokens in found]
        np.testing.assert_allclose(result.log_probabilities[row][: len(found)], log_p, rtol=1e-4)


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    """A model of text in which the words go up."""
    path = tmp_path_factory.mktemp("lm") / "lm.arpa"
    text = [WORDS[at : at + length] for at in range(len(WORDS)) for length in range(5)]
    estimated([" ".join(words).split() for words in text], 3, 20).write(path)
    return path


@pytest.mark.thorough
@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", ["transformer", "copying"])
def test_a_translator_with_a_language_model(system, arpa):
    translator = small_translator(system)
    lines = [*LINES, "unseen words"]
    plain = translator.search(lines)
    translator.use_language_model(arpa, 0)
    assert as_lists(translator.search(lines)) == as_lists(plain)  # to the last bit
    marks = {translator.fingerprint()}
    translator.use_language_model(arpa, 0.8)
    marks.add(translator.fingerprint())
    together = translator.search(lines)
    assert [each[0].text for each in together] != [each[0].text for each in plain]
    check_alone(translator, lines, together, system == "transformer")
    translator.use_language_model(None)
    assert len({*marks, translator.fingerprint()}) == 2


def test_what_cannot_be_used_is_refused(arpa, tmp_path):
    translator = small_translator()
    for weight in (-0.1, math.nan, 1e9, True):
        with pytest.raises(UserError, match="--lm-weight .*: must be a number from 0 to 100"):
            translator.use_language_model(arpa, weight)
    estimated([["other", "words", WORDS[0]]], 2, 9).write(tmp_path / "other.arpa")
    with pytest.raises(UserError, match="1 of its 3 words are tokens of this run; make one"):
        translator.use_language_model(tmp_path / "other.arpa")
    assert translator.language_model is None
    translator.use_language_model(arpa)
    with pytest.raises(UserError, match="has a language model: give it to the ensemble"):
        Translator.together([translator, small_translator()])


def test_other_languages_are_translated_with_the_model_of_now(arpa, monkeypatch):
    translator = small_translator()
    monkeypatch.setattr(type(translator.task), "between", lambda task, source, target: task)
    plain = translator.between("de", "en")
    translator.use_language_model(arpa)
    assert translator.between("de", "en").language_model is translator.language_model
    assert plain.language_model is None
    translator.use_language_model(None)
    assert translator.between("de", "en") is plain


def test_every_system_uses_one_and_names_or_refuses_them():
    uses = {"transformer", "recurrent", "convolutional", "copying", "fast-autoregressive"}
    uses |= {"speech", "captioning"}
    tokenizer = small_translator().task.tokenizers[1]
    for name in REGISTRY:
        system, task = find_system(name), bare_task(name, tokenizer)
        if name in uses:
            assert output_tokenizer(system, task, "--lm x") is tokenizer
            assert names_beside(["red"], 1, system, task).weight == 1
        else:
            with pytest.raises(UserError, match=f"--lm x: .*{name} .*; leave it out"):
                output_tokenizer(system, task, "--lm x")
            with pytest.raises(UserError, match=f"--bias: .*{name} .*; leave it out"):
                names_beside(["red"], 1, system, task)


@pytest.mark.thorough
def test_the_commands(arpa, tmp_path, decode, call):
    run = stored(small_translator(), tmp_path / "run")
    text = [WORDS[at : at + 3] for at in range(6)]
    (tmp_path / "text").write_text("".join(f"{' '.join(words)}\n\n" for words in text))
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))

    model, tokens = tmp_path / "own.arpa", tmp_path / "tokens"
    options = "--input", tmp_path / "text", "--output", model, "--order", 2, "--tokens", tokens
    status, out, _ = call(main, "ngram", run, *options)
    assert status == 0
    assert "2-grams of 6 sentences" in out
    words = [line.split() for line in tokens.read_text().splitlines()]
    estimated(words, 2, 11).write(tmp_path / "again.arpa")  # nine words, </s> and <unk>
    assert model.read_text() == (tmp_path / "again.arpa").read_text()
    lines = "--input", tmp_path / "in"
    translator = small_translator()
    translator.use_language_model(model, 0.5)
    status, out, err = decode(run, *lines, "--lm", model, "--lm-weight", 0.5)
    assert (status, out.splitlines()) == (0, translator.translate(LINES))
    several = "--lm", model, "--lm-weight", "0", "0.5", "--reference", tmp_path / "in"
    status, out, err = decode(run, *lines, *several)
    assert status == 0
    scored = [line.partition(": BLEU")[0] for line in out.splitlines() if "BLEU" in line]
    assert scored == ["--lm-weight 0", "--lm-weight 0.5"]
    for options, message in (
        (("--lm-weight", "0.2"), "--lm-weight needs --lm FILE"),
        (("--lm", model, "--lm-weight", "0", "1"), "several weights are compared by their scores"),
        ((*several, "--lm-weight", "0", "999"), "--lm-weight 999.0: must be a number from 0 to 100"),
        ((*several, "--format", "json"), "of several weights only scores are printed; leave --format out"),
        ((*several, "--n-best", "2"), "only scores are printed; leave --n-best out"),
        (("--lm", tmp_path / "in"), "it is no n-gram model in ARPA form"),
        (("--lm", model, "--explore", tmp_path / "page"), "--lm is for lines, --explore writes a page"),
    ):
        status, out, err = decode(run, *lines, *options)
        assert (status, message in err, out) == (2, True, ""), err
