"""Vocabularies of whole words, of characters and bytes, and of Chinese words; for presegmented text or for
plain text.

Plain text is split into words and punctuation; scripts without spaces, such as Chinese, into characters.
"""

import copy
import functools
import hashlib
import itertools
import json
import re
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any, ClassVar

import numpy as np

from transformer.config.model import SpecialIds
from transformer.data.tokenizers.lossless import check_pieces, code_piece, to_utf8
from transformer.data.tokenizers.tokenizer import MADE_HERE, Tokenizer
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.runtime.machine import library
from transformer.runtime.words import PIECE, begins_spaced

_WORD = re.compile(r"[^ \t\n\v\f\r]+")  # a no-break or an ideographic space belongs to its word
CHARACTER = "\u2e80-\u2fdf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_PIECE_1 = re.compile(rf"[{CHARACTER}]|[^\W{CHARACTER}]+(?:['’-][^\W{CHARACTER}]+)*|.", re.DOTALL)
_SPELLED_1 = re.compile(rf"[^\W{CHARACTER}]|<unk>")
_SIGNS = frozenset(",.;:!?")
_GLUE = "<glue>"  # marks a missing space where one is expected; differs from all pieces of text
_NAMES = 2**24
LONGEST_WORD = 10_000
"""Characters of a word of a vocabulary."""


class VocabularyTokenizer(Tokenizer):
    """A list of words, most frequent first, with one id each, after the ids of the codes of languages.
    Subclasses split and join text."""

    kind: str
    newest_rule: ClassVar = 1
    """How new vocabularies divide text. Those that were saved under an older rule keep it."""
    code_pattern = MADE_HERE

    def __init__(
        self,
        words: list[str],
        special: SpecialIds,
        start: Sequence[int] = (),
        languages: Sequence[str] = (),
        rule: int = 0,
    ) -> None:
        self.special, self.start = special, tuple(start)
        self.rule = rule or self.newest_rule
        self.vocab_size = len(words) + 4 + len(languages)
        self._words = words
        names = dict(zip(astuple(special), ("<pad>", "<s>", "</s>", "<unk>"), strict=True))
        if len(names) < 4 or not all(0 <= index < self.vocab_size for index in names):
            raise UserError(
                f"{special}: special ids must be different and below {self.vocab_size}, "
                "the size of this vocabulary"
            )
        free = [index for index in range(self.vocab_size) if index not in names]
        self._codes = dict(zip(languages, free, strict=False))
        self.has_codes = bool(languages)
        self._ids = dict(zip(words, free[len(languages) :], strict=True))
        pieces = [*map(code_piece, languages), *words]
        self._pieces: dict[int, str] = names | dict(zip(free, pieces, strict=True))

    @classmethod
    @abstractmethod
    def cut(cls, text: str, rule: int = 0) -> list[str]:
        """The words of a line, by a rule. 0: the newest."""

    @abstractmethod
    def join(self, words: list[str]) -> str:
        """The line of the words."""

    @property
    def codes(self) -> Mapping[str, int]:
        return self._codes

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, special: SpecialIds, languages: Sequence[str] = ()
    ) -> "VocabularyTokenizer":
        """The most frequent words of the text; ties are in the order of first appearance."""
        counts = Counter(
            word for text in texts for word in cls._checked_cut(text) if len(word) <= LONGEST_WORD
        )
        if not counts:
            raise UserError("the training text is empty: a tokenizer needs lines to learn from")
        apart = 4 + len(languages)
        if vocab_size <= apart:
            raise UserError(
                f"--data.vocab-size {vocab_size} has no room for {apart} special ids and a token: "
                f"set it to at least {apart + 1}"
            )
        words = [word for word, _ in counts.most_common(vocab_size - apart)]
        return cls(words, special, languages=languages)

    @classmethod
    def _checked_cut(cls, text: str, rule: int = 0) -> list[str]:
        to_utf8(text)
        return cls.cut(text, rule)

    def _own_cut(self, text: str) -> list[str]:
        return self._checked_cut(text, self.rule)

    def encode(self, text: str) -> list[int]:
        return [*self.start, *(self._ids.get(word, self.special.unk) for word in self._own_cut(text))]

    def unknown(self, text: str) -> list[str]:
        ids = self.encode(text)[len(self.start) :]
        words = zip(self._own_cut(text), ids, strict=True)
        return [word for word, index in words if index == self.special.unk and word != _GLUE]

    def sample(self, text: str, rng: np.random.Generator, strength: float) -> list[int]:
        raise UserError(
            "--data.subword-sampling: whole words have only one segmentation: choose "
            "--data.tokenizer unigram or bpe"
        )

    def decode(self, ids: Iterable[int]) -> str:
        silent = {self.special.pad, self.special.bos, self.special.eos, *self._codes.values()}
        return self.join(self.pieces(index for index in ids if index not in silent))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces[index] for index in self._checked(ids)]

    def _with_pieces(self, words: Sequence[str], codes: Sequence[str]) -> Tokenizer:
        if codes:
            raise UserError(
                f"--data.add-language: in a {self.kind} vocabulary codes come before the words; train one "
                "for all languages"
            )
        for word in words:
            if (parts := self._own_cut(word)) != [word]:
                raise UserError(
                    f"--data.add-tokens: {word!r} is no token of a {self.kind} vocabulary, which divides it "
                    f"into {' '.join(parts)}; leave it out"
                )
        return type(self)([*self._words, *words], self.special, self.start, list(self._codes), self.rule)

    def content(self) -> bytes:
        content: Json = {"kind": self.kind, "special": asdict(self.special), "words": self._words}
        content |= {"rule": self.rule} if self.rule > 1 else {}
        content |= {"start": list(self.start)} if self.start and not self._codes else {}
        content |= {"languages": list(self._codes)} if self._codes else {}
        return json.dumps(content, ensure_ascii=False, indent=0).encode()


class WhitespaceTokenizer(VocabularyTokenizer):
    """Words separated by whitespace; `decode` removes `@@ ` markers.

    For text that is already split by subword-nmt (Sennrich et al. 2016) or a similar tool.
    """

    kind = "whitespace"
    presegmented = True

    @classmethod
    def cut(cls, text: str, rule: int = 0) -> list[str]:
        return _WORD.findall(text)

    def join(self, words: list[str]) -> str:
        return self.plain(" ".join(words))

    def plain(self, text: str) -> str:
        return re.sub(r"@@( |\Z)", "", text)


class WordTokenizer(VocabularyTokenizer):
    """Words, punctuation and Chinese or Japanese characters of plain text.

    Combining marks belong to the character before them, and in scripts without spaces each character is a
    piece. (Rule 1 cut words at marks, and had pieces of one character only in Chinese and Japanese.)

    A space is a piece only where it is unexpected; it is expected between two words and after a sign such as
    a comma. So a name is the same word anywhere in a sentence, and text of known words is restored exactly.
    """

    kind = "word"
    newest_rule = 2

    @classmethod
    def pieces_of(cls, text: str, rule: int = 0) -> list[str]:
        """The words and other parts of a text, whose concatenation is the text."""
        return (_PIECE_1 if rule == 1 else PIECE).findall(text)

    @classmethod
    def cut(cls, text: str, rule: int = 0) -> list[str]:
        pieces = cls.pieces_of(text, rule)
        tokens: list[str] = []
        for before, piece, after in zip(["", *pieces], pieces, [*pieces[1:], ""], strict=False):
            if piece == " " and _spaced(before, after, rule):
                continue
            tokens += [_GLUE, piece] if _spaced(before, piece, rule) else [piece]
        return tokens

    def join(self, words: list[str]) -> str:
        text: list[str] = []
        for before, word in itertools.pairwise(["", *words]):
            text += [" "] * _spaced(before, word, self.rule) + [word] * (word != _GLUE)
        return "".join(text)


def _spaced(left: str, right: str, rule: int) -> bool:
    """Whether a space is expected between two pieces."""
    return _is_spelled(right, rule) and (_is_spelled(left, rule) or left in _SIGNS)


def _is_spelled(piece: str, rule: int) -> bool:
    """Whether a piece is a word of a script with spaces."""
    if rule == 1:
        return _SPELLED_1.match(piece) is not None
    return piece == "<unk>" or begins_spaced(piece)


class OpenWordTokenizer(WordTokenizer):
    """Words, with additional ids for out-of-vocabulary words, which pointer models copy.

    The id of such a word is vocab_size plus a hash of the word, the same in source and target.
    """

    kind = "open-word"
    _names: Mapping[int, str] = {}
    """The words of a source that are not in the vocabulary, by their ids."""

    @property
    def num_ids(self) -> int:
        return self.vocab_size + _NAMES

    def _name(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        return self.vocab_size + int.from_bytes(digest, "big") % _NAMES

    def encode(self, text: str) -> list[int]:
        known = self._ids
        words = self._own_cut(text)
        return [*self.start, *(known[word] if word in known else self._name(word) for word in words)]

    def for_source(self, source: str) -> "OpenWordTokenizer":
        tokenizer = copy.copy(self)  # which shares the vocabulary
        words = self._own_cut(source)
        tokenizer._names = {self._name(word): word for word in words if word not in self._ids}
        return tokenizer

    def pieces(self, ids: Iterable[int]) -> list[str]:
        indices = (int(index) for index in ids)
        return [self._pieces.get(index) or self._names.get(index, "<unk>") for index in indices]


def read_vocabulary(saved: Json) -> VocabularyTokenizer:
    """The tokenizer of a parsed `content`. Raises AttributeError, KeyError, TypeError or UserError for
    others."""
    languages = [str(language) for language in saved.get("languages", ())]
    for word in [*saved["words"], *languages]:
        to_utf8(word)
    start = [int(index) for index in saved.get("start", ())]
    check_pieces(saved["words"], start, LONGEST_WORD)
    vocabulary_class, rule = KINDS[saved["kind"]], saved.get("rule", 1)
    if rule not in range(1, vocabulary_class.newest_rule + 1):
        raise UserError(f"this vocabulary divides text by rule {rule!r}, which this version does not know")
    return vocabulary_class(saved["words"], SpecialIds(**saved["special"]), start, languages, rule)


# Vocabularies of characters and of bytes.


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
        """A tokenizer of all bytes; nothing is learned."""
        return cls([chr(byte) for byte in range(256)], special, languages=languages)


# Vocabularies of Chinese words, which jieba segments.


_IS_CHARACTER = re.compile(f"[{CHARACTER}]")
LONGEST_CHINESE = 1_000
"""Characters without a sign between them that jieba segments at once, in time that may grow as the square."""


class JiebaTokenizer(WordTokenizer):
    """Words as of `WordTokenizer`, but sequences of Chinese characters are segmented into words by jieba,
    with its dictionary and, for unknown words, its hidden Markov model.

    Raises:
      UserError: jieba is not installed.
    """

    kind = "jieba"

    @classmethod
    def pieces_of(cls, text: str, rule: int = 0) -> list[str]:
        pieces: list[str] = []
        for is_chinese, group in itertools.groupby(super().pieces_of(text, rule), _is_character):
            several = list(group)
            for start in range(0, len(several), LONGEST_CHINESE) if is_chinese else ():
                pieces += _segmenter().lcut("".join(several[start : start + LONGEST_CHINESE]))
            pieces += [] if is_chinese else several
        return pieces


def _is_character(piece: str) -> bool:
    return _IS_CHARACTER.fullmatch(piece) is not None


@functools.cache
def _segmenter() -> Any:
    """jieba's default segmenter. Its cache in the folder of temporary files is neither read nor written,
    since anyone can put a file there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of patterns that newer versions of Python warn of
        jieba = library("jieba")
    segmenter = jieba.Tokenizer()
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return segmenter


KINDS: dict[str, type[VocabularyTokenizer]] = {
    tokenizer.kind: tokenizer
    for tokenizer in (
        *(WhitespaceTokenizer, WordTokenizer, OpenWordTokenizer),
        *(CharacterTokenizer, ByteTokenizer, JiebaTokenizer),
    )
}
