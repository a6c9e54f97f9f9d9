"""How the pieces of a vocabulary mark the beginnings of words."""

from collections.abc import Sequence

from transformer.data.features.vocabulary import SPACE

PART = "\N{REPLACEMENT CHARACTER}"
"""Stands for a part of a character."""


class Plain:
    """How pieces are written if a mark stands for each space."""

    def spelled(self, pieces: Sequence[str]) -> str:
        """The text of consecutive pieces, with U+2581 for a space."""
        return "".join(pieces)

    def shown(self, pieces: Sequence[str]) -> str:
        """The text of consecutive pieces, for display."""
        return self.spelled(pieces)

    def stored(self, word: str) -> str:
        """The piece of a whole word."""
        return word


class WordPieces(Plain):
    """How pieces are written if ## stands before those that continue a word."""

    def spelled(self, pieces: Sequence[str]) -> str:
        return "".join(piece[2:] if piece.startswith("##") else SPACE + piece for piece in pieces)

    def shown(self, pieces: Sequence[str]) -> str:
        return "".join(pieces)


class ByteLevel(Plain):
    """How pieces are written if a character stands for each byte (Radford et al. 2019): the printable ones of
    Latin-1 for themselves, and those from U+0100 on for the other bytes."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = sorted(set(range(256)) - set(printable))
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(0x100 + number): byte for number, byte in enumerate(others)}

    def spelled(self, pieces: Sequence[str]) -> str:
        return b"".join(map(self._written, pieces)).decode(errors="replace").replace(" ", SPACE)

    def stored(self, word: str) -> str:
        characters = {byte: character for character, byte in self._bytes.items()}
        return "".join(characters[byte] for byte in word.encode())

    def _written(self, piece: str) -> bytes:
        """The bytes of a piece. One that was added to the vocabulary is text."""
        try:
            return bytes(map(self._bytes.__getitem__, piece))
        except KeyError:
            return piece.encode()


MARKS: dict[str, type[Plain]] = {"ByteLevel": ByteLevel, "WordPiece": WordPieces}
"""By the decoder that a tokenizer.json names."""
