"""Texts that are read after those before them, within the tokens that a model reads."""

from collections.abc import Sequence

from transformer.config import DataConfig
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.trained import Tokenizers
from transformer.data.sources.context import SEPARATOR, TURN, shortened
from transformer.data.sources.text_files import one_line
from transformer.runtime.errors import UserError
from transformer.tasks.requests import Sentence, TranslationRequest
from transformer.tasks.text import TextTask


class TextInContext(TextTask):
    """A task whose sources may have context (`--data.context`)."""

    data: DataConfig
    tokenizers: Tokenizers
    """Of source and target."""

    def read(self, source: str, longest: int) -> str:
        """A source as the model reads it within so many tokens, with <eos>: without its oldest context, if
        there is more, and with the whole sentence."""
        if not self.data.context:
            return source
        tokenizer = self.tokenizers[0]
        code = tokenizer.has_codes and not tokenizer.start  # each record has its own
        room = longest - 1 - code
        return shortened(source, lambda text: len(tokenizer.encode(one_line(text))), room)

    def as_read(self, record: Sentence, longest: int) -> Sentence:
        """As `read`, of a record."""
        if not self.data.context:
            return record
        request = TranslationRequest.of(record)
        return request._replace(source=self.read(request.source, longest))


def check_turns(texts: Sequence[str], tokenizer: Tokenizer, lines: Sequence[int] = ()) -> None:
    """Raises UserError if texts are lists, such as turns, and a vocabulary has no token between them."""
    index = next((index for index, text in enumerate(texts) if TURN in text), None)
    if index is not None and not tokenizer.knows(SEPARATOR):
        where = f"line {lines[index]}: " if lines else ""
        raise UserError(
            f"{where}a list, or a text with {SEPARATOR}: the vocabulary of this model has no {SEPARATOR}, "
            "which is between the texts of a list; add it with --data.add-tokens, or give one text"
        )


def check_context(data: DataConfig, tokenizers: Tokenizers) -> None:
    """Raises UserError if a vocabulary cannot separate sentences from their context, or samples are not of
    words."""
    if data.context and not tokenizers[0].knows(SEPARATOR):
        raise UserError(
            f"--data.context: the vocabulary has no {SEPARATOR}, which is between sentences; add it with "
            "--data.add-tokens, or train a vocabulary"
        )
    if data.context and data.subword_sampling and data.sampling_by == "sentence":
        raise UserError(
            "--data.context: --data.subword-sampling by sentence does not shorten it; give "
            "--data.sampling-by word"
        )
