"""Options of language models."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from transformer.config.options import Config
from transformer.config.ranges import LENGTH
from transformer.config.records import StreamConfig
from transformer.config.searches import SampleConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import StackConfig
from transformer.runtime.errors import UserError, counted
from transformer.systems.registry import COMMON, Options, Preset


@dataclass(frozen=True)
class LanguageModelConfig(StackConfig):
    """A decoder-only Transformer with a memory of earlier segments (Dai et al. 2019)."""

    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "relative"] = "relative"
    """Position scheme, as of the encoder-decoder. A memory needs one of distances: relative (Dai et al.
    2019), rotary or alibi."""
    norm: Literal["post", "pre"] = "pre"
    """Layer normalisation after each residual sum (post), or before each sublayer (pre)."""
    memory: Annotated[int, LENGTH] = 0
    """Earlier tokens whose states each layer keeps from segment to segment in training (Dai et al. 2019,
    section 3.2). 0: none."""
    evaluation_memory: Annotated[int, LENGTH] | None = None
    """Earlier tokens whose states each layer keeps in evaluation and generation. None: as in training."""

    PARAMETER_FREE = (*StackConfig.PARAMETER_FREE, "memory", "evaluation_memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mechanism == "linear":
            raise UserError(
                "--model.mechanism linear: it cannot keep the documents of a segment apart; use dot-product"
            )
        if (self.memory or self.evaluation_memory) and not self.is_relative:
            raise UserError(
                f"--model.positions {self.positions}: a memory needs positions that count distances; use "
                "relative, rotary or alibi, or --model.memory 0"
            )
        if self.share_embeddings == "target":
            raise UserError(
                "--model.share-embeddings target: a language model has one vocabulary; use all, or none for "
                "a pre-softmax matrix of its own"
            )

    @property
    def described(self) -> str:
        return f"{counted(self.num_layers, 'layer')}, d_model {self.d_model}"

    @property
    def attended(self) -> int:
        """The memory in evaluation and generation, resolved."""
        return self.memory if self.evaluation_memory is None else self.evaluation_memory


def _language_model() -> Config:
    """Characters of the built-in text, with a memory as long as a segment."""
    return Config(
        system="language-model",
        model=LanguageModelConfig(num_layers=3, d_model=128, d_ff=512, num_heads=4, dropout=0.0, memory=64),
        data=StreamConfig(max_length=64, batch_tokens=2048),
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=100),
        training=TrainingConfig(steps=600, label_smoothing=0.0, evaluate_every=200),
        decoding=SampleConfig(
            samples=1, temperature=0.8, length_penalty=0.0, extra_length=200, rows=8, buckets=(64, 256)
        ),
    )


def _shakespeare(memory: int) -> Config:
    """Characters of tiny Shakespeare with the sizes of nanoGPT's recipe for a CPU, without and with a
    memory."""
    base = _language_model()
    gpt: dict[str, Any] = (
        {} if memory else {"positions": "learned", "max_positions": 64, "activation": "gelu"}
    )
    return replace(
        base,
        model=LanguageModelConfig(
            num_layers=4, d_model=128, d_ff=512, num_heads=4, dropout=0.0, memory=memory, **gpt
        ),
        data=StreamConfig(dataset="tiny_shakespeare", max_length=64, batch_tokens=12 * 64),
        optimizer=OptimizerConfig(
            schedule="cosine", peak=1e-3, warmup_steps=100, beta2=0.99, weight_decay=0.1, clip_norm=1.0
        ),
        training=TrainingConfig(steps=2_000, label_smoothing=0.0, evaluate_every=250),
        decoding=replace(base.decoding, extra_length=200 if memory else 32),
    )


_COMMON = {
    "run_dir": COMMON["run_dir"],
    "training.init_from": "a trained run to initialise from",
    "data.train": "running text; also --data.validation, --data.test",
    "data.dataset": "or a TFDS set with text",
    "data.tokenizer": "character, byte, bpe, unigram",
    "data.vocab_size": COMMON["data.vocab_size"],
    "data.batch_tokens": "batch size in tokens: rows times segment",
    "data.max_length": "tokens of a segment",
    "model.memory": "earlier tokens that each layer attends to",
    "model.num_layers": "number of layers",
    **{name: what for name, what in COMMON.items() if name.partition(".")[0] in ("optimizer", "training")},
}
_GROUP = "language models"

OPTIONS = Options(
    model=LanguageModelConfig,
    data=StreamConfig,
    common=_COMMON,
    decodes=(
        "Continue text with a language model: {decode} RUN < prompts > texts. A line is a prompt, in which "
        "\\n is a line break; an empty one is the beginning of a document. {search}\n\n"
        "While it grows: {decode} RUN --stream"
    ),
    presets={
        "language-model": Preset(
            _language_model(), "characters of the built-in English text, with a memory; minutes", _GROUP
        ),
        "shakespeare": Preset(
            _shakespeare(memory=0),
            "characters of tiny Shakespeare, with the sizes of nanoGPT's recipe for a CPU",
            _GROUP,
        ),
        "shakespeare-xl": Preset(
            _shakespeare(memory=64),
            "the same with relative positions and a memory (Dai et al. 2019)",
            _GROUP,
        ),
    },
)
