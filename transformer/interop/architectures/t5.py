"""T5 (Raffel et al. 2020), its version 1.1, Flan-T5, MADLAD-400 and mT5 (Xue et al. 2021).

mT5 is the network of T5 1.1 with other defaults, whose outputs `transformers` never scales. It is
exported as T5 1.1.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from transformer.config.transformer import TransformerConfig
from transformer.interop.folders.family import Family, Names, Storage, Tensor
from transformer.interop.folders.pieces import HubVocabulary, of_sentencepiece, t5_words
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

FEED_FORWARD: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu"},
    "gated-gelu": {"activation": "gelu", "gated": True},
    "gated-silu": {"activation": "swish", "gated": True},
}
SUBLAYERS = {  # and their order in a layer of encoder and decoder
    "self_attention": ("SelfAttention.", 0, 0),
    "self_residual": ("layer_norm.", 0, 0),
    "cross_attention": ("EncDecAttention.", 1, 1),
    "cross_residual": ("layer_norm.", 1, 1),
    "feed_forward": ("DenseReluDense.", 1, 2),
    "feed_forward_residual": ("layer_norm.", 1, 2),
}
LEAVES = {
    "query": "q.weight",
    "key": "k.weight",
    "value": "v.weight",
    "out": "o.weight",
    "inner.kernel": "wi.weight",
    "outer.kernel": "wo.weight",
    "norm.norm.scale": "weight",
}
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""The names of one matrix, of which publishers keep any: MADLAD-400 has the last one."""
HEAD = "lm_head.weight"
GATED = {**LEAVES, "inner.kernel": "wi_0.weight", "gate.kernel": "wi_1.weight"}


def _options(config: Json, names: Container[str]) -> dict[str, Any]:
    feed_forward = config.get("feed_forward_proj", "relu")
    if feed_forward not in FEED_FORWARD:
        raise UserError(f"feed_forward_proj {feed_forward!r}: supported are {', '.join(FEED_FORWARD)}")
    tied = config.get("tie_word_embeddings", True)  # since transformers 5 always true
    layers = config.get("num_decoder_layers")
    own_head = HEAD in names and any(name in names for name in TABLES)
    return {
        "num_layers": config["num_layers"],
        "decoder_layers": config["num_layers"] if layers is None else layers,
        "d_model": config["d_model"],
        "d_ff": config["d_ff"],
        "num_heads": config["num_heads"],
        "d_k": config["d_kv"],
        "d_v": config["d_kv"],
        "dropout": float(config.get("dropout_rate", 0.1)),
        "norm": "pre",
        "normalization": "rms",
        "norm_epsilon": float(config.get("layer_norm_epsilon", 1e-6)),
        "feed_forward_bias": False,
        "positions": "buckets",
        "position_buckets": config.get("relative_attention_num_buckets", 32),
        "bucket_distance": config.get("relative_attention_max_distance", 128),
        "scale_embedding": False,
        "scale_scores": False,
        "scale_output": bool(config.get("scale_decoder_outputs", tied)),
        "share_embeddings": "inputs" if own_head else "all",
        **FEED_FORWARD[feed_forward],
    }


def _describe(model: TransformerConfig) -> Json:
    matching = (name for name, options in FEED_FORWARD.items() if _fits(model, options))
    feed_forward = next(matching, None)
    if feed_forward is None:
        gated = " --model.gated" if model.gated else ""
        raise UserError(f"--model.activation {model.activation}{gated}")
    return {
        "num_layers": model.num_layers,
        "num_decoder_layers": model.decoder_depth,
        "d_model": model.d_model,
        "d_ff": model.d_ff,
        "d_kv": model.key_width,
        "num_heads": model.num_heads,
        "dropout_rate": model.dropout,
        "layer_norm_epsilon": model.norm_epsilon,
        "relative_attention_num_buckets": model.position_buckets,
        "relative_attention_max_distance": model.bucket_distance,
        "feed_forward_proj": feed_forward,
        "tie_word_embeddings": model.scale_output,
        "scale_decoder_outputs": model.scale_output,
    }


def _fits(model: TransformerConfig, options: dict[str, Any]) -> bool:
    return model.activation == options["activation"] and model.gated == options.get("gated", False)


def _tensor(path: Names, config: Json, model: TransformerConfig) -> Tensor:
    component, *inner = path
    if component == "source_embedding":
        return Tensor((*TABLES, HEAD) if model.share_embeddings == "all" else TABLES)
    if component == "output_embedding":
        return Tensor((HEAD,))
    stack, module = component.rsplit("_", 1)
    if module == "distances":
        side = {"source": "encoder", "target": "decoder"}[stack]
        return Tensor((f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",))
    if module == "norm":
        return Tensor((f"{stack}.final_layer_norm.weight",))
    name, *orders = SUBLAYERS[inner[0]]
    order = orders[stack == "decoder"]
    leaf = (GATED if model.gated else LEAVES)[".".join(inner[1:])]
    return Tensor(
        (f"{stack}.block.{module}.layer.{order}.{name}{leaf}",),
        "plain" if inner[0].endswith("residual") else "out-in",
    )


T5 = Family(
    "t5",
    _options,
    Storage(
        _tensor,
        # which the first layer of the published models has, and no program reads
        harmless=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    ),
    HubVocabulary,
    older=of_sentencepiece(t5_words),
    tables=(*TABLES, HEAD),
    model_class="T5ForConditionalGeneration",
    describe=_describe,
)
MT5 = replace(
    T5,
    model_type="mt5",
    options=lambda config, names: T5.options(config, names) | {"scale_output": False},
    defaults={"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0},
    describe=None,
)
