"""The tokenizer of a Marian model: SentencePiece segments text, and a separate list has the ids."""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple

import numpy as np
import sentencepiece

from transformer.config import SpecialIds
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.vocabulary import SPACE, to_utf8
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

_LANGUAGE = re.compile(r">>[^<]*<<")  # target language, a separate piece


class MarianTokenizer(Tokenizer):
    """Text to ids as in the model's training, including the normalisation of its SentencePiece model.

    Args:
      model: the content of a SentencePiece file.
      words: every piece, in the order of the ids; None for an id without one.
      special: the ids that are not text. <bos> may be <pad>.

    Raises:
      RuntimeError: `model` is not a SentencePiece model.
      UserError: a word is not valid text, or a special id is outside the vocabulary.
    """

    kind = "marian"
    one_language = True

    def __init__(self, model: bytes, words: list[str | None], special: SpecialIds) -> None:
        for word in words:
            to_utf8(word or "")
        if not all(0 <= index < len(words) for index in astuple(special)):
            raise UserError(f"{special}: special ids must be below {len(words)}, the size of this vocabulary")
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.model, self.words, self.special = model, words, special
        self.vocab_size = len(words)
        self._ids = {word: index for index, word in enumerate(words) if word is not None}
        names = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}
        self._special = {index: names[name] for name, index in reversed(asdict(special).items())}

    @classmethod
    def read(cls, saved: Json) -> "MarianTokenizer":
        """The tokenizer of a parsed `content`. Raises AttributeError, KeyError, TypeError, ValueError,
        RuntimeError or UserError for others."""
        model = base64.b64decode(saved["model"], validate=True)
        return cls(model, saved["words"], SpecialIds(**saved["special"]))

    def content(self) -> bytes:
        model = base64.b64encode(self.model).decode()
        saved = {"kind": self.kind, "special": asdict(self.special), "words": self.words, "model": model}
        return json.dumps(saved, ensure_ascii=False).encode()

    def encode(self, text: str) -> list[int]:
        code, rest = _parted(text)
        return self._known([*code, *self._processor.Encode(rest, out_type=str)])

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        codes, rests = zip(*map(_parted, texts), strict=True) if texts else ((), ())
        segmented: list[list[str]] = self._processor.Encode(list(rests), out_type=str, num_threads=1)
        return [self._known(code + pieces) for code, pieces in zip(codes, segmented, strict=True)]

    def _known(self, pieces: list[str]) -> list[int]:
        return [self._ids.get(piece, self.special.unk) for piece in pieces]

    def sample(self, text: str, rng: np.random.Generator, strength: float) -> list[int]:
        if strength:
            raise UserError("--data.subword-sampling: an imported vocabulary has only one segmentation")
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        silent = {self.special.pad, self.special.bos, self.special.eos}
        text_ids = [index for index in self._checked(ids) if index not in silent]
        text: str = self._processor.DecodePieces([self.words[index] or "<unk>" for index in text_ids])
        return text.replace(SPACE, " ").strip(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._special.get(index, self.words[index] or "<unk>") for index in self._checked(ids)]


def _parted(text: str) -> tuple[list[str], bytes]:
    """The code of the target language, if there is one, and the rest of the text in UTF-8."""
    language = _LANGUAGE.match(text)
    code = [language.group()] if language else []
    return code, to_utf8(text[len("".join(code)) :])
