"""Marian (Junczys-Dowmunt et al. 2018) as Hugging Face stores it, such as the OPUS-MT models.

Its decoder starts with a vector of zeros. On export the vector of <bos> becomes zero too: <bos> is always the
decoder's first position, so its vector is added to that position in the decoder's table of positions. On
import it is taken back.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.config.model import SpecialIds
from transformer.config.options import Config, text_data
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.pieces import MarianTokenizer
from transformer.data.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.interop.architectures.bart import (
    BART,
    LONGEST,
    POSITIONS,
    bart_options,
    described_bart,
    stored_positions,
)
from transformer.interop.folders.family import (
    Family,
    Names,
    Opened,
    Read,
    Request,
    Storage,
    Tokenizers,
    Vocabulary,
    VocabularyFiles,
    check_sinusoids,
    interleaved_order,
    sines_then_cosines,
    without_codes,
)
from transformer.interop.folders.folder import CONFIG, LANGUAGES, as_json, read_json
from transformer.interop.folders.pieces import read_sentencepiece, words_by_id
from transformer.interop.folders.search import forced_start
from transformer.model.parameters import Params
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, prefixed_errors

WITHOUT_LANGUAGES = without_codes("the texts of Marian models need none")
_DECODER_POSITIONS = POSITIONS.format(side="decoder")


def _options(config: Json, names: Any) -> dict[str, Any]:
    shared = config.get("share_encoder_decoder_embeddings", True)
    tied = config.get("tie_word_embeddings", True)
    size = config["vocab_size"]
    return bart_options(
        config | {"tie_word_embeddings": True},
        output_bias=True,
        target_vocab_size=None if shared else config.get("decoder_vocab_size") or size,
        share_embeddings="none" if not tied else "all" if shared else "target",
    )


def _describe(model: TransformerConfig) -> Json:
    return described_bart(
        model,
        share_encoder_decoder_embeddings=model.share_embeddings == "all",
        static_position_embeddings=True,
    )


def _target_table(model: TransformerConfig) -> str:
    return "source_embedding" if model.shares_inputs else "target_embedding"


def _with_start(path: Names, x: np.ndarray, model: TransformerConfig, read: Read) -> np.ndarray:
    """Gives <bos> the vector that `_positions` added to the decoder's first position."""
    if path[0] != _target_table(model) or (stored := stored_positions("decoder", read)) is None:
        return x
    added = stored[:1] - sines_then_cosines(1, model.d_model)
    if np.abs(added).max(initial=0) > 1e-4:
        start = added[0][interleaved_order(model.d_model)]
        x = x.copy()
        x[model.special.bos] += start / math.sqrt(model.d_model) if model.scale_embedding else start
    return x


def _check(config: Json, model: TransformerConfig, read: Read) -> None:
    for first, side in enumerate(("encoder", "decoder")):
        check_sinusoids(POSITIONS.format(side=side), stored_positions(side, read), model.d_model, first=first)


def _positions(params: Params, model: TransformerConfig) -> dict[str, np.ndarray]:
    """The decoder's table of positions, with the vector of <bos>."""
    table = sines_then_cosines(LONGEST, model.d_model)
    start = np.asarray(params[_target_table(model)]["table"][model.special.bos], np.float32)
    start = start[np.argsort(interleaved_order(model.d_model))]
    table[0] += start * math.sqrt(model.d_model) if model.scale_embedding else start
    return {_DECODER_POSITIONS: table}


# Its vocabulary: source.spm and target.spm cut text into pieces, vocab.json numbers them. There <pad> comes
# last, and there is no <bos>: decoding starts with <pad>, whose vector is zero.


NUMBERS = "vocab.json"
TARGET_NUMBERS = "target_vocab.json"
PIECES = ("source.spm", "target.spm")
WORD_LISTS = ("source_vocabulary.json", "target_vocabulary.json")
"""What CTranslate2 needs for separate vocabularies."""


class MarianVocabulary(Vocabulary):
    """Two SentencePiece models, and the ids of their pieces."""

    def __init__(self, folder: Path, family: Family[Any]) -> None:
        self._folder = folder
        target = folder / TARGET_NUMBERS
        self._files = folder / NUMBERS, target if target.exists() else folder / NUMBERS
        unk = read_json(folder / NUMBERS).get("<unk>")
        if type(unk) is not int:
            raise UserError(f"{folder / NUMBERS} has no <unk>")
        self.unk = unk
        self.ids: Json = {}

    def tokenizers(self, opened: Opened, model: TransformerConfig, request: Request) -> Tokenizers:
        forced = forced_start(opened.described, model.output_size)
        source, target = (
            _tokenizer(self._folder / pieces, file, size, model.special, start)
            for pieces, file, size, start in zip(
                PIECES,
                self._files,
                (model.vocab_size, model.output_size),
                ((), forced),
                strict=True,
            )
        )
        return source, target

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        models = [model for tokenizer in tokenizers if (model := _sentencepiece(tokenizer)) is not None]
        if len(models) < len(tokenizers):
            return None
        orders = [_order(tokenizer, config.model.special) for tokenizer in tokenizers]
        size = max(map(len, orders)) + 1
        rows = [[*order, *[-1] * (size - len(order))] for order in orders]  # <pad> is the last one
        numbers = [_numbered(*pair) for pair in zip(tokenizers, rows, strict=True)]
        separate = config.model.share_embeddings != "all"
        languages = zip(LANGUAGES, text_data(config).languages, strict=True)
        named_languages: Json = {name: language for name, language in languages if language}
        contents = dict(zip(PIECES, models, strict=True))
        contents[NUMBERS] = as_json(numbers[0])
        if separate:
            contents[TARGET_NUMBERS] = as_json(numbers[1])
            contents |= {
                name: as_json([*words][:-1])  # without <pad>
                for name, words in zip(WORD_LISTS, numbers, strict=True)
            }
        pad, eos = size - 1, 0
        ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": eos, "bos_token_id": eos}
        target = tokenizers[1]
        forced = rows[1].index(target.start[0]) if target.start and target.forces_start else None
        return VocabularyFiles(
            files=contents,
            options=named_languages | {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate},
            described=ids | {"vocab_size": size, "decoder_vocab_size": size},
            generation=ids
            | {"forced_eos_token_id": eos}
            | ({} if forced is None else {"forced_bos_token_id": forced}),
            rows=(rows[0], rows[1]),
        )


def _tokenizer(
    spm: Path, file: Path, size: int, special: SpecialIds, start: Sequence[int] = ()
) -> MarianTokenizer:
    numbers = read_json(file)
    words = words_by_id(file, numbers, size)
    for word, index in (("</s>", special.eos), ("<pad>", special.pad)):
        if numbers.get(word, index) != index:
            raise UserError(f"{file}: {word} is {numbers[word]}, and {index} in {CONFIG}")
    model, _ = read_sentencepiece(spm)
    with prefixed_errors(f"{spm.parent}: "):
        return MarianTokenizer(model, words, special, start)


def _order(tokenizer: Tokenizer, special: SpecialIds) -> list[int]:
    """Our ids in Marian's order, without <pad> and <bos>: </s>, <unk>, then words."""
    first = [special.eos, special.unk]
    apart = {*first, special.pad, special.bos}
    return first + [index for index in range(tokenizer.vocab_size) if index not in apart]


def _numbered(tokenizer: Tokenizer, rows: list[int]) -> dict[str, int]:
    """Every piece and its id there."""
    pieces = [tokenizer.pieces([index])[0] if index >= 0 else f"<unused {n}>" for n, index in enumerate(rows)]
    return {piece: number for number, piece in enumerate([*pieces[:-1], "<pad>"])}


def _sentencepiece(tokenizer: Tokenizer) -> bytes | None:
    """The SentencePiece model, if it has one. Raises UserError if its texts begin with codes."""
    match tokenizer:
        case MarianTokenizer():
            return tokenizer.model
        case SentencePieceTokenizer():
            if tokenizer.has_codes:
                raise UserError(
                    "texts of this run begin with the codes of their languages (--data.directions), or with "
                    "tags (--data.default-tag), which Marian models do not have: it cannot be exported"
                )
            return tokenizer.content()
        case _:
            return None


MARIAN = Family(
    "marian",
    _options,
    Storage(
        BART.storage.tensor,
        sines_first=True,
        check=_check,
        adjusted=_with_start,
        more_tensors=_positions,
        harmless=BART.storage.harmless,
    ),
    MarianVocabulary,
    model_class="MarianMTModel",
    describe=_describe,
    refuses=WITHOUT_LANGUAGES,
)
