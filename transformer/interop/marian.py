"""Converts Marian models in Hugging Face's format and ours: the same network in other layouts.

| | Marian | here |
|---|---|---|
| d_model axis | sines, then cosines | interleaved as in the paper: the axis is permuted |
| projections | `[out, in]`, heads side by side | `[in, heads, depth]`, `[heads, depth, out]` |
| decoding starts | with <pad>, whose vector is zero | with <bos> |
| logits | `final_logits_bias` | `output_bias`, if it is not all zero |

On export the vector of <bos> becomes zero too: <bos> is always the decoder's first position, so its vector is
added to that position in the decoder's table of positions.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.config import Config, SpecialIds, TransformerConfig
from transformer.interop.architectures.bart import LEAVES
from transformer.model.parameters import Declarations, Declared, Params
from transformer.model.positions import sinusoids
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.parameters import declared_parameters
from transformer.systems.registry import find_system

Tensors = dict[str, np.ndarray]
Path = tuple[str, ...]  # of a parameter here
NEVER_GENERATED = -1e4  # logit of ids that are never generated: zero after a softmax, and within float16
BIAS = "final_logits_bias"
POSITIONS = "model.decoder.embed_positions.weight"
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu_new": "gelu"}

_MODULES = {
    "encoder": "model.encoder.layers.",
    "decoder": "model.decoder.layers.",
    "self_attention": "self_attn.",
    "cross_attention": "encoder_attn.",
    "self_residual": "self_attn_layer_norm.",
    "cross_residual": "encoder_attn_layer_norm.",
    "feed_forward_residual": "final_layer_norm.",
}
_TABLES = {  # the first of these names that exists: Hugging Face stores shared tables once
    "source_embedding": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
    "target_embedding": ("model.decoder.embed_tokens.weight", "lm_head.weight", "model.shared.weight"),
    "output_embedding": ("lm_head.weight",),
}


def config_from_marian(config: Json, unk: int) -> TransformerConfig:
    """The model that a Marian config.json describes; `unk` is in its vocabulary only.

    Raises:
      UserError: it is not Marian's, or has options that are not supported here.
    """
    if config.get("model_type") != "marian":
        raise UserError(f"model_type is {config.get('model_type')!r}, not 'marian'")
    for key in ("attention_heads", "ffn_dim"):
        if config[f"encoder_{key}"] != config[f"decoder_{key}"]:
            raise UserError(f"encoder_{key} and decoder_{key} differ, which is not supported")
    if not config.get("scale_embedding"):
        raise UserError("scale_embedding is false; embeddings are always scaled here")
    if config["activation_function"] not in ACTIVATIONS:
        raise UserError(
            f"activation_function {config['activation_function']!r}: supported are {', '.join(ACTIVATIONS)}"
        )
    for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id"):
        if type(config[name]) is not int or not 0 <= config[name] < config["vocab_size"]:
            raise UserError(f"{name} is {config[name]!r}, not an id below {config['vocab_size']}")
    shared = config.get("share_encoder_decoder_embeddings", True)
    tied = config.get("tie_word_embeddings", True)
    return TransformerConfig(
        vocab_size=config["vocab_size"],
        target_vocab_size=None if shared else config.get("decoder_vocab_size") or config["vocab_size"],
        share_embeddings="none" if not tied else "all" if shared else "target",
        num_layers=config["encoder_layers"],
        decoder_layers=config["decoder_layers"],
        d_model=config["d_model"],
        d_ff=config["encoder_ffn_dim"],
        num_heads=config["encoder_attention_heads"],
        dropout=float(config.get("dropout", 0.1)),
        attention_dropout=float(config.get("attention_dropout", 0.0)),
        activation_dropout=float(config.get("activation_dropout", 0.0)),
        activation=ACTIVATIONS[config["activation_function"]],  # type: ignore[arg-type]
        norm_epsilon=1e-5,
        attention_bias=True,
        output_bias=True,
        special=SpecialIds(
            pad=config["pad_token_id"],
            bos=config["decoder_start_token_id"],
            eos=config["eos_token_id"],
            unk=unk,
        ),
    )


def params_from_marian(config: TransformerConfig, read: Callable[[str], np.ndarray | None]) -> Params:
    """The parameters of `Transformer(config)`.

    Args:
      config: what `config_from_marian` made.
      read: returns the tensor of a name, or None if there is none.

    Raises:
      UserError: a tensor is missing, or has another shape.
    """
    order = _order(config.d_model)

    def convert(path: Path, parameter: Declared) -> np.ndarray:
        names, axis = _counterpart(path, parameter)
        shape = parameter.value.shape
        name, x = next(((name, x) for name in names if (x := read(name)) is not None), (names[0], None))
        if x is None and name == BIAS:
            return np.zeros(shape, np.float32)
        if x is None:
            raise UserError(f"there is no tensor {name}")
        expected = _marian_shape(name, shape, axis)
        if x.shape != expected:
            raise UserError(f"{name} has shape {list(x.shape)}, by config.json it should be {list(expected)}")
        x = (x.T if _transposed(name) else x).reshape(shape)
        return x.copy() if axis is None else np.take(x, order, axis)

    declared = _declared(config)
    params = unflatten_dict({path: convert(path, parameter) for path, parameter in declared.items()})
    if (positions := read(POSITIONS)) is not None:
        _take_back_start(params, config, positions)
    return params


def _declared(config: TransformerConfig) -> Declarations:
    whole = Config(model=config)
    return declared_parameters(find_system(whole.system), whole)


def _take_back_start(params: Params, config: TransformerConfig, positions: np.ndarray) -> None:
    """Gives <bos> the vector that `params_to_marian` added to the decoder's first position."""
    added = positions - _positions(*positions.shape)
    if np.abs(added[1:]).max(initial=0) > 1e-3:
        raise UserError(f"{POSITIONS} is not made of sinusoids")
    if np.abs(added[0]).max() > 1e-4:
        start = added[0][_order(config.d_model)] / math.sqrt(config.d_model)
        _target_table(params, config)[config.special.bos] += start


def config_to_marian(config: TransformerConfig, vocab_size: int, positions: int) -> Json:
    """config.json for Hugging Face.

    Raises:
      UserError: Marian does not support the model.
    """
    cannot = {
        "pre-norm": config.norm == "pre",
        "learned positions": config.positions == "learned",
        "a window": config.window is not None,
        "a separate d_k or d_v": config.num_heads * config.key_width != config.d_model
        or config.num_heads * config.value_width != config.d_model,
        "an encoder unlike its decoder": config.of_encoder != config,
        "a separate pre-softmax matrix": config.share_embeddings in ("inputs", "none"),
    }
    if has := [name for name, is_present in cannot.items() if is_present]:
        raise UserError(f"this model has {' and '.join(has)}, which Marian does not support")
    activation = {name: marian_name for marian_name, name in reversed(ACTIVATIONS.items())}[config.activation]
    sizes = {
        "layers": (config.num_layers, config.decoder_depth),
        "attention_heads": (config.num_heads,) * 2,
        "ffn_dim": (config.d_ff,) * 2,
        "layerdrop": (0.0, 0.0),
    }
    sides = {
        f"{side}_{name}": two[i]
        for name, two in sizes.items()
        for i, side in enumerate(("encoder", "decoder"))
    }
    pad = vocab_size - 1
    eos = 0
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "d_model": config.d_model,
        **sides,
        "activation_function": activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": config.share_embeddings == "all",
        "tie_word_embeddings": True,
        "static_position_embeddings": True,
        "max_position_embeddings": positions,
        "normalize_before": False,
        "normalize_embedding": False,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": eos,
        "bos_token_id": eos,
    }


def params_to_marian(
    params: Params, config: TransformerConfig, orders: tuple[list[int], list[int]], positions: int
) -> Tensors:
    """The tensors of model.safetensors.

    Args:
      params: the parameters of `Transformer(config)`.
      orders: for source and target, our id for each of Marian's; -1 for none.
      positions: rows of the table of positions.
    """
    back = np.argsort(_order(config.d_model))
    full = replace(config, attention_bias=True, output_bias=True)
    tensors: Tensors = {}

    arrays = flatten_dict(params)
    for path, parameter in _declared(full).items():
        names, axis = _counterpart(path, parameter)
        name = names[-1] if names == _TABLES["source_embedding"] and not _shared(config) else names[0]
        # biases that this model lacks are zero
        x = np.asarray(arrays.get(path, np.zeros(parameter.value.shape)), np.float32)
        x = x if axis is None else np.take(x, back, axis)
        if name == BIAS or names in _TABLES.values():
            x = _reordered(
                x, orders[names != _TABLES["source_embedding"]], NEVER_GENERATED if name == BIAS else 0
            )
        shape = _marian_shape(name, x.shape, axis)
        x = x.reshape(tuple(reversed(shape))).T if _transposed(name) else x.reshape(shape)
        tensors[name] = x
    tensors[POSITIONS] = _positions(positions, config.d_model)
    start = np.asarray(_target_table(params, config)[config.special.bos])[back]
    tensors[POSITIONS][0] += start * math.sqrt(config.d_model)
    return tensors


def _reordered(rows: np.ndarray, order: list[int], filler: float) -> np.ndarray:
    reordered = rows[np.maximum(order, 0)]
    reordered[np.asarray(order) < 0] = filler
    return reordered


def _counterpart(path: Path, parameter: Declared) -> tuple[tuple[str, ...], int | None]:
    """The names in Marian of a parameter, and its d_model axis here."""
    axis = parameter.names.index("model") if "model" in parameter.names else None
    if path[0] in _TABLES:
        return _TABLES[path[0]], axis
    if path[0] == "output_bias":
        return (BIAS,), axis
    stack, layer = path[0].split("_")
    leaf = LEAVES[".".join(path[2:])]
    return (f"{_MODULES[stack]}{layer}.{_MODULES.get(path[1], '')}{leaf}",), axis


def _transposed(name: str) -> bool:
    """Whether it is the matrix of a linear layer, which PyTorch stores [out, in]."""
    return name.endswith(("_proj.weight", "fc1.weight", "fc2.weight"))


def _marian_shape(name: str, shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    size = math.prod(shape)
    if name == BIAS:
        return 1, size
    if not _transposed(name):
        return shape if len(shape) == 2 else (size,)
    return (size // shape[0], shape[0]) if axis == 0 else (shape[-1], size // shape[-1])


def _shared(config: TransformerConfig) -> bool:
    return config.share_embeddings == "all"


def _target_table(params: Params, config: TransformerConfig) -> np.ndarray:
    table: np.ndarray = params["source_embedding" if _shared(config) else "target_embedding"]["table"]
    return table


def _order(d_model: int) -> np.ndarray:
    """The index of each interleaved coordinate if sines come first, then cosines."""
    return np.arange(d_model).reshape(2, -1).T.reshape(-1)


def _positions(count: int, d_model: int) -> np.ndarray:
    """Sinusoids, sines first."""
    return np.array(sinusoids(jnp.arange(count), d_model))[:, np.argsort(_order(d_model))]
