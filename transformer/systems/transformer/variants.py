"""Attention mechanisms and training methods, each as a change of a preset."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from transformer.config import Config


@dataclass(frozen=True)
class Variant:
    """A change of a config."""

    about: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values of options, by the part of the config that has them."""
    continues: bool = False
    """Whether it is for a trained model, given by --init-from."""

    def of(self, base: Config) -> Config:
        """The changed config."""
        return replace(
            base,
            **{part: replace(getattr(base, part), **options) for part, options in self.changes.items()},
        )

    @property
    def options(self) -> str:
        """The options on the command line."""
        return " ".join(
            f"--{part}.{name.replace('_', '-')} {value}"
            for part, options in self.changes.items()
            for name, value in options.items()
        )


def _model(about: str, **options: Any) -> Variant:
    return Variant(about, {"model": options})


VARIANTS: dict[str, Variant] = {
    "guided": Variant(
        "attention guided to the diagonal (Tachibana et al. 2018)", {"guidance": {"weight": 1.0}}
    ),
    "additive": _model("additive attention to the source (Bahdanau et al. 2015)", cross_mechanism="additive"),
    "location": _model("location-sensitive attention (Chorowski et al. 2015)", cross_mechanism="location"),
    "monotonic": _model("monotonic attention (Raffel et al. 2017)", cross_mechanism="monotonic"),
    "linear": _model("linear self-attention (Katharopoulos et al. 2020)", mechanism="linear"),
    "soft-sum": _model("reads a mean of all encoder layers (Liu et al. 2020)", cross_view="soft-sum"),
    "layer-wise": _model("reads the encoder layer at its own height", cross_view="layer-wise"),
    "coarse-to-fine": _model("reads encoder layers from the last to the first", cross_view="coarse-to-fine"),
    "batch-norm": _model("batch normalisation (Ioffe and Szegedy 2015)", normalization="batch"),
    "power-norm": _model("PowerNorm (Shen et al. 2020)", normalization="power"),
    "rdrop": Variant("R-Drop (Liang et al. 2021)", {"rdrop": {"weight": 3.0}}),
    "scheduled": Variant("scheduled sampling (Mihaylova and Martins 2019)", {"scheduled": {"share": 0.5}}),
    "scheduled-mixture": Variant(
        "scheduled sampling of mean embeddings, with their gradient",
        {"scheduled": {"share": 0.5, "tokens": "mixture", "gradient": "all"}},
    ),
    "scheduled-parallel": Variant(
        "scheduled sampling in two passes (Duckworth et al. 2019)",
        {"scheduled": {"share": 0.5, "tokens": "sample", "passes": 2}},
    ),
    "risk": Variant("minimum risk (Shen et al. 2016)", {"reward": {"share": 0.9}}, continues=True),
    "reinforce": Variant(
        "REINFORCE (Ranzato et al. 2016)", {"reward": {"share": 0.9, "loss": "reinforce"}}, continues=True
    ),
}
"""By name. `tiny-NAME` is a preset."""
