"""Whisper (Radford et al. 2022), a Transformer that hears, as a run of the system `speech`."""

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.config.records import RecordingsConfig
from transformer.config.transformer import EncoderConfig, TransformerConfig
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.interop.architectures import ctranslate2
from transformer.interop.architectures.bart import BART, described_bart, with_base_names
from transformer.interop.folders.architecture import Architecture, Names, Storage, Tensor, undescribed
from transformer.interop.folders.conversion import Source, exported_tensors, imported_params
from transformer.interop.folders.folder import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    naming,
    read_json,
    search_options,
    tensors,
    write_folder,
)
from transformer.interop.folders.search import search_from_hub, search_to_hub
from transformer.interop.folders.unused import unused, with_kept
from transformer.interop.vocabularies.files import PIECES, read_pieces
from transformer.interop.vocabularies.hub import HubVocabulary
from transformer.model.parameters import declarations
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.speech.model import SpeechTransformer
from transformer.systems.speech.options import SpeechConfig
from transformer.systems.speech.task import LATEST, TASKS, Codes, SpeechToText

HALVED = 2  # frames to a position of the encoder
_CONVOLUTIONS = {"convolutions_0": "conv1", "halvings_0": "conv2"}
_UNUSED = {"scale_embedding": False}
"""What the network does not have, whatever a config says."""
_NO_DROPOUT = {"dropout": 0.0}
"""That of its training, if a config does not say it: with any, it no longer knows what it hears."""


def _options(config: Json, names: Container[str]) -> dict[str, Any]:
    encoder = EncoderConfig(
        d_ff=config["encoder_ffn_dim"],
        num_heads=config["encoder_attention_heads"],
        max_positions=config["max_source_positions"],
    )
    return {
        **BART.options(
            _NO_DROPOUT | config | _UNUSED | {"max_position_embeddings": config["max_target_positions"]},
            names,
        ),
        "output_bias": False,
        "fixed_padding": False,
        "fixed": ("source_positions",),  # sinusoids
        "embedding_norm": False,
        "share_embeddings": "target",
        "encoder_stack": encoder,
        "norm": "pre",
        "key_bias": False,
        "first_convolutions": 1,
        "convolutions": 1,
        "convolution_activation": "gelu-exact",
        "channels": config["d_model"],
        "front_projection": False,
    }


def _tensor(path: Names, config: Json, model: TransformerConfig) -> Tensor:
    part, *inner = path
    if part in _CONVOLUTIONS:
        leaf = "weight" if inner == ["kernel"] else "bias"
        name = f"model.encoder.{_CONVOLUTIONS[part]}.{leaf}"
        return with_base_names(Tensor((name,), "convolution" if leaf == "weight" else "plain"))
    if part == "target_embedding":
        names = ("model.decoder.embed_tokens.weight", "proj_out.weight", "model.decoder.projection.weight")
        return with_base_names(Tensor(names))  # the last one is CTranslate2's
    stored = BART.storage.tensor(path, config, model)
    return replace(stored, rows_before=0)  # its tables of positions have no rows for padding


def _describe(model: TransformerConfig) -> Json:
    described = described_bart(model)
    del described["max_position_embeddings"], described["scale_embedding"]
    described["max_source_positions"] = model.of_encoder.max_positions
    described["max_target_positions"] = model.max_positions
    return described


WHISPER = Architecture(
    "whisper",
    _options,
    # CTranslate2 gives keys a bias. It adds the same number to all scores of a query, so a softmax ignores it
    Storage(_tensor, harmless=(r"model\.(en|de)coder\.layers\.\d+\.(self|encoder)_attn\.k_proj\.bias",)),
    HubVocabulary,
    model_class="WhisperForConditionalGeneration",
    describe=_describe,
)


# Imports Whisper as a run of the system `speech`, from folders of Hugging Face and of CTranslate2, and
# exports such runs.


ROWS = 4
"""Recordings searched at once: each takes the memory of 1,500 positions in every layer."""
_SPECIAL = {"eos": "<|endoftext|>", "bos": "<|startoftranscript|>", "pad": "<|startoflm|>"}
"""<pad> is a token that no output has, as all ids are taken."""
MULTILINGUAL = 51_865
"""Rows of the smallest vocabulary of many languages: that of a model for English only has one row less, and
the same codes of languages (whisper/model.py, `is_multilingual`)."""
_SOUND = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}
PREPROCESSOR = "preprocessor_config.json"
WHISPER_MODEL = SpeechConfig
"""What the network of a run is."""


def import_whisper(
    folder: Path,
    run_dir: Path | str,
    language: str | None = None,
    task: str | None = None,
    origin: str = "imported",
) -> Run:
    """Writes a run directory from a Whisper model.

    Args:
      folder: with config.json, tokenizer.json, and model.safetensors or the model.bin of CTranslate2.
      run_dir: a new directory, for `Transcriber.load`, `decode.py` and `train.py --init-from`.
      language: the code of the language of recordings, such as en; for a model of many languages.
      task: transcribe (default), or translate to English.
      origin: what the run says of where it comes from.

    Raises:
      UserError: a file is missing, damaged or of another kind of model; the language is missing or unknown.
    """
    pieces = read_pieces(folder)
    described, source, meant = _opened(folder)
    with naming(folder / CONFIG):
        bands = described["num_mel_bins"]
        _check_sound(folder, bands)
        size = described["vocab_size"]
        ids = {name: pieces.id_of(token) for name, token in _SPECIAL.items()}
        if missing := [_SPECIAL[name] for name, index in ids.items() if index is None]:
            raise UserError(f"tokenizer.json has no {missing[0]}")
        special: Any = SpecialIds(**ids, unk=ids["eos"])  # type: ignore[arg-type]
        options = WHISPER.options(described, source.names)
        model = SpeechConfig(vocab_size=size, special=special, **options)
        positions = model.encoder_stack.max_positions
        if positions is None:
            raise UserError("max_source_positions is null, not a whole number")
        plain = pieces.tokenizer(size, special, ())
        if not isinstance(plain, HubTokenizer):
            raise UserError(f"{folder}: Whisper needs tokenizer.json")
        many = meant.get("is_multilingual")
        many = size >= MULTILINGUAL if many is None else many is True
        start = _start(plain, many, language, task)
        tokenizer = HubTokenizer(plain.model, size, special, start)
        frames = HALVED * positions
        data = RecordingsConfig(
            dataset=origin,
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
        renormalise=meant.get("renormalize_logits") is True,
        buckets=(frames,),
        rows=ROWS,
    )
    config = Config(system="speech", model=model, data=data, decoding=decoding)
    with naming(folder):
        declared = declarations(SpeechTransformer(model), SpeechToText.example(config))
        params = imported_params(WHISPER.storage, described, model, source, declared)
    fields = unused(folder)
    if ctranslate2.is_ctranslate2_folder(folder) and "alignment_heads" in fields.get(CONFIG, {}):
        fields[GENERATION] = {
            "alignment_heads": fields[CONFIG].pop("alignment_heads")
        }  # where others have them
    task_of_run = SpeechToText(config, tokenizer)
    return Run.create(run_dir, config, task_of_run, variables={"params": params}, unused=fields)


def export_whisper(run: Run, folder: Path, checkpoint: str | int) -> Path:
    """Writes a run of Whisper as Hugging Face stores it. Its usual language and task are left out, as there
    they are options of each call.

    Args:
      run: the run.
      folder: a new folder.
      checkpoint: as in `Transcriber.load`.

    Raises:
      UserError: it is another recogniser of speech, or cannot be written.
    """
    task = SpeechToText.load(run.config, run.path)
    tokenizer, config, model = task.tokenizer, run.config, run.config.model
    codes = Codes.of(tokenizer)
    if codes is None or not isinstance(tokenizer, HubTokenizer) or not isinstance(model, SpeechConfig):
        raise UserError(f"{run.name} cannot be exported: of the speech models only Whisper has a family")
    assert isinstance(config.data, RecordingsConfig)
    assert WHISPER.describe is not None
    special, search, bands = model.special, config.decoding, config.data.bands
    ids = {"pad_token_id": special.eos, "bos_token_id": special.eos, "eos_token_id": special.eos}
    ids |= {"decoder_start_token_id": special.bos}
    described = {
        "architectures": [WHISPER.model_class],
        "model_type": WHISPER.model_type,
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "num_mel_bins": bands,
        **WHISPER.describe(model),
        **ids,
    }
    if lacks := undescribed(WHISPER.options(described, ()), model):
        raise UserError(f"{run.name} cannot be exported: Whisper has no {' and no '.join(lacks)}")
    numbers = {index: index for index in range(model.vocab_size)}
    phrases = [phrase for text in search.forbidden for phrase in task.phrases(text)]
    generation = search_to_hub(search, numbers, phrases, special.pad, model.max_positions) | ids
    generation |= {
        "is_multilingual": bool(codes.languages and len(tokenizer.start) > 1),
        "lang_to_id": {f"<|{name}|>": index for name, index in codes.languages.items()},
        "task_to_id": codes.tasks,
        "no_timestamps_token_id": codes.untimed,
        "max_initial_timestamp_index": LATEST,
    }
    seconds = config.data.padded_length * _SOUND["hop_length"] / _SOUND["sampling_rate"]
    sound: Json = {"chunk_length": round(seconds), **run.kept.get(PREPROCESSOR, {})}
    sound |= {**_SOUND, "feature_size": bands}
    sound |= {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor"}
    end = {f"{name}_token": _SPECIAL["eos"] for name in ("bos", "eos", "unk", "pad")}
    same = range(model.vocab_size)
    params = run.variables(checkpoint)["params"]
    declared = declarations(SpeechTransformer(model), SpeechToText.example(config))
    write_folder(
        folder,
        exported_tensors(WHISPER.storage, params, model, described, model, (same, same), declared),
        {PIECES: tokenizer.model.encode()},
        with_kept(
            run.kept,
            {
                CONFIG: described,
                GENERATION: generation,
                PREPROCESSOR: sound,
                TOKENIZER: {"tokenizer_class": "WhisperTokenizer", **end},
            },
        ),
    )
    return folder


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


def _start(
    tokenizer: HubTokenizer, is_multilingual: bool, language: str | None, task: str | None
) -> tuple[int, ...]:
    """The tokens that outputs begin with, if nothing else is asked for."""
    codes = Codes.of(tokenizer)
    if codes is None:
        raise UserError("tokenizer.json has no <|notimestamps|>: it is not Whisper's")
    if not is_multilingual:
        if language not in (None, "en") or task not in (None, TASKS[0]):
            raise UserError("--source-language, --task: this model is for English only; leave them out")
        return codes.opening(())
    if language is None:
        raise UserError("this model hears many languages: give --source-language, such as en")
    return codes.opening((0, 0), language, task or TASKS[0])
