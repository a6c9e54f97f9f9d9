"""Converts a Marian folder to a run directory and back: config.json, model.safetensors, vocabularies."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from transformer.config import Config, DataConfig, SpecialIds, TransformerConfig, text_data
from transformer.config.languages import CODE
from transformer.data.features.marian import MarianTokenizer
from transformer.data.features.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.interop.marian import (
    NEVER_GENERATED,
    config_from_marian,
    config_to_marian,
    params_from_marian,
    params_to_marian,
)
from transformer.interop.reading import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    WEIGHTS,
    naming,
    read_json,
    search_of,
    search_options,
    searched_file,
    tensors,
    tokenizer_options,
)
from transformer.interop.search import not_exported, not_imported, search_to_marian
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, folder_whole, read_bytes
from transformer.tasks.translation import Translation

POSITIONS = 1024  # maximum sentence length of an exported model
VOCABULARY = "vocab.json"
LANGUAGES = ("source_lang", "target_lang")
TARGET_VOCABULARY = "target_vocab.json"
SENTENCEPIECE = ("source.spm", "target.spm")
CTRANSLATE2 = ("source_vocabulary.json", "target_vocabulary.json")  # word lists, for separate vocabularies


def import_marian(folder: Path | str, run_dir: Path | str) -> Run:
    """Writes a run directory from a Marian model as Hugging Face stores it.

    Nothing in the folder is executed: pickles (pytorch_model.bin) are not read.

    Args:
      folder: with config.json, model.safetensors, vocab.json, source.spm, target.spm (and
        target_vocab.json, if vocabularies are separate).
      run_dir: a new directory, for `Translator.load`, `decode.py` and `train.py --init-from`.

    Raises:
      UserError: a file is missing, damaged or of another kind of model; run_dir exists.
    """
    folder = Path(folder)
    Run.check_free(run_dir)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    described = read_json(folder / CONFIG)
    vocabularies = [read_json(folder / VOCABULARY)]
    if (folder / TARGET_VOCABULARY).exists():
        vocabularies.append(read_json(folder / TARGET_VOCABULARY))
    with naming(folder / CONFIG):
        unk = vocabularies[0].get("<unk>")
        if type(unk) is not int:
            raise UserError(f"{folder / VOCABULARY} has no <unk>")
        model = config_from_marian(described, unk)
    source, target = (
        _marian_tokenizer(folder / spm, vocabulary, size, model.special)
        for spm, vocabulary, size in zip(
            SENTENCEPIECE,
            (vocabularies[0], vocabularies[-1]),
            (model.vocab_size, model.output_size),
            strict=True,
        )
    )
    with tensors(folder) as read, naming(folder / WEIGHTS):
        params = params_from_marian(model, read)
    generation = search_options(folder)
    if generation.get("renormalize_logits") is True:  # over the words that can be generated
        params["output_bias"][model.special.pad] = NEVER_GENERATED
    if not params["output_bias"].any():
        del params["output_bias"]
        model = replace(model, output_bias=False)
    joint = model.share_embeddings == "all"
    data = replace(DataConfig(dataset="imported", joint_vocabulary=joint), **_languages(folder))
    config = Config(model=model, data=data, decoding=search_of(folder, generation, model.output_size))
    return Run.create(run_dir, config, Translation(config, (source, target)), variables={"params": params})


def ignored_options(folder: Path | str) -> list[str]:
    """A sentence for each search option of a model that affects Hugging Face's output, but is not
    imported.

    Raises:
      UserError: a file cannot be read.
    """
    folder = Path(folder)
    with naming(searched_file(folder)):
        described = read_json(folder / CONFIG)
        meant = search_options(folder)
        if described.get("model_type") != "marian":  # others begin with what their tokenizer begins with
            meant = {name: value for name, value in meant.items() if name != "forced_bos_token_id"}
        return not_imported(meant, described)


def left_options(run_dir: Path | str) -> list[str]:
    """A sentence for each search option of a run that affects its output, but is not exported.

    Raises:
      UserError: the run cannot be read.
    """
    return not_exported(Run(run_dir).config.decoding)


def export_marian(run_dir: Path | str, folder: Path | str, checkpoint: str | int = "best") -> Path:
    """Writes a model trained here as Hugging Face stores Marian models; `transformers` loads the
    folder, and CTranslate2 converts it.

    In the exported model <pad> and <bos> have no probability; the little that this model gives them goes to
    the words. Its layer norms have an epsilon of 1e-5.

    Args:
      run_dir: a run directory.
      folder: a new folder.
      checkpoint: as in `Translator.load`.

    Raises:
      UserError: Marian does not support the model or its vocabulary; the folder exists.
    """
    from transformer.translator.translator import translation_of

    run = Run(run_dir)
    folder = Path(folder)
    config = run.config.model
    tokenizers = translation_of(run).tokenizers
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists: name a new folder")
    if run.config.system != "transformer" or not isinstance(config, TransformerConfig):
        raise UserError(f"{run.name} holds a {run.config.system} model, which Marian does not support")
    models = [_sentencepiece(tokenizer, run.path) for tokenizer in tokenizers]
    marian_ids = [_marian_ids(tokenizer, config.special) for tokenizer in tokenizers]
    size = max(map(len, marian_ids)) + 1
    orders = tuple(ids + [-1] * (size - len(ids)) for ids in marian_ids)  # <pad> is the last one
    described = config_to_marian(config, size, POSITIONS)
    ids = {name: described[name] for name in ("pad_token_id", "decoder_start_token_id", "eos_token_id")}
    ids |= {name: described["eos_token_id"] for name in ("bos_token_id", "forced_eos_token_id")}
    numbers = {index: number for number, index in enumerate(orders[1]) if index >= 0}
    search = run.config.decoding
    phrases = [phrase for text in search.forbidden for phrase in translation_of(run).phrases(text)]
    generation = ids | search_to_marian(search, numbers, phrases, size - 1, POSITIONS)
    params = run.variables(checkpoint)["params"]
    tensors = params_to_marian(params, config, orders, POSITIONS)  # type: ignore[arg-type]

    separate = config.share_embeddings != "all"
    try:
        with folder_whole(folder) as partial:
            # safetensors writes the memory of an array, whatever its strides
            contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
            (partial / WEIGHTS).write_bytes(save(contiguous, metadata={"format": "pt"}))
            for spm, model in zip(SENTENCEPIECE, models, strict=True):
                (partial / spm).write_bytes(model)
            names = (VOCABULARY, TARGET_VOCABULARY) if separate else (VOCABULARY,)
            for name, tokenizer, order in zip(names, tokenizers, orders, strict=False):
                _write_json(partial / name, _numbered(tokenizer, order))
            for name, tokenizer, order in zip(
                CTRANSLATE2 if separate else (), tokenizers, orders, strict=False
            ):
                _write_json(partial / name, [*_numbered(tokenizer, order)][:-1])  # it has no <pad>
            languages = zip(LANGUAGES, text_data(run.config).languages, strict=True)
            about: Json = {name: language for name, language in languages if language}
            about |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
            _write_json(partial / TOKENIZER, about)
            _write_json(partial / CONFIG, described)
            _write_json(partial / GENERATION, generation)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}") from error
    return folder


def unnamed_languages(run_dir: Path | str) -> list[str]:
    """The fields of `tokenizer_config.json` that an export omits, as the run does not know the
    language."""
    known = text_data(Run(run_dir).config).languages
    return [name for name, language in zip(LANGUAGES, known, strict=True) if not language]


# Reading


def _languages(folder: Path) -> dict[str, Any]:
    """The languages that a folder names, as options of the data."""
    about = tokenizer_options(folder)
    named = zip(("source_language", "target_language"), map(about.get, LANGUAGES), strict=True)
    return {
        option: language
        for option, language in named
        if isinstance(language, str) and CODE.fullmatch(language)
    }


def _marian_tokenizer(spm: Path, vocabulary: Json, size: int, special: SpecialIds) -> MarianTokenizer:
    words: list[str | None] = [None] * size
    for word, index in vocabulary.items():
        if type(index) is not int or not 0 <= index < size:
            raise UserError(f"{spm.parent}: the id of {word!r} is {index!r}, not one below {size}")
        if words[index] is not None:
            raise UserError(f"{spm.parent}: {words[index]!r} and {word!r} have the same id {index}")
        words[index] = word
    for word, index in (("</s>", special.eos), ("<pad>", special.pad)):
        if vocabulary.get(word, index) != index:
            raise UserError(
                f"{spm.parent}: {word} is {vocabulary[word]} in the vocabulary and {index} in {CONFIG}"
            )
    try:
        return MarianTokenizer(read_bytes(spm), words, special)
    except OSError as error:
        raise UserError(f"{spm} cannot be read: {error.strerror}") from error
    except RuntimeError as error:
        raise UserError(f"{spm} is not a SentencePiece model") from error
    except UserError as error:
        raise UserError(f"{spm.parent}: {error}") from error


# Writing


def _marian_ids(tokenizer: Tokenizer, special: SpecialIds) -> list[int]:
    """Ids in Marian's order, without <pad> and <bos>: </s>, <unk>, then words."""
    first = [special.eos, special.unk]
    apart = {*first, special.pad, special.bos}
    return first + [index for index in range(tokenizer.vocab_size) if index not in apart]


def _numbered(tokenizer: Tokenizer, order: list[int]) -> dict[str, int]:
    """vocab.json: every piece and its id."""
    pieces = [
        tokenizer.pieces([index])[0] if index >= 0 else f"<unused {n}>" for n, index in enumerate(order)
    ]
    return {piece: number for number, piece in enumerate([*pieces[:-1], "<pad>"])}


def _sentencepiece(tokenizer: Tokenizer, run: Path) -> bytes:
    """The SentencePiece model."""
    match tokenizer:
        case MarianTokenizer():
            return tokenizer.model
        case SentencePieceTokenizer():
            return tokenizer.content()
        case _:
            raise UserError(f"{run}: its vocabulary is not SentencePiece's, as Marian requires")


def _write_json(path: Path, content: Json | list[str]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
