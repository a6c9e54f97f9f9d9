"""Options of models that copy source words or point to them."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from transformer.config.corpus import DataConfig
from transformer.config.decoding import BeamConfig
from transformer.config.options import Config, text_data
from transformer.config.ranges import NOT_NEGATIVE
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import TransformerConfig
from transformer.runtime.errors import UserError
from transformer.systems.registry import Options, Preset, Variant, of_system
from transformer.systems.transformer.options import COPYING


@dataclass(frozen=True)
class CopyingConfig(TransformerConfig):
    """A Transformer whose output words can be positions of the source."""

    output: Literal["mixture", "copynet", "pointer"] = "mixture"
    """Output layer. mixture: a softmax over the vocabulary and one over the source, mixed by a gate
    (pointer-generator, See et al. 2017); copynet: one softmax over both (Gu et al. 2016); pointer: source
    positions only (pointer network, Vinyals et al. 2015)."""
    once: bool = False
    """Output each source position at most once (pointer networks only)."""
    coverage_weight: Annotated[float, NOT_NEGATIVE] = 0.0
    """Weight of the coverage loss, which counts attention paid twice (See et al. 2017, Eq. 12).
    0: none."""

    PARAMETER_FREE = (*TransformerConfig.PARAMETER_FREE, "coverage_weight")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.once and self.output != "pointer":
            raise UserError(
                f"--model.once: --model.output {self.output} also generates words; use --model.output pointer"
            )
        if self.output_bias and self.output == "pointer":
            raise UserError("--model.output-bias: a pointer network has no output vocabulary; leave it out")


_SIZES: dict[str, Any] = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}


def _dialogue(language: str, vocab_size: int) -> Config:
    """Replies to introductions. Names are not in the vocabulary, so a model must copy them."""
    return Config(
        system="copying",
        model=CopyingConfig(**_SIZES),
        data=DataConfig(
            dataset=f"dialogue-{language}",
            source_language=language,
            target_language=language,
            built_in_size=20_000,
            tokenizer="open-word",
            vocab_size=vocab_size,  # the words of the patterns, without names
            max_length=28,
            buckets=(12, 16, 20, 28),
            batch_tokens=1024,
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=100),
        training=TrainingConfig(
            steps=900,
            label_smoothing=0.0,
            evaluate_every=300,
            evaluate_sentences=200,
            bleu_tokenize="zh" if language == "zh" else "13a",
        ),
        decoding=BeamConfig(buckets=(12, 16, 20, 28), extra_length=10),
    )


def _pointing(task: str, language: str) -> Config:
    """A line of words, and an answer of some of its words."""
    return Config(
        system="copying",
        model=CopyingConfig(**_SIZES, dropout=0.0, output="pointer", once=True),
        data=DataConfig(
            dataset=task,
            source_language=language,
            target_language=task,
            built_in_size=60_000,
            tokenizer="open-word",
            vocab_size=300,  # all numbers and points
            max_length=13,
            buckets=(13,),
            batch_tokens=1664,
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=100),
        training=TrainingConfig(
            steps=2000,
            label_smoothing=0.0,
            evaluate_every=500,
            evaluate_sentences=200,
            bleu_tokenize="none",
        ),
        decoding=BeamConfig(buckets=(13, 26, 52), extra_length=1),
    )


def _without_pointer(base: Config) -> Config:
    """The Transformer of the same sizes, which has only the words of its vocabulary."""
    config = of_system(base, "transformer", TransformerConfig)
    return replace(config, data=replace(text_data(config), tokenizer="word"))


def _with_pointer(base: Config) -> Config:
    """The pointer-generator of the same sizes. Its vocabulary has whole words, so that it can copy others,
    and it never writes <unk> for them."""
    config = of_system(base, "copying", CopyingConfig)
    decoding = replace(config.decoding, suppress=(config.model.special.unk,))
    return replace(config, data=replace(text_data(config), tokenizer="open-word"), decoding=decoding)


_GROUP, _SYSTEMS = "copying", ("copying",)

OPTIONS = Options(
    model=CopyingConfig,
    presets={
        "dialogue-en": Preset(_dialogue("en", 67), "replies in English, pointer-generator", COPYING),
        "dialogue-zh": Preset(_dialogue("zh", 71), "replies in Chinese, pointer-generator", COPYING),
        "sorting": Preset(_pointing("sorting", "numbers"), "numbers in order, pointer network", COPYING),
        "convex-hull": Preset(
            _pointing("convex-hull", "points"), "vertices of the hull of points, pointer network", COPYING
        ),
    },
    variants={
        "copynet": Variant(
            "CopyNet (Gu et al. 2016)", {"model.output": "copynet", "model.once": False}, _GROUP, _SYSTEMS
        ),
        "plain": Variant("no pointer", group=_GROUP, systems=_SYSTEMS, change=_without_pointer),
        "copying": Variant(
            "pointer-generator (See et al. 2017)",
            group=_GROUP,
            systems=("transformer",),
            change=_with_pointer,
        ),
    },
)
