"""Terms: outputs in which given phrases occur, against slow searches over all sentences or by lists."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import (
    MODEL,
    SOURCES,
    NextLogP,
    Scored,
    Tokens,
    enumerate_all,
    hypotheses,
    next_log_p,
    random_variables,
)
from small_run import WORDS
from small_translator import small_translator, stored
from tiers import mostly_slow

from transformer import BeamConfig, Glossary, UserError
from transformer.cli.decode_arguments import parse_decode
from transformer.cli.request_lines import RequestParser
from transformer.commands.decode import decode_main
from transformer.decoding.hooks import Hooks
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.steering.terms import Terms
from transformer.runtime.text import without_formatting
from transformer.tasks.texts.requests import TranslationRequest, make_requests

SPECIAL = MODEL.config.special
LETTERS = (9, 10)  # of the small vocabulary: they go on a word
ENDS = [token not in LETTERS for token in range(MODEL.config.vocab_size)]


def penalty(length: float) -> float:
    return ((5 + length) / 6) ** 0.6


def occurs(tokens: Tokens, phrase: Tokens, times: int) -> int:
    """How often a phrase occurs, at most `times`: one after another, with no letters after it."""
    count = place = 0
    while count < times and place + len(phrase) <= len(tokens):
        after = tokens[place + len(phrase) :][:1]
        if tokens[place : place + len(phrase)] == phrase and not set(after) & set(LETTERS):
            count, place = count + 1, place + len(phrase)
        else:
            place += 1
    return count


def met(tokens: Tokens, wanted: dict[Tokens, int]) -> int:
    """The number of tokens of phrases that are there: of whole ones, and of the longest that has begun."""
    found, longest = 0, 0
    for phrase, times in wanted.items():
        count = occurs(tokens, phrase, times)
        found += count * len(phrase)
        if count < times:
            longest = max(longest, begun(tokens, phrase))
    return found + longest


def begun(tokens: Tokens, phrase: Tokens) -> int:
    """How many tokens of a phrase the last tokens are; those of a whole phrase before them do not count."""
    place = 0
    while place < len(tokens):
        after = tokens[place + len(phrase) :][:1]
        if tokens[place : place + len(phrase)] == phrase and after and after[0] not in LETTERS:
            tokens, place = tokens[place + len(phrase) :], -1
        place += 1
    return max((n for n in range(1, len(phrase)) if tokens[-n:] == phrase[:n]), default=0)


def by_lists(ask: NextLogP, wanted: dict[Tokens, int], n: int, limit: int) -> list[Scored]:
    """Dynamic beam allocation, with lists of hypotheses."""
    total = sum(len(phrase) * times for phrase, times in wanted.items())
    finished: list[Scored] = []
    live: list[Scored] = [(0.0, ())]
    for length in range(1, limit + 1):
        pool: dict[Tokens, float] = {}
        for (score, tokens), row in zip(live, ask([tokens for _, tokens in live]), strict=True):
            allowed = [token for token in range(len(row)) if token not in (SPECIAL.pad, SPECIAL.bos)]
            if length == limit:
                allowed = [SPECIAL.eos]
            elif met(tokens, wanted) < total:
                allowed.remove(SPECIAL.eos)
            chosen = sorted(allowed, key=lambda token: -row[token])[: 2 * n]
            for phrase, times in wanted.items():
                if occurs(tokens, phrase, times) < times:
                    chosen += [phrase[begun(tokens, phrase)]]
                whole = tokens[len(tokens) - len(phrase) :] == phrase
                if whole:
                    chosen += [max((t for t in allowed if ENDS[t]), key=lambda token: row[token])]
            for token in set(chosen) & set(allowed):
                if token != SPECIAL.eos or met(tokens, wanted) == total:
                    pool[(*tokens, token)] = score + row[token]
        banks: dict[int, list[Tokens]] = {}
        for tokens in sorted(pool, key=lambda tokens: -pool[tokens]):
            words = tokens[:-1] if tokens[-1] == SPECIAL.eos else tokens
            banks.setdefault(met(words, wanted), []).append(tokens)
        turns = [(rank, -bank, tokens) for bank, some in banks.items() for rank, tokens in enumerate(some)]
        order = [tokens for *_, tokens in sorted(turns)][: 2 * n]
        ended = [(pool[t] / penalty(length), t) for t in order[:n] if t[-1] == SPECIAL.eos]
        finished = sorted([*finished, *ended], reverse=True)[:n]
        live = [(pool[tokens], tokens) for tokens in order if tokens[-1] != SPECIAL.eos][:n]
    return finished


def searched(wanted: dict[Tokens, int], variables: Any, options: BeamConfig, ends: Any = ENDS) -> Any:
    terms = Terms(4, ends, SPECIAL)
    example = terms.example(wanted)
    inputs = {name: np.tile(x, (len(SOURCES),) + (1,) * x.ndim) for name, x in example.items()}
    inputs["source"] = SOURCES
    search = AutoregressiveSearch(hooks=Hooks((terms,)))
    lines = jnp.arange(len(SOURCES))
    return search(MODEL, variables, {k: jnp.asarray(x) for k, x in inputs.items()}, lines, options)


@pytest.mark.parametrize(
    "wanted",
    [
        {(4,): 1},
        {(5, 6): 1, (8,): 1},
        {(4, 4): 1},
        {(4,): 3},  # repeated
        {(4, 5): 1, (4, 5, 6): 1},  # one begins the other
        {(5,): 1, (4, 5, 6): 1},  # one is within the other
        {(4, 5): 1, (5, 4): 1},  # they overlap
        {(7, 8): 2},
        {(4,): 1, (4, 9): 1},  # a word, and a longer one that begins with it
        {(9, 10): 1, (10,): 1},
    ],
)
def test_a_search_finds_what_lists_find(wanted: dict[Tokens, int]) -> None:
    variables = random_variables(MODEL, 1)
    found = searched(wanted, variables, BeamConfig(beam_size=4, extra_length=6, stop="exact"))
    for row, source in enumerate(SOURCES):
        limit = int((source != SPECIAL.pad).sum()) + 6
        expected = by_lists(next_log_p(MODEL, variables, source), wanted, 4, limit)
        ours = hypotheses(found, row, SPECIAL)
        assert [tokens for _, tokens in ours] == [tokens for _, tokens in expected]
        np.testing.assert_allclose([s for s, _ in ours], [s for s, _ in expected], atol=1e-5)
        for _, tokens in ours:
            assert all(occurs(tokens[:-1], phrase, times) == times for phrase, times in wanted.items())


@pytest.mark.slow
def test_a_wide_beam_finds_the_best_of_all_sentences() -> None:
    variables, wanted = random_variables(MODEL, 3), {(5, 6): 1, (4,): 1}
    found = searched(wanted, variables, BeamConfig(beam_size=64, max_length=5))
    words = [token for token in range(11) if token not in (SPECIAL.pad, SPECIAL.bos, SPECIAL.eos)]
    every = enumerate_all(next_log_p(MODEL, variables, SOURCES[1]), words, SPECIAL.eos, 5)
    fit = [
        (log_p / penalty(len(tokens)), tokens)
        for log_p, tokens in every
        if all(occurs(tokens[:-1], phrase, times) == times for phrase, times in wanted.items())
    ]
    best, tokens = max(fit)
    (score, ours), *_ = hypotheses(found, 1, SPECIAL)
    assert ours == tokens
    assert score == pytest.approx(best, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cases", mostly_slow([80, 1000], [80]))
def test_many_cases(cases: int) -> None:
    """1 to 4 terms of 1 to 3 words at beam 8, taken from another translation: all are met, where they fit.
    It is better than to append them, and than that translation."""
    words = [*WORDS, "one", "two", "three", "four", "five"]
    rng, translator = np.random.default_rng(0), small_translator(words=words)
    decoding = BeamConfig(beam_size=8, extra_length=14, buckets=(48,), rows=16)
    translator.config = replace(translator.config, decoding=decoding)
    sources = [" ".join(rng.choice(words, rng.integers(2, 7))) for _ in range(cases)]
    others, terms = translator.translate(sources, method="sample", samples=1, suppress=(3,)), []
    for other in others:
        said = other.split()
        starts = rng.choice(len(said), min(rng.integers(1, 5), len(said)), replace=False)
        terms.append([" ".join(said[start : start + rng.integers(1, 4)]) for start in starts])
    found = [several[0] for several in translator.search(sources, terms=terms, n_best=1)]

    def ids(text: str) -> Tokens:
        return tuple(len(ENDS) + words.index(word) for word in text.split())

    appended = []
    for hypothesis, wanted, free in zip(found, terms, translator.translate(sources), strict=True):
        said = ids(hypothesis.text)
        for term, times in Counter(wanted).items():
            assert occurs(said, ids(term), times) == times, (hypothesis.text, term)
        appended.append(" ".join([free, *(term for term in wanted if f" {term} " not in f" {free} ")]))

    def scores(texts: list[str]) -> np.ndarray:
        lengths = np.array([len(text.split()) + 1 for text in texts])
        return translator.score(sources, texts) / penalty(lengths)

    ours = scores([hypothesis.text for hypothesis in found])
    np.testing.assert_allclose(ours, [hypothesis.score for hypothesis in found], atol=1e-3)
    for worse in appended, others:
        assert ours.mean() > scores(worse).mean() + 0.2
        assert (ours >= scores(worse) - 1e-4).mean() > 0.7


@pytest.mark.slow
@pytest.mark.parametrize(
    "system", mostly_slow(["transformer", "recurrent", "copying"], ["transformer", "copying"])
)
def test_in_slots(system: str) -> None:
    translator = small_translator(system)
    sources = ["red green blue", "cat", "dog bird", "sings sleeps"] * 3
    terms = [["cat dog"], [], ["bird", "sings", "runs bird"], ["red"]] * 3
    found = translator.search(sources, terms=terms, extra_length=9)
    free = translator.search(sources, extra_length=9)
    for wanted, several, before in zip(terms, found, free, strict=True):
        assert all(f" {term} " in f" {each.text} " for term in wanted for each in several)
        if not wanted:
            assert [each.ids for each in several] == [each.ids for each in before]
    one = translator.submit("red green blue", terms=["cat dog"], extra_length=9, line=1).result()
    assert [each.ids for each in one] == [each.ids for each in found[0]]
    both = translator.search(sources, terms=terms, prefixes=["gr"] * 12, extra_length=9, no_repeat_ngram=3)
    for wanted, several in zip(terms, both, strict=True):
        assert all(each.text.startswith("green") for each in several)
        assert all(f" {term} " in f" {each.text} " for term in wanted for each in several)


def test_a_term_is_a_whole_word() -> None:
    translator = small_translator(tokenizer=("char", 300))
    for several in translator.search(["cat", "dog"], terms=[["re"], ["do", "dog"]], extra_length=14):
        for hypothesis in several:
            assert any(
                word.startswith(("re", "do")) and word.strip(".,!?") in ("re", "do")
                for word in hypothesis.text.split()
            )
    ends = translator.task.text_steering._ends
    ids_by_piece = translator.tokenizers[1].ids_by_piece
    assert not ends[ids_by_piece["e"]]
    assert ends[ids_by_piece["▁"]]
    assert ends[translator.task.special.eos]
    assert translator.task.text_steering.term("red")[0] == ids_by_piece["▁"]


def test_glossaries(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("dog\tHund\nhot dog\tHotdog\nUS\tUSA\n\nred  cat\trote Katze\n")
    glossary = Glossary.read(path, keep="https?://[^ ]+")
    assert glossary.terms("A Dog and a hot  dog.") == ("Hund", "Hotdog")
    assert glossary.terms("dogs tell us: the US, hot-dog, red\tcat") == ("USA", "Hund", "rote Katze")
    assert glossary.terms("dog dog http://x.y/dog dog") == ("Hund", "Hund", "http://x.y/dog", "Hund")
    assert Glossary({}).terms("a dog") == ()
    houses = Glossary({"house": "Hotel", "big house": "große Hotel"})  # an occurrence counts for both
    assert houses.terms("The big house by the house") == ("große Hotel", "Hotel", "Hotel")
    assert houses.terms("a big house") == ("große Hotel",)
    for text, message in (
        ("dog\n", "line 1: must be a term"),
        ("a\tb\na\tc\n", "line 2: 'a' has another"),
        ("ab\tb\na\u00adb\tc\n", "line 2: 'ab' has another"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            Glossary.read(path)
    with pytest.raises(UserError, match="expression '\\(' is invalid"):
        Glossary({}, keep="(")


@pytest.mark.parametrize("mark", ["\u00ad", "\u200b", "\ufeff", "\u2060", "\u200e", "\0"])
def test_invisible_marks_are_no_part_of_a_phrase(mark: str) -> None:
    """They come along when text is copied, and no output would have them."""
    marked = f"{mark}ho{mark}use{mark}"
    glossary = Glossary({marked: f"Ho{mark}tel"})
    assert glossary.terms("a house") == ("Hotel",)
    assert BeamConfig(forbidden=(marked,)).forbidden == ("house",)
    (found,) = make_requests(["a"], [""], [[marked]])
    assert found.terms == ("house",)
    with pytest.raises(UserError, match="a phrase is empty"):
        BeamConfig(forbidden=(mark,))


@pytest.mark.parametrize(
    "word", ["می\u200cخواهم", "क\u094d\u200dष", "👩\u200d🚀", "❤\ufe0f", "ภาษา\u200bไทย"]
)
def test_joiners_are_part_of_words(word: str) -> None:
    assert without_formatting(word) == word


def test_what_cannot_be_is_refused() -> None:
    translator = small_translator()

    def refuses(message: str, wanted: Any, system: Any = translator, **options: Any) -> None:
        with pytest.raises(UserError, match=message):
            system.search(["red", "cat"], terms=[[], wanted], extra_length=60, buckets=(99,), **options)

    refuses("line 2: the term 'red red.*has 33 tokens, and may have 32", ["red " * 33])
    many = [f"{one} {other}" for one in WORDS[:3] for other in WORDS[:6]]
    refuses("line 2: 18 different terms, and there may be 16", many)
    refuses("line 2: 10 tokens are asked for .terms., and the output may have 8", ["red"] * 10, max_length=9)
    refuses("'unheard' has words that are not in the vocabulary", ["unheard"])
    refuses("a term is empty", [" "])
    refuses("must be a list of words and phrases", "red")
    refuses("terms: only --decoding.method beam", ["red"], method="sample")
    refuses("terms: only --decoding.method beam", ["red"], beam_size=4, groups=2)
    refuses("this needs an autoregressive model", ["red"], small_translator("nonautoregressive"))
    refuses("no output can have the term 'red' by the rules of this search", ["red"], forbidden=("red",))
    for few in ([["red"]], iter([["red"]])):
        with pytest.raises(UserError, match="terms .*sentences: give one for each"):
            translator.search(["red", "cat"], terms=few)
    with pytest.raises(UserError, match="terms must be a list: one for each sentence"):
        translator.search(["red"], terms="red")


@pytest.mark.slow
def test_on_the_command_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, decode: Any, refused: Any
) -> None:
    run, lines, terms = (
        stored(small_translator(), tmp_path / "run"),
        tmp_path / "lines",
        tmp_path / "terms.tsv",
    )
    lines.write_text("red green\tcat\tdog bird | sings\ncat dog\nred\t\tblue\n")
    terms.write_text("dog\tblue green\n")

    options = "--tsv", "--glossary", terms, "--keep", "gre+n", "--format", "json", "--extra-length", 9
    status, said, errors = decode(run, "--input", lines, *options)
    assert status == 0, errors
    found = [json.loads(line) for line in said.splitlines()]
    assert [each.get("terms") for each in found] == [["dog bird", "sings", "green"], ["blue green"], ["blue"]]
    for each in found:
        text = each["hypotheses"][0]["text"]
        assert all(f" {term} " in f" {text} " for term in each["terms"])
        assert text.startswith(each.get("prefix", ""))
    lines.write_text("a\tb\tc\td\te\tf\n")
    status, _, errors = decode(run, "--input", lines, "--tsv")
    assert (status, "line 1: 6 columns; --tsv reads a sentence, a prefix and terms" in errors) == (2, True)
    lines.write_text("\tred\nred\tcat\n")
    status, said, errors = decode(run, "--input", lines, "--tsv")
    assert (status, said.splitlines()[0]) == (0, "")
    assert "line 1: an empty sentence stays empty; its prefix and terms do not count" in caplog.text
    decode(run, "--input", lines)
    assert caplog.text.count("a tab is read as a space; --tsv reads a prefix and terms after it") == 1
    lines.write_text("dog " * 3 + "\n")
    terms.write_text("dog\tred cat bird green\n")
    status, said, errors = decode(run, "--input", lines, "--glossary", terms, "--extra-length", 3)
    assert (status, said.count("red cat bird green")) == (0, 1)
    assert "line 1: the output has no room for the term 'red cat bird green'" in caplog.text
    assert "--forbidden takes all words after it" in refused(decode_main, run, "--forbidden", "red", run)
    assert "--weights: there is one run" in refused(decode_main, run, "--weights", "2")
    assert "greedy search finds one" in refused(decode_main, run, "--rescore", run, "--method", "greedy")
    terms.write_text("dog\n")
    status, _, errors = decode(run, "--input", lines, "--glossary", terms)
    assert (status, "terms.tsv, line 1: must be a term, a tab and its translation" in errors) == (2, True)


@pytest.mark.thorough
def test_the_work_for_a_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Glossary({f"w{i}": f"t{i} t{i + 1}" for i in range(20_000)})
    source = " ".join(f"w{i}" for i in range(20_000))
    assert many.terms(source) == tuple(f"t{i} t{i + 1}" for i in range(20_000))
    assert len(Glossary({"a " * 99 + "b": "x", "a": "y"}).terms("a " * 5000)) == 5000
    monkeypatch.setattr("transformer.tasks.texts.glossary.SECONDS", 0.05)
    with pytest.raises(UserError, match="takes more than .* make it simpler"):
        Glossary({}, keep="(a|aa)+$").terms("a" * 60 + "b")


@pytest.mark.parametrize(
    ("entries", "keep", "message"),
    [
        ("red", "", "entries 'red': must be a dictionary"),
        ([("a", "b")], "", "must be a dictionary"),
        ({"a": 3}, "", "must be a term and its translation"),
        ({"a " * 3000: "b"}, "", "3,000 words and signs, and may have 100"),
        ({"a": "b " * 3000}, "", "3,000 words and signs, and may have 100"),
        ({}, 3, "keep 3: must be a regular expression"),
        ({}, "a{99999999999999999999}", "is invalid"),
        ({}, "(" * 3000 + ")" * 3000, "is invalid: it is nested too deeply"),
    ],
)
def test_what_is_no_glossary_is_refused(entries: Any, keep: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Glossary(entries, keep)


def test_equal_terms_that_are_left_out_get_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    given = parse_decode(["run", "--keep", "x+"])
    request = TranslationRequest("x xx xxx xxxx xxxxx " * 500)
    list(RequestParser(given, small_translator())._glossary_terms(7, request, ()))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert "line 7: the term 'x' has words that are not in the vocabulary; it is dropped" in said[0]
    assert said[3].startswith("line 7: ")
    assert said[3].endswith(" more terms are dropped")


@pytest.mark.slow
def test_an_unknown_word_in_a_prefix_is_named_with_its_line() -> None:
    with pytest.raises(UserError, match="line 2: the prefix 'unheard ' has words that are not in"):
        small_translator().search(["red", "cat"], prefixes=["", "unheard "])
