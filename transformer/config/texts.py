"""Options of text in one language."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from transformer.config.corpus import CorpusConfig
from transformer.config.ranges import COUNTS, LARGEST, Range


@dataclass(frozen=True)
class TextsConfig(CorpusConfig):
    """Text in one language, from files or a corpus."""

    dataset: str = "built-in"
    """Corpus: built-in (English sentences from a small grammar), or a TFDS dataset with text. Ignored if text
    files are given."""
    text_feature: str = "text"
    """Feature of a TFDS dataset that has the text."""
    train: Path | None = None
    """Training text."""
    validation: Path | None = None
    """Validation text. Default: the last tenth of the training text."""
    test: Path | None = None
    """Test text, for the final evaluation. Default: the validation text."""
    built_in_size: Annotated[int, Range(10, COUNTS)] = 20_000
    """Number of training sentences to generate for the built-in text."""


@dataclass(frozen=True)
class SentencesConfig(TextsConfig):
    """Text of which each line is an example, such as a sentence; its vocabulary and batches."""

    tokenizer: Literal["unigram", "bpe", "char", "whitespace", "word", "jieba"] = "unigram"
    """Tokenizer, as of translation. whitespace: for text that is already split into subwords; word: whole
    words, and single characters of Chinese and Japanese; jieba: the same, but Chinese is split into words."""
    vocab_size: Annotated[int, Range(5, LARGEST)] = 16_000
    """Size of the vocabulary to train; for char and word an upper bound. At least 261, with 256 bytes that
    spell rare characters; for whitespace and words at least 5."""
    source_tokenizer: Path | None = None
    """Tokenizer file to use instead of training one, such as source.model of another run."""
