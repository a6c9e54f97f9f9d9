"""BERT (Devlin et al. 2019) as the encoder of a Transformer whose decoder is new.

All tokens are of type 0, whose vector is added to the table of positions.
"""

from collections.abc import Container
from typing import Any

import numpy as np

from transformer.config import TransformerConfig
from transformer.interop.architectures.architecture import Architecture, Layout, Names, Read, Storage, Tensor
from transformer.interop.architectures.bart import ACTIVATIONS
from transformer.interop.vocabularies.bert import BertVocabulary
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

DECODER_LAYERS = 6
"""At most; the paper's number of layers (Vaswani et al. 2017)."""
PREFIXES = ("", "bert.")
"""The encoder alone, or in a model with heads."""
LEAVES = {
    "query": "attention.self.query.weight",
    "key": "attention.self.key.weight",
    "value": "attention.self.value.weight",
    "out": "attention.output.dense.weight",
    "query_bias": "attention.self.query.bias",
    "key_bias": "attention.self.key.bias",
    "value_bias": "attention.self.value.bias",
    "out_bias": "attention.output.dense.bias",
    "inner.kernel": "intermediate.dense.weight",
    "inner.bias": "intermediate.dense.bias",
    "outer.kernel": "output.dense.weight",
    "outer.bias": "output.dense.bias",
}
NORMS = {"self_residual": "attention.output.LayerNorm.", "feed_forward_residual": "output.LayerNorm."}
NORM_LEAVES = {"scale": ("weight", "gamma"), "bias": ("bias", "beta")}
TYPES = "embeddings.token_type_embeddings.weight"


def _options(config: Json, names: Container[str]) -> dict[str, Any]:
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(f"hidden_act {activation!r}: supported are {', '.join(ACTIVATIONS)}")
    if (scheme := config.get("position_embedding_type", "absolute")) != "absolute":
        raise UserError(f"position_embedding_type {scheme!r}: only 'absolute' is supported")
    if config.get("is_decoder"):
        raise UserError("is_decoder is true: only the encoder of BERT is supported")
    return {
        "share_embeddings": "target",
        "num_layers": config["num_hidden_layers"],
        "decoder_layers": min(config["num_hidden_layers"], DECODER_LAYERS),
        "d_model": config["hidden_size"],
        "d_ff": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "dropout": float(config.get("hidden_dropout_prob", 0.1)),
        "attention_dropout": float(config.get("attention_probs_dropout_prob", 0.1)),
        "activation": ACTIVATIONS[activation],
        "norm_epsilon": float(config.get("layer_norm_eps", 1e-12)),
        "positions": "learned",
        "max_positions": config["max_position_embeddings"],
        "embedding_norm": True,
        "scale_embedding": False,
        "attention_bias": True,
    }


def _tensor(path: Names, config: Json, model: TransformerConfig) -> Tensor:
    part, *inner = path
    stack, layer = part.rsplit("_", 1)
    if stack in ("decoder", "target"):
        return Tensor((), is_new=True)
    if part == "source_embedding":
        return _stored("embeddings.word_embeddings.weight")
    if part == "source_positions" and inner[-1] == "table":
        return _stored("embeddings.position_embeddings.weight")
    if part == "source_positions":
        return _stored(*(f"embeddings.LayerNorm.{leaf}" for leaf in NORM_LEAVES[inner[-1]]))
    module = f"encoder.layer.{layer}."
    if inner[0] in NORMS:
        return _stored(*(module + NORMS[inner[0]] + leaf for leaf in NORM_LEAVES[inner[-1]]))
    name = LEAVES[".".join(inner[1:])]
    return _stored(module + name, layout="out-in" if name.endswith("weight") else "plain")


def _stored(*names: str, layout: Layout = "plain") -> Tensor:
    return Tensor(tuple(prefix + name for prefix in PREFIXES for name in names), layout)


def _with_type(path: Names, x: np.ndarray, model: TransformerConfig, read: Read) -> np.ndarray:
    """Adds the vector of type 0 to positions."""
    if path != ("source_positions", "table"):
        return x
    tables = (read(prefix + TYPES) for prefix in PREFIXES)
    types = next((table for table in tables if table is not None), None)
    return x if types is None else x + types[0]


BERT = Architecture("bert", _options, Storage(_tensor, adjusted=_with_type), BertVocabulary)
