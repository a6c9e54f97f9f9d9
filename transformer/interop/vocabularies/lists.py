"""Lists of words: the vocabularies of torch.nn.Transformer and of CTranslate2."""

from collections.abc import Sequence
from pathlib import Path

from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.words import WhitespaceTokenizer
from transformer.interop.folders.architecture import Architecture, Languages, Tokenizers, VocabularyFiles
from transformer.interop.folders.folder import CONFIG, naming, read_json
from transformer.interop.vocabularies.files import PIECES
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, parse_json, read_text

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


# Vocabularies of CTranslate2: lists of words, in any order.


_PADDING = ("<blank>", "<pad>", "[PAD]")
_NAMES = ("vocabulary.txt", "vocabulary.json")


class ListVocabulary:
    """As `Vocabulary`: source_vocabulary.json and target_vocabulary.json, or shared_vocabulary.json, or the
    same with `.txt`. Here the special words are the first four. Texts are words between spaces."""

    unk = 3

    def __init__(self, folder: Path) -> None:
        about = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
        with naming(folder / CONFIG):
            bos, eos, unk = (
                str(about.get(f"{name}_token", default))
                for name, default in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))
            )
            if (start := about.get("decoder_start_token", bos)) != bos:
                raise UserError(
                    f"decoder_start_token is {start!r}: this was converted from a model of another kind; "
                    "import that one"
                )
        self._starts = about.get("add_source_bos") is True
        self._words, orders = [], []
        for side in ("source", "target"):
            words = _words(folder, side)
            if missing := {bos, eos}.difference(words):
                raise UserError(f"{folder}: the vocabulary has no {' and no '.join(sorted(missing))}")
            special = [next(filter(words.__contains__, _PADDING), ""), bos, eos, unk]
            others = [word for word in words if word not in special]
            rows = {unk: len(words)} | {word: row for row, word in enumerate(words)}
            self._words.append(others)
            orders.append([rows.get(word, -1) for word in (*special, *others)])
        self.ids: Json = {
            **{"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2},
            "vocab_size": len(orders[0]),
            "target_vocab_size": len(orders[1]),
            "orders": orders,
            "source_end": about.get("add_source_eos") is True,
        }

    def tokenizers(
        self, architecture: Architecture, described: Json, model: TransformerConfig, languages: Languages
    ) -> Tokenizers:
        """As `Vocabulary.tokenizers`."""
        if any(languages):
            raise UserError("--source-language, --target-language: texts of this model have no code")
        source, target = self._words
        start = [model.special.bos] if self._starts else []
        return WhitespaceTokenizer(source, model.special, start), WhitespaceTokenizer(target, model.special)

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        """As `Vocabulary.exported`."""
        return None


def _words(folder: Path, side: str) -> list[str]:
    names = [f"{kind}_{name}" for kind in (side, "shared") for name in _NAMES]
    paths = [folder / name for name in names if (folder / name).exists()]
    if not paths:
        raise UserError(f"{folder}: there is no {' and no '.join(names)}")
    path = paths[0]
    with naming(path):
        try:
            content = read_text(path)
        except OSError as error:
            raise UserError(f"it cannot be read: {error.strerror}") from error
        words = parse_json(content) if path.suffix == ".json" else content.removesuffix("\n").split("\n")
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise UserError("it is not a list of words")
        if len(set(words)) < len(words):
            raise UserError("a word is in it twice")
    return words
