"""Audio features, against librosa."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer import UserError
from transformer.data.built_in.spoken import DIGITS, RATE, Speaker, phonemes, spoken
from transformer.data.signals import audio
from transformer.data.signals.waveforms import read_audio

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")


def noise():
    return 0.1 * np.random.default_rng(0).standard_normal(24_000).astype(np.float32)


def chirp():
    t = np.arange(32_000) / RATE
    return np.sin(2 * np.pi * (100 * t + 1500 * t**2)).astype(np.float32)


def speech():
    random = np.random.default_rng(4)
    return spoken(phonemes(["seven", "two"]), Speaker.drawn(random), random)


WAVES = {"noise": noise, "chirp": chirp, "speech": speech}


@pytest.mark.slow
@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("name", WAVES)
def test_the_mel_spectrogram_is_that_of_librosa(name, bands):
    librosa = pytest.importorskip("librosa", reason="pip install '.[test]'")
    wave = WAVES[name]()
    expected = librosa.feature.melspectrogram(
        y=wave, sr=RATE, n_fft=400, hop_length=160, n_mels=bands, pad_mode="reflect"
    )
    found = np.exp(audio.features_of(wave, bands))
    assert found.shape == (len(wave) // 160 + 1, bands)
    np.testing.assert_allclose(found, expected.T, atol=1e-4 * min(1.0, expected.max()), rtol=1e-5)
    filters = librosa.filters.mel(sr=RATE, n_fft=400, n_mels=bands)
    np.testing.assert_allclose(audio.mel_filters(bands), filters, atol=1e-7)


def test_the_inverse_restores_a_wave_from_its_spectrum():
    wave = jnp.asarray(noise())
    found = audio.inverse_stft(audio.stft(wave), len(wave))
    np.testing.assert_allclose(found[400:-400], wave[400:-400], atol=1e-5)


def test_a_tone_survives_the_way_through_features():
    tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / RATE).astype(np.float32)
    found = np.asarray(audio.waveform(jnp.asarray(audio.features_of(tone))))[2000:14_000]
    spectrum = np.abs(np.fft.rfft(found * np.hanning(len(found))))
    assert abs(np.argmax(spectrum) * RATE / len(found) - 440) < 10  # a mel band is 40 Hz wide there


def test_features_survive_the_way_through_a_wave():
    """What Griffin-Lim loses: the mean error of log-mel features, where there is speech."""
    features = audio.features_of(speech())
    again = audio.features_of(np.asarray(audio.waveform(jnp.asarray(features))))
    loud = features[: len(again)] > features.max() - 8
    assert np.abs(again - features[: len(again)])[loud].mean() < 0.25


@pytest.mark.slow
def test_masks_hide_no_more_than_they_may():
    features = jnp.ones((200, 80))
    for seed in range(20):
        found = np.asarray(
            audio.masked(features, 200, jax.random.key(seed), bands=10, frames=30, times=2, most=0.1)
        )
        rows, columns = (found == 0).all(axis=1), (found == 0).all(axis=0)
        assert rows.sum() <= 2 * 20
        assert columns.sum() <= 2 * 10
        outside = found[~rows][:, ~columns]
        assert (outside == 1).all()
    hidden = [float((audio.masked(features, 200, jax.random.key(seed)) == 0).mean()) for seed in range(30)]
    assert 0.05 < np.mean(hidden) < 0.6
    short = [np.asarray(audio.masked(features, 50, jax.random.key(seed), bands=0)) for seed in range(20)]
    assert max((each == 0).all(axis=1).sum() for each in short) <= 2 * 10  # a fifth of its length
    assert all((each[50:] == 1).all() for each in short)


def test_normalised_features():
    features = audio.normalised(audio.features_of(speech()))
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(features.std(axis=0), 1, atol=1e-3)


@pytest.mark.parametrize("kind", ["PCM_16", "PCM_24", "FLOAT"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_files_of_any_kind_are_read_at_one_rate(tmp_path, kind, rate):
    t = np.arange(rate) / rate
    tone = 0.5 * np.sin(2 * np.pi * 440 * t)
    path = tmp_path / "tone.wav"
    soundfile.write(path, np.stack([tone, tone], axis=1), rate, subtype=kind)
    found = read_audio(path)
    assert found.dtype == np.float32
    assert abs(len(found) - RATE) <= 1
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(found)) / RATE)
    np.testing.assert_allclose(found[1000:-1000], expected[1000:-1000], atol=2e-3)


def test_speed_changes_length_and_pitch():
    tone = np.sin(2 * np.pi * 440 * np.arange(16_000) / RATE).astype(np.float32)
    found = audio.faster(tone, 1.1)
    assert len(found) == pytest.approx(16_000 / 1.1, abs=2)
    spectrum = np.abs(np.fft.rfft(found))
    assert np.argmax(spectrum) * RATE / len(found) == pytest.approx(484, abs=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "is empty: copy it again"),
        (b"this is text", "cannot be read as audio: it is no WAV, FLAC, OGG or MP3 file"),
        ([], "has no samples"),
        ([0.0, float("nan"), 0.0], "sample 1 is not a number"),
        ([0.0, 0.0, 1e30], "sample 2 is not a number from -1 to 1"),
    ],
)
def test_files_that_are_no_audio(tmp_path, content, message):
    path = tmp_path / "file.wav"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        soundfile.write(path, np.array(content), RATE, subtype="FLOAT")
    with pytest.raises(UserError, match=message):
        read_audio(path)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (9, "9 samples a second; there"),
        (2**31 - 1, "2,147,483,647 samples a"),
        (10**6, "too short: 10 samples at 1,000,"),
    ],
)
def test_rates_that_are_none_of_speech(tmp_path, rate, message):
    soundfile.write(tmp_path / "file.wav", np.zeros(10), rate)
    with pytest.raises(UserError, match=message):
        read_audio(tmp_path / "file.wav")


# The synthesiser


def test_a_seed_is_one_utterance():
    for word in DIGITS:
        first, again, other = (
            spoken(DIGITS[word], Speaker(120, 1, 1, 0.1, 0.02, 40), np.random.default_rng(seed))
            for seed in (1, 1, 2)
        )
        np.testing.assert_array_equal(first, again)
        assert len(first) != len(other) or (first != other).any()
        assert np.abs(first).max() <= 1


def voice(pitch, tract=1.0):
    return Speaker(pitch=pitch, tract=tract, tempo=0.2, melody=0.0, breath=0.0, distance=60.0)


@pytest.mark.parametrize("pitch", [100, 150, 220])
def test_the_pitch_is_that_of_the_speaker(pitch):
    wave = spoken("i", voice(pitch), np.random.default_rng(0))
    middle = wave[len(wave) // 2 - 2048 : len(wave) // 2 + 2048]
    correlation = np.correlate(middle, middle, "full")[len(middle) :]
    lag = 40 + int(np.argmax(correlation[40:200]))
    assert RATE / (lag + 1) == pytest.approx(pitch, rel=0.05)


@pytest.mark.parametrize("tract", [0.9, 1.0, 1.2])
def test_the_resonances_are_those_of_the_vowel(tract):
    """The loudest harmonics of "i" are near its first and second formants."""
    wave = spoken("i", voice(90, tract), np.random.default_rng(0))
    middle = wave[len(wave) // 2 - 4096 : len(wave) // 2 + 4096]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    frequency = np.fft.rfftfreq(len(middle), 1 / RATE)
    spectrum *= frequency  # the source itself falls with the frequency
    for low, high, formant in ((150, 700, 270), (1500, 2700, 2290)):
        inside = (frequency > low) & (frequency < high)
        loudest = frequency[inside][np.argmax(spectrum[inside])]
        assert loudest == pytest.approx(formant * tract, abs=95)


def test_fricatives_are_noise_of_high_frequency():
    wave = spoken("s", voice(120), np.random.default_rng(0))
    spectrum, frequency = np.abs(np.fft.rfft(wave)) ** 2, np.fft.rfftfreq(len(wave), 1 / RATE)
    assert spectrum[frequency > 4000].sum() > 20 * spectrum[frequency < 3000].sum()
