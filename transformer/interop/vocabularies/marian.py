"""Marian's vocabularies: source.spm and target.spm cut text into pieces, vocab.json numbers them.

There <pad> comes last, and there is no <bos>: decoding starts with <pad>, whose vector is zero.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from transformer.config.model import SpecialIds
from transformer.config.options import Config, text_data
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.pieces import MarianTokenizer
from transformer.data.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.interop.folders.architecture import Architecture, Languages, Tokenizers, VocabularyFiles
from transformer.interop.folders.folder import CONFIG, TOKENIZER, read_json
from transformer.interop.folders.search import forced_start
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, read_bytes

NUMBERS = "vocab.json"
TARGET_NUMBERS = "target_vocab.json"
PIECES = ("source.spm", "target.spm")
LANGUAGES = ("source_lang", "target_lang")
"""Fields of tokenizer_config.json."""
WORD_LISTS = ("source_vocabulary.json", "target_vocabulary.json")
"""What CTranslate2 needs for separate vocabularies."""


class MarianVocabulary:
    """As `Vocabulary`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = [read_json(folder / NUMBERS)]
        if (folder / TARGET_NUMBERS).exists():
            self._numbers.append(read_json(folder / TARGET_NUMBERS))
        unk = self._numbers[0].get("<unk>")
        if type(unk) is not int:
            raise UserError(f"{folder / NUMBERS} has no <unk>")
        self.unk = unk
        self.ids: Json = {}

    def tokenizers(
        self, architecture: Architecture, described: Json, model: TransformerConfig, languages: Languages
    ) -> Tokenizers:
        """As `Vocabulary.tokenizers`."""
        if any(languages):
            raise UserError("--source-language, --target-language: the texts of Marian models need none")
        forced = forced_start(described, model.output_size)
        source, target = (
            _tokenizer(self._folder / pieces, numbers, size, model.special, start)
            for pieces, numbers, size, start in zip(
                PIECES,
                (self._numbers[0], self._numbers[-1]),
                (model.vocab_size, model.output_size),
                ((), forced),
                strict=True,
            )
        )
        return source, target

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        """As `Vocabulary.exported`."""
        models = [model for tokenizer in tokenizers if (model := _sentencepiece(tokenizer)) is not None]
        if len(models) < len(tokenizers):
            return None
        orders = [_order(tokenizer, config.model.special) for tokenizer in tokenizers]
        size = max(map(len, orders)) + 1
        rows = [[*order, *[-1] * (size - len(order))] for order in orders]  # <pad> is the last one
        numbers = [_numbered(*pair) for pair in zip(tokenizers, rows, strict=True)]
        separate = config.model.share_embeddings != "all"
        languages = zip(LANGUAGES, text_data(config).languages, strict=True)
        about: Json = {name: language for name, language in languages if language}
        contents = dict(zip(PIECES, models, strict=True))
        contents[NUMBERS] = _json(numbers[0])
        contents[TOKENIZER] = _json(
            about | {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
        )
        if separate:
            contents[TARGET_NUMBERS] = _json(numbers[1])
            contents |= {
                name: _json([*words][:-1])  # without <pad>
                for name, words in zip(WORD_LISTS, numbers, strict=True)
            }
        pad, eos = size - 1, 0
        ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": eos, "bos_token_id": eos}
        target = tokenizers[1]
        forced = rows[1].index(target.start[0]) if target.start and target.forces_start else None
        return VocabularyFiles(
            files=contents,
            described=ids | {"vocab_size": size, "decoder_vocab_size": size},
            generation=ids
            | {"forced_eos_token_id": eos}
            | ({} if forced is None else {"forced_bos_token_id": forced}),
            rows=(rows[0], rows[1]),
        )


def _tokenizer(
    spm: Path, numbers: Json, size: int, special: SpecialIds, start: Sequence[int] = ()
) -> MarianTokenizer:
    words: list[str | None] = [None] * size
    for word, index in numbers.items():
        if type(index) is not int or not 0 <= index < size:
            raise UserError(f"{spm.parent}: the id of {word!r} is {index!r}, not one below {size}")
        if words[index] is not None:
            raise UserError(f"{spm.parent}: {words[index]!r} and {word!r} have the same id {index}")
        words[index] = word
    for word, index in (("</s>", special.eos), ("<pad>", special.pad)):
        if numbers.get(word, index) != index:
            raise UserError(
                f"{spm.parent}: {word} is {numbers[word]} in the vocabulary and {index} in {CONFIG}"
            )
    try:
        return MarianTokenizer(read_bytes(spm), words, special, start)
    except OSError as error:
        raise UserError(f"{spm} cannot be read: {error.strerror}") from error
    except RuntimeError as error:
        raise UserError(f"{spm} is not a SentencePiece model") from error
    except UserError as error:
        raise UserError(f"{spm.parent}: {error}") from error


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
                    "texts of this run begin with the codes of their languages (--data.directions), which "
                    "Marian models do not have: it cannot be exported"
                )
            return tokenizer.content()
        case _:
            return None


def _json(content: Json | list[str]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
