"""Sounds that scripts and tests can make alike."""

import functools
import io
import struct
from pathlib import Path

import numpy as np

SOUNDS = 2
RATE = 16_000


def sound(number: int) -> np.ndarray:
    """A chord that becomes louder, with pauses; `[samples]` in float32, at 16 kHz, all of them multiples of
    2^-15."""
    seconds = 1.3 + number
    time = np.arange(int(seconds * RATE)) / RATE
    tones = [np.sin(2 * np.pi * (200 + 170 * k * (number + 1)) * time + k) / k for k in range(1, 6)]
    wave = sum(tones) * (0.05 + 0.1 * time / seconds) * (np.sin(2 * np.pi * 3 * time) > -0.5)
    return (np.round(wave * 2**15) / 2**15).astype(np.float32)


def write_digits(folder: Path, count: int) -> list[str]:
    """Writes 0.wav, 1.wav, ... with a spoken digit each, and returns what is said in them."""
    import soundfile

    from transformer.data.sources.recordings import digits

    texts = []
    for index in range(count):
        words, wave, *_ = digits(2, index, 1)
        soundfile.write(folder / f"{index}.wav", wave, RATE)
        texts.append(" ".join(words))
    return texts


# Files of strangers


def wav(
    samples: bytes,
    *,
    encoding: int = 1,
    channels: int = 1,
    rate: int = RATE,
    bits: int = 16,
    extension: bytes = b"",
    before: bytes = b"",
    claims: int | None = None,
) -> bytes:
    """A WAV file with any header.

    Args:
      samples: its data.
      encoding: the code of its format: 1 is PCM, 3 floating point, 0xFFFE an extensible format.
      channels: their number.
      rate: samples a second.
      bits: of a sample.
      extension: follows these in the chunk of the format.
      before: chunks before the data.
      claims: the bytes of data that the header claims. None: as many as there are.
    """
    width = channels * bits // 8
    about = struct.pack("<HHIIHH", encoding, channels, rate, rate * width % 2**32, width, bits) + extension
    size = len(samples) if claims is None else claims
    content = b"WAVE" + chunk(b"fmt ", about) + before + b"data" + struct.pack("<I", size) + samples
    return b"RIFF" + struct.pack("<I", len(content)) + content


def chunk(name: bytes, content: bytes, claims: int | None = None) -> bytes:
    """A chunk of a RIFF file, which may claim another size than it has."""
    size = len(content) if claims is None else claims
    return name + struct.pack("<I", size) + content


@functools.cache
def bad_recordings() -> dict[str, tuple[bytes, str]]:
    """Files that cannot be heard, and what a refusal of each says."""
    import soundfile

    def stored(kind: str, wave: np.ndarray, rate: int = RATE) -> bytes:
        file = io.BytesIO()
        soundfile.write(file, wave, rate, format=kind)
        return file.getvalue()

    wave = sound(0)
    pcm = (wave * 2**15).astype("<i2").tobytes()
    flac, ogg, mp3, aiff, rf64 = (stored(kind, wave) for kind in ("FLAC", "OGG", "MP3", "AIFF", "RF64"))
    hours = stored("FLAC", np.zeros(3_601_000, np.int16), 1000)
    number = int.from_bytes(hours[18:26], "big") >> 36 << 36  # of STREAMINFO, with an unknown length
    unknown = hours[:18] + number.to_bytes(8, "big") + hours[26:]
    unread, no_sound, truncated = (
        "cannot be read as audio: ",
        "it is no WAV, FLAC, OGG or MP3",
        "copy it again",
    )
    return {
        "empty": (b"", "is empty"),
        "text": (b"This is no sound.\n" * 100, no_sound),
        "zeros": (bytes(5000), no_sound),
        "no chunks": (b"RIFF\4\0\0\0WAVE", "No 'data' chunk"),
        "claims 1 GiB": (wav(pcm, claims=2**30), f"of {2**30} bytes are there"),
        "truncated": (wav(pcm)[:-9], truncated),
        "no samples": (wav(b""), "it has no samples"),
        "0 channels": (wav(pcm, channels=0), "Channel count is zero"),
        "65,535 channels": (wav(pcm, channels=65_535, bits=8), "Too many channels"),
        "0 Hz": (wav(pcm, rate=0), unread),
        "1 Hz": (wav(pcm, rate=1), "1 samples a second; there must be from 1,000"),
        "2^31 Hz": (wav(pcm, rate=2**31), unread),
        "2^31 - 1 Hz": (wav(pcm, rate=2**31 - 1), "2,147,483,647 samples a second"),
        "0 bits": (wav(pcm, bits=0), unread),
        "64 bits": (wav(pcm, bits=64), unread),
        "NaN": (wav(np.float32([0, np.nan]).tobytes(), encoding=3, bits=32), "sample 1 is not a number"),
        "infinity": (wav(np.float32([np.inf]).tobytes(), encoding=3, bits=32), "sample 0 is not a number"),
        "1e300": (wav(np.float64([0.5, 1e300]).tobytes(), encoding=3, bits=64), "sample 1 is not a number"),
        "unknown extension": (wav(pcm, encoding=0xFFFE, extension=b"\x16" + b"\xff" * 23), unread),
        "short extension": (wav(pcm, encoding=0xFFFE, extension=b"\x16\0\x10\0"), unread),
        "unknown encoding": (wav(pcm, encoding=0xFFFF), unread),
        "a chunk of 4 GiB": (wav(pcm, before=chunk(b"LIST", b"abc", 2**32 - 1)), "No 'data' chunk"),
        "hours of silence": (hours, "longer than"),
        "hours that no header tells": (unknown, "longer than"),
        "half a FLAC file": (flac[: len(flac) // 2], unread),
        "half an OGG file": (ogg[: len(ogg) // 2], unread),
        "half an MP3 file": (mp3[: len(mp3) // 2], truncated),
        "half an AIFF file": (aiff[: len(aiff) // 2], truncated),
        "half an RF64 file": (rf64[: len(rf64) // 2], truncated),
        "an AIFF file that leads before its beginning": (
            aiff[:40] + b"\xa0" + aiff[41:45] + b"\x35" + aiff[46:],
            unread,
        ),
        "a damaged FLAC file": (flac[:100] + bytes(200) + flac[300:], unread),
        "a damaged OGG file": (ogg[:40] + bytes(60) + ogg[100:], unread),
    }
