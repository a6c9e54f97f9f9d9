"""No word, segment or subtitle begins before its recording or ends after it, and each has time of its own."""

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer.systems.speech.transcripts import (
    LINES,
    LONGEST,
    WIDTH,
    SpokenPart,
    Transcript,
    srt,
    subtitles_of,
    vtt,
)
from transformer.tasks.media.timing import Segment, Word, in_order, segments, timed, units, words_in

SECONDS = st.floats(0, 40, allow_nan=False)
CLOCK = re.compile(r"(\d+):(\d+):(\d+)[.,](\d+) --> (\d+):(\d+):(\d+)[.,](\d+)")


def assert_in_order(times, start: float, end: float) -> None:
    assert all(begin < stop for begin, stop in times)
    moments = [start - 1e-9, *itertools.chain(*times), end + 1e-9]
    assert moments == sorted(moments)


@settings(deadline=None)
@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=30), SECONDS, st.floats(0.001, 30))
@example([(0.0, 2.9), (3.2, 5.2)], 0.0, 3.0)
def test_spans_are_put_in_order(found, start, length):
    times = in_order(found, start, start + length)
    assert len(times) == len(found)
    assert_in_order(times, start, start + length)


@given(st.lists(st.integers(2, 3_000), min_size=2, max_size=20, unique=True).map(sorted))
def test_spans_that_are_in_order_stay_as_they_are(milliseconds):
    found = [
        (start / 1000, stop / 1000) for start, stop in itertools.pairwise(milliseconds) if stop - start > 1
    ]
    assert in_order(found, 0.0, 3.0) == found


def test_what_is_heard_in_the_padding_takes_time_before_it():
    assert in_order([(0.0, 2.9), (3.2, 5.2)], 0.0, 3.0) == [(0.0, 2.5), (2.5, 3.0)]
    assert in_order([(0.0, 2.0), (2.5, 5.2)], 0.0, 3.0) == [(0.0, 2.0), (2.5, 3.0)]
    assert in_order([(0.2, 29.48)], 0.0, 3.0) == [(0.2, 3.0)]
    assert in_order([], 0.0, 3.0) == []


class Characters:
    """A tokenizer of characters by their code points."""

    def decode(self, ids):
        return "".join(map(chr, ids))


FIRST = 70_000
"""The id of time 0."""
TEXT = st.text(alphabet="ab ,.今天，（）ラッส", max_size=12)


@settings(deadline=None)
@given(st.lists(st.tuples(TEXT, st.integers(0, 1500)), max_size=5), st.integers(1, 60), st.integers(0, 99))
def test_words_and_segments_of_any_output_are_in_the_recording(parts, frames, seed):
    """Of a model that hears 0.6 s, of which the recording is a part."""
    end = frames / 100 - 0.003
    ids = [FIRST, *itertools.chain(*([*map(ord, text), FIRST + time] for text, time in parts))]
    heard = segments(ids, FIRST, Characters(), 0.02, end)
    texts = [text.strip(" ") for text, _ in parts]
    assert [each.text for each in heard] == [text for text in texts if text]
    assert_in_order([(each.start, each.end) for each in heard], 0.0, end)
    attention = np.random.default_rng(seed).random((len(ids) + 1, 30))
    words = timed((*ids, 1), attention, Characters(), 0.02, end, FIRST)
    assert [word.text for word in words] == [unit for text in texts for unit in units(text)]
    assert_in_order([(word.start, word.end) for word in words], 0.0, end)
    part = SpokenPart(0.0, end, Transcript("", (), 0.0, 0.0, words=words, segments=heard))
    for write in (srt, vtt):
        clocks = [
            list(map(int, match.groups())) for match in CLOCK.finditer("".join(write(subtitles_of(part))))
        ]
        moments = [h * 3600 + m * 60 + s + ms / 1000 for x in clocks for h, m, s, ms in (x[:4], x[4:])]
        if len(heard) * 0.002 < end - 0.002:
            assert_in_order(list(zip(moments[::2], moments[1::2], strict=True)), 0.0, end)


@given(st.text(alphabet="ab 今", max_size=300))
def test_words_of_long_texts_are_those_of_the_whole(text):
    ids = list(map(ord, text))
    words = words_in(ids, [(index / 10, index / 10 + 0.1) for index in range(len(ids))], Characters())
    assert [word.text for word in words] == units(text)
    for word in words:
        assert word.text.strip()[0] == text[round(10 * word.start) :].strip()[0]


class Pieces:
    """A tokenizer whose tokens have several words."""

    def decode(self, ids):
        return "".join(("new york", " is", " big", "ger in")[index] for index in ids)


def test_no_word_of_a_token_is_lost():
    words = words_in([0, 1, 2, 3], [(0, 1), (1, 2), (2, 3), (3, 4)], Pieces())
    found = [(word.text, word.start, word.end) for word in words]
    assert found == [("new", 0, 0.5), ("york", 0.5, 1), ("is", 1, 2), ("bigger", 2, 3), ("in", 3, 4)]


# Subtitles


def part(text: str = "", words=(), segments=(), end: float = 30.0) -> SpokenPart:
    return SpokenPart(0.0, end, Transcript(text, (), 0.0, 0.0, words=tuple(words), segments=tuple(segments)))


def width(line: str) -> int:
    return sum(2 if letter >= "ᄀ" else 1 for letter in line)


CHINESE = "今天我们讨论字幕应该怎样分行以及每条字幕可以显示多少秒钟" * 3
JAPANESE = "昨日は東京でラーメンを食べて、それから「美術館」に行きました。" * 3
MIXED = "我们用 GPU 训练 Transformer-XL 模型，然后在 LibriSpeech 上测试（结果见表3.1）。" * 3


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, MIXED, "".join(CHINESE[:40]) + " " + "word " * 30])
@pytest.mark.parametrize("kind", ["segments", "text", "words"])
def test_subtitles_of_scripts_without_spaces_are_short_and_whole(text, kind):
    timed_words = [Word(unit, index / 4, index / 4 + 0.25) for index, unit in enumerate(units(text))]
    found = {
        "segments": part(segments=[Segment(text, 0.0, 24.0)]),
        "text": part(text, end=24.0),
        "words": part(text, words=timed_words, end=len(timed_words) / 4),
    }[kind]
    cues = list(subtitles_of(found))
    assert max(cue.end - cue.start for cue in cues) <= LONGEST
    assert "".join(cue.text for cue in cues).replace(" ", "") == text.replace(" ", "")
    spaced = {word for word in text.split() if word.isascii()}
    assert spaced <= {word for cue in cues for word in cue.text.split()}  # no word is cut, and spaces stay
    for block in "".join(srt(cues)).strip().split("\n\n"):
        _, _, *lines = block.split("\n")
        assert len(lines) <= LINES
        assert max(map(width, lines)) <= WIDTH
        assert not any(line[0] in "，、。）」ーっッ" for line in lines)
        assert not any(line[-1] in "（「" for line in lines)


def test_characters_with_times_are_joined_without_spaces():
    words = [Word(letter, 0.3 * index, 0.3 * index + 0.3) for index, letter in enumerate("今天天气很好")]
    (cue,) = subtitles_of(part(words=words))
    assert cue.text == "今天天气很好"
    mixed = [
        Word(text, index, index + 1) for index, text in enumerate(["the", "GPU", "今", "天", "is", "on"])
    ]
    (cue,) = subtitles_of(part(words=mixed))
    assert cue.text == "the GPU今天is on"


def test_words_give_subtitles_their_times_and_segments_their_ends():
    heard = [Segment("one two", 0.0, 20.0), Segment("three", 20.0, 24.0)]
    words = [Word("one", 15.0, 15.5), Word("two", 15.5, 16.0), Word("three", 23.0, 23.5)]
    cues = list(subtitles_of(part("one two three", words, heard)))
    assert cues == [Segment("one two", 15.0, 16.0), Segment("three", 23.0, 23.5)]
    others = list(subtitles_of(part("one two three", words, [Segment("four", 0.0, 20.0)])))
    assert others == [Segment("one two", 15.0, 16.0), Segment("three", 23.0, 23.5)]


def test_escapes_of_webvtt_are_no_columns():
    text = " ".join(["&<>&<>&<>"] * 8)
    (cue,) = subtitles_of(part(segments=[Segment(text, 0.0, 5.0)]))
    assert len("".join(vtt([cue])).split("\n\n")[1].split("\n")) == 3 + 1


def test_silence_has_what_was_requested():
    from transformer.systems.speech.transcripts import SpokenWindow, with_requested

    silent = part()
    assert with_requested(silent.to_json(), words=True, segments=False)["words"] == []
    assert "segments" not in with_requested(silent.to_json(), words=True, segments=False)
    window = SpokenWindow(0.0, 30.0, silent.transcript, 0.0, -0.1, 1.0, None)
    assert json.loads(json.dumps(window.to_json()))["segments"] == []
