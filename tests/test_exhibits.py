"""Sounds and pictures of a report: their files, and what a run directory from elsewhere may hold."""

import io
import json
import re
import struct
import wave
import zlib
from base64 import b64decode
from html.parser import HTMLParser

import numpy as np
import pytest

from transformer.data.signals import audio
from transformer.runs.exhibits import (
    COLOURS,
    EXHIBITS,
    exhibit_as_json,
    png_of,
    read_exhibits,
    wav_of,
    write_exhibits,
)
from transformer.runs.report.exhibits import exhibits_of
from transformer.tasks.exhibit import Axis, Picture, ReportSample, Sound


def exhibit(text="a text"):
    values = np.linspace(0, 1, 12).reshape(3, 4)
    labels = tuple(f"{text} {row}" for row in range(3))
    picture = Picture(text, values, Axis(text, extent=1.2), Axis(text, labels))
    return ReportSample(text, {text: text}, (Sound(text, np.zeros(160)),), (picture,))


def test_a_wav_file_has_the_samples():
    samples = np.array([0, 0.5, -1, 2, np.nan, -np.inf])
    with wave.open(io.BytesIO(wav_of(samples))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16_000)
        found = np.frombuffer(file.readframes(10), "<i2")
    assert found.tolist() == [0, 16384, -32767, 32767, 0, 0]


def test_a_png_file_has_the_values():
    values = np.array([[0, 0.25, 0.5], [1, np.nan, 2]])
    content = png_of(values)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        name, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", content[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(name + data)
        chunks[name.decode()], at = data, at + 12 + size
    assert list(chunks) == ["IHDR", "PLTE", "IDAT", "IEND"]
    assert struct.unpack(">II", chunks["IHDR"][:8]) == (3, 2)
    assert zlib.decompress(chunks["IDAT"]) == bytes([0, 0, 64, 128, 0, 255, 0, 255])
    palette = np.frombuffer(chunks["PLTE"], np.uint8).reshape(256, 3)
    assert (tuple(palette[0]), tuple(palette[255])) == (COLOURS[0], COLOURS[-1])
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pixels = pyplot.imread(io.BytesIO(content))
    np.testing.assert_allclose(pixels[0, 1, :3] * 255, COLOURS[1], atol=2)


def test_a_png_file_has_the_colours():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    colours = np.random.default_rng(0).uniform(size=(3, 5, 3))
    pixels = pyplot.imread(io.BytesIO(png_of(colours)))
    np.testing.assert_allclose(pixels[..., :3], colours, atol=0.5 / 255 + 1e-6)


def test_silence_after_the_frames_changes_no_length():
    rng = np.random.default_rng(0)
    for frames in (0, 1, 7, 100, 101):
        found = audio.sound_of(rng.normal(-3, 1, (frames, 8)).astype(np.float32))
        assert len(found) == max(0, frames - 1) * audio.HOP
        assert np.abs(found).max(initial=0) <= 1


class Elements(HTMLParser):
    """All elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_what_is_written_is_shown_and_text_stays_text(tmp_path):
    assert exhibits_of(tmp_path) == ""
    hostile = "</svg><script>alert(1)</script>&\"'"
    write_exhibits(tmp_path, 1200, [exhibit_as_json(exhibit(hostile))])
    page = Elements(exhibits_of(tmp_path))
    assert "checkpoint of step 1,200" in page.text
    assert "script" not in dict(page.seen)
    assert page.text.count(hostile) == 10  # title, name and text, two captions, two axes, three rows
    seen = dict(page.seen)
    for uri, begins in ((seen["audio"]["src"], b"RIFF"), (seen["image"]["href"], b"\x89PNG")):
        assert b64decode(re.sub("data:[a-z/]+;base64,", "", uri), validate=True).startswith(begins)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda each: each["sounds"][0].update(wav='"><script>'),
        lambda each: each["sounds"][0].update(caption=3),
        lambda each: each["pictures"][0].update(png=None),
        lambda each: each["pictures"][0]["x"].update(extent="1"),
        lambda each: each["pictures"][0]["y"].update(labels="abc"),
        lambda each: each.update(texts=["a"]),
        lambda each: each.pop("title"),
    ],
)
def test_damaged_exhibits_are_left_out(tmp_path, spoil):
    each = exhibit_as_json(exhibit())
    write_exhibits(tmp_path, 3, [each])
    assert read_exhibits(tmp_path) == (3, [each])
    spoil(each)
    write_exhibits(tmp_path, 3, [each])
    assert exhibits_of(tmp_path) == ""


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"step": 1, "exhibits": 3}', '{"exhibits": []}'])
def test_a_file_of_another_kind_is_left_out(tmp_path, content):
    (tmp_path / EXHIBITS).write_text(content)
    assert exhibits_of(tmp_path) == ""
    json.dumps(read_exhibits(tmp_path))
