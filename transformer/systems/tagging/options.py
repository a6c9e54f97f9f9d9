"""Options of taggers and of their search."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.config.ranges import LARGEST, Range
from transformer.config.records import TaggedConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import StackConfig
from transformer.runtime.errors import counted
from transformer.systems.registry import COMMON, Options, Preset


@dataclass(frozen=True)
class TaggingConfig(StackConfig):
    """The encoder of a Transformer, and a linear layer from its states to labels (Devlin et al. 2019, section
    5.3)."""

    share_embeddings: Literal["target"] = "target"  # type: ignore[assignment]
    """Labels have a matrix of their own."""
    target_vocab_size: Annotated[int, Range(1, LARGEST)] | None = None
    """Number of labels. None: those of the training sentences."""
    output_bias: bool = True
    """Add a bias to the logits of the labels."""

    NOT_USED = ("zero_start", "generates_bos", "scale_output")

    @property
    def described(self) -> str:
        return f"{counted(self.num_layers, 'layer')}, d_model {self.d_model}"


@dataclass(frozen=True)
class TaggingDecodingConfig(DecodingConfig):
    """Tagging: one label for each word, in one pass."""

    method: Literal["greedy"] = "greedy"  # type: ignore[assignment]
    """Search method. greedy: the most probable label of each word."""

    WITHOUT_STEPS = "is for tokens, and labels have none"


def _tagging() -> Config:
    """Parts of speech of the built-in English sentences; a minute on a CPU."""
    return Config(
        system="tagging",
        model=TaggingConfig(num_layers=2, d_model=128, d_ff=512, num_heads=4, norm="pre", activation="gelu"),
        data=TaggedConfig(
            built_in_size=10_000, tokenizer="word", max_length=128, batch_tokens=2_048, buckets=(16, 32, 64)
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=100),
        training=TrainingConfig(steps=400, label_smoothing=0.0, evaluate_every=100),
        decoding=TaggingDecodingConfig(),
    )


_COMMON = {
    "run_dir": COMMON["run_dir"],
    "training.init_encoder_from": COMMON["training.init_encoder_from"],
    "data.train": "a CoNLL file, a word and its label a line; also --data.validation, --data.test",
    "data.label_column": "column of the labels, if it is not the last",
    "data.tokenizer": "unigram, bpe, char, word, whitespace",
    "data.vocab_size": COMMON["data.vocab_size"],
    "data.batch_tokens": "batch size in padded tokens",
    "data.max_length": "longer training sentences are dropped",
    "model.num_layers": "number of layers",
    **{name: what for name, what in COMMON.items() if name.partition(".")[0] in ("optimizer", "training")},
}

OPTIONS = Options(
    model=TaggingConfig,
    decoding=TaggingDecodingConfig,
    data=TaggedConfig,
    common=_COMMON,
    decodes="Label the words of sentences with a trained model: {decode} RUN < in > out. A line is a "
    "sentence, its words separated by spaces; an empty line stays empty. {search}",
    presets={
        "tagging": Preset(
            _tagging(), "labels words: parts of speech of the built-in English; minutes", "tagging"
        )
    },
)
