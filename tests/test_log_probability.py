"""log P(output | input) of a hypothesis is the model's, whatever the search ranks it by: against teacher
forcing, for the options of searches and for every system that scores given outputs."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_search import random_variables, with_rules
from small_translator import small_translator
from tiers import mostly_slow

from transformer import BeamConfig, UserError
from transformer.config.decoding import DecodingConfig
from transformer.config.model import ModelConfig
from transformer.config.records import PatchConfig
from transformer.config.transformer import TransformerConfig
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.explorer.tree import search_tree
from transformer.systems.convolutional.options import ConvolutionalConfig
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.nonautoregressive.options import (
    NonAutoregressiveConfig,
    NonAutoregressiveDecodingConfig,
)
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.registry import REGISTRY, find_system
from transformer.systems.speech.options import SpeechConfig
from transformer.systems.system import System
from transformer.translator.rescoring import rescored

SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 16, "dropout": 0.0, "num_layers": 1}
LAYER: dict[str, Any] = {"d_ff": 32, "num_heads": 2}
PARALLEL: dict[str, Any] = {**SIZES, **LAYER, "length_span": 4, "bos_length": 7}
MODELS: dict[str, ModelConfig] = {
    "transformer": TransformerConfig(**SIZES, **LAYER),
    "recurrent": RecurrentConfig(**SIZES),
    "convolutional": ConvolutionalConfig(**SIZES),
    "copying": CopyingConfig(**SIZES, **LAYER),
    "copying, copynet": CopyingConfig(**SIZES, **LAYER, output="copynet"),
    "copying, pointer": CopyingConfig(**SIZES, **LAYER, output="pointer"),
    "fast-autoregressive": FastAutoregressiveConfig(**SIZES, num_heads=2),
    "language-model": LanguageModelConfig(**SIZES, **LAYER),
    "speech": SpeechConfig(**SIZES, **LAYER, channels=4),
    "captioning": PatchConfig(**SIZES, **LAYER),
    "nonautoregressive, masked": NonAutoregressiveConfig(**PARALLEL, decoder_input="masked"),
    "nonautoregressive, length": NonAutoregressiveConfig(**PARALLEL, decoder_input="length"),
    "nonautoregressive, fertility": NonAutoregressiveConfig(**PARALLEL, decoder_input="fertility"),
    "nonautoregressive, bos": NonAutoregressiveConfig(**PARALLEL, decoder_input="bos"),
}
SOURCE = jnp.asarray([[4, 5, 6, 2, 0, 0], [7, 2, 0, 0, 0, 0], [9, 8, 4, 5, 10, 2], [3, 3, 7, 6, 2, 0]])
ALL = BeamConfig(beam_size=3, extra_length=4, repetition_penalty=2.0, no_repeat_ngram=2, noise=0.5, seed=3)


def test_every_system_with_scores_is_here() -> None:
    assert {name.split(",")[0] for name in MODELS} == {name for name in REGISTRY if find_system(name).scores}


def found_by(name: str, options: DecodingConfig) -> tuple[Any, np.ndarray]:
    """What a system finds with these options, and log P of it by teacher forcing."""
    system: System = find_system(name.split(",")[0])
    model = system.model(MODELS[name])
    source, special = SOURCE, MODELS[name].special
    if name == "speech":
        values = jax.random.normal(jax.random.key(0), (4, 24, 5))
        lengths = jnp.asarray([24, 9, 17, 1])[:, None, None]
        source = jnp.where(jnp.arange(24)[:, None] < lengths, values, -jnp.inf)
    if name == "captioning":
        source = jax.random.uniform(jax.random.key(0), (4, 8, 8, 3), minval=-1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), source, jnp.ones((4, 2), jnp.int32))
    variables = jax.tree.map(jnp.asarray, random_variables(model, 1, shapes))
    search, inputs = system.search, {"source": source}
    if isinstance(search, AutoregressiveSearch):
        search, inputs = with_rules(search, inputs, options, special=special)
    found = search(model, variables, inputs, jnp.arange(4), options)

    @jax.jit
    def forced(tokens: jax.Array) -> jax.Array:
        rows, beams, time = tokens.shape
        sources = jnp.repeat(source, beams, axis=0)
        log_p = system.scores(model, variables, {"source": sources}, tokens.reshape(-1, time)).log_p
        return log_p.sum(axis=-1).reshape(rows, beams)

    return found, np.asarray(forced(found.tokens))


# test_systems.py has the scores of the others, without penalty and noise
QUICK = ["transformer", "copying", "language-model", "speech", "nonautoregressive, masked"]


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize("name", mostly_slow(list(MODELS), QUICK))
def test_of_every_system(name: str) -> None:
    """Under a penalty and noise at once; of parallel decoders, after iterations and with samples."""
    options: DecodingConfig = ALL
    if name.startswith("nonautoregressive"):
        iterations = 3 if "masked" in name else 1
        options = NonAutoregressiveDecodingConfig(extra_length=4, beam_size=3, iterations=iterations)
    found, expected = found_by(name, options)
    finite = np.isfinite(np.asarray(found.scores))
    assert finite[:, 0].all()
    np.testing.assert_allclose(found.log_probabilities[finite], expected[finite], atol=2e-4)
    if "length" not in name and "bos" not in name:  # these choose each token with its probability
        lengths = (np.asarray(found.tokens) != 0).sum(axis=-1)
        penalty = lengths if "nonauto" in name else ((5 + lengths) / 6) ** 0.6
        assert np.abs(np.asarray(found.scores * penalty)[finite] - expected[finite]).max() > 1e-2


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "sampled": {"method": "sample", "temperature": 0.7, "top_k": 7, "top_p": 0.9, "input_dropout": 0.4},
    "greedy": {"method": "greedy", "repetition_penalty": 3.0},
    "groups": {"beam_size": 4, "groups": 2, "diversity": 2.0, "repetition_penalty": 2.0, "min_length": 3},
    "terms": {"repetition_penalty": 2.0, "coverage_penalty": 0.7, "forbidden": ("dog",)},
}
SOURCES = ["red green blue", "cat", "dog bird runs sings", "sings"] * 2


@pytest.mark.thorough
@pytest.mark.by_default("greedy")
@pytest.mark.parametrize("name", OPTIONS)
def test_in_slots(name: str) -> None:
    """Sentences take the slots of others, and leave the rings of the first lane."""
    translator, options = small_translator(), OPTIONS[name]
    terms = [["cat"], [], ["red"], []] * 2 if name == "terms" else []
    several = translator.search(SOURCES, terms=terms, extra_length=30, **options)
    pairs = [(source, each) for source, found in zip(SOURCES, several, strict=True) for each in found]
    expected = translator.score([source for source, _ in pairs], [each.ids for _, each in pairs])
    np.testing.assert_allclose([each.log_probability for _, each in pairs], expected, atol=2e-4)
    for (_, each), log_p in zip(pairs, expected, strict=True):
        assert each.perplexity == pytest.approx(math.exp(-log_p / len(each.ids)), rel=1e-3)


@pytest.mark.slow
def test_token_scores_change_no_number() -> None:
    translator, options = small_translator(), {"repetition_penalty": 2.0, "noise": 0.5}
    plain = translator.search(SOURCES[:4], **options)
    told = translator.search(SOURCES[:4], token_scores=True, **options)
    for without, with_tokens in zip(plain, told, strict=True):
        for each, other in zip(without, with_tokens, strict=True):
            assert sum(other.token_log_probabilities or ()) == pytest.approx(each.log_probability, abs=2e-4)
            assert other.perplexity == pytest.approx(each.perplexity, rel=1e-5)


@pytest.mark.thorough
def test_the_tree_has_the_log_probability_and_the_score() -> None:
    translator, options = small_translator(), {"repetition_penalty": 2.0, "noise": 0.5}
    tree, (several,) = (
        search_tree(translator, "red cat", **options),
        translator.search(["red cat"], **options),
    )
    for end, each in zip(tree.hypotheses(), several, strict=True):
        assert (end.log_p, end.score) == pytest.approx((each.log_probability, each.score), abs=2e-4)
        assert sum(step.gained for step in tree.path(end)) == pytest.approx(end.log_p, abs=2e-4)


@pytest.mark.thorough
def test_a_reranker_replaces_only_the_score() -> None:
    translator, judge = small_translator(), small_translator("recurrent", seed=7)
    several = translator.search(SOURCES[:2])
    for before, after in zip(several, rescored(SOURCES[:2], several, judge), strict=True):
        log_p = {each.ids: each.log_probability for each in before}
        assert {each.ids: each.log_probability for each in after} == log_p
        assert [each.score for each in after] == sorted((each.score for each in after), reverse=True)


@pytest.mark.slow
def test_ids_are_scored_as_they_are() -> None:
    """A text may be divided into other tokens; long outputs are scored whole."""
    translator = small_translator(tokenizer=("char", 300))
    tokenizer, eos = translator.tokenizers[1], translator.task.special.eos
    usual = (*tokenizer.encode("red cat"), eos)
    letters = tokenizer.ids_by_piece
    other = (*(letters[f"<0x{byte:02X}>"] for byte in "▁red".encode()), *usual[4:])
    assert tokenizer.decode(list(other[:-1])) == "red cat"
    pairs = [usual, "red cat", other, list(other), np.array(usual)]
    found = translator.score(["dog"] * 5, pairs)
    assert found[0] == found[1] == found[4]
    assert found[2] == found[3]
    assert abs(found[0] - found[2]) > 0.1
    (several,) = translator.search(["dog"], extra_length=30, min_length=20)
    scores = translator.score(["dog"] * 3, [each.ids for each in several])
    np.testing.assert_allclose(scores, [each.log_probability for each in several], rtol=1e-5)
    assert len(several[0].ids) > 2 * translator.config.decoding.buckets[-1]


@pytest.mark.by_default("target5-the id -1")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([4, 5], "line 1: the target must be ids of tokens, then <eos>, which is 2"),
        ([4, 2, 5, 2], "then <eos>"),
        ([0, 2], "then <eos>"),
        ([], "then <eos>"),
        ([999, 2], "line 1: the id 999: the vocabulary has"),
        ([-1, 2], "the id -1"),
    ],
)
def test_what_cannot_be_scored_is_refused(target: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        small_translator().score(["cat"], [target])
