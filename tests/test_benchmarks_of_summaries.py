"""The study of summaries, with a model of a few updates."""

import json

import pytest
from text_tables import run_of, write

from benchmarks.measure import table
from benchmarks.studies import summaries
from transformer import UserError
from transformer.data.store import TextRecord

INPUTS = {"inputs": ("target-length", "article"), "target": ("answer", "others"), "group": ""}


@pytest.mark.slow
def test_runs_are_compared_with_the_first_sentence(tmp_path, capsys):
    write(tmp_path)
    run = run_of(tmp_path, task="summaries", **INPUTS)
    words = [str(tmp_path / "work"), str(run.path), "--lengths", "2"]
    summaries.main(words)
    rows = json.loads((tmp_path / "work" / "summaries.json").read_text())["rows"]
    assert list(rows) == ["first sentence", "run", "run-2"]
    scores = json.loads((run.path / "results.json").read_text())
    for kind in summaries.KINDS:
        assert rows["run"][f"ROUGE-{kind}"] == pytest.approx(scores[f"rouge_{kind.lower()}"]["value"])
    assert rows["first sentence"]["of the text"] == 100
    assert "as long as asked" not in rows["first sentence"]
    printed = capsys.readouterr().out
    summaries.main(words)
    assert capsys.readouterr().out == printed


def test_every_text_is_asked_for_as_many_words():
    records = [TextRecord("target-length: 12 text: target-length: 3 ", "a"), TextRecord("no length", "b")]
    sources = [record.source for record in summaries.asking_for(7, records)]
    assert sources == ["target-length: 7 text: target-length: 3 ", "no length"]


def test_the_table_has_intervals_beside_their_values():
    rows = {"one": {"F1": 1.25, "± F1": 0.5, "words": 3.0}, "two": {"words": 4.0, "exact": 5.0}}
    assert table(rows).splitlines() == [
        "| | F1 | words | exact |",
        "|---|---|---|---|",
        "| one | 1.2 ± 0.5 | 3.0 |  |",
        "| two |  | 4.0 | 5.0 |",
    ]


def test_lengths_and_words_are_counted():
    texts = ("target-length: 2 text: a b c", "a b"), ("target-length: 3 text: a b", "x y")
    scores = summaries.row([TextRecord(*text) for text in texts], ["A d", "b e"])
    assert (scores["words"], scores["of the text"]) == (2, 50)
    assert (scores["as long as asked"], scores["one word off"]) == (50, 50)
    assert scores["ROUGE-1"] == pytest.approx(25)  # half of one, none of the other


@pytest.mark.slow
def test_other_runs_are_refused(finished, tmp_path):
    with pytest.raises(UserError, match="writes no summaries: train it with --data.task summaries"):
        summaries.main([str(tmp_path), str(finished)])
