"""Lines of input for tasks of text: named inputs, lengths, turns, labels to choose from, references."""

import json
import re
from types import SimpleNamespace

import jaxtyping
import numpy as np
import pytest
from small_run import WORDS
from text_tables import drawn_run_of, rows, write

from transformer import DataConfig, Translator
from transformer.cli.request_lines import request_of
from transformer.commands.decode import decode_main
from transformer.data.sources.tables import read_table
from transformer.runtime.errors import UserError
from transformer.translator.choices import best_temperature, probabilities


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write(folder)
    return drawn_run_of(folder, task="answers")


@pytest.mark.slow
def test_named_inputs_are_read(run, tmp_path, decode):
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
        status, out, _ = decode(run.path, option, "--input", tmp_path / "in")
        assert (status, out) == (0, f"{expected}\n")
    with pytest.raises(UserError, match="question is missing: there is only 'kind'; this model"):
        translator.translate([{"kind": "end"}])


@pytest.fixture(scope="module")
def lengths_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lengths")
    write(folder)
    return drawn_run_of(
        folder, task="summaries", inputs=("target-length", "article"), target=("answer",), group=""
    )


def test_the_length_of_a_target_is_read(tmp_path):
    """Without a column of this name it is counted in words; a column of this name is read as it is."""
    rows = [{"text": "a b c", "short": ["x y", "z"]}, {"text": "d", "short": "x", "target-length": 7}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(train=tmp_path / "t.jsonl", inputs=("target-length", "text"), target=("short",))
    sources = [record.source for record in read_table(data.train, data)]
    assert sources == ["target-length: 2 text: a b c", "target-length: 7 text: d"]


@pytest.mark.slow
def test_the_length_of_an_output_is_asked_for(lengths_run, tmp_path, decode):
    """By an option, by a field of a line, or in a mapping; all give the model the same text."""

    def read(lines, *more):
        (tmp_path / "in").write_text(lines)
        options = [lengths_run.path, "--format", "json", "--input", tmp_path / "in", *more]
        status, out, _ = decode(*options)
        assert status == 0
        return [json.loads(line)["source"] for line in out.splitlines()]

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
def test_a_missing_length_is_refused(lengths_run, tmp_path, lines, options, complaint, decode):
    (tmp_path / "in").write_text(lines)
    status, _, err = decode(lengths_run.path, "--input", tmp_path / "in", *options)
    assert status == 2
    assert re.search(complaint, err)


def test_a_model_that_reads_no_length_refuses_one(run, tmp_path, refused):
    (tmp_path / "in").write_text("")
    options = [run.path, "--target-length", 3, "--input", tmp_path / "in"]
    assert "this model reads kind and question and article" in refused(decode_main, *options)


def conversations(folder):
    """A run that reads several turns."""
    for split in ("train", "validation", "test"):
        turns = [{"turns": [*WORDS[:3], word], "reply": word} for word in WORDS]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in turns))
    return drawn_run_of(folder, inputs=("turns",), target=("reply",), group="")


@pytest.mark.slow
def test_a_conversation(tmp_path, decode, refused):
    """Each line is read after the earlier turns: lines and answers. An empty line begins anew."""
    path = conversations(tmp_path).path
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
    status, out, err = decode(*arguments, "3")
    assert (status, out.splitlines()) == (0, expected)
    err = refused(decode_main, *arguments, "3", "--keep", "cat")
    assert "--keep: with --history each line is a turn of one conversation; leave it out" in err


def test_probabilities_without_choices(run, tmp_path, refused):
    (tmp_path / "in").write_text("red cat\n")
    asked = [run.path, "--input", tmp_path / "in", "--temperature-of-choices", 2]
    assert "--temperature-of-choices needs --choices" in refused(decode_main, *asked)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "is missing"),
        ('{"source": null}', "must be text, not null"),
        ('{"prefix": "red"}', "is missing"),
    ],
)
def test_an_object_has_a_source(line, message):
    arguments = SimpleNamespace(jsonl=True, tsv=False, target_length=0)
    with pytest.raises(UserError, match=f"line 7: source {message}"):
        request_of(7, line, arguments, DataConfig())
    assert request_of(7, '{"source": ""}', arguments, DataConfig()).source == ""


def test_a_model_without_turns_has_no_history(run, tmp_path, refused):
    (tmp_path / "in").write_text("red cat\n")
    err = refused(decode_main, run.path, "--input", tmp_path / "in", "--history", 2)
    assert "the vocabulary of this model has no <turn>" in err


@pytest.mark.slow
def test_turns_may_be_a_list(tmp_path):
    """As in training."""
    translator = Translator.load(conversations(tmp_path).path)
    expected = translator.search(["red <turn> cat"])
    assert translator.search([{"turns": ["red", "cat"]}]) == expected


@pytest.mark.parametrize(
    ("line", "option", "complaint"),
    [
        (
            '{"kind": "end", "article": "a b"}',
            "--jsonl",
            "question is missing: there is only",
        ),
        (
            '{"kind": "end", "question": null, "article": "a"}',
            "--jsonl",
            "line 1: question must be text",
        ),
        ('{"kind": "end", "question": {}, "article": "a"}', "--jsonl", "line 1: question must be text, not"),
        ("end\tlast", "--tsv", "line 1: article is missing"),
        ("kind\tquestion\tarticle", "--tsv", "line 1: it names the columns, as in training files"),
    ],
)
def test_a_line_without_an_input_is_refused(run, tmp_path, line, option, complaint, refused):
    (tmp_path / "in").write_text(f"{line}\n")
    assert complaint in refused(decode_main, run.path, option, "--input", tmp_path / "in")


def test_a_row_for_training_can_be_decoded(run, tmp_path, decode):
    """Its targets are not read."""
    row = next(rows(1, 1))
    inputs = {name: row[name] for name in ("kind", "question", "article")}
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in (row, inputs)))
    status, out, _ = decode(run.path, "--jsonl", "--input", tmp_path / "in")
    first, second = out.splitlines()
    assert (status, first) == (0, second)


def test_several_files_of_references(run, tmp_path, decode, refused):
    (tmp_path / "in").write_text("end: question: last article: a\n" * 2)
    (tmp_path / "one").write_text("a\n\n")
    (tmp_path / "two").write_text("b\nc\n")
    arguments = [run.path, "--input", tmp_path / "in", "--reference", tmp_path / "one", tmp_path / "two"]
    status, _, err = decode(*arguments)
    assert status == 0
    assert "F1 = " in err
    assert "exact match = " in err
    (tmp_path / "two").write_text("b\n")
    assert "two has 1" in refused(decode_main, *arguments)


# --- choices ---


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    write(folder)
    return drawn_run_of(folder, task="labels")


@pytest.mark.slow
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


@pytest.mark.parametrize("wrong", [0, -1, 5e-324, 9e-4, 1001, 1e400, float("nan"), True, "1", None, 1j])
def test_a_temperature_of_choices_that_is_none(wrong, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users
    with pytest.raises(UserError, match=r"temperature .*: must be from 0.001 to 1,000"):
        probabilities(np.zeros((1, 2)), wrong)


@pytest.mark.parametrize("temperature", [1e-3, 1, np.float32(2), 1000])
def test_choices_are_shares_at_any_temperature(temperature, monkeypatch):
    """Also those of log-probabilities that no output of a model has."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users
    log_p = np.array([[-1e300, -1e300, -1e299], [0, -1e-300, -700]])
    shares = probabilities(log_p, temperature)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares[0].tolist() == [0, 0, 1]


def test_the_best_temperature_is_that_of_the_draws():
    """Labels are drawn from probabilities; scores that are three times as certain need a temperature of 3."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 1, (20_000, 4))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right = (shares.cumsum(axis=1) > random.random((20_000, 1))).argmax(axis=1)
    assert best_temperature(3 * logits, right) == pytest.approx(3, rel=0.05)
    assert best_temperature(logits / 2, right) == pytest.approx(0.5, rel=0.05)


@pytest.mark.thorough
def test_choices_on_the_command_line(classifier, tmp_path, decode, refused):
    (tmp_path / "in").write_text("begin: question: first article: red cat\n")
    arguments = [classifier.path, "--input", tmp_path / "in", "--choices"]
    expected = Translator.load(classifier.path).choices(["begin: question: first article: red cat"])[0]
    best = next(iter(expected))
    status, out, err = decode(*arguments, "trained")
    assert (status, out) == (0, f"{best}\n")
    status, out, err = decode(*arguments, "cat", "dog", "--format", "json")
    assert sum(json.loads(out)["choices"].values()) == pytest.approx(1)
    (tmp_path / "right").write_text(f"{best}\n")
    status, out, err = decode(*arguments, "trained", "--reference", tmp_path / "right")
    assert "accuracy = 100.00" in err
    for wrong, message in (
        (["cat"], "at least two"),
        (["a", "a"], "one is there twice"),
        (["a", ""], "labels 'a', '': one is empty"),
        (["a", "b", "--alignments", "--format", "json"], "--alignments: --choices writes labels and how"),
        (["a", "b", "--rescore", classifier.path], "--rescore: --choices writes labels and how probable"),
        (["a", "b", "--keep", "x"], "--keep: --choices writes labels and how probable"),
        (["a", "b", "--lm", "x"], "--lm: --choices writes labels and how probable"),
        (["a", "b", "--length-penalty", "2"], "--length-penalty: --choices writes labels and how probable"),
        (["a", "b", "--method", "greedy"], "--method: --choices writes labels and how probable"),
    ):
        assert message in refused(decode_main, *arguments, *wrong)
    lines = {"prefix": {"source": "red cat", "prefix": "red"}, "terms": {"source": "cat", "terms": ["cat"]}}
    for field, line in lines.items():
        (tmp_path / "in").write_text(json.dumps(line) + "\n")
        err = refused(decode_main, *arguments, "cat", "dog", "--jsonl")
        assert f"line 1: {field}: --choices searches no text" in err
    warmer = ["--temperature-of-choices", 2]
    for option in ("--document", "--explore"):
        err = refused(decode_main, classifier.path, option, tmp_path / "in", *warmer)
        assert "--temperature-of-choices" in err


def test_labels_that_no_training_text_has_are_named(classifier, tmp_path, caplog, decode, refused):
    (tmp_path / "in").write_text("red cat\n")
    arguments = [classifier.path, "--input", tmp_path / "in", "--choices", "cat", "purple"]
    status, _, _ = decode(*arguments)
    assert status == 0
    assert "--choices: the training text has no label purple" in caplog.text
    assert "--n-best: --choices writes one label" in refused(decode_main, *arguments, "--n-best", 2)


@pytest.mark.slow
def test_an_empty_line_has_no_label(classifier, tmp_path, decode):
    (tmp_path / "in").write_text("\nred cat\n\n")
    arguments = [classifier.path, "--input", tmp_path / "in", "--choices", "trained"]
    status, out, _ = decode(*arguments)
    first, second, third = out.split("\n")[:3]
    assert (status, first, third) == (0, "", "")
    assert second
    status, out, _ = decode(*arguments, "--format", "json")
    assert [len(json.loads(line)["choices"]) > 0 for line in out.splitlines()] == [False, True, False]
