"""Configuration of pointer-generator models."""

from dataclasses import dataclass

from transformer.config import TransformerConfig
from transformer.errors import UserError


@dataclass(frozen=True)
class CopyingConfig(TransformerConfig):
    """A Transformer whose output mixes a softmax over the vocabulary with a pointer to the source."""

    coverage_weight: float = 0.0
    """Weight of the coverage loss, which counts attention paid twice (See et al. 2017, Eq. 12).
    0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coverage_weight < 0:
            raise UserError("--model.coverage-weight must not be negative")
