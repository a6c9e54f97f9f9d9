"""What a report has besides scores and samples: sounds, pictures and trees of some records, tables and
comparisons of all."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from transformer.data.store import Record, Records
from transformer.data.trees import Tree
from transformer.runtime.errors import UserError
from transformer.tasks.outputs import Output
from transformer.tasks.task import Evaluation


@dataclass(frozen=True)
class Axis:
    """An axis of a picture, with labels or with a scale; with neither, only its title is shown."""

    title: str
    labels: tuple[str, ...] = ()
    """One for each row or column."""
    extent: float = 0.0
    """The end of a scale that begins at 0 with the first row or column."""


@dataclass(frozen=True)
class Picture:
    """A matrix to be drawn, or a picture in colours."""

    caption: str
    values: Float[np.ndarray, "rows columns"] | Float[np.ndarray, "rows columns 3"]
    """Each pixel, or its red, green and blue, from 0 to 1. The first row is at the top."""
    x: Axis
    y: Axis

    def __post_init__(self) -> None:
        shape = np.shape(self.values)
        if len(shape) != 2 and shape[2:] != (3,):
            raise UserError(
                f"picture {self.caption!r}: values must be [rows, columns] or [rows, columns, 3], not {shape}"
            )
        if np.nanmax(self.values, initial=0) > 1:
            raise UserError(f"picture {self.caption!r}: values must be from 0 to 1, such as pixels / 255")


@dataclass(frozen=True)
class Sound:
    """A waveform to be played."""

    caption: str
    wave: Float[np.ndarray, " samples"]
    """Samples from -1 to 1, 16,000 a second."""


@dataclass(frozen=True)
class TreePicture:
    """A tree to be drawn."""

    caption: str
    tree: Tree
    marked: frozenset[int] = frozenset()
    """Brackets that stand out, counted from 0 in the order in which they open."""


LONGEST = 40
"""Letters of a label, a word or a name."""


def in_a_cell(text: str) -> str:
    """A text that is as short as a table, a tree or a caption has room for."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


@dataclass(frozen=True)
class Table:
    """Rows of texts, each of which begins with its name."""

    caption: str
    head: tuple[str, ...]
    """Above the columns, that of the names first."""
    rows: tuple[tuple[str, ...], ...]
    shades: tuple[tuple[float, ...], ...] = ()
    """How dark each cell is, except the names: from 0 to 1. Empty: none is."""


@dataclass(frozen=True)
class Comparison:
    """A reference and an output, word by word."""

    caption: str
    pairs: tuple[tuple[str, str], ...]
    """What is in the reference and what in the output. Equal: right. A missing side is empty."""


@dataclass(frozen=True)
class ReportSample:
    """What a model makes of one record."""

    title: str
    texts: Mapping[str, str]
    """Texts by their names, such as what is said and what is heard."""
    sounds: tuple[Sound, ...] = ()
    pictures: tuple[Picture, ...] = ()
    trees: tuple[TreePicture, ...] = ()
    tables: tuple[Table, ...] = ()
    comparisons: tuple[Comparison, ...] = ()


class Exhibits(ABC):
    """What a `DecodingTask` adds, so that reports show sounds, pictures and trees of it."""

    shows_attention: ClassVar[bool] = True
    """Whether `exhibit` has a use for the attention."""

    @abstractmethod
    def exhibited(self, records: Records, count: int) -> list[Record]:
        """The records whose exhibits a report shows.

        Args:
          records: of the validation.
          count: at most so many.
        """

    @abstractmethod
    def exhibit(
        self, record: Record, output: Output, attention: Float[np.ndarray, "t s"] | None
    ) -> ReportSample:
        """What is shown of an exhibited record and its best output.

        Args:
          record: one of `exhibited`.
          output: the first of `outputs`.
          attention: of each target position to each source position, given the reference. None: the system
            has no alignments, or it is not `shows_attention`.
        """


class Overview(ABC):
    """What a `Task` adds, so that reports show tables of the outputs for a whole split, and outputs beside
    their references."""

    @abstractmethod
    def overview(self, evaluation: Evaluation) -> Sequence[Table]:
        """Tables about an evaluation, such as which labels are confused."""

    def comparisons(self, evaluation: Evaluation) -> Sequence[Comparison]:
        """References and outputs, word by word, such as those with the most errors; by default none."""
        return ()
