"""Vocabularies of characters and of bytes."""

from collections.abc import Iterable, Sequence

from transformer.config import SpecialIds
from transformer.data.features.vocabulary import to_utf8
from transformer.data.features.words import KINDS, VocabularyTokenizer


class CharacterTokenizer(VocabularyTokenizer):
    """Each character of the text, spaces and line breaks too, is a token."""

    kind = "character"

    @classmethod
    def cut(cls, text: str, rule: int = 0) -> list[str]:
        return list(text)

    def join(self, words: list[str]) -> str:
        return "".join(words)


class ByteTokenizer(VocabularyTokenizer):
    """Each byte of the text in UTF-8 is a token, so there is no text that it cannot spell. Pieces name a byte
    by the character of that number."""

    kind = "byte"

    @classmethod
    def cut(cls, text: str, rule: int = 0) -> list[str]:
        return list(to_utf8(text).decode("latin-1"))

    def join(self, words: list[str]) -> str:
        return "".join(words).encode("latin-1", "replace").decode(errors="replace")

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, special: SpecialIds, languages: Sequence[str] = ()
    ) -> "ByteTokenizer":
        """All bytes; nothing is learned."""
        return cls([chr(byte) for byte in range(256)], special, languages=languages)


KINDS.update({tokenizer.kind: tokenizer for tokenizer in (CharacterTokenizer, ByteTokenizer)})
