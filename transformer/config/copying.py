"""Configuration of models that copy source words or point to them."""

from dataclasses import dataclass
from typing import Literal

from transformer.config import TransformerConfig
from transformer.errors import UserError


@dataclass(frozen=True)
class CopyingConfig(TransformerConfig):
    """A Transformer whose output words can be positions of the source."""

    output: Literal["mixture", "copynet", "pointer"] = "mixture"
    """Output layer. mixture: a softmax over the vocabulary and one over the source, mixed by a gate
    (pointer-generator, See et al. 2017); copynet: one softmax over both (Gu et al. 2016); pointer: source
    positions only (pointer network, Vinyals et al. 2015)."""
    once: bool = False
    """pointer: each source position is output at most once."""
    coverage_weight: float = 0.0
    """Weight of the coverage loss, which counts attention paid twice (See et al. 2017, Eq. 12).
    0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coverage_weight < 0:
            raise UserError("--model.coverage-weight must not be negative")
        if self.once and self.output != "pointer":
            raise UserError(
                f"--model.once: --model.output {self.output} also generates words; use --model.output pointer"
            )
        if self.output_bias and self.output == "pointer":
            raise UserError("--model.output-bias: a pointer network has no output vocabulary; leave it out")
