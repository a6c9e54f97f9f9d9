"""The Python API for labels of words, a decoder whose records are sentences in words, and what decode.py
writes of it."""

from collections.abc import Sequence
from typing import ClassVar

from transformer.cli.writer import Writer
from transformer.config.arguments import any_number
from transformer.config.ranges import Option, shown
from transformer.data.sources.tagged import TaggedSentence
from transformer.runtime.errors import UserError
from transformer.systems.tagging.system import Tagged, Tagging
from transformer.translator.decoder import Decoder


class Tagger(Decoder[Tagging]):
    """A trained model that labels words. Threads may share it. See `Decoder` for batches and programs."""

    reads, does = Tagging, "label words"

    def tag(self, sentences: Sequence[str | Sequence[str]], **options: Option) -> list[Tagged]:
        """The labels of the words of each sentence, and their probabilities.

        Args:
          sentences: each a string, whose words spaces separate, or a list of words. Punctuation marks are
            words of their own if they are in the training sentences.
          options: any field of `TaggingDecodingConfig`, instead of the run's value.

        Raises:
          UserError: a sentence is neither, or longer than the search reads.
        """
        if isinstance(sentences, str):
            raise UserError(f"tag takes a list of sentences: [{shown(sentences)}]")
        tokenised = any_number("sentences", sentences, "sentences")
        records = [self.record(sentence) for sentence in tokenised]
        return [tagged for (tagged,) in self.decode(records, **options)]

    def record(self, sentence: str | Sequence[str]) -> TaggedSentence:
        """A sentence as it is decoded. Raises UserError if it is none."""
        if isinstance(sentence, str):
            return self.task.record(sentence)
        return TaggedSentence(check_words(sentence))


def check_words(words: object) -> tuple[str, ...]:
    """A list of words. Raises UserError if it is something else, or a word is empty."""
    if not isinstance(words, Sequence) or not all(isinstance(word, str) and word for word in words):
        raise UserError(f"a sentence is a string or a list of words, not {shown(words)}")
    return tuple(words)


class Tags(Writer):
    """Words with their labels, such as old/JJ; or JSON objects with words, labels and probabilities."""

    does = "labels words and does not translate"
    instead: ClassVar = dict.fromkeys(("jsonl", "tsv"), "a line is a sentence, its words separated by spaces")
    formats: ClassVar = ("text", "json")


WRITER = Tags
