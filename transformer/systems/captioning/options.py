"""Options of captioning."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transformer.config.decoding import BeamConfig
from transformer.config.options import Config
from transformer.config.ranges import LARGEST, Range
from transformer.config.records import PatchConfig, PicturesConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.systems.registry import COMMON_TO_PICTURES, PICTURES, SMALL_PICTURES, Options, Preset


@dataclass(frozen=True)
class CaptionsConfig(PicturesConfig):
    """Pictures with captions. Lengths are those of captions."""

    built_in_size: int = 16_000
    """Built-in drawings: number of training pictures to generate."""
    max_length: int = 32
    """Longest caption in tokens, <eos> included: pictures with longer ones are dropped."""
    batch_tokens: int = 1_024
    """Tokens of a batch: rows times padded length of the captions."""
    buckets: tuple[int, ...] = (16, 32)
    """Padded lengths of captions in tokens, ascending, up to --data.max-length. Each is one compiled
    program."""
    tokenizer: Literal["word", "char", "bpe", "unigram"] = "word"
    """Tokenizer of the captions."""
    vocab_size: Annotated[int, Range(1, LARGEST)] = 1_000
    """Size of the vocabulary to train; for word and char an upper bound. At least 261, with 256 bytes that
    spell rare characters; for words at least 5."""


def _captioning() -> Config:
    """Drawings of shapes; minutes on a CPU."""
    return Config(
        system="captioning",
        model=PatchConfig(**SMALL_PICTURES),
        data=CaptionsConfig(),
        optimizer=OptimizerConfig(schedule="cosine", peak=1e-3, warmup_steps=100),
        training=TrainingConfig(steps=2_000, evaluate_every=500, evaluate_sentences=200),
        decoding=BeamConfig(beam_size=4, extra_length=31, buckets=(1,)),
    )


OPTIONS = Options(
    model=PatchConfig,
    data=CaptionsConfig,
    common=COMMON_TO_PICTURES,
    decodes=(
        "Describe pictures: {decode} RUN --input FILE > out. The file names a PNG file on each line. {search}"
        "\n\nWith scores: {decode} RUN --input FILE --format scores"
    ),
    presets={
        "captioning": Preset(_captioning(), "describes pictures; without any, drawings of shapes", PICTURES)
    },
)
