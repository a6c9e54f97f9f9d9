"""Reads the model.bin of CTranslate2, with the names that Hugging Face gives to the same tensors.

The file has a version, the name and revision of a specification, then variables: a name, a shape, a type, and
values; and since version 3 other names of them. Rows of int8 matrices have scales. Nothing is executed, and
no more is read than the file has.
"""

import math
import os
import struct
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, open_regular

MODEL = "model.bin"
VERSIONS = range(2, 7)
SIDES = ("encoder", "decoder")
ACTIVATIONS = {0: "relu", 1: "gelu_new", 2: "swish", 3: "gelu"}
"""By their number there."""
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
    *(
        "alignment_layer",
        "alignment_heads",
        "embeddings_merge",
        "scale_alibi",
        "alibi_use_positive_positions",
    ),
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
        """Of variables with another name, by that."""
        for _ in range(self._number("I")):
            self._add()
        if self.version >= 3:
            for _ in range(self._number("I")):
                name, of = self._text(), self._text()
                if of not in self._stored:
                    raise UserError(f"{name} is another name of {of}, which is missing")
                self._stored.setdefault(name, self._stored[of])
                self._first_names[name] = of
        self._parts = dict(self._named())

    def _number(self, kind: str) -> int:
        size = struct.calcsize(f"<{kind}")
        number: int = struct.unpack(f"<{kind}", self._bytes(size))[0]
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
        kind = self._number("B")
        size = self._number("I")
        if self.version < 4:
            size *= kind
            kind = _BY_SIZE.get(kind, -1)
        start = self._file.tell()
        if kind not in _TYPES or size != math.prod(shape) * np.dtype(_TYPES[kind]).itemsize:
            raise UserError(
                f"{name} has {size} bytes of type {kind}, which does not go with its shape {shape}"
            )
        if start + size > self._size:
            raise UserError("the file ends too early: copy it again")
        if name in self._stored:
            raise UserError(f"there are two {name}")
        self._stored[name] = kind, start, shape
        self._file.seek(start + size)

    def _named(self) -> Iterator[tuple[str, tuple[str, int, int]]]:
        """The names of tensors, and of which variable each is which part of how many."""
        for name in self._stored:
            side, _, inner = name.partition("/")
            layer, _, rest = inner.partition("/")
            part, _, leaf = rest.rpartition("/")
            if layer.startswith("layer_") and part in _LAYERS and leaf in _LEAVES:
                number = layer.removeprefix("layer_")
                parts = _LAYERS[part]
                for index, of in enumerate(parts):
                    full = f"model.{side}.layers.{number}.{of}.{_LEAVES[leaf]}"
                    yield full, (name, index, len(parts))
            elif inner in _OTHERS:
                yield f"model.{side}.{_OTHERS[inner]}", (name, 0, 1)
            elif layer in _CONVOLUTIONS and rest in _LEAVES:
                yield f"model.{name.replace('/', '.')}", (name, 0, 1)

    @property
    def names(self) -> Set[str]:
        """Hugging Face's names of all tensors."""
        return self._parts.keys()

    @property
    def others(self) -> list[str]:
        """The variables, by their own names, that are neither such tensors nor their scales."""
        known = {variable for variable, _, _ in self._parts.values()}
        known |= {f"{name}_scale" for name in known}
        return [name for name in self._stored if name not in known]

    def is_same(self, *names: str) -> bool:
        """Whether several names of tensors are of one variable."""
        parts = [self._parts.get(name) for name in names]
        return None not in parts and len({self._stored[part[0]] for part in parts if part}) == 1

    def __call__(self, name: str) -> np.ndarray | None:
        """The tensor of a name in float32, or None."""
        if name not in self._parts:
            return None
        variable, index, _ = self._parts[name]
        kind, *_ = self._stored[variable]
        if kind in _INTEGERS and self._scale(variable) not in self._stored:
            raise UserError(
                f"{self._path}: {variable} has whole numbers and no scale that they are multiplied with: "
                "convert the original model with --quantization int8, int16, float16 or float32"
            )
        (size, *_) = self.shape(name) or (0,)
        with np.errstate(all="ignore"):  # what is not finite is refused
            return self._values(variable)[index * size :][:size]

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, or None if there is none."""
        if name not in self._parts:
            return None
        variable, _, count = self._parts[name]
        shape = self.stored_shape(variable)
        if not shape or shape[0] % count:
            raise UserError(f"{variable} has shape {list(shape)}, which is not that of {count} matrices")
        return shape[0] // count, *shape[1:]

    def _values(self, name: str) -> np.ndarray:
        """A variable in float32."""
        kind, start, shape = self._stored[name]
        stored = np.dtype(_TYPES[kind])
        with _named(self._path), open_regular(self._path) as file:
            file.seek(start)
            content = file.read(math.prod(shape) * stored.itemsize)
        if len(content) < math.prod(shape) * stored.itemsize:
            raise UserError(f"{self._path} ends too early: copy it again")
        values = np.frombuffer(content, stored).reshape(shape)
        if kind == _BFLOAT16:
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


def whisper_config(read: Variables) -> Json:
    """What config.json of Hugging Face would say of a Whisper model.

    Raises:
      UserError: it is another model.
    """
    if read.specification != "WhisperSpec":
        raise UserError(f"it holds a {read.specification}, and a WhisperSpec is read here")
    check_others(read)
    vocab_size, d_model = read.stored_shape("decoder/embeddings/weight")
    activation = read.number("decoder/activation", 3)
    return {
        "model_type": "whisper",
        "vocab_size": vocab_size,
        "d_model": d_model,
        "num_mel_bins": read.stored_shape("encoder/conv1/weight")[1],
        "max_source_positions": read.stored_shape("encoder/position_encodings/encodings")[0],
        "max_target_positions": read.stored_shape("decoder/position_encodings/encodings")[0],
        "activation_function": ACTIVATIONS.get(activation, f"number {activation}"),
        **stacks(read),
    }


def check_others(read: Variables) -> None:
    """Raises UserError if a variable that is no parameter means another network."""
    for name in read.others:
        if name.split("/")[-1] not in _KNOWN and (
            read.stored_shape(name) not in ((), (1,)) or read.number(name, 0)
        ):
            raise UserError(f"{name} is not supported: the network is another one than that of this package")


def stacks(read: Variables) -> Json:
    """Depth, inner width and number of heads of encoder and decoder."""
    described: Json = {}
    for side in SIDES:
        described[f"{side}_layers"] = read.layers(side)
        described[f"{side}_ffn_dim"] = read.stored_shape(f"{side}/layer_0/ffn/linear_0/weight")[0]
        described[f"{side}_attention_heads"] = read.number(f"{side}/num_heads", 8)
    return described
