"""Marian's own folders, in and out: a model in `.npz` or `.bin`, vocabularies, search options."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from transformer.config.corpus import DataConfig
from transformer.config.decoding import BeamConfig, DecodingConfig, GreedyConfig
from transformer.config.options import Config
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.lossless import opened
from transformer.data.tokenizers.pieces import MarianTokenizer
from transformer.data.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.decoding.searches.shortlist import Shortlist
from transformer.interop.architectures.ctranslate2 import is_ctranslate2_folder
from transformer.interop.folders.architecture import NEVER_GENERATED, undescribed
from transformer.interop.folders.conversion import exported_tensors, imported_params, stored_names
from transformer.interop.folders.folder import CONFIG, check_new, naming
from transformer.interop.marian.items import Yaml, marian_file, parse_yaml, write_npz
from transformer.interop.marian.network import (
    OUTPUT_BIAS,
    STORAGE,
    described_network,
    network_description,
    network_options,
    vocabulary_sizes,
)
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import MiB, folder_whole, read_bytes, read_text
from transformer.tasks.texts.translation import Translation

_OTHERS = (
    "lex",
    "optimizer",
    "pytorch_model",
    "training_args",
)  # how names of files begin that are no models
_VOCABULARIES = (("srcvocab*.spm", "trgvocab*.spm"), ("*vocab*.spm",) * 2, ("*vocab*.yml",) * 2)
_PIECES = ("source.spm", "target.spm")
_IGNORED = ("word-penalty", "max-length-factor", "max-length-crop", "allow-unk")
_NO_EFFECT = ("0", "false")

Words = list[str | None]
"""The piece of each id."""


def is_marian_folder(folder: Path) -> bool:
    """Whether a folder has a model in Marian's own format, and none in another."""
    if not folder.is_dir() or (folder / CONFIG).exists() or is_ctranslate2_folder(folder):
        return False
    return bool(_models(folder))


def import_marian_files(folder: Path | str, run_dir: Path | str) -> Run:
    """Writes a run directory from Marian's own files, such as those of Firefox Translations.

    Integers become real numbers. The multipliers of activations in a model of integers (`*_QuantMultA`) are
    not read: `--int8` quantises activations as they come.

    Args:
      folder: with a model (`.npz` or `.bin`), one or two vocabularies (`.spm`, or `.yml` with source.spm
        and target.spm), and optionally the decoder's options (`config.yml`, `decoder.yml`).
      run_dir: a new directory, for `Translator.load`, `decode.py` and `train.py --init-from`.

    Raises:
      UserError: a file is missing, damaged or of another kind of model; run_dir exists.
    """
    folder = Path(folder)
    Run.check_free(run_dir)
    options = _decoder_options(folder)
    source, target = _vocabulary_files(folder, options)
    vocabularies = [_words(source, folder / _PIECES[0]), _words(target, folder / _PIECES[1])]
    eos, unk = _special_ids(source, vocabularies[0][1])
    if (eos, unk) != _special_ids(target, vocabularies[1][1]):
        raise UserError(f"{source} and {target} have other ids of </s> or <unk>, which is not supported")
    path = _model(folder, options)
    file = marian_file(path)
    with naming(path):
        model = described_network(file.description, file.names, eos, unk)
        sizes = vocabulary_sizes(file.description)
    tokenizers = (
        _tokenizer(source, *vocabularies[0], sizes[0], model),
        _tokenizer(target, *vocabularies[1], sizes[1], model),
    )
    with naming(path):
        params = imported_params(STORAGE, file.description, model, file)
    data = DataConfig(dataset="imported", joint_vocabulary=model.shares_inputs)
    config = Config(model=model, data=data, decoding=_search(options))
    task = Translation(config, tokenizers, _shortlist(folder, model.output_size))
    return Run.create(run_dir, config, task, variables={"params": params})


def ignored_marian_options(folder: Path | str) -> list[str]:
    """A sentence for each option of the decoder that affects Marian's output, but is not imported."""
    options = _decoder_options(Path(folder))
    return [
        f"{name} {options[name]} has no counterpart here."
        for name in _IGNORED
        if options.get(name, "0") not in _NO_EFFECT
    ]


def _shortlist(folder: Path, vocab_size: int) -> Shortlist | None:
    """The lexical shortlist, if the folder has one."""
    files = list(folder.glob("lex*.bin"))
    return Shortlist.read(files[0], vocab_size) if len(files) == 1 else None


def _models(folder: Path) -> list[Path]:
    files = (path for path in folder.iterdir() if path.suffix == ".bin" or ".npz" in path.suffixes)
    return sorted(path for path in files if not path.name.startswith(_OTHERS))


def _decoder_options(folder: Path) -> Yaml:
    """The content of the file with `models:`, as Marian's decoder reads it; empty if there is none."""
    for path in sorted(folder.glob("*.yml")):
        try:
            if path.stat().st_size <= MiB and "models" in (options := parse_yaml(read_text(path, MiB))):
                return options
        except (OSError, ValueError):
            continue  # another file
    return {}


def _named(folder: Path, options: Yaml, name: str) -> list[Path]:
    """The files of an option, of which only the name counts: nothing beside the folder is read."""
    values = options.get(name, [])
    names = [values] if isinstance(values, str) else values
    return [path for value in names if (path := folder / Path(value).name).is_file()]


def _model(folder: Path, options: Yaml) -> Path:
    models = _named(folder, options, "models") or _models(folder)
    if len(models) != 1:
        names = ", ".join(path.name for path in models)
        raise UserError(f"{folder} has several models: {names}. Import a folder with one of them")
    return models[0]


def _vocabulary_files(folder: Path, options: Yaml) -> tuple[Path, Path]:
    named = _named(folder, options, "vocabs")
    if len(named) == 2:
        return named[0], named[1]
    for patterns in _VOCABULARIES:
        source, target = ([path for path in folder.glob(pattern)] for pattern in patterns)
        if len(source) == len(target) == 1:
            return source[0], target[0]
    raise UserError(
        f"{folder} needs one vocab.spm, or srcvocab.spm and trgvocab.spm, or vocab.yml with source.spm and "
        "target.spm"
    )


def _words(vocabulary: Path, pieces: Path) -> tuple[bytes, Words]:
    """A SentencePiece model, and the piece of each id: its own or, if the vocabulary is YAML, those of it."""
    model = vocabulary if vocabulary.suffix == ".spm" else pieces
    try:
        content = read_bytes(model)
        _, listed = opened(content)
    except OSError as error:
        raise UserError(f"{model} cannot be read: {error.strerror}") from error
    except RuntimeError as error:
        raise UserError(f"{model} is not a SentencePiece model") from error
    if model == vocabulary:
        return content, list(listed)
    try:
        numbered = {word: int(str(index)) for word, index in parse_yaml(read_text(vocabulary)).items()}
    except (OSError, ValueError) as error:
        raise UserError(f"{vocabulary} is not a list of words and their ids: {error}") from error
    words: Words = [None] * len(numbered)
    for word, index in numbered.items():
        if not 0 <= index < len(words):
            raise UserError(f"{vocabulary}: {word!r} has the id {index}, and there are {len(words):,}")
        words[index] = word
    return content, words


def _special_ids(path: Path, words: Words) -> tuple[int, int]:
    """The ids of </s> and <unk>."""
    try:
        return words.index("</s>"), words.index("<unk>")
    except ValueError as error:
        raise UserError(f"{path} has no </s> or no <unk>, which Marian's vocabularies have") from error


def _tokenizer(
    path: Path, pieces: bytes, words: Words, size: int, model: TransformerConfig
) -> MarianTokenizer:
    if len(words) > size:
        raise UserError(f"{path} has {len(words):,} words, and the model {size:,}")
    return MarianTokenizer(pieces, words + [None] * (model.vocab_size - len(words)), model.special)


def _search(options: Yaml) -> DecodingConfig:
    """The search of a decoder's options: scores are divided by length^normalize."""
    try:
        beam_size = int(_one(options.get("beam-size", "12")))
        penalty = float(_one(options.get("normalize", "0")))
    except ValueError as error:
        raise UserError(f"beam-size or normalize is no number: {error}") from error
    if not options:
        return BeamConfig()
    if beam_size == 1:
        return GreedyConfig(penalty="power", length_penalty=penalty)
    return BeamConfig(beam_size=beam_size, penalty="power", length_penalty=penalty, stop="full")


def _one(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ""


# Exports a model as Marian's own files: model.npz, vocabularies, decoder.yml.


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
    decoder = {
        "relative-paths": True,
        "models": [MODEL],
        "vocabs": vocabs,
        **_marian_search(run.config.decoding),
    }
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


def _marian_search(decoding: DecodingConfig) -> dict[str, int | float]:
    """The decoder's options: Marian divides scores by length^normalize."""
    beam_size = decoding.beam_size if isinstance(decoding, BeamConfig) else 1
    is_kept = isinstance(decoding, BeamConfig | GreedyConfig) and decoding.penalty == "power"
    return {"beam-size": beam_size, "normalize": decoding.length_penalty if is_kept else 1.0}
