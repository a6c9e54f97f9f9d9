"""The interface of tokenizers, and SentencePiece models.

With a model trained here `decode(encode(text)) == text` for every Unicode string, and no text, not even a
literal `</s>`, becomes a special id. Tokenizers are immutable and hold no random generator, so threads may
share them.
"""

import contextlib
import copy
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import sentencepiece

from transformer.config.model import SpecialIds
from transformer.data.tokenizers.lossless import (
    SPACE,
    WholeWords,
    escape,
    opened,
    to_utf8,
    undivided,
    unescape,
    with_pieces,
)
from transformer.data.tokenizers.segmentations import (
    Subwords,
    check_strength,
    choose_candidate,
    merge_with_dropout,
    uniform_draws,
)
from transformer.runtime.errors import UserError, abbreviated, nearest
from transformer.runtime.files import Json, write_whole

# The codes of languages that begin the texts of pretrained models.


CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}|__[a-z]{2,3}__")
"""A code of a language, such as eng_Latn, en_XX or __en__."""
MADE_HERE = re.compile(r"__([\w-]+)__")
"""A code of a language in vocabularies that are trained here, such as __pt-br__."""


def codes(added: Mapping[str, int]) -> dict[str, int]:
    """The id of each language among the pieces that a vocabulary has beside those of text, such as eng_Latn.
    Underscores around it are left out: of __en__ it is en."""
    return {piece.strip("_"): index for piece, index in added.items() if CODE.fullmatch(piece)}


_CANDIDATES = 64
NAMED = 5  # languages that a message names


class Tokenizer(ABC):
    """The interface of all tokenizers."""

    kind: str
    """What it is called where it is stored."""
    special: SpecialIds
    """The ids that are not text."""
    vocab_size: int
    """Number of ids, including the special ones."""
    presegmented: bool = False
    """Whether its text is already split into subwords, which `decode` joins."""

    one_language: bool = False
    """Whether it is for one of the two languages only, so that the other one needs another."""

    start: tuple[int, ...] = ()
    """Ids that `encode` puts before every text, such as the code of its language. Every output begins so,
    unless `forces_start` is False."""

    forces_start: bool = True
    """Whether a search is forced to begin with `start`. Otherwise only texts of training do."""

    has_codes: bool = False
    """Whether every text begins with the code of its language. While `start` is empty, none is chosen."""

    code_pattern: ClassVar[re.Pattern[str]] = CODE
    """Pieces that are codes of languages."""

    @property
    def codes(self) -> Mapping[str, int]:
        """The id of the code of each language."""
        return {}

    def in_language(self, language: str | None, option: str) -> Self:
        """This tokenizer for texts that begin with the code of a language.

        Args:
          language: such as eng_Latn. None: it is chosen later.
          option: the name of the language's option, for messages.

        Raises:
          UserError: there is no such code.
        """
        if not isinstance(language, str | None):
            raise UserError(
                f"{option}: {abbreviated(repr(language))} is not the code of a language, which is a string"
            )
        codes = self.codes
        if not codes:
            raise UserError(
                f"{option}: the vocabulary has no code of a language, with which texts would begin"
            )
        language = language and language.strip("_")
        if language is not None and language not in codes:
            others = " and others" if len(codes) > NAMED else ""
            hint = nearest(language, codes) or f"; there are {_some(codes)}{others}"
            raise UserError(f"{option} {language}: this model has no such language{hint}")
        tokenizer = copy.copy(self)
        tokenizer.has_codes = True
        tokenizer.start = () if language is None else (codes[language],)
        return tokenizer

    def as_target(self) -> Self:
        """This tokenizer for outputs, which begin with no id that is not predicted."""
        tokenizer = copy.copy(self)
        tokenizer.start = ()
        return tokenizer

    def check_language(self, option: str) -> None:
        """Raises UserError, with the name of an option, if texts begin with a code and none is chosen."""
        if self.has_codes and not self.start:
            raise UserError(
                f"texts of this model begin with the code of their language: give {option}, such as "
                f"{_some(self.codes)}"
            )

    def grown(self, words: Sequence[str], languages: Sequence[str]) -> "Tokenizer":
        """This tokenizer with more words and codes of languages. Its ids stay as they are. A word becomes one
        token wherever it stands, unless the tokenizer divides text at spaces and punctuation.

        Args:
          words: without spaces. Their ids follow, in this order.
          languages: codes such as eng_Latn, whose ids come last.

        Raises:
          UserError: a word or a code is known already, or cannot be one of this vocabulary.
        """
        known = set(self.stored_pieces(range(self.vocab_size)))
        for word in words:
            ids = self.encode(word)[len(self.start) :]
            is_known = len(ids) == 1 and ids[0] != self.special.unk and ids[0] < self.vocab_size
            if is_known or word in known:
                raise UserError(f"--data.add-tokens: {word!r} is in the vocabulary already; leave it out")
            if SPACE in word:
                raise UserError(f"--data.add-tokens: {word!r} has {SPACE}, which stands for a space")
        return self._with_pieces(words, [self._new_code(code, languages, known) for code in languages])

    def _new_code(self, language: str, languages: Sequence[str], known: set[str]) -> str:
        """The code of a new language as the vocabulary writes codes. Raises UserError if it cannot be one."""
        option = f"--data.add-language {language}"
        codes = self.codes
        if not self.has_codes or not codes:
            raise UserError(f"{option}: texts of this model begin with no code of a language; leave it out")
        name = language.strip("_")
        (some,) = self.stored_pieces([next(iter(codes.values()))])
        code = f"__{name}__" if some.startswith("_") else name
        if not self.code_pattern.fullmatch(code):
            raise UserError(f"{option}: this is not the code of a language, such as {_some(codes)}")
        if name in codes or code in known or sum(name == other.strip("_") for other in languages) > 1:
            raise UserError(f"{option}: there is such a language already; leave it out")
        return code

    def _with_pieces(self, words: Sequence[str], codes: Sequence[str]) -> "Tokenizer":
        """The tokenizer with more words and codes, as `grown` after its checks."""
        raise UserError(f"--data.add-tokens: no words can be added to a {type(self).__name__}; leave it out")

    def stored_pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces as the vocabulary has them; "" for an id without one."""
        return self.pieces(ids)

    @property
    def num_ids(self) -> int:
        """One more than the largest id that `encode` gives."""
        return self.vocab_size

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of one line, without special ids except `special.unk`.

        Raises UserError for a lone surrogate, which is not text.
        """

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many lines, as `encode` of each, but faster if the library can do them together."""
        return [self.encode(text) for text in texts]

    def knows(self, text: str) -> bool:
        """Whether all of a text can be written with pieces of the training text."""
        return self.special.unk not in self.encode(text)

    def unknown(self, text: str) -> list[str]:
        """The characters of a text that `encode` makes unknown ids of, each as often as it occurs; a word
        instead if it is unknown although its characters are known."""
        unk, unknown = self.special.unk, list[str]()
        if unk not in self.encode(text):
            return []
        for word in text.split():
            if unk in self.encode(word):
                lacking = {character for character in word if unk in self.encode(character)}
                rest = "".join(character for character in word if character not in lacking)
                explained = lacking and unk not in self.encode(rest)
                unknown += filter(lacking.__contains__, word) if explained else [word]
        return unknown

    @abstractmethod
    def sample(self, text: str, rng: np.random.Generator, strength: float) -> list[int]:
        """Samples a segmentation of the line; all randomness comes from `rng`.

        `strength` 0 is `encode`. A unigram model samples among its 64 best segmentations X in proportion to
        P(X)^strength: 0.1 or 0.2 is usual; higher values are closer to `encode` (Kudo 2018, section 3.2). A
        BPE model drops each merge with probability `strength` at every step: 0.1 is usual; 1 leaves
        characters (Provilkov et al. 2020, algorithm 1). A character model has only one segmentation. Raises
        UserError for an invalid strength, and if the tokenizer cannot sample.
        """

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids, also after eos; pad, bos and eos themselves are skipped.

        Raises ValueError for an id outside the vocabulary.
        """

    @abstractmethod
    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id, for display; the special ones as <pad> <s> </s> <unk>.

        Raises ValueError for an id outside the vocabulary.
        """

    def spelled(self, text: str) -> str | None:
        """The text as pieces spell it, such as with a mark for each space. None: pieces are whole words."""
        return None

    @property
    def subwords(self) -> Subwords | None:
        """What samples the words of a sentence independently. None: they are not independent, or have only
        one segmentation."""
        return None

    @functools.cached_property
    def ids_by_piece(self) -> dict[str, int]:
        """The id of each piece of text."""
        apart = {*astuple(self.special), *self.codes.values()}
        ids = [index for index in range(self.vocab_size) if index not in apart]
        return dict(zip(self.pieces(ids), ids, strict=True))

    def for_source(self, source: str) -> "Tokenizer":
        """This tokenizer, able to decode the out-of-vocabulary words of a source sentence."""
        return self

    def save(self, path: Path) -> None:
        """Writes the tokenizer to a file, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self.content())

    @abstractmethod
    def content(self) -> bytes:
        """The file that `save` writes."""

    def plain(self, text: str) -> str:
        """Text as `decode` writes it, for references: presegmented text is joined."""
        return text

    def _checked(self, ids: Iterable[int]) -> list[int]:
        checked = [int(index) for index in ids]
        if outside := [index for index in checked if not 0 <= index < self.vocab_size]:
            raise ValueError(f"ids outside the vocabulary of {self.vocab_size}: {outside[:10]}")
        return checked


def _some(codes: Mapping[str, int]) -> str:
    return ", ".join(list(codes)[:NAMED])


class ImportedTokenizer(Tokenizer):
    """A tokenizer of a pretrained model, which has only one segmentation of a text.

    Args:
      special: the ids that are not text.
      start: ids that begin every text.
    """

    one_language = True

    def __init__(self, special: SpecialIds, start: Sequence[int]) -> None:
        self.special, self.start = special, tuple(start)
        names = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}
        self._special = {index: names[name] for name, index in reversed(asdict(special).items())}

    def as_saved(self, saved: Json) -> Self:
        """This tokenizer, with what a parsed `content` says of the codes of languages."""
        self.has_codes = saved.get("has_codes") is True
        self.forces_start = saved.get("forces_start") is not False
        return self

    def saved(self) -> Json:
        """What `as_saved` reads."""
        unforced = {} if self.forces_start else {"forces_start": False}
        return ({"has_codes": True} if self.has_codes else {}) | unforced

    def encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    def sample(self, text: str, rng: np.random.Generator, strength: float) -> list[int]:
        if strength:
            raise UserError("--data.subword-sampling: an imported vocabulary has only one segmentation")
        return self.encode(text)


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, from the content of its file.

    Models trained here are lossless; others may normalise text. Raises RuntimeError if the content is not a
    model.
    """

    code_pattern = MADE_HERE

    kind: Literal["unigram", "bpe", "char"]

    def __init__(self, model: bytes) -> None:
        processor, pieces = opened(model)
        self.special = SpecialIds(
            processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()
        )
        self.vocab_size = processor.GetPieceSize()
        self._model = model
        self._processor = processor
        self._scores: list[float] = processor.GetScore(list(range(self.vocab_size)))
        self._text_ids: dict[str, int] = {}
        self._byte_ids: dict[int, int] = {}
        self._surfaces: list[bytes] = []
        self._codes: dict[str, int] = {}
        for index, piece in enumerate(pieces):
            surface = piece.encode()
            if processor.IsByte(index):
                surface = bytes([int(piece[1:-1], 16)])
                self._byte_ids[surface[0]] = index
            elif processor.IsControl(index):
                surface = b""
                if language := self.code_pattern.fullmatch(piece):
                    self._codes[language[1]] = index
            elif processor.IsUnknown(index):
                surface = " \u2047 ".encode()
            elif not processor.IsUnused(index):
                self._text_ids[piece] = index
            self._surfaces.append(surface)
        self.has_codes = bool(self._codes)
        self._adds_space = processor.Normalize("a") == f"{SPACE}a"
        self.kind = _kind(processor)
        # The scores of a BPE model are the order in which it learned its merges.
        self._merge_scores = {piece: self._scores[i] for piece, i in self._text_ids.items()}
        self._within_words = all(SPACE not in piece[1:] for piece in self._text_ids)

    @functools.cached_property
    def _undivided(self) -> WholeWords | None:
        words = undivided(self._model)
        return WholeWords(words) if words else None

    @property
    def codes(self) -> Mapping[str, int]:
        return self._codes

    def knows(self, text: str) -> bool:
        never = {self.special.unk, *self._byte_ids.values()}
        return never.isdisjoint(self.encode(text))

    def encode(self, text: str) -> list[int]:
        return [*self.start, *self._processor.Encode(self._prepared(text))]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        # the library starts a pool of threads for each list; more than one thread gains little
        ids: list[list[int]] = self._processor.Encode([self._prepared(text) for text in texts], num_threads=1)
        return [[*self.start, *some] for some in ids] if self.start else ids

    @property
    def subwords(self) -> Subwords | None:
        ids = self._text_ids
        scores = self._scores
        spelled = SPACE in ids and all(character in ids for piece in ids for character in piece)
        # user-defined symbols, which the library never divides, have the score 0, and so has the first merge
        undivided = sum(scores[index] >= 0 for index in ids.values()) > (self.kind == "bpe")
        if self.kind == "char" or not (self._within_words and spelled) or undivided:
            return None
        return Subwords(self.kind, ids, scores)

    def sample(self, text: str, rng: np.random.Generator, strength: float) -> list[int]:
        check_strength(strength, self.kind)
        if strength == 0 or self.kind == "char":
            return self.encode(text)
        draw = self._sample_unigram if self.kind == "unigram" else self._sample_bpe
        return [*self.start, *draw(self._prepared(text), rng, strength)]

    def decode(self, ids: Iterable[int]) -> str:
        surfaces = b"".join(self._surfaces[index] for index in self._checked(ids))
        # A space without its own piece is spelled in bytes: replace it only now.
        text = surfaces.decode(errors="replace").replace(SPACE, " ")
        return unescape(text.removeprefix(" ") if self._adds_space else text)

    def spelled(self, text: str) -> str | None:
        return str(self._processor.Normalize(self._prepared(text).decode()))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        pieces: list[str] = self._processor.IdToPiece(self._checked(ids))
        return pieces

    def content(self) -> bytes:
        return self._model

    def _with_pieces(self, words: Sequence[str], codes: Sequence[str]) -> Tokenizer:
        return SentencePieceTokenizer(with_pieces(self._model, words, codes))

    def _prepared(self, text: str) -> bytes:
        return to_utf8(escape(text) if self._byte_ids else text)

    def _sample_unigram(self, text: bytes, rng: np.random.Generator, alpha: float) -> list[int]:
        candidates: list[list[int]] = self._processor.NBestEncode(text, nbest_size=_CANDIDATES)
        # Unknown characters weigh the same in every candidate: the known pieces' sum is enough.
        log_p = [sum(map(self._scores.__getitem__, ids)) for ids in candidates]
        return candidates[choose_candidate(log_p, alpha, rng)]

    def _sample_bpe(self, text: bytes, rng: np.random.Generator, dropout: float) -> list[int]:
        draws = uniform_draws(rng)
        ids: list[int] = []
        for symbol in self._merged(self._processor.Normalize(text).decode(), dropout, draws):
            if symbol in self._text_ids:
                ids.append(self._text_ids[symbol])
            elif self._byte_ids:
                ids.extend(self._byte_ids[byte] for byte in symbol.encode())
            elif ids[-1:] != [self.special.unk]:  # one unk for a run of them, as in the library
                ids.append(self.special.unk)
        return ids

    def _merged(self, text: str, dropout: float, draws: Iterator[float]) -> Iterator[str]:
        """Yields pieces. Merges do not cross those that are never divided, nor words if pieces are within
        them."""
        words = f"{SPACE}?[^{SPACE}]+|{SPACE}" if self._within_words else "(?s:.)+"
        for number, part in enumerate(self._undivided.split(text) if self._undivided else [text]):
            if number % 2:
                yield part
            else:
                for word in re.findall(words, part):
                    yield from merge_with_dropout(word, self._merge_scores, dropout, draws)


def _kind(processor: sentencepiece.SentencePieceProcessor) -> Literal["unigram", "bpe", "char"]:
    """The kind of a model, inferred from what it supports, since the library does not expose it."""
    with contextlib.suppress(RuntimeError):  # older releases return nothing instead
        if processor.NBestEncode("a", nbest_size=2):
            return "unigram"
    with contextlib.suppress(RuntimeError):
        if processor.SampleEncodeAsIds("a", nbest_size=2):
            return "bpe"
    return "char"  # or whole words: either has one segmentation
