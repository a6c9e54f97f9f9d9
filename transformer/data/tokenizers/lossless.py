"""Trains lossless SentencePiece models.

Three cases need care: U+2581, which SentencePiece writes for a space and would decode as one; rare
characters, which are spelled in bytes; and long lines, which the library skips.
"""

import bisect
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from io import BytesIO
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as description

from transformer.config.model import SpecialIds
from transformer.runtime.errors import UserError
from transformer.runtime.text import has_text

SPACE = "\u2581"
"""What SentencePiece writes for a space."""
_ESCAPE = "\ufdd0"  # a noncharacter, which Unicode reserves for uses like this one
_MOST_LINES = 2_000_000
_LINE_LENGTH = 4_000
_MODEL: Any = vars(description)["ModelProto"]  # made at import, so type checkers know nothing of it
_UNDIVIDED = _MODEL.SentencePiece.USER_DEFINED
_CONTROL = _MODEL.SentencePiece.CONTROL
_SMALLEST = 256 + 4 + 1  # bytes, special ids, the space


def escape(text: str) -> str:
    """The text written without U+2581; `unescape` is the inverse, for every text."""
    return text.replace(_ESCAPE, f"{_ESCAPE}0").replace(SPACE, f"{_ESCAPE}1")


def unescape(text: str) -> str:
    """The text that was given to `escape`; what `escape` cannot have written is unchanged."""
    return text.replace(f"{_ESCAPE}1", SPACE).replace(f"{_ESCAPE}0", _ESCAPE)


def code_piece(language: str) -> str:
    """The piece that is the code of a language in a vocabulary made here."""
    return f"__{language}__"


def to_utf8(text: str) -> bytes:
    """The text in UTF-8. Raises UserError for a lone surrogate, which is not text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        nearby = text[max(0, error.start - 20) : error.end + 20]
        raise UserError(
            f"not valid text: a lone surrogate at character {error.start + 1}, near {nearby!a}: "
            "repair the encoding of the input"
        ) from None


_TOO_LARGE = re.compile(r"Vocabulary size too high .*<= (\d+)")
_FEW_LINES = 2_000  # of which a vocabulary is trained fast enough for a message
_BEYOND = 1_000_000  # more subwords than few lines have
_TOO_SMALL = re.compile(r"smaller than required_chars. \d+ vs (\d+)")


def train_sentencepiece(
    texts: Iterable[str], model_type: str, vocab_size: int, special: SpecialIds, languages: Sequence[str] = ()
) -> bytes:
    """A SentencePiece model of type unigram, bpe or char, as the content of a model file. It has a code for
    each language, which no text can spell.

    The same lines give the same bytes. Of more than two million lines, a fixed sample of that size is used.
    Raises UserError for an empty corpus and for an impossible size.
    """
    lines = _drawn_lines(texts)
    if not lines:
        raise UserError("the training text is empty: a tokenizer needs lines to learn from")
    smallest = _SMALLEST + len(languages)

    def trained(size: int) -> bytes:
        model = BytesIO()
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=model_type,
            vocab_size=size,
            control_symbols=list(map(code_piece, languages)),
            hard_vocab_limit=model_type != "char",
            # Rare ASCII costs one byte piece anyway; the rest of this tail is noise in most texts.
            character_coverage=1.0 if model_type == "char" else 0.9999,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=4 * _LINE_LENGTH,
            num_threads=8,  # written into the model, so the same on every machine
            minloglevel=2,
            **{f"{name}_id": index for name, index in asdict(special).items()},
        )
        return model.getvalue()

    try:
        content = trained(max(vocab_size, smallest))
    except RuntimeError as error:
        if too_small := _TOO_SMALL.search(str(error)):
            is_small = model_type != "char" and len(lines) <= _FEW_LINES
            largest = _largest(trained, _BEYOND) if is_small else 0
            raise _too_small(vocab_size, int(too_small[1]), largest) from None
        if too_large := _TOO_LARGE.search(str(error)):
            largest = _largest(trained, int(too_large[1]))
            least = _least(trained, smallest) if largest else 0
            raise VocabularyTooLarge(model_type, vocab_size, largest, least) from None
        raise
    if vocab_size < smallest:
        raise _too_small(vocab_size, smallest)
    return content


def _least(trained: Callable[[int], bytes], size: int) -> int:
    """The smallest vocabulary that can be trained, at least this one."""
    try:
        trained(size)
    except RuntimeError as error:
        if not (too_small := _TOO_SMALL.search(str(error))):
            raise
        return int(too_small[1])
    return size


def _largest(trained: Callable[[int], bytes], size: int) -> int:
    """The largest vocabulary that can be trained, at most the one that the library names; 0 if there is none.
    For some texts it names one that it then refuses."""
    while True:
        try:
            trained(size)
        except RuntimeError as error:
            too_large = _TOO_LARGE.search(str(error))
            if not (too_large or _TOO_SMALL.search(str(error))):
                raise
            if not too_large:  # the characters alone need more
                return 0
            size = min(size - 1, int(too_large[1]))
        else:
            return size


def opened(model: bytes) -> tuple[sentencepiece.SentencePieceProcessor, list[str]]:
    """The processor of a model file, and its pieces. Raises RuntimeError if it is no model, or a piece is no
    text."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    described = _MODEL.FromString(model)
    ids = BYTES if described.trainer_spec.byte_fallback else 1  # of each character
    for rules, times in (described.normalizer_spec, ids), (described.denormalizer_spec, 1):
        check_growth(longest_replacement(rules.precompiled_charsmap) * times)
    try:
        pieces: list[str] = processor.IdToPiece(list(range(processor.GetPieceSize())))
    except UnicodeDecodeError as error:
        raise RuntimeError(str(error)) from error
    check_pieces([described.trainer_spec.unk_surface, *pieces], ())  # the first is what it writes for <unk>
    return processor, pieces


MOST_GROWTH = 100
"""How many times as long a tokenizer may make a text. A character of Unicode becomes 18 at most (NFKD)."""
BYTES = 4
"""Bytes of a character at most, each of which is an id with byte_fallback."""
MOST_BEFORE = 1_000
"""How many ids may begin every text."""
LONGEST_PIECE = 2_000
"""Characters of a piece of a pretrained model, which may write one for each of its steps. GPT-2's longest has
128, and some published tokenizers have pieces of 1,024."""
_COUNTED = 10**9
"""Up to which a message says how many times."""


def check_growth(growth: float) -> None:
    """Raises UserError if a tokenizer makes a text so many times as long: a line could fill the memory."""
    if growth > MOST_GROWTH:
        times = f"over {_COUNTED:,}" if growth > _COUNTED else f"up to {growth:,.0f}"
        raise UserError(f"this tokenizer makes a text {times} times as long; it may {MOST_GROWTH} times")


def check_pieces(
    pieces: Iterable[str | None], start: Sequence[int], upper_bound: int = LONGEST_PIECE
) -> None:
    """Raises UserError if a piece of a vocabulary is too long, or too many ids begin every text."""
    if (longest := max((len(piece or "") for piece in pieces), default=0)) > upper_bound:
        raise UserError(f"a piece of its vocabulary has {longest:,} characters; it may have {upper_bound:,}")
    if len(start) > MOST_BEFORE:
        raise UserError(f"{len(start):,} ids begin every text of it; it may have {MOST_BEFORE:,}")


def longest_replacement(charsmap: bytes) -> int:
    """The most characters that a compiled map of SentencePiece puts in place of one: a trie, preceded by its
    size in four bytes, and then the replacements, each closed by a zero. Raises UserError for a cut trie."""
    trie = int.from_bytes(charsmap[:4], "little")
    if charsmap and 4 + trie > len(charsmap):
        raise UserError(f"its map of characters has {len(charsmap):,} bytes, and a trie of {trie:,}")
    return max(map(len, charsmap[4 + trie :].decode(errors="replace").split("\0")))


def with_pieces(model: bytes, words: Sequence[str], codes: Sequence[str] = ()) -> bytes:
    """The content of a model file with more pieces: words, of a kind that is never divided and needs no space
    before it, and codes of languages, which no text has."""
    described = _MODEL.FromString(model)
    for piece, piece_type in (*((word, _UNDIVIDED) for word in words), *((code, _CONTROL) for code in codes)):
        described.pieces.add(piece=piece, score=0.0, type=piece_type)
    described.trainer_spec.vocab_size = len(described.pieces)
    content: bytes = described.SerializeToString(deterministic=True)
    return content


def undivided(model: bytes) -> frozenset[str]:
    """Pieces of a model file that are never divided."""
    pieces = _MODEL.FromString(model).pieces
    return frozenset(piece.piece for piece in pieces if piece.type == _UNDIVIDED)


class WholeWords:
    """Words that are whole wherever they stand in a text; the longest one, where several begin. Time grows as
    the text, and hardly with the number of words."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted({*words} - {""})
        self._longest = max(map(len, self._words), default=0)
        self._shorter: dict[str, str] = {}
        """The longest other word that begins each word; "" if none does."""
        before = ""
        for word in self._words:
            while not word.startswith(before):
                before = self._shorter[before]
            self._shorter[word] = before
            before = word
        self._first = re.compile(f"[{''.join(map(re.escape, {word[0] for word in self._words}))}]")

    def split(self, text: str) -> list[str]:
        """The text between words, and the words: every second part, from the second on, is a word."""
        parts = list[str]()
        end = start = 0
        while first := self._first.search(text, start):
            start = first.start()
            word = self._begins(text[start : start + self._longest])
            if word:
                parts += [text[end:start], word]
                end = start + len(word)
            start += len(word) or 1
        return [*parts, text[end:]]

    def _begins(self, text: str) -> str:
        """The longest word that begins a text; "" if none does. In their order, all words between it and the
        text begin with it."""
        word = self._words[bisect.bisect(self._words, text) - 1]
        while not text.startswith(word):
            word = self._shorter[word]
        return word


def _drawn_lines(texts: Iterable[str]) -> list[bytes]:
    """The lines, or if there are too many, a uniform sample of them (Vitter 1985, algorithm R)."""
    # The library offers this too, but samples other lines in every process, even with a seed.
    chance = random.Random(0)
    drawn: list[bytes] = []
    for seen, line in enumerate(_short_lines(texts)):
        if seen < _MOST_LINES:
            drawn.append(line)
        elif (index := int(chance.random() * (seen + 1))) < _MOST_LINES:
            drawn[index] = line
    return drawn


def _short_lines(texts: Iterable[str]) -> Iterator[bytes]:
    for text in texts:
        for start in range(0, len(text) if has_text(text) else 0, _LINE_LENGTH):
            yield to_utf8(escape(text[start : start + _LINE_LENGTH]))


class VocabularyTooLarge(UserError):
    """A text does not yield so many subwords.

    Args:
      model_type: of the tokenizer.
      vocab_size: what was asked for.
      largest: the largest size that works; 0 if none does.
      smallest: the smallest one.
    """

    def __init__(self, model_type: str, vocab_size: int, largest: int, smallest: int) -> None:
        remedy = f"set it to at most {largest}, at least {smallest}, or bring more text"
        if not largest:
            remedy = "no size works; bring more text, or take another --data.tokenizer"
        super().__init__(
            f"--data.vocab-size {vocab_size} is more than the training text yields as {model_type}: {remedy}"
        )
        self.largest = largest


def _too_small(vocab_size: int, smallest: int, largest: int = 0) -> UserError:
    return UserError(
        f"--data.vocab-size {vocab_size} has no room for 256 bytes, the special ids and the "
        f"characters of the training text: set it to at least {smallest}"
        + (f", at most {largest}" if largest else "")
    )
