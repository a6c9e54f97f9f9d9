"""What listens to synthetic speech otherwise than a recogniser: cepstra and F0."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.quality import listening
from benchmarks.quality.listening import Heard, cepstra, compared, distortions, pitch, summary, warped
from transformer import UserError
from transformer.data.built_in.spoken import ONE, phonemes, spoken
from transformer.data.signals.audio import RATE, features_of, stretched

pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("librosa", reason="pip install '.[bench]'")
pytest.importorskip("matplotlib", reason="pip install '.[bench]'")
BANDS = 20


def said(text, seed=0):
    return spoken(phonemes(text.split()), ONE, np.random.default_rng(seed))


def test_cepstra_are_the_cosines_of_the_log_amplitude():
    angle = np.pi * (np.arange(BANDS) + 0.5) / BANDS
    amplitude = 3 + 0.5 * np.cos(angle) - 0.25 * np.cos(4 * angle)
    found = cepstra(2 * amplitude[None], 5)  # the logarithm of the power
    np.testing.assert_allclose(found, [[0.5, 0, 0, -0.25, 0]], atol=1e-12)


def test_distortion_is_that_of_the_paper():
    ours, theirs = np.array([[1.0, 0.0], [0.3, 0.5]]), np.array([[0.0, 0.0], [0.0, 0.1]])
    worked = [6.1418510, 3.0709255]  # 10 / 2.302585 * sqrt(2 * 1), and of sqrt(2 * (0.09 + 0.16))
    np.testing.assert_allclose(distortions(ours, theirs), worked, rtol=1e-6)


def test_distortion_with_all_coefficients_is_the_difference_of_spectra_in_decibels():
    """Parseval: the root of the mean square over bands, without what is the same for all of them."""
    ours, theirs = np.random.default_rng(0).normal(size=(2, 7, BANDS))
    decibels = 10 * np.log10(np.exp(ours)) - 10 * np.log10(np.exp(theirs))
    found = distortions(*(cepstra(each, BANDS - 1) for each in (ours, theirs)))
    np.testing.assert_allclose(found, decibels.std(axis=1), rtol=1e-6)


def test_what_is_said_slower_is_the_same_after_warping():
    features = features_of(said("one two"))
    heard = Heard(features, cepstra(features), np.linspace(100, 120, len(features)))
    twice = Heard(*(np.repeat(each, 2, axis=0) for each in heard))
    found = compared(twice, heard)
    assert found.distortion == 0
    assert not found.voicing.any()
    np.testing.assert_array_equal(found.pitches[:, 0], found.pitches[:, 1])
    assert found.length == 2
    slower, other = (cepstra(each) for each in (stretched(features, 1.5), features_of(said("nine four"))))

    def mean(theirs):
        ours, along = warped(heard.cepstra, theirs)
        return distortions(heard.cepstra[ours], theirs[along]).mean()

    assert mean(slower) < 0.25 * mean(other)


def test_errors_of_pitch_and_voicing_are_counted_over_frames():
    def comparison(pairs, voicing, distortion):
        return listening.Comparison(distortion, np.array(pairs, float).reshape(-1, 2), np.array(voicing), 0.5)

    octave = comparison([[200, 100], [100, 100]], [False, False, True, True], 1.0)
    found = summary([octave, comparison([], [False] * 4, 3.0)])
    assert found == pytest.approx(
        {
            "MCD (dB)": 2.0,
            "± MCD (dB)": 1.96,
            "F0 error (Hz)": 100 / np.sqrt(2),
            "F0 error (cents)": 1200 / np.sqrt(2),
            "gross F0 errors (%)": 50.0,
            "voicing errors (%)": 25.0,
            "length (%)": 50.0,
        }
    )
    assert "F0 error (Hz)" not in summary([comparison([], [True], 0.0)])


@pytest.mark.slow
def test_pitch_is_that_of_a_tone_and_noise_has_none():
    seconds = np.arange(RATE // 2) / RATE
    tone = sum(np.sin(2 * np.pi * 150 * k * seconds) / k for k in range(1, 9)).astype(np.float32) / 3
    noise = np.random.default_rng(0).normal(size=RATE // 2).astype(np.float32) / 10
    found = pitch(np.concatenate([tone, noise]))
    assert len(found) == len(features_of(np.concatenate([tone, noise])))
    np.testing.assert_allclose(found[5:45], 150, rtol=0.01)
    assert np.isnan(found[60:95]).mean() > 0.8


class Voice:
    """Says what the built-in speaker says; its noise is in its draws."""

    task = SimpleNamespace(config=SimpleNamespace(decoding=SimpleNamespace(prenet_dropout=0.5)))

    def speak(self, texts, prenet_dropout=0.5):
        return [said(text, seed if prenet_dropout else 0) for seed, text in enumerate(texts)]


@pytest.mark.slow
def test_the_table_has_each_run_with_and_without_noise(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(listening.Synthesizer, "load", lambda _: Voice())
    listening.main(["runs/voice", "--count", "2", "--output", str(tmp_path / "heard")])
    rows = json.loads((tmp_path / "heard.json").read_text())["rows"]
    names = ["recorded once more", "recordings, through features", "runs/voice", "runs/voice, without noise"]
    assert list(rows) == names
    for name in names:
        assert f"| {name} | " in capsys.readouterr().out or name != names[0]
        assert 0 < rows[name]["MCD (dB)"] < 3
    assert rows["recordings, through features"]["length (%)"] == pytest.approx(100, abs=1)


def test_what_cannot_be_compared_is_refused(tmp_path, monkeypatch):
    output = ["--output", str(tmp_path / "found")]
    with pytest.raises(UserError, match="there is no file such as 7_george_12.wav"):
        listening.main(["run", "--recordings", str(tmp_path), *output])
    for word in range(10):
        (tmp_path / f"{word}_anna_0.wav").touch()
    with pytest.raises(UserError, match="fewer than two recordings of zero by anna are for the test"):
        listening.main(["run", "--recordings", str(tmp_path), "--speaker", "anna", *output])
