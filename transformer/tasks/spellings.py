"""How a vocabulary spells names, and where words begin and end in its tokens."""

import re

import numpy as np
from jaxtyping import Bool

from transformer.data.features.characters import ByteTokenizer, CharacterTokenizer
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.vocabulary import SPACE
from transformer.runtime.words import continues_word

BEFORE = (("", ""), ("a", " "), ("(", ""))
"""What names are spelled after, and what is between."""
SPACES = (SPACE, " ")
MORE = "@@"
"""Ends a part of a word in text that is already divided into subwords."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def spellings(tokenizer: Tokenizer, name: str) -> list[tuple[int, ...]]:
    """The ids of a name, wherever a word may begin, as it is written and with a first capital. If the
    vocabulary cannot spell it so, in lower case; and if not even so, by bytes. Empty: it cannot.

    Args:
      tokenizer: of the outputs.
      name: a word or several.
    """
    written = list(dict.fromkeys((name, name[:1].upper() + name[1:])))
    for variants in ([v for v in written if tokenizer.knows(v)], [name.lower()], written):
        divisions = [ids for variant in variants for ids in _in_text(tokenizer, variant)]
        is_last = variants is written
        if divisions and (is_last or all(map(tokenizer.knows, variants))):
            return list(dict.fromkeys(divisions))
    return []


def _in_text(tokenizer: Tokenizer, text: str) -> list[tuple[int, ...]]:
    special = tokenizer.special
    apart = {special.pad, special.bos, special.eos, special.unk, *tokenizer.codes.values()}
    skipped = len(tokenizer.start)
    divisions = []
    for before, between in BEFORE:
        ids = tokenizer.encode(before + between + text)[skipped:]
        first = tokenizer.encode(before)[skipped:] if before else []
        if special.unk in first:  # which stands for anything, also for the beginning of the name
            continue
        name = ids[len(first) :]
        while name and name[0] < tokenizer.vocab_size and tokenizer.pieces(name[:1])[0] in SPACES:
            name = name[1:]
        is_text = apart.isdisjoint(name) and all(index < tokenizer.vocab_size for index in name)
        if name and is_text and ids[: len(first)] == first:
            divisions.append(tuple(name))
    return divisions


def letters_of(tokenizer: Tokenizer) -> Bool[np.ndarray, "3 v"]:
    """For each id, whether it begins with a letter, so that it continues the word before it; whether it ends
    with one; and whether it is no text, such as the code of a language."""
    ids = range(tokenizer.vocab_size)
    special = tokenizer.special
    pieces = {index: piece for piece, index in tokenizer.by_piece.items()}
    silent = [
        index != special.eos and pieces.get(index) not in SPACES and not tokenizer.decode([index])
        for index in ids
    ]
    is_character = isinstance(tokenizer, CharacterTokenizer | ByteTokenizer)
    if tokenizer.presegmented:
        starts, ends = [True] * len(ids), [pieces.get(index, "").endswith(MORE) for index in ids]
    elif tokenizer.spelled("a") is None and not is_character:  # whole words
        starts, ends = [False] * len(ids), [False] * len(ids)
    else:

        def is_letter(index: int, at: int) -> bool:
            piece = pieces.get(index, "")
            if isinstance(tokenizer, ByteTokenizer) and piece >= "\x80":
                return True
            if not piece or _BYTE.fullmatch(piece):  # a part of a letter
                return index not in (special.eos, special.unk)
            return continues_word(piece[at])

        starts, ends = ([is_letter(index, at) for index in ids] for at in (0, -1))
    return np.array([starts, ends, silent], bool)
