"""Recordings and their texts: built-in ones, manifests, TFDS sets, and what a task learns from them."""

import dataclasses
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from transformer import PRESETS, UserError
from transformer.config.records import RecordingsConfig
from transformer.data.signals import audio
from transformer.data.signals.waveforms import read_audio
from transformer.data.sources import recordings
from transformer.data.sources.recordings import Recording, digits, open_recordings
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.systems.speech.task import SpeechToText
from transformer.systems.synthesis.task import TextToSpeech
from transformer.tasks.media.recordings import Scale

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")
pytest.importorskip("jiwer", reason="pip install '.[speech]'")


def test_built_in_recordings_are_those_of_their_number():
    words, wave, *_ = digits(0, 5, 4)
    again, same, *_ = digits(0, 5, 4)
    assert words == again
    np.testing.assert_array_equal(wave, same)
    assert digits(1, 5, 4)[1].shape != wave.shape or (digits(1, 5, 4)[1] != wave).any()
    assert {len(digits(0, index, 3)[0]) for index in range(30)} == {1, 2, 3}


def test_words_are_heard_when_they_are_said():
    """Before, between and after the words there is only the noise of the background."""
    said = digits(0, 8, 4, one=True)
    assert len(said.times) == len(said.words)
    loud = np.abs(said.wave) > 0.02
    for start, end in said.times:
        assert loud[int(start * audio.RATE) : int(end * audio.RATE)].mean() > 0.2
    quiet = np.ones(len(loud), bool)
    for start, end in said.times:  # sounds run into each other within 40 ms
        quiet[int((start - 0.03) * audio.RATE) : int((end + 0.03) * audio.RATE)] = False
    assert loud[quiet].mean() < 0.02


def write(folder, count=12, **first):
    """A manifest of tones."""
    lines = []
    for index in range(count):
        t = np.arange(3200) / audio.RATE
        soundfile.write(folder / f"{index}.wav", 0.3 * np.sin(2 * np.pi * (200 + 50 * index) * t), audio.RATE)
        lines.append(f"{index}.wav\ttone {index % 3}")
    manifest = folder / "list.tsv"
    manifest.write_text("\n".join(lines) + "\n")
    return manifest


def test_recordings_of_a_manifest(tmp_path):
    manifest = write(tmp_path)
    data = RecordingsConfig(train=manifest, cache_dir=tmp_path / "cache", bands=40)
    corpus = open_recordings(data)
    train_split, validation = (list(corpus.splits[name]) for name in ("train", "validation"))
    assert (len(train_split), len(validation)) == (10, 2)
    assert "held out" in corpus.note
    by_name = {each.name: each for each in train_split + validation}
    assert by_name.keys() == {f"{index}.wav" for index in range(12)}
    expected = audio.features_of(read_audio(tmp_path / "3.wav"), 40)
    np.testing.assert_allclose(by_name["3.wav"].features, expected, atol=0.01)  # half precision
    assert by_name["4.wav"].text == "tone 1"
    assert open_recordings(data).folder == corpus.folder
    faster = open_recordings(dataclasses.replace(data, speeds=(0.5, 1.0, 2.0)))
    assert faster.folder != corpus.folder
    lengths = sorted({len(each.features) for each in faster.splits["train"]})
    assert len(faster.splits["train"]) == 30
    assert lengths == [11, 21, 41]
    assert {len(each.features) for each in faster.splits["validation"]} == {21}
    slower = open_recordings(dataclasses.replace(data, speeds=(1.0, 1.0), tempi=(0.4, 0.6)))
    assert {len(each.features) for each in slower.splits["validation"]} == {21}
    lengths = [len(each.features) for each in slower.splits["train"]]
    assert 21 / 0.6 - 1 <= min(lengths) < max(lengths) <= 21 / 0.4 + 1
    assert len(set(lengths)) > 8  # each copy has a tempo of its own
    loudest = {each.features[3:-3].mean(axis=0).argmax() for each in slower.splits["train"]}
    assert loudest == {each.features[3:-3].mean(axis=0).argmax() for each in train_split}  # the pitch stays
    soundfile.write(tmp_path / "3.wav", np.zeros(3200), audio.RATE)
    assert open_recordings(data).folder != corpus.folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "list.tsv").write_text(""), "list.tsv is empty"),
        (
            lambda f: (f / "list.tsv").write_text("0.wav\tone\n1.wav two\n"),
            "line 2: must be a file name, a tab",
        ),
        (
            lambda f: (f / "list.tsv").write_text("0.wav\tone\n1.wav\n"),
            "line 2: must be a file name, a tab and the text, which is empty for silence",
        ),
        (lambda f: (f / "list.tsv").write_text("0.wav\t\n1.wav\t \n"), "list.tsv: all texts are empty"),
        (lambda f: (f / "list.tsv").write_text(f"0.wav\tone\n{'a' * 5000}.wav\ttwo\n"), "line 2: .*too long"),
        (lambda f: (f / "list.tsv").write_text("0.wav\tone\n\0.wav\ttwo\n"), "line 2: .* not the name"),
        (
            lambda f: [(f / "1.wav").unlink(), os.mkfifo(f / "1.wav")],
            r"line 2: .*1.wav: not a regular file",
        ),
        (lambda f: (f / "1.wav").unlink(), r"line 2: .*1.wav: no such file"),
        (lambda f: (f / "1.wav").write_text("no sound"), r"line 2: .*1.wav: cannot be read as audio"),
        (lambda f: soundfile.write(f / "1.wav", np.zeros(0), 16000), r"line 2: .*1.wav: it has no samples"),
        (
            lambda f: soundfile.write(f / "1.wav", np.array([0, np.nan]), 16000, subtype="FLOAT"),
            r"line 2: .*1.wav: sample 1 is not a number",
        ),
        (lambda f: os.truncate(f / "1.wav", 1000), r"line 2: .*1.wav: 956 of 6400 bytes are there"),
        (lambda f: soundfile.write(f / "1.wav", np.zeros(9), 9), r"line 2: .*1.wav: 9 samples a second"),
        (lambda f: (f / "list.tsv").write_text("0.wav\tone\n\tone\n"), "line 2: must begin with the name"),
        (lambda f: (f / "list.tsv").write_text("0.wav\tone\n.\tone\n"), "line 2: .* is a folder"),
        (lambda f: (f / "list.tsv").unlink(), "cannot read .*list.tsv"),
    ],
)
def test_a_bad_manifest_is_named_with_its_line(tmp_path, change, message):
    manifest = write(tmp_path)
    change(tmp_path)
    with pytest.raises(UserError, match=message):
        open_recordings(RecordingsConfig(train=manifest, cache_dir=tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob("**/*.array_record*"))


def test_headers_are_checked_before_samples_are_read(tmp_path, monkeypatch):
    """A recording of the test that is truncated does not end the work after all of the training."""
    manifest = write(tmp_path)
    (tmp_path / "test").mkdir()
    test = write(tmp_path / "test")
    os.truncate(tmp_path / "test" / "1.wav", 1000)
    monkeypatch.setattr(recordings, "read_audio", None)
    with pytest.raises(UserError, match=r"line 2: .*1.wav: 956 of 6400 bytes are there: copy it again"):
        open_recordings(RecordingsConfig(train=manifest, test=test, cache_dir=tmp_path / "cache"))


def test_a_file_written_before_its_length_was_known_is_read(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(3200), audio.RATE)
    written = bytearray((tmp_path / "a.wav").read_bytes())
    written[4:8] = written[40:44] = b"\xff" * 4
    (tmp_path / "b.wav").write_bytes(written)
    assert len(read_audio(tmp_path / "b.wav")) == 3200


def test_an_empty_text_is_silence(tmp_path):
    """What recognition learns from, and synthesis leaves out."""
    manifest = write(tmp_path)
    lines = manifest.read_text().splitlines()
    silent = {"1.wav", "5.wav", "8.wav"}
    lines = [line.partition("\t")[0] + "\t " if line.split("\t")[0] in silent else line for line in lines]
    manifest.write_text("\n".join(lines))
    data = RecordingsConfig(train=manifest, cache_dir=tmp_path / "cache", bands=8)
    heard, spoken = open_recordings(data), open_recordings(data, silence=False)
    assert heard.note.startswith("3 recordings without text: silence; no validation manifest")
    assert spoken.note.startswith("3 recordings without text: silence, which is dropped; no")
    records = [each for split in heard.splits.values() for each in split]
    assert len(records) == 12
    assert {each.name for each in records if not each.text} == silent
    assert sum(map(len, spoken.splits.values())) == 9
    assert all(each.text for split in spoken.splits.values() for each in split)
    assert (SpeechToText.silence, TextToSpeech.silence) == (True, False)
    (tmp_path / "quiet.tsv").write_text("1.wav\t\n")
    more = dataclasses.replace(data, validation=tmp_path / "quiet.tsv")
    assert len(open_recordings(more).splits["validation"]) == 1
    with pytest.raises(UserError, match="quiet.tsv: all texts are empty"):
        open_recordings(more, silence=False)


def test_a_recording_that_is_held_out_is_not_trained_on(tmp_path):
    """A tenth of the different recordings, by their content: names and texts may differ."""
    manifest = write(tmp_path, 20)
    lines = manifest.read_text().splitlines()
    for index in range(20):
        shutil.copy(tmp_path / f"{index}.wav", tmp_path / f"copy-{index}.wav")
        lines += [f"copy-{index}.wav\tagain {index}", f"{index}.wav\tonce more {index}"]
    manifest.write_text("\n".join(lines))
    corpus = open_recordings(RecordingsConfig(train=manifest, cache_dir=tmp_path / "cache", bands=8))
    train, held_out = ({each.name for each in corpus.splits[name]} for name in ("train", "validation"))
    content = [{(tmp_path / name).read_bytes() for name in names} for names in (train, held_out)]
    assert [len(each) for each in content] == [18, 2]
    assert not content[0] & content[1]
    assert [len(corpus.splits[name]) for name in ("train", "validation")] == [54, 6]


@pytest.mark.parametrize("options", [{"tempi": (2.0, 0.5)}, {"tempi": (1.0,)}, {"speeds": ()}])
def test_factors_that_make_no_sense_are_refused(options):
    with pytest.raises(UserError, match=f"--data.{next(iter(options))} must be"):
        RecordingsConfig(**options)


def test_what_is_no_corpus_is_refused(tmp_path):
    with pytest.raises(UserError, match="no training recordings"):
        open_recordings(RecordingsConfig(validation=write(tmp_path)))
    with pytest.raises(UserError, match="--data.dataset nonsense: no such TFDS dataset"):
        open_recordings(RecordingsConfig(dataset="nonsense", cache_dir=tmp_path))
    with pytest.raises(UserError, match="too few recordings"):
        open_recordings(RecordingsConfig(train=write(tmp_path, 1), cache_dir=tmp_path))


PREPARE = """
import sys, numpy as np, tensorflow_datasets as tfds
more = {"nested": {"x": tfds.features.Text()}} if sys.argv[2] == "more" else {}
class ToySpeech(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    def _info(self):
        wave = tfds.features.Tensor(shape=(None,), dtype=np.int64)
        label = tfds.features.ClassLabel(names=["no", "yes"])
        features = {"speech": wave, "text": tfds.features.Text(), "label": label, **more}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))
    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(20)}
    def _generate_examples(self, count):
        for i in range(count):
            wave = (2**14 * np.sin(np.arange(1600 + 80 * i) / 5)).astype(np.int64)
            yield i, {"speech": wave, "text": f"tone {i}", "label": i % 2, **dict.fromkeys(more, {"x": ""})}
ToySpeech(data_dir=sys.argv[1], file_format="array_record").download_and_prepare()
"""


def prepared(folder, kind):
    """A TFDS dataset on disk, prepared by another program."""
    command = [sys.executable, "-c", PREPARE, str(folder / "tfds"), kind]
    subprocess.run(command, check=True, capture_output=True)
    return {"dataset": "toy_speech", "cache_dir": folder, "audio_feature": "speech"}


def test_any_tfds_set_of_speech(tmp_path):
    options = prepared(tmp_path, "speech")
    corpus = open_recordings(RecordingsConfig(**options, sample_rate=8_000))
    kept, held = (list(corpus.splits[split]) for split in ("train", "validation"))
    assert (len(kept), len(held)) == (18, 2)
    by_text = {each.text: each.features for each in kept + held}
    assert by_text.keys() == {f"tone {index}" for index in range(20)}
    wave = np.sin(np.arange(1600 + 80 * 7) / 5).astype(np.float32) / 2
    expected = audio.features_of(np.asarray(audio.resampled(wave, 8_000, audio.RATE)))
    loud = expected > expected.max() - 8  # the rest is how finely samples are rounded
    np.testing.assert_allclose(np.where(loud, by_text["tone 7"], expected), expected, atol=0.02)
    labelled = open_recordings(RecordingsConfig(**options, text_feature="label"))
    assert {each.text for each in labelled.splits["train"]} == {"no", "yes"}
    assert labelled.folder != corpus.folder
    with pytest.raises(UserError, match="no text named 'said'.*it has label, text"):
        open_recordings(RecordingsConfig(**options, text_feature="said"))
    with pytest.raises(UserError, match="no audio named 'sound'.*it has speech"):
        open_recordings(RecordingsConfig(**options | {"audio_feature": "sound"}))


def test_a_speech_set_that_names_other_classes_is_not_opened(tmp_path):
    with pytest.raises(UserError, match="is not that of a speech dataset"):
        open_recordings(RecordingsConfig(**prepared(tmp_path, "more")))


def test_digits_in_german(tmp_path):
    data = RecordingsConfig(built_in_size=20, most_digits=2, language="de", cache_dir=tmp_path)
    texts = [each.text.split() for each in open_recordings(data).splits["train"]]
    names = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    said = [digits(0, index, 2)[0] for index in range(20)]
    order = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    assert texts == [[names[order.index(word)] for word in words] for words in said]


# The task


def test_the_scale_of_all_recordings(tmp_path):
    rng = np.random.default_rng(0)
    some = [Recording("a", rng.normal(3, 2, (50, 4)).astype(np.float32)) for _ in range(5)]
    scale = Scale.of(some, 4)
    whole = np.concatenate([each.features for each in some])
    np.testing.assert_allclose(scale.mean, whole.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(scale.deviation, whole.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(scale(some[0].features), (some[0].features - scale.mean) / scale.deviation)


def test_a_recording_that_is_cut_is_normalised_by_all_of_it():
    features = np.random.default_rng(0).normal(size=(50, 80)).astype(np.float32)
    task, whole = SpeechToText.without_corpus(PRESETS["speech"]), Recording("a", features)
    cut = task.as_read(whole, 20)
    assert cut.features.base is None  # so that the rest is freed
    assert len(cut.features) == 20
    for again in (cut, task.as_read(cut, 20)):
        np.testing.assert_array_equal(task.frames(again), task.frames(whole)[:20])
    assert task.as_read(whole, 50) is whole


def test_two_scales_are_two_tasks(tmp_path):
    config = dataclasses.replace(PRESETS["synthesis"], data=RecordingsConfig(bands=2))
    tokenizer = train_tokenizer(["text"], "whitespace", 20)
    scales = [Scale(np.float32(mean), np.float32(dev)) for mean, dev in (([1, 2], [3, 4]), ([1, 2], [3, 5]))]
    tasks = [kind(config, tokenizer) for kind in (SpeechToText, TextToSpeech) for _ in scales]
    for task, scale in zip(tasks, scales * 2, strict=True):
        task.scale = scale
    assert len({task.content() for task in tasks}) == 4


def test_a_bucket_has_room_for_text_in_proportion():
    config = dataclasses.replace(PRESETS["speech"], data=RecordingsConfig(max_text=32))
    task = SpeechToText.without_corpus(config)
    assert task.batching().buckets == ((100, 8), (180, 16), (270, 24), (400, 32))
    assert [field.shape for field in task.fields.values()] == [(80,), ()]


def test_options_of_tfds_have_no_effect_on_other_recordings(tmp_path, caplog):
    data = RecordingsConfig(train=write(tmp_path), cache_dir=tmp_path / "cache", bands=8)
    open_recordings(data)
    assert "no effect" not in caplog.text
    open_recordings(dataclasses.replace(data, sample_rate=8000))
    assert "--data.sample-rate has no effect: it is for TFDS datasets" in caplog.text
