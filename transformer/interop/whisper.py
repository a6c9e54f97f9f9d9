"""Imports Whisper as a run of the system `speech`, from folders of Hugging Face and of CTranslate2."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer.config import Config, SpecialIds
from transformer.config.recordings import RecordingsConfig
from transformer.data.features.hub import HubTokenizer
from transformer.interop import ctranslate2
from transformer.interop.architectures.whisper import HALVED, WHISPER
from transformer.interop.conversion import Source, imported_params
from transformer.interop.reading import CONFIG, naming, read_json, search_options, tensors
from transformer.interop.search import search_from_hub
from transformer.interop.vocabularies.files import read_pieces
from transformer.model.parameters import declarations
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.speech.codes import TASKS, Codes
from transformer.systems.speech.model import SpeechTransformer
from transformer.systems.speech.options import SpeechConfig
from transformer.systems.speech.task import SpeechToText

ROWS = 4
"""Recordings searched at once: each takes the memory of 1,500 positions in every layer."""
_SPECIAL = {"eos": "<|endoftext|>", "bos": "<|startoftranscript|>", "pad": "<|startoflm|>"}
"""<pad> is a token that no output has, as all ids are taken."""
_SOUND = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}
PREPROCESSOR = "preprocessor_config.json"


def import_whisper(
    folder: Path, run_dir: Path | str, language: str | None = None, task: str | None = None
) -> Run:
    """Writes a run directory from a Whisper model.

    Args:
      folder: with config.json, tokenizer.json, and model.safetensors or the model.bin of CTranslate2.
      run_dir: a new directory, for `Transcriber.load`, `decode.py` and `train.py --init-from`.
      language: the code of the language of recordings, such as en; for a model of many languages.
      task: transcribe (default), or translate to English.

    Raises:
      UserError: a file is missing, damaged or of another kind of model; the language is missing or unknown.
    """
    pieces = read_pieces(folder)
    described, source, meant = _opened(folder)
    with naming(folder / CONFIG):
        bands, positions = described["num_mel_bins"], described["max_source_positions"]
        _check_sound(folder, bands)
        size = described["vocab_size"]
        ids = {name: pieces.id_of(token) for name, token in _SPECIAL.items()}
        if missing := [_SPECIAL[name] for name, index in ids.items() if index is None]:
            raise UserError(f"tokenizer.json has no {missing[0]}")
        special: Any = SpecialIds(**ids, unk=ids["eos"])  # type: ignore[arg-type]
        options = WHISPER.options(described, source.names)
        model = SpeechConfig(vocab_size=size, special=special, **options)
        plain = pieces.tokenizer(size, special, ())
        if not isinstance(plain, HubTokenizer):
            raise UserError(f"{folder}: Whisper needs tokenizer.json")
        start = _start(plain, meant, language, task)
        tokenizer = HubTokenizer(plain.model, size, special, start)
    frames = HALVED * positions
    data = RecordingsConfig(
        dataset="imported",
        bands=bands,
        normalisation="peak",
        padded_length=frames,
        max_length=frames,
        buckets=(frames,),
        batch_tokens=frames * 8,
        max_text=model.max_positions,
    )
    decoding = replace(
        search_from_hub(meant, size),
        opening=len(start),
        renormalise=meant.get("renormalize_logits") is True,
        buckets=(frames,),
        rows=ROWS,
    )
    config = Config(system="speech", model=model, data=data, decoding=decoding)
    with naming(folder):
        declared = declarations(SpeechTransformer(model), SpeechToText.example(config))
        params = imported_params(WHISPER.storage, described, model, source, declared)
    return Run.create(run_dir, config, SpeechToText(config, tokenizer), variables={"params": params})


def _opened(folder: Path) -> tuple[Json, Source, Json]:
    """What the model is like, its tensors, and the options of its search."""
    described = read_json(folder / CONFIG)
    if not ctranslate2.is_ctranslate2_folder(folder):
        return described, tensors(folder), search_options(folder)
    variables = ctranslate2.Variables(folder)
    meant = {
        "num_beams": 5,
        "early_stopping": True,
        "max_length": 448,
        "renormalize_logits": True,
        "suppress_tokens": described.get("suppress_ids", []),
        "begin_suppress_tokens": described.get("suppress_ids_begin", []),
        "is_multilingual": bool(described.get("lang_ids")),
    }
    with naming(folder / ctranslate2.MODEL):
        return ctranslate2.whisper_config(variables), variables, meant


def _check_sound(folder: Path, bands: int) -> None:
    """Raises UserError if features are computed in another way than here."""
    path = folder / PREPROCESSOR
    about = read_json(path) if path.exists() else {}
    for name, value in {**_SOUND, "feature_size": bands}.items():
        if about.get(name, value) != value:
            raise UserError(f"{path}: {name} is {about[name]!r}; only {value} is supported")


def _start(tokenizer: HubTokenizer, meant: Json, language: str | None, task: str | None) -> tuple[int, ...]:
    """The tokens that outputs begin with, if nothing else is asked for."""
    codes = Codes.of(tokenizer)
    if codes is None:
        raise UserError("tokenizer.json has no <|notimestamps|>: it is not Whisper's")
    if not meant.get("is_multilingual", bool(codes.languages)):
        if language not in (None, "en") or task not in (None, TASKS[0]):
            raise UserError("--source-language, --task: this model is for English only; leave them out")
        return codes.opening(())
    if language is None:
        raise UserError("this model hears many languages: give --source-language, such as en")
    return codes.opening((0, 0), language, task or TASKS[0])
