"""Manifests of recordings: a file name, a tab and what is said, and perhaps a tab and the speaker."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from transformer.config.recordings import AUDIO, RecordingsConfig
from transformer.data.remote import fetched
from transformer.data.sources.bad_lines import bad_line, bad_line_of, refuse_bad_lines
from transformer.data.sources.corpora import SPLITS
from transformer.data.sources.text_files import readable_lines
from transformer.runtime.errors import UserError
from transformer.runtime.files import open_regular, unreadable
from transformer.runtime.text import has_text

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
        read_manifest(getattr(data, split))
    refuse_bad_lines()
    if splits and "train" not in splits:
        raise UserError("no training recordings: give --data.train")


def read_manifest(path: Path) -> list[Listed]:
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
            recording = listed(name, path, index)
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
    return listed(columns.name, manifest, number), columns


def listed(name: str, manifest: Path, number: int) -> Path:
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
