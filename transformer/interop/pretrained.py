"""Imports pretrained models from folders as Hugging Face has them, and exports models to such folders."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from transformer.config.corpus import CODE, DataConfig
from transformer.config.options import Config
from transformer.config.transformer import TransformerConfig
from transformer.interop.architectures import ARCHITECTURES
from transformer.interop.architectures.bert import MODEL_TYPE as BERT
from transformer.interop.architectures.bert import has_head, import_bert
from transformer.interop.architectures.ctranslate2 import (
    CTRANSLATE2,
    MODEL,
    SEARCH,
    Variables,
    is_ctranslate2_folder,
    transformer_config,
)
from transformer.interop.architectures.whisper import WHISPER, WHISPER_MODEL, export_whisper, import_whisper
from transformer.interop.folders.architecture import (
    NEVER_GENERATED,
    Architecture,
    Tokenizers,
    VocabularyFiles,
    described_model,
    network_options,
    undescribed,
)
from transformer.interop.folders.conversion import (
    Source,
    different,
    exported_tensors,
    imported_params,
    stored_names,
)
from transformer.interop.folders.folder import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    check_new,
    check_no_pointers,
    located,
    naming,
    read_json,
    search_of,
    search_options,
    searched_file,
    tensors,
    tokenizer_options,
    write_folder,
)
from transformer.interop.folders.search import not_exported, not_imported, search_to_hub, searched_ids
from transformer.interop.folders.unused import observing, unused, with_kept
from transformer.interop.marian.folder import has_network, import_marian_files, is_marian_folder
from transformer.interop.vocabularies.marian import LANGUAGES
from transformer.model.parameters import Params
from transformer.runs.deferred import Deferred
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, parse_object
from transformer.tasks.texts.translation import Translation

OF_LANGUAGES = "outputs begin with the code of the language that --target-language or a request names."

# Import


@observing()
def import_model(
    folder: Path | str,
    run_dir: Path | str,
    source_language: str | None = None,
    target_language: str | None = None,
    task: str | None = None,
    revision: str | None = None,
) -> Run:
    """Writes a run directory from a pretrained model: Marian, BART, mBART-50, Pegasus, NLLB, T5, mT5,
    Whisper, BERT (as a masked language model), `torch.nn.Transformer`, or Marian's own files.

    Nothing in the folder is executed: pickles (pytorch_model.bin) are not read. The model as a whole is
    never in memory. The log names the tensors of the folder that become no part of the model.

    Args:
      folder: with config.json, model.safetensors (or its parts and their index) and tokenizer.json. Other
        files of vocabularies are those that the family has, see docs/pretrained/options.md. For Marian's own
        files, see `import_marian_files`. If there is no such folder: a name on Hugging Face's hub, see
        `located`.
      run_dir: a new directory, for `Translator.load`, `decode.py` and `train.py --init-from`.
      source_language: the code of the source, such as eng_Latn, for a model whose texts begin with codes. It
        is the default of requests. None: each names its own.
      target_language: the code of the target.
      task: of Whisper, see `import_whisper`.
      revision: of a name, see `located`. The run's `data.dataset` says which commit it was.

    Raises:
      UserError: a file is missing, damaged or of another kind of model; weights are quantised; tensors that
        stand for the same matrix differ; a language is unknown; run_dir exists.
    """
    Run.check_free(run_dir)
    folder, origin = located(str(folder), revision)
    _check_is_model(folder)
    if is_marian_folder(folder):
        if source_language or target_language:
            raise UserError("--source-language, --target-language: the texts of Marian models need none")
        _check_no_task(task)
        return import_marian_files(folder, run_dir)
    if _is_whisper(folder):
        if target_language:
            raise UserError("--target-language: Whisper translates to English only, with --task translate")
        return import_whisper(folder, run_dir, source_language, task, origin)
    _check_no_task(task)
    if _model_type(folder) == BERT:
        if source_language or target_language:
            raise UserError("--source-language, --target-language: texts of BERT have no code")
        return import_bert(folder, run_dir, origin)
    described, source, generation = _opened(folder)
    architecture = _architecture(folder, described)
    languages = source_language, target_language
    with naming(_about(folder)):
        vocabulary = architecture.vocabulary(folder)
        described |= searched_ids(described, generation) | vocabulary.ids
        tables = architecture.tables
        names = source.names - {*tables} | {*different(tables, source)}
        model = described_model(architecture, described, names, vocabulary.unk)
        tokenizers = vocabulary.tokenizers(architecture, described, model, languages)
    renormalizes = generation.get("renormalize_logits") is True
    with naming(folder):
        biases = _biases(architecture, described, model)
        is_biased = any(x.any() for name in biases if (x := source(name)) is not None)
        if not (renormalizes or is_biased):
            model = replace(model, output_bias=False, fixed=())
        params = imported_params(architecture.storage, described, model, source, read=biases)
        if renormalizes:
            params["output_bias"] = _without_padding(params["output_bias"], model.special.pad)
    data = DataConfig(
        dataset=origin,
        joint_vocabulary=model.shares_inputs,
        max_length=min(DataConfig.max_length, model.longest or DataConfig.max_length),
    )
    if not tokenizers[0].has_codes:
        languages = _named_languages(folder)
    data = replace(data, source_language=languages[0], target_language=languages[1])
    decoding = search_of(folder, generation | {"pad_token_id": model.special.pad}, model.output_size)
    if is_ctranslate2_folder(folder):  # which renormalises what its rules leave
        decoding = replace(decoding, renormalise=True)
    config = Config(model=model, data=data, decoding=decoding)
    translation = Translation(config, tokenizers)
    return Run.create(run_dir, config, translation, variables={"params": params}, unused=unused(folder))


def _check_is_model(folder: Path) -> None:
    if folder.is_file():
        raise UserError(f"{folder} is a file: name the folder of the model, {folder.parent}")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    check_no_pointers(folder)
    if not _has_model(folder):
        inside = [str(path) for path in sorted(folder.iterdir()) if path.is_dir() and _has_model(path)]
        hint = f". Did you mean {' or '.join(inside[:5])}?" if inside else ""
        raise UserError(
            f"{folder / CONFIG}: no such file; the folder of a model has one, or CTranslate2's {MODEL}, or "
            f"Marian's .npz or .bin{hint}"
        )


def _has_model(folder: Path) -> bool:
    return (folder / CONFIG).exists() or is_ctranslate2_folder(folder) or is_marian_folder(folder)


def _is_whisper(folder: Path) -> bool:
    if is_ctranslate2_folder(folder):
        return Variables(folder).specification == "WhisperSpec"
    return _model_type(folder) == "whisper"


def _model_type(folder: Path) -> object:
    """What config.json says; None for a folder of CTranslate2."""
    return None if is_ctranslate2_folder(folder) else read_json(folder / CONFIG).get("model_type")


def _about(folder: Path) -> Path:
    """The file that describes a model."""
    return folder / (MODEL if is_ctranslate2_folder(folder) else CONFIG)


def _opened(folder: Path) -> tuple[Json, Source, Json]:
    """What the model is like, its tensors, and the options of its search."""
    if not is_ctranslate2_folder(folder):
        return read_json(folder / CONFIG), tensors(folder), search_options(folder)
    variables = Variables(folder)
    with naming(folder / MODEL):
        return transformer_config(variables), variables, dict(SEARCH)


def _check_no_task(task: str | None) -> None:
    if task:
        raise UserError("--task: it is for Whisper; leave it out")


def ignored_options(folder: Path | str) -> list[str]:
    """A sentence for each search option of a model that affects Hugging Face's output, but is not
    imported.

    Raises:
      UserError: a file cannot be read.
    """
    folder = Path(folder)
    if is_ctranslate2_folder(folder):
        return []
    with naming(searched_file(folder)):
        described = read_json(folder / CONFIG)
        meant = search_options(folder)
        if described.get("model_type") == BERT:
            new = "the folder has no head that predicts hidden tokens, so that of this run is untrained"
            return [] if has_head(folder) else [new]
        ignored = not_imported(meant, described)
        forced = meant.get("forced_bos_token_id")
        if forced is not None and _architecture(folder, described).has_codes:
            ignored.append(f"forced_bos_token_id {forced}: {OF_LANGUAGES}")
        return ignored


def _architecture(folder: Path, described: Json) -> Architecture:
    if is_ctranslate2_folder(folder):
        return CTRANSLATE2
    kind = described.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join((*ARCHITECTURES, WHISPER.model_type, BERT))
        raise UserError(f"{folder / CONFIG}: model_type is {kind!r}; known are {known}")
    return ARCHITECTURES[kind]


def _biases(architecture: Architecture, described: Json, model: TransformerConfig) -> tuple[str, ...]:
    """The names of the bias of the logits. Most published ones are zero, and need no addition."""
    if not model.output_bias:
        return ()
    return architecture.storage.tensor(("output_bias",), described, model).names


def _without_padding(bias: Deferred, pad: int) -> Deferred:
    """A bias with which <pad> has no probability, so that only words that can be generated have one."""

    def load() -> np.ndarray:
        values = bias.load().copy()
        values[pad] = NEVER_GENERATED
        return values

    return Deferred(bias.shape, load)


def _named_languages(folder: Path) -> tuple[str | None, str | None]:
    """The languages that a folder names."""
    about = tokenizer_options(folder)
    named = (about.get(name) for name in LANGUAGES)
    source, target = (name if isinstance(name, str) and CODE.fullmatch(name) else None for name in named)
    return source, target


# Export


def export_model(
    run_dir: Path | str, folder: Path | str, checkpoint: str | int = "best"
) -> tuple[Path, Architecture]:
    """Writes a Transformer or Whisper as Hugging Face stores the family that its options describe;
    `transformers` loads the folder, and CTranslate2 converts it.

    A model trained here with a SentencePiece vocabulary becomes a Marian model, if it is post-norm with
    sinusoids. Then <pad> and <bos> have no probability; the little that this model gives them goes to the
    words. Norms have the epsilon of the family.

    Args:
      run_dir: a run directory.
      folder: a new folder.
      checkpoint: as in `Translator.load`.

    Returns:
      The folder, and the family.

    Raises:
      UserError: no family has these options and this vocabulary; the folder exists.
    """
    from transformer.translator.translator import translation_of

    run = Run(run_dir)
    folder = Path(folder)
    config = run.config
    check_new(folder)
    if isinstance(config.model, WHISPER_MODEL):
        return export_whisper(run, folder, checkpoint), WHISPER
    if config.system != "transformer" or not isinstance(config.model, TransformerConfig):
        raise UserError(
            f"{run.name} holds a {config.system} model, and only a Transformer or Whisper can be exported"
        )
    translation = translation_of(run)
    architecture, words = _family(run, translation.tokenizers)
    described = _described(architecture, config.model, words)
    positions = described.get("max_position_embeddings", config.data.max_length)
    numbers = {index: number for number, index in enumerate(words.rows[1]) if index >= 0}
    search = config.decoding
    phrases = [phrase for text in search.forbidden for phrase in translation.phrases(text)]
    pad = described["pad_token_id"]
    generation = words.generation | search_to_hub(search, numbers, phrases, pad, positions)
    params: Params = run.variables(checkpoint)["params"]
    storage = architecture.storage
    names = stored_names(storage, described, config.model)
    stored = described_model(architecture, described, names, config.model.special.unk)
    arrays = exported_tensors(storage, params, config.model, described, stored, words.rows)
    files = {name: content for name, content in words.files.items() if name != TOKENIZER}
    about = parse_object(words.files[TOKENIZER].decode())
    written = {CONFIG: described, GENERATION: generation, TOKENIZER: about}
    write_folder(folder, arrays, files, with_kept(run.kept, written))
    return folder, architecture


def left_options(run_dir: Path | str) -> list[str]:
    """A sentence for each search option of a run that affects its output, but is not exported.

    Raises:
      UserError: the run cannot be read.
    """
    return not_exported(Run(run_dir).config.decoding)


def _family(run: Run, tokenizers: Tokenizers) -> tuple[Architecture, VocabularyFiles]:
    """The first family that has the options and the vocabulary of a run."""
    model = run.config.model
    assert isinstance(model, TransformerConfig)
    others: dict[str, list[str]] = {}
    for architecture in ARCHITECTURES.values():
        words = architecture.vocabulary.exported(tokenizers, run.config) if architecture.describe else None
        if words is None:
            continue
        try:
            described = _described(architecture, model, words)
            names = stored_names(architecture.storage, described, model)
            lacks = undescribed(network_options(architecture, described, names), model)
        except UserError as error:
            lacks = [str(error)]
        if not lacks:
            return architecture, words
        others[architecture.model_type] = lacks
    if not others:
        raise UserError(
            f"{run.name}: its vocabulary is neither SentencePiece's nor a tokenizer.json, in a family's order"
        )
    name, lacks = min(others.items(), key=lambda item: len(item[1]))
    hint = ". Marian's own files have: give --to marian-npz" if has_network(model) else ""
    raise UserError(
        f"{run.name} cannot be exported: the nearest family, {name}, has no {' and no '.join(lacks)}{hint}"
    )


def _described(architecture: Architecture, model: TransformerConfig, words: VocabularyFiles) -> Json:
    """The content of config.json."""
    assert architecture.describe is not None
    return {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        "is_encoder_decoder": True,
        **architecture.describe(model),
        **words.described,
    }
