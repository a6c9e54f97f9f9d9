"""What a family of pretrained models declares, and how its tensors become parameters here."""

import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from transformer.config import SpecialIds, TransformerConfig
from transformer.model.parameters import Declared, Params, declarations
from transformer.model.transformer import Transformer
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

Path = tuple[str, ...]
"""Of a parameter here."""
Read = Callable[[str], np.ndarray | None]
"""Returns the tensor of a name, or None if there is none."""


@dataclass(frozen=True)
class Tensor:
    """Where a parameter is stored, and how."""

    names: tuple[str, ...]
    """Names of the tensor; the first one that exists counts."""
    is_linear: bool = False
    """Whether it is the matrix of a linear layer, which PyTorch stores `[out, in]`."""
    rows_before: int = 0
    """Rows before the first one that is used here."""
    factor: float = 1.0
    """What it is multiplied with."""
    if_missing: float | None = None
    """What the parameter consists of if there is no such tensor. None: there must be one."""


@dataclass(frozen=True)
class Architecture:
    """A family of pretrained models."""

    model_type: str
    """Its name in config.json."""
    options: Callable[[Json, Container[str]], dict[str, Any]]
    """The options of the network that a config.json describes, without special ids. It also gets the names of
    all tensors."""
    tensor: Callable[[Path, Json, TransformerConfig], Tensor]
    """Where a parameter is stored."""
    sines_first: bool = False
    """Whether sinusoids are all sines, then all cosines, with the rates of the paper: the axis of d_model is
    permuted, as they are interleaved here."""
    start: Callable[[Json], tuple[int, ...]] = lambda config: ()
    """Ids that begin every text, before its first word; where languages have codes, these come first."""
    has_codes: bool = False
    """Whether texts begin with the code of their language."""


def described_model(
    architecture: Architecture, config: Json, names: Container[str], unk: int
) -> TransformerConfig:
    """The model that a config.json describes.

    Args:
      architecture: of its `model_type`.
      config: the content of config.json.
      names: of all tensors.
      unk: the id of <unk>, which only the vocabulary has.

    Raises:
      UserError: it has options that are not supported here.
      KeyError: an option is missing.
    """
    size = config["vocab_size"]

    def index(name: str) -> int:
        value = config.get(name)
        if type(value) is not int or not 0 <= value < size:
            raise UserError(f"{name} is {value!r}, not an id below {size}")
        return value

    pad, start, eos = map(index, ("pad_token_id", "decoder_start_token_id", "eos_token_id"))
    special = SpecialIds(pad, start, eos, unk)
    return TransformerConfig(vocab_size=size, special=special, **architecture.options(config, names))


def imported_params(architecture: Architecture, config: Json, model: TransformerConfig, read: Read) -> Params:
    """The parameters of `Transformer(model)`.

    Args:
      architecture: of the model's `model_type`.
      config: the content of config.json.
      model: what `described_model` made of it.
      read: returns the tensor of a name, or None if there is none.

    Raises:
      UserError: a tensor is missing, or has another shape.
    """
    halves = np.arange(model.d_model).reshape(2, -1).T.reshape(-1)

    def convert(path: Path, parameter: Declared) -> np.ndarray:
        tensor = architecture.tensor(path, config, model)
        shape = parameter.value.shape
        stored = ((name, read(name)) for name in tensor.names)
        name, x = next(((name, x) for name, x in stored if x is not None), (tensor.names[0], None))
        if x is None and tensor.if_missing is not None:
            return np.full(shape, tensor.if_missing, np.float32)
        if x is None:
            raise UserError(f"there is no tensor {name}")
        x = x[tensor.rows_before :]
        expected = _stored_shape(parameter, tensor)
        if x.shape != expected and (x.size,) != expected:
            raise UserError(f"{name} has shape {list(x.shape)}, by config.json it should be {list(expected)}")
        x = (x.T if tensor.is_linear else x).reshape(shape) * np.float32(tensor.factor)
        if architecture.sines_first and "model" in parameter.names:
            return np.take(x, halves, parameter.names.index("model"))
        return x

    ids = jax.ShapeDtypeStruct((1, 2), "int32")
    declared = declarations(Transformer(model), (ids, ids))
    return unflatten_dict({path: convert(path, parameter) for path, parameter in declared.items()})


def _stored_shape(parameter: Declared, tensor: Tensor) -> tuple[int, ...]:
    """The shape of a stored tensor: heads are side by side, and the matrices of linear layers transposed."""
    shape = parameter.value.shape
    size = math.prod(shape)
    if tensor.is_linear:
        inputs = math.prod(shape[axis] for axis in parameter.summed)
        return size // inputs, inputs
    return shape if len(shape) == 2 else (size,)
