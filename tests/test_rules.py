"""Rules of a search, against a brute-force search that applies them to whole prefixes."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import (
    MODEL,
    SOURCES,
    NextLogP,
    Tokens,
    hypotheses,
    next_log_p,
    random_variables,
    slow_search,
    with_rules,
)
from small_translator import small_translator
from tiers import combinations

from transformer import BeamConfig, UserError
from transformer.config.searches import changed_search
from transformer.decoding.searches.search import autoregressive_search
from transformer.decoding.steering.rules import segmentations

SPECIAL = MODEL.config.special
Phrases = Sequence[Sequence[int]]
PHRASES = ((4,), (5, 6), (7, 7, 8), (9, 10))


def allowed(o: BeamConfig, phrases: Phrases, prefix: Tokens, token: int) -> bool:
    """Whether a token may follow: the rules read aloud."""
    whole = (*prefix, token)
    if token in o.suppress or (not prefix and token in o.suppress_first):
        return False
    if token == SPECIAL.eos and len(prefix) < o.min_length:
        return False
    n = o.no_repeat_ngram
    if n and len(whole) >= n and whole[-n:] in {prefix[i : i + n] for i in range(len(prefix) - n + 1)}:
        return False
    return not any(whole[-len(phrase) :] == phrase for phrase in phrases)


def ruled(ask: NextLogP, options: BeamConfig, phrases: Phrases, limit: int) -> NextLogP:
    """The log-probabilities that a search adds up, by the rules."""

    def asked(prefixes: Any) -> np.ndarray:
        found = ask(prefixes)
        for prefix, row in zip(prefixes, found, strict=True):
            for token in set(prefix):
                row[token] *= options.repetition_penalty
            if len(prefix) + 1 < limit:  # at the limit, <eos> is never forbidden
                row[[not allowed(options, phrases, prefix, token) for token in range(len(row))]] = -np.inf
        return found

    return asked


RULES: list[dict[str, Any]] = [
    {},
    {"suppress": (3, 5), "suppress_first": (4, 9)},
    {"min_length": 4},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2},
    {"no_repeat_ngram": 3, "min_length": 6},
    {"repetition_penalty": 3.0},
    {"repetition_penalty": 0.4},
    {"phrases": PHRASES},
    {"phrases": PHRASES, "repetition_penalty": 1.5, "no_repeat_ngram": 2, "min_length": 2},
]


@pytest.mark.parametrize(("rules", "seed"), combinations(RULES, [0, 1]), ids=str)
def test_a_search_finds_what_brute_force_finds(rules: dict[str, Any], seed: int) -> None:
    variables, phrases = random_variables(MODEL, seed), rules.get("phrases", ())
    given = {name: value for name, value in rules.items() if name != "phrases"}
    options = BeamConfig(beam_size=3, extra_length=3, **given)
    search, inputs = with_rules(autoregressive_search, {"source": jnp.asarray(SOURCES)}, options, phrases)
    lines = jnp.arange(len(SOURCES))
    found = search(MODEL, variables, inputs, lines, options)
    for row, source in enumerate(SOURCES):
        limit = int((source != SPECIAL.pad).sum()) + 3
        ask = ruled(next_log_p(MODEL, variables, source), options, phrases, limit)
        wanted = slow_search(ask, SPECIAL, 3, lambda length: ((5 + length) / 6) ** 0.6, limit)
        ours = hypotheses(found, row, SPECIAL)
        assert [tokens for _, tokens in ours] == [tokens for score, tokens in wanted if np.isfinite(score)]
        np.testing.assert_allclose(
            [score for score, _ in ours], [score for score, _ in wanted if np.isfinite(score)], atol=1e-5
        )


def test_segmentations_are_all_there_are() -> None:
    pieces = {"a": 1, "b": 2, "ab": 3, "ba": 4, "aba": 5}
    assert set(segmentations("aba", pieces)) == {(1, 2, 1), (3, 1), (1, 4), (5,)}
    assert segmentations("abc", pieces) == []
    assert segmentations("aba", pieces, limit=1) == [(5,)]


STEERED: list[dict[str, Any]] = [
    {"min_length": 9},
    {"no_repeat_ngram": 2},
    {"repetition_penalty": 2.0},
    {"suppress": (5,), "suppress_first": (6,)},
]


@pytest.mark.thorough
@pytest.mark.by_default("transformer-beam")
@pytest.mark.parametrize(
    ("system", "method"), combinations(["transformer", "recurrent", "copying"], ["beam", "greedy", "sample"])
)
def test_in_slots_and_with_every_method(system: str, method: str) -> None:
    translator = small_translator(system)
    sources = ["red green blue", "cat", "dog bird runs sings", "sings"] * 3
    for rules in STEERED:
        options = {"method": method, "extra_length": 9, "buckets": (8,), **rules}
        together = translator.search(sources, **options)
        alone = [
            translator.search([source], first_line=n, **options)[0] for n, source in enumerate(sources, 1)
        ]
        assert [[each.ids for each in several] for several in together] == [
            [each.ids for each in several] for several in alone
        ]
        for hypothesis in (hypothesis for several in together for hypothesis in several):
            ids = hypothesis.ids[:-1]
            assert len(ids) >= rules.get("min_length", 0)
            assert not set(ids) & set(rules.get("suppress", ()))
            assert not set(ids[:1]) & set(rules.get("suppress_first", ()))
            if "no_repeat_ngram" in rules:
                pairs = list(itertools.pairwise(ids))
                assert len(pairs) == len(set(pairs))


@pytest.mark.thorough
def test_forbidden_words_do_not_occur() -> None:
    translator, sources = small_translator(), ["red green blue", "cat dog", "bird runs sings sleeps"]
    free = [each.text.split() for several in translator.search(sources) for each in several]
    pairs = sorted({pair for words in free for pair in itertools.pairwise(words)})
    assert len(pairs) > 3
    for phrase in (pairs[0][:1], *pairs[:3]):
        found = translator.search(sources, forbidden=(" ".join(phrase),))
        for words in (hypothesis.text.split() for several in found for hypothesis in several):
            assert not [at for at in range(len(words)) if tuple(words[at : at + len(phrase)]) == phrase]
    characters = small_translator(tokenizer=("char", 300)).task
    (spelled,) = characters.phrases("red cat")
    assert characters.tokenizers[1].pieces(spelled) == list("▁red▁cat")
    assert translator.task.phrases("unheard") == []


def test_combinations_that_make_no_sense_are_refused() -> None:
    translator = small_translator()
    with pytest.raises(UserError, match="temperature is an option of sample and mbr, and this"):
        translator.search(["red"], temperature=0.5)
    with pytest.raises(UserError, match="beam-size is an option of beam, and this method is greedy"):
        translator.search(["red"], method="greedy", beam_size=3)
    with pytest.raises(UserError, match="leaves no room"):
        translator.search(["red"], min_length=9, max_length=9)
    with pytest.raises(UserError, match="predicts all tokens"):
        small_translator("nonautoregressive").search(["red"], no_repeat_ngram=2)
    kept = changed_search(dataclasses.replace(BeamConfig(), rows=7, beam_size=9), {"method": "sample"})
    assert (kept.rows, kept.method, kept.num_hypotheses) == (7, "sample", 4)
