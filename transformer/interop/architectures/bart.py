"""BART (Lewis et al. 2020), mBART, Pegasus, and M2M-100 with NLLB: the same names, and other options."""

from dataclasses import replace
from typing import Any

import numpy as np

from transformer.config.transformer import EncoderConfig, TransformerConfig
from transformer.interop.folders.family import (
    NO_TASK,
    Family,
    Names,
    Read,
    Storage,
    Tensor,
    check_sinusoids,
    sines_then_cosines,
)
from transformer.interop.folders.pieces import (
    VOCABULARY,
    HubVocabulary,
    byte_level,
    fairseq_words,
    m2m_100_words,
    of_file,
    of_sentencepiece,
    pegasus_words,
)
from transformer.model.parameters import Params
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
    **{name: f"{name[0]}_proj.weight" for name in ("query", "key", "value")},
    **{f"{name}_bias": f"{name[0]}_proj.bias" for name in ("query", "key", "value")},
    "out": "out_proj.weight",
    "out_bias": "out_proj.bias",
    "inner.kernel": "fc1.weight",
    "inner.bias": "fc1.bias",
    "outer.kernel": "fc2.weight",
    "outer.bias": "fc2.bias",
    **dict.fromkeys(("norm.norm.scale", "norm.scale"), "weight"),
    **dict.fromkeys(("norm.norm.bias", "norm.bias"), "bias"),
}
NAMES = {activation: name for name, activation in reversed(ACTIVATIONS.items())} | {"gelu": "gelu_new"}
PREFIX = "model."
"""How names begin; not in folders of the network without its head, such as BartModel."""
POSITIONS = "model.{side}.embed_positions.weight"
_HARMLESS = (r"(model\.)?(encoder|decoder)\.version",)
"""Numbers of the program with which the models were trained. The sinusoids of M2M-100, too, are computed by
every program, and only older versions of `transformers` stored them."""
_ROWS_BEFORE = 2  # of a table of positions, which stand for padding
LONGEST = 1024
"""Rows of an exported table of sinusoids: the maximum length of a sentence."""
SHARED = "model.shared.weight"
HEAD = "lm_head.weight"
_EMBEDDINGS = {
    "source_embedding": "model.encoder.embed_tokens.weight",
    "target_embedding": "model.decoder.embed_tokens.weight",
}


def bart_options(config: Json, **more: Any) -> dict[str, Any]:
    """The options that these families share, and more."""
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
        "fixed_padding": _begins_with_padding(config),
        "fixed": ("output_bias",) if more.get("output_bias") else (),  # it is no parameter there
        **more,
    }


def _begins_with_padding(config: Json) -> bool:
    """Whether outputs begin with <pad>, whose embedding is not trained where it is read."""
    return "pad_token_id" in config and config["pad_token_id"] == config.get("decoder_start_token_id")


def described_bart(model: TransformerConfig, **more: Any) -> Json:
    """The reverse of `bart_options`."""
    if model.activation not in NAMES:
        raise UserError(f"--model.activation {model.activation}")
    encoder = model.of_encoder
    return {
        "encoder_layers": model.num_layers,
        "decoder_layers": model.decoder_depth,
        "d_model": model.d_model,
        "encoder_ffn_dim": encoder.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "encoder_attention_heads": encoder.num_heads,
        "decoder_attention_heads": model.num_heads,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "activation_function": NAMES[model.activation],
        "scale_embedding": model.scale_embedding,
        "max_position_embeddings": model.longest or LONGEST,
        "tie_word_embeddings": True,
        "normalize_before": model.norm == "pre",  # which only CTranslate2's converter reads
        "normalize_embedding": model.embedding_norm,
        **more,
    }


def with_base_names(tensor: Tensor) -> Tensor:
    """A tensor, also by its names in a folder of the network without its head."""
    names = dict.fromkeys((*tensor.names, *(name.removeprefix(PREFIX) for name in tensor.names)))
    return replace(tensor, names=tuple(names))


def _tables(table: str, model: TransformerConfig) -> tuple[str, ...]:
    """The names of a matrix of words, among them those of the matrices that it is tied to."""
    if table == "output_embedding":
        return (HEAD,)
    is_output = model.share_embeddings == ("target" if table == "target_embedding" else "all")
    inputs = (SHARED, *_EMBEDDINGS.values()) if model.shares_inputs else (_EMBEDDINGS[table], SHARED)
    return (*inputs, HEAD) if is_output else inputs


def _tensor(path: Names, config: Json, model: TransformerConfig) -> Tensor:
    return with_base_names(_stored(path, model))


def _stored(path: Names, model: TransformerConfig) -> Tensor:
    component, *inner = path
    leaf = ".".join(inner)
    if component.endswith("_embedding"):
        return Tensor(_tables(component, model))
    if component == "output_bias":
        return Tensor(("final_logits_bias",), "row", if_missing=0.0)
    side, module = component.rsplit("_", 1)
    if module == "positions" and leaf == "table":
        return Tensor((POSITIONS.format(side=SIDES[side]),), rows_before=_ROWS_BEFORE)
    if module == "positions":
        return Tensor((f"model.{SIDES[side]}.layernorm_embedding.{LEAVES[leaf]}",))
    if module == "norm":
        return Tensor((f"model.{side}.layer_norm.{LEAVES[leaf]}",))
    name = LEAVES[".".join(inner[1:])]
    is_matrix = name.endswith("weight") and not inner[0].endswith("residual")
    return Tensor(
        (f"model.{side}.layers.{module}.{SUBLAYERS[inner[0]]}{name}",), "out-in" if is_matrix else "plain"
    )


def _learned(config: Json) -> dict[str, Any]:
    return {"positions": "learned", "max_positions": config["max_position_embeddings"]}


def _sinusoids(params: Params, model: TransformerConfig) -> dict[str, np.ndarray]:
    table = sines_then_cosines(LONGEST, model.d_model)
    return {POSITIONS.format(side=side): table for side in SIDES.values()}


def _check_sinusoids(config: Json, model: TransformerConfig, read: Read) -> None:
    for side in SIDES.values():
        check_sinusoids(POSITIONS.format(side=side), stored_positions(side, read), model.d_model)


def stored_positions(side: str, read: Read) -> np.ndarray | None:
    """The table of positions of a side, if a folder has one."""
    name = POSITIONS.format(side=side)
    return stored if (stored := read(name)) is not None else read(name.removeprefix(PREFIX))


BART = Family(
    "bart",
    lambda config, names: bart_options(config, output_bias=True, embedding_norm=True, **_learned(config)),
    Storage(_tensor, harmless=_HARMLESS),
    HubVocabulary,
    {"decoder_start_token_id": 2},
    of_file(VOCABULARY, byte_level),
    begins_with="<s>",
    model_class="BartForConditionalGeneration",
    describe=described_bart,
)
MBART = replace(
    BART,
    model_type="mbart",
    options=lambda config, names: BART.options(config, names) | {"norm": "pre"},
    defaults={},
    older=of_sentencepiece(fairseq_words),
    begins_with=None,
    has_codes=True,
    refuses=NO_TASK,
    model_class="MBartForConditionalGeneration",
    describe=lambda model: described_bart(model, tokenizer_class="MBart50Tokenizer"),
)
PEGASUS = Family(
    "pegasus",
    lambda config, names: bart_options(config, output_bias=True, norm="pre"),
    Storage(_tensor, sines_first=True, check=_check_sinusoids, more_tensors=_sinusoids, harmless=_HARMLESS),
    HubVocabulary,
    {"decoder_start_token_id": 0},
    of_sentencepiece(pegasus_words),
    model_class="PegasusForConditionalGeneration",
    describe=described_bart,
)
M2M_100 = Family(
    "m2m_100",
    lambda config, names: bart_options(
        config,
        norm="pre",
        positions="sinusoidal-halves",
        first_position=config.get("pad_token_id", 1)
        + 1,  # as in fairseq: the row of <pad> is the last one before
    ),
    Storage(_tensor, harmless=(*_HARMLESS, r"(model\.)?(encoder|decoder)\.embed_positions\.weights")),
    HubVocabulary,
    {"decoder_start_token_id": 2, "scale_embedding": True, "attention_dropout": 0.1},
    of_sentencepiece(m2m_100_words),
    has_codes=True,
    refuses=NO_TASK,
    model_class="M2M100ForConditionalGeneration",
    describe=described_bart,
)
