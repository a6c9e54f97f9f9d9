"""N-gram language models: estimates, files, and shallow fusion in the search."""

import itertools
import math
import random
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_translator import small_translator, stored

from transformer import PRESETS, UserError
from transformer.commands.tables import ngram_main
from transformer.decoding.beside.arpa import END, START, UNKNOWN, estimated, read_arpa
from transformer.decoding.beside.ngram import WEIGHT, ShallowFusion, Trie
from transformer.decoding.hooks import first_states
from transformer.systems.registry import system_of
from transformer.translator.beside import output_tokenizer

WORDS = "abcdef"
SIZE = len(WORDS) + 3  # </s>, <unk>, and z, which no text has


def sentences(seed=0, count=60):
    chance = random.Random(seed)
    return [chance.choices(WORDS, weights=(9, 5, 3, 2, 1, 1), k=chance.randint(0, 7)) for _ in range(count)]


def contexts(longest):
    """All that may precede a word, from the beginning of a sentence or within."""
    for length in range(longest + 1):
        for words in itertools.product("abcz", repeat=length):
            yield (START, *words)


def example_arpa(path):
    """The model of a page: a trigram model whose back-off weights are not those of an estimate."""
    path.write_text(
        "made by hand\n\n\\data\\\nngram 1=5\nngram 2=4\nngram 3=2\n\n\\1-grams:\n-99\t<s>\t-0.5\n"
        "-0.7\t</s>\n-0.4\ta\t-0.25\n-0.9\tb\t0.1\n-1.5\tc\n\n\\2-grams:\n-0.3\t<s> a\t-0.125\n"
        "-0.6\ta b\t-0.2\n-0.2\tb </s>\n-0.1\tb c\t0.05\n\n\\3-grams:\n-0.05\t<s> a b\n"
        "-0.15\ta b </s>\n\n\\end\\\n"
    )
    return path


def test_a_file_that_was_worked_out_by_hand(tmp_path):
    model = read_arpa(example_arpa(tmp_path / "a.arpa"))
    expected = {
        ("b", (START, "a")): -0.05,  # <s> a b
        ("c", (START, "a")): -0.125 - 0.25 - 1.5,  # not <s> a c, nor a c
        ("c", ("a", "b")): -0.2 - 0.1,  # b c
        ("a", ("b", "c")): 0.05 + 0 - 0.4,  # not c a
        ("z", (START,)): -0.5 - 1.5,  # the least probable word, as there is no <unk>
        ("a", ("z", "z")): -0.4,
    }
    for (word, context), log_p in expected.items():
        assert model.log10_p(word, context) == pytest.approx(log_p)
    model.write(tmp_path / "b.arpa")
    assert read_arpa(tmp_path / "b.arpa") == model


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (r"\\data\\", "data", r"no line \\data\\: it is no n-gram model"),
        ("ngram 2=4", "ngram 3=4", "line 5: must be such as ngram 1=5000"),
        ("ngram 1=5", "ngram 1=9999999", "must have up to 2,000,000 .* prune it"),
        ("ngram 1=5", "ngram 1=6", "has 5 1-grams, and its head says 6"),
        ("ngram 1=5", "ngram 1=4", "line 13: more than the 4 1-grams"),
        (r"\\2-grams:", "2-grams", r"line 15: must be \\2-grams:"),
        (r"\\2-grams:(.|\n)*", "", r"ends before its line \\2-grams: it is incomplete"),
        ("-0.3\t<s> a\t", "0.3\t<s> a\t", "line 16: must be a logarithm, which is not positive, 2 words"),
        ("-0.3\t<s> a\t", "nan\t<s> a\t", "line 16: must be a logarithm"),
        ("-0.3\t<s> a\t", "-0.3\t<s> a a a\t", "line 16: must be a logarithm"),
        ("-0.3\t<s> a\t-0.125", "-0.3\t<s> a\tinf", "line 16: must be a logarithm"),
        ("a b\t-0.2", "<s> a\t-0.2", "line 17: <s> a is there already"),
        ("\t<s> a b\n", "\t<s> b b\n", "line 22: <s> b is missing among the 2-grams"),
    ],
)
def test_a_file_that_is_damaged_is_refused_with_its_line(tmp_path, before, after, message):
    path = example_arpa(tmp_path / "a.arpa")
    text = path.read_text()
    path.write_text(re.sub(before, after.replace("\\", "\\\\"), text))
    assert path.read_text() != text
    with pytest.raises(UserError, match=message):
        read_arpa(path)


@pytest.mark.parametrize("smoothing", ["kneser-ney", "witten-bell"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_estimates_are_distributions(smoothing, order):
    model = estimated(sentences(), order, SIZE, smoothing)
    assert {word for (word,) in model.orders[0]} == {*WORDS, START, END, UNKNOWN}
    for context in contexts(order):
        total = sum(10 ** model.log10_p(word, context) for word in (*WORDS, END, UNKNOWN, "z"))
        assert total == pytest.approx(1)
    text = [(*words, END) for words in sentences(1)]
    model_p, uniform = (
        sum(log_p(word, (START, *words[:at])) for words in text for at, word in enumerate(words))
        for log_p in (model.log10_p, lambda word, context: -math.log10(SIZE))
    )
    assert model_p > uniform


def test_bigrams_are_those_of_the_formulas():
    """Chen and Goodman 1998, equation 25, and Witten and Bell's, from counts of pairs."""
    text = sentences()
    pairs = [pair for words in text for pair in itertools.pairwise((START, *words, END))]
    kinds = set(pairs)
    once, twice = (sum(pairs.count(pair) == count for pair in kinds) for count in (1, 2))
    before = {word: len({a for a, b in kinds if b == word}) for word in (*WORDS, END)}
    d2, singles = once / (once + 2 * twice), list(before.values())
    d1 = (
        singles.count(1) / (singles.count(1) + 2 * singles.count(2)) if 1 in singles and 2 in singles else 0.5
    )
    kneser_ney, witten_bell = (estimated(text, 2, SIZE, name) for name in ("kneser-ney", "witten-bell"))
    words_of = [word for _, word in pairs]
    for a, b in kinds:
        total, types = sum(x == a for x, _ in pairs), len({y for x, y in kinds if x == a})
        single = (before[b] - d1) / len(kinds) + d1 * len(before) / len(kinds) / SIZE
        expected = (pairs.count((a, b)) - d2) / total + d2 * types / total * single
        assert 10 ** kneser_ney.log10_p(b, (a,)) == pytest.approx(expected)
        kinds_of_words = len({*words_of})
        single = (words_of.count(b) + kinds_of_words / SIZE) / (len(words_of) + kinds_of_words)
        expected = (pairs.count((a, b)) + types * single) / (total + types)
        assert 10 ** witten_bell.log10_p(b, (a,)) == pytest.approx(expected)


NAMES = ["", "", END, UNKNOWN, *WORDS, "z", ""]
EOS, UNK, SILENT = 2, 3, len(NAMES) - 1


def fusion(model):
    silent = np.arange(len(NAMES)) == SILENT
    return ShallowFusion(Trie(model, NAMES, EOS), silent)


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("unknown", [True, False])
def test_a_search_adds_what_the_definition_says(order, unknown, tmp_path):
    """Also after unknown tokens, silent ones, which count nothing, and tokens beyond the vocabulary."""
    text = [[word if word != "f" or not unknown else UNKNOWN for word in words] for words in sentences()]
    model = estimated(text, order, SIZE)
    if not unknown:
        del model.orders[0][UNKNOWN,]
    model.write(tmp_path / "a.arpa")
    model = read_arpa(tmp_path / "a.arpa")
    hook = fusion(model)
    chance = np.random.default_rng(0)
    rows, beams, width = 3, 4, len(NAMES) + 2
    weights = jnp.array([0.0, 0.3, 1.5])
    state = first_states(hook, {WEIGHT: weights}, beams)
    log_p = jax.nn.log_softmax(chance.normal(size=(rows, beams, width)).astype(np.float32))
    pasts = [[(START,)] * beams for _ in range(rows)]
    filtered, advance = jax.jit(hook.filter), jax.jit(hook.advance)
    for _ in range(7):
        found = np.asarray(filtered(log_p, state, jnp.full(rows, 9)))
        for row, beam in np.ndindex(rows, beams):
            named = [*NAMES, "beyond", "beyond"]
            added = [math.log(10) * model.log10_p(name, pasts[row][beam]) for name in named]
            added[SILENT] = 0.0
            expected = log_p[row, beam] + weights[row] * np.array(added)
            np.testing.assert_allclose(found[row, beam], expected, rtol=1e-5, atol=1e-5)
        tokens = chance.choice([EOS + 1, *range(4, width)], size=(rows, beams), replace=True)
        state = advance(jnp.asarray(tokens), state)
        for row, beam in np.ndindex(rows, beams):
            if tokens[row, beam] != SILENT:
                pasts[row][beam] += ([*NAMES, UNKNOWN, UNKNOWN][tokens[row, beam]],)
    assert hook == fusion(model)
    assert hash(hook) == hash(fusion(model))
    assert hook != fusion(estimated(text, order, SIZE + 1))


def test_contexts_with_many_continuations_are_read_whole():
    """More of them than are read together."""
    names = ["", "", END, UNKNOWN, *(f"w{index}" for index in range(300))]
    chance = random.Random(0)
    text = [[word, "w0"] for word in names[4:] for _ in range(chance.randint(1, 3))]
    model = estimated(text, 2, len(names))
    hook = ShallowFusion(Trie(model, names, EOS), np.zeros(len(names), bool))
    state = first_states(hook, {WEIGHT: jnp.ones(1)}, 1)
    found = np.asarray(hook.log_p(state.context, len(names)))[0, 0]
    expected = [math.log(10) * model.log10_p(name, (START,)) for name in names[2:]]
    np.testing.assert_allclose(found[2:], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"red cat\n", ["--order", "0"], "--order must be from 1 to 9"),
        (
            b"red cat\nred \xff\n",
            [],
            "text, line 2: not UTF-8 (byte 5 of the line); convert the file, e.g. with iconv",
        ),
        (b"", [], "has no sentences"),
        (b"red cat\n", ["--output", "text"], "--output text is the file of --input"),
        (b"red cat\n", ["--tokens", "text"], "--tokens text is the file of --input"),
        (b"red cat\n", ["--output", "new", "--tokens", "new"], "--tokens new is the file of --output"),
        (b"red cat\n", ["--output", "gone/new"], "cannot write --output gone/new: its folder is missing"),
    ],
    ids=["order", "utf-8", "empty", "output", "tokens", "both", "folder"],
)
def test_what_the_command_refuses(call, tmp_path, monkeypatch, text, options, message):
    monkeypatch.chdir(tmp_path)
    run = stored(small_translator(), tmp_path / "run")
    (tmp_path / "text").write_bytes(text)
    asked = run, "--input", tmp_path / "text", "--output", tmp_path / "lm", *options
    status, out, err = call(ngram_main, *asked)
    assert (status, out) == (2, "")
    assert message in " ".join(err.split())
    assert (tmp_path / "text").read_bytes() == text
    assert {path.name for path in tmp_path.iterdir()} == {"run", "text"}


def test_a_text_in_another_spelling_is_warned_of(call, tmp_path, caplog):
    run = stored(small_translator(), tmp_path / "run")
    for text, share in ("red cat runs\n" * 9 + "Red cat runs\n", None), ("RED CAT runs\n", "67 %"):
        caplog.clear()
        (tmp_path / "text").write_text(text)
        assert call(ngram_main, run, "--input", tmp_path / "text", "--output", tmp_path / "lm")[0] == 0
        assert (f"text: {share} of the tokens are <unk>" in caplog.text) == bool(share)
        assert bool(caplog.text) == bool(share)


def test_a_model_without_steps_is_named_as_it_is():
    """CTC alone predicts all tokens at once, speech does not; and a command has nothing to leave out."""
    config = PRESETS["speech"]
    config = replace(config, model=replace(config.model, ctc_weight=1.0, vocab_size=9))
    task = system_of(config).task.without_corpus(config)
    for given, end in ((), "leave it out"), (("give another run",), "give another run"):
        with pytest.raises(UserError, match=f"writes token by token, and CTC alone predicts .*; {end}$"):
            output_tokenizer(system_of(config), task, "--lm x", *given)
