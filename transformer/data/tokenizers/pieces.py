"""Tokenizers in which SentencePiece segments text, and a separate list has the ids: Marian,
M2M-100, and those of other families that have no tokenizer.json."""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple
from typing import Any, Self

from transformer.config.model import SpecialIds
from transformer.data.tokenizers.lossless import SPACE, WholeWords, check_pieces, opened, to_utf8, with_pieces
from transformer.data.tokenizers.tokenizer import ImportedTokenizer, Tokenizer, codes
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, brief_json

MOST_APART = 5_000
"""Words that are looked for at each character of a text; M2M-100 and T5 have 100."""
LONGEST_APART = 100
"""Characters of such a word; <extra_id_99> has 13."""


class PiecesTokenizer(ImportedTokenizer):
    """Text to ids as in the model's training, including the normalisation of its SentencePiece model.

    Args:
      model: the content of a SentencePiece file.
      words: every piece, in the order of the ids; None for an id without one.
      special: the ids that are not text. <bos> may be <pad>.
      start: ids that begin every text, such as the code of its language.
      apart: words that are whole wherever they stand in a text, such as <extra_id_0>. They spell nothing.

    Raises:
      RuntimeError: `model` is not a SentencePiece model.
      UserError: a word is not valid text, or a special id is outside the vocabulary.
    """

    kind = "pieces"

    def __init__(
        self,
        model: bytes,
        words: list[str | None],
        special: SpecialIds,
        start: Sequence[int] = (),
        apart: Sequence[str] = (),
    ) -> None:
        super().__init__(special, start)
        for word in words:
            to_utf8(word or "")
        if not all(0 <= index < len(words) for index in (*astuple(special), *start)):
            raise UserError(f"{special}: special ids must be below {len(words)}, the size of this vocabulary")
        check_pieces(words, start)
        if len(apart) > MOST_APART:
            raise UserError(
                f"{len(apart):,} words of it are whole anywhere in a text; it may have {MOST_APART:,}"
            )
        if (longest := max(map(len, apart), default=0)) > LONGEST_APART:
            raise UserError(
                f"a word of {longest:,} characters is whole anywhere in a text; it may have {LONGEST_APART}"
            )
        if unknown := {*apart}.difference(filter(None, words)):
            raise UserError(f"{brief_json(min(unknown))} is whole anywhere in a text, and no word of it")
        self._processor, _ = opened(model)
        self.model, self.words, self.apart = model, words, tuple(apart)
        self.vocab_size = len(words)
        self._ids = {word: index for index, word in enumerate(words) if word is not None}
        self._bytes = {index for word, index in self._ids.items() if re.fullmatch("<0x[0-9A-F]{2}>", word)}
        self._silent = {*astuple(special), *(self._ids[word] for word in apart)}
        self._apart: WholeWords | re.Pattern[str] | None = WholeWords(apart) if apart else None

    @classmethod
    def read(cls, saved: Json) -> Self:
        """The tokenizer of a parsed `content`. Raises AttributeError, KeyError, TypeError, ValueError,
        RuntimeError or UserError for others."""
        model = base64.b64decode(saved["model"], validate=True)
        more = {name: list(saved[name]) for name in ("start", "apart") if name in saved}
        return cls(model, saved["words"], SpecialIds(**saved["special"]), **more).as_saved(saved)

    def content(self) -> bytes:
        model = base64.b64encode(self.model).decode()
        saved: dict[str, Any] = {"kind": self.kind, "special": asdict(self.special), "words": self.words}
        more = {name: getattr(self, name) for name in ("start", "apart") if getattr(self, name)}
        return json.dumps({**saved, **more, **self.saved(), "model": model}, ensure_ascii=False).encode()

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        divided = [self._apart.split(text) if self._apart else [text] for text in texts]
        plain = [to_utf8(part) for parts in divided for part in parts[::2]]
        pieces = iter(self._processor.Encode(plain, out_type=str, num_threads=1))
        encoded = []
        for parts in divided:
            ids = list(self.start)
            for number, part in enumerate(parts):
                words = [part] if number % 2 else next(pieces)
                ids += [self._ids.get(word, self.special.unk) for word in words]
            encoded.append(ids)
        return encoded

    def _with_pieces(self, words: Sequence[str], codes: Sequence[str]) -> Tokenizer:
        saved = json.loads(self.content())
        model = base64.b64encode(with_pieces(self.model, words)).decode()
        saved |= {"model": model, "words": [*self.words, *words, *codes]}
        if codes:
            saved["apart"] = [*self.apart, *codes]
        return self.read(saved)

    def knows(self, text: str) -> bool:
        return {self.special.unk, *self._bytes}.isdisjoint(self.encode(text))

    def decode(self, ids: Iterable[int]) -> str:
        text_ids = [index for index in self._checked(ids) if index not in self._silent]
        text: str = self._processor.DecodePieces([self.words[index] or "<unk>" for index in text_ids])
        return text.replace(SPACE, " ").strip(" ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._special.get(index, self.words[index] or "<unk>") for index in self._checked(ids)]

    def stored_pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces as the vocabulary has them."""
        return [self.words[index] or "" for index in ids]

    @property
    def codes(self) -> dict[str, int]:
        """The id of the code of each language, such as eng_Latn; of __en__ it is en."""
        return codes({word: self._ids[word] for word in self.apart})

    def spelled(self, text: str) -> str | None:
        return str(self._processor.Normalize(to_utf8(text).decode()))


# The tokenizer of a Marian model.


class MarianTokenizer(PiecesTokenizer):
    """A `PiecesTokenizer` whose texts may begin with the code of the target language, such as >>deu<<. It
    shows <unk> as U+2047."""

    kind = "marian"

    def __init__(
        self, model: bytes, words: list[str | None], special: SpecialIds, start: Sequence[int] = ()
    ) -> None:
        super().__init__(model, words, special, start)
        self._apart = re.compile(r"\A(>>[^<]*<<)")
        self._silent = {special.pad, special.bos, special.eos}
