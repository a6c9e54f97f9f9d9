"""Simultaneous translation: wait-k (Ma et al. 2019)."""

import dataclasses
import io
import itertools
import os
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import random_variables
from small_run import WORDS
from small_translator import small_translator, stored

from transformer import TransformerConfig, Translator, UserError
from transformer.cli.decode_arguments import parse_decode
from transformer.cli.input import arriving_words
from transformer.commands.decode_lines import decode_lines
from transformer.model.transformer import Transformer
from transformer.systems.registry import REGISTRY, options_of

K = 2
SENTENCES = ["red cat runs", "blue", "a green dog sings cat bird", "red blue cat dog bird runs sings sleeps"]


def average_lagging(delays: Sequence[int], source_length: int) -> float:
    """The average lagging of a translation in tokens of the source (Ma et al. 2019, Eq. 8 and 9): how far it
    is behind one that is as fast as the source.

    Args:
      delays: how many tokens of the source were read before each token of the translation.
      source_length: the number of tokens of the source.

    Returns:
      The mean over the tokens up to the first that was written when the whole source had been read. An empty
      translation ends when all of it has been read, so it is behind by the length of the source.
    """
    if not delays:
        return float(source_length)
    until = next((t for t, delay in enumerate(delays, 1) if delay >= source_length), len(delays))
    pace = source_length / len(delays)
    return sum(delay - t * pace for t, delay in enumerate(delays[:until])) / until


def wait_k_delays(wait_k: int, source_length: int, target_length: int) -> list[int]:
    """The delays of wait-k (Ma et al. 2019, Eq. 5): token t is written after K + t - 1 of the source."""
    return [min(wait_k + t, source_length) for t in range(target_length)]


def decode(words):
    decode_lines(parse_decode(words))


def waiting(translator, wait_k=K, seed=5):
    """The translator with a model that waits."""
    model = dataclasses.replace(translator.config.model, wait_k=wait_k)
    config = dataclasses.replace(translator.config, model=model)
    return Translator(config, random_variables(Transformer(model), seed), translator.tokenizers)


@pytest.fixture(scope="module")
def translator():
    return waiting(small_translator())


@pytest.mark.by_default("options2")
@pytest.mark.parametrize(
    "options",
    [
        {"positions": "buckets"},
        {"mechanism": "additive", "cross_mechanism": "additive"},
        {"decoder_recurrence": "ssru", "cross_view": "soft-sum"},
    ],
)
def test_a_token_depends_on_what_has_arrived(options):
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 16, "num_heads": 2, "vocab_size": 20}
    model = Transformer(TransformerConfig(**sizes, wait_k=K, **options))
    source, target = jnp.array([[5, 6, 7, 8, 9, 10, 2]]), jnp.array([[1, 5, 6, 7, 8]])
    variables = jax.jit(model.init)(jax.random.key(0), source, target)
    changed = jnp.concatenate([source, *(source.at[0, i].set(12) for i in range(7))])
    outputs = np.asarray(jax.jit(model.apply)(variables, changed, jnp.repeat(target, 8, axis=0)))
    depends = np.abs(outputs[1:] - outputs[0]).max(axis=-1) > 0
    expected = np.arange(7)[:, None] < K + np.arange(5)
    np.testing.assert_array_equal(depends, expected)


@pytest.mark.thorough
def test_packed_sentences_wait_for_their_own():
    model = Transformer(
        TransformerConfig(num_layers=1, d_model=16, d_ff=16, num_heads=2, vocab_size=20, wait_k=K)
    )
    source, target = jnp.array([[5, 6, 7, 2, 8, 9, 10, 2]]), jnp.array([[1, 5, 6, 1, 7, 8]])
    variables = jax.jit(model.init)(jax.random.key(0), source, target)
    apply = jax.jit(model.apply)
    segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2]]), jnp.array([[1, 1, 1, 2, 2, 2]])
    packed = apply(variables, source, target, segments=segments)
    for some in (slice(0, 4), slice(4, 8)):
        outputs = slice(some.start * 3 // 4, some.stop * 3 // 4)
        alone = apply(variables, source[:, some], target[:, outputs])
        np.testing.assert_allclose(packed[:, outputs], alone, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.by_default("3")
@pytest.mark.parametrize("wait_k", [1, 3, 20])
def test_text_that_arrives_is_translated_as_greedy_search_does(translator, wait_k):
    """One recomputes everything for each token, the other has a cache and reads whole sentences."""
    translator = waiting(translator, wait_k)
    expected = translator.translate(SENTENCES, method="greedy")
    assert len(set(expected)) == len(SENTENCES)
    arrived = ["".join(translator.simultaneous(sentence.split())) for sentence in SENTENCES]
    assert arrived == expected
    short = translator.translate(SENTENCES, method="greedy", max_length=4)
    assert short != expected
    arrived = ["".join(translator.simultaneous(text.split(), max_length=4)) for text in SENTENCES]
    assert arrived == short


def test_no_word_is_read_before_it_is_needed(translator):
    read = []

    def words():
        for word in SENTENCES[-1].split():
            read.append(word)
            yield word

    outputs = translator.simultaneous(words())
    delays = [len(read) for _ in outputs]
    length = len(SENTENCES[-1].split())
    assert delays[:3] == [K, K + 1, K + 2]
    assert delays == [min(delay, length) for delay in wait_k_delays(K, length + 1, len(delays))]
    assert list(translator.simultaneous([])) == list(translator.simultaneous([" "])) == []


def test_average_lagging():
    """It is K for sources and translations of the same length (Ma et al. 2019, section 4.3)."""
    for k, length in itertools.product((1, 3), (5, 9)):
        assert average_lagging(wait_k_delays(k, length, length), length) == pytest.approx(k)
    assert average_lagging([6] * 4, 6) == 6  # a translation of the whole sentence
    assert average_lagging([], 6) == 6  # an empty one
    # Tokens 1 to 3 are 2, 3 and 4 behind 0, 2 and 4 of a source of 4 with 2 tokens for each of the output.
    assert average_lagging([2, 3], 4) == pytest.approx((2 - 0 + 3 - 2) / 2)


def test_what_cannot_wait_is_refused(translator, monkeypatch):
    with pytest.raises(UserError, match="--model.cross-mechanism monotonic"):
        TransformerConfig(wait_k=3, cross_mechanism="monotonic")
    with pytest.raises(UserError, match="linear attention"):
        TransformerConfig(wait_k=3, mechanism="linear")
    for name in REGISTRY:
        model = options_of(name).model
        if name != "transformer" and "wait_k" in {field.name for field in dataclasses.fields(model)}:
            with pytest.raises(UserError, match="--model.wait-k is for system transformer"):
                model(wait_k=3)
    with pytest.raises(UserError, match="reads whole sentences: train one with --model.wait-k"):
        next(small_translator().simultaneous(["red"]))
    with pytest.raises(UserError, match="words must be texts, not 3"):
        next(translator.simultaneous(iter([3])))
    for unused in {"length_penalty": 1.0}, {"rows": 4}, {"seed": 1}, {"method": "beam"}:
        with pytest.raises(
            UserError, match=f"--decoding.{next(iter(unused)).replace('_', '-')}.*leave it out"
        ):
            translator.waits_for(**unused)
    assert translator.waits_for(max_length=5, extra_length=1, buckets=(8,), method="greedy") == K
    with pytest.raises(UserError, match="--decoding.min-length"):
        next(translator.simultaneous(["red"], min_length=3))
    monkeypatch.setattr(translator, "language_model", object())
    with pytest.raises(UserError, match="without the language model: remove it, by use_language_model"):
        next(translator.simultaneous(["red"]))


def test_words_arrive_one_by_one(monkeypatch):
    read, write = os.pipe()
    stdin = os.fdopen(read)
    monkeypatch.setattr(sys, "stdin", stdin)
    words = arriving_words()
    for part, expected in (
        ("ré".encode()[:2], []),
        ("é d ".encode()[1:], ["ré", "d"]),
        (b"\n\nx\n", ["", ""]),
    ):
        os.write(write, part)
        assert [next(words) for _ in expected] == expected
    os.write(write, b"y \xff")
    os.close(write)
    assert list(itertools.islice(words, 3)) == ["x", "", "y"]
    with pytest.raises(UserError, match="standard input, line 4: not UTF-8"):
        next(words)
    stdin.close()


@pytest.mark.thorough
def test_the_command(translator, tmp_path, monkeypatch, capsys):
    run, text = stored(translator, tmp_path / "run"), tmp_path / "text"
    text.write_text("\n".join([*SENTENCES[:2], "", SENTENCES[2]]))
    decode([str(run), "--stream", "--input", str(text)])
    expected = translator.translate([*SENTENCES[:2], "", SENTENCES[2]], method="greedy")
    assert capsys.readouterr().out.splitlines() == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    decode([str(run), "--stream", "--extra-length", "0"])
    assert len(capsys.readouterr().out.splitlines()) == 4
    for option in (
        ["--n-best", "2"],
        ["--output", "x"],
        ["--format", "json"],
        ["--until", "x"],
        ["--beam-size", "3"],
        ["--method", "beam"],
        ["--length-penalty", "0.6"],
        ["--resume"],
    ):
        with pytest.raises(UserError, match=option[0].strip("-")):
            decode([str(run), "--stream", "--input", str(text), *option])
    whole = stored(small_translator(words=WORDS), tmp_path / "whole")
    with pytest.raises(UserError, match="reads whole sentences"):
        decode([str(whole), "--stream", "--input", str(text)])
