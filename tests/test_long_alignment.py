"""Texts are aligned with recordings of any length, window by window: as through all positions at once."""

import itertools
import json
import re
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_ctc_in_speech import SPECIAL, run_with

from transformer import PRESETS, Transcriber
from transformer.commands.given_outputs import align_main
from transformer.decoding.searches import ctc_alignment as long_ctc_alignment
from transformer.decoding.searches.ctc_alignment import Window, best_path_through, best_paths
from transformer.model.variants.ctc import log_likelihoods
from transformer.systems.speech.alignment import overlapping
from transformer.systems.speech.windows import Sound

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
SIZE = 8


class Given(nn.Module):
    """An encoder whose log-probabilities are its input."""

    config: object = PRESETS["speech"].model

    def encode(self, source):
        return SimpleNamespace(log_probs=source, mask=jnp.ones(source.shape[:2], bool))

    def ctc_log_probs(self, memory):
        return memory.log_probs


@pytest.mark.thorough
@pytest.mark.parametrize("text", [[4, 5, 5, 6, 4, 7, 7, 7], [5], []])
def test_the_path_through_windows_is_that_through_all_positions(text, monkeypatch):
    monkeypatch.setattr(long_ctc_alignment, "BLOCK", 7)
    logits = 3 * np.random.default_rng(0).standard_normal((1, 50, SIZE))
    log_probs = jnp.asarray(jax.nn.log_softmax(logits), jnp.float32)
    labels = np.full(10, SPECIAL.pad)
    labels[: len(text)] = text
    rows = jnp.asarray(labels)[None]
    mask = jnp.ones((1, 50), bool)
    expected = best_paths(log_probs, mask, rows, SPECIAL.pad)
    for bounds in ([0, 50], [0, 13, 30, 50]):
        windows = []
        for first, last in itertools.pairwise(bounds):  # each hears two positions more, where there are some
            start = max(first - 2, 0)
            source = (
                jnp.zeros((1, 54, SIZE))
                .at[:, : min(last + 2, 50) - start]
                .set(log_probs[:, start : last + 2])
            )
            windows.append(Window({"source": source}, first - start, last - start))
        states, log_p = best_path_through(Given(), {}, windows, labels)
        np.testing.assert_array_equal(states, expected.states[0])
        np.testing.assert_allclose(log_p, log_likelihoods(log_probs, mask, rows, SPECIAL.pad)[0], rtol=1e-5)
    few = [Window({"source": log_probs[:, :9]}, 0, 5)]
    states, log_p = best_path_through(Given(), {}, few, labels)
    assert (len(states) == 0) == (len(text) > 5)
    assert np.isfinite(log_p) == (len(text) <= 5)


def test_windows_overlap_and_count_every_frame_once():
    """Cuts are where it is quiet: every second, 0.1 s are silent."""
    wave = np.random.default_rng(0).standard_normal(16_000 * 13 + 77).astype(np.float32)
    wave *= np.arange(len(wave)) % 16_000 > 1_600
    found = list(overlapping(Sound(np.array_split(wave, 9)), 3.99, 4))
    firsts, lasts = [first for _, _, first, _ in found], [last for *_, last in found]
    assert [*firsts, len(wave) // 160] == [0, *lasts]
    for start, heard, first, last in found:
        np.testing.assert_array_equal(heard, wave[start * 160 :][: len(heard)])
        assert len(heard) <= 3.96 * 16_000
        assert start <= first < last <= start + len(heard) // 160
        assert start % 4 == first % 4 == 0
    assert all(0 <= last % 100 <= 10 for last in lasts[:-1])
    assert all(first - start >= 40 for start, _, first, _ in found[1:])


@pytest.mark.thorough
def test_long_recordings_are_aligned_and_too_long_texts_found_before(tmp_path, monkeypatch, capsys):
    run = run_with(tmp_path, 0.3)
    rng = np.random.default_rng(1)
    for name, seconds in (("short", 0.9), ("long", 6.0)):
        soundfile.write(tmp_path / f"{name}.wav", 0.1 * rng.standard_normal(int(16_000 * seconds)), 16_000)
    transcriber = Transcriber.load(run.path)
    assert transcriber.hears() < 2
    words = ["one", "four", "two"] * 12
    found = transcriber.align(tmp_path / "long.wav", " ".join(words))
    assert [word.text for word in found.words] == words
    times = [time for word in found.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= 6.0
    assert times[-1] > 3
    assert all(word.start < word.end for word in found.words)
    assert np.isfinite(found.log_probability)
    wave, _ = soundfile.read(tmp_path / "long.wav", dtype="float32")
    assert transcriber.align(wave, " ".join(words)) == found
    assert transcriber.align(wave, "").words == ()

    def command(*lines: str) -> int:
        (tmp_path / "list.tsv").write_text("".join(f"{line}\n" for line in lines))
        options = [str(run.path), "--input", str(tmp_path / "list.tsv")]
        monkeypatch.setattr("sys.argv", ["align", *options])
        return align_main()

    text = " ".join(words)
    assert command(f"long.wav\t{text}", "short.wav\tone") == 0
    first, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert [word["word"] for word in first["words"]] == words
    monkeypatch.setattr(Transcriber, "align", lambda *_: pytest.fail("a recording was heard"))
    for name, count in (("short", 40), ("long", 200)):
        assert command("short.wav\tone", f"{name}.wav\t{'one two ' * (count // 2)}") == 2
        error = " ".join(capsys.readouterr().err.split())
        assert re.search(rf"line 2: the recording, of [0-9.]+ s, is too short for the {count} tokens", error)
