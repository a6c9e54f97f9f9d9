"""Options of recurrent models."""

from dataclasses import dataclass
from typing import Literal

from transformer.config.model import ModelConfig
from transformer.runtime.errors import UserError
from transformer.systems.registry import Options, Preset, Variant
from transformer.systems.transformer.options import BASELINES, baseline


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """Recurrent encoder-decoder (Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2015)."""

    num_layers: int = 1
    """Bidirectional layers of the encoder, and as many of the decoder."""
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    """Cell of the recurrent layers. gru: gated recurrent units (Cho et al. 2014); lstm: long short-term
    memory (Hochreiter and Schmidhuber 1997); rnn: tanh(W x + U h + b), without gates (Elman 1990)."""
    attention: Literal["fixed", "additive", "dot", "hard"] = "additive"
    """Attention to the source. fixed: none, but one vector of the encoder's last states (Cho et al. 2014);
    additive: by a small network (Bahdanau et al. 2015, Eq. 5-6); dot: by scaled dot products; hard: to one
    position, sampled in training (Xu et al. 2015, section 4.1) and trained by REINFORCE, the most probable
    one in decoding."""

    DTYPES = ("float32",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2:
            raise UserError("--model.d-model must be even: each direction has half of it")


_TINY = RecurrentConfig(d_model=170, num_layers=2, dropout=0.2)


def _variant(summary: str, option: str, value: str) -> Variant:
    return Variant(summary, {f"model.{option}": value}, "recurrent", systems=("recurrent",))


OPTIONS = Options(
    model=RecurrentConfig,
    presets={
        "tiny-recurrent": Preset(
            baseline("recurrent", _TINY), "GRU with additive attention (Bahdanau et al. 2015)", BASELINES
        )
    },
    variants={
        "dot": _variant("scaled dot-product attention", "attention", "dot"),
        "hard": _variant("hard attention, trained with REINFORCE (Xu et al. 2015)", "attention", "hard"),
        "fixed": _variant("a fixed context vector (Sutskever et al. 2014)", "attention", "fixed"),
        "rnn": _variant("tanh RNN without gates (Elman 1990)", "cell", "rnn"),
    },
)
