"""One model for several directions: their files, codes, shares and scores. Here one "language" is a copy of
the source, and another one is the source reversed."""

import dataclasses
import json
import logging
import re
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from small_run import WORDS, changed, interrupted, quiet, same, small_config

from transformer import DataConfig, Run, Translator
from transformer.cli.calibrate import calibrate_main
from transformer.cli.decode import decode_main
from transformer.cli.models import distill_main
from transformer.cli.shortlist import shortlist_main
from transformer.cli.train import train_main
from transformer.config import Config, SpecialIds
from transformer.data.corpus import silent
from transformer.data.features.tokenizers import load_tokenizer, train_tokenizer
from transformer.data.plans import Batching, plan_of
from transformer.data.sampled_plan import SampledPlan
from transformer.data.sequences import Field, Sequences
from transformer.data.sources.corpora import open_corpus
from transformer.data.store import DirectedPair
from transformer.data.temperature import TemperatureOrder, by_first_ids, shares
from transformer.interop.pretrained import import_model
from transformer.interop.vocabularies.marian import MarianVocabulary
from transformer.runtime.errors import UserError
from transformer.systems.presets import preset, variant
from transformer.systems.registry import find_system
from transformer.tasks.preparation import prepare
from transformer.training.loop.train import train

DIRECTIONS = ("x:same", "x:back")
PRETRAINED = Path(__file__).parent / "data" / "pretrained"


def sentences(seed, count):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=random.integers(2, 6))) for _ in range(count)]


def reversed_words(line):
    return " ".join(line.split()[::-1])


def write(folder, split, count, seed, languages=("x", "same", "back")):
    lines = sentences(seed, count)
    for language in languages:
        texts = map(reversed_words, lines) if language == "back" else lines
        (folder / f"{split}.{language}").write_text("".join(f"{text}\n" for text in texts))


def files_of(folder, splits=("train", "validation", "test")):
    return {
        f"{split}_{side}": folder / f"{split}.{{{side}}}" for split in splits for side in ("source", "target")
    }


def config_of(folder, train=200, **data):
    """The texts written, and a config of both directions."""
    for seed, (split, count) in enumerate((("train", train), ("validation", 12), ("test", 12))):
        write(folder, split, count, seed)
    config = small_config(folder)
    options = {**files_of(folder), "directions": DIRECTIONS, **data}
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **options))


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return config_of(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that was trained until it copies and reverses."""
    config = config_of(tmp_path_factory.mktemp("text"), train=1000)
    config = changed(config, steps=600, evaluate_every=300, label_smoothing=0.0)
    model = dataclasses.replace(config.model, d_model=32, d_ff=64, num_layers=2, dropout=0.0)
    optimizer = dataclasses.replace(config.optimizer, peak=5e-3, warmup_steps=50)
    config = dataclasses.replace(config, model=model, optimizer=optimizer)
    return train(config, tmp_path_factory.mktemp("runs") / "learned", watch=quiet())


@pytest.fixture(scope="module")
def translator(learned):
    return Translator.load(learned)


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
    assert not codes & set(loaded.by_piece.values())


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
    assert evaluations[-1]["merit"] == evaluations[-1]["bleu"]
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, temperature=2.0))
    with pytest.raises(UserError, match=r"other options: --data.temperature: 3.0 -> 2.0"):
        train(other, whole, watch=quiet())


@pytest.mark.slow
def test_one_model_learns_two_directions(learned, translator):
    report = (learned / "report.html").read_text()
    assert report.count("x to back") > 3  # in the table of scores, and a line of a chart
    results = json.loads((learned / "results.json").read_text())
    assert set(results["bleu"]["parts"]) == {"x to same", "x to back"}
    assert min(results["bleu"]["parts"].values()) > 90
    assert results["bleu"]["value"] == pytest.approx(sum(results["bleu"]["parts"].values()) / 2)
    line = "red dog sings"
    assert translator.translate(line, target_language="same") == line  # all have the same source language
    assert translator.translate(line, target_language="back") == reversed_words(line)
    with pytest.raises(UserError, match="give --target-language, such as back, same"):
        translator.translate(line)


# Decoding


def test_a_batch_of_all_directions_decodes_as_each_alone(translator):
    lines = sentences(5, 6)
    languages = ["same", "back", "same", "back", "back", "same"]
    alone = [
        translator.search([line], target_language=language)[0]
        for line, language in zip(lines, languages, strict=True)
    ]
    records = [DirectedPair(line, "", "x", language) for line, language in zip(lines, languages, strict=True)]
    numbered = enumerate(records, start=1)
    together = list(translator.outputs(numbered, translator.settings(None, {}), None))
    for hypotheses, expected in zip(together, alone, strict=True):
        assert [h.ids for h in hypotheses] == [h.ids for h in expected]
        np.testing.assert_allclose([h.score for h in hypotheses], [h.score for h in expected], atol=1e-5)
    assert len(translator._services) == 1


@pytest.mark.slow
def test_languages_share_their_programs(learned, caplog):
    translator = Translator.load(learned)
    translator.warm_up()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        translator.translate(["red dog"], target_language="same")
        translator.translate(["red dog"], target_language="back")
    assert not [message for message in caplog.messages if "ompiling" in message]


def decoded(capfd, *words):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["decode.py", *map(str, words)])
        return decode_main(), *capfd.readouterr()


@pytest.mark.slow
def test_lines_name_their_languages(learned, tmp_path, capfd):
    columns, objects = tmp_path / "lines.tsv", tmp_path / "lines.jsonl"
    columns.write_text("red dog\t\t\tx\tback\nred dog\t\t\t\tsame\nred cat runs\truns\t\t\tback\n")
    requests = [
        {"source": "red dog", "source_language": "x", "target_language": "back"},
        {"source": "red dog", "target_language": "same"},
        {"source": "red cat runs", "prefix": "runs", "target_language": "back"},
    ]
    objects.write_text("".join(f"{json.dumps(request)}\n" for request in requests))
    expected = "dog red\nred dog\nruns cat red\n"
    assert decoded(capfd, learned, "--input", columns, "--tsv")[:2] == (0, expected)
    assert decoded(capfd, learned, "--input", objects, "--jsonl")[:2] == (0, expected)
    _, written, _ = decoded(capfd, learned, "--input", objects, "--jsonl", "--format", "json")
    results = list(map(json.loads, written.splitlines()))
    assert [result["target_language"] for result in results] == ["back", "same", "back"]
    assert [result["source_tokens"][0] for result in results] == ["__x__"] * 3
    assert [result["hypotheses"][0]["tokens"][0] for result in results] == [
        "__back__",
        "__same__",
        "__back__",
    ]


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("a\t\t\tx\tbakc", ["--tsv"], "line 1: --target-language bakc: this model has no such language"),
        ("a\t\t\t\t", ["--tsv"], "give --target-language, such as back, same"),
        ("a\tb\tc\td\te\tf", ["--tsv"], "line 1: 6 columns; --tsv reads"),
        ("a", ["--jsonl"], "line 1: --jsonl reads a JSON object on each line"),
        ('{"text": "a"}', ["--jsonl"], "line 1: --jsonl has no field 'text'; it reads source, prefix"),
        ('{"source": 3}', ["--jsonl"], "line 1: source must be text, not 3"),
        ('{"source": "a", "terms": "b"}', ["--jsonl"], "line 1: terms must be a list of words"),
        ("a", ["--jsonl", "--tsv"], "leave one of them out"),
    ],
)
def test_bad_lines_are_named(learned, tmp_path, capfd, line, options, message):
    path = tmp_path / "lines"
    path.write_text(f"{line}\n")
    status, _, errors = decoded(capfd, learned, "--input", path, *options)
    assert status == 2
    assert message in " ".join(errors.split())
    assert "Traceback" not in errors


def test_limits_are_learned_of_a_direction(learned, tmp_path, monkeypatch, capfd):
    """By default of the validation text in these languages."""
    run = shutil.copytree(learned, tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["calibrate", str(run), "--target-language", "back"])
    assert calibrate_main() == 0
    printed = capfd.readouterr().out
    assert "limits of 12 translations" in printed
    assert printed.splitlines()[-1].endswith(" --target-language back")
    monkeypatch.setattr("sys.argv", ["calibrate", str(run)])
    assert calibrate_main() == 2
    assert "give --target-language, such as back" in " ".join(capfd.readouterr().err.split())


SIZES = [f"--model.{name}" for name in ("num-layers=1", "d-model=16", "d-ff=16", "num-heads=2")]
SHORT = ["--training.steps=4", "--training.evaluate-every=4", "--data.cache-dir=cache"]
SMALL = ["--data.vocab-size=285", "--data.batch-tokens=600", "--data.max-length=60", "--data.buckets=60"]


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path, monkeypatch, capfd):
    """As printed, with small models, and what the end of a training suggests."""
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")
    section = re.search(r"## Several directions\n(.*?)\n## ", page, re.DOTALL)[1]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    commands = "".join(blocks).replace("\\\n", " ").splitlines()
    monkeypatch.chdir(tmp_path)
    for language in ("de", "fr"):
        write(tmp_path, f"train.{language}", 60, 0, ["en", language])
    write(tmp_path, "val", 6, 1, ["en", "de", "fr"])
    queue = list(commands)
    while queue:
        command = queue.pop(0)
        text, _, last = command.rpartition(" | ")
        _, program, *options = shlex.split(last)
        if program == "train.py":
            small = (
                ["--data.vocab-size=360", "--data.built-in-size=300"] if "quickstart" in options else SMALL
            )
            main, words = train_main, [program, *options, *SIZES, *SHORT, *small]
        else:
            Path("lines").write_bytes(subprocess.run(["sh", "-c", text], capture_output=True).stdout)
            main, words = decode_main, [program, *options, "--input", "lines"]
        monkeypatch.setattr("sys.argv", words)
        assert main() == 0, (command, capfd.readouterr().err)
        out = capfd.readouterr().out
        assert out.strip()
        queue += re.findall("^Try: (echo .*)", out, re.MULTILINE)
    assert len(commands) == 6


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


def test_commands_for_one_direction_refuse_several(learned, tmp_path, capfd, monkeypatch):
    (tmp_path / "text").write_text("red dog\n")
    text = str(tmp_path / "text")
    for main, options, message in (
        (shortlist_main, ["--source", text, "--target", text], "a shortlist is for one direction"),
        (distill_main, [str(tmp_path / "out")], "a distillation is of one"),
    ):
        monkeypatch.setattr("sys.argv", ["transformer", str(learned), *options])
        assert main() == 2
        errors = capfd.readouterr().err
        assert message in " ".join(errors.split())
        assert "Traceback" not in errors
    assert not (tmp_path / "out").exists()


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
