"""Options of speech synthesis and of its search."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from transformer.config.decoding import DecodingConfig
from transformer.config.model import TransformerConfig
from transformer.config.ranges import LARGEST, Ranges
from transformer.errors import UserError


@dataclass(frozen=True)
class SynthesisConfig(TransformerConfig):
    """A Transformer that speaks (Li et al. 2019)."""

    share_embeddings: Literal["none"] = "none"  # type: ignore[assignment]
    """Frames of sound have no embedding to share."""
    bands: int = 0
    """Mel bands of a frame. 0: those of the data."""
    reduction: int = 2
    """Frames that a step of the decoder predicts (Wang et al. 2017)."""
    prenet_width: int = 128
    """Width of the two layers that read the last frame before the decoder."""
    prenet_dropout: float = 0.5
    """Their dropout in training."""
    postnet_layers: int = 3
    """Convolutions that refine the frames of an utterance."""
    postnet_width: int = 64
    """Their width."""
    postnet_kernel: int = 5
    """Frames that each of them sees."""
    stop_weight: float = 5.0
    """Weight of the last step in the loss of the stop token: there is one in each utterance."""

    _RANGES: ClassVar[Ranges] = {
        **TransformerConfig._RANGES,
        "bands": (0, LARGEST),
        "reduction": (1, 20),
        **dict.fromkeys(("prenet_width", "postnet_width"), (1, LARGEST)),
        "postnet_layers": (0, 20),
        "postnet_kernel": (1, 99),
    }
    _RATES = (*TransformerConfig._RATES, "prenet_dropout")
    ADAPTABLE = (*TransformerConfig.ADAPTABLE, "prenet_dropout", "stop_weight")
    FROM_DATA = (*TransformerConfig.FROM_DATA, "bands")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.postnet_kernel % 2 == 0:
            raise UserError("--model.postnet-kernel must be odd: the convolutions are centred")
        if self.stop_weight <= 0:
            raise UserError("--model.stop-weight must be positive")


@dataclass(frozen=True)
class SynthesisDecodingConfig(DecodingConfig):
    """Speech frame by frame, until the model says that it ends."""

    method: Literal["greedy"] = "greedy"  # type: ignore[assignment]
    """greedy: each frame as predicted."""
    max_length: int | None = 600
    """Most frames of an utterance, of 10 ms. None: 60 for each token."""
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
        if refused := self.steered + self.noisy:
            option = refused[0].replace("_", "-")
            raise UserError(f"--decoding.{option} is for tokens, and this model writes sound: leave it out")
