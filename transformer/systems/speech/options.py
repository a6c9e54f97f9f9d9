"""Options of speech recognition."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from transformer.config import BeamConfig, Config, OptimizerConfig, Ranges, TrainingConfig, TransformerConfig
from transformer.config.ranges import LARGEST
from transformer.config.recordings import RecordingsConfig
from transformer.errors import UserError
from transformer.systems.registry import Options, Preset


@dataclass(frozen=True)
class SpeechConfig(TransformerConfig):
    """A Transformer that reads frames of sound (Dong et al. 2018)."""

    share_embeddings: Literal["all", "target", "none"] = "target"
    """Tied embeddings. target: of the output and before the softmax; none: two matrices. Sound has none."""
    convolutions: int = 2
    """Convolutions before the encoder, each of which halves the number of frames."""
    channels: int = 64
    """Their width."""
    kernel_width: int = 3
    """Frames that each of them sees."""
    masks: int = 0
    """Masks over bands, and as many over frames, that hide parts of the input in training (SpecAugment, Park
    et al. 2019).
    0: none. Often 2."""
    mask_bands: int = 27
    """Most bands of a mask."""
    mask_frames: int = 100
    """Most frames of a mask."""
    mask_share: float = 0.2
    """Largest share of a recording in a mask over frames."""

    _RANGES: ClassVar[Ranges] = {
        **TransformerConfig._RANGES,
        "convolutions": (1, 8),
        "channels": (1, LARGEST),
        "kernel_width": (1, 99),
        **dict.fromkeys(("masks", "mask_bands", "mask_frames"), (0, LARGEST)),
    }
    ADAPTABLE = (*TransformerConfig.ADAPTABLE, "masks", "mask_bands", "mask_frames", "mask_share")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share_embeddings == "all":
            raise UserError("--model.share-embeddings all: sound has no embedding; use target or none")
        if self.kernel_width % 2 == 0:
            raise UserError("--model.kernel-width must be odd: the convolutions are centred")
        if not 0 <= self.mask_share <= 1:
            raise UserError("--model.mask-share must be in [0, 1]")


def _speech() -> Config:
    """Spoken digits, made by a synthesiser."""
    return Config(
        system="speech",
        model=SpeechConfig(
            num_layers=2,
            decoder_layers=1,
            d_model=128,
            d_ff=256,
            num_heads=4,
            dropout=0.0,
            norm="pre",
            positions="rotary",
        ),
        data=RecordingsConfig(),
        optimizer=OptimizerConfig(schedule="cosine", peak=1e-3, warmup_steps=100),
        training=TrainingConfig(steps=2_000, evaluate_every=250, evaluate_sentences=100),
        decoding=BeamConfig(beam_size=4, extra_length=8, buckets=(100, 180, 270, 400)),
    )


SPEECH = "speech"  # the group of the presets that hear and speak

OPTIONS = Options(
    model=SpeechConfig,
    data=RecordingsConfig,
    presets={
        "speech": Preset(
            _speech(),
            "what is said in recordings; without any, in spoken digits of a synthesiser",
            SPEECH,
        )
    },
)
