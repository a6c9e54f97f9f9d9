"""Options of AT and FAT."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transformer.config.model import ModelConfig
from transformer.config.ranges import LARGEST, Option, Range
from transformer.runtime.errors import UserError
from transformer.systems.registry import Options, Variant, of_system


@dataclass(frozen=True)
class FastAutoregressiveConfig(ModelConfig):
    """A recurrent decoder whose input words are gated by attention to the source, with the parts of two
    systems. AT: an LSTM encoder and additive attention. FAT: slow multi-head attention and the fast fully
    connected softmax."""

    num_layers: int = 1
    """Layers of the encoder. The decoder has one."""
    encoder: Literal["lstm", "attention"] = "attention"
    """Encoder. lstm: recurrent (AT); attention: slow multi-head attention (FAT)."""
    weights: Literal["additive", "softmax", "tanh"] = "softmax"
    """Attention to the source. additive: by a network with a ReLU (AT); softmax, tanh: the fast fully
    connected softmax, in its two formulas (FAT)."""
    num_heads: Annotated[int, Range(1, LARGEST)] = 4
    """Number of heads of the encoder with slow multi-head attention, each with its gate."""
    bidirectional: bool = True
    """Whether the encoder reads in both directions, or from left to right only."""
    table_size: Annotated[int, Range(1, LARGEST)] = 128
    """Rows and columns of the table that the fast fully connected softmax adds to the scores. Later positions
    share the last ones."""
    hybrid: bool = False
    """Hybrid forward pass: a decoder input that does not occur in the source is replaced by zeros, and does
    not attend. In decoding, attention is skipped where that holds for all hypotheses of a search."""
    frequent: Annotated[float, Range(0, 1, above=True)] = 1.0
    """Share of the vocabulary, from its first id, that the hybrid forward pass does not skip."""

    DTYPES = ("float32",)

    @property
    def growth_conflict(self) -> str:
        """Why words cannot be added: in a hybrid pass, the size of the vocabulary decides which ids are
        frequent."""
        return "--model.frequent" if self.frequent < 1 else ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 2:
            raise UserError(
                "--model.d-model must be even: each direction has half of it, and sinusoids pairs"
            )
        if self.encoder == "attention" and self.d_model % self.num_heads:
            raise UserError(
                f"--model.d-model {self.d_model} is not divisible by --model.num-heads {self.num_heads}: "
                "change one of them"
            )
        if self.hybrid and self.share_embeddings != "all":
            raise UserError(
                "--model.hybrid compares words of source and target: it needs a joint vocabulary, with "
                "--model.share-embeddings all"
            )
        if self.frequent < 1 and not self.hybrid:
            raise UserError("--model.frequent: nothing is skipped without --model.hybrid; leave it out")


def _fast(summary: str, **options: Option) -> Variant:
    return Variant(
        summary,
        {f"model.{name}": value for name, value in options.items()},
        "AT and FAT",
        systems=("transformer",),
        change=lambda base: of_system(base, "fast-autoregressive", FastAutoregressiveConfig),
    )


OPTIONS = Options(
    model=FastAutoregressiveConfig,
    variants={
        "at": _fast("AT: LSTM encoder, gated recurrent decoder", encoder="lstm", weights="additive"),
        "fat": _fast("FAT: slow attention, fast fully connected softmax"),
        "fat-tanh": _fast("FAT with tanh instead of the softmax", weights="tanh"),
        "fat-hybrid": _fast("FAT that skips words absent from the source", hybrid=True),
    },
)
