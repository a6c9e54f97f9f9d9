"""The benchmarks of speech, at small sizes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.quality import digits as recorded
from benchmarks.quality import long_recordings, whisper, word_times
from transformer import UserError
from transformer.data.built_in.spoken import DIGITS, RATE, Speaker, spoken
from transformer.data.sources.recordings import digits

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")
pytest.importorskip("matplotlib", reason="pip install '.[bench]'")


def record(folder, speakers):
    """Three recordings of each digit by each speaker: one for each split."""
    folder.mkdir()
    for name, seed in speakers.items():
        random = np.random.default_rng(seed)
        speaker = Speaker.drawn(random)
        for digit, signs in enumerate(DIGITS.values()):
            for number in (0, 5, 10):
                soundfile.write(folder / f"{digit}_{name}_{number}.wav", spoken(signs, speaker, random), RATE)


@pytest.mark.slow
def test_recorded_digits(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "cache"))
    record(tmp_path / "recordings", {"anna": 1, "theo": 2})
    arguments = [str(tmp_path / "work"), "--recordings", str(tmp_path / "recordings"), "--quick"]
    ways = ("plain", "CTC", "both")
    for _ in range(2):  # the second only reads
        recorded.main([*arguments, "--updates", "2", "--only", *ways])
        out = capsys.readouterr().out
        for name in ways:
            assert all(f"| {name} | {search} | " in out for search in recorded.WAYS[name].searches)
    listed = {
        split: (tmp_path / f"work/strings/{split}.tsv").read_text().splitlines() for split in recorded.SIZES
    }
    assert [len(lines) for lines in listed.values()] == [60, 3, 10, 10]
    for line in listed["train"]:
        assert 3 <= len(line.split("\t")[1].split()) <= 7
    found = json.loads((tmp_path / "work/digits.json").read_text())["models"]
    assert found.keys() == set(ways)
    assert found["plain"][0]["searches"]["attention"]["test"]["words"] > 0
    assert (tmp_path / "work/digits.png").exists()


def test_recordings_and_ways_must_be_there(tmp_path):
    record(tmp_path / "recordings", {"anna": 1, "theo": 2})
    arguments = [str(tmp_path / "work"), "--recordings", str(tmp_path / "recordings")]
    with pytest.raises(UserError, match="--held-out evmaki: the recordings have anna, theo"):
        recorded.main([*arguments, "--letters"])
    with pytest.raises(UserError, match="there is no file such as 7_george_12.wav"):
        recorded.main([str(tmp_path / "other"), "--recordings", str(tmp_path)])
    with pytest.raises(UserError, match="'none': there is no such model"):
        recorded.main([*arguments, "--only", "none"])


def test_names_of_recordings(tmp_path):
    names = ("7_theo_0.wav", "b_anna_nohash_3.flac", "seven_anna_nohash_0.flac", "12_theo_0.wav", "other.txt")
    for name in names:
        (tmp_path / name).touch()
    assert recorded.recordings_of(tmp_path) == {
        ("theo", "seven", 0): tmp_path / "7_theo_0.wav",
        ("anna", "b", 3): tmp_path / "b_anna_nohash_3.flac",
        ("anna", "seven", 0): tmp_path / "seven_anna_nohash_0.flac",
    }
    assert [recorded.split_of_few(number) for number in range(4)] == ["test", "validation", "train", "train"]


def test_the_strings_of_a_split_are_made_of_its_own_recordings():
    assert [recorded.split_of(number) for number in (0, 4, 5, 9, 10, 49)] == [
        *("test", "test", "validation", "validation", "train", "train")
    ]
    waves = [np.ones(100, np.float32) * 0.5, np.ones(50, np.float32) * 0.25]
    found = recorded.joined(waves, np.random.default_rng(0))
    assert len(found) > 150 + 2 * RATE * recorded.PAUSE[0]
    assert (found == 0.5).sum() == 100


def test_times_of_words_are_compared_with_the_truth(capsys, monkeypatch):
    class Late:
        """Hears all words but those of the second recording, a tenth of a second late."""

        asked = 0

        def search(self, waves, **_):
            said = digits(word_times.TEST, self.asked, 3)
            np.testing.assert_array_equal(waves[0], said.wave)
            self.asked += 1
            if self.asked == 2:
                return [[SimpleNamespace(text="nothing")]]
            words = [SimpleNamespace(start=start + 0.1, end=end - 0.2) for start, end in said.times]
            return [[SimpleNamespace(text=" ".join(said.words), words=words)]]

    monkeypatch.setattr(word_times.Transcriber, "load", lambda _: Late())
    word_times.main(["run", "--count", "3", "--most", "3"])
    out = capsys.readouterr().out
    assert "words of 2 recordings; 1 left out" in out
    assert "starts: 0.100 s off, +0.100 s on average" in out
    assert "ends: 0.200 s off, -0.200 s on average" in out
    assert "within 0.1 s of where they do: 0.0%" in out


def test_outputs_of_whisper_are_compared_by_both_rules():
    a, b, c = whisper.Found((1, 2), -2.0), whisper.Found((1,), -1.5), whisper.Found((), -4.0)
    found = whisper.agreement([[a, b], [b, a], [c]], [a, a, whisper.Found((), -4.5)])
    assert (found.equal, found.difference, found.equal_by_rule) == (2, 0.5, 3)
    assert whisper.agreement([[a]], [b]) == whisper.Agreement(0, 0.0, 0)
    assert str(whisper.Search(1, False)) == "greedy"
    assert str(whisper.Search(5, True)) == "5 beams, with times"


def test_recordings_and_weights_of_whisper_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr(whisper, "needs", lambda *_: None)
    command = [str(tmp_path), "--weights", str(tmp_path)]
    with pytest.raises(UserError, match="there is no model.bin; convert the model with CTranslate2"):
        whisper.main(command)
    (tmp_path / "model.bin").touch()
    with pytest.raises(UserError, match="has 0 recordings, and --count is 25"):
        whisper.main(command)


def test_a_long_recording_has_its_clips_where_it_says(tmp_path):
    path = tmp_path / "long.wav"
    clips, times = long_recordings.joined(long_recordings.built_in(), 20, path)
    wave, rate = soundfile.read(path, dtype="float32")
    assert rate == RATE
    assert len(wave) >= 20 * RATE
    first, last = times[0], times[-1]
    assert first is not None
    assert last is not None
    for clip, (start, _) in ((clips[0], first), (clips[-1], last)):
        offset = clip.times[0][0] if clip is clips[0] else clip.times[-1][0]
        begin = round((start - offset) * RATE)
        np.testing.assert_allclose(wave[begin : begin + len(clip.wave)], clip.wave, atol=1e-4)
    assert len(times) == sum(len(clip.text.split()) for clip in clips)


@pytest.mark.slow
def test_words_are_the_same_however_they_are_written():
    assert long_recordings.words_of("Seven, 42. Don't stop: zero") == ["7", "4", "2", "don't", "stop", "0"]
    said, known = ["1", "2", "3", "4"], [(0.0, 0.5), (1.0, 1.5), None, (3.0, 3.5)]
    heard = [
        ("1", (0.05, 0.55)),
        ("9", (0.7, 0.8)),
        ("2", (1.0, 1.7)),
        ("3", (2.0, 2.5)),
        ("4", (2.95, 3.45)),
    ]
    assert long_recordings.exact(said, known, heard) == (3, 2)
