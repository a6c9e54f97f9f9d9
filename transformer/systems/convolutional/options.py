"""Options of convolutional models."""

from dataclasses import dataclass
from typing import Annotated

from transformer.config.model import ModelConfig
from transformer.config.ranges import Range
from transformer.runtime.errors import UserError
from transformer.systems.registry import Options, Preset
from transformer.systems.transformer.options import BASELINES, baseline


@dataclass(frozen=True)
class ConvolutionalConfig(ModelConfig):
    """Convolutional sequence to sequence (Gehring et al. 2017)."""

    kernel_width: Annotated[int, Range(1, 1023)] = 3
    """Positions that one convolution sees."""
    dilation: tuple[Annotated[int, Range(1, 1024)], ...] = (1,)
    """Distance between the positions that a convolution sees, in each layer, repeated over the layers: 1 2 4
    for more reach with the same work."""

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


_TINY = ConvolutionalConfig(d_model=144, num_layers=4, kernel_width=3, dropout=0.2)

OPTIONS = Options(
    model=ConvolutionalConfig,
    presets={
        "tiny-convolutional": Preset(
            baseline("convolutional", _TINY), "gated convolutions (Gehring et al. 2017)", BASELINES
        )
    },
)
