"""BART (Lewis et al. 2020), mBART, Pegasus, and M2M-100 with NLLB: the same names, and other options."""

from typing import Any

from transformer.config import EncoderConfig, TransformerConfig
from transformer.interop.architectures.architecture import Architecture, Path, Tensor
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu-exact",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "swish": "swish",
    "silu": "swish",
}
SIDES = {"source": "encoder", "target": "decoder"}
SUBLAYERS = {
    "self_attention": "self_attn.",
    "cross_attention": "encoder_attn.",
    "self_residual": "self_attn_layer_norm.",
    "cross_residual": "encoder_attn_layer_norm.",
    "feed_forward_residual": "final_layer_norm.",
    "feed_forward": "",
}
LEAVES = {
    "query": "q_proj.weight",
    "key": "k_proj.weight",
    "value": "v_proj.weight",
    "out": "out_proj.weight",
    "query_bias": "q_proj.bias",
    "key_bias": "k_proj.bias",
    "value_bias": "v_proj.bias",
    "out_bias": "out_proj.bias",
    "inner.kernel": "fc1.weight",
    "inner.bias": "fc1.bias",
    "outer.kernel": "fc2.weight",
    "outer.bias": "fc2.bias",
    "norm.norm.scale": "weight",
    "norm.norm.bias": "bias",
    "norm.scale": "weight",
    "norm.bias": "bias",
}
_TABLES_BEFORE = 2  # rows of a table of positions, kept for padding


def _options(config: Json, **more: Any) -> dict[str, Any]:
    """The options that these families share."""
    activation = config["activation_function"]
    if activation not in ACTIVATIONS:
        raise UserError(f"activation_function {activation!r}: supported are {', '.join(ACTIVATIONS)}")
    if not config.get("tie_word_embeddings", True):
        raise UserError("tie_word_embeddings is false, which is not supported for this model_type")
    sizes = ("ffn_dim", "attention_heads")
    same = all(config[f"encoder_{name}"] == config[f"decoder_{name}"] for name in sizes)
    encoder = EncoderConfig(d_ff=config["encoder_ffn_dim"], num_heads=config["encoder_attention_heads"])
    return {
        "num_layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "d_model": config["d_model"],
        "d_ff": config["decoder_ffn_dim"],
        "num_heads": config["decoder_attention_heads"],
        **({} if same else {"encoder_stack": encoder}),
        "dropout": float(config.get("dropout", 0.1)),
        "attention_dropout": float(config.get("attention_dropout", 0.0)),
        "activation_dropout": float(config.get("activation_dropout", 0.0)),
        "activation": ACTIVATIONS[activation],
        "norm_epsilon": 1e-5,
        "attention_bias": True,
        "scale_embedding": bool(config.get("scale_embedding")),
        **more,
    }


def _tensor(path: Path, config: Json, model: TransformerConfig) -> Tensor:
    """Where a parameter is stored."""
    part, *inner = path
    leaf = ".".join(inner)
    if part == "source_embedding":
        return Tensor(("model.shared.weight", "shared.weight", "model.encoder.embed_tokens.weight"))
    if part == "output_bias":
        return Tensor(("final_logits_bias",), if_missing=0.0)
    side, kind = part.rsplit("_", 1)
    if kind == "positions" and leaf == "table":
        return Tensor((f"model.{SIDES[side]}.embed_positions.weight",), rows_before=_TABLES_BEFORE)
    if kind == "positions":
        return Tensor((f"model.{SIDES[side]}.layernorm_embedding.{LEAVES[leaf]}",))
    if kind == "norm":
        return Tensor((f"model.{side}.layer_norm.{LEAVES[leaf]}",))
    name = LEAVES[".".join(inner[1:])]
    is_linear = name.endswith("weight") and not inner[0].endswith("residual")
    return Tensor((f"model.{side}.layers.{kind}.{SUBLAYERS[inner[0]]}{name}",), is_linear)


def _learned(config: Json) -> dict[str, Any]:
    return {"positions": "learned", "max_positions": config["max_position_embeddings"]}


BART = Architecture(
    "bart",
    lambda config, names: _options(config, output_bias=True, embedding_norm=True, **_learned(config)),
    _tensor,
    start=lambda config: (config["bos_token_id"],),
)
MBART = Architecture(
    "mbart", lambda config, names: BART.options(config, names) | {"norm": "pre"}, _tensor, has_codes=True
)
PEGASUS = Architecture(
    "pegasus",
    lambda config, names: _options(config, output_bias=True, norm="pre"),
    _tensor,
    sines_first=True,
)
M2M_100 = Architecture(
    "m2m_100",
    lambda config, names: _options(config, norm="pre", positions="sinusoidal-halves", first_position=2),
    _tensor,
    has_codes=True,
)
