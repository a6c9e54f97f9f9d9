"""Variants of the Transformer: the rows of Table 3, attention mechanisms and training methods."""

from collections.abc import Mapping
from dataclasses import replace

from transformer.config import Config, OptimizerConfig, Option, TrainingConfig
from transformer.systems.variants import Variant

FINE_TUNING = Config(
    optimizer=OptimizerConfig(schedule="inverse_sqrt", peak=2e-4, warmup_steps=200),
    training=TrainingConfig(steps=2000, evaluate_every=200),
)
"""How a trained model is trained further."""

_ATTENTION, _TRAINING = "attention and layers", "training methods"
_TABLE_3 = "Table 3 of the paper, of the preset base"
"""Groups of variants."""


def _model(about: str, **options: Option) -> Variant:
    return Variant(about, {f"model.{name}": value for name, value in options.items()}, _ATTENTION)


def _scheduled(about: str, **options: Option) -> Variant:
    """The share of scheduled sampling rises until the last update."""
    values = {f"scheduled.{name}": value for name, value in ({"share": 0.5} | options).items()}
    return Variant(about, values, _TRAINING, change=_until_the_end)


def _until_the_end(config: Config) -> Config:
    return replace(config, scheduled=replace(config.scheduled, updates=config.training.steps))


def _reward(about: str, **options: Option) -> Variant:
    values = {f"reward.{name}": value for name, value in ({"share": 0.9} | options).items()}
    return Variant(f"{about}, with --init-from", values, _TRAINING, change=_trained_further, continues=True)


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
