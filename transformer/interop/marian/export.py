"""Exports a model as Marian's own files: model.npz, vocabularies, decoder.yml."""

from pathlib import Path

import numpy as np
import yaml

from transformer.config import BeamConfig, DecodingConfig, GreedyConfig, TransformerConfig
from transformer.data.features.marian import MarianTokenizer
from transformer.data.features.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.data.features.vocabulary import opened
from transformer.interop.architectures.architecture import NEVER_GENERATED, undescribed
from transformer.interop.conversion import exported_tensors, stored_names
from transformer.interop.marian.items import Yaml, write_npz
from transformer.interop.marian.network import (
    OUTPUT_BIAS,
    STORAGE,
    described_network,
    network_description,
    network_options,
)
from transformer.interop.writing import check_new
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import folder_whole

MODEL = "model.npz"
DECODER = "decoder.yml"


def export_marian_files(run_dir: Path | str, folder: Path | str, checkpoint: str | int = "best") -> Path:
    """Writes a model as Marian reads it: `marian-decoder -c FOLDER/decoder.yml`.

    Args:
      run_dir: a run directory.
      folder: a new folder.
      checkpoint: as in `Translator.load`.

    Raises:
      UserError: Marian's files cannot describe the model or its vocabulary; the folder exists.
    """
    from transformer.translator.translator import translation_of

    run = Run(run_dir)
    folder = Path(folder)
    config = run.config.model
    check_new(folder)
    if run.config.system != "transformer" or not isinstance(config, TransformerConfig):
        raise UserError(f"{run.name} holds a {run.config.system} model, which Marian does not support")
    vocabularies = [_vocabulary(tokenizer, run.name) for tokenizer in translation_of(run).tokenizers]
    sizes = (vocabularies[0][1], vocabularies[1][1])
    description = network_description(config, sizes)
    names = stored_names(STORAGE, description, config)
    if lacks := _lacks(description, config):
        raise UserError(f"{run.name} cannot be exported: Marian's files have no {' and no '.join(lacks)}")
    stored = described_network(description, names, config.special.eos, config.special.unk)
    params = run.variables(checkpoint)["params"]
    words = range(sizes[0]), range(sizes[1])
    arrays = exported_tensors(STORAGE, params, config, description, stored, words)
    unused = [index for index in config.special.never_predicted if index < sizes[1]]
    arrays[OUTPUT_BIAS] = np.array(arrays[OUTPUT_BIAS])
    arrays[OUTPUT_BIAS][0, unused] = NEVER_GENERATED
    is_joint = vocabularies[0] == vocabularies[1]
    vocabs = ["vocab.spm"] * 2 if is_joint else ["srcvocab.spm", "trgvocab.spm"]
    decoder = {"relative-paths": True, "models": [MODEL], "vocabs": vocabs, **_search(run.config.decoding)}
    try:
        with folder_whole(folder) as partial:
            write_npz(partial / MODEL, arrays, description)
            for name, (content, _) in zip(vocabs, vocabularies, strict=True):
                (partial / name).write_bytes(content)
            (partial / DECODER).write_text(yaml.safe_dump(decoder, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from error
    return folder


def has_network(config: TransformerConfig) -> bool:
    """Whether Marian's files can describe a network."""
    try:
        return not _lacks(network_description(config, (config.vocab_size, config.output_size)), config)
    except (KeyError, UserError):
        return False


def _lacks(description: Yaml, config: TransformerConfig) -> list[str]:
    """The options of a network that its description lacks."""
    names = stored_names(STORAGE, description, config)
    return undescribed(network_options(description, names), config)


def _vocabulary(tokenizer: Tokenizer, run: str) -> tuple[bytes, int]:
    """A SentencePiece model whose ids are the tokenizer's, and how many there are."""
    match tokenizer:
        case MarianTokenizer():
            content = tokenizer.model
        case SentencePieceTokenizer():
            content = tokenizer.content()
        case _:
            raise UserError(f"{run}: its vocabulary is not SentencePiece's, as Marian requires")
    _, pieces = opened(content)
    if isinstance(tokenizer, MarianTokenizer) and tokenizer.words[: len(pieces)] != pieces:
        raise UserError(
            f"{run}: its vocabulary has other ids than its SentencePiece model, which only Hugging Face's "
            "format can have: leave out --to"
        )
    return content, len(pieces)


def _search(decoding: DecodingConfig) -> dict[str, int | float]:
    """The decoder's options: Marian divides scores by length^normalize."""
    beam_size = decoding.beam_size if isinstance(decoding, BeamConfig) else 1
    is_kept = isinstance(decoding, BeamConfig | GreedyConfig) and decoding.penalty == "power"
    return {"beam-size": beam_size, "normalize": decoding.length_penalty if is_kept else 1.0}
