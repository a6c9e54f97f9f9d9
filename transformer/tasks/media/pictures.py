"""Tasks of pictures: what captioning and detection share."""

import functools
import io
import itertools
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import jax
import numpy as np
from jaxtyping import Float

from transformer.config.corpus import SPLITS
from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config, with_named_corpus
from transformer.config.records import PatchConfig, PicturesConfig
from transformer.data.sequences import Field, Fields
from transformer.data.signals.pixels import LIBRARY, pixels_of, read_pixels, scaled
from transformer.data.sources.pictures import (
    AnnotatedPicture,
    Annotation,
    open_pictures,
    picture,
    picture_lists,
)
from transformer.data.sources.source import files_of, listed
from transformer.data.store import Corpus, Progress, Records, silent
from transformer.model.variants.patches import NO_PICTURE, patches_along
from transformer.runtime.errors import UserError
from transformer.runtime.files import prefixed_errors
from transformer.tasks.exhibit import Axis, Exhibits, Picture
from transformer.tasks.outputs import DecodingTask, Lines

EXHIBITED = 160
"""Height of a picture in a report, at least, in pixels."""


Seen = Path | str | np.ndarray | jax.Array
"""A PNG file, or its pixels, [height, width, 3] or [height, width]: whole numbers from 0 to 255, or numbers
from 0 to 1."""
OF_CORPUS = re.compile(rf"({'|'.join(SPLITS)}):(\d{{1,9}})")
"""A picture of the built-in corpus of a run, such as test:0."""


@dataclass(frozen=True)
class Located:
    """A part of an output, such as a word or an object, and where it is in the picture."""

    text: str
    patches: tuple[float, ...] = ()
    """The attention to each patch, row by row; empty: there is none."""
    box: tuple[float, float, float, float] | None = None
    """Left, top, width and height, as shares of the picture."""
    probability: float | None = None


class Pictures(Exhibits, Lines, DecodingTask):
    """Pictures, and what is in them."""

    unit = "pictures"
    inputs = ("source",)
    record_type = AnnotatedPicture
    annotation: ClassVar[Annotation]

    @property
    def data(self) -> PicturesConfig:
        """The options of the pictures."""
        return data_of(self.config)

    @property
    def picture_field(self) -> Field:
        """The pictures of a batch."""
        size = self.data.picture_size
        return Field("float32", fill=NO_PICTURE, shape=(size, size, 3), padded=False)

    @property
    def stored_fields(self) -> Fields:
        """Pictures in half precision, which is exact."""
        return {**self.fields, "source": replace(self.picture_field, dtype="float16")}

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if pictures are missing, or their patches have no positions."""
        data, model = data_of(config), config.model
        assert isinstance(model, PatchConfig)
        patches = patches_along(data.picture_size, model.patch_size) ** 2
        longest = model.of_encoder.longest
        if longest is not None and patches > longest:
            raise UserError(
                f"--model.max-positions {longest}: a picture has {patches:,} patches; raise it, or "
                "--model.patch-size"
            )
        picture_lists(data, cls.annotation)

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        """What reads pictures."""
        return (LIBRARY,) if files_of(data_of(config)) else ()

    @classmethod
    def open_corpus(cls, config: Config, progress: Progress = silent) -> Corpus:
        """The pictures of manifests, or the built-in ones."""
        return open_pictures(data_of(config), cls.annotation, progress)

    def pixels(self, record: AnnotatedPicture) -> Float[np.ndarray, "size size 3"]:
        """What the model reads of a picture."""
        return scaled(record.pixels)

    # Lines in

    def record(self, line: str) -> AnnotatedPicture:
        """The picture that a line names.

        Raises:
          UserError: it cannot be read.
        """
        return picture(Path(line), self.data)

    def listed(self, line: str, manifest: Path, number: int) -> AnnotatedPicture:
        """The picture that a line of a file names: a file, relative to its folder, or one of the corpus.

        Raises:
          UserError: it cannot be read; the message has the file and the line.
        """
        if match := OF_CORPUS.fullmatch(line.strip()):
            return self._of_corpus(match[1], int(match[2]), f"{manifest}, line {number}: {match[0]}")
        path = listed_file(line, manifest, number)
        with prefixed_errors(f"{manifest}, line {number}: "):
            return picture(path, self.data)

    def _of_corpus(self, split: str, index: int, where: str) -> AnnotatedPicture:
        with prefixed_errors(f"{where}: "):
            splits = self._splits
        if split not in splits:
            raise UserError(f"{where}: the corpus of the run has no {split} split")
        pictures = splits[split]
        if index >= len(pictures):
            raise UserError(
                f"{where}: must be from {split}:0 to {split}:{len(pictures) - 1}: the corpus of the run has "
                f"no more pictures of {split}"
            )
        (record,) = pictures.__getitems__([index])
        return cast(AnnotatedPicture, record)

    @functools.cached_property
    def _splits(self) -> Mapping[str, Records]:
        config = with_named_corpus(self.config, "name PNG files")
        return self.open_corpus(config).splits

    def seen(self, source: Any) -> AnnotatedPicture:
        """The picture of a file, also as `io.BytesIO`, or of an array as `pixels_of` takes it.

        Raises:
          UserError: it cannot be read, or is no picture.
        """
        if isinstance(source, str | Path):
            return picture(Path(source), self.data)
        if isinstance(source, io.BytesIO):
            pixels, (width, height) = read_pixels(source, "the picture", self.data.picture_size)
            return AnnotatedPicture("picture", pixels, width, height)
        if not hasattr(source, "__array__"):
            raise UserError(f"cannot read {type(source).__name__}: give PNG files or arrays of pixels")
        pixels, (width, height) = pixels_of(source, self.data.picture_size)
        return AnnotatedPicture("array", pixels, width, height)

    def example_command(self, record: AnnotatedPicture, decode: str) -> str:
        """The command that decodes a built-in picture, or some picture: files of a corpus are not opened."""
        return f"echo {'PICTURE.png' if files_of(self.data) else 'validation:0'} | {decode}"

    # For the explorer

    @abstractmethod
    def located(self, record: AnnotatedPicture, output: Any) -> list[Located]:
        """The parts of an output for a picture, in their order."""

    def threshold(self, settings: DecodingConfig) -> float | None:
        """The probability from which parts are shown at first. None: all are."""
        return None

    # For the report

    def exhibited(self, records: Records, count: int) -> list[AnnotatedPicture]:
        """The first pictures."""
        return list(itertools.islice(records, count))


def is_picture(source: object) -> bool:
    """Whether it is one picture, and not several."""
    return isinstance(source, Path | str) or hasattr(source, "__array__")


def check_listed(line: str, manifest: Path, number: int) -> None:
    """Raises UserError if a line of a file names neither a picture that is there, nor one of the corpus."""
    if not OF_CORPUS.fullmatch(line.strip()):
        listed_file(line, manifest, number)


def listed_file(line: str, manifest: Path, number: int) -> Path:
    """The picture that a line of a file names, relative to its folder.

    Raises:
      UserError: it is not there, or the line has a tab.
    """
    if "\t" in line:
        raise UserError(f"{manifest}, line {number}: must be the name of a picture, without a tab")
    return listed(line, manifest, number, "picture")


def enlarged(pixels: np.ndarray) -> tuple[Float[np.ndarray, "height width 3"], int]:
    """A picture for people, from 0 to 1, and by how much it is enlarged."""
    factor = max(1, -(-EXHIBITED // max(len(pixels), 1)))
    return np.repeat(np.repeat(pixels, factor, axis=0), factor, axis=1) / 255, factor


def shown_picture(caption: str, values: Float[np.ndarray, "height width 3"]) -> Picture:
    """A picture of the report, without scales."""
    return Picture(caption, values, Axis(""), Axis(""))


def data_of(config: Config) -> PicturesConfig:
    """The options of the pictures of a config."""
    assert isinstance(config.data, PicturesConfig)
    return config.data
