"""What Marian's own models are in terms of the options and parameters here.

| | Marian | here |
|---|---|---|
| decoding starts | with a zero vector | `--model.zero-start` |
| sinusoids | sines, then cosines | `--model.positions sinusoidal-halves` |
| SSRU decoder | `transformer-decoder-autoreg: rnn`, `dec-cell: ssru` | `--model.decoder-recurrence ssru` |
| padding | has no id | a last row of the embeddings, never generated |

Names of parameters are those of Marian's `transformer.h`.
"""

import math
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer.config import EncoderConfig, SpecialIds, TransformerConfig
from transformer.interop.conversion import NEVER_GENERATED
from transformer.interop.marian_items import Yaml
from transformer.model.parameters import Declarations, Declared, Params, declarations
from transformer.model.transformer import Transformer
from transformer.runtime.errors import UserError

Path = tuple[str, ...]
"""Of a parameter here."""

_NORMS = {("", "an"): "post", ("n", "a"): "pre"}
"""By what Marian does before and after a sublayer: normalise (n) and add the input (a)."""
_SIDES = {"source": "encoder", "target": "decoder"}
_SUBLAYERS = {
    "self_attention": "self_",
    "recurrence": "rnn_",
    "cross_attention": "context_",
    "feed_forward": "ffn_",
}
_NORMED = {
    "self_residual": "self_Wo_",
    "cross_residual": "context_Wo_",
    "feed_forward_residual": "ffn_ffn_",
}
_LEAVES = {
    **{name: f"W{name[0]}" for name in ("query", "key", "value")},
    **{f"{name}_bias": f"b{name[0]}" for name in ("query", "key", "value")},
    "out": "Wo",
    "out_bias": "bo",
    "input.kernel": "W",
    "forget.kernel": "Wf",
    "forget.bias": "bf",
    "inner.kernel": "W1",
    "inner.bias": "b1",
    "outer.kernel": "W2",
    "outer.bias": "b2",
}
_EMBEDDINGS = {
    "source_embedding": "encoder_Wemb",
    "target_embedding": "decoder_Wemb",
    "output_embedding": "decoder_ff_logit_out_Wt",
}
_TIES = {  # tied-embeddings-all or both, tied-embeddings-src, tied-embeddings
    (True, True): "all",
    (True, False): "inputs",
    (False, True): "target",
    (False, False): "none",
}
OUTPUT_BIAS = "decoder_ff_logit_out_b"
_UNSUPPORTED = {  # options, and the values with which they have no effect
    "type": ("transformer",),
    "transformer-no-projection": ("false",),
    "transformer-rnn-projection": ("false",),
    "transformer-train-position-embeddings": ("false",),
    "transformer-train-positions": ("false",),
    "transformer-pool": ("false",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("2", "0"),
    "layer-normalization": ("false",),
    "lemma-dim-emb": ("0",),
    "ulr": ("false",),
}


@dataclass(frozen=True)
class Stored:
    """Where a parameter is stored, and how."""

    name: str
    rows: int | None = None
    """Of a vocabulary: how many rows are there. Here follow those of padding."""
    filler: float = 0.0
    """What these consist of."""


def described_network(described: Yaml, names: Set[str], eos: int, unk: int) -> TransformerConfig:
    """The network of a model.yml.

    Args:
      described: its content.
      names: of all arrays.
      eos: the id of </s>.
      unk: the id of <unk>.

    Raises:
      UserError: it has options that are not supported here.
      KeyError, ValueError, TypeError: an option is missing, or has no such value.
    """
    for name, values in _UNSUPPORTED.items():
        if described.get(name, values[0]) not in values:
            raise UserError(f"{name} is {described[name]}; supported is {values[0]}")
    sizes = vocabulary_sizes(described)
    if not names.isdisjoint(f"{name}_Wpos" for name in ("encoder", "decoder")) or "Wpos" in names:
        raise UserError("positions are learned, which is not supported for Marian's files")
    depths = {side: int(_scalar(described, f"{side}-depth")) for side in ("enc", "dec")}
    for side, depth in depths.items():
        if not 1 <= depth <= len(names):
            raise UserError(f"{side}-depth is {depth}, and there are {len(names)} arrays")
    steps = ("preprocess", "postprocess", "postprocess-emb", "postprocess-top")
    processing = {f"transformer-{step}": str(described.get(f"transformer-{step}", "")) for step in steps}
    before, after, embedding, top = (value.replace("d", "") for value in processing.values())
    if (before, after) not in _NORMS or {embedding, top} - {"", "n"} or (before == "n" and top != "n"):
        written = ", ".join(
            f"transformer-{step} {described.get(f'transformer-{step}', '')!r}" for step in steps
        )
        raise UserError(f"{written}: supported is post-norm (dan), and pre-norm (n, da) with a last norm (n)")
    activation = described.get("transformer-ffn-activation", "swish")
    if activation not in ("relu", "swish"):
        raise UserError(f"transformer-ffn-activation {activation}: supported are relu and swish")
    every = _is_true(described, "tied-embeddings-all")
    ties = [every or _is_true(described, name) for name in ("tied-embeddings-src", "tied-embeddings")]
    size = max(sizes) + 1
    return TransformerConfig(
        vocab_size=size,
        target_vocab_size=None if ties[0] else size,
        share_embeddings=_TIES[ties[0], ties[1]],  # type: ignore[arg-type]
        num_layers=depths["enc"],
        decoder_layers=depths["dec"],
        d_model=int(_scalar(described, "dim-emb")),
        d_ff=int(_scalar(described, "transformer-dim-ffn")),
        num_heads=int(_scalar(described, "transformer-heads")),
        norm=_NORMS[before, after],  # type: ignore[arg-type]
        final_norm=top == "n",
        embedding_norm=embedding == "n",
        activation=activation,  # type: ignore[arg-type]
        dropout=0.0,
        attention_bias=True,
        output_bias=True,
        positions="sinusoidal-halves",
        zero_start=True,
        decoder_recurrence=_recurrence(described),  # type: ignore[arg-type]
        special=SpecialIds(pad=size - 1, bos=size - 1, eos=eos, unk=unk),
    )


def vocabulary_sizes(described: Yaml) -> tuple[int, int]:
    """Rows of source and target embedding, without padding."""
    source, target = map(int, described["dim-vocabs"])
    return source, target


def _recurrence(described: Yaml) -> str:
    kind = described.get("transformer-decoder-autoreg", "self-attention")
    cell = described.get("dec-cell")
    if kind == "self-attention":
        return "none"
    if kind == "rnn" and cell == "ssru":
        return "ssru"
    of_cell = f" with dec-cell {cell}" if kind == "rnn" else ""
    raise UserError(
        f"transformer-decoder-autoreg {kind}{of_cell}: supported are self-attention, and rnn with dec-cell "
        "ssru"
    )


def _scalar(described: Yaml, name: str) -> str:
    value = described[name]
    if not isinstance(value, str):
        raise UserError(f"{name} is a list, not a number")
    return value


def _is_true(described: Yaml, name: str) -> bool:
    return described.get(name, "false") == "true"


def layer_numbers(described: Yaml, depth: int) -> list[int]:
    """The number in names of each decoder layer, from 1: tied layers have the same."""
    tied = described.get("transformer-tied-layers") or range(1, depth + 1)
    numbers = list(map(int, tied))
    if len(numbers) != depth:
        raise UserError(f"transformer-tied-layers has {len(numbers)} numbers for {depth} layers")
    return numbers


def network_params(
    config: TransformerConfig, described: Yaml, read: Callable[[str], np.ndarray | None]
) -> Params:
    """The parameters of `Transformer(config)`.

    Args:
      config: what `described_network` made.
      described: the content of model.yml.
      read: returns the array of a name, or None if there is none.

    Raises:
      UserError: an array is missing, or has another shape.
      ValueError: an array is damaged.
    """
    sizes = vocabulary_sizes(described)
    numbers = layer_numbers(described, config.decoder_depth)

    def convert(path: Path, parameter: Declared) -> np.ndarray:
        shape = parameter.value.shape
        stored = stored_as(path, config, sizes, numbers)
        x = read(stored.name)
        name = stored.name
        if x is None and path[0] == "output_embedding":  # of older models, not transposed
            name = name.removesuffix("t")
            x = None if (older := read(name)) is None else older.T
        if x is None and name == OUTPUT_BIAS:
            x = np.zeros((1, sizes[1]), np.float32)
        if x is None:
            raise UserError(f"there is no array {name}")
        expected = _stored_shape(parameter, stored.rows)
        if x.shape != expected and x.shape != expected[1:]:
            raise UserError(
                f"{name} has shape {list(x.shape)}, by its model.yml it should be {list(expected)}"
            )
        if stored.rows is None:
            return np.ascontiguousarray(x).reshape(shape)
        padded = np.full(shape, stored.filler, np.float32)
        padded[: stored.rows] = x.reshape(stored.rows, *shape[1:])
        return padded

    declared = _declared(config)
    return unflatten_dict({path: convert(path, parameter) for path, parameter in declared.items()})


def network_arrays(
    params: Params, config: TransformerConfig, sizes: tuple[int, int]
) -> dict[str, np.ndarray]:
    """The arrays of Marian's file. Biases that the model lacks are zero.

    Args:
      params: the parameters of `Transformer(config)`.
      config: of a network that `network_description` describes.
      sizes: rows of source and target vocabulary there; others are left out.
    """
    arrays: dict[str, np.ndarray] = {}
    values = flatten_dict(params)
    numbers = list(range(1, config.decoder_depth + 1))
    for path, parameter in _declared(replace(config, attention_bias=True, output_bias=True)).items():
        stored = stored_as(path, config, sizes, numbers)
        x = np.asarray(values.get(path, np.zeros(parameter.value.shape)), np.float32)[: stored.rows]
        arrays[stored.name] = x.reshape(_stored_shape(parameter, stored.rows))
    return arrays


def network_description(config: TransformerConfig, sizes: tuple[int, int]) -> Yaml:
    """The content of model.yml.

    Raises:
      UserError: Marian does not support the network.
    """
    cannot = {
        f"--model.positions {config.positions}": config.positions != "sinusoidal-halves"
        or config.first_position != 0,
        "no --model.zero-start": not config.zero_start,
        "no --model.scale-embedding": not config.scale_embedding,
        "--model.gated": config.gated,
        f"--model.normalization {config.normalization}": config.normalization != "layer",
        f"--model.activation {config.activation}": config.activation not in ("relu", "swish"),
        "--model.scale-output": config.scale_output,
        "no --model.feed-forward-bias": not config.feed_forward_bias,
        "--model.encoder-stack": _plain(config.of_encoder) != _plain(config),
        f"--model.mechanism {config.mechanism}": config.mechanism != "dot-product",
        f"--model.cross-mechanism {config.cross_mechanism}": config.cross_mechanism != "dot-product",
        f"--model.cross-view {config.cross_view}": config.cross_view != "last",
        "--model.window": config.window is not None,
        "--model.d-k or --model.d-v": {config.key_width, config.value_width}
        != {config.d_model // config.num_heads},
    }
    if has := [name for name, is_present in cannot.items() if is_present]:
        raise UserError(f"this model has {', '.join(has)}, which Marian's files cannot describe")
    before, after = {norm: ops for ops, norm in _NORMS.items()}[config.norm]
    inputs, outputs = {value: ties for ties, value in _TIES.items()}[config.share_embeddings]
    is_recurrent = config.decoder_recurrence == "ssru"
    options: dict[str, Any] = {
        "type": "transformer",
        "version": "v1.9.56",
        "dim-vocabs": list(map(str, sizes)),
        "dim-emb": config.d_model,
        "enc-depth": config.num_layers,
        "dec-depth": config.decoder_depth,
        "dec-cell": config.decoder_recurrence if is_recurrent else "gru",
        "enc-cell": "gru",
        "enc-type": "bidirectional",
        "transformer-decoder-autoreg": "rnn" if is_recurrent else "self-attention",
        "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": config.activation,
        "transformer-heads": config.num_heads,
        "transformer-preprocess": before,
        "transformer-postprocess": after.replace("a", "da"),
        "transformer-postprocess-emb": "dn" if config.embedding_norm else "d",
        "transformer-postprocess-top": "n" if config.normalizes_output else "",
        "transformer-no-projection": False,
        "transformer-train-position-embeddings": False,
        "transformer-tied-layers": [],
        "transformer-guided-alignment-layer": "last",
        "tied-embeddings": outputs and not inputs,
        "tied-embeddings-src": inputs and not outputs,
        "tied-embeddings-all": inputs and outputs,
        "output-omit-bias": False,
        "layer-normalization": False,
        "lemma-dim-emb": 0,
        "input-types": [],
        "skip": False,
        "right-left": False,
        "ulr": False,
    }
    as_text = {
        name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()
    }
    return {name: value if isinstance(value, list) else str(value) for name, value in as_text.items()}


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(config: TransformerConfig) -> TransformerConfig:
    return replace(config, decoder_recurrence="none", encoder_stack=EncoderConfig())


def _declared(config: TransformerConfig) -> Declarations:
    ids = jax.ShapeDtypeStruct((1, 2), "int32")
    return declarations(Transformer(config), (ids, ids))


def stored_as(
    path: Path, config: TransformerConfig, sizes: tuple[int, int], decoder_numbers: list[int]
) -> Stored:
    """Where a parameter is stored."""
    part, *inner = path
    if part == "output_bias":
        return Stored(OUTPUT_BIAS, sizes[1], NEVER_GENERATED)
    if part in _EMBEDDINGS:
        is_source = part == "source_embedding"
        return Stored(
            "Wemb" if is_source and config.shares_inputs else _EMBEDDINGS[part], sizes[not is_source]
        )
    stack, kind = part.rsplit("_", 1)
    leaf = inner[-1]
    if kind == "positions":
        return Stored(f"{_SIDES[stack]}_emb_ln_{leaf}_pre")
    if kind == "norm":
        return Stored(f"{stack}_top_ln_{leaf}")
    number = int(kind) + 1 if stack == "encoder" else decoder_numbers[int(kind)]
    layer = f"{stack}_l{number}_"
    sublayer = inner[0]
    if sublayer in _SUBLAYERS:
        return Stored(f"{layer}{_SUBLAYERS[sublayer]}{_LEAVES['.'.join(inner[1:])]}")
    suffix = "_pre" if config.norm == "pre" else ""
    prefix = _NORMED[sublayer]
    if sublayer == "self_residual" and stack == "decoder" and config.decoder_recurrence != "none":
        prefix = "rnn_" if suffix else "rnn_ffn_"
    return Stored(f"{layer}{prefix}ln_{leaf}{suffix}")


def _stored_shape(parameter: Declared, rows: int | None) -> tuple[int, ...]:
    """The shape in the file: matrices with heads side by side, and `[1, size]`."""
    shape = parameter.value.shape
    if parameter.names[0] == "vocabulary":
        shape = (rows, *shape[1:])
    if len(shape) == 1 or not parameter.summed:
        return 1, math.prod(shape)
    if rows is not None:
        return shape
    inputs = math.prod(shape[axis] for axis in parameter.summed)
    return inputs, math.prod(shape) // inputs
