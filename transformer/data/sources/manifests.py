"""Manifests: files that list pictures with captions or boxes, or recordings with what is said.

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

from transformer.config.records import AUDIO, RecordingsConfig
from transformer.data.remote import fetched
from transformer.data.sources.corpora import SPLITS
from transformer.data.sources.text_files import bad_line, bad_line_of, readable_lines, refuse_bad_lines
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


# Manifests of recordings: a file name, a tab and what is said, and perhaps a tab and the speaker.


MUST = (
    "must be a file name, a tab and the text, which is empty for silence, and perhaps a tab and the speaker"
)


class Columns(NamedTuple):
    """What a line of a list says of a recording."""

    name: str
    """Of the file."""
    text: str | None
    """What is said. None: the line does not say it."""
    speaker: str

    @classmethod
    def of(cls, line: str) -> "Columns":
        """Those of a line. Raises ValueError if it has too many."""
        name, *others = line.split("\t")
        if len(others) > 2:
            raise ValueError(f"{len(others) + 1} columns")
        return cls(name, others[0] if others else None, "".join(others[1:]).strip())


@dataclass(frozen=True)
class Listed:
    """A line of a manifest."""

    path: Path
    name: str
    """As the line has it, relative to the manifest."""
    text: str
    number: int
    manifest: Path
    speaker: str = ""


def check_manifests(data: RecordingsConfig) -> None:
    """Raises UserError if manifests are missing, or name files that are not there."""
    splits = [split for split in SPLITS if getattr(data, split)]
    for split in splits:
        read_recording_list(getattr(data, split))
    refuse_bad_lines()
    if splits and "train" not in splits:
        raise UserError("no training recordings: give --data.train")


def read_recording_list(path: Path) -> list[Listed]:
    """The recordings that a manifest lists. An empty text means that nothing is said.

    Raises:
      UserError: it is empty, a line is not a file name, a tab and a text, perhaps with another tab and the
        speaker, or a file is missing.
    """
    if path.suffix.lower() in AUDIO:
        raise UserError(f"{path} must list recordings with their texts, and its name is that of one")
    lines = []
    for index, line in readable_lines(path):
        try:
            name, text, speaker = Columns.of(line)
        except ValueError:
            text = None
        if text is None:
            bad_line(path, index, MUST)
            continue
        try:
            recording = listed_recordings(name, path, index)
        except UserError as error:
            bad_line_of(path, index, error)
        else:
            said = text if has_text(text) else ""
            lines.append(Listed(recording, name, said, index, path, speaker))
    if not lines:
        refuse_bad_lines()
        raise UserError(f"{path} is empty: it lists no recordings")
    return lines


def listed_columns(line: str, manifest: Path, number: int) -> tuple[Path, Columns]:
    """The recording that a line of a list names, whose text need not be known, and its columns.

    Raises:
      UserError: it names none that is there, or has too many columns; the message has the line.
    """
    try:
        columns = Columns.of(line)
    except ValueError as error:
        raise UserError(
            f"{manifest}, line {number}: must be a file name, and perhaps a tab and the text, and a tab and "
            "the speaker"
        ) from error
    return listed_recordings(columns.name, manifest, number), columns


def listed_recordings(name: str, manifest: Path, number: int) -> Path:
    """A file that a line names, relative to the folder of the manifest. Raises UserError if it is not
    there."""
    if not name.strip():
        raise UserError(f"{manifest}, line {number}: must begin with the name of a recording")
    path = manifest.parent / name
    try:
        with open_regular(fetched(path)):
            return path
    except (OSError, ValueError) as error:
        where = f"{manifest}, line {number}"
        if " " in name and path.suffix.lower() not in AUDIO:  # a line of a text
            raise UserError(
                f"{where}: it names no recording: each line must be the name of one, which ends in "
                f"{' or '.join(AUDIO)}, and perhaps a tab and its text"
            ) from error
        raise UserError(f"{where}: {path}: {unreadable(error)}") from error
