"""BERT (Devlin et al. 2019) as a run of the system `masked-lm`: an encoder, and the head that predicts hidden
tokens.

All tokens are of type 0.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.config.records import SentencesConfig
from transformer.config.transformer import StackConfig
from transformer.interop.architectures.bart import ACTIVATIONS
from transformer.interop.folders.architecture import Layout, Names, Read, Storage, Tensor
from transformer.interop.folders.conversion import imported_params
from transformer.interop.folders.folder import CONFIG, naming, read_json, tensors
from transformer.interop.folders.unused import unused
from transformer.interop.vocabularies.files import read_pieces
from transformer.model.parameters import Params, declarations
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig
from transformer.systems.masked_language_model.system import MaskedLanguageModel, MaskedLanguageModelling
from transformer.systems.presets import preset

PREFIXES = ("", "bert.")
"""The encoder alone, or in a model with heads."""
HEAD = "cls.predictions."
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
_HEAD_LEAVES = (
    *(("head", "kernel"), ("head", "bias"), ("head_norm", "scale"), ("head_norm", "bias")),
    ("output_bias", ""),
)
TYPES = "embeddings.token_type_embeddings.weight"


def bert_options(config: Json) -> dict[str, Any]:
    """The options of the network that a config.json describes.

    Raises:
      UserError: it has options that are not supported here.
      KeyError: an option is missing.
    """
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(f"hidden_act {activation!r}: supported are {', '.join(ACTIVATIONS)}")
    if (scheme := config.get("position_embedding_type", "absolute")) != "absolute":
        raise UserError(f"position_embedding_type {scheme!r}: only 'absolute' is supported")
    if config.get("is_decoder"):
        raise UserError("is_decoder is true: only the encoder of BERT is supported")
    if config.get("tie_word_embeddings", True) is not True:
        raise UserError(
            "tie_word_embeddings is false: only a head with the table of the embeddings is supported"
        )
    return {
        "num_layers": config["num_hidden_layers"],
        "d_model": config["hidden_size"],
        "d_ff": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "dropout": float(config.get("hidden_dropout_prob", 0.1)),
        "attention_dropout": float(config.get("attention_probs_dropout_prob", 0.1)),
        "activation": ACTIVATIONS[activation],
        "norm_epsilon": float(config.get("layer_norm_eps", 1e-12)),
        "positions": "learned",
        "max_positions": config["max_position_embeddings"],
        "token_type": True,
        "embedding_norm": True,
        "scale_embedding": False,
        "attention_bias": True,
    }


def _tensor(path: Names, config: Json, model: StackConfig) -> Tensor:
    part, *inner = path
    if part in ("head", "head_norm", "output_bias"):
        return _of_head(part, inner[-1] if inner else "")
    if part == "source_embedding":
        return _stored("embeddings.word_embeddings.weight", tied=(f"{HEAD}decoder.weight",))
    if part == "source_positions" and inner[-1] == "table":
        return _stored("embeddings.position_embeddings.weight")
    if part == "source_positions" and inner[-1] == "token_type":
        return replace(_stored(TYPES), part=(0, config.get("type_vocab_size", 2)), if_missing=0.0)
    if part == "source_positions":
        return _stored(*(f"embeddings.LayerNorm.{leaf}" for leaf in NORM_LEAVES[inner[-1]]))
    module = f"encoder.layer.{part.removeprefix('encoder_')}."
    if inner[0] in NORMS:
        return _stored(*(module + NORMS[inner[0]] + leaf for leaf in NORM_LEAVES[inner[-1]]))
    name = LEAVES[".".join(inner[1:])]
    return _stored(module + name, layout="out-in" if name.endswith("weight") else "plain")


def _of_head(part: str, leaf: str) -> Tensor:
    """Where a parameter of the head is stored, which some folders lack."""
    if part == "output_bias":
        return Tensor((f"{HEAD}bias", f"{HEAD}decoder.bias"), if_missing="new")
    if part == "head_norm":
        names = tuple(f"{HEAD}transform.LayerNorm.{name}" for name in NORM_LEAVES[leaf])
        return Tensor(names, if_missing="new")
    is_matrix = leaf == "kernel"
    name = f"{HEAD}transform.dense.{'weight' if is_matrix else 'bias'}"
    return Tensor((name,), "out-in" if is_matrix else "plain", if_missing="new")


def _stored(*names: str, layout: Layout = "plain", tied: Names = ()) -> Tensor:
    return Tensor((*(prefix + name for prefix in PREFIXES for name in names), *tied), layout)


def _check(config: Json, model: StackConfig, read: Read) -> None:
    head = [_of_head(part, leaf).names for part, leaf in _HEAD_LEAVES]
    missing = [names[0] for names in head if all(read(name) is None for name in names)]
    if 0 < len(missing) < len(head):
        raise UserError(f"there is no tensor {missing[0]}, and there are others of the head")


STORAGE = Storage(
    _tensor,
    check=_check,
    harmless=(
        r"(bert\.)?embeddings\.position_ids",  # the numbers 0, 1, 2, ...
        # heads for pairs of sentences, which read [CLS] and which predictions of hidden tokens do not read
        r"(bert\.)?pooler\.dense\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
    ),
)


# Imports BERT as a run of the system `masked-lm`, which is trained further, or becomes the encoder of other
# models (`train.py --init-encoder-from`).


MODEL_TYPE = "bert"
_SPECIAL = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
_MASK = "[MASK]"


def import_bert(folder: Path, run_dir: Path | str, origin: str = "imported") -> Run:
    """Writes a run directory from BERT. Texts begin with [CLS] and end with [SEP]. A head that is not stored
    is initialised as before training.

    Args:
      folder: with config.json, model.safetensors, and tokenizer.json or vocab.txt.
      run_dir: a new directory, for `train.py --init-encoder-from` and `--init-from`.
      origin: what the run says of where it comes from.

    Raises:
      UserError: a file is missing, damaged or of another kind of model.
    """
    described, source = read_json(folder / CONFIG), tensors(folder)
    pieces = read_pieces(folder)
    ids = {name: pieces.id_of(piece) for name, piece in (_SPECIAL | {"mask": _MASK}).items()}
    if missing := [(_SPECIAL | {"mask": _MASK})[name] for name, index in ids.items() if index is None]:
        raise UserError(f"the vocabulary of {folder} has no {missing[0]}")
    mask = ids.pop("mask")
    with naming(folder / CONFIG):
        size = described["vocab_size"]
        special = SpecialIds(**ids)  # type: ignore[arg-type]  # none is None
        model = MaskedLanguageModelConfig(
            vocab_size=size, special=special, mask_id=mask, **bert_options(described)
        )
        tokenizer = pieces.tokenizer(size, special, [special.bos])
    data = SentencesConfig(dataset=origin, max_length=min(SentencesConfig.max_length, model.max_positions))
    config = Config(system="masked-lm", model=model, data=data, decoding=preset("masked-lm").decoding)
    network, example = MaskedLanguageModel(model), MaskedLanguageModelling.example(config)

    def initial() -> Params:
        params: Params = network.init(jax.random.key(0), *(jnp.zeros(x.shape, x.dtype) for x in example))
        return params["params"]

    with naming(folder):
        declared = declarations(network, example)
        params = imported_params(STORAGE, described, model, source, declared, initial)
    task = MaskedLanguageModelling(config, tokenizer)
    return Run.create(run_dir, config, task, variables={"params": params}, unused=unused(folder))


def has_head(folder: Path) -> bool:
    """Whether a folder has the head that predicts hidden tokens."""
    return f"{HEAD}transform.dense.weight" in tensors(folder).names
