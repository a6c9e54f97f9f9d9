"""Transformers of CTranslate2, such as those of OpenNMT: a model.bin and lists of words.

| | there | here |
|---|---|---|
| sinusoids, unless stored | sines, then cosines | `--model.positions sinusoidal-halves` |
| first position | 1 | `--model.first-position 1` |
| `</s>` of a source | none, unless `add_source_eos` | `--model.source-end` |
| words | in any order | special ones first |
"""

from collections.abc import Container
from typing import Any

from transformer.config import TransformerConfig
from transformer.interop.architectures.architecture import (
    NEVER_GENERATED,
    Architecture,
    Names,
    Storage,
    Tensor,
)
from transformer.interop.architectures.bart import BART, bart_options
from transformer.interop.ctranslate2 import ACTIVATIONS, SIDES, Variables, check_others, stacks
from transformer.interop.vocabularies.lists import ListVocabulary
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json

SPECIFICATIONS = ("TransformerSpec", "TransformerBase", "TransformerBig")
SEARCH = {"num_beams": 2, "early_stopping": True, "min_length": 2}
"""What CTranslate2 does unless it is told otherwise, in the words of generation_config.json. The minimum
length of one word counts <s> there."""
_TABLES = tuple(f"model.{side}.embed_tokens.weight" for side in SIDES)
_NORMS = ("layer_norm", "layernorm_embedding")
_PROJECTION, _BIAS = (f"model.decoder.projection.{leaf}" for leaf in ("weight", "bias"))


def transformer_config(read: Variables) -> Json:
    """What a config.json would say of the network.

    Raises:
      UserError: it is another network, or has options that are not supported here.
    """
    if read.specification not in SPECIFICATIONS:
        raise UserError(
            f"it holds a {read.specification}, and {', '.join(SPECIFICATIONS)} and WhisperSpec are read here"
        )
    check_others(read)
    same: dict[str, int] = {}
    for name, default in (("pre_norm", 1), ("activation", 0), ("scale_embeddings", 1)):
        values = {read.number(f"{side}/{name}", default) for side in SIDES}
        if len(values) > 1:
            raise UserError(f"{name} differs between encoder and decoder, which is not supported")
        same[name] = values.pop()
    positions = {read.shape(f"model.{side}.embed_positions.weight") for side in SIDES}
    if len(positions) > 1:
        raise UserError("the tables of positions of encoder and decoder differ, which is not supported")
    return {
        "model_type": "ctranslate2",
        "d_model": read.stored_shape("decoder/embeddings/weight")[1],
        "activation_function": ACTIVATIONS.get(same["activation"], f"number {same['activation']}"),
        "pre_norm": bool(same["pre_norm"]),
        "scale_embedding": bool(same["scale_embeddings"]),
        "positions": next(iter(positions)),
        "zero_start": bool(read.number("decoder/start_from_zero_embedding", 0)),
        "inputs_are_tied": read.is_same(*_TABLES),
        "output_is_tied": read.is_same(_TABLES[1], _PROJECTION),
        **stacks(read),
    }


def _options(config: Json, names: Container[str]) -> dict[str, Any]:
    final, embedding = ({f"model.{side}.{name}.weight" in names for side in SIDES} for name in _NORMS)
    if len(final) > 1 or len(embedding) > 1 or (config["pre_norm"] and final != {True}):
        raise UserError("the norms of encoder and decoder differ, which is not supported")
    ties = config["inputs_are_tied"], config["output_is_tied"]
    learned = {"positions": "learned", "max_positions": config["positions"] and config["positions"][0]}
    computed = {"positions": "sinusoidal-halves", "first_position": 1}
    return bart_options(
        config,
        target_vocab_size=None if ties[0] else config["target_vocab_size"],
        share_embeddings={(1, 1): "all", (1, 0): "inputs", (0, 1): "target", (0, 0): "none"}[ties],
        norm="pre" if config["pre_norm"] else "post",
        final_norm=final == {True} and not config["pre_norm"],
        embedding_norm=embedding == {True},
        output_bias=True,
        fixed=(),
        zero_start=config["zero_start"],
        source_end=config["source_end"],
        **(learned if config["positions"] else computed),
    )


def _tensor(path: Names, config: Json, model: TransformerConfig) -> Tensor:
    source, target = config["orders"]
    match path[0]:
        case "output_bias":
            return Tensor((_BIAS,), order=target, filler=NEVER_GENERATED, if_missing=0.0)
        case "output_embedding":
            return Tensor((_PROJECTION,), order=target)
        case "source_embedding":
            is_all, tables = model.share_embeddings == "all", _TABLES if model.shares_inputs else _TABLES[:1]
            return Tensor((*tables, _PROJECTION) if is_all else tables, order=source)
        case "target_embedding":
            is_output = model.share_embeddings == "target"
            return Tensor((_TABLES[1], _PROJECTION) if is_output else _TABLES[1:], order=target)
        case "source_positions" | "target_positions" if path[-1] == "table":
            stored = BART.storage.tensor(path, config, model)
            return Tensor(stored.names)  # without the rows for padding that other families have
    return BART.storage.tensor(path, config, model)


CTRANSLATE2 = Architecture("ctranslate2", _options, Storage(_tensor), ListVocabulary)
