"""Manifests of pictures: files that list pictures with captions or boxes.

Captions are in lines of a file name, a tab and the caption; lines with the same name are several captions of
one picture. Or a manifest is JSON lines, if its name ends in .jsonl: objects with "picture", and "caption" (a
text, or a list of them) or "boxes", a list of objects with "class" and "box": left, top, width and height in
pixels.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from transformer.data.remote import fetched
from transformer.data.sources.bad_lines import bad_line, bad_line_of, refuse_bad_lines
from transformer.data.sources.text_files import readable_lines
from transformer.runtime.errors import UserError
from transformer.runtime.files import open_regular, parse_object, unreadable
from transformer.runtime.text import has_text

Annotation = Literal["captions", "boxes"]
"""What is known of pictures."""
CLASS_NAME = 100  # letters
FARTHEST = 1e6  # pixels
EXAMPLES = {
    "captions": "a file name, a tab and a caption",
    "boxes": '{"picture": "a.png", "boxes": [{"class": "cat", "box": [left, top, width, height]}]}',
}


class LabelledBox(NamedTuple):
    """An object of a picture."""

    label: str
    box: tuple[float, float, float, float]
    """Left, top, width and height, in pixels."""


@dataclass(frozen=True)
class ListedPicture:
    """A picture of a manifest."""

    path: Path
    where: str
    """The manifest and the line, for messages."""
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
    pictures: dict[Path, ListedPicture] = {}
    for number, line in readable_lines(path):
        where = f"{path}, line {number}"
        try:
            name, captions, boxes = (_of_object if is_json else _of_columns)(line, annotation)
            picture = listed(name, path, number)
        except (ValueError, TypeError, KeyError) as error:
            bad_line(path, number, str(error), subject=f"must be {EXAMPLES[annotation]}: ")
            continue
        except UserError as error:
            bad_line_of(path, number, error)
            continue
        earlier = pictures.get(picture)
        if earlier and annotation == "boxes":
            bad_line(path, number, "is listed twice: list all of its boxes in one line", subject=f"{name} ")
            continue
        if earlier:
            captions = (*earlier.captions, *captions)
        pictures[picture] = ListedPicture(picture, earlier.where if earlier else where, captions, boxes)
    if not pictures:
        refuse_bad_lines()
        raise UserError(f"{path} is empty: it lists no pictures")
    return list(pictures.values())


def listed(name: str, manifest: Path, number: int) -> Path:
    """A file that a line names, relative to the folder of the manifest. Raises UserError if it is not
    there."""
    where = f"{manifest}, line {number}"
    if not name.strip():
        raise UserError(f"{where}: must begin with the name of a picture")
    path = manifest.parent / name
    try:
        with open_regular(fetched(path)):
            return path
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: {path}: {unreadable(error)}") from error


Line = tuple[str, tuple[str, ...], tuple[LabelledBox, ...]]
"""The name of a picture, its captions and boxes."""


def _of_columns(line: str, annotation: Annotation) -> Line:
    name, tab, caption = line.partition("\t")
    if not tab or "\t" in caption:
        raise ValueError("there must be one tab")
    return name, (_caption(caption),), ()


def _of_object(line: str, annotation: Annotation) -> Line:
    about = parse_object(line, named_once=True)
    read: Mapping[str, Callable[[Any], Line]] = {
        "captions": lambda name: (name, _captions(about), ()),
        "boxes": lambda name: (name, (), tuple(map(_box, _list(about, "boxes")))),
    }
    name = about.get("picture")
    if not isinstance(name, str):
        raise ValueError('"picture" must be a file name')
    return read[annotation](name)


def _captions(about: Mapping[str, Any]) -> tuple[str, ...]:
    several = about.get("caption")
    captions = tuple(map(_caption, several if isinstance(several, list) else [several]))
    if not captions:
        raise ValueError('"caption" has no text')
    return captions


def _caption(text: Any) -> str:
    if not isinstance(text, str) or not has_text(text):
        raise ValueError("a caption must have text")
    return " ".join(text.split())


def _list(about: Mapping[str, Any], name: str) -> list[Any]:
    several = about.get(name)
    if not isinstance(several, list):
        raise ValueError(f'"{name}" must be a list')
    return several


def _box(about: Any) -> LabelledBox:
    if not isinstance(about, dict):
        raise ValueError("a box must be an object")
    label, sides = about.get("class"), about.get("box")
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
