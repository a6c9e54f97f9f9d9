"""Outputs that begin with given words, against a brute-force search."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import MODEL, SOURCES, hypotheses, next_log_p, random_variables, slow_search
from small_run import WORDS
from small_translator import small_translator, stored
from tiers import combinations

from transformer import BeamConfig, UserError
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.decoding.hooks import Hooks
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.steering.prefix import COUNT, TOKENS, WORD, Prefix, example

SPECIAL = MODEL.config.special
PIECES = ["", "", "", "", "▁a", "▁ab", "b", "▁b", "c", "▁", "abc"]
assert len(PIECES) == MODEL.config.vocab_size


def begins_well(tokens: tuple[int, ...], forced: tuple[int, ...], word: str, ended: bool) -> bool:
    """Whether tokens continue a prefix, or may still do so."""
    if tokens[: len(forced)] != forced[: len(tokens)]:
        return False
    rest = tokens[len(forced) :]
    if word == "▁" and rest[:1] == (SPECIAL.eos,):
        return True
    spelled = "".join(PIECES[token] for token in rest if token != SPECIAL.eos)
    if len(rest) and not all(PIECES[token] for token in rest[: len(word)] if len(spelled) < len(word)):
        return False
    return spelled.startswith(word) or (word.startswith(spelled) and not ended)


@pytest.mark.by_default("forced2-")
@pytest.mark.parametrize(
    ("forced", "word"),
    [
        ((), ""),
        ((4,), ""),
        ((5, 8, 7), ""),
        ((), "▁a"),
        ((7,), "▁ab"),
        ((4, 6), "▁"),
        ((), "▁abc"),
        ((5,), "▁"),
    ],
)
def test_a_search_finds_what_brute_force_finds(forced: tuple[int, ...], word: str) -> None:
    variables = random_variables(MODEL, 1)
    search = AutoregressiveSearch(hooks=Hooks((Prefix(PIECES, SPECIAL, joined=True, mark="▁"),)))
    given = example(forced, word)
    inputs = {
        "source": SOURCES,
        TOKENS: np.tile(given[TOKENS], (len(SOURCES), 1)),
        COUNT: np.full(len(SOURCES), given[COUNT]),
        WORD: np.tile(given[WORD], (len(SOURCES), 1)),
    }
    options = BeamConfig(beam_size=3, extra_length=4)
    found = search(
        MODEL, variables, {k: jnp.asarray(v) for k, v in inputs.items()}, jnp.arange(len(SOURCES)), options
    )
    for row, source in enumerate(SOURCES):
        limit = int((source != SPECIAL.pad).sum()) + 4
        ask = next_log_p(MODEL, variables, source)

        def asked(prefixes: Any, ask: Any = ask, limit: int = limit) -> np.ndarray:
            rows = ask(prefixes)
            for said, log_p in zip(prefixes, rows, strict=True):
                for token in range(len(log_p)):
                    fits = begins_well((*said, token), forced, word, token == SPECIAL.eos)
                    if not fits and len(said) + 1 < limit:
                        log_p[token] = -np.inf
            return rows

        wanted = slow_search(asked, SPECIAL, 3, lambda length: ((5 + length) / 6) ** 0.6, limit)
        wanted = [(score, tokens) for score, tokens in wanted if np.isfinite(score)]
        ours = hypotheses(found, row, SPECIAL)
        assert [tokens for _, tokens in ours] == [tokens for _, tokens in wanted]
        np.testing.assert_allclose([s for s, _ in ours], [s for s, _ in wanted], atol=1e-5)


@pytest.mark.thorough
@pytest.mark.by_default("transformer-beam")
@pytest.mark.parametrize(
    ("system", "method"), combinations(["transformer", "recurrent", "copying"], ["beam", "greedy", "sample"])
)
def test_in_slots(system: str, method: str) -> None:
    translator = small_translator(system)
    sources = ["red green blue", "cat", "dog bird", "sings sleeps"] * 3
    prefixes = [*["cat dog ", "", "bird", "gr", "red "] * 2, "", ""]
    found = translator.search(sources, prefixes=prefixes, method=method, extra_length=9)
    free = translator.search(sources, method=method, extra_length=9)
    for prefix, several, before in zip(prefixes, found, free, strict=True):
        for hypothesis in several:
            assert hypothesis.text.startswith(prefix.strip())
            if prefix.endswith(" "):
                assert hypothesis.text.split()[: len(prefix.split())] == prefix.split()
        if not prefix:
            assert [each.ids for each in several] == [each.ids for each in before]
    one = translator.submit("red green blue", prefix="cat dog ", method=method, extra_length=9, line=1)
    assert [each.ids for each in one.result()] == [each.ids for each in found[0]]


@pytest.mark.thorough
def test_half_words_are_completed_by_any_division() -> None:
    translator = small_translator(tokenizer=("char", 300))
    for several in translator.search(["cat", "dog"], prefixes=["gre", "a re "], extra_length=12):
        for hypothesis in several:
            assert hypothesis.text.startswith(("gre", "a re"))
    task = translator.task
    assert task.text_steering.split_prefix("red gre") == (task.tokenizers[1].encode("red"), "▁gre")
    assert task.text_steering.split_prefix("red gre ") == (task.tokenizers[1].encode("red gre"), "▁")
    assert task.text_steering.split_prefix("   ") == ([], "")
    long = "x" * 99
    assert task.text_steering.split_prefix(long) == (task.tokenizers[1].encode(long), "")
    assert train_tokenizer(WORDS, "whitespace", 20).spelled("red") is None


def test_what_cannot_be_is_refused() -> None:
    translator = small_translator()
    with pytest.raises(UserError, match="line 2: 12 tokens are asked for"):
        translator.search(["red", "cat"], prefixes=["", "red " * 12])
    with pytest.raises(UserError, match="prefix: this needs an autoregressive model"):
        small_translator("nonautoregressive").search(["red"], prefixes=["cat "])
    for unheard in ("unheard cat", "cat unh"):
        with pytest.raises(
            UserError, match=f"the prefix '{unheard}' has words that are not in the vocabulary"
        ):
            translator.search(["red"], prefixes=[unheard])
    with pytest.raises(UserError, match="prefixes must be a list"):
        translator.search(["red"], prefixes="cat")


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, decode: Any) -> None:
    run, lines = stored(small_translator(), tmp_path / "run"), tmp_path / "lines.tsv"
    lines.write_text("red green\tcat dog \ncat\ndog\tbi\n")

    status, said, _ = decode(run, "--input", lines, "--tsv", "--format", "json")
    found = [json.loads(line) for line in said.splitlines()]
    assert status == 0
    assert [each["source"] for each in found] == ["red green", "cat", "dog"]
    assert found[0]["hypotheses"][0]["text"].startswith("cat dog ")
    assert found[2]["hypotheses"][0]["text"].startswith("bird")
    lines.write_text("a\tb\tc\td\te\tf\n")
    status, _, errors = decode(run, "--input", lines, "--tsv")
    assert (status, "line 1: 6 columns; --tsv reads a sentence, a prefix and terms" in errors) == (2, True)
