"""What Marian's own models are in terms of the options and parameters here.

| | Marian | here |
|---|---|---|
| decoding starts | with a zero vector | `--model.zero-start` |
| sinusoids | sines, then cosines | `--model.positions sinusoidal-halves` |
| SSRU decoder | `transformer-decoder-autoreg: rnn`, `dec-cell: ssru` | `--model.decoder-recurrence ssru` |
| padding | has no id | a last row of the embeddings, never generated |

Names of parameters are those of Marian's `transformer.h`.
"""

from collections.abc import Set
from typing import Any

from transformer.config.model import SpecialIds
from transformer.config.transformer import TransformerConfig
from transformer.interop.folders.architecture import NEVER_GENERATED, Names, Storage, Tensor
from transformer.interop.marian.items import Yaml
from transformer.runtime.errors import UserError

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
_SHARED = "Wemb"
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


def described_network(described: Yaml, names: Set[str], eos: int, unk: int) -> TransformerConfig:
    """The network of a model.yml, with an id more for padding.

    Args:
      described: its content.
      names: of all arrays.
      eos: the id of </s>.
      unk: the id of <unk>.

    Raises:
      UserError, KeyError, ValueError, TypeError: as `network_options`.
    """
    options = network_options(described, names)
    pad = options["vocab_size"] - 1
    return TransformerConfig(**options, special=SpecialIds(pad=pad, bos=pad, eos=eos, unk=unk))


def network_options(described: Yaml, names: Set[str]) -> dict[str, Any]:
    """The options of a network, without special ids.

    Args:
      described: the content of model.yml.
      names: of all arrays.

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
    return dict(
        vocab_size=size,
        target_vocab_size=None if ties[0] else size,
        share_embeddings=_TIES[ties[0], ties[1]],
        num_layers=depths["enc"],
        decoder_layers=depths["dec"],
        d_model=int(_scalar(described, "dim-emb")),
        d_ff=int(_scalar(described, "transformer-dim-ffn")),
        num_heads=int(_scalar(described, "transformer-heads")),
        norm=_NORMS[before, after],
        final_norm=top == "n",
        embedding_norm=embedding == "n",
        activation=activation,
        dropout=0.0,
        attention_bias=True,
        output_bias=True,
        positions="sinusoidal-halves",
        zero_start=True,
        decoder_recurrence=_recurrence(described),
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


def network_description(config: TransformerConfig, sizes: tuple[int, int]) -> Yaml:
    """The content of model.yml, as far as it has options for those of the network."""
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


def _tensor(path: Names, described: Yaml, model: TransformerConfig) -> Tensor:
    part, *inner = path
    if part == "output_bias":
        order = _order(described, model, "target")
        return Tensor((OUTPUT_BIAS,), "row", order=order, filler=NEVER_GENERATED, if_missing=0.0)
    if part in _EMBEDDINGS:
        side = "source" if part == "source_embedding" else "target"
        return Tensor(_tables(part, model), order=_order(described, model, side))
    stack, kind = part.rsplit("_", 1)
    leaf = inner[-1]
    if kind == "positions":
        return Tensor((f"{_SIDES[stack]}_emb_ln_{leaf}_pre",), "row")
    if kind == "norm":
        return Tensor((f"{stack}_top_ln_{leaf}",), "row")
    numbers = layer_numbers(described, model.decoder_depth) if stack == "decoder" else None
    layer = f"{stack}_l{numbers[int(kind)] if numbers else int(kind) + 1}_"
    sublayer = inner[0]
    if sublayer in _SUBLAYERS:
        name = _LEAVES[".".join(inner[1:])]
        return Tensor((f"{layer}{_SUBLAYERS[sublayer]}{name}",), "in-out" if name[0] == "W" else "row")
    suffix = "_pre" if model.norm == "pre" else ""
    prefix = _NORMED[sublayer]
    if sublayer == "self_residual" and stack == "decoder" and model.decoder_recurrence != "none":
        prefix = "rnn_" if suffix else "rnn_ffn_"
    return Tensor((f"{layer}{prefix}ln_{leaf}{suffix}",), "row")


def _tables(part: str, model: TransformerConfig) -> Names:
    """The names of a matrix of words, among them those of the matrices that it is tied to."""
    source, target, output = _EMBEDDINGS.values()
    match part, model.share_embeddings:
        case "source_embedding", "all":
            return _SHARED, source, target, output
        case "source_embedding", "inputs":
            return _SHARED, source, target
        case "target_embedding", "target":
            return target, output
    return (_EMBEDDINGS[part],)


def _order(described: Yaml, model: TransformerConfig, side: str) -> list[int]:
    """The row of each word, and none for padding."""
    size = vocabulary_sizes(described)[side == "target"]
    return [*range(size), *[-1] * (model.vocab_size - size)]


STORAGE = Storage(_tensor, harmless=(r".*_QuantMultA",))  # integers for activations, which --int8 computes
"""How parameters are stored in Marian's files."""
