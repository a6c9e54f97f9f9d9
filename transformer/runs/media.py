"""Sounds and pictures as files that a page holds, written with the standard library alone."""

import io
import struct
import wave
import zlib

import numpy as np
from jaxtyping import Float

from transformer.data.features.audio import RATE

COLOURS = ((0, 0, 4), (81, 18, 124), (183, 55, 121), (252, 137, 97), (252, 253, 191))
"""Of 0, 0.25 ... 1: matplotlib's magma."""


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
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    if not channels:
        parts.insert(1, (b"PLTE", _palette()))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _palette() -> bytes:
    """Red, green and blue of each of 256 shades."""
    knots = np.linspace(0, 1, len(COLOURS))
    shades = np.linspace(0, 1, 256)
    channels = [np.interp(shades, knots, channel) for channel in zip(*COLOURS, strict=True)]
    return np.rint(np.stack(channels, axis=1)).astype(np.uint8).tobytes()


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
