"""Tasks of text: tables with named columns, several inputs and references, groups, labels, scores."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_run import WORDS, quiet, small_config

from transformer import PRESETS, DataConfig, Run, Translator
from transformer.cli.decode import decode_main
from transformer.data.sources.corpora import open_corpus
from transformer.data.sources.tables import read_table
from transformer.data.store import TextRecord
from transformer.runtime.errors import UserError
from transformer.systems.registry import REGISTRY, find_system, options_of, system_of
from transformer.systems.transformer.text_presets import TEXT_PRESETS
from transformer.tasks.metrics.scores import bleu
from transformer.tasks.task import Evaluation
from transformer.tasks.text_tasks import TASKS, text_task_of
from transformer.training.loop.train import train
from transformer.translator.choices import best_temperature

TASK_NAMES = DataConfig.__annotations__["task"].__args__
NAMED = {"inputs": ("question", "article"), "target": ("answer", "others"), "group": "kind"}


def rows(seed, count):
    """Questions about a list of words: which is the first, or the last?"""
    random = np.random.default_rng(seed)
    for _ in range(count):
        words = random.choice(WORDS, size=random.integers(2, 5))
        which = int(random.integers(2))
        question, answer = (("first", words[0]), ("last", words[-1]))[which]
        row = {"kind": ("begin", "end")[which], "question": question, "article": " ".join(words)}
        yield row | {"answer": str(answer), "others": [f"the {answer}", "it"] if which else []}


def write(folder):
    for seed, (split, count) in enumerate((("train", 200), ("validation", 12), ("test", 12))):
        lines = (json.dumps(row) for row in rows(seed, count))
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def data_of(folder, **options):
    files = {split: folder / f"{split}.jsonl" for split in ("train", "validation", "test")}
    files |= {f"{split}_{side}": None for split in files for side in ("source", "target")}
    return dataclasses.replace(small_config(folder).data, **files, **(NAMED | options))


def run_of(folder, **options):
    config = small_config(folder)
    config = dataclasses.replace(config, data=data_of(folder, **options))
    return Run(train(config, folder / "run", watch=quiet()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return run_of(folder, task="answers")


# --- tables ---


def test_rows_become_records(folder):
    """The group, then each input after its name; targets of all columns are references."""
    expected = []
    for row in rows(0, 200):
        source = f"{row['kind']}: question: {row['question']} article: {row['article']}"
        expected.append(TextRecord(source, row["answer"], tuple(row["others"]), row["kind"]))
    assert list(read_table(folder / "train.jsonl", data_of(folder))) == expected
    assert list(open_corpus(data_of(folder)).splits["train"]) == expected


def test_a_table_with_tabs_is_the_same(tmp_path):
    objects = ['{"b": "two", "a": "one", "n": 3}', "", '{"a": "x\\ny", "b": "", "n": 0.5}']
    (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in objects))
    (tmp_path / "a.tsv").write_text("b\ta\tn\ntwo\tone\t3\n\tx y\t0.5\n")
    data = DataConfig(train=tmp_path / "a.tsv", inputs=("a", "b"), target=("n",))
    both = [list(read_table(tmp_path / name, data)) for name in ("a.jsonl", "a.tsv")]
    assert both[0] == both[1] == [TextRecord("a: one b: two", "3"), TextRecord("a: x y b: ", "0.5")]


def test_a_file_of_a_treebank(tmp_path):
    """Trees over several lines; traces, functions and the outermost bracket are left out."""
    path = tmp_path / "a.mrg"
    path.write_text(
        "\n( (S\n    (NP-SBJ-1 (DT a) (NN dog) )\n    (VP (VBZ is) (VP (VBN seen) (NP (-NONE- *-1) )))\n"
        " (. .) ))\n( (NP=2 (-NONE- *) ))\n(X (-LRB- -LRB-) (NN b))\n"
    )
    data = DataConfig(task="trees", train=path)
    assert list(read_table(path, data)) == [
        TextRecord(
            "a dog is seen .", "(S (NP (DT a ) (NN dog ) ) (VP (VBZ is ) (VP (VBN seen ) ) ) (. . ) )"
        ),
        TextRecord("-LRB- b", "(X (-LRB- -LRB- ) (NN b ) )"),
    ]
    path.write_text("(S (N a))\n\n(S (N b)\n")
    with pytest.raises(UserError, match=r"a.mrg, line 3: a bracket is not closed"):
        list(read_table(path, data))


def test_trees_become_tokens(tmp_path):
    path = tmp_path / "a.jsonl"
    data = DataConfig(task="trees", train=path, inputs=("words",), target=("tree",))
    path.write_text('{"words": ["a", "dog"], "tree": "(NP (DT a)\\n (NN dog))"}\n')
    assert list(read_table(path, data)) == [TextRecord("a dog", "(NP (DT a ) (NN dog ) )")]
    path.write_text('{"words": "a dog", "tree": "(NP (DT a)"}\n')
    with pytest.raises(UserError, match="line 1: tree is no tree, such as"):
        list(read_table(path, data))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "its name must end with .jsonl or .tsv"),
        ("a.jsonl", "[1]\n", "line 1: each line must be a JSON object"),
        ("a.jsonl", '{"a": "x"}\n', "line 1: there is no column b, only"),
        ("a.jsonl", '{"a": "x", "b": null}\n', "line 1: b must be text, not 'None'"),
        ("a.jsonl", '{"a": "x", "b": ["y", {}]}\n', "line 1: b must be text, not '{}'"),
        ("a.jsonl", '{"a": true, "b": "y"}\n', "line 1: a must be text, not 'True'"),
        ("a.jsonl", '{"a": "x", "b": []}\n', "line 1: b is an empty list: give at least one text"),
        ("a.tsv", "a\tb\nx\n", "line 2: 1 columns, but line 1 names 2"),
        ("a.tsv", "a\ta\nx\ty\n", "line 1: two columns have the same name"),
        ("a.tsv", "a\tc\nx\ty\n", "line 2: there is no column b, only 'a, c'"),
    ],
)
def test_a_wrong_table(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as error:
        list(read_table(path, DataConfig(train=path, inputs=("a",), target=("b",))))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": ("a", "a")}, "column a is there twice"),
        ({"inputs": ()}, "a column has no name"),
        ({"target": ("source",)}, "column source is there twice"),
        (
            {"train": None, "train_tsv": "a", "inputs": ("a",)},
            "they name columns of --data.train, which is not given",
        ),
        ({"directions": ("x:y",)}, "--data.directions: give --data.train-tsv instead"),
    ],
)
def test_wrong_columns(tmp_path, options, message):
    with pytest.raises(UserError) as error:
        DataConfig(**({"train": tmp_path / "a.tsv"} | options))
    assert message in str(error.value)


# --- scores ---


def test_every_task_has_a_name():
    assert tuple(TASKS) == TASK_NAMES


def test_groups_are_scored_alone(run):
    *_, last = run.log.records("evaluation")
    assert {"answer_f1 begin", "answer_f1 end"} <= last.keys()
    mean = (last["answer_f1 begin"] + last["answer_f1 end"]) / 2
    assert last["answer_f1"] == pytest.approx(mean)


def test_several_references_count(folder):
    import sacrebleu

    records = [TextRecord("", "a b c d", ("a b c e",)), TextRecord("", "x y z w")]
    task = text_task_of("translation")(small_config(folder), ())
    task.tokenizers = (None, type("Same", (), {"plain": staticmethod(str)}))
    outputs, references = task.texts(Evaluation(records, ["a b c e", "x y z v"], {}))
    assert references == [["a b c d", "a b c e"], "x y z w"]
    expected = sacrebleu.corpus_bleu(outputs, [["a b c d", "x y z w"], ["a b c e", None]])
    assert bleu(outputs, references).value == pytest.approx(expected.score)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_every_task_is_trained_and_scored(tmp_path, task):
    """Scores of outputs that are right are 100."""
    write(tmp_path)
    if task == "trees":
        text = '{"kind": "a", "question": "b", "article": "c", "answer": "(S (N c))"}\n'
        for split in ("train", "validation", "test"):
            (tmp_path / f"{split}.jsonl").write_text(text * 20)
    run = run_of(tmp_path, task=task)
    assert type(run.task) is text_task_of(task)
    outputs = ["(S (N a))", "(S (N b))"]
    scores = run.task.scores(Evaluation([TextRecord("", text) for text in outputs], outputs, {}))
    assert next(iter(scores)) == run.task.criterion
    if task not in ("translation", "label-sets"):  # BLEU needs four words, and these are no labels
        assert {score.value for score in scores.values()} <= {100, 0} if task == "summaries" else {100}


@pytest.mark.parametrize("task", ["trees", "label-sets"])
def test_a_parallel_decoder_is_refused_before_training(task):
    model = options_of("nonautoregressive").model()
    config = dataclasses.replace(
        PRESETS["tiny"], system="nonautoregressive", model=model, data=DataConfig(task=task)
    )
    system, task_type = system_of(config), text_task_of(task)
    with pytest.raises(UserError, match=f"--data.task {task}: it needs a model that writes token by token"):
        system.check_search(task_type(config, ()), config.decoding)


def test_every_output_is_a_tree_or_a_set(tmp_path):
    """Of the first model of a training, which knows nothing: over the words of the source; none twice."""
    from transformer.data.trees import read_tree

    for name, steps in (("parsing", 2), ("multi-label", 2)):
        config = PRESETS[name]
        config = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, num_layers=1, d_model=16, d_ff=16),
            data=dataclasses.replace(config.data, built_in_size=300, cache_dir=tmp_path),
            training=dataclasses.replace(
                config.training, steps=steps, evaluate_every=1, evaluate_sentences=4
            ),
        )
        run = Run(train(config, tmp_path / name, watch=quiet()))
        records = list(open_corpus(run.config.data).splits["validation"])[:20]
        outputs = Translator.load(run.path).translate([record.source for record in records])
        for record, output in zip(records, outputs, strict=True):
            if name == "parsing":
                assert len(list(read_tree(output).words())) == len(record.source.split())
            else:
                labels = run.task.labels_of(output)
                assert len(set(labels) & set(run.task.labels)) == sum(x in run.task.labels for x in labels)


def test_labels_are_those_of_the_training_text(tmp_path):
    write(tmp_path)
    run = run_of(tmp_path, task="labels")
    assert run.task.labels == tuple(sorted({row["answer"] for row in rows(0, 200)}))
    (run.path / "labels.json").write_text("{}")
    with pytest.raises(UserError, match=r"labels.json is damaged: 'labels'"):
        _ = Run(run.path).task


# --- choices ---


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    write(folder)
    return run_of(folder, task="labels")


def test_probabilities_of_choices_are_forced_scores(classifier):
    """Of each label alone, divided by their sum; whatever else is in the batch."""
    translator = Translator.load(classifier.path)
    sources = ["begin: question: first article: red cat", "end: question: last article: dog"]
    labels = ["cat", "red dog", "sleeps"]
    log_p = [[translator.score([source], [label])[0] for label in labels] for source in sources]
    for source, scores, chosen in zip(sources, log_p, translator.choices(sources, labels), strict=True):
        expected = np.exp(scores) / np.exp(scores).sum()
        assert [chosen[label] for label in labels] == pytest.approx(expected, abs=1e-5)
        assert sum(chosen.values()) == pytest.approx(1)
        assert list(chosen.values()) == sorted(chosen.values(), reverse=True)
        assert translator.choices([source], labels) == [pytest.approx(chosen, abs=1e-6)]
    assert set(translator.choices(sources)[0]) == set(classifier.task.labels)


def test_the_best_temperature_is_that_of_the_draws():
    """Labels are drawn from probabilities; scores that are three times as certain need a temperature of 3."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 1, (20_000, 4))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = (shares.cumsum(axis=1) > random.random((20_000, 1))).argmax(axis=1)
    assert best_temperature(3 * logits, right) == pytest.approx(3, rel=0.05)
    assert best_temperature(logits / 2, right) == pytest.approx(0.5, rel=0.05)


def test_choices_on_the_command_line(classifier, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").write_text("begin: question: first article: red cat\n")
    arguments = [classifier.path, "--input", tmp_path / "in", "--choices"]
    expected = Translator.load(classifier.path).choices(["begin: question: first article: red cat"])[0]
    best = next(iter(expected))
    status, printed = decoded([*arguments, "trained"], monkeypatch, capsys)
    assert (status, printed.out) == (0, f"{best}\n")
    status, printed = decoded([*arguments, "cat", "dog", "--format", "json"], monkeypatch, capsys)
    assert sum(json.loads(printed.out)["choices"].values()) == pytest.approx(1)
    (tmp_path / "right").write_text(f"{best}\n")
    status, printed = decoded([*arguments, "trained", "--reference", tmp_path / "right"], monkeypatch, capsys)
    assert "accuracy = 100.00" in printed.err
    for wrong, message in ((["cat"], "at least two"), (["a", "a"], "one is there twice")):
        status, printed = decoded([*arguments, *wrong], monkeypatch, capsys)
        assert status == 2
        assert message in printed.err


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_system_has_the_task_or_is_refused(name):
    config = dataclasses.replace(PRESETS["sentiment"], system=name)
    if find_system(name).task is text_task_of("translation"):
        assert system_of(config).task is text_task_of("labels")
        return
    with pytest.raises(UserError, match=f"--data.task labels: {name} has a task of its own"):
        system_of(config)


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if name in TEXT_PRESETS])
def test_presets_have_records(name, tmp_path):
    """Of a built-in corpus: named columns become a source and targets, none too long."""
    config = PRESETS[name]
    data = dataclasses.replace(config.data, built_in_size=200, cache_dir=tmp_path)
    task_type = text_task_of(data.task)
    config = dataclasses.replace(config, data=data)
    corpus = open_corpus(data)
    record = next(iter(corpus.splits["train"]))
    assert record.target
    if len(data.inputs) > 1:
        assert record.source.startswith(f"{data.inputs[0]}: ")
    if config.data.tokenizer == "word":
        task = task_type.create(config, corpus)
        lengths = [[*map(len, example.values())] for example in task.examples(list(corpus.splits["train"]))]
        assert (np.max(lengths, axis=0) <= task.batching().buckets[-1]).all()


# --- lengths ---


def test_targets_may_be_shorter(folder):
    task = text_task_of("answers")(
        dataclasses.replace(small_config(folder), data=data_of(folder, max_target_length=4)), ()
    )
    assert all(target == min(source, 4) for source, target in task.batching().buckets)


def test_long_sources_are_cut(folder):
    config = dataclasses.replace(
        small_config(folder),
        data=data_of(folder, task="answers", max_length=8, buckets=(8,), long_sources="cut"),
    )
    corpus = open_corpus(config.data)
    task = text_task_of("answers").create(config, corpus)
    examples = task.stored_examples(list(corpus.splits["train"])[:20])
    assert max(len(example["source"]) for example in examples) == 8
    assert {example["source"][-1] for example in examples} == {task.special.eos}


# --- decoding ---


def decoded(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["decode.py", *map(str, arguments)])
    status = decode_main()
    return status, capsys.readouterr()


def test_named_inputs_are_read(run, tmp_path, monkeypatch, capsys):
    """From JSON, columns and mappings: the same text, so the same output."""
    row = {"kind": "end", "question": "last", "article": f"{WORDS[0]} {WORDS[1]}"}
    text = f"end: question: last article: {WORDS[0]} {WORDS[1]}"
    translator = Translator.load(run.path)
    expected = translator.translate(text)
    assert translator.translate(row) == expected
    assert translator.translate([row, text]) == [expected] * 2
    forms = {"--jsonl": json.dumps(row), "--tsv": "\t".join(row.values())}
    for option, line in forms.items():
        (tmp_path / "in").write_text(f"{line}\n")
        status, printed = decoded([run.path, option, "--input", tmp_path / "in"], monkeypatch, capsys)
        assert (status, printed.err) == (0, printed.err)
        assert (status, printed.out) == (0, f"{expected}\n")
    with pytest.raises(UserError, match="question is missing: this model reads kind and"):
        translator.translate([{"kind": "end"}])


@pytest.fixture(scope="module")
def lengths_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lengths")
    write(folder)
    return run_of(folder, task="summaries", inputs=("target-length", "article"), target=("answer",), group="")


def test_the_length_of_a_target_is_read(tmp_path):
    """Without a column of this name it is counted in words; a column of this name is read as it is."""
    rows = [{"text": "a b c", "short": ["x y", "z"]}, {"text": "d", "short": "x", "target-length": 7}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=tmp_path / "t.jsonl", inputs=("target-length", "text"), target=("short",))
    sources = [record.source for record in read_table(data.train, data)]
    assert sources == ["target-length: 2 text: a b c", "target-length: 7 text: d"]


def test_the_length_of_an_output_is_asked_for(lengths_run, tmp_path, monkeypatch, capsys):
    """By an option, by a field of a line, or in a mapping; all give the model the same text."""

    def read(lines, *more):
        (tmp_path / "in").write_text(lines)
        options = [lengths_run.path, "--format", "json", "--input", tmp_path / "in", *more]
        status, printed = decoded(options, monkeypatch, capsys)
        assert status == 0
        return [json.loads(line)["source"] for line in printed.out.splitlines()]

    words = " ".join(WORDS[:2])
    whole = f"target-length: 2 article: {words}"
    assert read(f"{words}\n{whole}\n", "--target-length", 2) == [whole, whole]
    lines = [{"article": words}, {"article": words, "target-length": 3}]
    jsonl = "".join(json.dumps(line) + "\n" for line in lines)
    assert read(jsonl, "--target-length", 2, "--jsonl") == [whole, whole.replace("2", "3")]
    translator = Translator.load(lengths_run.path)
    mapping = {"target-length": 2, "article": words}
    assert translator.translate([mapping]) == translator.translate([whole])


@pytest.mark.parametrize(
    ("lines", "options", "complaint"),
    [
        ("a b\n", [], "begin with target-length: "),
        ('{"article": "a b"}\n', ["--jsonl"], "target-length is missing: .*--target-length 12"),
        ("a b\n", ["--target-length", -1], "must be a number of words"),
    ],
)
def test_a_missing_length_is_refused(lengths_run, tmp_path, monkeypatch, capsys, lines, options, complaint):
    (tmp_path / "in").write_text(lines)
    status, printed = decoded([lengths_run.path, "--input", tmp_path / "in", *options], monkeypatch, capsys)
    assert status == 2
    assert re.search(complaint, printed.err)


def test_a_model_that_reads_no_length_refuses_one(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").write_text("")
    options = [run.path, "--target-length", 3, "--input", tmp_path / "in"]
    status, printed = decoded(options, monkeypatch, capsys)
    assert status == 2
    assert "this model reads kind and question and article" in printed.err


def test_a_conversation(tmp_path, monkeypatch, capsys):
    """Each line is read after the earlier turns: lines and answers. An empty line begins anew."""
    config = small_config(tmp_path)
    path = train(config, tmp_path / "run", watch=quiet())
    translator = Translator.load(path)
    lines = ["red cat", "dog", "bird", "", "blue dog"]
    turns, expected = [], []
    for line in lines:
        if not line:
            turns, answer = [], ""
        else:
            answer = translator.translate(" <turn> ".join([*turns, line]))
            turns = [*turns, line, answer][-3:]
        expected.append(answer)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
    arguments = [path, "--input", tmp_path / "in", "--history"]
    status, printed = decoded([*arguments, "3"], monkeypatch, capsys)
    assert (status, printed.out.splitlines()) == (0, expected)
    status, printed = decoded([*arguments, "3", "--tsv"], monkeypatch, capsys)
    assert status == 2
    assert "--history: leave out --tsv" in printed.err


def test_several_files_of_references(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").write_text("end: question: last article: a\n" * 2)
    (tmp_path / "one").write_text("a\n\n")
    (tmp_path / "two").write_text("b\nc\n")
    arguments = [run.path, "--input", tmp_path / "in", "--reference", tmp_path / "one", tmp_path / "two"]
    status, printed = decoded(arguments, monkeypatch, capsys)
    assert status == 0
    assert "F1 = " in printed.err
    assert "exact match = " in printed.err
    (tmp_path / "two").write_text("b\n")
    status, printed = decoded(arguments, monkeypatch, capsys)
    assert status == 2
    assert "two has 1" in printed.err


# --- a task of one's own ---

PROGRAM = """
import dataclasses, sys
import dates
from transformer import PRESETS, Run, Translator, train
config = PRESETS["dates"]
config = dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, num_layers=1, d_model=16, d_ff=16),
    data=dataclasses.replace(config.data, cache_dir="cache"),
    training=dataclasses.replace(config.training, steps=4, evaluate_every=2, evaluate_sentences=8),
)
train(config, "run")
assert {metric.name for metric in Run("run").task.measures()} == {"digits"}
print(len(Translator.load("run").translate(["Monday, May 3, 1999"])))
"""


def test_the_task_of_the_page(tmp_path):
    """It has less than 60 lines, and is trained and decoded from outside the package."""
    page = (Path(__file__).parents[1] / "docs" / "text-tasks.md").read_text(encoding="utf-8")
    (program,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "register(" in block
    ]
    assert len(program.splitlines()) < 60
    (tmp_path / "dates.py").write_text(program)
    path = f"{tmp_path}{os.pathsep}{Path(__file__).parents[1]}"
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "1"
    assert "digits right" in ran.stdout
