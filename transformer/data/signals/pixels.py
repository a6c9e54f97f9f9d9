"""The pixels of picture files."""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float, UInt8

from transformer.data.remote import fetched
from transformer.runtime.errors import UserError
from transformer.runtime.files import open_regular, unreadable
from transformer.runtime.machine import library

LIBRARY = "PIL"
MOST = 50_000_000
"""The most pixels of a file: a few bytes may hold many."""
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
    image_of = library("PIL.Image")
    try:
        with image_of.open(content, formats=("PNG",)) as image:
            if image.width * image.height > MOST:
                raise UserError(
                    f"{path}: {image.width:,} x {image.height:,} pixels are too many: make it smaller"
                )
            if image.mode in DEEP:
                raise UserError(f"{path}: it has more than 8 bits a channel: save it with 8")
            whole = library("PIL.ImageOps").exif_transpose(image).convert("RGBA")
            opaque = image_of.new("RGBA", whole.size, (WHITE, WHITE, WHITE, WHITE))
            opaque.alpha_composite(whole)
            return resized(opaque.convert("RGB"), size), whole.size
    except image_of.DecompressionBombError as error:
        raise UserError(f"{path}: it has too many pixels: make it smaller") from error
    except image_of.UnidentifiedImageError as error:
        raise UserError(f"{path}: is no PNG file: convert it") from error


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
