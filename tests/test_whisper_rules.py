"""What Whisper adds, against plain loops: features, times among tokens, lengths; and CTranslate2's files."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from invented_sound import sound

from transformer import PRESETS
from transformer.config.model import SpecialIds
from transformer.config.records import RecordingsConfig
from transformer.data.signals.audio import SILENT, features_before_silence, mel_filters, scaled_to_peak
from transformer.data.sources.recordings import Recording, features
from transformer.decoding.hooks import Hooks
from transformer.decoding.scores import power_penalty
from transformer.decoding.steering.prefix import OPENING_COUNT, Timestamps
from transformer.interop.architectures.ctranslate2 import Variables
from transformer.runtime.errors import UserError
from transformer.systems.speech.task import SpeechToText

LEFT = jnp.array([9])
"""Steps: these hooks do not count them."""


@pytest.mark.parametrize("samples", [1_000, 7_999, 8_000, 9_000])
def test_features_are_those_of_a_wave_padded_with_silence(samples):
    frames, rng = 50, np.random.default_rng(0)
    wave = rng.uniform(-0.5, 0.5, samples).astype(np.float32)
    features = features_before_silence(wave, 80, frames)[:frames]
    silent = np.full((frames - len(features), 80), SILENT, np.float32)
    found = scaled_to_peak(np.concatenate([features, silent]))

    whole = np.pad(wave, (0, max(0, frames * 160 - samples))).astype(np.float64)
    mirrored = np.pad(whole, 200, mode="reflect")
    window = np.hanning(401)[:-1]
    power = [np.abs(np.fft.rfft(mirrored[i * 160 : i * 160 + 400] * window)) ** 2 for i in range(frames)]
    logarithms = np.log10(np.maximum(np.array(power) @ mel_filters(80).T.astype(np.float64), 1e-10))
    expected = (np.maximum(logarithms, logarithms.max() - 8) + 4) / 4
    np.testing.assert_allclose(found, expected, atol=1e-4)


def _may_follow(tokens: list[int], first: int, eos: int, latest: int) -> list[bool]:
    """Which tokens may follow, by the rules in words."""
    times = [token for token in tokens if token >= first]
    allowed = []
    for token in range(first + 6):
        is_time = token >= first
        if not tokens:
            right = is_time and token <= first + latest
        elif tokens[-1] < first:
            right = not is_time or not times or token > times[-1]
        elif len(tokens) == 1 or tokens[-2] >= first:  # a segment has begun
            right = not is_time
        else:  # one has ended
            right = token >= times[-1] if is_time else token >= eos
        allowed.append(right and token != first - 1)
    return allowed


def test_times_follow_their_rules():
    first, eos, latest = 8, 5, 2
    hook = Timestamps(first, eos, latest)
    filtered, advance = jax.jit(hook.filter), jax.jit(hook.advance)
    rng = np.random.default_rng(1)
    for _ in range(20):
        state = jax.tree.map(lambda x: x[:, None], hook.init({OPENING_COUNT: jnp.array([1])}))
        logits = jnp.asarray(rng.normal(size=(1, 1, first + 6)), jnp.float32)
        np.testing.assert_array_equal(filtered(logits, state, LEFT), logits)  # the opening is not its matter
        state, tokens = advance(jnp.array([[3]]), state), []
        for _ in range(8):
            logits = rng.normal(scale=2, size=first + 6).astype(np.float32)
            allowed = np.array(_may_follow(tokens, first, eos, latest))
            is_time = np.arange(first + 6) >= first
            times = np.exp(logits[allowed & is_time]).sum()
            texts = np.exp(logits[allowed & ~is_time]).max(initial=0)
            if times > texts:
                allowed &= is_time
            found = filtered(jnp.asarray(logits)[None, None], state, LEFT)[0, 0]
            np.testing.assert_array_equal(found, np.where(allowed, logits, -np.inf))
            token = int(rng.choice(np.flatnonzero(allowed)))
            tokens.append(token)
            state = advance(jnp.array([[token]]), state)


def test_what_is_left_adds_up_to_one():
    logits = jax.nn.log_softmax(jnp.arange(6.0)[None, None])
    special = SpecialIds(pad=0, bos=5, eos=2, unk=3)
    found = np.exp(Hooks(normalised=special).allowed(logits, (), special, LEFT)[0])[0, 0]
    expected = np.where([0, 1, 1, 1, 1, 0], np.exp(np.arange(6.0)), 0)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-5)


def test_a_length_penalty_leaves_the_opening_out():
    penalty = replace(power_penalty(1.0), opening=3)
    np.testing.assert_array_equal(penalty(jnp.array([2.0, 4.0, 9.0])), [1, 1, 6])


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def _variable(name: str, kind: int, values: np.ndarray) -> bytes:
    shape = struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
    return _text(name) + shape + struct.pack("<BI", kind, values.nbytes) + values.tobytes()


def _file(*variables: bytes, aliases: tuple[tuple[str, str], ...] = ()) -> bytes:
    head = struct.pack("<I", 6) + _text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    others = b"".join(_text(name) + _text(of) for name, of in aliases)
    return head + b"".join(variables) + struct.pack("<I", len(aliases)) + others


@pytest.fixture
def content():
    rng = np.random.default_rng(0)
    values = rng.integers(-127, 127, (6, 3)).astype(np.int8)
    return _file(
        _variable("encoder/layer_0/self_attention/linear_0/weight", 1, values),
        _variable("encoder/layer_0/self_attention/linear_0/weight_scale", 0, np.full(6, 4, np.float32)),
        _variable("decoder/embeddings/weight", 4, np.ones((2, 3), np.float16)),
        aliases=(("decoder/projection/weight", "decoder/embeddings/weight"),),
    )


def test_variables_have_the_names_of_hugging_face(tmp_path, content):
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    read = Variables(tmp_path)
    parts = [read(f"model.encoder.layers.0.self_attn.{kind}_proj.weight") for kind in "qkv"]
    values = np.random.default_rng(0).integers(-127, 127, (6, 3))
    np.testing.assert_allclose(np.concatenate(parts), values / 4)
    np.testing.assert_array_equal(read("model.decoder.projection.weight"), np.ones((2, 3)))
    assert read("model.decoder.layer_norm.weight") is None


@pytest.mark.thorough
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path, content):
    path = tmp_path / "model.bin"
    rng = np.random.default_rng(0)
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(UserError):
            Variables(tmp_path)
    for _ in range(3_000):
        damaged = bytearray(content)
        for index in rng.integers(0, len(content), 3):
            damaged[index] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read = Variables(tmp_path)
            for name in read.names:
                read(name)
        except UserError:
            pass


def test_features_of_128_bands_are_those_of_the_reference():
    """As large-v3 has them (tests/make_mel_golden.py)."""
    golden = json.loads((Path(__file__).parent / "data" / "mel" / "whisper_128.json").read_text())
    data = RecordingsConfig(bands=128, normalisation="peak", padded_length=3000)
    task = SpeechToText.without_corpus(replace(PRESETS["speech"], data=data))
    for number, expected in enumerate(golden["features"]):
        found = task.frames(Recording("sound", features(sound(number), data)))
        assert found.shape == (3000, 128)
        stored = found[:: golden["step"]][: len(expected)]
        np.testing.assert_allclose(stored, expected, atol=1e-4, rtol=0)
        assert np.std(expected) > 0.2
