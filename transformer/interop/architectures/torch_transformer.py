"""torch.nn.Transformer between two embeddings and a linear layer, as in PyTorch's tutorial on translation.

The names of its tensors are those of the tutorial's Seq2SeqTransformer, or those in `tensors` of config.json.
"""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from transformer.config.model import SpecialIds
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.words import WhitespaceTokenizer
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
    check_sinusoids,
    interleaved,
)
from transformer.interop.folders.folder import CONFIG, first_of, read_json
from transformer.interop.folders.pieces import PIECES, read_hub_file
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

ACTIVATIONS = {"relu": "relu", "gelu": "gelu-exact"}
TENSORS = {
    "source_embedding": "src_tok_emb.embedding.weight",
    "target_embedding": "tgt_tok_emb.embedding.weight",
    "output": "generator.",
    "transformer": "transformer.",
    "positions": "positional_encoding.pos_embedding",
}
"""The names, of which those that end with a point begin others."""
ATTENTION = {"self_attention": "self_attn.", "cross_attention": "multihead_attn."}
NORMS = {
    "encoder": {"self_residual": "norm1.", "feed_forward_residual": "norm2."},
    "decoder": {"self_residual": "norm1.", "cross_residual": "norm2.", "feed_forward_residual": "norm3."},
}
JOINED = ("query", "key", "value")
"""Projections that are one tensor, in this order."""
LINEAR = {"inner": "linear1.", "outer": "linear2."}
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def _options(config: Json, names: Container[str]) -> dict[str, Any]:
    activation = config.get("activation", "relu")
    if activation not in ACTIVATIONS:
        raise UserError(f"activation {activation!r}: supported are {', '.join(ACTIVATIONS)}")
    has_biases = bool(config.get("bias", True))
    return {
        "target_vocab_size": config["target_vocab_size"],
        "share_embeddings": "none",
        "num_layers": config["num_encoder_layers"],
        "decoder_layers": config["num_decoder_layers"],
        "d_model": config["d_model"],
        "num_heads": config["nhead"],
        "d_ff": config["dim_feedforward"],
        "dropout": float(config.get("dropout", 0.1)),
        "attention_dropout": float(config.get("dropout", 0.1)),
        "activation_dropout": float(config.get("dropout", 0.1)),
        "activation": ACTIVATIONS[activation],
        "norm": "pre" if config.get("norm_first") else "post",
        "norm_epsilon": float(config.get("layer_norm_eps", 1e-5)),
        "final_norm": True,
        "attention_bias": has_biases,
        "feed_forward_bias": has_biases,
        "scale_embedding": bool(config.get("scale_embedding", True)),
        "output_bias": True,
    }


def _names(config: Json) -> dict[str, str]:
    named = config.get("tensors", {})
    if unknown := [name for name in named if name not in TENSORS]:
        raise UserError(f"tensors has {unknown[0]!r}; known are {', '.join(TENSORS)}")
    return TENSORS | named


def _tensor(path: Names, config: Json, model: TransformerConfig) -> Tensor:
    component, *inner = path
    names = _names(config)
    if component in ("source_embedding", "target_embedding"):
        return Tensor((names[component],))
    if component == "output_embedding":
        return Tensor((f"{names['output']}weight",))
    if component == "output_bias":
        return Tensor((f"{names['output']}bias",), if_missing=0.0)
    stack, layer = component.rsplit("_", 1)
    module = names["transformer"] + stack
    if layer == "norm":
        return _norm(f"{module}.norm.", inner[-1])
    module = f"{module}.layers.{layer}."
    sublayer, *leaf_path = inner
    if sublayer in ATTENTION:
        return _projection(module + ATTENTION[sublayer], leaf_path[-1])
    if sublayer in NORMS[stack]:
        return _norm(module + NORMS[stack][sublayer], leaf_path[-1])
    linear, leaf = leaf_path
    return Tensor((f"{module}{LINEAR[linear]}{LEAVES[leaf]}",), "out-in" if leaf == "kernel" else "plain")


def _norm(module: str, leaf: str) -> Tensor:
    return Tensor((module + LEAVES[leaf],), if_missing=0.0 if leaf == "bias" else None)


def _projection(module: str, leaf: str) -> Tensor:
    name = leaf.removesuffix("_bias")
    parameter = "weight" if leaf == name else "bias"
    layout: Layout = "out-in" if leaf == name else "plain"
    if name in JOINED:
        return Tensor((f"{module}in_proj_{parameter}",), layout, part=(JOINED.index(name), len(JOINED)))
    return Tensor((f"{module}out_proj.{parameter}",), layout)


def _check(config: Json, model: TransformerConfig, read: Read) -> None:
    name = _names(config)["positions"]
    stored = read(name)
    # [positions, 1, d_model] in the tutorial
    table = stored if stored is None or not stored.size else stored.reshape(-1, stored.shape[-1])
    check_sinusoids(name, table, model.d_model, interleaved, tolerance=1e-2)


# Its vocabulary: lists of words.


SIDES = ("source", "target")
LIST = "vocabulary.txt"


class WordVocabulary(Vocabulary):
    """For each side or for both a list of words (source_vocabulary.txt, vocabulary.txt), one
    a line in the order of the ids, or a tokenizer.json (source_tokenizer.json, tokenizer.json)."""

    def __init__(self, folder: Path, family: Family[Any]) -> None:
        unk = read_json(folder / CONFIG).get("unk_token_id")
        if type(unk) is not int:
            raise UserError(f"unk_token_id is {unk!r}, not an id")
        self.unk = unk
        self.ids: Json = {}
        self._paths = [first_of(folder, f"{side}_{LIST}", f"{side}_{PIECES}", LIST, PIECES) for side in SIDES]

    def tokenizers(self, opened: Opened, model: TransformerConfig, request: Request) -> Tokenizers:
        begins = opened.described.get("source_begins_with_bos", True)
        start = [model.special.bos] if begins else []
        source, target = self._paths
        return (
            _tokenizer(source, model.vocab_size, model.special, start),
            _tokenizer(target, model.output_size, model.special, ()),
        )


def _tokenizer(path: Path, size: int, special: SpecialIds, start: Sequence[int]) -> Tokenizer:
    content = read_hub_file(path)
    if path.suffix == ".json":
        return HubTokenizer(content, size, special, start)
    words = content.removesuffix("\n").split("\n")
    if len(words) != size:
        raise UserError(f"{path} has {len(words)} lines, and the model has {size} words")
    special_ids = {special.pad, special.bos, special.eos, special.unk}
    return WhitespaceTokenizer(
        [word for index, word in enumerate(words) if index not in special_ids], special, start
    )


TORCH = Family("torch.nn.Transformer", _options, Storage(_tensor, check=_check), WordVocabulary)
