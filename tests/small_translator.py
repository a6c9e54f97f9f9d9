"""Translators with random parameters, all of the same shape, so that test files share compiled programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reference_search import random_variables
from small_run import WORDS

from transformer import BeamConfig, Config, Run, TransformerConfig, Translator
from transformer.config.model import ModelConfig
from transformer.data.tokenizers.trained import Tokenizer, train_tokenizer
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.nonautoregressive.options import (
    NonAutoregressiveConfig,
    NonAutoregressiveDecodingConfig,
)
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.registry import find_system

SIZES: dict[str, Any] = {"num_layers": 2, "decoder_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
DECODING = BeamConfig(beam_size=3, rows=2, buckets=(8,), extra_length=3)


def small_translator(
    system: str = "transformer",
    words: Sequence[str] = WORDS,
    seed: int = 5,
    tokenizer: tuple[str, int] | None = None,
) -> Translator:
    """A translator for these words: nine of them, so that programs are shared.

    `tokenizer` is a kind and a size of the vocabulary; the default makes a token of each word.
    """
    configs = {
        "copying": CopyingConfig,
        "recurrent": RecurrentConfig,
        "nonautoregressive": NonAutoregressiveConfig,
        "fast-autoregressive": FastAutoregressiveConfig,
    }
    small = {
        "recurrent": {"num_layers": 1, "d_model": 16},
        "fast-autoregressive": {"num_layers": 1, "d_model": 16, "num_heads": 2},
    }
    kind, size = tokenizer or ("open-word" if system == "copying" else "whitespace", 20)
    learned = train_tokenizer(words, kind, size)
    sizes = small.get(system, SIZES)
    config = Config(
        system=system,
        model=configs.get(system, TransformerConfig)(vocab_size=learned.vocab_size, **sizes),
        decoding=NonAutoregressiveDecodingConfig() if system == "nonautoregressive" else DECODING,
    )
    variables = random_variables(find_system(system).model(config.model), seed)
    return Translator(config, variables, (learned, learned))


def stored(translator: Translator, path: Path) -> Path:
    """A new run directory with the translator."""
    run = Run.create(path, translator.config, translator.task)
    run.checkpoints.store_model(1, translator.variables)
    return run.path


def bare_task(name: str, tokenizer: Tokenizer) -> Any:
    """The task of a system, which knows no more than the system's name and the tokenizer of its outputs."""
    task: Any = object.__new__(find_system(name).task)
    task.config, task.tokenizer, task.tokenizers = object.__new__(Config), tokenizer, (None, tokenizer)
    for option, value in {"system": name, "model": ModelConfig()}.items():
        object.__setattr__(task.config, option, value)
    return task


LINES = [" ".join(WORDS[:3]), " ".join(WORDS[4:7]), WORDS[1], " ".join(WORDS[2:6])]


def as_lists(outputs: Any) -> list[list[dict[str, Any]]]:
    """The outputs of several lines, to the last bit."""
    return [[output.to_dict() for output in several] for several in outputs]


def check_alone(translator: Translator, lines: Sequence[str], together: Any, has_scores: bool) -> None:
    """Asserts that lines that were searched together have the outputs that each has alone, and those the
    log-probabilities of the model."""
    for line, several in zip(lines, together, strict=True):
        (alone,) = translator.search([line])
        assert [output.text for output in alone] == [output.text for output in several]
        np.testing.assert_allclose([x.score for x in alone], [x.score for x in several], rtol=1e-5)
    if has_scores:
        scores = translator.score(lines, [several[0].text for several in together])
        np.testing.assert_allclose(scores, [x[0].log_probability for x in together], rtol=1e-4)
