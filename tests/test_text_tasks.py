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
from small_run import quiet, small_config
from text_tables import data_of, rows, run_of, write

from transformer import PRESETS, Config, DataConfig, Run, Translator
from transformer.data.sources.corpora import open_corpus
from transformer.data.sources.tables import read_table
from transformer.data.store import Corpus, TextRecord
from transformer.data.trees import with_words
from transformer.runtime.errors import UserError
from transformer.systems.registry import REGISTRY, find_system, options_of, system_of
from transformer.systems.transformer.options import TEXT_PRESETS
from transformer.tasks.metrics.scores import bleu
from transformer.tasks.task import Evaluation
from transformer.tasks.texts import TASKS, text_task_of
from transformer.trainer.train import train

TASK_NAMES = DataConfig.__annotations__["task"].__args__


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
    """Trees over several lines; traces, functions and the outermost bracket are left out. One with several
    parts has a label, and chains of single parts stay."""
    path = tmp_path / "a.mrg"
    path.write_text(
        "\n( (S\n    (NP-SBJ-1 (DT a) (NN dog) )\n    (VP (VBZ is) (VP (VBN seen) (NP (-NONE- *-1) )))\n"
        " (. .) ))\n( (NP=2 (-NONE- *) ))\n(X (-LRB- -LRB-) (NN b))\n( (NP (X (X (NN b)))) (. .) )\n"
    )
    data = DataConfig(task="trees", train=path)
    assert list(read_table(path, data)) == [
        TextRecord(
            "a dog is seen .", "(S (NP (DT a ) (NN dog ) ) (VP (VBZ is ) (VP (VBN seen ) ) ) (. . ) )"
        ),
        TextRecord("-LRB- b", "(X (-LRB- -LRB- ) (NN b ) )"),
        TextRecord("b .", "(TOP (NP (X (X (NN b ) ) ) ) (. . ) )"),
    ]
    path.write_text("(S (N a))\n\n(S (N b)\n")
    with pytest.raises(UserError, match=r"a.mrg, line 3: a bracket is not closed"):
        list(read_table(path, data))


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("(S (A <unk> ) (B x ) )", ["a", "b"], "(S (A a ) (B b ) )"),
        ("(S (A <unk> ) )", ["f(x)"], "(S (A f-LRB-x-RRB- ) )"),
        ("(S (A <unk> ) (B x ) )", ["a"], "(S (A <unk> ) (B x ) )"),
        ("", [], ""),
    ],
)
def test_a_tree_with_other_words(text, words, expected):
    assert with_words(text, words) == expected


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
        ("a.txt", "", "its name must end with .jsonl, .tsv, "),
        ("a.jsonl", "[1]\n", "line 1: each line must be a JSON object"),
        ("a.jsonl", '{"a": "x"}\n', "line 1: b is missing: there is only"),
        ("a.jsonl", '{"a": "x", "b": null}\n', "line 1: b must be text, not null"),
        ("a.jsonl", '{"a": "x", "b": ["y", {}]}\n', "line 1: b must be text, not {}"),
        ("a.jsonl", '{"a": true, "b": "y"}\n', "line 1: a must be text, not true"),
        ("a.jsonl", '{"a": "x", "b": []}\n', "line 1: b is an empty list: give at least one text"),
        ("a.tsv", "a\tb\nx\n", "line 2: 1 column, but line 1 names 2"),
        ("a.tsv", "a\ta\nx\ty\n", "line 1: two columns have the same name"),
        ("a.tsv", "a\tc\nx\ty\n", "line 2: b is missing: there is only 'a, c'"),
        ("a.tsv", "a,b\nx,y\n", "only 'a,b'; this model reads a (columns have tabs between them)"),
    ],
)
def test_a_wrong_table(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as error:
        list(read_table(path, DataConfig(train=path, inputs=("a",), target=("b",))))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("task", "targets", "message"),
    [
        ("trees", ["(NP (DT a) (NN dog))"], "line 1: the words of target are not those of source: 'a dog'"),
        ("labels", ["b", ""], "line 2: target is empty: a text needs a label"),
    ],
)
def test_a_wrong_target(tmp_path, task, targets, message):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"source": "a cat", "target": "{target}"}}\n' for target in targets))
    with pytest.raises(UserError, match=message):
        list(read_table(path, DataConfig(train=path, task=task)))


def test_a_line_without_its_label(tmp_path):
    """A line that is empty on both sides is none."""
    records = [("a cat", "x"), ("", ""), ("a dog", "y"), ("a bird", " ")]
    task = text_task_of("labels").without_corpus(
        dataclasses.replace(Config(), data=DataConfig(task="labels"))
    )
    task.learn(Corpus("texts", {"train": records[:3]}, tmp_path))
    assert task.labels == ("x", "y")
    with pytest.raises(UserError, match="--data.task labels: the text 'a bird' has no label"):
        task.learn(Corpus("texts", {"train": records}, tmp_path))


@pytest.mark.parametrize("further", [("misspelt",), ("others", "misspelt")])
def test_references_that_no_row_has(folder, further):
    with pytest.raises(UserError, match="--data.target: no row has a column misspelt;"):
        open_corpus(data_of(folder, target=("answer", *further)))


def test_labels_of_the_validation_that_no_training_text_has(tmp_path):
    folder = tmp_path
    write(folder)
    config = dataclasses.replace(small_config(folder), data=data_of(folder, task="labels"))
    with (folder / "validation.jsonl").open("a") as file:
        row = next(rows(1, 1))
        file.write(json.dumps(row | {"answer": "purple"}) + "\n")
    corpus = open_corpus(config.data)
    task = text_task_of("labels").create(config, corpus)
    task.learn(corpus)
    (note,) = task.decide(corpus)
    assert note == "the training text has no label 'purple', which the validation text has"


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


@pytest.mark.slow
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


@pytest.mark.thorough
@pytest.mark.by_default("labels")
@pytest.mark.parametrize("task", TASK_NAMES)
def test_every_task_is_trained_and_scored(tmp_path, task):
    """Scores of outputs that are right are 100."""
    write(tmp_path)
    if task == "trees":
        text = (
            '{"kind": "a", "question": "b", "article": "c", "answer": "(S (N c))", "others": ["(S (A c))"]}\n'
        )
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_labels_are_those_of_the_training_text(tmp_path):
    write(tmp_path)
    run = run_of(tmp_path, task="labels")
    assert run.task.labels == tuple(sorted({row["answer"] for row in rows(0, 200)}))
    (run.path / "labels.json").write_text("{}")
    with pytest.raises(UserError, match=r"labels.json is damaged: labels must be a list of texts; copy it"):
        _ = Run(run.path).task


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_system_has_the_task_or_is_refused(name):
    config = dataclasses.replace(PRESETS["sentiment"], system=name)
    if find_system(name).task is text_task_of("translation"):
        assert system_of(config).task is text_task_of("labels")
        return
    with pytest.raises(UserError, match=f"--data.task labels: {name} has a task of its own"):
        system_of(config)


@pytest.mark.by_default("sentiment")
@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if name in TEXT_PRESETS])
def test_presets_have_records(name, tmp_path):
    """Of a built-in corpus: named columns become a source and targets, none too long."""
    config = PRESETS[name]
    data = dataclasses.replace(config.data, built_in_size=200, cache_dir=tmp_path)
    task_type = text_task_of(data.task)
    config = dataclasses.replace(config, data=data)
    corpus = open_corpus(data)
    source, target, *_ = next(iter(corpus.splits["train"]))
    assert target
    if len(data.inputs) > 1:
        assert source.startswith(f"{data.inputs[0]}: ")
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


@pytest.mark.slow
def test_the_task_of_the_page(tmp_path):
    """It has less than 60 lines, and is trained and decoded from outside the package."""
    page = (Path(__file__).parents[1] / "docs" / "own-task.md").read_text(encoding="utf-8")
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
