"""Masked language modelling: sentences, of which the objective hides tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp

from transformer.config import Config
from transformer.config.texts import SentencesConfig
from transformer.data.corpus import Corpus, Progress, silent
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.tokenizers import load_tokenizer
from transformer.data.features.trained import trained
from transformer.data.sequences import Example, Field, Fields, id_dtype
from transformer.data.sources.tables import check_no_tables
from transformer.data.sources.texts import check_texts, open_texts
from transformer.model.parameters import Arguments
from transformer.runtime.errors import UserError
from transformer.runtime.text import has_text
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig
from transformer.tasks.metrics.scores import ACCURACY, PERPLEXITY, Metric, Score
from transformer.tasks.task import Evaluation, Task

VOCABULARY = "source.model"
"""The file of the vocabulary in a run directory, as of the source of a translation."""


class MaskedLanguageModelling(Task):
    """Predicts hidden tokens of sentences.

    Args:
      config: of the run.
      tokenizer: of the text.
    """

    criterion = PERPLEXITY
    unit = "sentences"
    counted = "source"

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config)
        self.tokenizer = tokenizer
        self.special = config.model.special
        self.fields = {"source": Field(fill=self.special.pad)}

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if text files are missing."""
        check_texts(_data(config))
        check_no_tables(_data(config))

    @classmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        """Lines of text files, the built-in text or a TFDS dataset."""
        return open_texts(_data(config), progress)

    @classmethod
    def create(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> "MaskedLanguageModelling":
        """With a vocabulary of the training text, or that of a file."""
        data, special = _data(config), config.model.special
        if data.source_tokenizer:
            tokenizer = load_tokenizer(data.source_tokenizer, special)
        else:
            sentences = corpus.splits["train"]
            texts = progress("reading for the vocabulary", sentences, len(sentences))
            tokenizer = trained(corpus, texts, data.tokenizer, data.vocab_size, special, "text")
        return cls(_with_vocabulary(config, tokenizer.vocab_size), tokenizer)

    @classmethod
    def load(cls, config: Config, folder: Path) -> "MaskedLanguageModelling":
        """With the vocabulary of a run directory."""
        path = folder / VOCABULARY
        tokenizer = load_tokenizer(path, config.model.special)
        if tokenizer.vocab_size != config.model.vocab_size:
            raise UserError(
                f"{path} has {tokenizer.vocab_size:,} ids but config.json expects "
                f"{config.model.vocab_size:,}: they do not belong together"
            )
        return cls(config, tokenizer)

    @classmethod
    def without_corpus(cls, config: Config) -> "MaskedLanguageModelling":
        """With the vocabulary size of the options."""
        size = config.model.vocab_size or _data(config).vocab_size
        return cls(_with_vocabulary(config, size), cast(Tokenizer, None))

    def save(self, folder: Path) -> None:
        """Writes the vocabulary."""
        self.tokenizer.save(folder / VOCABULARY)

    def content(self) -> bytes:
        """The vocabulary's file."""
        return self.tokenizer.content()

    # To batches

    @staticmethod
    def example(config: Config) -> Arguments:
        """Shapes of the ids of a sentence."""
        return (jax.ShapeDtypeStruct((1, 2), jnp.int32),)

    @property
    def stored_fields(self) -> Fields:
        """Ids in as few bytes as they need."""
        return {"source": Field(id_dtype(self.tokenizer.num_ids))}

    def examples(self, records: Sequence[str], *, truncate: bool = False) -> list[Example]:
        """The ids of each sentence, closed by <eos>."""
        longest = self.config.data.max_length - 1 if truncate else None
        encoded = self.tokenizer.encode_all(records)
        return [{"source": [*ids[:longest], self.special.eos]} for ids in encoded]

    def stored_examples(self, records: Sequence[str]) -> list[Example]:
        """The ids of each sentence; none of one without text."""
        pairs = zip(records, self.examples(records), strict=True)
        return [example if has_text(text) else {"source": []} for text, example in pairs]

    def texts_of_fields(self, record: str) -> Mapping[str, tuple[str, Tokenizer]]:
        """The text."""
        return {"source": (record, self.tokenizer)}

    def filled(self, record: str) -> Mapping[str, bool]:
        """Whether there is text."""
        return {"sentence": has_text(record)}

    # Scores

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """Perplexity of a hidden token, and how many are predicted."""
        model = self.config.model
        assert isinstance(model, MaskedLanguageModelConfig)
        signature = f"vocabulary:{model.vocab_size}|hidden:{model.mask_share}"

        def perplexity(evaluation: Evaluation) -> Score:
            value = math.exp(min(evaluation.means["nll"], 700))
            return Score(value, signature, f"{value:.2f}")

        def accuracy(evaluation: Evaluation) -> Score:
            value = 100 * evaluation.means["correct"]
            return Score(value, signature, f"{value:.2f}")

        return {PERPLEXITY: perplexity, ACCURACY: accuracy}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The negative log-likelihood of a hidden token in nats, and the percentage that is predicted."""
        return {"nll": means["nll"], "accuracy": 100 * means["correct"]}


def _data(config: Config) -> SentencesConfig:
    assert isinstance(config.data, SentencesConfig)
    return config.data


def _with_vocabulary(config: Config, vocab_size: int) -> Config:
    """The config, with the size of the vocabulary.

    Raises:
      UserError: it has another.
    """
    if config.model.vocab_size not in (0, vocab_size):
        raise UserError(
            f"--model.vocab-size {config.model.vocab_size} but the vocabulary has {vocab_size} ids: leave it "
            "out"
        )
    return replace(config, model=replace(config.model, vocab_size=vocab_size))
