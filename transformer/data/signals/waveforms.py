"""Waveforms: from files and arrays, and to files.

A waveform is float32, mono, from -1 to 1, at 16,000 samples a second unless stated otherwise.
"""

import contextlib
import io
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from transformer.data.signals.audio import RATE
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import atomic_open, open_regular, unreadable, writing
from transformer.runtime.machine import library

LONGEST = 3600
"""The most seconds of a file."""
MOST = 500_000_000
"""The most samples of a file, over all of its channels: a few bytes may hold minutes of silence."""
BLOCK = 2**20
"""Samples that are read at once, over all channels."""
RATES = 1_000, 1_000_000
"""Samples a second of a file."""
LOUDEST = 1.5
"""The largest absolute sample; lossy codecs and resampling exceed 1 a little, whole numbers far."""
FAINT = 0.01
"""Channels cancel out if the power of their mean is a smaller part of theirs."""
UNKNOWN = 2**62
"""Frames from which a header was written before the length was known."""
STREAMED = 2**31 - 2**16
"""Bytes from which the header of a WAV file was."""
CUT = re.compile(
    r"^(?:data| SSND|riff|  Riff size) : (?P<declared>\d+) \(should be (?P<found>\d+)\)", re.MULTILINE
)
"""In libsndfile's log: a WAV, AIFF, W64 or RF64 file has another length than its header says."""
JUNK = "Junk after the last page"
"""There, too: an OGG file ends within a page, or another one follows."""
_LISTED = bytes(byte for byte in range(16, 240) if byte & 12 != 12)  # neither a free rate nor a wrong one
_FRAME = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][%s]" % re.escape(_LISTED))
"""The first bytes of a frame of MP3 (ISO 11172-3, 2.4.1.3)."""
_KBITS = (
    [*range(8, 65, 8), *range(80, 161, 16)],
    [*range(32, 65, 8), *range(80, 129, 16), *range(160, 257, 32), 320],
)
"""A second, by the index in such a head: of MPEG 2 and 2.5, and of MPEG 1."""
log = logging.getLogger("transformer")


# Files


def read_audio(path: Path) -> Float[np.ndarray, " samples"]:
    """The waveform of a WAV, FLAC, OGG or MP3 file, at `RATE`. Channels are averaged; if they cancel
    out, the loudest is heard alone.

    Raises:
      UserError: the file is missing, is no regular file, is no audio, is truncated, has no samples, too many,
        too few a second, or samples that are not numbers from -1 to 1; or the libraries for audio are not
        installed.
    """
    library("soundfile")
    with _open(path) as content:
        powers = list[np.ndarray]()
        pieces = list(_pieces(content, path, powers))
        channel = _alone(powers, path)
        if channel is not None:
            pieces = list(_pieces(content, path, channel=channel))
        return np.concatenate(pieces)


class StoredRecording(NamedTuple):
    """A file in memory: as it is, since it may hold hours in a few bytes."""

    content: bytes
    name: str
    """What messages call it."""
    is_wanted: Callable[[], bool] = lambda: True
    """Whether somebody still waits for what is read: that of an hour takes seconds."""

    def __str__(self) -> str:
        return self.name


@contextlib.contextmanager
def _open(source: Path | StoredRecording) -> Iterator[BinaryIO]:
    """Opens a file. Raises UserError if that fails, or reading it."""
    try:
        if isinstance(source, StoredRecording):
            yield io.BytesIO(source.content)
        else:
            with open_regular(source) as content:
                yield content
    except (OSError, ValueError) as error:
        raise UserError(f"{source}: {unreadable(error)}") from error


def audio_blocks(
    source: Path | StoredRecording, longest: int | None = None
) -> Iterator[Float[np.ndarray, " samples"]]:
    """The waveform of a file, some seconds at once; channels as in `read_audio`. The file is read once before
    the first block, so what is wrong with it is known by then.

    Args:
      source: the file.
      longest: the most seconds. None: any.

    Raises:
      UserError: as `read_audio`.
    """
    library("soundfile")
    with _open(source) as content:
        powers = list[np.ndarray]()
        for _ in _pieces(content, source, powers, longest=longest):
            pass
        yield from _pieces(content, source, channel=_alone(powers, source), longest=longest)


def seconds_of(path: Path) -> float:
    """How long a file is, by its header; infinity if that does not say it, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RuntimeError), open_regular(path) as content:
        with library("soundfile").SoundFile(content.fileno(), closefd=False) as file:
            if file.frames < UNKNOWN:
                return float(file.frames / file.samplerate)
    return math.inf


def _pieces(
    content: BinaryIO,
    path: Path | StoredRecording,
    powers: list[np.ndarray] | None = None,
    *,
    channel: int | None = None,
    longest: int | None = LONGEST,
) -> Iterator[Float[np.ndarray, " samples"]]:
    """The waveform of one channel, or of the mean of all, block by block. At the end `powers_of` the whole
    file is appended to `powers`."""
    try:
        with _opened(content, path) as file:
            file.seekable = lambda: False  # it would seek after each block, which fails where a FLAC ends
            file_rate = file.samplerate
            frames = samples = 0
            max_frames = _most(file, path, longest)
            stream = Resampling(file_rate, RATE)
            sums = np.zeros(1 + file.channels)
            for block in _blocks(file):
                if isinstance(path, StoredRecording) and not path.is_wanted():
                    raise UserError(f"{path}: nobody waits for it")
                if (frames := frames + len(block)) > max_frames:
                    raise _too_long(path, max_frames / file_rate)
                if not (block.min() >= -LOUDEST and block.max() <= LOUDEST):
                    right = is_sound(block).all(axis=1)
                    number = frames - len(block) + int(np.flatnonzero(~right)[0])
                    raise UserError(
                        f"{path}: sample {number} is not a number from -1 to 1; write the file again, whole "
                        "numbers as 16-bit PCM"
                    )
                mixed = block.mean(axis=1) if channel is None else block[:, channel]
                if powers is not None:
                    sums += powers_of(mixed, block)
                piece = stream(mixed)
                samples += len(piece)
                yield piece
            announced = file.frames
            if file.format == "MP3":
                announced = _check_frames(content, path, frames, announced)
            if frames < announced < UNKNOWN:
                raise UserError(f"{path}: {frames:,} of {announced:,} samples are there: copy it again")
    except RuntimeError as error:
        raise _unreadable(path, error) from error
    if not frames:
        raise UserError(f"{path}: it has no samples")
    rest = stream.rest()
    if not samples + len(rest):
        raise UserError(f"{path}: too short: {counted(frames, 'sample')} at {file_rate:,} a second")
    yield rest
    if powers is not None:
        powers.append(sums)


def _check_frames(content: BinaryIO, path: Path | StoredRecording, heard: int, announced: int) -> int:
    """How many samples the header of an MP3 file announces; 0 if it has none of that kind, where libsndfile
    estimates them by the first frames.

    Raises:
      UserError: by all of its frames it has more than libsndfile reads: it was joined of several, or the
        estimate is too small.
    """
    content.seek(0)
    data = content.read()
    at = total = length = 0
    if data.startswith(b"ID3"):  # a tag, with 7 bits in a byte of its size
        at = 10 + sum((byte & 127) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=False))
    start = data[at : at + 200]
    while at < len(data):
        head = _FRAME.search(data, at, at + BLOCK)  # no more at once: other threads wait
        if not head:
            at += BLOCK - 2
            continue
        follows, at = head.start() == at, head.start()  # or a tag looks like a frame
        version, third = data[at + 1] >> 3 & 3, data[at + 2]  # 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
        rate = (44_100, 48_000, 32_000)[third >> 2 & 3] >> {3: 0, 2: 1, 0: 2}[version]
        length = 1152 if version == 3 else 576
        at += length // 8 * 1000 * _KBITS[version == 3][(third >> 4) - 1] // rate + (third >> 1 & 1)
        total += length * follows
    if heard < 0.98 * total - 4 * length:  # the silence that an encoder adds is left out
        raise UserError(
            f"{path}: {heard:,} of about {total:,} samples can be read: it is several files in one, or has "
            "no header that says its length; convert it to FLAC or WAV"
        )
    return announced if any(name in start for name in (b"Xing", b"Info", b"VBRI")) else 0


def check_header(path: Path) -> None:
    """Checks what the header of a file says, as `read_audio` does, without reading its samples.

    Raises:
      UserError: as `read_audio`, as far as the header tells.
    """
    library("soundfile")
    try:
        with open_regular(path) as content, _opened(content, path) as file:
            _most(file, path)
    except RuntimeError as error:
        raise _unreadable(path, error) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {unreadable(error)}") from error


def _opened(content: BinaryIO, path: Path | StoredRecording) -> Any:
    """A `SoundFile` from the beginning of an open file. Raises UserError if that is empty, and RuntimeError
    if it is no audio."""
    if not content.seek(0, os.SEEK_END):
        raise UserError(f"{path}: is empty: copy it again")
    content.seek(0)
    sound_file = library("soundfile").SoundFile
    if isinstance(content, io.BytesIO):
        with quiet_errors:
            return sound_file(_InMemory(content.getvalue()), closefd=False)
    os.lseek(content.fileno(), 0, os.SEEK_SET)
    # the descriptor, since soundfile reads formats from names
    return sound_file(content.fileno(), closefd=False)


class _InMemory(io.BytesIO):
    """A file whose position stays where it is if libsndfile seeks to before its beginning, as it does in
    damaged files. An error in its callback would be written to standard error."""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


class QuietErrors:
    """Standard error as libraries in C write to it, closed at times: libmpg123 writes lines about each
    damaged frame of an MP3 file, with which clients could fill the log of a server."""

    def __init__(self) -> None:
        self._lock, self._count, self._targets = threading.Lock(), 0, (-1, -1)

    def separate(self) -> None:
        """Python, and what logs, write to another descriptor from here on. Without this nothing is closed."""
        before, stderr = sys.stderr, os.dup(STDERR)
        self._targets = stderr, os.open(os.devnull, os.O_WRONLY)
        sys.stderr = open(stderr, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(sys.stderr)

    def __enter__(self) -> None:
        self._add(1)

    def __exit__(self, *error: object) -> None:
        self._add(-1)

    def _add(self, change: int) -> None:
        target = self._targets[change > 0]
        with self._lock:
            self._count += change
            if target >= 0 and self._count == max(change, 0):  # the first, or the last of several threads
                os.dup2(target, STDERR)


STDERR = 2
quiet_errors = QuietErrors()
"""Of this process. While a recording is read, what the libraries write is lost."""


def _unreadable(path: Path | StoredRecording, error: RuntimeError) -> UserError:
    """An error of libsndfile in words."""
    reason = str(error).rpartition(": ")[2].rstrip(".")
    if reason == "Format not recognised":
        reason = "it is no WAV, FLAC, OGG or MP3 file"
    elif reason.startswith("File does not exist"):  # its word for MP3 frames that cannot be decoded
        reason = "it is damaged or truncated; copy it again"
    return UserError(f"{path}: cannot be read as audio: {reason}")


def _alone(powers: list[np.ndarray], name: Path | StoredRecording | str) -> int | None:
    """The only channel with sound, as `loudest_alone` finds it, with a warning."""
    channel = loudest_alone(powers[0])
    if channel is not None:
        log.warning("%s: its channels cancel out, so only channel %d is heard", name, channel + 1)
    return channel


def _most(file: Any, path: Path | StoredRecording, longest: int | None = LONGEST) -> float:
    """The most frames that may be read. Raises UserError if the header announces more, or is wrong."""
    file_rate = file.samplerate
    cut = CUT.search(file.extra_info)
    if cut and int(cut["found"]) < int(cut["declared"]) < STREAMED:
        raise UserError(f"{path}: {cut['found']} of {cut['declared']} bytes are there: copy it again")
    if JUNK in file.extra_info or (file.frames >= UNKNOWN and file.format == "OGG"):
        raise UserError(f"{path}: truncated, or several files in one: copy it again, or convert it to FLAC")
    if not RATES[0] <= file_rate <= RATES[1]:
        raise UserError(
            f"{path}: {file_rate:,} samples a second; there must be from {RATES[0]:,} to {RATES[1]:,}"
        )
    max_frames = math.inf if longest is None else min(longest * file_rate, MOST // file.channels)
    if max_frames < file.frames < UNKNOWN:
        raise _too_long(path, max_frames / file_rate)
    return max_frames


def _too_long(path: Path | StoredRecording, seconds: float) -> UserError:
    return UserError(f"{path}: longer than {math.floor(seconds):,} s: cut it into shorter files")


def _blocks(file: Any) -> Iterator[Float[np.ndarray, "frames channels"]]:
    size = max(1, BLOCK // file.channels)
    while True:
        with quiet_errors:
            block = file.read(size, dtype="float32", always_2d=True)
        if not len(block):
            return
        yield block


class Resampling:
    """Resamples a waveform block by block, with the same result as all at once. What is loud at its rate may
    exceed `LOUDEST` at the other one, and is clipped there."""

    def __init__(self, rate: int, new_rate: int) -> None:
        same = rate == new_rate
        self._stream = None if same else library("soxr").ResampleStream(rate, new_rate, 1, dtype="float32")

    def __call__(self, block: Float[np.ndarray, " samples"]) -> Float[np.ndarray, " _"]:
        """What follows at the other rate."""
        if self._stream is None:
            return block
        samples: np.ndarray = self._stream.resample_chunk(block)
        return samples.clip(-LOUDEST, LOUDEST)

    def rest(self) -> Float[np.ndarray, " _"]:
        """What follows after the last block."""
        end = np.zeros(0, np.float32)
        if self._stream is None:
            return end
        samples: np.ndarray = self._stream.resample_chunk(end, last=True)
        return samples.clip(-LOUDEST, LOUDEST)


def write_audio(path: Path, wave: Float[np.ndarray, " samples"], comment: str = "") -> None:
    """Writes a WAV file of 16 bits, complete or not at all.

    Args:
      path: the file.
      wave: the samples, `RATE` a second; those beyond -1 and 1 are clipped.
      comment: stored in the file, for `comment_of`.

    Raises:
      UserError: it cannot be written, is no array of numbers with one axis, or has some that are not finite.
    """
    samples = _samples(wave)
    if not np.isfinite(samples).all():
        raise UserError(f"cannot write {path}: the sound has samples that are not finite numbers")
    buffer = io.BytesIO()
    with library("soundfile").SoundFile(buffer, "w", RATE, 1, "PCM_16", format="WAV") as sound:
        if comment:  # libsndfile refuses an empty one
            sound.comment = comment
        sound.write(samples)
    with writing(path), atomic_open(path) as file:
        file.write(buffer.getvalue())


def comment_of(path: Path) -> str:
    """The comment in an audio file; empty if there is none, or it is no audio file."""
    with contextlib.suppress(OSError, RuntimeError), open_regular(path) as content:
        with library("soundfile").SoundFile(content.fileno(), closefd=False) as file:
            return str(file.comment)
    return ""


# Arrays


def waveform_of(samples: Any) -> Float[np.ndarray, " samples"]:
    """An array as a waveform. Whole numbers are divided by the range of their type (int16: 32,768; unsigned
    ones have their zero in the middle), those of 64 bits by the least range of 16, 32 and 64 bits that holds
    them.

    Raises:
      UserError: it has not one axis, no samples, or some that are not numbers from -1 to 1.
    """
    wave = _samples(samples)
    if not len(wave):
        raise UserError("a waveform must have samples, and this one has none")
    if not (right := is_sound(wave)).all():
        index = int(np.flatnonzero(~right)[0])
        advice = "divide them by the largest that there can be, or give whole numbers as int16"
        if not np.isfinite(wave[index]):
            advice = "that is not a finite number"
        raise UserError(
            f"a waveform must have numbers from -1 to 1, and sample {index} is {wave[index]:g}: {advice}"
        )
    return wave.astype(np.float32)


def _samples(samples: Any) -> Float[np.ndarray, " samples"]:
    """An array of one axis, with whole numbers scaled. Raises UserError if it has not one, or no numbers."""
    array = np.asarray(samples)
    if array.ndim != 1:
        advice = ": average its channels" if array.ndim == 2 else ""
        raise UserError(f"a waveform must have one axis of samples, not the shape {array.shape}{advice}")
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(np.float64 if array.itemsize > 4 else np.float32, copy=False)
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:  # whose zero is unknown
        raise UserError(f"a waveform must have numbers from -1 to 1, not {array.dtype}")
    whole: np.ndarray = scaled(array)
    return whole


def scaled(samples: Float[np.ndarray, "..."] | Any) -> Any:
    """Whole numbers as numbers from -1 to 1, as in `waveform_of`; others as they are."""
    dtype = samples.dtype
    if dtype.kind not in "iu":
        return samples
    bits = np.iinfo(dtype).bits
    middle = 2.0 ** (bits - 1) if dtype.kind == "u" else 0.0
    centred = samples.astype(np.float64) - middle
    if bits == 64:
        peak = np.abs(centred).max(initial=0)
        bits = next(least for least in (16, 32, 64) if peak <= 2.0 ** (least - 1))
    return centred / 2.0 ** (bits - 1)


def mono(samples: Float[np.ndarray, "frames channels"], where: str) -> Float[np.ndarray, " frames"]:
    """The mean of channels, or the loudest alone if they cancel out.

    Args:
      samples: of all channels.
      where: names them in a warning.
    """
    mixed: np.ndarray = samples.mean(axis=1)
    channel = _alone([powers_of(mixed, samples)], where)
    return mixed if channel is None else samples[:, channel]


def powers_of(
    mixed: Float[np.ndarray, " frames"], channels: Float[np.ndarray, "frames channels"]
) -> Float[np.ndarray, " channels+1"]:
    """The sums of squares of the mean of all channels, and of each."""
    powers = [np.vdot(wave, wave) for wave in (mixed, *channels.T)]
    return np.array(powers, np.float64)


def loudest_alone(powers: Float[np.ndarray, " channels+1"]) -> int | None:
    """The loudest channel, if all cancel out; otherwise None."""
    mixed = powers[0]
    channels = powers[1:]
    return int(channels.argmax()) if mixed < FAINT * channels.mean() else None


def is_sound(samples: Float[np.ndarray, "..."]) -> Bool[np.ndarray, "..."]:
    """Which of the samples are numbers, and not beyond `LOUDEST`."""
    with np.errstate(invalid="ignore"):
        return np.abs(samples) <= LOUDEST
