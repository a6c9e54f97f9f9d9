"""What a model says of its translations: the log-probability and entropy of each token, against softmaxes in
NumPy, and coverage."""

import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from small_translator import small_translator, stored

from transformer import UserError
from transformer.cli.decode_arguments import parse_decode
from transformer.commands.decode_lines import decode_lines

SOURCES = ["red green blue", "cat", "dog bird runs", ""]


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", ["transformer", "recurrent", "copying", "nonautoregressive"])
def test_they_add_up_to_the_log_probability(system: str) -> None:
    translator = small_translator(system)
    found = translator.search(SOURCES, token_scores=True)
    for source, several in zip(SOURCES[:3], found[:3], strict=True):
        for hypothesis in several:
            log_p, entropies = hypothesis.token_log_probabilities, hypothesis.entropies
            assert log_p is not None
            assert entropies is not None
            assert len(log_p) == len(entropies) == len(hypothesis.ids)
            assert max(log_p) <= 0 <= min(entropies)
            assert max(entropies) <= math.log(2 * translator.config.model.vocab_size)
            assert sum(log_p) == pytest.approx(hypothesis.log_probability, abs=1e-4)
            assert hypothesis.perplexity == pytest.approx(math.exp(-np.mean(log_p)), rel=1e-4)
            text = translator.as_trained(hypothesis)
            if translator.tokenizers[1].encode(text) == list(hypothesis.ids[:-1]):
                assert translator.score([source], [text])[0] == pytest.approx(sum(log_p), abs=1e-4)
    assert found[3][0].token_log_probabilities is None  # of an empty sentence


def test_against_numpy() -> None:
    translator = small_translator()
    (several,) = translator.search(["red green"], token_scores=True)
    source = np.array(translator.task.ids(["red green"], translator.tokenizers[0], 8))
    for hypothesis in several:
        target = np.array([[translator.task.special.bos, *hypothesis.ids[:-1]]])
        given = jnp.asarray(source, jnp.int32), jnp.asarray(target, jnp.int32)
        logits = np.asarray(apply(translator.model, translator.variables, *given), np.float64)[0]
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        chosen = p[np.arange(len(hypothesis.ids)), list(hypothesis.ids)]
        np.testing.assert_allclose(hypothesis.token_log_probabilities, np.log(chosen), atol=1e-5)
        np.testing.assert_allclose(hypothesis.entropies, -(p * np.log(p)).sum(axis=-1), atol=1e-5)


@pytest.mark.thorough
def test_they_are_the_models_under_a_penalty() -> None:
    translator = small_translator()
    (several,) = translator.search(["red green"], token_scores=True, repetition_penalty=3.0, min_length=6)
    text = translator.as_trained(several[0])
    assert sum(several[0].token_log_probabilities or ()) == pytest.approx(
        translator.score(["red green"], [text])[0], abs=1e-4
    )


@pytest.mark.slow
def test_in_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, lines = stored(small_translator(), tmp_path / "run"), tmp_path / "lines"
    lines.write_text("red green\n\ncat\n")
    asked = [str(run), "--input", str(lines), "--format", "json", "--n-best", "2"]
    decode_lines(parse_decode([*asked, "--token-scores", "--alignments"]))
    for line in map(json.loads, capfd.readouterr().out.splitlines()):
        for hypothesis in line["hypotheses"]:
            if line["source"]:
                assert len(hypothesis["token_log_probabilities"]) == len(hypothesis["tokens"]) + 1
                assert len(hypothesis["entropies"]) == len(hypothesis["alignment"])
                assert hypothesis["perplexity"] > 1
    with pytest.raises(UserError, match="--token-scores needs --format json"):
        decode_lines(parse_decode([str(run), "--input", str(lines), "--token-scores"]))


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("system", ["transformer", "recurrent", "copying"])
def test_the_coverage_penalty(system: str) -> None:
    """Wu et al. 2016, Eq. 15, from the alignments."""
    translator, sources, beta = small_translator(system), ["red green blue", "cat dog"], 0.7
    plain = translator.search(sources, alignments=True)
    found = translator.search(sources, coverage_penalty=beta)
    for before, after in zip(plain, found, strict=True):
        expected = {}
        for each in before:
            columns = each.alignment.shape[1] - 1  # without <eos>
            paid = [min(sum(row[column] for row in each.alignment), 1.0) for column in range(columns)]
            expected[each.ids] = each.score + beta * sum(math.log(max(share, 1e-6)) for share in paid)
        assert [each.ids for each in after] == sorted(expected, key=lambda ids: -expected[ids])
        for each in after:
            assert each.score == pytest.approx(expected[each.ids], abs=1e-4)
            assert each.alignment is None
    (best,) = translator.search(sources[:1], coverage_penalty=beta, n_best=1, alignments=True)
    assert (len(best), best[0].ids) == (1, found[0][0].ids)
    assert best[0].alignment is not None
