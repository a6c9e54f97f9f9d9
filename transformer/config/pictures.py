"""Options of pictures, and of models that read them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from transformer.config.corpus import CorpusConfig
from transformer.config.ranges import COUNTS, Range
from transformer.config.transformer import TransformerConfig
from transformer.runtime.errors import UserError

LARGEST_PICTURE = 4096
PICTURE_FILES = (b"\x89PNG", b"\xff\xd8\xff")
"""How the content of PNG and JPEG files begins."""


@dataclass(frozen=True)
class PicturesConfig(CorpusConfig):
    """Pictures with their annotations, and batches."""

    picture_size: Annotated[int, Range(8, LARGEST_PICTURE)] = 32
    """Height and width in pixels to which pictures are resized. More makes more patches."""
    built_in_size: Annotated[int, Range(20, COUNTS)] = 4_000
    """Built-in drawings: number of training pictures to generate."""
    fewest_shapes: Annotated[int, Range(0, 8)] = 1
    """Built-in drawings: fewest shapes of a picture."""
    most_shapes: Annotated[int, Range(1, 8)] = 2
    """Built-in drawings: most shapes of a picture. As many as fit are drawn."""
    train: Path | None = None
    """Manifest of the training pictures: PNG files with their annotations, a picture a line. Names are
    relative to its folder. None: built-in drawings of shapes."""
    validation: Path | None = None
    """Manifest of the validation pictures. Default: a part of the training pictures."""
    test: Path | None = None
    """Manifest of the test pictures. Default: the validation pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fewest_shapes > self.most_shapes:
            raise UserError(
                f"--data.fewest-shapes {self.fewest_shapes} is more than --data.most-shapes "
                f"{self.most_shapes}: lower it"
            )
        if self.batching == "packed":
            raise UserError("--data.batching packed: a picture has a row of its own; use buckets")


@dataclass(frozen=True)
class PatchConfig(TransformerConfig):
    """A Transformer that reads pictures in patches, as the vision transformer does (Dosovitskiy et al.
    2021)."""

    share_embeddings: Literal["target", "none"] = "target"  # type: ignore[assignment]
    """Tied embeddings. target: of the output and before the softmax; none: two matrices. Pictures have
    none."""
    patch_size: Annotated[int, Range(1, LARGEST_PICTURE)] = 4
    """Height and width of a patch in pixels (Dosovitskiy et al. 2021). Each is a position of the encoder."""

    NOT_USED: ClassVar[tuple[str, ...]] = ("source_end",)

    @property
    def longest_source(self) -> int | None:
        return None
