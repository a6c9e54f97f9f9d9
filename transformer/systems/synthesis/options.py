"""Options of speech synthesis and of its search."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from transformer.config import (
    Config,
    DecodingConfig,
    OptimizerConfig,
    Ranges,
    TrainingConfig,
    TransformerConfig,
)
from transformer.config.methods import GuidanceConfig
from transformer.config.ranges import LARGEST
from transformer.config.recordings import RecordingsConfig
from transformer.errors import UserError
from transformer.systems.registry import Options, Preset
from transformer.systems.speech.options import COMMON_TO_SOUND, SPEECH


@dataclass(frozen=True)
class VoiceConfig(TransformerConfig):
    """A Transformer whose output is frames of sound."""

    share_embeddings: Literal["none"] = "none"  # type: ignore[assignment]
    """Frames of sound have no embedding to share."""
    bands: int = 0
    """Mel bands of a frame. 0: those of the data."""
    reduction: int = 2
    """Frames that a step of the decoder predicts (Wang et al. 2017)."""
    postnet_layers: int = 3
    """Convolutions that refine the frames of an utterance."""
    postnet_width: int = 64
    """Their width."""
    postnet_kernel: int = 5
    """Frames that each of them sees."""

    _RANGES: ClassVar[Ranges] = {
        **TransformerConfig._RANGES,
        "bands": (0, LARGEST),
        "reduction": (1, 20),
        "postnet_width": (1, LARGEST),
        "postnet_layers": (0, 20),
        "postnet_kernel": (1, 99),
    }
    FROM_DATA = (*TransformerConfig.FROM_DATA, "bands")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.postnet_kernel % 2 == 0:
            raise UserError("--model.postnet-kernel must be odd: the convolutions are centred")


@dataclass(frozen=True)
class SynthesisConfig(VoiceConfig):
    """An autoregressive synthesiser (Li et al. 2019)."""

    prenet_width: int = 128
    """Width of the two layers that read the last frame before the decoder."""
    prenet_dropout: float = 0.5
    """Their dropout in training."""
    own_frames: float = 0.0
    """Training: share of steps whose last frame is the model's own, from a pass before (scheduled sampling,
    Mihaylova and Martins 2019)."""
    stop_weight: float = 5.0
    """Weight of the last step in the loss of the stop token: there is one in each utterance."""

    _RANGES: ClassVar[Ranges] = {**VoiceConfig._RANGES, "prenet_width": (1, LARGEST)}
    _RATES = (*VoiceConfig._RATES, "prenet_dropout")
    PARAMETER_FREE = (*VoiceConfig.PARAMETER_FREE, "prenet_dropout", "own_frames", "stop_weight")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.own_frames <= 1:
            raise UserError("--model.own-frames must be in [0, 1]")
        if self.stop_weight <= 0:
            raise UserError("--model.stop-weight must be positive")


@dataclass(frozen=True)
class VoiceDecodingConfig(DecodingConfig):
    """Speech: frames instead of tokens."""

    method: Literal["greedy"] = "greedy"  # type: ignore[assignment]
    """greedy: each frame as predicted."""
    max_length: int | None = 600
    """Most frames of an utterance, of 10 ms. None: 60 for each token."""
    length_scale: float = 1.0
    """Factor on the length: 0.5 speaks twice as fast, 2.0 takes twice as long. The pitch stays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.05 <= self.length_scale <= 20:
            raise UserError("--decoding.length-scale must be from 0.05 to 20")
        if refused := self.steered + self.noisy:
            option = refused[0].replace("_", "-")
            raise UserError(f"--decoding.{option} is for tokens, and this model writes sound: leave it out")


@dataclass(frozen=True)
class SynthesisDecodingConfig(VoiceDecodingConfig):
    """Autoregressive synthesis, until the model predicts the end."""

    prenet_dropout: float = 0.5
    """Noise: dropout of the pre-net, which stays on, with masks by the seed and the line. 0: none."""
    stop: float = 0.5
    """Probability from which an utterance ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.prenet_dropout < 1:
            raise UserError("--decoding.prenet-dropout must be in [0, 1)")
        if not 0 < self.stop < 1:
            raise UserError("--decoding.stop must be in (0, 1)")


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
            own_frames=0.5,
        ),
        data=RecordingsConfig(speaker="one", normalisation="corpus", tokenizer="char", max_text=40),
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=200),
        guidance=GuidanceConfig(weight=10.0),
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
