"""One vocabulary for source and target, as most families have it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.config.options import Config
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.pieces import PiecesTokenizer
from transformer.interop.folders.architecture import Architecture, Languages, Tokenizers, VocabularyFiles
from transformer.interop.folders.folder import CONFIG, TOKENIZER, read_json, tokenizer_options
from transformer.interop.folders.search import forced_start
from transformer.interop.vocabularies.files import PIECES, Written, read_pieces, written_pieces
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
        self._about = tokenizer_options(folder)
        self._start_in_training = read_json(folder / CONFIG).get("decoder_start_token_id")
        self._around = self._pieces.around()
        self.ids: Json = {} if self._around is None or self._around[1] else {"source_end": False}

    def tokenizers(
        self, architecture: Architecture, described: Json, model: TransformerConfig, languages: Languages
    ) -> Tokenizers:
        """As `Vocabulary.tokenizers`."""
        plain = self._tokenizer(model, ())
        if not architecture.has_codes:
            if any(languages):
                raise UserError("--source-language, --target-language: texts of this model have no code")
            return self._without_codes(architecture, described, model)
        self._check_codes(described, model)
        source, target = (
            plain.in_language(language, f"--{side}-language")
            for language, side in zip(languages, SIDES, strict=True)
        )
        return source, target

    def _without_codes(
        self, architecture: Architecture, described: Json, model: TransformerConfig
    ) -> Tokenizers:
        """Texts begin as the files say; targets as a search is forced to begin, if it is."""
        begin, end = self._around or (self._first(architecture), (model.special.eos,))
        if end not in ((), (model.special.eos,)) or (not end and model.special.eos in begin):
            pieces = [self._tokenizer(model, ()).stored_pieces(ids) for ids in (begin, end)]
            raise UserError(
                f"its tokenizer puts {pieces[0]} before a text and {pieces[1]} after it: only "
                "nothing, or the token of eos_token_id, is supported after a text"
            )
        forced = forced_start(described, model.output_size)
        target = self._tokenizer(model, forced or begin)
        target.forces_start = bool(forced) or not target.start
        return self._tokenizer(model, begin), target

    def _first(self, architecture: Architecture) -> tuple[int, ...]:
        """What a family puts before a text, as far as the vocabulary has it."""
        piece = architecture.begins_with
        named = self._about.get("cls_token", piece) if piece else None
        name = named.get("content") if isinstance(named, dict) else named
        index = self._pieces.id_of(name) if isinstance(name, str) else None
        return () if index is None else (index,)

    def _check_codes(self, described: Json, model: TransformerConfig) -> None:
        """Raises UserError if the code of its language is not what a text begins with."""
        kind = str(self._about.get("tokenizer_class")).removesuffix("Fast")
        ends = "models whose texts end with the code of their language, such as mBART-25, are not supported"
        starts = {described["decoder_start_token_id"], self._start_in_training} - {None}
        if starts != {model.special.eos}:
            raise UserError(f"decoder_start_token_id is no </s>: {ends}")
        if kind == "MBartTokenizer":
            raise UserError(f"tokenizer_class is {kind}: {ends}")
        if self._about.get("legacy_behaviour") is True:
            raise UserError(f"legacy_behaviour is true: {ends}")

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
        is_forced = bool(target.start) and target.forces_start
        same = range(config.model.vocab_size)
        ids = {
            "pad_token_id": special.pad,
            "decoder_start_token_id": special.bos,
            "eos_token_id": special.eos,
        }
        names = ("unk_token", "pad_token", "eos_token", "bos_token")
        begins = () if source.has_codes else source.start[:1]
        indices = [special.unk, special.pad, special.eos, *(begins or [special.bos])]
        about |= dict(zip(names, source.stored_pieces(indices), strict=True))
        return VocabularyFiles(
            files={**files, TOKENIZER: _json(about)},
            described={
                "vocab_size": config.model.vocab_size,
                **ids,
                **({"bos_token_id": begins[0]} if begins else {}),
                **({} if getattr(config.model, "source_end", True) else {"source_end": False}),
            },
            generation=ids | ({"forced_bos_token_id": target.start[0]} if is_forced else {}),
            rows=(same, same),
        )


def _written(tokenizer: HubTokenizer | PiecesTokenizer) -> Written | None:
    if isinstance(tokenizer, PiecesTokenizer):
        return written_pieces(tokenizer)
    return {PIECES: tokenizer.model.encode()}, {"tokenizer_class": "PreTrainedTokenizerFast"}


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
