"""Tasks with one vocabulary: it is learned from the training text or read from a file, stored in the run
directory, and as large as the model expects."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from transformer.config.options import Config
from transformer.config.records import TextsConfig
from transformer.data.sources.tables import check_no_tables
from transformer.data.sources.texts import check_texts, open_texts
from transformer.data.store import Corpus, Progress, Record, silent
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.trained import load_tokenizer, trained
from transformer.runtime.errors import UserError
from transformer.tasks.task import Task


def stored_tokenizer(path: Path, config: Config, size: int) -> Tokenizer:
    """The tokenizer in a file.

    Raises:
      UserError: it has another number of ids than `size`, which the config expects.
    """
    tokenizer = load_tokenizer(path, config.model.special)
    if tokenizer.vocab_size != size:
        raise UserError(
            f"{path} has {tokenizer.vocab_size:,} ids but config.json expects {size:,}: they do not belong "
            "together"
        )
    return tokenizer


def learned_tokenizer(
    config: Config,
    corpus: Corpus,
    texts: Callable[[Iterable[Any]], Iterable[str]],
    progress: Progress,
    name: str = "text",
) -> Tokenizer:
    """The tokenizer of a file (`--data.source-tokenizer`), or one that is learned from the training text.

    Args:
      config: of the run.
      corpus: with the training text.
      texts: (records) -> what a vocabulary is learned from.
      progress: shows the progress.
      name: of these texts, as `trained` keeps them apart.
    """
    data: Any = config.data
    if file := getattr(data, "source_tokenizer", None):
        return load_tokenizer(file, config.model.special)
    records = corpus.splits["train"]
    read_texts = texts(progress("reading for the vocabulary", records, len(records)))
    return trained(corpus, read_texts, data.tokenizer, data.vocab_size, config.model.special, name)


def with_vocabulary(config: Config, size: int, remedy: str = "leave it out") -> Config:
    """The config, with the size of the vocabulary.

    Raises:
      UserError: it has another. The message ends with the remedy.
    """
    if config.model.vocab_size not in (0, size):
        raise UserError(
            f"--model.vocab-size {config.model.vocab_size} but the vocabulary has {size} ids: {remedy}"
        )
    return replace(config, model=replace(config.model, vocab_size=size))


class OneVocabulary(Task):
    """A task with one vocabulary.

    Args:
      config: of the run.
      tokenizer: of its text.
    """

    vocabulary_file: ClassVar[str] = "text.model"
    """The name of the vocabulary's file in the run directory."""

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config)
        self.tokenizer, self.special = tokenizer, config.model.special

    @classmethod
    def texts(cls, records: Iterable[Record]) -> Iterator[str]:
        """The texts of records from which a vocabulary is learned."""
        yield from records

    @classmethod
    def create(cls, config: Config, corpus: Corpus, progress: Progress = silent) -> Self:
        """A task with a vocabulary of the training text, or that of a file (`--data.source-tokenizer`)."""
        tokenizer = learned_tokenizer(config, corpus, cls.texts, progress)
        return cls(cls.sized(config, tokenizer.vocab_size), tokenizer)

    @classmethod
    def load(cls, config: Config, folder: Path) -> Self:
        """A task with the vocabulary of a run directory."""
        return cls(config, stored_tokenizer(folder / cls.vocabulary_file, config, config.model.vocab_size))

    @classmethod
    def without_corpus(cls, config: Config) -> Self:
        """A task with the vocabulary size of the options."""
        data: Any = config.data
        return cls(cls.sized(config, config.model.vocab_size or data.vocab_size), cast(Tokenizer, None))

    @staticmethod
    def sized(config: Config, vocab_size: int) -> Config:
        """The config, with the sizes that follow from the data, as `with_vocabulary`."""
        return with_vocabulary(config, vocab_size)

    def save(self, folder: Path) -> None:
        """Writes the vocabulary."""
        self.tokenizer.save(folder / self.vocabulary_file)

    def content(self) -> bytes:
        """The vocabulary's file."""
        return self.tokenizer.content()


class TextsAlone(OneVocabulary):
    """A task with one vocabulary, whose records are texts: lines or documents of files, of the built-in text
    or of a TFDS dataset."""

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if text files are missing."""
        data = cast(TextsConfig, config.data)
        check_texts(data)
        check_no_tables(data)

    @classmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        return open_texts(cast(TextsConfig, config.data), progress)
