"""Vocabularies of models that were trained with torch.nn.Transformer: lists of words, or tokenizer.json."""

from collections.abc import Sequence
from pathlib import Path

from transformer.config import Config, SpecialIds, TransformerConfig
from transformer.data.features.hub import HubTokenizer
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.words import WhitespaceTokenizer
from transformer.interop.architectures.architecture import (
    Architecture,
    Languages,
    Tokenizers,
    VocabularyFiles,
)
from transformer.interop.reading import CONFIG, read_json
from transformer.interop.vocabularies.files import PIECES
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, read_text

SIDES = ("source", "target")
LIST = "vocabulary.txt"


class WordVocabulary:
    """As `Vocabulary`: for each side or for both a list of words (source_vocabulary.txt, vocabulary.txt), one
    a line in the order of the ids, or a tokenizer.json (source_tokenizer.json, tokenizer.json)."""

    def __init__(self, folder: Path) -> None:
        unk = read_json(folder / CONFIG).get("unk_token_id")
        if type(unk) is not int:
            raise UserError(f"unk_token_id is {unk!r}, not an id")
        self.unk = unk
        self.ids: Json = {}
        self._paths = [_path(folder, side) for side in SIDES]

    def tokenizers(
        self, architecture: Architecture, described: Json, model: TransformerConfig, languages: Languages
    ) -> Tokenizers:
        """As `Vocabulary.tokenizers`."""
        if any(languages):
            raise UserError("--source-language, --target-language: texts of this model have no code")
        begins = described.get("source_begins_with_bos", True)
        start = [model.special.bos] if begins else []
        source, target = self._paths
        return (
            _tokenizer(source, model.vocab_size, model.special, start),
            _tokenizer(target, model.output_size, model.special, ()),
        )

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        """As `Vocabulary.exported`."""
        return None


def _path(folder: Path, side: str) -> Path:
    names = [f"{side}_{LIST}", f"{side}_{PIECES}", LIST, PIECES]
    lists = [folder / name for name in names if (folder / name).exists()]
    if not lists:
        raise UserError(f"{folder}: there is no {' and no '.join(names)}")
    return lists[0]


def _tokenizer(path: Path, size: int, special: SpecialIds, start: Sequence[int]) -> Tokenizer:
    try:
        content = read_text(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if path.suffix == ".json":
        return HubTokenizer(content, size, special, start)
    words = content.removesuffix("\n").split("\n")
    if len(words) != size:
        raise UserError(f"{path} has {len(words)} lines, and the model has {size} words")
    known = {special.pad, special.bos, special.eos, special.unk}
    return WhitespaceTokenizer(
        [word for index, word in enumerate(words) if index not in known], special, start
    )
