"""Presets of the Transformer, the models of the paper (Table 3), the recipes and the tasks of text; and its
variants: the rows of that table, attention mechanisms and training methods."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformer.config.corpus import DataConfig, TextTaskName
from transformer.config.decoding import BeamConfig
from transformer.config.model import ModelConfig
from transformer.config.options import Config, text_data
from transformer.config.ranges import Option
from transformer.config.searches import changed_search
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import TransformerConfig
from transformer.systems.registry import Options, Preset, Variant

# Presets of text tasks other than translation, each with a built-in corpus: small enough for minutes on two
# CPU cores.


GROUP = "text tasks"


def _preset(
    description: str, data: DataConfig, steps: int, longest_output: int, d_model: int = 128, **options: Any
) -> Preset:
    """A small Transformer for a corpus.

    Args:
      description: of the preset.
      data: the corpus.
      steps: of training.
      longest_output: tokens of an output.
      d_model: width.
      options: of the model.
    """
    config = Config(
        model=TransformerConfig(
            num_layers=2, d_model=d_model, d_ff=2 * d_model, num_heads=4, dropout=0.0, norm="pre", **options
        ),
        data=data,
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=steps // 10),
        training=TrainingConfig(
            steps=steps,
            label_smoothing=0.0,
            evaluate_every=steps // 4,
            evaluate_sentences=200,
            log_every=25,
            dropout_by="auto",
        ),
        decoding=BeamConfig(
            beam_size=2, buckets=data.lengths, max_length=longest_output, extra_length=longest_output
        ),
    )
    return Preset(config, description, GROUP)


SMALL: dict[str, Any] = {
    "tokenizer": "word",
    "vocab_size": 2000,
    "built_in_size": 20_000,
    "batch_tokens": 4096,
}


def _data(
    dataset: str, task: TextTaskName, inputs: str, target: str, longest: int, **options: Any
) -> DataConfig:
    """A built-in corpus with named columns.

    Args:
      dataset: its name.
      task: what is written.
      inputs: columns that are read, with spaces between them.
      target: the column that is written.
      longest: tokens of a source.
      options: of data.
    """
    return DataConfig(
        dataset=dataset,
        task=task,
        inputs=tuple(inputs.split()),
        target=(target,),
        max_length=longest,
        buckets=(longest // 2, longest * 3 // 4, longest),
        **SMALL | options,
    )


TEXT_PRESETS = {
    "summarisation": _preset(
        "reports, and one or two sentences about them; ROUGE",
        _data(
            "reports",
            "summaries",
            "report",
            "summaries",
            160,
            tokenizer="unigram",
            max_target_length=40,
        ),
        1200,
        40,
    ),
    "answering": _preset(
        "stories, a question, and its answer; F1 and exact match as of SQuAD",
        _data("stories", "answers", "question story", "answer", 80, max_target_length=6),
        3000,
        6,
        d_model=64,
        positions="rotary",
    ),
    "dialogue-history": _preset(
        "conversations, and a reply to what was said turns before",
        _data(
            "conversations",
            "translation",
            "turns",
            "reply",
            128,
            tokenizer="unigram",
            max_target_length=24,
        ),
        1200,
        24,
        positions="rotary",
    ),
    "pronouns": _preset(
        "passages whose pronouns need the sentences before; BLEU",
        DataConfig(
            dataset="pronouns",
            context=2,
            max_length=48,
            max_target_length=16,
            buckets=(16, 32, 48),
            **SMALL | {"batch_tokens": 2048},
        ),
        500,
        16,
    ),
    "sentiment": _preset(
        "sentences that are positive, negative or neutral; accuracy",
        _data("opinions", "labels", "text", "label", 32, max_target_length=4),
        800,
        4,
        d_model=64,
    ),
    "multi-label": _preset(
        "documents with one to four topics; micro F1",
        _data("topics", "label-sets", "text", "labels", 80, max_target_length=12),
        200,
        12,
    ),
    "parsing": _preset(
        "sentences, and their trees; F1 of brackets as of EVALB",
        _data(
            "treebank",
            "trees",
            "words",
            "tree",
            120,
            tokenizer="whitespace",
            batch_tokens=3072,
            batching="packed",
        ),
        400,
        120,
        positions="rotary",
    ),
}


# Variants of the Transformer: the rows of Table 3, attention mechanisms and training methods.


FINE_TUNING = Config(
    optimizer=OptimizerConfig(schedule="inverse_sqrt", peak=2e-4, warmup_steps=200),
    training=TrainingConfig(steps=2000, evaluate_every=200),
)
"""How a trained model is trained further."""

_ATTENTION, _TRAINING = "attention and layers", "training methods"
_TABLE_3 = "Table 3 of the paper, of the preset base"
"""Groups of variants."""


def _model(summary: str, **options: Option) -> Variant:
    return Variant(summary, {f"model.{name}": value for name, value in options.items()}, _ATTENTION)


def _scheduled(summary: str, **options: Option) -> Variant:
    """The share of scheduled sampling rises until the last update."""
    values = {f"scheduled.{name}": value for name, value in ({"share": 0.5} | options).items()}
    return Variant(summary, values, _TRAINING, change=_until_the_end)


def _until_the_end(config: Config) -> Config:
    return replace(config, scheduled=replace(config.scheduled, updates=config.training.steps))


def _reward(summary: str, **options: Option) -> Variant:
    values = {f"reward.{name}": value for name, value in ({"share": 0.9} | options).items()}
    return Variant(f"{summary}, with --init-from", values, _TRAINING, change=_trained_further, continues=True)


def _trained_further(config: Config) -> Config:
    training = replace(FINE_TUNING.training, bleu_tokenize=config.training.bleu_tokenize)
    return replace(config, optimizer=FINE_TUNING.optimizer, training=training)


METHODS: dict[str, Variant] = {
    "additive": _model("additive attention to the source (Bahdanau et al. 2015)", cross_mechanism="additive"),
    "location": _model("location-sensitive attention (Chorowski et al. 2015)", cross_mechanism="location"),
    "monotonic": _model("monotonic attention (Raffel et al. 2017)", cross_mechanism="monotonic"),
    "linear": _model("linear self-attention (Katharopoulos et al. 2020)", mechanism="linear"),
    "soft-sum": _model("reads a mean of all encoder layers (Liu et al. 2020)", cross_view="soft-sum"),
    "layer-wise": _model("reads the encoder layer at its own height", cross_view="layer-wise"),
    "coarse-to-fine": _model("reads encoder layers from the last to the first", cross_view="coarse-to-fine"),
    "batch-norm": _model("batch normalisation (Ioffe and Szegedy 2015)", normalization="batch"),
    "power-norm": _model("PowerNorm (Shen et al. 2020)", normalization="power"),
    "guided": Variant(
        "attention guided to the diagonal (Tachibana et al. 2018)", {"guidance.weight": 1.0}, _TRAINING
    ),
    "rdrop": Variant("R-Drop (Liang et al. 2021)", {"rdrop.weight": 3.0}, _TRAINING),
    "scheduled": _scheduled("scheduled sampling (Mihaylova and Martins 2019)"),
    "scheduled-mixture": _scheduled(
        "scheduled sampling of mean embeddings, with their gradient", tokens="mixture", gradient="all"
    ),
    "scheduled-parallel": _scheduled(
        "scheduled sampling in two passes (Duckworth et al. 2019)", tokens="sample", passes=2
    ),
    "risk": _reward("minimum risk (Shen et al. 2016)"),
    "reinforce": _reward("REINFORCE (Ranzato et al. 2016)", loss="reinforce"),
}

_ROWS: Mapping[str, tuple[str, tuple[Option, ...]]] = {
    "A-heads-{}": ("model.num_heads", (1, 4, 16, 32)),
    "B-keys-{}": ("model.d_k", (16, 32)),
    "C-layers-{}": ("model.num_layers", (2, 4, 8)),
    "C-width-{}": ("model.d_model", (256, 1024)),
    "C-inner-{}": ("model.d_ff", (1024, 4096)),
    "D-dropout-{}": ("model.dropout", (0.0, 0.2)),
    "D-smoothing-{}": ("training.label_smoothing", (0.0, 0.2)),
    "E-{}-positions": ("model.positions", ("learned",)),
}
"""Each row of Table 3 changes one option of the base model. Heads are as wide as d_model / num_heads."""
TABLE_3: dict[str, Variant] = {
    row.format(value): Variant(f"Table 3 ({row[0]})", {name: value}, _TABLE_3)
    for row, (name, values) in _ROWS.items()
    for value in values
}
VARIANTS = METHODS | TABLE_3


BASELINES, COPYING = "baselines", "copying and spelling"
_STARTED, _MULTI30K, _PAPER = "getting started", "Multi30k", "the paper, WMT 2014"
"""Groups of presets."""


def quickstart() -> Config:
    """A small model for the built-in corpus; it trains in minutes on two CPU cores."""
    return Config(
        model=TransformerConfig(num_layers=2, d_model=128, d_ff=256, num_heads=4, dropout=0.0),
        data=DataConfig(
            built_in_size=110_000,
            vocab_size=1600,
            max_length=40,
            batch_tokens=1280,
            batching="packed",  # one shape to compile, and little padding
        ),
        optimizer=OptimizerConfig(algorithm="muon", schedule="cosine", peak=5e-3, warmup_steps=150),
        training=TrainingConfig(
            steps=880,
            label_smoothing=0.0,
            evaluate_every=220,
            evaluate_sentences=128,
            log_every=25,
            dropout_by="auto",
        ),
        decoding=BeamConfig(buckets=(48,), extra_length=10, rows=64),
    )


def tiny() -> Config:
    """Multi30k en-de, text already split into subwords: 4+4 layers, d_model 128 (docs/recipes/tiny.md)."""
    return Config(
        model=TransformerConfig(num_layers=4, d_model=128, d_ff=256, num_heads=4, dropout=0.2),
        data=DataConfig(
            tokenizer="whitespace",
            max_length=64,
            buckets=(10, 12, 14, 16, 18, 21, 25, 32, 44, 64),
            batch_tokens=2048,
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=1.5e-3, warmup_steps=1000, epsilon=1e-8),
        training=TrainingConfig(
            steps=12_000, evaluate_every=400, evaluate_sentences=500, keep_last=10, bleu_tokenize="none"
        ),
        decoding=BeamConfig(beam_size=5, length_penalty=1.0, buckets=(10, 14, 18, 24, 32, 48, 64)),
    )


def _multi30k() -> Config:
    """Multi30k, raw cased text: `tiny` with a BPE vocabulary (docs/recipes/multi30k.md)."""
    base = tiny()
    return replace(
        base,
        data=replace(text_data(base), tokenizer="bpe", vocab_size=8000),
        training=replace(base.training, steps=9_000, bleu_tokenize="13a"),
    )


def _student() -> Config:
    """A student for CPUs, which learns what a `multi30k` teacher translates: a deep encoder, which reads a
    sentence once, a decoder of one layer (Kasai et al. 2021), and greedy search (docs/recipes/student.md).
    With norms after the sublayers, six encoder layers under one decoder layer give all tokens the same state.
    """
    teacher = _multi30k()
    return replace(
        teacher,
        model=replace(teacher.model, num_layers=6, decoder_layers=1, norm="pre"),  # type: ignore[call-arg]
        decoding=changed_search(teacher.decoding, {"method": "greedy"}),
    )


def _tiny_published() -> Config:
    """`tiny` with the published hyperparameters: four times the batch size, a higher peak learning rate, more
    dropout (docs/recipes/tiny.md)."""
    base = tiny()
    return replace(
        base,
        model=replace(base.model, dropout=0.3),  # type: ignore[call-arg]
        data=replace(text_data(base), batch_tokens=8192),
        optimizer=replace(base.optimizer, schedule="inverse_sqrt", peak=5e-3, warmup_steps=2000),
        training=replace(base.training, steps=8_000, evaluate_every=100),
    )


def baseline(system: str, model: ModelConfig) -> Config:
    """A baseline with the number of parameters and the training of `tiny`."""
    base = tiny()
    decoding = replace(base.decoding, rows=64)
    return replace(base, system=system, model=model, decoding=decoding)


def _spelling(vocab_size: int = 30, max_length: int = 41, **data: Any) -> Config:
    """Digits, and the letters of their names: ten digits and fifteen letters."""
    corpus = {"dataset": "spelling", "source_language": "digits", "target_language": "letters"}
    return Config(
        model=TransformerConfig(num_layers=2, d_model=64, d_ff=128, num_heads=4, dropout=0.0),
        data=DataConfig(
            **corpus | {"tokenizer": "word"} | data,
            built_in_size=20_000,
            vocab_size=vocab_size,
            max_length=max_length,
            buckets=(max_length,),
            batch_tokens=32 * max_length,
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=100),
        training=TrainingConfig(
            steps=1000, label_smoothing=0.0, evaluate_every=100, evaluate_sentences=200, bleu_tokenize="none"
        ),
        decoding=BeamConfig(buckets=(9, 18), extra_length=60),
    )


def _pronunciation() -> Config:
    """Numbers, and their phonemes: the first stage of a synthesiser whose second is of phonemes."""
    return _spelling(300, 56, dataset="pronunciation", target_language="phonemes", tokenizer="char")


_FINE_TUNE = replace(FINE_TUNING, data=DataConfig(batch_tokens=2048))

_WMT14 = Config(
    data=DataConfig(
        dataset="wmt14_translate/de-en",
        source_language="en",
        target_language="de",
        tokenizer="bpe",
        vocab_size=37_000,
    )
)


_BIG: dict[str, Any] = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}

OPTIONS = Options(
    presets={
        "quickstart": Preset(quickstart(), "small, built-in corpus; minutes on two CPU cores", _STARTED),
        "fine-tune": Preset(
            _FINE_TUNE, "with the sizes and vocabulary of the run given by --init-from", _STARTED
        ),
        "tiny": Preset(tiny(), "text already split into subwords", _MULTI30K),
        "tiny-published": Preset(_tiny_published(), "tiny with the published hyperparameters", _MULTI30K),
        "multi30k": Preset(_multi30k(), "raw text, with its own BPE vocabulary", _MULTI30K),
        "student": Preset(
            _student(),
            "one decoder layer, greedy: learns from a teacher (distill), fast on CPUs",
            _MULTI30K,
        ),
        "spelling": Preset(
            _spelling(),
            "digits, and the letters of their names: source and target advance together",
            COPYING,
        ),
        "pronunciation": Preset(
            _pronunciation(),
            "numbers, and their phonemes, which a model of system synthesis can speak",
            COPYING,
        ),
        **TEXT_PRESETS,
        "base": Preset(_WMT14, "Table 2's base model", _PAPER),
        "big": Preset(
            replace(
                _WMT14,
                model=TransformerConfig(**_BIG),
                training=replace(_WMT14.training, steps=300_000),
            ),
            "Table 2's big model",
            _PAPER,
        ),
    },
    variants=VARIANTS,
)
"""Those of the paper are for WMT 2014 English-German with a joint vocabulary of 37,000."""
