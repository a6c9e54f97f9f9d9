"""Small random folders of the pretrained models that the documentation names, each laid out as its publisher
does: the same fields in config.json, the same files of the tokenizer, and the same names of tensors.

tests/data/published.json has the shapes of their tensors and what `transformers` computes with them
(tests/make_published_golden.py).
"""

import json
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

DATA = Path(__file__).parent / "data"
GOLDEN = DATA / "published.json"
_T5: dict[str, Any] = {
    **{"model_type": "t5", "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2},
    **{"relative_attention_num_buckets": 32, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6},
    **{"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "is_encoder_decoder": True},
}
_T5_1_1 = {**_T5, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_BART: dict[str, Any] = {
    **{"d_model": 8, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64},
    **{"activation_function": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
    **{"is_encoder_decoder": True, "decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2},
    **{"bos_token_id": 0, "forced_eos_token_id": 2, "scale_embedding": False},
}
_RELU = {"activation_function": "relu", "scale_embedding": True}
_FOUR_IN_ONE = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)


@dataclass(frozen=True)
class Published:
    """How a model is published."""

    config: Mapping[str, Any]
    """The fields of config.json besides vocab_size, with small numbers."""
    model_class: str
    """The class of `transformers` that loads it."""
    words: str
    """The folder of tests/data whose tokenizer it has."""
    files: tuple[str, ...]
    """The files of the tokenizer."""
    table: str | None = None
    """The only name of the matrix that several modules share. None: the first one of `transformers`."""
    is_bare: bool = False
    """Whether names of tensors lack the part that stands for the network without its head."""
    more: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of tensors that no program reads."""
    languages: tuple[str, ...] = ()
    """The languages of the import."""
    vocab_size: int | None = None
    """Rows of the matrix of words. None: as many as the tokenizer has, and one more."""


_SPIECE = ("spiece.model", "tokenizer_config.json")
_BOTH = ("spiece.model", "tokenizer.json", "tokenizer_config.json")
PUBLISHED = {
    "google-t5/t5-small": Published(
        {**_T5, "n_positions": 512, "output_past": True, "task_specific_params": {}},
        *("T5ForConditionalGeneration", "tokenizers/t5", _BOTH),
        more={"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (32, 2)},
    ),
    "google/t5-v1_1-small": Published(
        _T5_1_1, "T5ForConditionalGeneration", "tokenizers/t5", _SPIECE, table="shared.weight"
    ),
    "google/flan-t5-small": Published(
        _T5_1_1, "T5ForConditionalGeneration", "tokenizers/t5", _BOTH, table="shared.weight"
    ),
    "google/madlad400-3b-mt": Published(
        {**_T5_1_1, "relative_attention_max_distance": 128},
        *("T5ForConditionalGeneration", "tokenizers/t5", _BOTH),
        table="decoder.embed_tokens.weight",
    ),
    "google/mt5-small": Published(
        {**_T5_1_1, "model_type": "mt5", "tokenizer_class": "T5Tokenizer"},
        *("MT5ForConditionalGeneration", "tokenizers/t5", _SPIECE),
        table="encoder.embed_tokens.weight",
    ),
    "google/byt5-small": Published(
        {**_T5_1_1, "tokenizer_class": "ByT5Tokenizer"},
        *("T5ForConditionalGeneration", "", ()),
        table="shared.weight",
        vocab_size=384,
    ),
    "facebook/bart-large-cnn": Published(
        {**_BART, "model_type": "bart", "forced_bos_token_id": 0, "num_beams": 4, "length_penalty": 2.0},
        *("BartForConditionalGeneration", "tokenizers/bart", ("vocab.json", "merges.txt", "tokenizer.json")),
        table="model.decoder.embed_tokens.weight",
    ),
    "facebook/bart-base": Published(
        {**_BART, "model_type": "bart", "forced_bos_token_id": 0, "architectures": ["BartModel"]},
        *("BartForConditionalGeneration", "tokenizers/bart", ("vocab.json", "merges.txt")),
        is_bare=True,
    ),
    "facebook/mbart-large-50-many-to-many-mmt": Published(
        {**_BART, **_RELU, "model_type": "mbart", "normalize_before": True, "add_final_layer_norm": True},
        *("MBartForConditionalGeneration", "tokenizers/mbart"),
        ("sentencepiece.bpe.model", "special_tokens_map.json", "tokenizer_config.json"),
        table="lm_head.weight",
        languages=("en_XX", "de_DE"),
    ),
    "facebook/m2m100_418M": Published(
        {**_BART, **_RELU, "model_type": "m2m_100"},
        *("M2M100ForConditionalGeneration", "tokenizers/m2m"),
        ("sentencepiece.bpe.model", "vocab.json", "tokenizer_config.json"),
        more={"model.encoder.version": (1,), "model.decoder.embed_positions.weights": (66, 8)},
        vocab_size=len(json.loads((DATA / "tokenizers" / "m2m" / "vocab.json").read_text())) + 108,
        languages=("en", "de"),
    ),
    "facebook/nllb-200-distilled-600M": Published(
        {**_BART, **_RELU, "model_type": "m2m_100", "max_length": 200},
        *("M2M100ForConditionalGeneration", "tokenizers/nllb"),
        ("sentencepiece.bpe.model", "tokenizer.json", "special_tokens_map.json", "tokenizer_config.json"),
        languages=("eng_Latn", "deu_Latn"),
    ),
    "google/pegasus-xsum": Published(
        {
            **{**_BART, **_RELU, "model_type": "pegasus", "pad_token_id": 0, "eos_token_id": 1},
            **{"decoder_start_token_id": 0, "forced_eos_token_id": 1, "normalize_before": True},
        },
        *("PegasusForConditionalGeneration", "tokenizers/pegasus", _SPIECE),
    ),
    "Helsinki-NLP/opus-mt-en-de": Published(
        {
            **{**_BART, **_RELU, "model_type": "marian", "activation_function": "swish"},
            **{"static_position_embeddings": True, "normalize_before": False, "normalize_embedding": False},
        },
        *("MarianMTModel", "marian", ("source.spm", "target.spm", "vocab.json")),
    ),
    "openai/whisper-base": Published(
        json.loads((DATA / "whisper" / "config.json").read_text()),
        *("WhisperForConditionalGeneration", "whisper"),
        ("tokenizer.json", "generation_config.json", "preprocessor_config.json"),
        table="proj_out.weight",
        vocab_size=json.loads((DATA / "whisper" / "config.json").read_text())["vocab_size"],
        languages=("en",),
    ),
    "google-bert/bert-base-uncased": Published(
        {
            **{"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"intermediate_size": 12, "max_position_embeddings": 64, "type_vocab_size": 2},
            **{"hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0},
        },
        *("BertForMaskedLM", "tokenizers/bert", ("vocab.txt", "tokenizer.json", "tokenizer_config.json")),
        more={
            **{"bert.pooler.dense.weight": (8, 8), "cls.seq_relationship.weight": (2, 8)},
            **{"bert.embeddings.position_ids": (1, 64)},
        },
    ),
}
"""By the name on Hugging Face's hub."""


def sinusoids(count: int, width: int) -> np.ndarray:
    """The paper's table of positions, all sines first."""
    rates = 10_000 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(count)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def features() -> np.ndarray:
    """Noise that Whisper hears, `[1, frames, bands]`."""
    config = PUBLISHED["openai/whisper-base"].config
    shape = 1, 2 * config["max_source_positions"], config["num_mel_bins"]
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def write_published(name: str, folder: Path, shapes: Mapping[str, Any], vocab_size: int) -> None:
    """Writes the folder of a model.

    Args:
      name: of `PUBLISHED`.
      folder: a new folder.
      shapes: of the tensors, by name.
      vocab_size: rows of the matrix of words.
    """
    published = PUBLISHED[name]
    folder.mkdir(parents=True)
    for file in published.files:
        shutil.copy(DATA / published.words / file, folder)
    config = {**published.config, "vocab_size": vocab_size}
    if config["model_type"] == "marian":  # whose <pad> comes last, and begins outputs
        config |= {
            "pad_token_id": vocab_size - 1,
            "decoder_start_token_id": vocab_size - 1,
            "eos_token_id": 0,
        }
    (folder / "config.json").write_text(json.dumps(config))
    if published.config.get("tokenizer_class") == "ByT5Tokenizer":
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    tensors = {}
    for tensor, shape in sorted(shapes.items()):
        is_scale = tensor.endswith(("norm.weight", "embedding.weight")) and len(shape) == 1
        drawn = rng.normal(size=shape) * 0.3 + is_scale
        tensors[tensor] = drawn.astype(np.float32)
        if tensor.endswith("embed_positions.weight") and config["model_type"] in ("pegasus", "marian"):
            tensors[tensor] = sinusoids(*shape)
        if tensor.endswith("position_ids"):
            tensors[tensor] = np.arange(shape[-1])[None]
    save_file(tensors, folder / "model.safetensors")
