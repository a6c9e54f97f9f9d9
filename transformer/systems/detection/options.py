"""Options of detection and of its search."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.config.ranges import LARGEST, SHARE, Range
from transformer.config.records import PatchConfig, PicturesConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.runtime.errors import UserError
from transformer.systems.registry import COMMON_TO_PICTURES, PICTURES, SMALL_PICTURES, Options, Preset

MOST_QUERIES = 1000


@dataclass(frozen=True)
class DetectionConfig(PatchConfig):
    """A Transformer that finds objects: set prediction (Carion et al. 2020)."""

    vocab_size: Annotated[int, Range(0, LARGEST)] = 0
    """Number of classes. 0: those of the data."""
    share_embeddings: Literal["none"] = "none"  # type: ignore[assignment]
    """Pictures and boxes have no embedding to share."""
    num_queries: Annotated[int, Range(1, MOST_QUERIES)] = 10
    """Learned queries of the decoder: the most objects that a picture can have. 100 in the paper (Carion et
    al. 2020)."""
    empty_weight: Annotated[float, SHARE] = 0.1
    """Weight of a query without an object in the loss of classes (Carion et al. 2020, section 3.1)."""
    auxiliary_loss: bool = True
    """Add the loss of every decoder layer, not only of the last one (Carion et al. 2020, section 3.2)."""

    AUTOREGRESSIVE = False
    FROM_DATA = ("vocab_size",)
    NOT_USED = (
        *PatchConfig.NOT_USED,
        *(
            "target_vocab_size",
            "zero_start",
            "generates_bos",
            "fixed_padding",
            "scale_embedding",
            "scale_output",
            "output_bias",
        ),
    )
    PARAMETER_FREE = (*PatchConfig.PARAMETER_FREE, "empty_weight", "auxiliary_loss")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cross_mechanism in ("location", "monotonic"):
            raise UserError(
                f"--model.cross-mechanism {self.cross_mechanism}: the queries have no order; leave it out"
            )


@dataclass(frozen=True)
class BoxesConfig(PicturesConfig):
    """Pictures with the boxes of their objects. Manifests are JSON lines."""

    max_length: int = 2
    """Not used: pictures are not sequences."""
    batch_tokens: int = 64
    """Pictures of a batch."""
    fewest_shapes: int = 0
    most_shapes: int = 3
    most_boxes: Annotated[int, Range(1, MOST_QUERIES)] = 8
    """Most boxes of a picture: one with more is refused. At most --model.num-queries."""

    counted = "pictures"


@dataclass(frozen=True)
class DetectionDecodingConfig(DecodingConfig):
    """Detection: all objects at once."""

    method: Literal["greedy"] = "greedy"  # type: ignore[assignment]
    """Search method. greedy: the most probable class of each query."""
    threshold: Annotated[float, SHARE] = 0.5
    """Least probability of an object that is shown. Scores count all of them."""

    WITHOUT_STEPS = "is for tokens, and this model finds boxes"


def _detection() -> Config:
    """Drawings of shapes; minutes on a CPU."""
    return Config(
        system="detection",
        model=DetectionConfig(**SMALL_PICTURES),
        data=BoxesConfig(),
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=100),
        training=TrainingConfig(steps=3_600, evaluate_every=600, evaluate_sentences=500, label_smoothing=0.0),
        decoding=DetectionDecodingConfig(buckets=(1,)),
    )


OPTIONS = Options(
    model=DetectionConfig,
    decoding=DetectionDecodingConfig,
    data=BoxesConfig,
    common=COMMON_TO_PICTURES,
    decodes=(
        "Find the objects of pictures: {decode} RUN --input FILE > out. The file names a PNG file on each "
        "line. {search}\n\nAs JSON: {decode} RUN --input FILE --format json"
    ),
    presets={
        "detection": Preset(_detection(), "boxes and classes; without pictures, of drawn shapes", PICTURES)
    },
)
