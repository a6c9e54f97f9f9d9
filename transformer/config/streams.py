"""Options of running text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from transformer.config.corpus import CorpusConfig
from transformer.config.ranges import LARGEST, Range
from transformer.config.texts import TextsConfig
from transformer.runtime.errors import UserError


@dataclass(frozen=True)
class StreamConfig(TextsConfig):
    """Running text, its vocabulary and batches. A batch continues the one before: each of its rows reads a
    part of the text from beginning to end."""

    max_length: int = 128
    """Tokens of a segment: what each row of a batch reads."""
    batch_tokens: int = 2_048
    """Tokens of a batch: the number of rows times the tokens of a segment."""
    separator: str | None = None
    """The line between two documents of a text file, such as <|endoftext|>. None: a file is one document."""
    tokenizer: Literal["character", "byte", "bpe", "unigram"] = "character"
    """Tokenizer. character: each character of the training text; byte: the bytes of UTF-8; bpe, unigram:
    subwords."""
    vocab_size: Annotated[int, Range(5, LARGEST)] = 16_000
    """Size of the vocabulary to train (for characters: an upper bound)."""
    source_tokenizer: Path | None = None
    """Tokenizer file to use instead of training one, such as that of a run in whose search the model takes
    part (decode.py --lm). Documents then end without a line end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fixed = {"batching": self.batching == "packed", "buckets": self.buckets != CorpusConfig.buckets}
        for name, differs in fixed.items():
            if differs:
                raise UserError(f"--data.{name}: all segments have --data.max-length tokens; leave it out")
        if self.separator is not None and (not self.separator or "\n" in self.separator):
            raise UserError("--data.separator: must be a line of text, such as <|endoftext|>")

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.max_length,)

    @property
    def rows(self) -> int:
        """Rows of a batch: how many parts of the text are read at once."""
        return self.batch_tokens // self.max_length
