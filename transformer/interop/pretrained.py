"""Imports pretrained models from folders as Hugging Face has them, and exports models to such folders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config.options import Config
from transformer.config.transformer import TransformerConfig
from transformer.interop.architectures import CONVERTED, FAMILIES
from transformer.interop.architectures.ctranslate2 import CTRANSLATE2, MODEL, Variables, is_ctranslate2_folder
from transformer.interop.architectures.marian_files import MARIAN_FILES, has_network, marian_models
from transformer.interop.folders.conversion import different, exported_tensors, imported_params, stored_names
from transformer.interop.folders.family import (
    NEVER_GENERATED,
    Family,
    Request,
    VocabularyFiles,
    described_model,
    network_options,
    undescribed,
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
    write_folder,
)
from transformer.interop.folders.search import not_exported, search_to_hub
from transformer.interop.folders.unused import observing, with_kept
from transformer.model.parameters import Params
from transformer.runs.checkpoints import Deferred
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.parameters import declared_parameters
from transformer.systems.registry import system_of
from transformer.tasks.text import TextTask
from transformer.tasks.texts.text_to_text import TextToText

# Import


def detect(folder: Path) -> Family[Any]:
    """The family of the model in a folder: by CTranslate2's model.bin, by config.json, or Marian's own.

    Raises:
      UserError: there is no such folder, no model in it, or one of another family; a file is a pointer of Git
        LFS.
    """
    if folder.is_file():
        raise UserError(f"{folder} is a file: name the folder of the model, {folder.parent}")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    check_no_pointers(folder)
    if is_ctranslate2_folder(folder):
        return CONVERTED.get(Variables(folder).specification, CTRANSLATE2)
    if (folder / CONFIG).exists():
        family = read_json(folder / CONFIG).get("model_type")
        if not isinstance(family, str) or family not in FAMILIES:
            raise UserError(f"{folder / CONFIG}: model_type is {family!r}; known are {', '.join(FAMILIES)}")
        return FAMILIES[family]
    if marian_models(folder):
        return MARIAN_FILES
    inside = [str(path) for path in sorted(folder.iterdir()) if path.is_dir() and _has_model(path)]
    hint = f". Did you mean {' or '.join(inside[:5])}?" if inside else ""
    raise UserError(
        f"{folder / CONFIG}: no such file; the folder of a model has one, or CTranslate2's {MODEL}, or "
        f"Marian's .npz or .bin{hint}"
    )


def _has_model(folder: Path) -> bool:
    return (folder / CONFIG).exists() or is_ctranslate2_folder(folder) or bool(marian_models(folder))


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
        files, see `MarianFiles`. If there is no such folder: a name on Hugging Face's hub, see `located`.
      run_dir: a new directory, for `Translator.load`, `Transcriber.load`, `decode.py` and `train.py
        --init-from`.
      source_language: the code of the source, such as eng_Latn, for a model whose texts begin with codes. It
        is the default of requests. None: each names its own. For Whisper: the language of recordings, such as
        en, for a model of many languages.
      target_language: the code of the target.
      task: of Whisper: transcribe (default), or translate to English.
      revision: of a name, see `located`. The run's `data.dataset` says which commit it was.

    Raises:
      UserError: a file is missing, damaged or of another kind of model; weights are quantised; tensors that
        stand for the same matrix differ; a language is unknown; run_dir exists.
    """
    Run.check_free(run_dir)
    folder, origin = located(str(folder), revision)
    family = detect(folder)
    request = Request(origin, source_language, target_language, task)
    for option, refusal in family.refuses.items():
        if getattr(request, option):
            raise UserError(refusal)
    opened = family.opened(folder)
    described, source = opened.described, opened.source
    with naming(opened.file):
        vocabulary = family.vocabulary(folder, family)
        described.update(vocabulary.ids)
        names = source.names - {*family.tables} | {*different(family.tables, source)}
        model = described_model(family, described, names, vocabulary.unk)
        tokenizers = vocabulary.tokenizers(opened, model, request)
        data = family.data(opened, model, request, tokenizers)
    with naming(folder):
        renormalizes = model.output_bias and not family.keeps_bias  # without a bias nothing changes
        renormalizes = renormalizes and opened.generation.get("renormalize_logits") is True
        biases = _biases(family, described, model)
        is_biased = any(x.any() for name in biases if (x := source(name)) is not None)
        if not (family.keeps_bias or renormalizes or is_biased):
            model = replace(model, output_bias=False, fixed=())
        decoding = family.decoding(opened, model)
    config = Config(system=family.system, model=model, data=data, decoding=decoding)
    system = system_of(config)
    network, example = system.model(model), system.task.example(config)

    def initial() -> Params:
        variables: Any = network.init(jax.random.key(0), *(jnp.zeros(x.shape, x.dtype) for x in example))
        return variables["params"]

    with naming(folder):
        declared = declared_parameters(system, config)
        params = imported_params(family.storage, described, model, source, declared, initial, biases)
        if renormalizes:
            bias = params["output_bias"]  # with which <pad> has no probability
            never = np.arange(*bias.shape) == model.special.pad
            params["output_bias"] = Deferred(
                bias.shape, lambda: np.where(never, np.float32(NEVER_GENERATED), bias.load())
            )
    task_of_run = family.task(config, tokenizers, folder)
    return Run.create(run_dir, config, task_of_run, variables={"params": params}, unused=family.kept(folder))


def _biases(family: Family[Any], described: Json, model: TransformerConfig) -> tuple[str, ...]:
    """The names of a bias of the logits that may go: most published ones are zero, and need no addition."""
    if family.keeps_bias or not model.output_bias:
        return ()
    return family.storage.tensor(("output_bias",), described, model).names


def ignored_options(folder: Path | str) -> list[str]:
    """A sentence for each search option of a model that affects the output there, but is not imported.

    Raises:
      UserError: a file cannot be read.
    """
    return detect(Path(folder)).ignored(Path(folder))


# Export


def export_model(
    run_dir: Path | str, folder: Path | str, checkpoint: str | int = "best"
) -> tuple[Path, Family[Any]]:
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
    run, folder = Run(run_dir), Path(folder)
    check_new(folder)
    family, words, described = _family(run)
    model, search, task = run.config.model, run.config.decoding, run.task
    assert isinstance(model, TransformerConfig)
    assert isinstance(task, TextTask)
    longest: Any = described.get("max_target_positions", run.config.data.max_length)
    longest = described.get("max_position_embeddings", longest)
    numbers = {index: number for number, index in enumerate(words.rows[1]) if index >= 0}
    phrases = [phrase for text in search.forbidden for phrase in task.phrases(text)]
    pad: int = {model.special.pad: described["pad_token_id"], **numbers}[model.special.pad]
    generation = words.generation | search_to_hub(search, numbers, phrases, pad, longest)
    names = stored_names(family.storage, described, model, declared_parameters(run.system, run.config))
    stored = family.stored(described, names, model)
    params: Params = run.variables(checkpoint)["params"]
    declared = declared_parameters(run.system, replace(run.config, model=stored))
    arrays = exported_tensors(family.storage, params, model, described, stored, words.rows, declared)
    written = {CONFIG: described, GENERATION: generation, TOKENIZER: words.options, **family.more_files(run)}
    write_folder(folder, arrays, words.files, with_kept(run.kept, written))
    return folder, family


def left_options(run_dir: Path | str) -> list[str]:
    """A sentence for each search option of a run that affects its output, but is not exported.

    Raises:
      UserError: the run cannot be read.
    """
    return not_exported(Run(run_dir).config.decoding)


def _family(run: Run) -> tuple[Family[Any], VocabularyFiles, Json]:
    """The first family that has the options and the vocabulary of a run; the vocabulary, and the content of
    config.json."""
    config, lacks_by_family = run.config, dict[str, list[str]]()
    families = [family for family in FAMILIES.values() if family.describe and family.system == config.system]
    if not families or not isinstance(config.model, TransformerConfig):
        raise UserError(
            f"{run.name} holds a {config.system} model, and only a Transformer or Whisper can be exported"
        )
    declared = declared_parameters(run.system, config)
    task: Any = run.task
    tokenizers = task.tokenizers if isinstance(task, TextToText) else (task.tokenizer, task.tokenizer)
    for family in families:
        words = family.vocabulary.exported(tokenizers, config)
        if words is None:
            continue
        try:
            described = _described(family, config.model, words)
            names = stored_names(family.storage, described, config.model, declared)
            lacks = undescribed(network_options(family, described, names), config.model)
        except UserError as error:
            lacks = [str(error)]
        if not lacks:
            return family, words, described
        lacks_by_family[family.model_type] = lacks
    if not lacks_by_family:
        raise UserError(f"{run.name}{families[0].no_vocabulary}")
    name, lacks = min(lacks_by_family.items(), key=lambda item: len(item[1]))
    nearest = f"the nearest family, {name}," if len(families) > 1 else name.title()
    hint = ". Marian's own files have: give --to marian-npz" if has_network(config) else ""
    raise UserError(f"{run.name} cannot be exported: {nearest} has no {' and no '.join(lacks)}{hint}")


def _described(family: Family[Any], model: TransformerConfig, words: VocabularyFiles) -> Json:
    """The content of config.json."""
    assert family.describe is not None
    return {
        "architectures": [family.model_class],
        "model_type": family.model_type,
        "is_encoder_decoder": True,
        **family.describe(model),
        **words.described,
    }
