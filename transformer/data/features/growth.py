"""Words and languages that are added to a vocabulary."""

import unicodedata
from pathlib import Path

from transformer.data.features.tokenizer import Tokenizer
from transformer.data.remote import fetched
from transformer.runtime.errors import UserError
from transformer.runtime.files import LARGEST_FILE, read_text


def read_words(path: Path) -> list[str]:
    """The words of a file, one per line.

    Raises:
      UserError: the file is missing, empty or no text, or a line is empty, has a space or a control
        character, or repeats a word.
    """
    option = f"--data.add-tokens {path}"
    try:
        text = read_text(fetched(path, LARGEST_FILE))
    except OSError as error:
        raise UserError(f"{option}: the file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{option}: the file is not text in UTF-8") from None
    lines: dict[str, int] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        word = line.removesuffix("\r")
        if not text:
            raise UserError(f"{option}: the file is empty: write one word on each line, or leave it out")
        if not word:
            raise UserError(f"{option}, line {number} is empty: write one word on each line")
        if len(word.split()) != 1 or word != word.strip():
            raise UserError(f"{option}, line {number}: {word!r} has a space: write one word on each line")
        if any(unicodedata.category(letter) == "Cc" for letter in word):
            raise UserError(f"{option}, line {number}: {word!r} has a control character; remove it")
        if word in lines:
            raise UserError(f"{option}, line {number}: {word!r} is on line {lines[word]} too; remove one")
        lines[word] = number
    return list(lines)


def first_new(old: Tokenizer, new: Tokenizer) -> int:
    """The first id of a grown vocabulary that the old one has not. In models with more rows than tokens it is
    one of these rows."""
    before, after = (vocabulary.stored_pieces(range(vocabulary.vocab_size)) for vocabulary in (old, new))
    pairs = enumerate(zip(before, after, strict=False))
    return next((index for index, (was, now) in pairs if was != now), len(before))


def replaced(old: Tokenizer, new: Tokenizer, first: int) -> list[list[int]]:
    """For each id that a vocabulary has been grown by, the old ids that it replaces: of a word those that
    spelled it, of the code of a language those of all other codes.

    Args:
      old: the vocabulary before.
      new: the grown one.
      first: the first added id.
    """
    codes = set(new.codes.values())
    pieces = enumerate(new.stored_pieces(range(first, new.vocab_size)), first)
    return [
        sorted(old.codes.values()) if index in codes else _spelling(old, piece)
        for index, piece in pieces
        if piece
    ]


def _spelling(tokenizer: Tokenizer, word: str) -> list[int]:
    ids = tokenizer.encode(word)[len(tokenizer.start) :]
    return [index if index < tokenizer.vocab_size else tokenizer.special.unk for index in ids]
