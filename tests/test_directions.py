"""One model for several directions: their files, codes, shares, and training."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_run import changed, interrupted, quiet, same
from two_directions import config_of, files_of, reversed_words, sentences, write

from transformer import DataConfig, Run, Translator
from transformer.config.model import SpecialIds
from transformer.config.options import Config
from transformer.data.epochs import SampledPlan, TemperatureOrder, by_first_ids, shares
from transformer.data.plans import Batching, plan_of
from transformer.data.sequences import Field, Sequences
from transformer.data.sources.corpora import open_corpus
from transformer.data.store import DirectedPair, silent
from transformer.data.tokenizers.trained import load_tokenizer, train_tokenizer
from transformer.interop.architectures.marian import MarianVocabulary
from transformer.interop.pretrained import import_model
from transformer.runtime.errors import UserError
from transformer.systems.presets import preset, variant
from transformer.systems.registry import find_system
from transformer.tasks.preparation import prepare
from transformer.trainer.train import train

PRETRAINED = Path(__file__).parent / "data" / "pretrained"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return config_of(tmp_path_factory.mktemp("text"))


# Corpora


def test_files_are_named_by_language(config):
    corpus = open_corpus(config.data)
    lines = sentences(0, 200)
    expected = [DirectedPair(line, line, "x", "same") for line in lines]
    expected += [DirectedPair(line, reversed_words(line), "x", "back") for line in lines]
    assert list(corpus.splits["train"]) == expected
    assert "x to same 200 (50.0%), x to back 200 (50.0%)" in corpus.note
    languages = [record.target_language for record in corpus.splits["validation"]]
    assert languages == ["same", "back"] * 12  # the first ones have every direction


def test_a_file_with_columns_names_the_languages(tmp_path):
    lines = ["a\tA\tx\ty", "b\tB\tx\tz", "c\tC\ty\tx", "d\tD\tx\ty"]
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{line}\n" for line in lines))
    data = DataConfig(
        directions=("x:y", "x:z", "y:x"), train_tsv=path, validation_tsv=path, cache_dir=tmp_path / "cache"
    )
    splits = open_corpus(data).splits
    assert ["\t".join(record) for record in splits["train"]] == lines
    assert [record.source for record in splits["validation"]] == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_the_built_in_corpus_has_both_directions(tmp_path):
    data = DataConfig(directions=("en:de", "de:en"), built_in_size=20, cache_dir=tmp_path)
    records = list(open_corpus(data).splits["train"])
    assert [record[:2] for record in records[20:]] == [record[1::-1] for record in records[:20]]
    assert {record[2:] for record in records[20:]} == {("de", "en")}


def test_what_is_held_out_is_no_target_of_training(tmp_path):
    config = config_of(tmp_path, directions=("x:same", "same:x"))
    data = dataclasses.replace(config.data, validation_source=None, validation_target=None)
    splits = open_corpus(data).splits
    held_out = {record.source for record in splits["validation"]}
    assert held_out
    assert not held_out & {text for record in splits["train"] for text in record[:2]}


# Vocabularies


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word", "whitespace", "open-word"])
def test_vocabularies_have_codes_that_no_text_spells(kind, tmp_path):
    texts = [*sentences(0, 50), "__x__ </s>"]
    size = 285 if kind in ("unigram", "bpe", "char") else 40
    tokenizer = train_tokenizer(texts, kind, size, SpecialIds(), ["eng_Latn", "x", "pt-br"])
    tokenizer.save(tmp_path / "vocabulary")
    loaded = load_tokenizer(tmp_path / "vocabulary")
    assert loaded.codes == tokenizer.codes
    assert list(loaded.codes) == ["eng_Latn", "x", "pt-br"]
    assert loaded.has_codes
    codes = set(loaded.codes.values())
    plain = loaded.encode("red __x__ dog")
    assert not codes & set(plain)
    inside = loaded.in_language("x", "--source-language")
    assert inside.encode("red __x__ dog") == [loaded.codes["x"], *plain]
    assert inside.encode_all(["red", "dog"]) == [inside.encode("red"), inside.encode("dog")]
    assert inside.decode([loaded.codes["x"], *loaded.encode("red dog")]) == "red dog"
    assert inside.pieces([loaded.codes["x"]]) == ["__x__"]
    assert not codes & set(loaded.ids_by_piece.values())


# Plans


def counted(plan, direction_of, epochs):
    steps = range(epochs * plan.steps_per_epoch)
    return Counter(direction_of[example] for step in steps for example in plan(step).chosen)


def lengths_and_directions(sizes):
    random = np.random.default_rng(0)
    direction_of = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return random.integers(1, 30, (sum(sizes), 2)), direction_of


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_directions_have_their_share(temperature, packed):
    """Counted over epochs, against n^(1/T) of numbers written here."""
    sizes = (3000, 300, 30)
    lengths, direction_of = lengths_and_directions(sizes)
    batching = Batching(((10, 10), (20, 20), (30, 30)), 600, packed, seed=4)
    groups = [np.flatnonzero(direction_of == number) for number in range(3)]
    if temperature == 1:
        plan, tolerance = plan_of(lengths, batching), 0.0
    else:
        order = TemperatureOrder(groups, temperature, 4)
        plan, tolerance = SampledPlan(lengths, batching, None, silent, order), 0.02
    weights = [size ** (1 / temperature) for size in sizes]
    expected = [weight / sum(weights) for weight in weights]
    if temperature == 5:
        np.testing.assert_allclose(expected, [0.4936, 0.3114, 0.1965], atol=1e-3)
    counts = counted(plan, direction_of, 4)
    total = sum(counts.values())
    np.testing.assert_allclose([counts[n] / total for n in range(3)], expected, atol=tolerance + 1e-9)
    assert abs(total / 4 / sum(sizes) - 1) < 0.05  # an epoch has as many examples as the corpus


def test_a_direction_repeats_an_example_only_after_all_others():
    sizes = (500, 50, 7)
    _, direction_of = lengths_and_directions(sizes)
    groups = [np.flatnonzero(direction_of == number) for number in range(3)]
    order = TemperatureOrder(groups, 3.0, 1)
    drawn = np.concatenate([order(epoch) for epoch in range(5)])
    for group, count in zip(groups, order.counts, strict=True):
        times = np.array(list(Counter(drawn[np.isin(drawn, group)]).values()))
        assert sum(times) == 5 * count
        assert times.max() - times.min() <= 1
    again = TemperatureOrder(groups, 3.0, 1)
    np.testing.assert_array_equal(again(3), order(3))  # of any earlier epoch, nothing is needed
    assert (order(0) != order(1)).any()


def test_groups_begin_with_the_same_codes():
    source, target = [[4, 9], [4, 8], [5, 9], [4]], [[6], [7], [6], [6, 6]]
    examples = {"source": Sequences.of(source, Field()), "target": Sequences.of(target, Field())}
    groups = by_first_ids(examples, np.array([0, 1, 2, 3]))
    assert [group.tolist() for group in groups] == [[0, 3], [1], [2]]
    assert [group.tolist() for group in by_first_ids(examples, np.array([1, 3]))] == [[3], [1]]


def test_shares_of_a_high_temperature_are_equal():
    np.testing.assert_allclose(shares([10**8, 100], 1e9), [0.5, 0.5], atol=1e-6)


# Training


@pytest.mark.parametrize(("sampling", "by"), [(0.0, None), (0.2, "word"), (0.2, "sentence")])
def test_batches_have_all_directions_and_their_codes(tmp_path, sampling, by):
    """Also with subword sampling, which draws other segmentations of the same pairs."""
    config = config_of(
        tmp_path,
        tokenizer="unigram",
        vocab_size=285,
        subword_sampling=sampling,
        sampling_by=by,
        max_length=30,
        buckets=(30,),
        batch_tokens=900,
        temperature=5.0,
    )
    task_type = find_system("transformer").task
    corpus = open_corpus(config.data)
    task = task_type.create(config, corpus)
    task.decide(corpus)
    data = prepare(task, corpus)
    records = list(corpus.splits["train"])
    source, target = task.tokenizers
    for step in range(3):
        chosen, batch = data.batcher.plan(step).chosen, data.batcher(step)
        assert {records[index].target_language for index in chosen} == {"same", "back"}
        for row, index in enumerate(chosen):
            pair = records[index]
            assert batch["source"][row, 0] == source.codes["x"]
            assert batch["target"][row, 0] == target.codes[pair.target_language]
            assert source.decode(batch["source"][row]) == pair.source
            assert target.decode(batch["target"][row]) == pair.target


@pytest.mark.slow
def test_a_run_with_a_temperature_resumes_bit_for_bit(tmp_path):
    config = config_of(tmp_path, temperature=3.0)
    write(tmp_path, "train", 20, 9, ["back"])  # another number of pairs in each direction
    (tmp_path / "train.tsv").write_text(
        "".join(f"{line}\t{line}\tx\tsame\n" for line in sentences(1, 150))
        + "".join(f"{line}\t{reversed_words(line)}\tx\tback\n" for line in sentences(2, 20))
    )
    data = {"train_source": None, "train_target": None, "train_tsv": tmp_path / "train.tsv"}
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **data))
    whole = train(config, tmp_path / "whole", watch=quiet())
    resumed = train(config, interrupted(whole, tmp_path / "resumed"), watch=quiet())
    assert same(whole, resumed)
    evaluations = Run(whole).log.records("evaluation")
    for measure in ("bleu", "chrf"):
        parts = [evaluations[-1][f"{measure} x to {language}"] for language in ("same", "back")]
        assert evaluations[-1][measure] == pytest.approx(sum(parts) / 2)
    assert evaluations[-1]["merit"] == max(1, evaluations[-1]["bleu"])  # less says nothing
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, temperature=2.0))
    with pytest.raises(UserError, match=r"other options: --data.temperature: 3.0 -> 2.0"):
        train(other, whole, watch=quiet())


# Imported models


@pytest.mark.slow
def test_an_imported_model_is_tuned_in_two_directions(tmp_path):
    parent = tmp_path / "nllb"
    import_model(PRETRAINED / "nllb", parent)
    for split, count in (("train", 12), ("validation", 4)):
        write(tmp_path, split, count, 0, ["eng_Latn", "deu_Latn"])
    base = Run(parent).config
    data = dataclasses.replace(
        base.data,
        **files_of(tmp_path, ("train", "validation")),
        directions=("eng_Latn:deu_Latn", "deu_Latn:eng_Latn"),
        cache_dir=tmp_path / "cache",
        max_length=24,
        buckets=(24,),
        batch_tokens=240,
    )
    config = changed(dataclasses.replace(base, data=data), steps=2, evaluate_every=2, init_from=parent)
    run = train(config, tmp_path / "run", watch=quiet())
    results = json.loads((run / "results.json").read_text())
    assert set(results["chrf"]["parts"]) == {"eng_Latn to deu_Latn", "deu_Latn to eng_Latn"}
    translator = Translator.load(run)
    (best, *_) = translator.search(["dog"], source_language="eng_Latn", target_language="deu_Latn")[0]
    assert best.tokens[0] == "deu_Latn"
    unknown = dataclasses.replace(config, data=dataclasses.replace(data, directions=("eng_Latn:zul_Latn",)))
    write(tmp_path, "train", 12, 0, ["zul_Latn"])
    write(tmp_path, "validation", 4, 0, ["zul_Latn"])
    with pytest.raises(UserError, match="--data.directions, language zul_Latn: this model has no such"):
        train(unknown, tmp_path / "other", watch=quiet())
    assert not (tmp_path / "other").exists()


def test_codes_made_here_are_not_exported():
    tokenizer = train_tokenizer(sentences(0, 50), "bpe", 285, SpecialIds(), ["x", "same"])
    with pytest.raises(UserError, match="which Marian models do not have: it cannot be exported"):
        MarianVocabulary.exported((tokenizer, tokenizer), Config())


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": ("en-de",)}, "--data.directions en-de: write source:target, such as en:de"),
        ({"directions": ("en:de:fr",)}, "--data.directions en:de:fr: write source:target"),
        ({"directions": ("en:de", "en:de")}, "--data.directions en:de is there twice: name it once"),
        ({"directions": ("en:de", "de:en"), "temperature": -1.0}, "--data.temperature must be positive"),
        ({"temperature": 5.0}, "--data.temperature 5: there is one direction"),
    ],
)
def test_directions_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        DataConfig(**options)


def test_directions_without_text_are_refused(tmp_path, config):
    def opened(**options):
        return open_corpus(dataclasses.replace(config.data, **options))

    with pytest.raises(UserError, match=r"cannot read .*train\.fr: No such file"):
        opened(directions=("x:same", "x:fr"))
    one = dict.fromkeys(("train_source", "train_target"), tmp_path / "train")
    with pytest.raises(UserError, match=r"write \{source\} and \{target\} where the names"):
        opened(**one)
    none = dict.fromkeys(files_of(tmp_path))
    with pytest.raises(UserError, match="corpus built-in has no such direction; give text files"):
        opened(**none)
    path = tmp_path / "train.tsv"
    path.write_text("a\tA\tx\tsame\n")
    tsv = {**none, "train_tsv": path, "validation_tsv": path}
    with pytest.raises(UserError, match=r"--data.directions x:back: .*train.tsv has no text of it"):
        opened(**tsv)
    path.write_text("a\tA\tx\tit\n")
    with pytest.raises(UserError, match=r"train.tsv, line 1: 'x:it' is not one of --data.directions"):
        opened(**tsv)
    path.write_text("a\tA\n")
    with pytest.raises(UserError, match=r"line 1: 2 columns; each line must be source, target and their"):
        opened(**tsv)


def test_systems_that_predict_all_tokens_at_once_are_refused(config, tmp_path):
    other = variant(preset("quickstart"), "masked")
    data = dataclasses.replace(other.data, directions=("en:de", "de:en"), cache_dir=tmp_path)
    with pytest.raises(UserError, match="--data.directions: .* predicts all tokens at once; leave it out"):
        train(dataclasses.replace(other, data=data), tmp_path / "run", watch=quiet())
