"""Whisper (Radford et al. 2022), a Transformer that hears, as a run of the system `speech`."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer.config.corpus import CorpusConfig
from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.config.records import RecordingsConfig
from transformer.config.transformer import EncoderConfig, TransformerConfig
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.interop.architectures import ctranslate2
from transformer.interop.architectures.bart import BART, described_bart, with_base_names
from transformer.interop.folders.family import (
    Family,
    Names,
    Opened,
    Request,
    Storage,
    Tensor,
    Tokenizers,
    Vocabulary,
    VocabularyFiles,
)
from transformer.interop.folders.folder import CONFIG, GENERATION, naming, read_json, search_options, tensors
from transformer.interop.folders.pieces import PIECES, read_pieces
from transformer.interop.folders.search import search_from_hub
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.speech.options import SpeechConfig
from transformer.systems.speech.task import LATEST, TASKS, Codes

HALVED = 2  # frames to a position of the encoder
_CONVOLUTIONS = {"convolutions_0": "conv1", "halvings_0": "conv2"}
_UNUSED = {"scale_embedding": False}
"""What the network does not have, whatever a config says."""
_NO_DROPOUT = {"dropout": 0.0}
"""That of its training, if a config does not say it: with any, it no longer knows what it hears."""


def _options(config: Json, names: Collection[str]) -> dict[str, Any]:
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
        "generates_bos": False,
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
    component, *inner = path
    if component in _CONVOLUTIONS:
        leaf = "weight" if inner == ["kernel"] else "bias"
        name = f"model.encoder.{_CONVOLUTIONS[component]}.{leaf}"
        return with_base_names(Tensor((name,), "convolution" if leaf == "weight" else "plain"))
    if component == "target_embedding":
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


ROWS = 4
"""Recordings searched at once: each takes the memory of 1,500 positions in every layer."""
_SPECIAL = {
    "eos_token_id": "<|endoftext|>",
    "decoder_start_token_id": "<|startoftranscript|>",
    "pad_token_id": "<|startoflm|>",
}
"""<pad> is a token that no output has, as all ids are taken."""
MULTILINGUAL = 51_865
"""Rows of the smallest vocabulary of many languages: that of a model for English only has one row less, and
the same codes of languages (whisper/model.py, `is_multilingual`)."""
_SOUND = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}
PREPROCESSOR = "preprocessor_config.json"


class WhisperVocabulary(Vocabulary):
    """A tokenizer.json with the tokens of languages and tasks."""

    def __init__(self, folder: Path, family: Family[Any]) -> None:
        self._pieces = read_pieces(folder, family.older)
        self.ids: Json = {name: self._pieces.id_of(token) for name, token in _SPECIAL.items()}
        if missing := [_SPECIAL[name] for name, index in self.ids.items() if index is None]:
            raise UserError(f"tokenizer.json has no {missing[0]}")
        self.unk: int = self.ids["eos_token_id"]

    def tokenizers(self, opened: Opened, model: SpeechConfig, request: Request) -> Tokenizers:
        plain = self._pieces.tokenizer(model.vocab_size, model.special, ())
        if not isinstance(plain, HubTokenizer):
            raise UserError(f"{opened.folder}: Whisper needs tokenizer.json")
        flag = opened.generation.get("is_multilingual")
        flag = model.vocab_size >= MULTILINGUAL if flag is None else flag is True
        start = _start(plain, flag, request.source_language, request.task)
        return (HubTokenizer(plain.model, model.vocab_size, model.special, start),) * 2

    @staticmethod
    def exported(tokenizers: Tokenizers, config: Config) -> VocabularyFiles | None:
        """The files of a tokenizer, without the usual language and task of a run: there they are options of
        each call."""
        (tokenizer, _), special, same = tokenizers, config.model.special, range(config.model.vocab_size)
        codes = Codes.of(tokenizer)
        if codes is None or not isinstance(tokenizer, HubTokenizer):
            return None
        ids = {"pad_token_id": special.eos, "bos_token_id": special.eos, "eos_token_id": special.eos}
        ids |= {"decoder_start_token_id": special.bos}
        end = {f"{name}_token": _SPECIAL["eos_token_id"] for name in ("bos", "eos", "unk", "pad")}
        assert isinstance(config.data, RecordingsConfig)
        return VocabularyFiles(
            files={PIECES: tokenizer.model.encode()},
            options={"tokenizer_class": "WhisperTokenizer", **end},
            described={"vocab_size": len(same), "num_mel_bins": config.data.bands, **ids},
            generation={
                **ids,
                "is_multilingual": bool(codes.languages and len(tokenizer.start) > 1),
                "lang_to_id": {f"<|{name}|>": index for name, index in codes.languages.items()},
                "task_to_id": codes.tasks,
                "no_timestamps_token_id": codes.untimed,
                "max_initial_timestamp_index": LATEST,
            },
            rows=(same, same),
        )


class Whisper(Family[SpeechConfig]):
    """Whisper in a folder of Hugging Face."""

    no_vocabulary = " cannot be exported: of the speech models only Whisper has a family"

    def opened(self, folder: Path) -> Opened:
        described = read_json(folder / CONFIG)
        return Opened(folder, folder / CONFIG, described, tensors(folder), search_options(folder))

    def data(
        self, opened: Opened, model: SpeechConfig, request: Request, tokenizers: Tokenizers
    ) -> CorpusConfig:
        """Raises UserError if features are computed in another way than here."""
        path, bands = opened.folder / PREPROCESSOR, opened.described["num_mel_bins"]
        preprocessor = read_json(path) if path.exists() else {}
        for name, value in {**_SOUND, "feature_size": bands}.items():
            if preprocessor.get(name, value) != value:
                raise UserError(f"{path}: {name} is {preprocessor[name]!r}; only {value} is supported")
        positions = opened.described["max_source_positions"]
        if positions is None:
            raise UserError("max_source_positions is null, not a whole number")
        frames = HALVED * positions
        return RecordingsConfig(
            dataset=request.origin,
            bands=bands,
            normalisation="peak",
            padded_length=frames,
            max_length=frames,
            buckets=(frames,),
            batch_tokens=frames * 8,
            max_text=model.max_positions,
        )

    def decoding(self, opened: Opened, model: SpeechConfig) -> DecodingConfig:
        return replace(
            search_from_hub(opened.generation, model.vocab_size),
            renormalise=opened.generation.get("renormalize_logits") is True,
            buckets=(HALVED * opened.described["max_source_positions"],),
            rows=ROWS,
        )

    def stored(self, described: Json, names: Collection[str], model: SpeechConfig) -> SpeechConfig:
        """The model itself: its padding is also the end in the export."""
        return model

    def more_files(self, run: Run) -> dict[str, Json]:
        """How features are computed."""
        data = run.config.data
        assert isinstance(data, RecordingsConfig)
        seconds = data.padded_length * _SOUND["hop_length"] / _SOUND["sampling_rate"]
        return {
            PREPROCESSOR: {
                "chunk_length": round(seconds),
                **run.kept.get(PREPROCESSOR, {}),
                **_SOUND,
                "feature_size": data.bands,
                "feature_extractor_type": "WhisperFeatureExtractor",
                "processor_class": "WhisperProcessor",
            }
        }


class ConvertedWhisper(Whisper):
    """Whisper in a folder of CTranslate2."""

    def opened(self, folder: Path) -> Opened:
        options, variables = read_json(folder / CONFIG), ctranslate2.Variables(folder)
        with naming(folder / ctranslate2.MODEL):
            described = ctranslate2.whisper_config(variables)
        generation = {
            "num_beams": 5,
            "early_stopping": True,
            "max_length": 448,
            "renormalize_logits": True,
            "suppress_tokens": options.get("suppress_ids", []),
            "begin_suppress_tokens": options.get("suppress_ids_begin", []),
        }
        return Opened(folder, folder / CONFIG, described, variables, generation)

    def kept(self, folder: Path) -> dict[str, Json]:
        """Each field in the file in which other folders have it."""
        fields = super().kept(folder)
        if "alignment_heads" in fields.get(CONFIG, {}):
            fields[GENERATION] = {"alignment_heads": fields[CONFIG].pop("alignment_heads")}
        return fields

    def ignored(self, folder: Path) -> list[str]:
        """Nothing: all search options of such a folder are read."""
        return []


WHISPER = Whisper(
    "whisper",
    _options,
    # CTranslate2 gives keys a bias. It adds the same number to all scores of a query, so a softmax ignores it
    Storage(_tensor, harmless=(r"model\.(en|de)coder\.layers\.\d+\.(self|encoder)_attn\.k_proj\.bias",)),
    WhisperVocabulary,
    model_class="WhisperForConditionalGeneration",
    describe=_describe,
    system="speech",
    network=SpeechConfig,
    keeps_bias=True,
    refuses={
        "target_language": "--target-language: Whisper translates to English only, with --task translate"
    },
)
CONVERTED_WHISPER = ConvertedWhisper(**vars(WHISPER))


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
