"""Reads and writes the pieces of a pretrained model: tokenizer.json, or the files that are older than that.

SentencePiece models are read by SentencePiece itself, which segmented the text that the model was trained on.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.lossless import opened
from transformer.data.tokenizers.pieces import PiecesTokenizer
from transformer.data.tokenizers.tokenizer import CODE
from transformer.interop.folders.family import (
    Family,
    Opened,
    Request,
    Tokenizers,
    Vocabulary,
    VocabularyFiles,
)
from transformer.interop.folders.folder import CONFIG, TOKENIZER, naming, read_json, tokenizer_options
from transformer.interop.folders.search import forced_start
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, brief, brief_json, parse_object, read_bytes, read_text
from transformer.runtime.machine import library

PIECES = "tokenizer.json"
SPECIAL = "special_tokens_map.json"
VOCABULARY = "vocab.json"
MERGES = "merges.txt"
WORDS = "vocab.txt"
SPIECE = "spiece.model"
BPE = "sentencepiece.bpe.model"
MODELS = (SPIECE, BPE, "source.spm")
MOST_ADDED = 100_000  # words that a number in tokenizer_config.json adds: published models have 103 at most
BYTES = "ByT5Tokenizer"
"""The class of a tokenizer that has no files."""
_BYTE_SPECIAL = ("<pad>", "</s>", "<unk>")
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
M2M_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he "
    "hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl "
    "no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi "
    "yo zh zu"
)
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""The classes of tokenizers that `transformers` makes of any tokenizer.json."""
SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
LANGUAGES = {"m2m100": M2M_100.split(), "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]}
"""Languages of M2M-100 and of the model for WMT 2021, in the order of their codes."""


Around = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids before a text, and after it."""


@dataclass(frozen=True)
class HubPieces:
    """The content of a tokenizer.json."""

    content: str
    path: Path
    """The file that it comes from, for messages."""

    is_generic: bool = False
    """Whether nothing but tokenizer.json describes the tokenizer: a class of no family reads it."""

    def around(self) -> Around | None:
        """What the files say is put before and after every text. None: they do not say it."""
        with naming(self.path):
            ends = HubTokenizer.around(self.content)
        return ((), ()) if ends is None and self.is_generic else ends

    def id_of(self, piece: str) -> int | None:
        with naming(self.path):
            return HubTokenizer.id_in(self.content, piece)

    def tokenizer(self, size: int, special: SpecialIds, start: Sequence[int] = ()) -> HubTokenizer:
        """The tokenizer of a side, whose texts begin with `start`. The last of the `size` rows of the model's
        embedding may have no piece."""
        with naming(self.path):
            return HubTokenizer(self.content, size, special, start)


@dataclass(frozen=True)
class ListedPieces:
    """A SentencePiece model, and the pieces in the order of their ids."""

    model: bytes
    words: Sequence[str | None]
    apart: Sequence[str]
    """Pieces beside those of text."""

    def around(self) -> Around | None:
        return None

    def id_of(self, piece: str) -> int | None:
        return self.words.index(piece) if piece in self.words else None

    def tokenizer(self, size: int, special: SpecialIds, start: Sequence[int] = ()) -> PiecesTokenizer:
        if len(self.words) > size:
            raise UserError(f"its vocabulary has the id {len(self.words) - 1}, and the model has {size} rows")
        words = [*self.words, *[None] * (size - len(self.words))]
        return PiecesTokenizer(self.model, words, special, start, self.apart)


Pieces = HubPieces | ListedPieces
"""What tokenizers are made of."""


Older = Callable[[Path], Pieces | None]
"""Reads files that are older than tokenizer.json; returns None if a folder has none."""


def read_pieces(folder: Path, older: Older = lambda folder: None) -> Pieces:
    """The pieces of a folder.

    Args:
      folder: with config.json, and tokenizer.json or what is older than that.
      older: reads that.

    Raises:
      UserError: there is none, or it is damaged.
    """
    if (folder / PIECES).exists():
        class_name = tokenizer_options(folder).get("tokenizer_class")
        return HubPieces(_hub(folder), folder / PIECES, class_name in GENERIC)
    tokenizer = tokenizer_options(folder).get("tokenizer_class")
    older = of_file(TOKENIZER, _bytes) if tokenizer == BYTES else older
    if pieces := older(folder):
        return pieces
    raise UserError(
        f"{folder / PIECES}: no such file. Load the tokenizer with AutoTokenizer.from_pretrained of "
        "transformers, and save it with save_pretrained: that writes one"
        + (f", if the class of the tokenizer, {tokenizer}, has a fast version" if tokenizer else "")
    )


# tokenizer.json


def read_hub_file(path: Path) -> str:
    """The content of a tokenizer.json. Raises UserError if it cannot be read."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _hub(folder: Path) -> str:
    content = read_hub_file(folder / PIECES)
    cleans = tokenizer_options(folder).get("clean_up_tokenization_spaces") is True
    return _cleaning(content) if cleans else content


def _cleaning(content: str) -> str:
    """With a decoder that takes out the spaces before signs and clitics, as `transformers` does if a folder
    asks for it; not after BPE."""
    tokenizer = parse_object(content)
    if "merges" in tokenizer["model"]:
        return content
    before = [tokenizer["decoder"]] if tokenizer["decoder"] else []
    replaced = [
        {"type": "Replace", "pattern": {"String": spaced}, "content": spaced.strip(" ")} for spaced in SPACED
    ]
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [*before, {"type": "Fuse"}, *replaced]}
    return json.dumps(tokenizer, ensure_ascii=False)


def of_file(name: str, make: Callable[[Path, Json], str]) -> Older:
    """Reads a file by a function that makes a tokenizer.json of it and those beside it."""

    def read(folder: Path) -> HubPieces | None:
        path = folder / name
        try:
            return HubPieces(make(folder, tokenizer_options(folder)), path) if path.exists() else None
        except UserError:
            raise
        except Exception as error:  # the library raises no others
            raise UserError(f"{path} and what belongs to it cannot be read: {error}") from error

    return read


# SentencePiece models


def read_sentencepiece(path: Path) -> tuple[bytes, list[str]]:
    """A SentencePiece model and its pieces. Raises UserError if it cannot be read, or is none."""
    try:
        model = read_bytes(path)
        return model, opened(model)[1]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except RuntimeError as error:
        raise UserError(f"{path} is not a SentencePiece model") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def of_sentencepiece(layout: Callable[[Path, list[str]], list[str | None]]) -> Older:
    """Reads a SentencePiece model by a function that returns its pieces, and others, in the order of the
    ids."""

    def read(folder: Path) -> ListedPieces | None:
        path = next((folder / name for name in MODELS if (folder / name).exists()), None)
        if path is None:
            return None
        model, pieces = read_sentencepiece(path)
        words = layout(folder, pieces)
        apart = [word for word in words if word is not None and word not in pieces[3:]]
        return ListedPieces(model, words, apart)

    return read


def t5_words(folder: Path, pieces: list[str]) -> list[str | None]:
    """The pieces, then the sentinels, of which <extra_id_0> is the last."""
    sentinels = _number_of_words(folder, "extra_ids", 100)
    return [*pieces, *(f"<extra_id_{number}>" for number in reversed(range(sentinels)))]


def pegasus_words(folder: Path, pieces: list[str]) -> list[str | None]:
    """Two pieces, two masks and 101 that stand for nothing, then the other pieces."""
    offset = _number_of_words(folder, "offset", 103)
    unused = [f"<unk_{number}>" for number in range(2, offset)]
    return [*pieces[:2], "<mask_1>", "<mask_2>", *unused, *pieces[2:]]


def _number_of_words(folder: Path, name: str, default: int) -> int:
    """How many words an option of tokenizer_config.json adds to the pieces. Raises UserError if it is no
    number, or more than any vocabulary has."""
    number = tokenizer_options(folder).get(name, default)
    if type(number) is not int or not 0 <= number <= MOST_ADDED:
        raise UserError(
            f"{folder / TOKENIZER}: {name} is {brief_json(number)}, not a whole number from 0 to "
            f"{MOST_ADDED:,}"
        )
    return number


def fairseq_words(folder: Path, pieces: list[str]) -> list[str | None]:
    """mBART-50 and NLLB: the ids of pieces plus one, codes, mask."""
    codes = [word for word in _named(folder) if CODE.fullmatch(word)]
    if not codes:
        raise UserError(
            f"{folder}: neither {SPECIAL} nor {TOKENIZER} lists the codes of its languages as "
            "additional_special_tokens"
        )
    return [*FAIRSEQ, *pieces[3:], *codes, "<mask>"]


def m2m_100_words(folder: Path, pieces: list[str]) -> list[str | None]:
    """vocab.json, then the codes; or the layout of NLLB."""
    path = folder / VOCABULARY
    if not path.exists():
        return fairseq_words(folder, pieces)
    ids = read_json(path)
    words = words_by_id(path, ids, len(ids))
    codes = tokenizer_options(folder).get("language_codes", "m2m100")
    if codes not in LANGUAGES:
        raise UserError(
            f"{folder / TOKENIZER}: language_codes is {codes!r}; known are {', '.join(LANGUAGES)}"
        )
    return [*words, *(f"__{language}__" for language in LANGUAGES[codes])]


def words_by_id(path: Path, ids: Json, size: int) -> list[str | None]:
    """Words in the order of their ids; None: no word has this one.

    Args:
      path: of the file, for messages.
      ids: of the words.
      size: how many ids there are.

    Raises:
      UserError: an id is not below `size`, or that of two words.
    """
    words: list[str | None] = [None] * size
    for word, index in ids.items():
        if type(index) is not int or not 0 <= index < size:
            raise UserError(f"{path}: the id of {brief(word)} is {brief_json(index)}, not one below {size}")
        if words[index] is not None:
            raise UserError(f"{path}: {words[index]!r} and {brief(word)} have the same id {index}")
        words[index] = word
    return words


def _named(folder: Path) -> list[str]:
    """The additional special tokens of a folder. Raises UserError if one is no token: the ids of the others
    depend on it."""
    path = folder / SPECIAL
    described = tokenizer_options(folder) | (read_json(path) if path.exists() else {})
    listed = described.get("additional_special_tokens") or described.get("extra_special_tokens") or []
    if not isinstance(listed, list | dict):
        raise UserError(f"{path}: additional_special_tokens is {brief_json(listed)}, not a list")
    words: list[Any] = [word.get("content") if isinstance(word, dict) else word for word in listed]
    for word in words:
        if not isinstance(word, str):
            raise UserError(f"{path}: additional_special_tokens has {brief_json(word)}, which is no token")
    return words


# Other files


def byte_level(folder: Path, options: Json) -> str:
    """vocab.json and merges.txt: byte-level BPE, as in BART."""
    tokenizers = library("tokenizers")
    lines = read_text(folder / MERGES).splitlines()
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    ids = read_json(folder / VOCABULARY)
    words_by_id(folder / VOCABULARY, ids, len(ids))  # the library writes all ids below the largest
    bpe = library("tokenizers.models").BPE(vocab=ids, merges=merges)
    tokenizer = tokenizers.Tokenizer(bpe)
    spaced = options.get("add_prefix_space") is True
    tokenizer.pre_tokenizer = library("tokenizers.pre_tokenizers").ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = library("tokenizers.decoders").ByteLevel()
    tokenizer.add_special_tokens([*FAIRSEQ, tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    return str(tokenizer.to_str())


def word_pieces(folder: Path, options: Json) -> str:
    """vocab.txt: WordPiece, as in BERT."""
    tokenizers = library("tokenizers")
    words = read_text(folder / WORDS).split("\n")
    words = words[:-1] if not words[-1] else words
    vocabulary = {word: index for index, word in enumerate(words)}
    model = library("tokenizers.models").WordPiece(vocab=vocabulary, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = library("tokenizers.normalizers").BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),
        lowercase=options.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = library("tokenizers.pre_tokenizers").BertPreTokenizer()
    tokenizer.decoder = library("tokenizers.decoders").WordPiece(prefix="##")
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return str(tokenizer.to_str())


def _bytes(folder: Path, options: Json) -> str:
    """The bytes of UTF-8 after three special tokens, as in ByT5 (Xue et al. 2022), then the sentinels."""
    tokenizers = library("tokenizers")
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]  # BPE shows others as U+0100...
    shown = {byte: chr(byte) for byte in printed}
    shown |= {byte: chr(256 + n) for n, byte in enumerate(sorted({*range(256)}.difference(printed)))}
    vocabulary = {shown[byte]: byte + len(_BYTE_SPECIAL) for byte in range(256)}
    model = library("tokenizers.models").BPE(
        vocab={word: index for index, word in enumerate(_BYTE_SPECIAL)} | vocabulary, merges=[]
    )
    tokenizer = tokenizers.Tokenizer(model)
    levels = {"add_prefix_space": False, "use_regex": False}
    tokenizer.pre_tokenizer = library("tokenizers.pre_tokenizers").ByteLevel(**levels)
    tokenizer.decoder = library("tokenizers.decoders").ByteLevel()
    sentinels = _named(folder) or [f"<extra_id_{n}>" for n in range(125)]
    tokenizer.add_special_tokens([*_BYTE_SPECIAL, *sentinels])
    return str(tokenizer.to_str())


# Writes such files for vocabularies that SentencePiece segments.


Written = tuple[dict[str, bytes], Json]
"""The content of files, and the options of tokenizer_config.json besides special words."""


def written_pieces(tokenizer: PiecesTokenizer) -> Written | None:
    """The files of a vocabulary. None: no family has its words in this order."""
    words = list(tokenizer.words)
    while words and words[-1] is None:  # rows without a word
        words.pop()
    return next(_layouts(tokenizer.model, words, opened(tokenizer.model)[1]), None)


def _layouts(model: bytes, words: list[str | None], pieces: list[str]) -> Iterator[Written]:
    """The layouts that a vocabulary has."""
    count = len(pieces)
    if words[:count] == pieces:
        sentinels = len(words) - count
        if words[count:] == [f"<extra_id_{number}>" for number in reversed(range(sentinels))]:
            yield {SPIECE: model}, {"tokenizer_class": "T5Tokenizer", "extra_ids": sentinels}
    if words[:2] == pieces[:2] and words[2:4] == ["<mask_1>", "<mask_2>"]:
        offset = len(words) - count
        if words[offset + 2 :] == pieces[2:]:
            yield {SPIECE: model}, {"tokenizer_class": "PegasusTokenizer", "offset": offset}
    begins = [*FAIRSEQ, *pieces[3:]]
    codes = [word for word in words[len(begins) : -1] if word and CODE.fullmatch(word)]
    if words == [*begins, *codes, "<mask>"]:
        tokenizer_class = "NllbTokenizer" if codes and len(codes[0]) > len("en_XX") else "MBart50Tokenizer"
        yield {BPE: model}, {"tokenizer_class": tokenizer_class, "additional_special_tokens": codes}
    for name, languages in LANGUAGES.items():
        named = [f"__{language}__" for language in languages]
        text_words = words[: -len(named)]
        if words[-len(named) :] == named and None not in text_words:
            ids = {word: index for index, word in enumerate(text_words)}
            content = json.dumps(ids, ensure_ascii=False, indent=1).encode()
            options = {"tokenizer_class": "M2M100Tokenizer", "language_codes": name}
            yield {BPE: model, VOCABULARY: content}, options


# One vocabulary for source and target, as most families have it.


SIDES = ("source", "target")
UNKNOWN = ("<unk>", "[UNK]")
"""Names of the unknown word, of which the first that exists counts."""


class HubVocabulary(Vocabulary):
    """A tokenizer.json, or the files that are older than that."""

    def __init__(self, folder: Path, family: Family[Any]) -> None:
        self._family = family
        self._pieces = read_pieces(folder, family.older)
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

    def tokenizers(self, opened: Opened, model: TransformerConfig, request: Request) -> Tokenizers:
        if not self._family.has_codes:
            return self._without_codes(opened.described, model)
        self._check_codes(opened.described, model)
        plain = self._tokenizer(model, ())
        source, target = (
            plain.in_language(language, f"--{side}-language")
            for language, side in zip((request.source_language, request.target_language), SIDES, strict=True)
        )
        return source, target

    def _without_codes(self, described: Json, model: TransformerConfig) -> Tokenizers:
        """Texts begin as the files say; targets as a search is forced to begin, if it is."""
        begin, end = self._around or (self._first(), (model.special.eos,))
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

    def _first(self) -> tuple[int, ...]:
        """What a family puts before a text, as far as the vocabulary has it."""
        piece = self._family.begins_with
        named = self._about.get("cls_token", piece) if piece else None
        name = named.get("content") if isinstance(named, dict) else named
        index = self._pieces.id_of(name) if isinstance(name, str) else None
        return () if index is None else (index,)

    def _check_codes(self, described: Json, model: TransformerConfig) -> None:
        """Raises UserError if the code of its language is not what a text begins with."""
        tokenizer_class = str(self._about.get("tokenizer_class")).removesuffix("Fast")
        ends = "models whose texts end with the code of their language, such as mBART-25, are not supported"
        starts = {described["decoder_start_token_id"], self._start_in_training} - {None}
        if starts != {model.special.eos}:
            raise UserError(f"decoder_start_token_id is no </s>: {ends}")
        if tokenizer_class == "MBartTokenizer":
            raise UserError(f"tokenizer_class is {tokenizer_class}: {ends}")
        if self._about.get("legacy_behaviour") is True:
            raise UserError(f"legacy_behaviour is true: {ends}")

    def _tokenizer(self, model: TransformerConfig, start: Sequence[int]) -> HubTokenizer | PiecesTokenizer:
        return self._pieces.tokenizer(model.vocab_size, model.special, start)

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        source, target = tokenizers
        is_own = type(source) in (HubTokenizer, PiecesTokenizer) and type(target) is type(source)
        if not is_own or not isinstance(source, HubTokenizer | PiecesTokenizer):
            return None  # subclasses are tokenizers of other families
        written = _written(source)
        if written is None:
            return None
        files, options = written
        special = config.model.special
        is_forced = bool(target.start) and target.forces_start
        same = range(config.model.vocab_size)
        ids = {"pad_token_id": special.pad, "decoder_start_token_id": special.bos}
        ids["eos_token_id"] = special.eos
        names = ("unk_token", "pad_token", "eos_token", "bos_token")
        begins = () if source.has_codes else source.start[:1]
        indices = [special.unk, special.pad, special.eos, *(begins or [special.bos])]
        options |= dict(zip(names, source.stored_pieces(indices), strict=True))
        return VocabularyFiles(
            files=files,
            options=options,
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
