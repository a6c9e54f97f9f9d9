"""The tokenizers of pretrained models: what the library `tokenizers` reads from their tokenizer.json."""

import base64
import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple
from typing import Any

from transformer.config.model import SpecialIds
from transformer.data.tokenizers.lossless import (
    BYTES,
    MOST_GROWTH,
    SPACE,
    check_growth,
    check_pieces,
    longest_replacement,
    to_utf8,
)
from transformer.data.tokenizers.tokenizer import ImportedTokenizer, Tokenizer, codes
from transformer.runtime.errors import UserError, abbreviated
from transformer.runtime.files import Json, brief_json, fault_of, parse_object
from transformer.runtime.machine import library

# How the pieces of a vocabulary mark the beginnings of words.


PART = "\N{REPLACEMENT CHARACTER}"
"""Stands for a part of a character."""


class Plain:
    """How pieces are written if a mark stands for each space."""

    def spelled(self, pieces: Sequence[str]) -> str:
        """The text of consecutive pieces, with U+2581 for a space."""
        return "".join(pieces)

    def shown(self, pieces: Sequence[str]) -> str:
        """The text of consecutive pieces, for display."""
        return self.spelled(pieces)

    def stored(self, word: str) -> str:
        """The piece of a whole word."""
        return word


class WordPieces(Plain):
    """How pieces are written if ## stands before those that continue a word."""

    def spelled(self, pieces: Sequence[str]) -> str:
        return "".join(piece[2:] if piece.startswith("##") else SPACE + piece for piece in pieces)

    def shown(self, pieces: Sequence[str]) -> str:
        return "".join(pieces)


class ByteLevel(Plain):
    """How pieces are written if a character stands for each byte (Radford et al. 2019): the printable ones of
    Latin-1 for themselves, and those from U+0100 on for the other bytes."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = sorted(set(range(256)) - set(printable))
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(0x100 + number): byte for number, byte in enumerate(others)}

    def spelled(self, pieces: Sequence[str]) -> str:
        return b"".join(map(self._written, pieces)).decode(errors="replace").replace(" ", SPACE)

    def stored(self, word: str) -> str:
        characters = {byte: character for character, byte in self._bytes.items()}
        return "".join(characters[byte] for byte in word.encode())

    def _written(self, piece: str) -> bytes:
        """The bytes of a piece. One that was added to the vocabulary is text."""
        try:
            return bytes(map(self._bytes.__getitem__, piece))
        except KeyError:
            return piece.encode()


MARKS: dict[str, type[Plain]] = {"ByteLevel": ByteLevel, "WordPiece": WordPieces}
"""How pieces are written, by the decoder that a tokenizer.json names."""


_BYTE = re.compile("<0x[0-9A-F]{2}>")
_TIME = re.compile(r"<\|\d+\.\d\d\|>")
"""A token of time, such as <|0.00|>, the begin of a segment in Whisper."""


class HubTokenizer(ImportedTokenizer):
    """Text to ids as in the model's training.

    Args:
      model: the content of a tokenizer.json.
      size: rows of the model's embedding, of which the last may have no piece.
      special: the ids that are not text.
      start: ids that begin every text, such as the code of its language. A search is forced to begin with
        those of the target.

    Raises:
      UserError: `tokenizers` is not installed, `model` is not a tokenizer.json, or an id is not below `size`.
    """

    kind = "hub"

    def __init__(self, model: str, size: int, special: SpecialIds, start: Sequence[int] = ()) -> None:
        super().__init__(special, start)
        self._tokenizer = _read(model)
        words = self._tokenizer.get_vocab(with_added_tokens=True)
        check_pieces(words, start)
        self.model, self.vocab_size = model, size
        largest = max([*words.values(), *astuple(special), *start])
        if largest >= size:
            raise UserError(f"its vocabulary has the id {largest}, and the model has {size} rows")

    @classmethod
    def read(cls, saved: Json) -> "HubTokenizer":
        """The tokenizer of a parsed `content`. Raises KeyError, TypeError or UserError for others."""
        special = SpecialIds(**saved["special"])
        start = [int(index) for index in saved["start"]]
        return cls(saved["model"], saved["size"], special, start).as_saved(saved)

    def content(self) -> bytes:
        saved = {"kind": self.kind, "special": asdict(self.special), "size": self.vocab_size}
        saved |= {"start": self.start, **self.saved(), "model": self.model}
        return json.dumps(saved, ensure_ascii=False).encode()

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _from_content, (self.content(),)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            to_utf8(text)
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[*self.start, *encoding.ids] for encoding in encodings]

    def knows(self, text: str) -> bool:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return self.special.unk not in encoding.ids and not any(map(_BYTE.fullmatch, encoding.tokens))

    @functools.cached_property
    def _silent(self) -> set[int]:
        """Ids that spell nothing."""
        added = self._tokenizer.get_added_tokens_decoder()
        silent = {i for i, token in added.items() if token.special or _TIME.fullmatch(token.content)}
        return silent | set(astuple(self.special)[:3])

    def decode(self, ids: Iterable[int]) -> str:
        spelled = [index for index in self._checked(ids) if index not in self._silent]
        if self._added_words.keys().isdisjoint(spelled):
            text: str = self._tokenizer.decode(spelled, skip_special_tokens=False)
            return text
        pieces = [self._piece(index) for index in spelled]
        joined: str = self._tokenizer.decoder.decode([piece for piece in pieces if piece is not None])
        return joined

    def _piece(self, index: int) -> str | None:
        """What the library's decoder reads for an id."""
        piece: str | None = self._added_words.get(index) or self._tokenizer.id_to_token(index)
        return piece

    @functools.cached_property
    def _added_words(self) -> dict[int, str]:
        """Words that were added to the vocabulary, as pieces from which the library's decoder makes text."""
        tokenizer = self._tokenizer
        added = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}
        added = {i: word for i, word in added.items() if i not in self._silent}
        if not added or not tokenizer.decoder:
            return {}
        some = next(iter(added.values()))
        ids = tokenizer.encode(f"{some} {some}", add_special_tokens=False).ids
        space = "" if " " in tokenizer.decode(ids) else SPACE  # which is lost before such words
        return {i: space + self._marks.stored(word) for i, word in added.items()}

    def _with_pieces(self, words: Sequence[str], codes: Sequence[str]) -> Tokenizer:
        tokenizers = library("tokenizers")
        grown = _Library(_guarded(tokenizers.Tokenizer.from_str, self.model))
        before = grown.get_vocab(with_added_tokens=True)
        grown.add_tokens(list(words))
        grown.add_special_tokens(list(codes))
        if isinstance(grown.pre_tokenizer, tokenizers.pre_tokenizers.Metaspace):
            grown.pre_tokenizer.prepend_scheme = "first"  # no space after an added word
        after = grown.get_vocab(with_added_tokens=True)
        added = [index for piece, index in after.items() if piece not in before]
        if len(added) < len(words) + len(codes):
            raise UserError("--data.add-tokens: some words are the same for this tokenizer; leave them out")
        if wrong := set(added) & {*astuple(self.special), *self.start}:
            raise UserError(f"--data.add-tokens: id {min(wrong)} is a special one without a token")
        size = max(self.vocab_size, 1 + max(added))
        return HubTokenizer(grown.to_str(), size, self.special, self.start).as_saved(self.saved())

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._special.get(i) or self._shown(i) for i in self._checked(ids)]

    def _shown(self, index: int) -> str:
        piece = self._piece(index)
        return f"<{index}>" if piece is None else self._marks.shown([piece])

    @functools.cached_property
    def ids_by_piece(self) -> dict[str, int]:
        """The id of each piece of text, without pieces that spell nothing or only a part of a character."""
        ids: dict[str, int] = {}
        for index in range(self.vocab_size):
            piece = self._piece(index)
            if piece is not None and index not in self._silent:
                ids.setdefault(self._marks.spelled([piece]), index)
        return {piece: index for piece, index in ids.items() if PART not in piece}

    def stored_pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces as the tokenizer.json has them."""
        return [self._tokenizer.id_to_token(index) or "" for index in ids]

    def spelled(self, text: str) -> str | None:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._marks.spelled([self._piece(index) or "" for index in ids])

    @functools.cached_property
    def _marks(self) -> Plain:
        decoder = self._tokenizer.decoder
        state = decoder.wrapped.__getstate__().decode() if decoder else ""
        return next((marks_class() for name, marks_class in MARKS.items() if f'"{name}"' in state), Plain())

    @functools.cached_property
    def added(self) -> dict[str, int]:
        """The id of each piece that was added to the vocabulary, such as <|en|>."""
        return {token.content: i for i, token in self._tokenizer.get_added_tokens_decoder().items()}

    @property
    def codes(self) -> dict[str, int]:
        """The id of the code of each language, such as eng_Latn; of __en__ it is en."""
        added = self._tokenizer.get_added_tokens_decoder()
        return codes({token.content: index for index, token in added.items()})

    @classmethod
    def around(cls, model: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The ids that the post-processor in the content of a tokenizer.json puts before and after a text.
        None: it has none. Raises UserError as this class."""
        tokenizer = _read(model)
        if tokenizer.post_processor is None:
            return None
        encoding = tokenizer.encode("a", add_special_tokens=True)
        added = [index for index, mask in enumerate(encoding.special_tokens_mask) if not mask]
        first, last = (added[0], added[-1] + 1) if added else (len(encoding.ids),) * 2
        return tuple(encoding.ids[:first]), tuple(encoding.ids[last:])

    @classmethod
    def id_in(cls, model: str, piece: str) -> int | None:
        """The id of a piece in the content of a tokenizer.json, or None. Raises UserError as this class."""
        index: int | None = _read(model).token_to_id(piece)
        return index


def _from_content(content: bytes) -> HubTokenizer:
    return HubTokenizer.read(json.loads(content))


_BLOCKS = range(0x80), range(0x80, 0x800, 17), range(0x800, 0xD800, 0x800), range(0xE000, 0x110000, 0x1000)
EVERY_BYTE = "".join(chr(code) for block in _BLOCKS for code in block)
"""A text with all bytes that UTF-8 has, of which most vocabularies know only a part."""


@functools.lru_cache(maxsize=1)  # source and target have the same one
def _read(model: str) -> Any:
    try:
        described = parse_object(model)
        _check_depth(described)
    except ValueError as error:
        raise UserError(f"not a tokenizer.json: {error}") from None
    try:
        tokenizer = _described(model, described)
    except UserError as error:
        raise UserError(
            f"not a tokenizer.json: {wrong}" if (wrong := _wrong_type(described)) else str(error)
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # which is for training: texts would be read in other ways each time
    tokenizer.encode(EVERY_BYTE, add_special_tokens=False)  # fails if what is unknown has no id
    return tokenizer


NESTED = 100
"""Depth of a tokenizer.json; the library reads 127, and models have 8."""


def _check_depth(value: Any, upper_bound: int = NESTED) -> None:
    """Raises ValueError if a value of JSON is nested more deeply than that."""
    if isinstance(value, dict | list):
        if not upper_bound:
            raise ValueError(f"nested more than {NESTED} deep")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, upper_bound - 1)


def _described(model: str, described: Json) -> Any:
    """The library's tokenizer. Raises UserError if it reads no such file, or one that lengthens texts."""
    try:
        parts = [described.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")]
        for part in (*parts, described.get("post_processor")):
            if (count := _count(part)) > MOST_GROWTH:
                raise ValueError(f"a sequence of {count} steps")
        growths = _growth(*parts[:2]), _growth(parts[2])
        _check_added(described.get("added_tokens") or [], _growth(parts[0]))
        single, any_number = (_copies(described.get("post_processor"), end) for end in (1, 2))
        _check_model(described.get("model") or {})
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"not a tokenizer.json: {fault_of(error)}") from None
    copies = any_number if single > 1 else 1  # templates of two texts are for what repeats one
    check_growth(max(growths[0] * copies * _ids_of_a_character(described.get("model") or {}), growths[1]))
    tokenizer = _Library(_guarded(library("tokenizers").Tokenizer.from_str, model))
    _check_blank(tokenizer)
    return tokenizer


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "a text": (
        (str,),
        "String Regex behavior content delimiter pad_token prefix prepend "
        "prepend_scheme replacement strategy suffix type version word_delimiter_token",
    ),
    "a text or null": (
        (str, type(None)),
        "continuing_subword_prefix end_of_word_suffix precompiled_charsmap unk_token",
    ),
    "true or false": (
        (bool,),
        "add_prefix_space byte_fallback clean_text cleanup fuse_unk handle_chinese_chars ignore_merges "
        "individual_digits invert lowercase lstrip normalized rstrip single_word special split strip_left "
        "strip_right trim_offsets use_regex",
    ),
    "true, false or null": ((bool, type(None)), "strip_accents"),
    "a whole number": (
        (int,),
        "max_input_chars_per_word max_length pad_id pad_type_id start stop stride type_id",
    ),
    "a whole number or null": ((int, type(None)), "pad_to_multiple_of unk_id"),
    "a number or null": ((int, float, type(None)), "dropout"),
    "a list": (
        (list,),
        "added_tokens cls decoders ids merges normalizers pair pretokenizers processors sep single tokens",
    ),
    "a list or an object": ((list, dict), "vocab"),
    "an object": ((dict,), "SpecialToken Sequence model pattern special_tokens"),
    "an object or null": (
        (dict, type(None)),
        "decoder normalizer padding post_processor pre_tokenizer truncation",
    ),
}
"""What a field of a tokenizer.json has to be: its types in Python, and the names of fields."""
_BY_NAME = {name: (types, words) for words, (types, names) in _TYPES.items() for name in names.split()}
_OF_ITEMS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("added_tokens", "normalizers", "pretokenizers", "decoders"), ((dict,), "an object")),
    **dict.fromkeys(("processors", "single", "pair", "special_tokens"), ((dict,), "an object")),
    "ids": ((int,), "a whole number"),
    "merges": ((str, list), "a text or a list of two"),
    "tokens": ((str,), "a text"),
    "item of merges": ((str,), "a text"),
    "vocab dict": ((int,), "a whole number"),
    "vocab list": ((list,), "a list"),
}
"""The same of the items of a field, whose names are those of words or numbers."""


LONGEST_PATH = 1000  # of a field in a message, in letters: files of models have none of 100


def _wrong_type(value: Any, path: str = "", name: str = "") -> str:
    """The first field of a tokenizer.json whose value has a type that the library refuses there, and which it
    is. Empty: there is none."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    of_items = _OF_ITEMS.get(f"{name} {type(value).__name__}" if name == "vocab" else name)
    for key, item in items if len(path) < LONGEST_PATH else ():
        where = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{abbreviated(key)}".removeprefix(".")
        id_types = _BY_NAME["type_id" if name == "item of added_tokens" else "type"]
        types, words = of_items or (id_types if key == "id" else _BY_NAME.get(str(key), ((object,), "")))
        is_switch = isinstance(item, bool) and not {bool, object} & {*types}
        if is_switch or not isinstance(item, types):
            return f"{where} is {brief_json(item)}, not {words}"
        if wrong := _wrong_type(item, where, f"item of {name}" if of_items else str(key)):
            return wrong
    return ""


LONGEST_WORD = 200
"""Characters of a word that WordPiece reads, or of a piece of Unigram, in time that grows as their cube;
BERT's has 100, and SentencePiece makes pieces of 16."""


LONGEST_MARK = 50
"""Characters of what the library writes for each character or token, such as [UNK], ## and </w>."""
MOST_NODES = 3_000_000
"""Nodes of Unigram's trie, for each of which the library takes 350 bytes; the 250,000 pieces of XLM-R have
fewer than 2,600,000 bytes together."""
MOST_ADDED = 1_000_000
"""Characters of all added tokens together, of which the library makes a trie; Whisper's have 17,000."""


def _check_added(tokens: Sequence[Json], growth: float) -> None:
    """Raises ValueError if the added tokens are long, of which some are made so many times as long."""
    texts = [(token.get("content", ""), token.get("normalized")) for token in tokens]
    if sum(len(text) * (1 if normalized is False else growth) for text, normalized in texts) > MOST_ADDED:
        raise ValueError(f"added_tokens have over {MOST_ADDED:,} characters together, as they are normalized")


def _check_blank(tokenizer: Any) -> None:
    """Raises UserError for an added token that is found between all characters, or at each of a run of spaces
    and takes all of them: time and memory would grow as the square of the run."""
    for token in tokenizer.get_added_tokens_decoder().values():
        text = token.content
        if token.normalized and tokenizer.normalizer:
            text = _guarded(tokenizer.normalizer.normalize_str, text)
        fault = "" if text else "normalized to nothing: set normalized to false, or leave it out"
        if text.isspace() and (token.lstrip or token.rstrip):
            fault = "blank and takes the spaces beside it: set lstrip and rstrip to false"
        if fault:
            raise UserError(f"not a tokenizer.json: the added token {brief_json(token.content)} is {fault}")


def _ids_of_a_character(model: Json) -> int:
    """How many ids a model makes of a character at most: with byte_fallback one of each byte, also of what it
    writes before or after it."""
    marks = (model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    return BYTES + len("".join(marks).encode()) if model.get("byte_fallback") else 1


def _nodes(pieces: Iterable[str]) -> int:
    """How many nodes a trie of the bytes of pieces has; of few bytes, at most."""
    encoded = [piece.encode() for piece in pieces]
    if (total := sum(map(len, encoded))) <= MOST_NODES:
        return total
    return total - sum(map(_same, *zip(*itertools.pairwise(sorted(encoded)), strict=True)))


def _same(one: bytes, other: bytes) -> int:
    """With how many of the same bytes two texts begin."""
    unlike = (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(unlike, min(len(one), len(other)))


def _check_model(model: Json) -> None:
    """Raises ValueError if the library would end the process: it takes the prefix off unseen; or read a word
    for long."""
    for name in "continuing_subword_prefix", "end_of_word_suffix", "unk_token":
        if len(model.get(name) or "") > LONGEST_MARK:
            raise ValueError(f"model.{name} has over {LONGEST_MARK} characters")
    if model.get("max_input_chars_per_word", 0) > LONGEST_WORD:
        raise ValueError(f"model.max_input_chars_per_word is over {LONGEST_WORD}")
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):
        pieces = [piece for piece, _ in vocabulary]
        if any(len(piece) > LONGEST_WORD for piece in pieces):
            raise ValueError(f"a piece of model.vocab has over {LONGEST_WORD} characters")
        if _nodes(pieces) > MOST_NODES:
            raise ValueError(f"a trie of model.vocab has over {MOST_NODES:,} nodes")
    prefix = model.get("continuing_subword_prefix")
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", []))
    if prefix and not all(second.startswith(prefix) for _, second in merges):
        raise ValueError("a merge continues a word without continuing_subword_prefix")


_FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 2, "StripAccents": 1, "Nmt": 1, "Strip": 1}
"""Steps that rewrite letters as Unicode does: how many letters each makes of one at most. In a row, in any
order and number, they make 18 at most, because none lengthens a text of lower case in NFKD."""
_ADDED = {
    "BertNormalizer": 2,  # spaces around a Chinese character
    "ByteLevel": 4,  # of a character four bytes, each of which becomes one, and a space before it
    "Metaspace": 1,  # before each word, which may be a character
    "WordPiece": 1,  # a space before each piece
}
_ADDED |= {
    name: 0
    for names in (
        "BPEDecoder BertPreTokenizer ByteFallback CTC CharDelimiterSplit Digits FixedLength Fuse Precompiled",
        "Prepend Punctuation Replace Sequence Split UnicodeScripts Whitespace WhitespaceSplit",
    )
    for name in names.split()
}
"""Other steps: how many characters each adds to one at most, besides what its fields say."""


def _growth(*parts: Any) -> float:
    """How many times as long steps of a tokenizer.json in a row, such as those of its normalizer, may make a
    text. Raises ValueError for a step of an unknown type."""
    total = row = 1.0
    for step in [step for part in parts for step in _flat(part)]:
        if step["type"] in _FORMS:
            row = min(row * _FORMS[step["type"]], max(_FORMS.values()))
        else:
            total, row = total * row * _factor(step), 1
    return total * row


def _factor(step: Any) -> float:
    """The same of one step that is no form of Unicode, by all its fields: the library reads some of a wrong
    type as if they had the one that their fields fit."""
    if step["type"] not in _ADDED:
        raise ValueError(f"a step of the unknown type {brief_json(step['type'])}")
    factor = 1.0 + _ADDED[step["type"]]
    if "pattern" in step and "content" in step:
        pattern, content = step["pattern"], step["content"]
        shortest = len(pattern.get("String", "")) or _shortest(pattern.get("Regex", ""))
        factor *= max(1, len(content) / shortest) if shortest else 1 + len(content)  # between all characters
    if "precompiled_charsmap" in step:
        factor *= max(1, longest_replacement(base64.b64decode(step["precompiled_charsmap"] or "")))
    if "" in (step.get("suffix"), step.get("word_delimiter_token")):
        factor *= 3  # spaces around all characters
    return factor * (1 + len(step.get("prepend", "")))


_ATOM = r"(?:\\A|\\z|\^|\$|(\\[nrst]|[^][\\(){}*?+|^$.])(?:\+|\{(\d{1,3}),\})?)"


def _shortest(expression: str) -> int:
    """The fewest characters that an expression fits, if that is plain, as of " {2,}": otherwise 0."""
    atoms = re.findall(_ATOM, expression) if re.fullmatch(f"{_ATOM}*", expression) else []
    return sum(int(times or 1) for letter, times in atoms if letter)


def _flat(part: Any) -> list[Any]:
    """A part of a tokenizer.json and all steps that it consists of, at any depth, in their order."""
    return [] if part is None else [part, *(inner for step in _steps(part) for inner in _flat(step))]


def _steps(part: Any) -> Sequence[Any]:
    """The parts that one of a tokenizer.json consists of: all lists, of which the library reads one."""
    names = "normalizers", "pretokenizers", "decoders", "processors"
    return [step for name in names for step in part.get(name, [])]


def _count(part: Any) -> int:
    """How many steps a part of a tokenizer.json consists of, at any depth."""
    return 1 if part is None else max(1, sum(map(_count, _steps(part))))


def _copies(part: Any, end: int) -> float:
    """How many times a post-processor repeats the pieces of a text. Raises ValueError if it is long.

    Args:
      part: the post-processor.
      end: 1: by its templates of one text; 2: also by those of two.
    """
    if part is None:
        return 1
    templates = [
        part.get("single", []),
        part.get("pair", []),
    ]  # also if "type" is unknown, which the library reads
    added = [sign["ids"] for sign in part.get("special_tokens", {}).values()]
    for several in (*templates, *added):
        if len(several) > MOST_GROWTH:
            raise ValueError(f"a post-processor of {len(several)} pieces")
    repeated = [sum("Sequence" in piece for piece in template) for template in templates[:end]]
    return math.prod((_copies(step, end) for step in _steps(part)), start=1.0) * max([1, *repeated])


class _Library:
    """An object of the library, whose methods are called by `_guarded`."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.wrapped, name)
        if name == "decoder" and attribute:
            return _Library(attribute)
        return functools.partial(_guarded, attribute) if callable(attribute) else attribute


def _guarded(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of a call of the library, which panics on some content: that is no Exception.

    Raises:
      UserError: the library failed.
    """
    try:
        return call(*arguments, **options)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise UserError(f"not a tokenizer.json that `tokenizers` can read texts with ({error})") from None
