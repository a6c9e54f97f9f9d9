"""Numbers in digits, in words, in phonemes and in sound: the corpora of a synthesiser with two stages."""

import dataclasses
import itertools

import numpy as np
import pytest
from small_run import changed, quiet, small_config
from toy_runs import synthesis_config

from transformer import PRESETS, Synthesizer, Translator, UserError, train
from transformer.commands.decode import decode_main
from transformer.config.records import RecordingsConfig
from transformer.data.built_in import spoken
from transformer.data.sources.recordings import numbers, written

soundfile = pytest.importorskip("soundfile", reason="pip install '.[speech]'")


def test_numbers_have_the_words_and_phonemes_of_english():
    assert spoken.words_of(4207) == ["four", "thousand", "two", "hundred", "and", "seven"]
    assert spoken.words_of(80) == ["eighty"]
    for digits, signs in itertools.islice(spoken.pronounced_pairs("train"), 300):
        words = spoken.words_of(int(digits))
        assert signs.split(" ") == [spoken.WORDS[word] for word in words]
    every = {word for value in range(10_000) for word in spoken.words_of(value)}
    assert every == spoken.WORDS.keys()
    assert {sign for signs in spoken.WORDS.values() for sign in signs} < spoken.SOUNDS.keys()


def test_no_number_of_several_digits_is_in_two_splits():
    found = [
        {source for source, _ in itertools.islice(spoken.pronounced_pairs(split), 3000) if len(source) > 1}
        for split in ("train", "validation", "test")
    ]
    for one, other in itertools.combinations(found, 2):
        assert not one & other
    with pytest.raises(UserError, match="no tests split of the corpus pronunciation"):
        next(spoken.pronounced_pairs("tests"))


def test_recordings_of_numbers_are_written_as_asked():
    said = numbers(0, 3, 4, True)
    again = numbers(0, 3, 4, True)
    np.testing.assert_array_equal(said.wave, again.wave)
    (value,) = said.values
    assert said.words == spoken.words_of(value)
    texts = {how: written(said, RecordingsConfig(writing=how)) for how in ("words", "digits", "phonemes")}
    assert texts["digits"] == str(value)
    assert texts["words"].split() == said.words
    assert texts["phonemes"] == spoken.phonemes(said.words)
    assert len(written(said, RecordingsConfig(language="de")).split()) == 1
    lengths = {len(str(numbers(0, index, 3).values[0])) for index in range(40)}
    assert lengths == {1, 2, 3}
    with pytest.raises(UserError, match="--data.language de"):
        RecordingsConfig(language="de", writing="digits")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Both stages, hardly trained."""
    folder = tmp_path_factory.mktemp("stages")
    config = small_config(folder)
    data = dataclasses.replace(PRESETS["pronunciation"].data, built_in_size=100, cache_dir=folder / "cache")
    model = dataclasses.replace(config.model, vocab_size=0)
    train(dataclasses.replace(config, data=data, model=model), folder / "first", watch=quiet())
    config = changed(synthesis_config(folder, "one"), steps=1)
    data = dataclasses.replace(
        config.data, dataset="spoken-numbers", writing="phonemes", max_text=60, max_length=400
    )
    data = dataclasses.replace(data, buckets=(400,), batch_tokens=4000, most_digits=4, tokenizer="char")
    config = dataclasses.replace(config, data=data)
    config = dataclasses.replace(config, decoding=dataclasses.replace(config.decoding, buckets=(60,)))
    train(config, folder / "second", watch=quiet())
    return folder / "first", folder / "second"


@pytest.mark.slow
def test_a_text_is_pronounced_and_then_spoken(runs, tmp_path, decode):
    first, second = runs
    voice = Synthesizer.load(second)
    with pytest.raises(UserError, match="something that the training texts have not"):
        voice.speak("42")
    spelled = Translator.load(first).translate(["42", "7"])
    alone = voice.utterances(spelled, max_length=40)
    voice.pronunciation = Translator.load(first)
    together = voice.utterances(["42", "7"], max_length=40)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.features, other.features, atol=1e-4)
    ((output,),) = voice.pronunciation.search(["42"], n_best=1)
    unknown = dataclasses.replace(output, text="§", truncated=False)
    voice.pronunciation.search = lambda texts, n_best: [[unknown] for _ in texts]
    with pytest.raises(UserError, match="what --pronunciation wrote for '42': the text '§' has"):
        voice.speak("42")
    (tmp_path / "in").write_text("42\n\n7\n")
    arguments = [second, "--input", tmp_path / "in", "--output", tmp_path / "list.tsv", "--max-length", 40]
    assert decode(*arguments, "--pronunciation", first)[0] == 0
    assert (tmp_path / "list.tsv").read_text() == "list-0001.wav\t42\nlist-0002.wav\t\nlist-0003.wav\t7\n"
    read, _ = soundfile.read(tmp_path / "list-0001.wav", dtype="float32")
    np.testing.assert_allclose(read, together[0].wave, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "message"), [(0, "translates text"), (1, "does not translate: synthesis")])
def test_stages_in_the_wrong_place_are_refused(runs, tmp_path, run, message, refused):
    (tmp_path / "in").write_text("42\n")
    arguments = [runs[run], "--input", tmp_path / "in", "--output", tmp_path / "out"]
    assert message in refused(decode_main, *arguments, "--pronunciation", runs[1])
    assert not (tmp_path / "out").exists()
