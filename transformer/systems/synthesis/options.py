"""Options of speech synthesis and of its search."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transformer.config.decoding import DecodingConfig
from transformer.config.methods import GuidanceConfig
from transformer.config.options import Config
from transformer.config.ranges import LARGEST, RATE, SHARE, Range
from transformer.config.records import RecordingsConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import TransformerConfig
from transformer.systems.registry import Options, Preset
from transformer.systems.speech.options import COMMON_TO_SOUND, SPEECH


@dataclass(frozen=True)
class VoiceConfig(TransformerConfig):
    """A Transformer whose output is frames of sound."""

    share_embeddings: Literal["none"] = "none"  # type: ignore[assignment]
    """Frames of sound have no embedding to share."""
    bands: Annotated[int, Range(0, LARGEST)] = 0
    """Mel bands of a frame. 0: those of the data."""
    reduction: Annotated[int, Range(1, 20)] = 2
    """Frames that a step of the decoder predicts (Wang et al. 2017)."""
    postnet_layers: Annotated[int, Range(0, 20)] = 3
    """Convolutions that refine the frames of an utterance."""
    postnet_width: Annotated[int, Range(1, LARGEST)] = 64
    """Width of the convolutions that refine the frames of an utterance."""

    FROM_DATA = (*TransformerConfig.FROM_DATA, "bands")
    NOT_USED = ("zero_start", "generates_bos", "scale_output", "output_bias")


@dataclass(frozen=True)
class SynthesisConfig(VoiceConfig):
    """An autoregressive synthesiser (Li et al. 2019)."""

    prenet_width: Annotated[int, Range(1, LARGEST)] = 128
    """Width of the two layers that read the last frame before the decoder."""
    prenet_dropout: Annotated[float, RATE] = 0.5
    """Dropout of the two layers that read the last frame, in training."""
    own_frames: Annotated[float, SHARE] = 0.0
    """Training: share of steps whose last frame is the model's own, from a pass before (scheduled sampling,
    Mihaylova and Martins 2019)."""

    PARAMETER_FREE = (*VoiceConfig.PARAMETER_FREE, "prenet_dropout", "own_frames")


@dataclass(frozen=True)
class VoiceDecodingConfig(DecodingConfig):
    """Speech: frames instead of tokens."""

    method: Literal["greedy"] = "greedy"  # type: ignore[assignment]
    """Search method. greedy: each frame as predicted."""
    max_length: int | None = 600
    """Most frames of an utterance, of 10 ms. None: 60 for each token."""
    length_scale: Annotated[float, Range(0.05, 20)] = 1.0
    """Factor on the length: 0.5 speaks twice as fast, 2.0 takes twice as long. The pitch stays."""

    WITHOUT_STEPS = "is for tokens, and this model writes sound"


@dataclass(frozen=True)
class SynthesisDecodingConfig(VoiceDecodingConfig):
    """Autoregressive synthesis, until the model predicts the end."""

    prenet_dropout: Annotated[float, RATE] = 0.0
    """Noise: dropout of the pre-net in the search, such as 0.5, by the seed and the line. 0: none."""
    stop: Annotated[float, Range(0, 1, above=True, below=True)] = 0.5
    """Probability of the stop token from which an utterance ends."""


def _synthesis() -> Config:
    """Speaks digits like the built-in synthesiser, letter by letter."""
    return Config(
        system="synthesis",
        model=SynthesisConfig(
            num_layers=2,
            d_model=128,
            d_ff=256,
            num_heads=4,
            dropout=0.1,
            norm="pre",
            reduction=4,
            own_frames=0.9,
        ),
        data=RecordingsConfig(speaker="one", normalisation="corpus", tokenizer="char", max_text=40),
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=200),
        guidance=GuidanceConfig(weight=10.0, heads=(1, 2)),
        training=TrainingConfig(steps=2_000, evaluate_every=500, label_smoothing=0.0),
        decoding=SynthesisDecodingConfig(buckets=(16, 40)),
    )


OPTIONS = Options(
    model=SynthesisConfig,
    decoding=SynthesisDecodingConfig,
    data=RecordingsConfig,
    common=COMMON_TO_SOUND,
    decodes=(
        "Speak texts: {decode} RUN --input FILE --output spoken/list.tsv. A line is a text. Recordings are "
        "written beside the output, which lists them with their texts. {search}"
    ),
    presets={
        "synthesis": Preset(_synthesis(), "speaks; without recordings, like the same synthesiser", SPEECH)
    },
)
