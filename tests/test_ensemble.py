"""Ensembles: the search of a mean of distributions, against a slow search over that mean."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_search import Scored, next_log_p, slow_search
from small_translator import small_translator, stored
from tiers import combinations

from transformer import Translator, UserError
from transformer.cli.decode_arguments import parse_decode
from transformer.commands.decode_lines import decode_lines
from transformer.translator.ensemble import shares_of

SOURCES = ["red green blue", "cat", "dog bird runs sings"]
MIXED = (
    [("transformer", 5), ("transformer", 6)],
    [("transformer", 5), ("recurrent", 7), ("transformer", 8)],
)


def mean_of(members: list[Translator], weights: list[float], mean: str, source: str) -> Any:
    """The log-probabilities of what follows prefixes, by teacher forcing of every member."""
    ids = np.array(members[0].task.ids([source], members[0].tokenizers[0], 8), np.int32)
    shares = np.array(weights) / sum(weights)
    each = [next_log_p(member.model, member.variables, ids) for member in members]

    def ask(prefixes: Any) -> np.ndarray:
        log_p = np.stack([ask_one(prefixes) for ask_one in each])
        if mean == "probabilities":
            return np.log((shares[:, None, None] * np.exp(log_p)).sum(axis=0))
        both = (shares[:, None, None] * log_p).sum(axis=0)
        return both - np.log(np.exp(both).sum(axis=-1, keepdims=True))

    return ask


@pytest.mark.by_default("kinds0-probabilities")
@pytest.mark.parametrize(("kinds", "mean"), combinations(MIXED, ["probabilities", "logarithms"]))
def test_the_search_finds_what_a_slow_one_finds(kinds: list[tuple[str, int]], mean: Any) -> None:
    members = [small_translator(system, seed=seed) for system, seed in kinds]
    weights = [1.0, 2.0, 0.5][: len(members)]
    found = Translator.together(members, weights, mean).search(SOURCES[:2])
    special, options = members[0].task.special, members[0].config.decoding
    for source, several in zip(SOURCES, found, strict=False):
        ask, limit = mean_of(members, weights, mean, source), len(source.split()) + 1 + options.extra_length
        wanted: list[Scored] = slow_search(ask, special, 3, lambda n: ((5 + n) / 6) ** 0.6, limit)
        assert [each.ids for each in several] == [tokens for _, tokens in wanted]
        np.testing.assert_allclose([each.score for each in several], [s for s, _ in wanted], atol=2e-5)


@pytest.mark.slow
def test_it_is_used_as_a_translator() -> None:
    members = [small_translator(seed=5), small_translator("recurrent", seed=7)]
    ensemble = Translator.together(members)
    found = ensemble.search(SOURCES, token_scores=True, alignments=True, no_repeat_ngram=2)
    for source, several in zip(SOURCES, found, strict=True):
        for each in several:
            assert sum(each.token_log_probabilities or ()) == pytest.approx(each.log_probability, abs=1e-4)
            assert each.alignment is not None
            np.testing.assert_allclose(each.alignment.sum(axis=1), 1, atol=1e-5)
            score = ensemble.score([source], [ensemble.as_trained(each)])[0]
            assert score == pytest.approx(each.log_probability, abs=1e-4)
    alone = Translator.together(members[:1] * 2)
    for ours, theirs in zip(alone.search(SOURCES), members[0].search(SOURCES), strict=True):
        assert [each.ids for each in ours] == [each.ids for each in theirs]
    for method in ("greedy", "mbr"):  # of samples
        assert len(ensemble.search(SOURCES, method=method)) == 3
    assert ensemble.submit(SOURCES[0]).result()[0].ids == ensemble.search(SOURCES[:1])[0][0].ids
    assert ensemble.fingerprint() != Translator.together(members, [1.0, 2.0]).fingerprint()


@pytest.mark.slow
def test_from_runs_and_on_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = [stored(small_translator(seed=seed), tmp_path / str(seed)) for seed in (5, 6)]
    loaded = Translator.load(runs, weights=[1.0, 3.0], mean="logarithms")
    assert str(tmp_path / "5") in repr(loaded)
    expected = loaded.translate(SOURCES)
    (tmp_path / "lines").write_text("".join(f"{source}\n" for source in SOURCES))
    words = [
        *map(str, runs),
        "--weights",
        "1",
        "3",
        "--mean",
        "logarithms",
        "--input",
        str(tmp_path / "lines"),
    ]
    decode_lines(parse_decode(words))
    assert capfd.readouterr().out.splitlines() == expected
    decode_lines(parse_decode([*words, "--format", "json"]))
    assert [json.loads(line)["line"] for line in capfd.readouterr().out.splitlines()] == [1, 2, 3]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    one, two = small_translator(), small_translator(words=["x", "y", "z"])
    with pytest.raises(UserError, match="has another vocabulary"):
        Translator.together([one, two])
    with pytest.raises(UserError, match="a copying model cannot be part of an ensemble"):
        Translator.together([one, small_translator("copying")])
    with pytest.raises(UserError, match="a nonautoregressive model cannot"):
        Translator.together([one, small_translator("nonautoregressive")])
    with pytest.raises(UserError, match="give a positive number for each of the 2 models"):
        Translator.together([one, one], [1.0])
    with pytest.raises(UserError, match="choose probabilities or logarithms"):
        Translator.together([one, one], mean="median")
    run = stored(one, tmp_path / "run")
    with pytest.raises(UserError, match="are for an ensemble"):
        Translator.load(run, weights=[1.0])
    with pytest.raises(UserError, match="at least one"):
        Translator.load([])


def test_weights_may_be_as_large_as_numbers_are() -> None:
    given = [1e308, 1e308, 5e307]
    np.testing.assert_allclose(shares_of(given, 3, "weights"), [0.4, 0.4, 0.2])
