"""Whisper (Radford et al. 2022): a Transformer that hears."""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from transformer.config import EncoderConfig, TransformerConfig
from transformer.interop.architectures.architecture import Architecture, Names, Storage, Tensor
from transformer.interop.architectures.bart import BART, described_bart, with_base_names
from transformer.interop.vocabularies.hub import HubVocabulary
from transformer.runtime.files import Json

HALVED = 2  # frames to a position of the encoder
_CONVOLUTIONS = {"convolutions_0": "conv1", "halvings_0": "conv2"}
_UNUSED = {"scale_embedding": False}
"""What the network does not have, whatever a config says."""
_NO_DROPOUT = {"dropout": 0.0}
"""That of its training, if a config does not say it: with any, it no longer knows what it hears."""


def _options(config: Json, names: Container[str]) -> dict[str, Any]:
    encoder = EncoderConfig(
        d_ff=config["encoder_ffn_dim"],
        num_heads=config["encoder_attention_heads"],
        max_positions=config["max_source_positions"],
    )
    return {
        **BART.options(
            _NO_DROPOUT | config | _UNUSED | {"max_position_embeddings": config["max_target_positions"]},
            names,
        ),
        "output_bias": False,
        "fixed_padding": False,
        "fixed": ("source_positions",),  # sinusoids
        "embedding_norm": False,
        "share_embeddings": "target",
        "encoder_stack": encoder,
        "norm": "pre",
        "key_bias": False,
        "first_convolutions": 1,
        "convolutions": 1,
        "convolution_activation": "gelu-exact",
        "channels": config["d_model"],
        "front_projection": False,
    }


def _tensor(path: Names, config: Json, model: TransformerConfig) -> Tensor:
    part, *inner = path
    if part in _CONVOLUTIONS:
        leaf = "weight" if inner == ["kernel"] else "bias"
        name = f"model.encoder.{_CONVOLUTIONS[part]}.{leaf}"
        return with_base_names(Tensor((name,), "convolution" if leaf == "weight" else "plain"))
    if part == "target_embedding":
        names = ("model.decoder.embed_tokens.weight", "proj_out.weight", "model.decoder.projection.weight")
        return with_base_names(Tensor(names))  # the last one is CTranslate2's
    stored = BART.storage.tensor(path, config, model)
    return replace(stored, rows_before=0)  # its tables of positions have no rows for padding


def _describe(model: TransformerConfig) -> Json:
    described = described_bart(model)
    del described["max_position_embeddings"], described["scale_embedding"]
    described["max_source_positions"] = model.of_encoder.max_positions
    described["max_target_positions"] = model.max_positions
    return described


WHISPER = Architecture(
    "whisper",
    _options,
    # CTranslate2 gives keys a bias. It adds the same number to all scores of a query, so a softmax ignores it
    Storage(_tensor, harmless=(r"model\.(en|de)coder\.layers\.\d+\.(self|encoder)_attn\.k_proj\.bias",)),
    HubVocabulary,
    model_class="WhisperForConditionalGeneration",
    describe=_describe,
)
