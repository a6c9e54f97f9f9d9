"""Options of speech synthesis and of its searches."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from transformer.config.decoding import DecodingConfig
from transformer.config.model import TransformerConfig
from transformer.config.ranges import LARGEST, Ranges
from transformer.errors import UserError


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
    ADAPTABLE = (*VoiceConfig.ADAPTABLE, "prenet_dropout", "own_frames", "stop_weight")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.own_frames <= 1:
            raise UserError("--model.own-frames must be in [0, 1]")
        if self.stop_weight <= 0:
            raise UserError("--model.stop-weight must be positive")


@dataclass(frozen=True)
class NonAutoregressiveSynthesisConfig(VoiceConfig):
    """A non-autoregressive synthesiser (FastSpeech, Ren et al. 2019)."""

    teacher: Path | None = None
    """Training only: run directory of a model of system synthesis for the same recordings, whose attention
    tells how long each token is spoken."""
    duration_kernel: int = 3
    """Tokens that each of the two convolutions of the duration predictor sees."""
    duration_weight: float = 1.0
    """Weight of the duration predictor's loss, which is added once per token."""

    _RANGES: ClassVar[Ranges] = {**VoiceConfig._RANGES, "duration_kernel": (1, 99)}
    ADAPTABLE = (*VoiceConfig.ADAPTABLE, "teacher", "duration_weight")

    @property
    def untaught(self) -> str:
        """What is missing in training, if it is."""
        if self.teacher:
            return ""
        return (
            "durations are learned from the attention of an autoregressive synthesiser: train one with "
            "train.py synthesis on the same recordings, and give its run directory as --model.teacher RUN"
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.duration_kernel % 2 == 0:
            raise UserError("--model.duration-kernel must be odd: the convolutions are centred")
        if self.duration_weight < 0:
            raise UserError("--model.duration-weight must not be negative")


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


@dataclass(frozen=True)
class NonAutoregressiveSynthesisDecodingConfig(VoiceDecodingConfig):
    """Non-autoregressive synthesis."""
