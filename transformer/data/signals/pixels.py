"""The pixels of picture files."""

import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float, UInt8

from transformer.data.remote import fetched
from transformer.runtime.errors import UserError
from transformer.runtime.files import open_regular, unreadable
from transformer.runtime.machine import library, trim_memory

LIBRARY = "PIL"
MOST = 50_000_000
"""The most pixels of a file: a few bytes may hold many."""
MANY = 5_000_000
"""Pixels of a large picture, of which one is read at a time: it takes 8 bytes for each."""
_LARGE = threading.Lock()
CHUNKS = 100_000
"""The most chunks of a PNG file; Pillow stores most of them."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""The first bytes of a PNG file; the width and the height follow from the 16th on."""
DEEP = ("I", "I;16", "I;16B", "I;16L", "F")
"""Pillow's modes of more than 8 bits."""
WHITE = 255

Pixels = UInt8[np.ndarray, "height width 3"]


def read_picture(path: Path, size: int) -> tuple[Pixels, tuple[int, int]]:
    """The pixels of a PNG file, resized to `size` in both directions, and its own width and height. It
    stands as its orientation tag says. What is transparent is white.

    Raises:
      UserError: the file is missing, no regular file, no PNG, damaged, too large, or has more than 8 bits a
        channel; or Pillow is not installed.
    """
    try:
        with open_regular(fetched(path)) as content:
            return read_pixels(content, path, size)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{path}: {unreadable(error)}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read as PNG: {unreadable(error)}") from error


def read_pixels(content: BinaryIO, path: Path | str, size: int) -> tuple[Pixels, tuple[int, int]]:
    """As `read_picture`, of an open file or of `io.BytesIO`, which messages call `path`."""
    library(LIBRARY)
    try:
        return _read(content, path, size)
    except UserError:
        raise
    except Exception as error:  # Pillow has many for chunks that are damaged
        raise UserError(f"{path}: cannot be read as PNG: {unreadable(error)}") from error


def _read(content: BinaryIO, path: Path | str, size: int) -> tuple[Pixels, tuple[int, int]]:
    if _checked_size(content, path) <= MANY:
        return _converted(content, path, size)
    with _LARGE:
        pixels = _converted(content, path, size)
        trim_memory()  # which each thread that reads pictures would keep
    return pixels


def _converted(content: BinaryIO, path: Path | str, size: int) -> tuple[Pixels, tuple[int, int]]:
    image_of = library("PIL.Image")
    try:
        with image_of.open(content, formats=("PNG",)) as image:
            if image.mode in DEEP:
                raise UserError(f"{path}: it has more than 8 bits a channel: save it with 8")
            library("PIL.ImageOps").exif_transpose(image, in_place=True)
            return resized(_opaque(image), size), image.size
    except image_of.UnidentifiedImageError as error:
        raise UserError(f"{path}: is no PNG file: convert it") from error


def _checked_size(content: BinaryIO, path: Path | str) -> int:
    """The number of pixels of a PNG file; 0 of another file. It is told by its head, so that the library
    reads, and warns of, none that is too large. Raises UserError if there are too many, or chunks."""
    head, number = content.read(24), 0
    if head.startswith(SIGNATURE):
        width, height = (int.from_bytes(head[start : start + 4]) for start in (16, 20))
        if (number := width * height) > MOST:
            raise UserError(f"{path}: {width:,} x {height:,} pixels are too many: make it smaller")
        content.seek(len(SIGNATURE))
        for _ in range(CHUNKS):
            if len(chunk := content.read(8)) < 8:
                break
            content.seek(int.from_bytes(chunk[:4]) + 4, os.SEEK_CUR)
        else:
            raise UserError(f"{path}: it has more than {CHUNKS:,} chunks: save it anew")
    content.seek(0)
    return number


def _opaque(image: Any) -> Any:
    """An image of Pillow on white, in RGB: in strips, since a copy of the whole may take 200 MB."""
    if not image.has_transparency_data:
        return image.convert("RGB") if image.mode != "RGB" else image
    image_of = library("PIL.Image")
    opaque, (width, height) = image_of.new("RGB", image.size, None), image.size
    rows = max(1, MANY // 8 // width)
    for top in range(0, height, rows):
        part = image.crop((0, top, width, min(top + rows, height))).convert("RGBA")
        white = image_of.new("RGBA", part.size, (WHITE, WHITE, WHITE, WHITE))
        white.alpha_composite(part)
        opaque.paste(white.convert("RGB"), (0, top))
    return opaque


def resized(image: Any, size: int) -> Pixels:
    """A picture of Pillow in this height and width."""
    if image.size != (size, size):
        image = image.resize((size, size), library("PIL.Image").Resampling.BILINEAR)
    return np.asarray(image, np.uint8)


def pixels_of(array: Any, size: int) -> tuple[Pixels, tuple[int, int]]:
    """The pixels of an array, [height, width] or [height, width, 3], resized as by `read_picture`.

    Args:
      array: whole numbers from 0 to 255, or numbers from 0 to 1.
      size: height and width in pixels.

    Raises:
      UserError: it has another shape, or other numbers.
    """
    values = np.asarray(array)
    if values.ndim == 2:
        values = np.repeat(values[..., None], 3, axis=-1)
    if values.ndim != 3 or values.shape[2] != 3 or not values.size:
        raise UserError(
            f"a picture must be [height, width, 3] or [height, width], not {list(np.shape(array))}"
        )
    if np.issubdtype(values.dtype, np.floating):
        values = values * WHITE
    if values.dtype.kind not in "uif" or not (values.min() >= 0 and values.max() <= WHITE):
        raise UserError("the pixels of a picture must be whole numbers from 0 to 255, or numbers from 0 to 1")
    whole = np.round(values).astype(np.uint8)
    height, width = whole.shape[:2]
    if (height, width) == (size, size):
        return whole, (width, height)
    return resized(library("PIL.Image").fromarray(whole), size), (width, height)


def scaled(pixels: Pixels) -> Float[np.ndarray, "height width 3"]:
    """What a model reads: from -1 to 1, exact also in half precision."""
    return pixels.astype(np.float32) / 128 - 1
