"""Transformers of CTranslate2, such as those of OpenNMT: the model.bin is read with the names that Hugging
Face gives to the same tensors.

The file has a version, the name and revision of a specification, then variables: a name, a shape, a type, and
values; and since version 3 other names of them. Rows of int8 matrices have scales. Nothing is executed, and
no more is read than the file has.
"""

import math
import os
import struct
from collections.abc import Container, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from transformer.config.decoding import DecodingConfig
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.words import WhitespaceTokenizer
from transformer.interop.architectures.bart import BART, bart_options
from transformer.interop.folders.family import (
    NEVER_GENERATED,
    Family,
    Names,
    Opened,
    Request,
    Storage,
    Tensor,
    Tokenizers,
    Vocabulary,
)
from transformer.interop.folders.folder import CONFIG, first_of, naming, read_json
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, failing, open_regular, parse_json, read_text

MODEL = "model.bin"
VERSIONS = range(2, 7)
SIDES = ("encoder", "decoder")
ACTIVATIONS = {0: "relu", 1: "gelu_new", 2: "swish", 3: "gelu"}
"""Activations by the number that CTranslate2 gives them."""
_TYPES: dict[int, str] = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: "<u2"}
_BFLOAT16 = 5
_INTEGERS = (1, 2, 3)
_BY_SIZE = {4: 0, 2: 2, 1: 1}  # before version 4: the type by the bytes of a value
_DIMENSIONS = 4
_LAYERS = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
}
"""The names of what a variable of a layer consists of, side by side."""
_OTHERS = {
    "position_encodings/encodings": "embed_positions.weight",
    "embeddings/weight": "embed_tokens.weight",
    "embeddings_0/weight": "embed_tokens.weight",
    "layernorm_embedding/gamma": "layernorm_embedding.weight",
    "layernorm_embedding/beta": "layernorm_embedding.bias",
    "layer_norm/gamma": "layer_norm.weight",
    "layer_norm/beta": "layer_norm.bias",
    "projection/weight": "projection.weight",
    "projection/bias": "projection.bias",
}
_CONVOLUTIONS = ("conv1", "conv2")
_KNOWN = {
    *("num_heads", "pre_norm", "activation", "scale_embeddings", "start_from_zero_embedding"),
    *("alignment_layer", "alignment_heads", "embeddings_merge", "scale_alibi"),
    "alibi_use_positive_positions",
}
"""Options of a stack that are read, or have no effect on the output."""
_LEAVES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def is_ctranslate2_folder(folder: Path) -> bool:
    """Whether a folder has a model.bin of CTranslate2; Marian's begins with another version."""
    try:
        with open_regular(folder / MODEL) as file:
            return int.from_bytes(file.read(4), "little") in VERSIONS
    except OSError:
        return False


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds the name of the file to errors."""
    try:
        yield
    except (OSError, ValueError, struct.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


class Variables:
    """The variables of a folder's model.bin, as a function from Hugging Face's name of a tensor to its
    values, or None. The file is open only while one is read.

    Raises:
      UserError: there is no such file, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / MODEL
        with _named(self._path), open_regular(self._path) as file:
            self._read_header(file)

    def _read_header(self, file: IO[bytes]) -> None:
        self._file, self._size = file, os.fstat(file.fileno()).st_size
        self.version = self._number("I")
        if self.version not in VERSIONS:
            raise UserError(f"not a model of CTranslate2, or of a version that is not known ({self.version})")
        self.specification, self.revision = self._text(), self._number("I")
        self._stored: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        """The type, the position in the file and the shape of each variable."""
        self._first_names: dict[str, str] = {}
        """The first name of each variable that has another one, by that other one."""
        for _ in range(self._number("I")):
            self._add()
        if self.version >= 3:
            for _ in range(self._number("I")):
                name, of = self._text(), self._text()
                if of not in self._stored:
                    raise UserError(f"{name} is another name of {of}, which is missing")
                if name in self._stored:
                    raise UserError(f"there are two {name}")
                self._stored[name] = self._stored[of]
                self._first_names[name] = of
        self._locations: dict[str, tuple[str, int, int]] = {}
        for name, location in self._named():
            if name in self._locations:
                raise UserError(f"{location[0]} and {self._locations[name][0]} are the same matrix")
            self._locations[name] = location

    def _number(self, format_code: str) -> int:
        size = struct.calcsize(f"<{format_code}")
        number: int = struct.unpack(f"<{format_code}", self._bytes(size))[0]
        return number

    def _bytes(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) < size:
            raise UserError("the file ends too early: copy it again")
        return content

    def _text(self) -> str:
        return self._bytes(self._number("H")).removesuffix(b"\0").decode()

    def _add(self) -> None:
        name = self._text()
        rank = self._number("B")
        if rank > _DIMENSIONS:
            raise UserError(f"{name} has {rank} dimensions")
        shape = tuple(self._number("I") for _ in range(rank))
        type_code = self._number("B")
        size = self._number("I")
        if self.version < 4:
            size *= type_code
            type_code = _BY_SIZE.get(type_code, -1)
        start = self._file.tell()
        if type_code not in _TYPES or size != math.prod(shape) * np.dtype(_TYPES[type_code]).itemsize:
            raise UserError(
                f"{name} has {size} bytes of type {type_code}, which does not go with its shape {shape}"
            )
        if start + size > self._size:
            raise UserError("the file ends too early: copy it again")
        if name in self._stored:
            raise UserError(f"there are two {name}")
        self._stored[name] = type_code, start, shape
        self._file.seek(start + size)

    def _named(self) -> Iterator[tuple[str, tuple[str, int, int]]]:
        """The names of tensors, and of which variable each is which part of how many."""
        for name in self._stored:
            side, _, inner = name.partition("/")
            layer, _, variable_name = inner.partition("/")
            sublayer, _, leaf = variable_name.rpartition("/")
            if layer.startswith("layer_") and sublayer in _LAYERS and leaf in _LEAVES:
                number = layer.removeprefix("layer_")
                tensor_names = _LAYERS[sublayer]
                for index, of in enumerate(tensor_names):
                    full = f"model.{side}.layers.{number}.{of}.{_LEAVES[leaf]}"
                    yield full, (name, index, len(tensor_names))
            elif inner in _OTHERS:
                yield f"model.{side}.{_OTHERS[inner]}", (name, 0, 1)
            elif layer in _CONVOLUTIONS and variable_name in _LEAVES:
                yield f"model.{name.replace('/', '.')}", (name, 0, 1)

    @property
    def names(self) -> Set[str]:
        """Hugging Face's names of all tensors."""
        return self._locations.keys()

    @property
    def others(self) -> list[str]:
        """The variables, by their own names, that are neither such tensors nor their scales."""
        read_variables = {variable for variable, _, _ in self._locations.values()}
        read_variables |= {f"{name}_scale" for name in read_variables}
        return [name for name in self._stored if name not in read_variables]

    def is_same(self, *names: str) -> bool:
        """Whether several names of tensors are of one variable."""
        entries = [self._locations.get(name) for name in names]
        return None not in entries and len({self._stored[entry[0]] for entry in entries if entry}) == 1

    def __call__(self, name: str) -> np.ndarray | None:
        """The tensor of a name in float32, or None."""
        if name not in self._locations:
            return None
        variable, index, _ = self._locations[name]
        type_code, *_ = self._stored[variable]
        if type_code in _INTEGERS and self._scale(variable) not in self._stored:
            raise UserError(
                f"{self._path}: {variable} has whole numbers and no scale that they are multiplied with: "
                "convert the original model with --quantization int8, int16, float16 or float32"
            )
        (size, *_) = self.shape(name) or (0,)
        with np.errstate(all="ignore"):  # what is not finite is refused
            return self._values(variable)[index * size :][:size]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, or None if there is none."""
        if name not in self._locations:
            return None
        variable, _, count = self._locations[name]
        shape = self.stored_shape(variable)
        if not shape or shape[0] % count:
            raise UserError(f"{variable} has shape {list(shape)}, which is not that of {count} matrices")
        return shape[0] // count, *shape[1:]

    def _values(self, name: str) -> np.ndarray:
        """A variable in float32."""
        type_code, start, shape = self._stored[name]
        stored = np.dtype(_TYPES[type_code])
        with _named(self._path), open_regular(self._path) as file:
            file.seek(start)
            content = file.read(math.prod(shape) * stored.itemsize)
        if len(content) < math.prod(shape) * stored.itemsize:
            raise UserError(f"{self._path} ends too early: copy it again")
        values = np.frombuffer(content, stored).reshape(shape)
        if type_code == _BFLOAT16:
            return (values.astype(np.uint32) << 16).view(np.float32)
        scale = self._scale(name)
        if scale not in self._stored:
            return values.astype(np.float32)
        scales = self._values(scale)
        if scales.shape not in ((), shape[:1]):
            raise UserError(f"{scale} has shape {list(scales.shape)}, and {name} has {list(shape)}")
        return values.astype(np.float32) / scales.reshape(-1, *[1] * (len(shape) - 1))

    def _scale(self, name: str) -> str:
        """The name of the scale of a variable."""
        return f"{self._first_names.get(name, name)}_scale"

    def stored_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a variable, by its own name. Raises UserError if there is none."""
        if name not in self._stored:
            raise UserError(f"there is no {name}")
        return self._stored[name][2]

    def number(self, name: str, default: int) -> int:
        """The value of a variable that is one number."""
        if name not in self._stored:
            return default
        value = self._values(name)
        if value.size != 1:
            raise UserError(f"{name} is not a number")
        return int(value.item())

    def layers(self, side: str) -> int:
        """The number of layers of a stack."""
        prefix = f"{side}/layer_"
        numbers = {name[len(prefix) :].partition("/")[0] for name in self._stored if name.startswith(prefix)}
        return sum(number.isdecimal() for number in numbers)


def whisper_config(model: Variables) -> Json:
    """What config.json of Hugging Face would say of a Whisper model.

    Raises:
      UserError: it is another model.
    """
    if model.specification != "WhisperSpec":
        raise UserError(f"it holds a {model.specification}, and a WhisperSpec is read here")
    check_others(model)
    vocab_size, d_model = model.stored_shape("decoder/embeddings/weight")
    activation = model.number("decoder/activation", 3)
    return {
        "model_type": "whisper",
        "vocab_size": vocab_size,
        "d_model": d_model,
        "num_mel_bins": model.stored_shape("encoder/conv1/weight")[1],
        "max_source_positions": model.stored_shape("encoder/position_encodings/encodings")[0],
        "max_target_positions": model.stored_shape("decoder/position_encodings/encodings")[0],
        "activation_function": ACTIVATIONS.get(activation, f"number {activation}"),
        **stacks(model),
    }


def check_others(model: Variables) -> None:
    """Raises UserError if a variable that is no parameter means another network."""
    for name in model.others:
        if name.split("/")[-1] not in _KNOWN and (
            model.stored_shape(name) not in ((), (1,)) or model.number(name, 0)
        ):
            raise UserError(f"{name} is not supported: the network is another one than that of this package")


def stacks(model: Variables) -> Json:
    """Depth, inner width and number of heads of encoder and decoder."""
    described: Json = {}
    for side in SIDES:
        described[f"{side}_layers"] = model.layers(side)
        described[f"{side}_ffn_dim"] = model.stored_shape(f"{side}/layer_0/ffn/linear_0/weight")[0]
        described[f"{side}_attention_heads"] = model.number(f"{side}/num_heads", 8)
    return described


# Transformers of CTranslate2, such as those of OpenNMT: a model.bin and lists of words.


SPECIFICATIONS = ("TransformerSpec", "TransformerBase", "TransformerBig")
SEARCH: Json = {"num_beams": 2, "early_stopping": True, "min_length": 2}
"""What CTranslate2 does unless it is told otherwise, in the words of generation_config.json. The minimum
length of one word counts <s> there."""
_TABLES = tuple(f"model.{side}.embed_tokens.weight" for side in SIDES)
_NORMS = ("layer_norm", "layernorm_embedding")
_PROJECTION, _BIAS = (f"model.decoder.projection.{leaf}" for leaf in ("weight", "bias"))


def transformer_config(model: Variables) -> Json:
    """What a config.json would say of the network.

    Raises:
      UserError: it is another network, or has options that are not supported here.
    """
    if model.specification not in SPECIFICATIONS:
        raise UserError(
            f"it holds a {model.specification}, and {', '.join(SPECIFICATIONS)} and WhisperSpec are read here"
        )
    check_others(model)
    same: dict[str, int] = {}
    for name, default in (("pre_norm", 1), ("activation", 0), ("scale_embeddings", 1)):
        values = {model.number(f"{side}/{name}", default) for side in SIDES}
        if len(values) > 1:
            raise UserError(f"{name} differs between encoder and decoder, which is not supported")
        same[name] = values.pop()
    positions = {model.shape(f"model.{side}.embed_positions.weight") for side in SIDES}
    if len(positions) > 1:
        raise UserError("the tables of positions of encoder and decoder differ, which is not supported")
    return {
        "model_type": "ctranslate2",
        "d_model": model.stored_shape("decoder/embeddings/weight")[1],
        "activation_function": ACTIVATIONS.get(same["activation"], f"number {same['activation']}"),
        "pre_norm": bool(same["pre_norm"]),
        "scale_embedding": bool(same["scale_embeddings"]),
        "positions": next(iter(positions)),
        "zero_start": bool(model.number("decoder/start_from_zero_embedding", 0)),
        "inputs_are_tied": model.is_same(*_TABLES),
        "output_is_tied": model.is_same(_TABLES[1], _PROJECTION),
        **stacks(model),
    }


def _options(config: Json, names: Container[str]) -> dict[str, Any]:
    final, embedding = ({f"model.{side}.{name}.weight" in names for side in SIDES} for name in _NORMS)
    if len(final) > 1 or len(embedding) > 1 or (config["pre_norm"] and final != {True}):
        raise UserError("the norms of encoder and decoder differ, which is not supported")
    ties = config["inputs_are_tied"], config["output_is_tied"]
    learned = {"positions": "learned", "max_positions": config["positions"] and config["positions"][0]}
    computed = {"positions": "sinusoidal-halves", "first_position": 1}
    return bart_options(
        config,
        target_vocab_size=None if ties[0] else config["target_vocab_size"],
        share_embeddings={(1, 1): "all", (1, 0): "inputs", (0, 1): "target", (0, 0): "none"}[ties],
        norm="pre" if config["pre_norm"] else "post",
        final_norm=final == {True} and not config["pre_norm"],
        embedding_norm=embedding == {True},
        output_bias=True,
        fixed=(),
        zero_start=config["zero_start"],
        source_end=config["source_end"],
        **(learned if config["positions"] else computed),
    )


def _tensor(path: Names, config: Json, model: TransformerConfig) -> Tensor:
    source, target = config["orders"]
    match path[0]:
        case "output_bias":
            return Tensor((_BIAS,), order=target, filler=NEVER_GENERATED, if_missing=0.0)
        case "output_embedding":
            return Tensor((_PROJECTION,), order=target)
        case "source_embedding":
            is_all, tables = model.share_embeddings == "all", _TABLES if model.shares_inputs else _TABLES[:1]
            return Tensor((*tables, _PROJECTION) if is_all else tables, order=source)
        case "target_embedding":
            is_output = model.share_embeddings == "target"
            return Tensor((_TABLES[1], _PROJECTION) if is_output else _TABLES[1:], order=target)
        case "source_positions" | "target_positions" if path[-1] == "table":
            stored = BART.storage.tensor(path, config, model)
            return Tensor(stored.names)  # without the rows for padding that other families have
    return BART.storage.tensor(path, config, model)


# Vocabularies: lists of words, in any order.


_PADDING = ("<blank>", "<pad>", "[PAD]")
_NAMES = ("vocabulary.txt", "vocabulary.json")


class ListVocabulary(Vocabulary):
    """Has source_vocabulary.json and target_vocabulary.json, or shared_vocabulary.json, or the
    same with `.txt`. Here the special words are the first four. Texts are words between spaces."""

    unk = 3

    def __init__(self, folder: Path, family: Family[Any]) -> None:
        described = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
        with naming(folder / CONFIG):
            bos, eos, unk = (
                str(described.get(f"{name}_token", default))
                for name, default in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))
            )
            if (start := described.get("decoder_start_token", bos)) != bos:
                raise UserError(
                    f"decoder_start_token is {start!r}: this was converted from a model of another kind; "
                    "import that one"
                )
        self._starts = described.get("add_source_bos") is True
        self._words, orders = [], []
        for side in ("source", "target"):
            words = _words(folder, side)
            if missing := {bos, eos}.difference(words):
                raise UserError(f"{folder}: the vocabulary has no {' and no '.join(sorted(missing))}")
            special = [next(filter(words.__contains__, _PADDING), ""), bos, eos, unk]
            text_words = [word for word in words if word not in special]
            rows = {unk: len(words)} | {word: row for row, word in enumerate(words)}
            self._words.append(text_words)
            orders.append([rows.get(word, -1) for word in (*special, *text_words)])
        self.ids: Json = {
            **{"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2},
            "vocab_size": len(orders[0]),
            "target_vocab_size": len(orders[1]),
            "orders": orders,
            "source_end": described.get("add_source_eos") is True,
        }

    def tokenizers(self, opened: Opened, model: TransformerConfig, request: Request) -> Tokenizers:
        source, target = self._words
        start = [model.special.bos] if self._starts else []
        return WhitespaceTokenizer(source, model.special, start), WhitespaceTokenizer(target, model.special)


def _words(folder: Path, side: str) -> list[str]:
    path = first_of(folder, *(f"{prefix}_{name}" for prefix in (side, "shared") for name in _NAMES))
    with naming(path):
        with failing("it cannot be read"):
            content = read_text(path)
        words = parse_json(content) if path.suffix == ".json" else content.removesuffix("\n").split("\n")
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise UserError("it is not a list of words")
        if len(set(words)) < len(words):
            raise UserError("a word is in it twice")
    return words


class Converted(Family[TransformerConfig]):
    """A Transformer in a folder of CTranslate2, which renormalises what the rules of a search leave."""

    def opened(self, folder: Path) -> Opened:
        variables = Variables(folder)
        with naming(folder / MODEL):
            described = transformer_config(variables)
        return Opened(folder, folder / MODEL, described, variables, SEARCH)

    def decoding(self, opened: Opened, model: TransformerConfig) -> DecodingConfig:
        return replace(super().decoding(opened, model), renormalise=True)

    def ignored(self, folder: Path) -> list[str]:
        """Folders have no options of a search."""
        return []


CTRANSLATE2 = Converted("ctranslate2", _options, Storage(_tensor), ListVocabulary)
