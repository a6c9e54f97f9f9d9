"""One vocabulary for source and target, as most families have it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.config import Config, TransformerConfig
from transformer.data.features.hub import HubTokenizer
from transformer.data.features.pieces import PiecesTokenizer
from transformer.interop.architectures.architecture import (
    Architecture,
    Languages,
    Tokenizers,
    VocabularyFiles,
)
from transformer.interop.reading import TOKENIZER, tokenizer_options
from transformer.interop.vocabularies.files import PIECES, read_pieces
from transformer.interop.vocabularies.pieces import Written, written_pieces
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

SIDES = ("source", "target")
UNKNOWN = ("<unk>", "[UNK]")
"""Names of the unknown word, of which the first that exists counts."""


class HubVocabulary:
    """As `Vocabulary`."""

    def __init__(self, folder: Path) -> None:
        self._pieces = read_pieces(folder)
        named = tokenizer_options(folder).get("unk_token")
        piece = named.get("content") if isinstance(named, dict) else named
        unknown = (str(piece),) if piece else UNKNOWN
        unk = next((index for name in unknown if (index := self._pieces.id_of(name)) is not None), None)
        if unk is None:
            raise UserError(f"the vocabulary of {folder} has no {unknown[0]}")
        self.unk = unk
        self.ids: Json = {}

    def tokenizers(
        self, architecture: Architecture, described: Json, model: TransformerConfig, languages: Languages
    ) -> Tokenizers:
        """As `Vocabulary.tokenizers`."""
        plain = self._tokenizer(model, architecture.start(described))
        if not architecture.has_codes:
            if any(languages):
                raise UserError("--source-language, --target-language: texts of this model have no code")
            return plain, self._tokenizer(model, plain.start)
        if described["decoder_start_token_id"] != model.special.eos:
            raise UserError(
                "decoder_start_token_id is no </s>: models whose texts end with the code of their "
                "language, such as mBART-25, are not supported"
            )
        source, target = (
            plain.in_language(language, f"--{side}-language")
            for language, side in zip(languages, SIDES, strict=True)
        )
        return source, target

    def _tokenizer(self, model: TransformerConfig, start: Sequence[int]) -> HubTokenizer | PiecesTokenizer:
        return self._pieces.tokenizer(model.vocab_size, model.special, start)

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        """As `Vocabulary.exported`."""
        source, target = tokenizers
        is_own = type(source) in (HubTokenizer, PiecesTokenizer) and type(target) is type(source)
        if not is_own or not isinstance(source, HubTokenizer | PiecesTokenizer):
            return None  # subclasses are tokenizers of other families
        written = _written(source)
        if written is None:
            return None
        files, about = written
        special = config.model.special
        same = range(config.model.vocab_size)
        ids = {
            "pad_token_id": special.pad,
            "decoder_start_token_id": special.bos,
            "eos_token_id": special.eos,
        }
        names = ("unk_token", "pad_token", "eos_token", "bos_token")
        begins = source.start[:1] if source.start == target.start else ()
        indices = [special.unk, special.pad, special.eos, *(begins or [special.bos])]
        about |= dict(zip(names, source.stored_pieces(indices), strict=True))
        return VocabularyFiles(
            files={**files, TOKENIZER: _json(about)},
            described={
                "vocab_size": config.model.vocab_size,
                **ids,
                **({"bos_token_id": begins[0]} if begins else {}),
            },
            generation=ids | ({"forced_bos_token_id": target.start[0]} if target.start else {}),
            rows=(same, same),
        )


def _written(tokenizer: HubTokenizer | PiecesTokenizer) -> Written | None:
    if isinstance(tokenizer, PiecesTokenizer):
        return written_pieces(tokenizer)
    return {PIECES: tokenizer.model.encode()}, {"tokenizer_class": "PreTrainedTokenizerFast"}


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
