"""Marian (Junczys-Dowmunt et al. 2018) as Hugging Face stores it, such as the OPUS-MT models.

Its decoder starts with a vector of zeros. On export the vector of <bos> becomes zero too: <bos> is always the
decoder's first position, so its vector is added to that position in the decoder's table of positions. On
import it is taken back.
"""

import math
from typing import Any

import numpy as np

from transformer.config.transformer import TransformerConfig
from transformer.interop.architectures.bart import (
    BART,
    LONGEST,
    POSITIONS,
    bart_options,
    described_bart,
    stored_positions,
)
from transformer.interop.folders.architecture import (
    Architecture,
    Names,
    Read,
    Storage,
    check_sinusoids,
    interleaved_order,
    sines_then_cosines,
)
from transformer.interop.vocabularies.marian import MarianVocabulary
from transformer.model.parameters import Params
from transformer.runtime.files import Json

_DECODER_POSITIONS = POSITIONS.format(side="decoder")


def _options(config: Json, names: Any) -> dict[str, Any]:
    shared = config.get("share_encoder_decoder_embeddings", True)
    tied = config.get("tie_word_embeddings", True)
    size = config["vocab_size"]
    return bart_options(
        config | {"tie_word_embeddings": True},
        output_bias=True,
        target_vocab_size=None if shared else config.get("decoder_vocab_size") or size,
        share_embeddings="none" if not tied else "all" if shared else "target",
    )


def _describe(model: TransformerConfig) -> Json:
    return described_bart(
        model,
        share_encoder_decoder_embeddings=model.share_embeddings == "all",
        static_position_embeddings=True,
    )


def _target_table(model: TransformerConfig) -> str:
    return "source_embedding" if model.shares_inputs else "target_embedding"


def _with_start(path: Names, x: np.ndarray, model: TransformerConfig, read: Read) -> np.ndarray:
    """Gives <bos> the vector that `_positions` added to the decoder's first position."""
    if path[0] != _target_table(model) or (stored := stored_positions("decoder", read)) is None:
        return x
    added = stored[:1] - sines_then_cosines(1, model.d_model)
    if np.abs(added).max(initial=0) > 1e-4:
        start = added[0][interleaved_order(model.d_model)]
        x = x.copy()
        x[model.special.bos] += start / math.sqrt(model.d_model) if model.scale_embedding else start
    return x


def _check(config: Json, model: TransformerConfig, read: Read) -> None:
    for first, side in enumerate(("encoder", "decoder")):
        check_sinusoids(POSITIONS.format(side=side), stored_positions(side, read), model.d_model, first=first)


def _positions(params: Params, model: TransformerConfig) -> dict[str, np.ndarray]:
    """The decoder's table of positions, with the vector of <bos>."""
    table = sines_then_cosines(LONGEST, model.d_model)
    start = np.asarray(params[_target_table(model)]["table"][model.special.bos], np.float32)
    start = start[np.argsort(interleaved_order(model.d_model))]
    table[0] += start * math.sqrt(model.d_model) if model.scale_embedding else start
    return {_DECODER_POSITIONS: table}


MARIAN = Architecture(
    "marian",
    _options,
    Storage(
        BART.storage.tensor,
        sines_first=True,
        check=_check,
        adjusted=_with_start,
        more_tensors=_positions,
        harmless=BART.storage.harmless,
    ),
    MarianVocabulary,
    model_class="MarianMTModel",
    describe=_describe,
)
