"""What steers the search of a sentence: the text that must begin its translation, and the words in it."""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
from jaxtyping import Bool

from transformer.config.model import SpecialIds
from transformer.data.sources.text_files import one_line
from transformer.data.tokenizers.lossless import SPACE
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.words import ByteTokenizer, CharacterTokenizer
from transformer.decoding.steering import prefix
from transformer.decoding.steering.prefix import LETTERS, Prefix
from transformer.decoding.steering.rules import segmentations
from transformer.decoding.steering.terms import LONGEST, SIZES, Terms
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief, prefixed_errors
from transformer.runtime.text import has_text
from transformer.runtime.words import begins_with_word, continues_word, has_only_words, is_unspaced
from transformer.tasks.text import Steering


class TextSteering:
    """Prefixes and terms as ids.

    Args:
      tokenizer: of the target.
      special: the special ids.
    """

    def __init__(self, tokenizer: Tokenizer, special: SpecialIds) -> None:
        self.tokenizer, self.special = tokenizer, special
        self.phrases = functools.lru_cache(maxsize=1024)(self._phrases)
        """All divisions of a phrase into subwords, at the beginning of a word."""

    # Prefixes

    def prefixes(
        self, texts: Sequence[str], lines: Sequence[int], starts: Sequence[Sequence[int]]
    ) -> Steering:
        """The hook that forces beginnings.

        Args:
          texts: the beginning of each output, which may be empty.
          lines: the numbers of the sentences, for messages.
          starts: ids before each text.

        Raises:
          UserError: the vocabulary cannot spell one.
        """
        beginnings = []
        for line, text in zip(lines, texts, strict=True):
            with prefixed_errors(f"line {line}: "):
                beginnings.append(self.split_prefix(text))
        pairs = zip(starts, beginnings, strict=True)
        examples = [prefix.example([*start, *forced], word) for start, (forced, word) in pairs]
        return Steering(
            "prefix", self._prefix_hook, prefix.FIELDS, examples, [len(forced) for forced, _ in beginnings]
        )

    @functools.cached_property
    def _joined(self) -> bool:
        """Whether several pieces may spell a word."""
        return self.tokenizer.spelled("a") is not None

    @functools.cached_property
    def _pieces(self) -> list[str]:
        """What each id spells; empty for special ids and bytes."""
        pieces = [""] * self.tokenizer.vocab_size
        for piece, index in self.tokenizer.ids_by_piece.items():
            pieces[index] = "" if self._joined and re.fullmatch("<0x[0-9A-F]{2}>", piece) else piece
        return pieces

    @functools.cached_property
    def _prefix_hook(self) -> Prefix:
        return Prefix(self._pieces, self.special, self._joined, SPACE if self._joined else "")

    def split_prefix(self, text: str) -> tuple[list[int], str]:
        """The ids of the whole words of a prefix, and the letters of a last one that may continue.

        Raises:
          UserError: the vocabulary cannot spell it.
        """
        tokenizer = self.tokenizer
        whole = one_line(text)
        if not has_text(whole):
            return [], ""
        head, _, word = whole.rpartition(" ")
        if tokenizer.spelled(word) is None:
            spelled = word
        else:
            spelled = tokenizer.spelled(word) or SPACE
            spelled = SPACE + spelled if head and not spelled.startswith(SPACE) else spelled
        if len(spelled) > LETTERS:
            continues = False
        elif spelled == word:
            continues = any(piece.startswith(word) for piece in tokenizer.ids_by_piece)
        else:
            continues = bool(segmentations(spelled, tokenizer.ids_by_piece, limit=1))
        if not continues:  # it is too long, or letters have no piece: as it is
            head = whole
            spelled = ""
        ids = self._ids(head.strip()) if has_text(head) else []
        return self._known("prefix", text, ids), spelled

    # Terms

    def terms(self, texts: Sequence[Sequence[str]], lines: Sequence[int]) -> Steering:
        """The hook that waits for terms.

        Args:
          texts: the terms of each sentence. One that stands there twice must occur twice.
          lines: the numbers of the sentences, for messages.

        Raises:
          UserError: a term is too long, there are too many, or the vocabulary cannot spell one.
        """
        counted_terms: list[Counter[tuple[int, ...]]] = []
        for line, terms in zip(lines, texts, strict=True):
            with prefixed_errors(f"line {line}: "):
                counted_terms.append(Counter(map(self.term, terms)))
            if (number := len(counted_terms[-1])) > SIZES[-1]:
                raise UserError(f"line {line}: {number} different terms, and there may be {SIZES[-1]}")
        largest = max(map(len, counted_terms))
        size = next(size for size in SIZES if size >= largest)
        hook = Terms(size, self._ends if self._joined else (), self.special)
        examples = [hook.example(phrases) for phrases in counted_terms]
        least = [sum(len(phrase) * times for phrase, times in phrases.items()) for phrases in counted_terms]
        return Steering("terms", hook, hook.fields, examples, least, by_beam=True)

    @functools.cached_property
    def _ends(self) -> list[bool]:
        """Whether each id ends the word before it."""
        special = astuple(self.special)
        return [  # a byte may belong to a letter
            not continues_word(piece[0]) if piece else index in special
            for index, piece in enumerate(self._pieces)
        ]

    def term(self, text: str) -> tuple[int, ...]:
        """The ids of a term.

        Raises:
          UserError: it is empty or too long, or the vocabulary cannot spell it.
        """
        whole = one_line(text).strip()
        if not has_text(whole):
            raise UserError("a term is empty: leave it out")
        spelled = self.tokenizer.spelled(whole)
        within = whole if spelled is None or spelled.startswith(SPACE) else f" {whole}"
        ids = self._known("term", text, self._ids(within))
        if len(ids) > LONGEST:
            raise UserError(f"the term {brief(text)} has {len(ids)} tokens, and may have {LONGEST}")
        first = self.tokenizer.pieces(ids[:1])[0]
        if self._joined and first.startswith(SPACE) and is_unspaced(whole[0]):
            alone = first.removeprefix(SPACE)  # no space is needed before it
            if not alone:
                return tuple(ids[1:])
            if alone in self.tokenizer.ids_by_piece:
                return (self.tokenizer.ids_by_piece[alone], *ids[1:])
        return tuple(ids)

    def some_word(self) -> str:
        """The first word of the vocabulary that can be a term. Raises UserError if there is none."""
        for index in range(self.tokenizer.vocab_size):
            text = self.tokenizer.decode([index]).strip()
            if has_only_words(text) and self.special.unk not in self._ids(text):
                return text
        raise UserError("the vocabulary has no words: outputs can have no terms")

    def _ids(self, text: str) -> list[int]:
        """The ids of a text, without those that begin every one."""
        return self.tokenizer.encode(text)[len(self.tokenizer.start) :]

    def _known(self, what: str, text: str, ids: list[int]) -> list[int]:
        if self.special.unk in ids:
            raise UserError(f"the {what} {brief(text)} has words that are not in the vocabulary")
        return ids

    # Forbidden phrases

    def _phrases(self, text: str) -> list[tuple[int, ...]]:
        spelled = self.tokenizer.spelled(one_line(text).strip())
        if spelled is None:
            ids = tuple(self._ids(one_line(text)))
            return [] if self.special.unk in ids else [ids]
        divisions = segmentations(spelled, self.tokenizer.ids_by_piece)
        if not spelled.startswith(SPACE):  # as at the beginning; within a text a space is before it
            divisions += segmentations(SPACE + spelled, self.tokenizer.ids_by_piece)
        if not begins_with_word(text.strip()):  # a sign stands without a space too
            divisions += segmentations(spelled.removeprefix(SPACE), self.tokenizer.ids_by_piece)
        return divisions


# How a vocabulary spells names, and where words begin and end in its tokens.


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
    pieces = {index: piece for piece, index in tokenizer.ids_by_piece.items()}
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

        def is_letter(index: int, position: int) -> bool:
            piece = pieces.get(index, "")
            if isinstance(tokenizer, ByteTokenizer) and piece >= "\x80":
                return True
            if not piece or _BYTE.fullmatch(piece):  # a part of a letter
                return index not in (special.eos, special.unk)
            return continues_word(piece[position])

        starts, ends = ([is_letter(index, position) for index in ids] for position in (0, -1))
    return np.array([starts, ends, silent], bool)
