"""Tables of labels in the report: which are confused, and the scores of each."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from small_run import quiet
from test_exhibits import Elements
from test_text_tasks import run_of, write
from toy_runs import tagged_config

from transformer import Run
from transformer.runs.exhibits import OVERVIEW, exhibit_as_json, read_exhibits, write_exhibits
from transformer.runs.report.exhibits import overview_of
from transformer.runs.report.page import REPORT
from transformer.tasks.exhibit import ReportSample, Table
from transformer.tasks.texts.labels import MOST_CONFUSED, confusion_table, scores_of_labels
from transformer.trainer.train import train


def as_counts(table):
    """The cells by row and column."""
    assert {len(row) for row in table.rows} == {len(table.head)}
    counts = {
        (name, column): int(cell.replace(",", "") or 0)
        for name, *cells in table.rows
        for column, cell in zip(table.head[1:], cells, strict=True)
    }
    numbers = np.array([int(cell.replace(",", "") or 0) for row in table.rows for cell in row[1:]])
    numbers = numbers.reshape(len(table.rows), -1)
    shares = numbers / numbers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.array(table.shades), shares**0.5, atol=5e-4)
    return counts


def test_confusion_has_every_pair():
    chance = random.Random(0)
    labels = [*"abcd"]
    references = chance.choices(labels, k=200)
    outputs = chance.choices([*labels, "", "z"], k=200)
    counts = as_counts(confusion_table(outputs, references, labels))
    expected = Counter(
        (label, output if output in labels else "no label")
        for label, output in zip(references, outputs, strict=True)
    )
    assert Counter({pair: count for pair, count in counts.items() if count}) == expected


def test_what_does_not_occur_has_no_column():
    table = confusion_table(["b", "b", "a"], ["b", "b", "b"], ["a", "b", "c"])
    assert table.head == ("", "b", "others (2)")  # a was output
    assert table.rows == (("b", "2", "1"),)
    assert confusion_table(["b"], ["b"], ["b"]).head == ("", "b")


def test_rare_labels_are_counted_together():
    references = [f"{index:02}" for index in range(40) for _ in range(50 - index)]
    outputs = [label if index % 3 else "39" for index, label in enumerate(references)]
    table = confusion_table(outputs, references, ["never"])
    counts = as_counts(table)
    frequent = [f"{index:02}" for index in range(MOST_CONFUSED)]
    others = "others (17)"
    assert [name for name, *_ in table.rows] == [*frequent, others] == list(table.head[1:])
    assert sum(counts.values()) == len(references)
    assert counts["00", "00"] + counts["00", others] == 50
    assert counts[others, others] == sum(50 - index for index in range(MOST_CONFUSED, 40))


def test_scores_of_each_label_are_those_of_a_loop():
    chance = random.Random(1)
    sets = [[set(chance.sample("abcd", chance.randint(0, 3))) for _ in range(50)] for _ in range(2)]
    outputs, references = sets
    outputs[0] |= {"nonsense"}
    table = scores_of_labels(outputs, references, ["e", *"abcd"])
    assert "no label of the training text: 1." in table.caption
    rows = {name: cells for name, *cells in table.rows}
    assert set(rows) == set("abcde")
    for label, (expected, output, precision, recall, f1) in rows.items():
        right = sum(label in a and label in b for a, b in zip(*sets, strict=True))
        counts = [sum(label in some for some in side) for side in (references, outputs)]
        assert [int(expected), int(output)] == counts
        assert float(precision) == pytest.approx(100 * right / max(counts[1], 1), abs=0.05)
        assert float(recall) == pytest.approx(100 * right / max(counts[0], 1), abs=0.05)
        assert float(f1) == pytest.approx(200 * right / max(sum(counts), 1), abs=0.05)
    sizes = [int(row[1]) for row in table.rows]
    assert sizes == sorted(sizes, reverse=True)
    many = scores_of_labels(["0"], ["1"], list(map(str, range(200))))
    assert "The 100 most frequent of 200 labels." in many.caption
    assert (len(many.rows), many.rows[0][0]) == (100, "1")


def test_tables_are_stored_and_shown(tmp_path):
    assert overview_of(tmp_path) == ""
    hostile = "</td><script>"
    table = Table(hostile, ("", hostile), ((hostile, "3"), ("b", hostile)), ((1.0,), (0.05,)))
    stored = exhibit_as_json(ReportSample("title", {}, tables=(table,)))
    write_exhibits(tmp_path, 1, [stored], OVERVIEW)
    page = overview_of(tmp_path)
    seen = Elements(page)
    assert [tag for tag, _ in seen.seen].count("script") == 0
    assert seen.text.count(hostile) == 4
    assert [attributes["class"] for tag, attributes in seen.seen if tag == "td"] == ["s9", "s0"]
    stored = json.loads(json.dumps(stored))
    for spoilt in ({"shades": [[2]]}, {"shades": [["1"]]}, {"rows": [[1]]}, {"head": None}, {"caption": 1}):
        tables = [{**stored["tables"][0], **spoilt}]
        write_exhibits(tmp_path, 1, [{**stored, "tables": tables}], OVERVIEW)
        assert read_exhibits(tmp_path, OVERVIEW) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["labels", "label-sets"])
def test_the_report_has_tables_of_the_test(tmp_path, task):
    write(tmp_path)
    run = run_of(tmp_path, task=task)
    step, (exhibit,) = read_exhibits(run.path, OVERVIEW)
    assert step == run.checkpoints.best()
    assert exhibit["title"] == "test, 12 pairs"
    page = (run.path / REPORT).read_text()
    confused = [table for table in exhibit["tables"] if table["shades"]]
    scores = [table for table in exhibit["tables"] if not table["shades"]]
    assert len(confused) == (task == "labels")
    assert page.count('<table class="counts">') == len(confused)
    assert page.count('<table class="numbers">') == len(scores) == 1
    for table in confused:
        assert sum(int(cell or 0) for row in table["rows"] for cell in row[1:]) == 12


@pytest.mark.slow
def test_the_report_of_a_tagger_has_them_too(tmp_path):
    run = Run(train(tagged_config(tmp_path, "one"), tmp_path / "run", watch=quiet()))
    _, (exhibit,) = read_exhibits(run.path, OVERVIEW)
    confused, scores = exhibit["tables"]
    assert {row[0] for row in confused["rows"]} <= set(run.task.labels)
    assert {row[0] for row in scores["rows"]} == set(run.task.labels)
    total = sum(int(cell or 0) for row in confused["rows"] for cell in row[1:])
    assert total == sum(int(row[1]) for row in scores["rows"]) > 0
