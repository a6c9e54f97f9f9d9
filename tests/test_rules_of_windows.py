"""The rules of Whisper's windows hold for recordings of any length, through every door."""

import json
from pathlib import Path

import numpy as np
import pytest
from invented_sound import sound

from transformer import Transcriber
from transformer.config.records import WindowsConfig
from transformer.interop.pretrained import import_model

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
DATA = Path(__file__).parent / "data" / "whisper"
SEARCH = {"rows": 2, "max_length": 24, "beam_size": 1}
ANY = {"compression_ratio": None, "log_probability": None, "no_speech": None}
"""Rules that any output is good enough for."""
SILENT = WindowsConfig(no_speech=0.0, log_probability=-1.0, temperatures=(0.0,))
"""By these the random model never hears anybody: text is improbable, and silence not impossible."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    import_model(DATA, folder / "run", "en")
    for number in range(2):
        soundfile.write(folder / f"{number}.wav", sound(number), 16_000, "FLOAT")
    (folder / "list.tsv").write_text("0.wav\n1.wav\n")
    return folder


@pytest.fixture(scope="module")
def transcriber(folder) -> Transcriber:
    return Transcriber.load(folder / "run")


@pytest.mark.thorough
def test_short_recordings_are_heard_by_the_rules(transcriber):
    waves = [sound(0), sound(1)]
    raw = [best.text for (best,) in transcriber.search(waves, n_best=1, **SEARCH)]
    assert all(raw)
    assert transcriber.transcribe(waves, windows=WindowsConfig(**ANY), **SEARCH) == raw
    assert transcriber.transcribe(waves, windows=SILENT, **SEARCH) == ["", ""]
    assert transcriber.transcribe(waves[0], windows=SILENT, timestamps=True, **SEARCH) == ()
    (silent,), _ = transcriber.search(waves, n_best=1, windows=SILENT, times=True, **SEARCH)
    assert (silent.text, silent.tokens, silent.words) == ("", (), ())
    hot = WindowsConfig(temperatures=(0.0, 0.9), samples=3, log_probability=-0.001, no_speech=None)
    shared = {"rows": 2, "max_length": 24}
    sampled = transcriber.search(waves, method="sample", samples=3, temperature=0.9, **shared)
    assert transcriber.search(waves, windows=hot, **SEARCH) == sampled


def test_digital_silence_needs_no_model(transcriber, monkeypatch):
    rules = WindowsConfig(**ANY)
    silence = [np.zeros(8_000, np.float32), np.full(8_000, 1e-7, np.float32)]
    assert all(best.text for (best,) in transcriber.search(silence, n_best=1, **SEARCH))  # without rules
    monkeypatch.setattr(transcriber, "submit", None)
    monkeypatch.setattr(transcriber, "submit_plain", None)
    assert transcriber.transcribe(silence, windows=rules, **SEARCH) == ["", ""]
    assert transcriber.transcribe(silence[0], windows=rules, timestamps=True, **SEARCH) == ()
    seconds = int(2.5 * transcriber.hears())
    parts = list(transcriber.parts(np.zeros(16_000 * seconds, np.float32), windows=rules, **SEARCH))
    assert len(parts) == 3
    assert parts[-1].end == seconds
    assert [(part.transcript.text, part.no_speech) for part in parts] == [("", 1.0)] * 3


@pytest.mark.slow
def test_the_command_and_subtitles_have_the_rules(folder, decode):
    def decoded(*words):
        options = ["--rows", 2, "--max-length", 24, "--beam-size", 1, "--windows.temperatures", 0]
        options += ["--windows.no-speech", 0, "--windows.log-probability", -1]
        status, out, _ = decode(folder / "run", *options, *words)
        assert status == 0
        return out

    assert decoded("--input", folder / "0.wav") == "\n"
    lines = decoded("--input", folder / "list.tsv", "--format", "json", "--times").splitlines()
    assert [json.loads(line)["hypotheses"][0]["text"] for line in lines] == ["", ""]
    assert [json.loads(line)["hypotheses"][0]["words"] for line in lines] == [[], []]
    assert decoded("--input", folder / "0.wav", "--format", "srt") == ""


@pytest.mark.slow
def test_the_rules_of_silence_hold_for_sound_that_arrives(transcriber, monkeypatch):
    wave = np.tile(sound(0), 3)
    heard = "".join(text.final for text in transcriber.live([wave], step=9.0, **SEARCH))
    assert heard
    monkeypatch.setattr("transformer.systems.speech.api.WindowsConfig", lambda **_: SILENT)
    assert "".join(text.final for text in transcriber.live([wave], step=9.0, **SEARCH)) == ""
