"""Names that a search expects: against their definition and enumeration, in decoders, commands, systems."""

import dataclasses
import itertools
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import (
    MODEL,
    SOURCES,
    enumerate_all,
    hypotheses,
    next_log_p,
    random_variables,
    slow_search,
)
from small_run import WORDS
from small_translator import LINES, as_lists, check_alone, small_translator, stored

from transformer import BeamConfig, UserError
from transformer.commands.decode import decode_main
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.decoding.hooks import Hooks, Term, first_states
from transformer.decoding.searches.search import autoregressive_search
from transformer.decoding.steering.names import Bias, NameAutomaton
from transformer.tasks.texts.steering import letters_of, spellings

SPECIAL, SIZE = MODEL.config.special, MODEL.config.vocab_size
LETTERS = np.isin(np.arange(SIZE), [5, 7, 9])  # tokens that continue the word before them
ENDS = np.isin(np.arange(SIZE), [4, 5, 6, 7, 8, 9])  # tokens whose word the next one may continue
SILENT = np.arange(SIZE) == 3


def credits_of(names, tokens):
    """The definition, by trying everything: what names, and an unfinished beginning, count by where they
    begin; and where that beginning begins, or the end of the tokens."""

    def begins(at):
        return at in (0, len(tokens)) or not (ENDS[tokens[at - 1]] and LETTERS[tokens[at]])

    at, kept, start = 0, {}, None
    while at < len(tokens) and start is None:
        whole = []
        if begins(at):
            if any(name[: len(tokens) - at] == tokens[at:] for name in names):
                start = at
                break
            whole = [name for name in names if tokens[at : at + len(name)] == name]
            whole = [name for name in whole if begins(at + len(name))]
        longest = max(whole, key=len, default=())
        if longest:
            kept[at] = names[longest] * len(longest)
        at += len(longest) or 1
    if start is not None:
        beginnings = [tokens[start:end] for end in range(start + 1, len(tokens) + 1)]
        kept[start] = sum(
            max(weight for name, weight in names.items() if name[: len(part)] == part) for part in beginnings
        )
    return kept, at


def biased(names, tokens, log_p):
    """The score of tokens, with the log-probability of each."""
    closed = [at for at in range(len(tokens)) if credits_of(names, tokens[: at + 1])[1] >= at]
    kept, _ = credits_of(names, tokens)
    total = 0.0
    for begin, end in itertools.pairwise([*closed, len(tokens)]):
        total += min(0, sum(log_p[begin:end]) + sum(x for at, x in kept.items() if begin <= at < end))
    return total


def with_bias(ask, names):
    """The log-probabilities of what follows each prefix, with what names count."""

    def changed(prefix):
        log_p = [float(ask([prefix[:at]])[0][token]) for at, token in enumerate(prefix)]
        before = biased(names, prefix, log_p)
        following = ask([prefix])[0]
        return [biased(names, (*prefix, token), [*log_p, following[token]]) - before for token in range(SIZE)]

    cache = {}

    def rows(prefixes):
        for prefix in prefixes:
            if prefix not in cache:
                cache[prefix] = changed(prefix)
        return np.array([cache[prefix] for prefix in prefixes])

    return rows


@pytest.mark.parametrize("seed", range(2))
def test_the_hook_counts_what_the_definition_says(seed):
    """For random names that overlap, of three tokens that continue words or not."""
    chance = np.random.default_rng(seed)
    names = {
        tuple(chance.choice([5, 6, 10], size=chance.integers(1, 6)).tolist()): float(chance.choice([0.5, 2]))
        for _ in range(9)
    }
    hook = Bias(256, LETTERS, ENDS, SILENT)
    rows, beams = 2, 20
    state = first_states(hook, inputs_of(hook, names, rows, 1.5), beams)
    scaled = {name: 1.5 * weight for name, weight in names.items()}
    texts = {(row, beam): ((), []) for row in range(rows) for beam in range(beams)}
    filter_, follow, end = jax.jit(hook.filter), jax.jit(hook.follow), jax.jit(hook.end)
    for _ in range(9):
        log_p = -chance.exponential(2, size=(rows, beams, SIZE)).astype(np.float32)
        found = np.asarray(filter_(log_p, state, jnp.full(rows, 9)))
        ends, reach = np.asarray(end(jnp.zeros((rows, beams)), state)), np.asarray(hook.reach(state))
        tokens = chance.choice([3, 5, 6, 10], p=[0.1, 0.3, 0.3, 0.3], size=(rows, beams))
        for (row, beam), (text, costs) in texts.items():
            before = biased(scaled, text, costs)
            for token in (2, 5, 6, 10):
                after = biased(scaled, (*text, token), [*costs, log_p[row, beam, token]])
                np.testing.assert_allclose(found[row, beam, token], after - before, atol=1e-4)
                assert after <= before + reach[row, beam] + 1e-4
            assert found[row, beam, 3] == log_p[row, beam, 3]  # silent
            forced = biased(scaled, (*text, 2), [*costs, 0]) - before
            np.testing.assert_allclose(ends[row, beam], forced, atol=1e-4)
            if (token := int(tokens[row, beam])) != 3:
                texts[row, beam] = ((*text, token), [*costs, log_p[row, beam, token]])
        state = follow(jnp.asarray(tokens), state, jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0])


@pytest.mark.thorough
def test_long_names_take_time_in_proportion():
    """Names of 40,000 tokens, which repeat themselves: steps in their square would take hours."""
    name = (10, 5) * 10_000
    automaton = NameAutomaton({name: 1.0, name[1:]: 2.0}, LETTERS, ENDS)
    assert len(automaton.first) == 1 + 1 + 2 * len(name) - 1
    with pytest.raises(OverflowError):
        NameAutomaton({name: 1.0}, LETTERS, ENDS, max_arcs=len(name) - 1)


def inputs_of(hook, names, rows, weight=1.0):
    arrays = hook.example(NameAutomaton(names, LETTERS, ENDS), weight)
    return {name: jnp.asarray(np.stack([np.asarray(x)] * rows)) for name, x in arrays.items()}


def penalty(length):
    return ((5 + length) / 6) ** 0.6


NAMES = {(4, 5): 0.6, (8,): 0.3, (6, 10, 7): 0.9, (10, 7): 0.7, (9, 4): 0.8, (4, 10): 0.2, (5, 9, 6, 8): 0.7}


@pytest.mark.by_default("3-10")
@pytest.mark.parametrize(("beams", "limit"), [(3, 10), (80, 3)])
def test_the_search_is_that_of_the_biased_score(beams, limit):
    """A small beam, which stops early, is that of the slow reference; one for all outputs has them in
    order."""
    variables = random_variables(MODEL, 0)
    hook = Bias(256, LETTERS, ENDS, np.zeros(SIZE, bool))
    search = dataclasses.replace(autoregressive_search, hooks=Hooks((hook,)))
    options = BeamConfig(beam_size=beams, max_length=limit, length_penalty=0.6)
    inputs = {"source": jnp.asarray(SOURCES[:2]), **inputs_of(hook, NAMES, 2)}
    result = search(MODEL, variables, inputs, jnp.arange(2), options)
    for row, source in enumerate(SOURCES[:2]):
        ask = next_log_p(MODEL, variables, source)
        found = hypotheses(result, row, SPECIAL)
        if beams == 3:
            expected = slow_search(with_bias(ask, NAMES), SPECIAL, beams, penalty, limit)
            plain = slow_search(ask, SPECIAL, beams, penalty, limit)
            assert expected != plain
        else:
            outputs = [each for _, each in enumerate_all(ask, range(3, SIZE), SPECIAL.eos, limit)]
            scored = with_bias(ask, NAMES)
            expected = [
                (sum(scored([each[:at]])[0][token] for at, token in enumerate(each)), each)
                for each in outputs
            ]
            expected = sorted(((score / penalty(len(each)), each) for score, each in expected), reverse=True)
            assert len(found) == len(expected)
            np.testing.assert_allclose([x for x, _ in found], [x for x, _ in expected], rtol=1e-4, atol=1e-4)
            continue  # some are equal
        assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
        np.testing.assert_allclose([x for x, _ in found], [x for x, _ in expected], rtol=1e-4)


class Bigrams(Term):
    """A term in place of a model: the probability of a token depends on the one before it."""

    def __init__(self, table):
        self.table = table

    def init(self, inputs):
        return jnp.full(len(inputs["source"]), SPECIAL.bos)

    def filter(self, logits, state, steps_left):
        return jnp.log(jnp.asarray(self.table))[state]

    def advance(self, tokens, state):
        return tokens


@pytest.mark.thorough
def test_a_search_waits_for_a_name_that_may_still_be_the_best():
    """The first token of a name costs more than the best end; the second one makes up for it."""
    table = np.full((SIZE, SIZE), 1e-9, np.float32)
    table[SPECIAL.bos, [SPECIAL.eos, 4]] = 0.6, 0.35
    table[4, 5], table[5, SPECIAL.eos] = 1, 1
    hook = Bias(256, LETTERS, ENDS, SILENT)
    search = dataclasses.replace(autoregressive_search, hooks=Hooks((Bigrams(table), hook)))
    options = BeamConfig(beam_size=1, max_length=5, length_penalty=0.0)
    for weight, best in ((0.3, (4, 5, 2)), (0.2, (2,))):  # log 0.35 + 0.6 is better than log 0.6
        inputs = {"source": jnp.asarray(SOURCES[:1]), **inputs_of(hook, {(4, 5): weight}, 1)}
        result = search(MODEL, random_variables(MODEL, 0), inputs, jnp.arange(1), options)
        score, tokens = hypotheses(result, 0, SPECIAL)[0]
        assert tokens == best
        expected = math.log(0.35) + 2 * weight if len(best) == 3 else math.log(0.6)
        assert score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram", "char"])
def test_no_spelling_leaves_out_a_part_of_a_name(kind):
    """Without brackets, "a" or other text around names in the vocabulary."""
    tokenizer = train_tokenizer(["new york", "york is new", "in new york"] * 9, kind, 272)
    for name in ("new york", "york", "new"):
        found = spellings(tokenizer, name)
        assert found
        assert {tokenizer.decode(ids).strip() for ids in found} <= {name, name[:1].upper() + name[1:]}


def test_spellings_and_words():
    """In vocabularies of all kinds, as they stand in texts, with or without a space before them."""
    text = ["Anna saw Maria (Anna) in Bonn", "anna sings in the rain", "Mary Ann, sing"] * 5
    for kind, size in (
        ("unigram", 285),
        ("bpe", 290),
        ("char", 320),
        ("word", 60),
        ("character", 60),
        ("byte", 300),
    ):
        tokenizer = train_tokenizer(text, kind, size)
        starts, ends, silent = letters_of(tokenizer)
        for name in ("Anna", "Mary Ann"):
            several = spellings(tokenizer, name)
            assert {tokenizer.decode(ids).strip() for ids in several} == {name}
            for line in (name, f"saw {name}", f"({name}"):
                ids = tokenizer.encode(line)
                (at,) = [
                    at
                    for at in range(len(ids))
                    for some in several
                    if tuple(ids[at : at + len(some)]) == some
                ]
                assert at == 0 or not (ends[ids[at - 1]] and starts[ids[at]])
            ids = tokenizer.encode("Bonn")
            assert all(ends[before] and starts[index] for before, index in itertools.pairwise(ids[1:]))
        assert not silent[tokenizer.encode("Anna saw (")].any()
    assert spellings(train_tokenizer(text, "word", 60), "Berta") == []
    lower = train_tokenizer(["anna sings"], "character", 60)
    assert [lower.decode(ids) for ids in spellings(lower, "Anna")] == ["anna"]
    divided = train_tokenizer(["An@@ na sings"], "whitespace", 60)
    starts, ends, _ = letters_of(divided)
    assert [divided.decode([index]) for index in np.flatnonzero(ends)] == ["An"]


EXPECTED = ["cat dog", "sings red", "blue"]


@pytest.mark.slow
@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", ["transformer", "copying"])
def test_a_translator_with_names(system):
    translator = small_translator(system)
    lines = [*LINES, "unseen words"]
    plain = translator.search(lines)
    marks = {translator.fingerprint()}
    translator.use_names(EXPECTED, 0)
    assert as_lists(translator.search(lines)) == as_lists(plain)  # to the last bit
    marks.add(translator.fingerprint())
    assert len(marks) == 1
    translator.use_names(EXPECTED, 8)
    together = translator.search(lines)
    marks.add(translator.fingerprint())
    assert [each[0].text for each in together] != [each[0].text for each in plain]
    check_alone(translator, lines, together, system == "transformer")
    (service,) = [some for key, some in translator._services.items() if key[1]]
    translator.use_names({"red": 2.0, "green": 1.0})
    translator.search(lines)
    assert [some for key, some in translator._services.items() if key[1]] == [service]  # compiled once
    translator.use_names(None)
    assert len({*marks, translator.fingerprint()}) == 2
    for method in ("greedy", "sample"):
        translator.use_names(EXPECTED, 8)
        assert translator.translate(lines, method=method)


def test_what_cannot_be_used_is_refused(tmp_path, caplog):
    translator = small_translator()
    for weight in (-0.1, math.nan, 1e9, True):
        with pytest.raises(UserError, match="--bias-weight .*: must be a number from 0 to 100"):
            translator.use_names(EXPECTED, weight)
    path = tmp_path / "names"
    for text, message in (
        ("red\n\nblue\tx\n", "names, line 3: 'x' is no weight; write a name, a tab and a number"),
        ("red\t-1\n", "names, line 1: the weight -1.0: must be a number from 0"),
        ("\t2\n", "names, line 1: a name is empty"),
        ("Hamburg\n", r"the vocabulary cannot spell 1 name \('Hamburg'\); give others"),
        ("\n", "there are no names"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            translator.use_names(path)
    assert translator.bias is None
    with caplog.at_level(logging.WARNING, "transformer"):
        translator.use_names(["red", "Hamburg"])
    assert "cannot spell 1 name ('Hamburg'), left out" in caplog.text
    with pytest.raises(UserError, match="room for names of 65,536 tokens"):
        translator.use_names(
            [" ".join(WORDS[:8]) + f" {one} {other}" * 999 for one in WORDS for other in WORDS]
        )


@pytest.mark.thorough
def test_the_commands(tmp_path, decode, refused):
    run = stored(small_translator(), tmp_path / "run")
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    names = tmp_path / "names"
    names.write_text("cat dog\nsings red\t2\n\nblue\n")

    lines = "--input", tmp_path / "in"
    translator = small_translator()
    translator.use_names({"cat dog": 1, "sings red": 2, "blue": 1}, 3)
    status, out, _ = decode(run, *lines, "--bias", names, "--bias-weight", 3)
    assert (status, out.splitlines()) == (0, translator.translate(LINES))
    status, out, _ = decode(
        run, *lines, "--bias", names, "--bias-weight", 0, 3, "--reference", tmp_path / "in"
    )
    scored = [line.partition(": BLEU")[0] for line in out.splitlines() if "BLEU" in line]
    assert (status, scored) == (0, ["--bias-weight 0", "--bias-weight 3"])
    for options, message in (
        (("--bias-weight", "0.2"), "--bias-weight needs --bias FILE"),
        (("--bias", names, "--bias-weight", "0", "1"), "several weights are compared by their scores"),
        (("--bias", names, "--explore", tmp_path / "page"), "--bias is for lines, --explore writes a page"),
    ):
        assert message in refused(decode_main, run, *lines, *options)
