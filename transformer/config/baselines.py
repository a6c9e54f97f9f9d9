"""Configuration of the baselines."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from transformer.config import ModelConfig, Ranges
from transformer.errors import UserError


@dataclass(frozen=True)
class RecurrentConfig(ModelConfig):
    """Recurrent encoder-decoder (Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2015)."""

    num_layers: int = 1
    """Bidirectional layers of the encoder, and as many of the decoder."""
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    """gru: gated recurrent units (Cho et al. 2014); lstm: long short-term memory (Hochreiter and Schmidhuber
    1997); rnn: tanh(W x + U h + b), without gates (Elman 1990)."""
    attention: Literal["fixed", "additive", "dot", "hard"] = "additive"
    """Attention to the source. fixed: none, but one vector of the encoder's last states (Cho et al. 2014);
    additive: by a small network (Bahdanau et al. 2015, Eq. 5-6); dot: by scaled dot products; hard: to one
    position, sampled in training (Xu et al. 2015, section 4.1) and trained by REINFORCE, the most probable
    one in decoding."""
    reward_weight: float = 1.0
    """hard: weight of the REINFORCE term."""
    entropy_weight: float = 0.01
    """hard: weight of the entropy bonus, which keeps the attention from becoming certain too early."""

    DTYPES = ("float32",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2:
            raise UserError("--model.d-model must be even: each direction has half of it")
        if self.reward_weight < 0 or self.entropy_weight < 0:
            raise UserError("--model.reward-weight and --model.entropy-weight must not be negative")


@dataclass(frozen=True)
class ConvolutionalConfig(ModelConfig):
    """Convolutional sequence to sequence (Gehring et al. 2017)."""

    kernel_width: int = 3
    """Positions that one convolution sees."""
    dilation: tuple[int, ...] = (1,)
    """Distance between those positions in each layer, repeated over the layers: 1 2 4 for more
    reach with the same work."""

    _RANGES: ClassVar[Ranges] = {**ModelConfig._RANGES, "kernel_width": (1, 1023), "dilation": (1, 1024)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2:
            raise UserError("--model.d-model must be even: sinusoids come in pairs")
        if self.kernel_width % 2 == 0:
            raise UserError("--model.kernel-width must be odd: kernels of the encoder are symmetric")
        if not self.dilation:
            raise UserError("--model.dilation needs at least one distance")

    def distance(self, layer: int) -> int:
        """The dilation of a layer."""
        return self.dilation[layer % len(self.dilation)]
