"""Pictures with captions or boxes: built-in drawings, and files that a manifest lists.

Captions are in lines of a file name, a tab and the caption; lines with the same name are several captions of
one picture. Or a manifest is JSON lines, if its name ends in .jsonl: objects with "picture", and "caption" (a
text, or a list of them) or "boxes", a list of objects with "class" and "box": left, top, width and height in
pixels.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformer.config.records import PicturesConfig
from transformer.data.built_in import drawings
from transformer.data.signals.pixels import read_picture
from transformer.data.sources.source import (
    HELD_OUT,
    SPLITS,
    Entry,
    Lists,
    Source,
    digests_of,
    entries_of,
    files_of,
    held_out,
    read_files,
    records_of,
)
from transformer.data.sources.text_files import Damaged, bad_line
from transformer.data.store import LINES, TEXT, Corpus, Form, Progress, array, integers, silent
from transformer.runtime.errors import UserError
from transformer.runtime.files import parse_row, readable
from transformer.runtime.text import has_text

Annotation = Literal["captions", "boxes"]
"""What is known of pictures."""
CLASS_NAME = 100  # letters
FARTHEST = 1e6  # pixels
EXAMPLES = {
    "captions": "a file name, a tab and a caption",
    "boxes": '{"picture": "a.png", "boxes": [{"class": "cat", "box": [left, top, width, height]}]}',
}
MARGIN = 1.0  # pixels by which a box may leave its picture: those of tools that count from 1


@dataclass(frozen=True, eq=False)
class AnnotatedPicture:
    """A picture, and what is known of it."""

    name: str
    """Name of the file."""
    pixels: UInt8[np.ndarray, "size size 3"] = field(repr=False)
    """The picture, resized."""
    width: int
    height: int
    """Height of the picture in the file, in pixels."""
    captions: tuple[str, ...] = ()
    """Texts that describe it; one in training."""
    classes: tuple[str, ...] = ()
    """Classes of the objects in the picture."""
    boxes: Float[np.ndarray, "objects 4"] = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    """Boxes of its objects: left, top, width and height, in pixels of the file."""

    def __str__(self) -> str:
        return self.name


def _stored(picture: AnnotatedPicture) -> tuple[Any, ...]:
    size = picture.width, picture.height
    return picture.name, picture.pixels, size, picture.captions, picture.classes, picture.boxes


PICTURES = Form(
    "pictures",
    {
        "name": TEXT,
        "pixels": array(np.uint8, None, None, 3),
        "size": integers(2),
        "captions": LINES,
        "classes": LINES,
        "boxes": array(np.float32, None, 4),
    },
    lambda name, pixels, size, *others: AnnotatedPicture(name, pixels, *size, *others),
    _stored,
)
"""Resized pixels, so that no file is decoded twice."""


class LabelledBox(NamedTuple):
    """An object of a picture."""

    label: str
    box: tuple[float, float, float, float]
    """Left, top, width and height, in pixels."""


@dataclass(frozen=True)
class ListedPicture(Entry):
    """A picture of a manifest."""

    captions: tuple[str, ...] = ()
    boxes: tuple[LabelledBox, ...] = ()


def read_manifest(path: Path, annotation: Annotation) -> list[ListedPicture]:
    """The pictures that a manifest lists.

    Raises:
      UserError: it is empty, a line is not as it must be, or a file is missing.
    """
    if path.suffix.lower() == ".png":
        raise UserError(f"{path} must list pictures with their {annotation}, and its name is that of one")
    is_json = path.suffix.lower() == ".jsonl"
    if annotation == "boxes" and not is_json:
        raise UserError(f"{path}: boxes are read from JSON lines: its name must end in .jsonl")
    parse = functools.partial(_of_object if is_json else _of_columns, annotation=annotation)
    pictures: dict[Path, ListedPicture] = {}
    for entry, (name, captions, boxes) in entries_of(
        path, "picture", parse, f"must be {EXAMPLES[annotation]}: "
    ):
        earlier = pictures.get(entry.path)
        if earlier and annotation == "boxes":
            twice = "is listed twice: list all of its boxes in one line"
            bad_line(path, entry.number, twice, subject=f"{name} ")
        elif earlier:
            pictures[entry.path] = replace(earlier, captions=(*earlier.captions, *captions))
        else:
            pictures[entry.path] = ListedPicture(**vars(entry), captions=captions, boxes=boxes)
    return list(pictures.values())


Line = tuple[str, tuple[str, ...], tuple[LabelledBox, ...]]
"""The name of a picture, its captions and boxes."""


def _of_columns(line: str, annotation: Annotation) -> Line:
    name, tab, caption = line.partition("\t")
    if not tab or "\t" in caption:
        raise ValueError("there must be one tab")
    return name, (_caption(caption),), ()


def _of_object(line: str, annotation: Annotation) -> Line:
    record = parse_row(line)
    name, several = record.get("picture"), record.get("caption" if annotation == "captions" else annotation)
    if not isinstance(name, str):
        raise ValueError('"picture" must be a file name')
    if annotation == "boxes":
        if not isinstance(several, list):
            raise ValueError('"boxes" must be a list')
        return name, (), tuple(map(_box, several))
    captions = tuple(map(_caption, several if isinstance(several, list) else [several]))
    if not captions:
        raise ValueError('"caption" has no text')
    return name, captions, ()


def _caption(text: Any) -> str:
    if not isinstance(text, str) or not has_text(text):
        raise ValueError("a caption must have text")
    return " ".join(text.split())


def _box(json_box: Any) -> LabelledBox:
    if not isinstance(json_box, dict):
        raise ValueError("a box must be an object")
    label, sides = json_box.get("class"), json_box.get("box")
    if not isinstance(label, str) or not has_text(label) or len(label) > CLASS_NAME or "\n" in label:
        raise ValueError(f'"class" must be a text of one line, of at most {CLASS_NAME} letters')
    if not isinstance(sides, list) or len(sides) != 4 or not all(map(_is_number, sides)):
        raise ValueError('"box" must be four numbers')
    left, top, width, height = map(float, sides)
    if not (width > 0 and height > 0):
        raise ValueError(f"a box must have a positive width and height, not {width:g} and {height:g}")
    return LabelledBox(label.strip(), (left, top, width, height))


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value) and abs(value) <= FARTHEST


def picture_lists(data: PicturesConfig, annotation: Annotation) -> Lists[ListedPicture]:
    """What the manifests list. Raises UserError if they are missing, or name files that are not there."""
    return read_files(data, "pictures", functools.partial(read_manifest, annotation=annotation))


def open_pictures(data: PicturesConfig, annotation: Annotation, progress: Progress = silent) -> Corpus:
    """The pictures of the config, resized on first use.

    Args:
      data: options of the pictures.
      annotation: which of them is read.
      progress: shows the progress.

    Raises:
      UserError: a manifest or a picture is missing or damaged (the message names its line).
    """
    source = _listed(data, annotation, progress) if files_of(data) else _built_in(data, progress)
    return source.open(data.cache_dir)


def picture(path: Path, data: PicturesConfig) -> AnnotatedPicture:
    """A picture from a file. Raises UserError as `read_picture`."""
    pixels, (width, height) = read_picture(path, data.picture_size)
    return AnnotatedPicture(readable(path.name), pixels, width, height)


def _built_in(data: PicturesConfig, progress: Progress) -> Source:
    held_out = min(HELD_OUT, max(10, data.built_in_size // 8))
    sizes = {"train": data.built_in_size, "validation": held_out, "test": held_out}
    options = data.picture_size, data.fewest_shapes, data.most_shapes

    def read(split: str) -> Iterator[AnnotatedPicture]:
        indices = progress(f"drawing, {split}", range(sizes[split]), sizes[split])
        return (_drawn(split, index, data) for index in indices)

    prefix = f"drawings-v{drawings.VERSION}"
    return Source("built-in drawings", PICTURES, prefix, (sizes, options), read)


def _drawn(split: str, index: int, data: PicturesConfig) -> AnnotatedPicture:
    size = data.picture_size
    drawing = drawings.drawing(SPLITS.index(split), index, size, data.fewest_shapes, data.most_shapes)
    captions = drawings.captions(drawing.shapes)
    classes = tuple(shape.form for shape in drawing.shapes)
    one = (captions[index % len(captions)],) if split == "train" else captions
    return AnnotatedPicture(f"{split}-{index}", drawing.pixels, size, size, one, classes, drawing.boxes)


def _listed(data: PicturesConfig, annotation: Annotation, progress: Progress) -> Source:
    lists = picture_lists(data, annotation)
    digests = digests_of(lists)
    notes = held_out(lists, digests, lambda item: digests[item.path], "picture")
    content = {
        split: [(digests[item.path], item.captions, item.boxes) for item in some]
        for split, some in lists.items()
    }
    damaged = Damaged()

    def read(split: str) -> Iterator[AnnotatedPicture]:
        def pictures(item: ListedPicture) -> Iterator[AnnotatedPicture]:
            whole = _annotated(item, data)
            if split != "train" or annotation != "captions":
                yield whole
                return
            for caption in item.captions:  # each is an example
                yield replace(whole, captions=(caption,))

        return records_of(progress(f"reading, {split}", lists[split], len(lists[split])), pictures, damaged)

    key = content, data.picture_size
    return Source(str(data.train), PICTURES, "pictures", key, read, lists, notes, damaged)


def _annotated(item: ListedPicture, data: PicturesConfig) -> AnnotatedPicture:
    plain = picture(item.path, data)
    for labelled in item.boxes:
        _check_inside(labelled, plain)
    boxes = np.array([box for _, box in item.boxes], np.float32).reshape(-1, 4)
    classes = tuple(label for label, _ in item.boxes)
    return replace(plain, captions=item.captions, classes=classes, boxes=boxes)


def _check_inside(labelled: LabelledBox, read: AnnotatedPicture) -> None:
    left, top, width, height = labelled.box
    is_inside = min(left, top) >= -MARGIN
    if not (is_inside and left + width <= read.width + MARGIN and top + height <= read.height + MARGIN):
        raise UserError(
            f"the box {[left, top, width, height]} leaves the picture, {read.width} x {read.height} pixels: "
            "it must be left, top, width and height"
        )
