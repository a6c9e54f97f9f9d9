"""The exhibits of a run as JSON, in `exhibits.json`, and those of a whole split, in `overview.json`. The
report is written from files alone, without the model."""

import binascii
import io
import json
import math
import struct
import wave
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer.data.signals.audio import RATE
from transformer.data.trees import read_tree
from transformer.runtime.files import Json, MiB, parse_object, read_text, write_whole
from transformer.tasks.exhibit import ReportSample

# Sounds and pictures as files that a page holds, written with the standard library alone.


COLOURS = ((0, 0, 4), (81, 18, 124), (183, 55, 121), (252, 137, 97), (252, 253, 191))
"""Colours (red, green, blue) of the values 0, 0.25 ... 1: matplotlib's magma."""


def wav_of(samples: Float[np.ndarray, " samples"]) -> bytes:
    """A WAV file: mono, 16 bits.

    Args:
      samples: from -1 to 1; what is no number becomes silence.
    """
    whole = np.rint(np.clip(np.nan_to_num(samples, posinf=0, neginf=0), -1, 1) * 32767).astype("<i2")
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(whole.tobytes())
    return content.getvalue()


OWN_COLOURS, PALETTE = 2, 3
"""Where the colours of a PNG's pixels come from, in its header."""


def png_of(values: Float[np.ndarray, "rows columns"] | Float[np.ndarray, "rows columns 3"]) -> bytes:
    """A PNG file with a pixel for each value, from dark for 0 to light for 1, or for each red, green and blue
    (ISO/IEC 15948)."""
    shades = np.rint(np.clip(np.nan_to_num(values), 0, 1) * 255).astype(np.uint8)
    rows, columns, *channels = shades.shape
    colours = OWN_COLOURS if channels else PALETTE
    header = struct.pack(">IIBBBBB", columns, rows, 8, colours, 0, 0, 0)  # 8 bits
    lines = np.pad(shades.reshape(rows, -1), ((0, 0), (1, 0)))  # each begins with its filter: none
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    if not channels:
        chunks.insert(1, (b"PLTE", _palette()))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _palette() -> bytes:
    """Red, green and blue of each of 256 shades."""
    knots = np.linspace(0, 1, len(COLOURS))
    shades = np.linspace(0, 1, 256)
    channels = [np.interp(shades, knots, channel) for channel in zip(*COLOURS, strict=True)]
    return np.rint(np.stack(channels, axis=1)).astype(np.uint8).tobytes()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


EXHIBITS, OVERVIEW = "exhibits.json", "overview.json"
LARGEST = 32 * MiB
MOST_TEXTS, MOST_CHARACTERS = 50_000, 1_000_000  # of all exhibits
MOST_PIXELS = 2**26
LONGEST_AXIS = 10**9


def exhibit_as_json(exhibit: ReportSample) -> Json:
    """An exhibit, with its sounds as WAV and its pictures as PNG, in base64, and its trees in brackets."""
    return {
        "title": exhibit.title,
        "texts": dict(exhibit.texts),
        "sounds": [
            {"caption": sound.caption, "wav": base64_of(wav_of(sound.wave))} for sound in exhibit.sounds
        ],
        "pictures": [
            {
                "caption": picture.caption,
                "png": base64_of(png_of(picture.values)),
                **{
                    name: {"title": axis.title, "labels": list(axis.labels), "extent": axis.extent}
                    for name, axis in (("x", picture.x), ("y", picture.y))
                },
            }
            for picture in exhibit.pictures
        ],
        "trees": [
            {"caption": picture.caption, "tree": str(picture.tree), "marked": sorted(picture.marked)}
            for picture in exhibit.trees
        ],
        "tables": [asdict(table) for table in exhibit.tables],
        "comparisons": [asdict(comparison) for comparison in exhibit.comparisons],
    }


def write_exhibits(folder: Path, step: int, exhibits: Sequence[Json], name: str = EXHIBITS) -> None:
    """Writes the exhibits of the checkpoint of a step. Raises OSError if they cannot be written."""
    write_whole(folder / name, json.dumps({"step": step, "exhibits": list(exhibits)}))


def read_exhibits(folder: Path, name: str = EXHIBITS) -> tuple[int, list[Json]]:
    """The step and the exhibits that were written; none if there are none, or the file is damaged."""
    try:
        stored = parse_object(read_text(folder / name, LARGEST))
        step = stored["step"]
        exhibits = stored["exhibits"]
        texts = [text for exhibit in exhibits for text in _checked(exhibit)]
        if type(step) is int and len(texts) <= MOST_TEXTS and sum(map(len, texts)) <= MOST_CHARACTERS:
            return step, exhibits
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error):
        pass
    return 0, []


def base64_of(content: bytes) -> str:
    """Bytes as base64."""
    return b64encode(content).decode("ascii")


def _checked(exhibit: Any) -> list[str]:
    """The texts of an exhibit.

    Raises:
      ValueError, TypeError, KeyError, AttributeError, struct.error: this is not what `exhibit_as_json` makes.
        A run directory may come from elsewhere.
    """
    texts = exhibit["texts"]
    sounds = exhibit["sounds"]
    pictures = exhibit["pictures"]
    trees = exhibit.get("trees", [])  # not in earlier runs
    strings = [exhibit["title"], *texts, *texts.values(), *(item["tree"] for item in trees)]
    tables = exhibit.get("tables", [])
    comparisons = exhibit.get("comparisons", [])
    strings += [item["caption"] for item in (*sounds, *pictures, *trees, *tables, *comparisons)]
    for comparison in comparisons:
        strings += [text for expected, output in comparison["pairs"] for text in (expected, output)]
    for table in tables:
        strings += [*table["head"], *(cell for row in table["rows"] for cell in row)]
        shades = [shade for row in table["shades"] for shade in row]
        if not all(type(shade) in (int, float) and 0 <= shade <= 1 for shade in shades):
            raise ValueError("a shade must be from 0 to 1")
    for axis in (picture[name] for picture in pictures for name in "xy"):
        strings += [axis["title"], *axis["labels"]]
        extent = axis["extent"]
        if not isinstance(axis["labels"], list) or type(extent) not in (int, float):
            raise ValueError("an axis must have a list of labels and an extent")
        if not 0 <= extent <= LONGEST_AXIS:
            raise ValueError(f"an axis must end between 0 and {LONGEST_AXIS:,}")
    files = [sound["wav"] for sound in sounds] + [picture["png"] for picture in pictures]
    if not all(isinstance(string, str) for string in (*strings, *files)):
        raise ValueError("must be text")
    for item in trees:
        read_tree(item["tree"])
        if not isinstance(item["marked"], list) or any(type(index) is not int for index in item["marked"]):
            raise ValueError("marked must be a list of numbers of brackets")
    for file in files:
        try:
            b64decode(file, validate=True)
        except binascii.Error as error:
            raise ValueError("must be base64") from error
    for picture in pictures:  # a browser takes the memory of all pixels
        if math.prod(struct.unpack(">II", b64decode(picture["png"])[16:24])) > MOST_PIXELS:
            raise ValueError(f"a picture must have at most {MOST_PIXELS:,} pixels")
    return strings
