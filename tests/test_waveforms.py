"""Waveforms: whole numbers, channels, names of files, and files that claim more than they hold."""

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from transformer import UserError
from transformer.data.signals import audio, waveforms
from transformer.data.signals.waveforms import (
    Resampling,
    comment_of,
    is_sound,
    read_audio,
    waveform_of,
    write_audio,
)
from transformer.data.sources.tfds_sets import Waves

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
RATE = audio.RATE


def tone(samples: int = 3200) -> np.ndarray:
    return (0.5 * np.sin(np.arange(samples) / 5)).astype(np.float32)


# Arrays

WHOLE = {
    "int8": lambda wave: np.round(wave * 127).astype(np.int8),
    "int16": lambda wave: np.round(wave * 32767).astype(np.int16),
    "int32": lambda wave: np.round(wave.astype(float) * (2**31 - 1)).astype(np.int32),
    "uint8": lambda wave: np.round(wave * 127 + 128).astype(np.uint8),
    "uint16": lambda wave: np.round(wave * 32767 + 32768).astype(np.uint16),
    "int64 of 16 bits": lambda wave: np.round(wave * 32767).astype(np.int64),
    "int64 of 32 bits": lambda wave: np.round(wave.astype(float) * (2**31 - 1)).astype(np.int64),
    "int64": lambda wave: np.round(wave.astype(float) * 2**62).astype(np.int64) * 2,
    "float16": lambda wave: wave.astype(np.float16),
    "float64": lambda wave: wave.astype(np.float64),
    "bfloat16 of JAX": lambda wave: jnp.asarray(wave, jnp.bfloat16),
    "big-endian": lambda wave: np.round(wave * 32767).astype(">i2"),
    "a little beyond 1": lambda wave: wave + 0.6,
}


def step(kind):
    """The distance of two neighbouring samples: whole numbers are from -127 to 127, divided by 128."""
    return {"int8": 2**-7, "uint8": 2**-7, "float16": 2**-11, "bfloat16 of JAX": 2**-8}.get(kind, 2**-15)


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_numbers_are_those_of_the_range_of_their_type(kind):
    found = waveform_of(WHOLE[kind](tone()))
    assert found.dtype == np.float32
    expected = tone() + 0.6 if kind == "a little beyond 1" else tone()
    np.testing.assert_allclose(found, expected, atol=step(kind))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.float32([0, 32767, 5]), "sample 1 is 32767: divide them by the largest"),
        (np.float64([0, 0, -1e300]), "sample 2 is -1e\\+300"),
        (np.float64([np.inf]), "sample 0 is inf: that is not a finite number"),
        (np.float16([np.nan]), "sample 0 is nan: that is not a finite number"),
        (np.ones(9, bool), "not bool"),
        (np.ones(9, complex), "not complex128"),
        (np.ones(9, np.uint64), "not uint64"),
        (np.array(["a"]), "not <U1"),
        (np.array([None, 1.0]), "not object"),
        (np.zeros((2, 9)), r"not the shape \(2, 9\): average its channels"),
        (np.float32(1), r"not the shape \(\)$"),
        (np.zeros(0, np.int16), "samples, and this one has none"),
    ],
)
def test_arrays_that_are_no_waveform(samples, message):
    with pytest.raises(UserError, match=f"a waveform must have .*{message}"):
        waveform_of(samples)


@pytest.mark.parametrize(
    "kind", ["int16", "int32", "uint8", "int64 of 16 bits", "int64 of 32 bits", "float64"]
)
def test_waveforms_of_tfds_are_scaled_and_their_channels_mixed(kind):
    samples = WHOLE[kind](np.stack([tone(), 0.5 * tone()], axis=1))
    wave, text = Waves([{"speech": samples, "text": b"one"}], "toy", "speech", "text", RATE, None)[0]
    assert (wave.dtype, text) == (np.float32, "one")
    np.testing.assert_allclose(wave, 0.75 * tone(), atol=step(kind))
    for bad in (np.full(9, 1e5), np.zeros(0, np.int64), np.full(9, np.nan)):
        with pytest.raises(UserError, match="toy, record 0: speech (must have numbers|has no samples)"):
            Waves([{"speech": bad, "text": b""}], "toy", "speech", "text", RATE, None)[0]


# Files


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_files_of_whole_numbers_as_floating_point_are_refused(tmp_path, kind):
    soundfile.write(tmp_path / "a.wav", 1.4 * tone(), RATE, subtype=kind)
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav"), 1.4 * tone(), atol=1e-6)
    soundfile.write(tmp_path / "a.wav", np.round(32767 * tone()), RATE, subtype=kind)
    with pytest.raises(UserError, match=r"sample 1 is not a number from -1 to 1; .* whole numbers as 16-bit"):
        read_audio(tmp_path / "a.wav")


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_channels_that_cancel_out_are_not_silence(tmp_path, name, caplog):
    path = tmp_path / name
    soundfile.write(path, np.stack([0.8 * tone(), -0.82 * tone()], axis=1), RATE)
    np.testing.assert_allclose(read_audio(path), -0.82 * tone(), atol=1e-4)
    assert f"{path}: its channels cancel out, so only channel 2 is heard" in caplog.text
    wave, _ = Waves([{"a": soundfile.read(path)[0], "b": b""}], "toy", "a", "b", RATE, None)[0]
    np.testing.assert_allclose(wave, -0.82 * tone(), atol=1e-4)
    assert "toy, record 0: its channels cancel out" in caplog.text


def test_other_channels_are_averaged(tmp_path, caplog):
    random = np.random.default_rng(0)
    for channels in ([tone(), 0 * tone()], [0 * tone()] * 2, [*random.uniform(-1, 1, (8, 3200))]):
        soundfile.write(tmp_path / "a.wav", np.stack(channels, axis=1), RATE, subtype="FLOAT")
        np.testing.assert_allclose(read_audio(tmp_path / "a.wav"), np.mean(channels, axis=0), atol=1e-6)
    assert not caplog.text


def test_blocks_make_the_waveform_that_all_at_once_makes(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    for rate in (8_000, RATE, 44_100):
        channels = (0.1 * random.standard_normal((rate, 3))).astype(np.float32)
        soundfile.write(tmp_path / "a.wav", channels, rate, subtype="FLOAT")
        monkeypatch.setattr(waveforms, "BLOCK", 3 * 777)
        found, mixed = read_audio(tmp_path / "a.wav"), channels.mean(axis=1)
        expected = mixed if rate == RATE else audio.resampled(mixed, rate, RATE)
        np.testing.assert_array_equal(found, expected)


def test_features_of_minutes_are_those_of_all_at_once(monkeypatch):
    wave = 0.1 * np.random.default_rng(0).standard_normal(5 * RATE + 77).astype(np.float32)
    whole = audio.features_of(wave, 8)
    for piece in (100, 501, 502):
        monkeypatch.setattr(audio, "PIECE", piece)
        np.testing.assert_allclose(audio.features_of(wave, 8), whole, atol=1e-4)


NAMES = [b"a.raw", b"a.RAW", b"a.vox", b"\xff\xfe.wav", b"tab\there.wav", b"no ending", b"line\nbreak.flac"]


@pytest.mark.parametrize("name", NAMES)
def test_names_do_not_decide_what_is_read(tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    soundfile.write(tmp_path / "a.wav", tone(), RATE)
    os.rename(tmp_path / "a.wav", path)
    np.testing.assert_allclose(read_audio(path), tone(), atol=1e-4)
    path.write_text("no sound")
    with pytest.raises(UserError, match="cannot be read as audio"):
        read_audio(path)


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    for path, message in (
        (tmp_path / "pipe.wav", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "is a folder"),
        (tmp_path / "none.wav", "no such file"),
        (tmp_path / ("a" * 5000 + ".wav"), "File name too long"),
        (tmp_path / "null\0.wav", "null"),
    ):
        with pytest.raises(UserError, match=message):
            read_audio(path)


def flac(path: Path, claims: int) -> Path:
    """A file of 3,200 samples whose header claims another number; 0: unknown."""
    soundfile.write(path, tone(), RATE)
    content = bytearray(path.read_bytes())
    number = int.from_bytes(
        content[18:26], "big"
    )  # of STREAMINFO: its last 36 bits are the number of samples
    content[18:26] = (number >> 36 << 36 | claims).to_bytes(8, "big")
    path.write_bytes(content)
    return path


def test_a_header_that_claims_other_lengths(tmp_path):
    np.testing.assert_allclose(read_audio(flac(tmp_path / "a.flac", 0)), tone(), atol=1e-4)
    for claims, message in ((4_000_000_000, "longer than 3,600 s: cut it"), (3201, "3,200 of 3,201 samples")):
        with pytest.raises(UserError, match=message):
            read_audio(flac(tmp_path / "a.flac", claims))


def test_a_cut_flac_is_refused(tmp_path):
    path = flac(tmp_path / "a.flac", 3200)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match="a.flac: "):
        read_audio(path)


def encoded(container: str, seconds: int, **options: str) -> bytes:
    content, noise = io.BytesIO(), np.random.default_rng(seconds).normal(0, 0.2, seconds * RATE)
    soundfile.write(content, noise, RATE, format=container, **options)
    return content.getvalue()


@pytest.mark.parametrize("codec", ["VORBIS", "OPUS"])
def test_a_cut_or_joined_ogg_is_refused(tmp_path, codec):
    """libsndfile reads what is there, or the first of several."""
    path, content = tmp_path / "a.ogg", encoded("OGG", 4, subtype=codec)
    path.write_bytes(content)
    assert len(read_audio(path)) == 4 * RATE
    for wrong in content[:-1], content[: len(content) // 2], content + encoded("OGG", 2, subtype=codec):
        path.write_bytes(wrong)
        with pytest.raises(UserError, match="a.ogg: truncated, or several files in one"):
            read_audio(path)


def test_an_mp3_is_read_whole_or_refused(tmp_path):
    """libsndfile reads as many samples as the header says, which is that of the first of joined files, and
    without one as the first frames let it expect."""
    path, content = tmp_path / "a.mp3", encoded("MP3", 4)
    frames = content[content.find(content[:2], 4) :]  # without the header, of varying rates
    picture = b"ID3\x04\x00\x00\x00\x01\x00\x00" + b"\xff\xfb\x90\x00" * 4096
    for whole in content, picture + content, content + b"APETAGEX" + picture:
        path.write_bytes(whole)
        assert len(read_audio(path)) == 4 * RATE
    for wrong in content + encoded("MP3", 2), encoded("MP3", 2) + content, frames:
        path.write_bytes(wrong)
        with pytest.raises(
            UserError, match="a.mp3: .* samples can be read: it is several files in one, or has"
        ):
            read_audio(path)


def test_an_mp3_of_one_rate_needs_no_header(tmp_path):
    """Its estimated length may be too large: such files counted as truncated."""
    head, rate = b"\xff\xfb\x52\xc4", 44_100  # MPEG 1, 64 kbit/s, one channel, 209 bytes a frame
    path = tmp_path / "a.mp3"
    path.write_bytes(100 * (head + bytes(205)) + b"APETAGEX" + bytes(1000))
    assert abs(len(read_audio(path)) * rate / RATE / 1152 - 100) < 2


@pytest.mark.parametrize(("channels", "message"), [(1, "than 3,600 s"), (8, "than 1,302 s")])
def test_silence_of_hours_is_refused_by_its_header(tmp_path, monkeypatch, channels, message):
    claimed = {"frames": 3601 * 48_000, "samplerate": 48_000, "channels": channels, "extra_info": ""}
    with pytest.raises(UserError, match=message):
        waveforms._most(SimpleNamespace(**claimed), tmp_path)


def test_what_goes_on_beyond_the_bound_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(waveforms, "MOST", 3000)
    with pytest.raises(UserError, match="longer than 0 s"):
        read_audio(flac(tmp_path / "a.flac", 0))


def test_sound_that_is_no_number_is_not_written(tmp_path):
    for bad in (np.nan, np.inf):
        with pytest.raises(UserError, match="not finite"):
            write_audio(tmp_path / "a.wav", np.float32([0, bad]))
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "a.wav"
    for kind in ("float16", "float64", "int16", "uint8", "bfloat16 of JAX"):
        write_audio(path, WHOLE[kind](tone()))
        np.testing.assert_allclose(read_audio(path), tone(), atol=step(kind))
        assert comment_of(path) == ""
    write_audio(path, np.float32([-3, 3]), comment="loud")
    np.testing.assert_allclose(read_audio(path), [-1, 1], atol=1e-4)
    assert comment_of(path) == "loud"
    for bad in (np.array([None, 1.0]), np.array(["a"]), np.zeros((9, 2))):
        with pytest.raises(UserError, match="a waveform must have"):
            write_audio(tmp_path / "b.wav", bad)
    assert not (tmp_path / "b.wav").exists()


def test_what_is_loud_is_sound_at_another_rate():
    """Where clipped sound exceeds its largest samples: a server refused what `decode.py` hears."""
    soxr = pytest.importorskip("soxr", reason="needs soxr: pip install '.[speech]'")
    clipped = np.random.default_rng(0).choice([-1, 1], 8_000).astype(np.float32)
    assert not is_sound(soxr.resample(clipped, 8_000, RATE)).all()
    resample = Resampling(8_000, RATE)
    wave = np.concatenate([resample(clipped), resample.rest()])
    assert waveform_of(wave).shape == (16_000,)


def test_what_libraries_write_of_a_recording_is_lost(capfd, monkeypatch):
    """With an MP3 file of damaged frames clients could fill the log of a server. Python's lines stay."""
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    quiet = waveforms.QuietErrors()
    monkeypatch.setattr(waveforms, "quiet_errors", quiet)
    with quiet:
        os.write(2, b"before, ")  # where nothing is separate
    quiet.separate()
    file = io.BytesIO()
    soundfile.write(file, np.full(32_000, 0.1), 16_000, format="MP3")
    content = file.getvalue()
    half = len(content) // 2
    content = content[:half] + b"\xff\xf3\x00\x00" * 10 + content[half:]
    with quiet:
        list(waveforms.audio_blocks(waveforms.StoredRecording(content, "the recording")))
        os.write(2, b"of a library")
        print("of Python, ", end="", file=sys.stderr, flush=True)
    os.write(2, b"after")
    assert capfd.readouterr().err == "before, of Python, after"
