"""BERT (Devlin et al. 2019) as a run of the system `masked-lm`: an encoder, and the head that predicts hidden
tokens.

All tokens are of type 0.
"""

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from transformer.config.corpus import CorpusConfig
from transformer.config.decoding import DecodingConfig
from transformer.config.records import SentencesConfig
from transformer.config.transformer import StackConfig
from transformer.interop.architectures.bart import ACTIVATIONS
from transformer.interop.folders.family import (
    Family,
    Layout,
    Names,
    Opened,
    Read,
    Request,
    Storage,
    Tensor,
    Tokenizers,
    Vocabulary,
    without_codes,
)
from transformer.interop.folders.folder import CONFIG, read_json, tensors
from transformer.interop.folders.pieces import WORDS, of_file, read_pieces, word_pieces
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig
from transformer.systems.presets import preset

PREFIXES = ("", "bert.")
"""The encoder alone, or in a model with heads."""
HEAD = "cls.predictions."
LEAVES = {
    **{name: f"attention.self.{name}.weight" for name in ("query", "key", "value")},
    **{f"{name}_bias": f"attention.self.{name}.bias" for name in ("query", "key", "value")},
    "out": "attention.output.dense.weight",
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


def bert_options(config: Json, names: Container[str]) -> dict[str, Any]:
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
        "mask_id": config["mask_token_id"],
        "token_type": True,
        "embedding_norm": True,
        "scale_embedding": False,
        "attention_bias": True,
    }


def _tensor(path: Names, config: Json, model: StackConfig) -> Tensor:
    component, *inner = path
    if component in ("head", "head_norm", "output_bias"):
        return _of_head(component, inner[-1] if inner else "")
    if component == "source_embedding":
        return _stored("embeddings.word_embeddings.weight", tied=(f"{HEAD}decoder.weight",))
    if component == "source_positions" and inner[-1] == "table":
        return _stored("embeddings.position_embeddings.weight")
    if component == "source_positions" and inner[-1] == "token_type":
        return replace(_stored(TYPES), part=(0, config.get("type_vocab_size", 2)), if_missing=0.0)
    if component == "source_positions":
        return _stored(*(f"embeddings.LayerNorm.{leaf}" for leaf in NORM_LEAVES[inner[-1]]))
    module = f"encoder.layer.{component.removeprefix('encoder_')}."
    if inner[0] in NORMS:
        return _stored(*(module + NORMS[inner[0]] + leaf for leaf in NORM_LEAVES[inner[-1]]))
    name = LEAVES[".".join(inner[1:])]
    return _stored(module + name, layout="out-in" if name.endswith("weight") else "plain")


def _of_head(component: str, leaf: str) -> Tensor:
    """Where a parameter of the head is stored, which some folders lack."""
    if component == "output_bias":
        return Tensor((f"{HEAD}bias", f"{HEAD}decoder.bias"), if_missing="new")
    if component == "head_norm":
        names = tuple(f"{HEAD}transform.LayerNorm.{name}" for name in NORM_LEAVES[leaf])
        return Tensor(names, if_missing="new")
    is_matrix = leaf == "kernel"
    name = f"{HEAD}transform.dense.{'weight' if is_matrix else 'bias'}"
    return Tensor((name,), "out-in" if is_matrix else "plain", if_missing="new")


def _stored(*names: str, layout: Layout = "plain", tied: Names = ()) -> Tensor:
    return Tensor((*(prefix + name for prefix in PREFIXES for name in names), *tied), layout)


def _check(config: Json, model: StackConfig, read: Read) -> None:
    head = [_of_head(component, leaf).names for component, leaf in _HEAD_LEAVES]
    missing = [names[0] for names in head if all(read(name) is None for name in names)]
    if 0 < len(missing) < len(head):
        raise UserError(f"there is no tensor {missing[0]}, and there are others of the head")


_SPECIAL = {
    "pad_token_id": "[PAD]",
    "decoder_start_token_id": "[CLS]",
    "eos_token_id": "[SEP]",
    "mask_token_id": "[MASK]",
}


class BertVocabulary(Vocabulary):
    """Texts begin with [CLS] and end with [SEP]."""

    def __init__(self, folder: Path, family: Family[Any]) -> None:
        self._pieces = read_pieces(folder, family.older)
        pieces = [*_SPECIAL.values(), "[UNK]"]
        ids = [self._pieces.id_of(piece) for piece in pieces]
        if None in ids:
            raise UserError(f"the vocabulary of {folder} has no {pieces[ids.index(None)]}")
        self.ids: Json = dict(zip(_SPECIAL, ids, strict=False))
        self.unk = cast(int, ids[-1])

    def tokenizers(self, opened: Opened, model: StackConfig, request: Request) -> Tokenizers:
        return (self._pieces.tokenizer(model.vocab_size, model.special, [model.special.bos]),) * 2


class Bert(Family[StackConfig]):
    """BERT, which is trained further, or becomes the encoder of other models (`train.py
    --init-encoder-from`). A head that is not stored is initialised as before training."""

    def opened(self, folder: Path) -> Opened:
        """Opens a folder, which has no options of a search."""
        return Opened(folder, folder / CONFIG, read_json(folder / CONFIG), tensors(folder), {})

    def data(
        self, opened: Opened, model: StackConfig, request: Request, tokenizers: Tokenizers
    ) -> CorpusConfig:
        longest = min(SentencesConfig.max_length, model.max_positions or SentencesConfig.max_length)
        return SentencesConfig(dataset=request.origin, max_length=longest)

    def decoding(self, opened: Opened, model: StackConfig) -> DecodingConfig:
        return preset(self.system).decoding

    def ignored(self, folder: Path) -> list[str]:
        """A sentence on the head, if a folder has none."""
        has_head = f"{HEAD}transform.dense.weight" in tensors(folder).names
        new = "the folder has no head that predicts hidden tokens, so that of this run is untrained"
        return [] if has_head else [new]


BERT = Bert(
    "bert",
    bert_options,
    Storage(
        _tensor,
        check=_check,
        harmless=(
            r"(bert\.)?embeddings\.position_ids",  # the numbers 0, 1, 2, ...
            # heads for pairs of sentences: they read [CLS], and predictions of hidden tokens do not
            r"(bert\.)?pooler\.dense\.(weight|bias)",
            r"cls\.seq_relationship\.(weight|bias)",
        ),
    ),
    BertVocabulary,
    older=of_file(WORDS, word_pieces),
    system="masked-lm",
    network=MaskedLanguageModelConfig,
    keeps_bias=True,
    refuses=without_codes("texts of BERT have no code"),
)
