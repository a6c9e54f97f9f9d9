"""The page of a run says what the run's files say, and nothing in them can break it."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from transformer import Run, UserError
from transformer.cli.guard import guarded
from transformer.report import write_report
from transformer.report.__main__ import command
from transformer.report.charts import bar_chart, line_chart


class Balanced(HTMLParser):
    """Fails where a page's elements are not closed in order; collects them and the text."""

    EMPTY = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_data(self, data):
        self.text += data


def parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def run_dir(finished, tmp_path_factory):
    return Path(shutil.copytree(finished, tmp_path_factory.mktemp("runs") / finished.name))


def test_training_writes_it_and_it_tells_what_was_logged(run_dir):
    page = parsed((run_dir / "report.html").read_text())
    results = json.loads((run_dir / "results.json").read_text())
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert results["bleu"]["signature"] in page.text
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    for source, reference, translation in evaluations[-1]["samples"]:
        assert all(text in page.text for text in (source, reference, translation))
    for record in evaluations:
        assert f"BLEU at step {record['step']}: {record['bleu']:.4g}" in page.text
    (start,) = [record for record in records if record["kind"] == "start"]
    assert start["data"]["padding"] in page.text
    assert sum(start["data"]["lengths"]["source"].values()) == 200
    assert start["versions"] in page.text
    assert "model.d_model" in page.text
    assert not {"script", "link", "img"} & set(page.seen)  # nothing is run or fetched


def test_it_is_written_again_from_the_files_alone(run_dir, capsys, monkeypatch):
    before = (run_dir / "report.html").read_text()
    (run_dir / "report.html").unlink()
    command([str(run_dir)])
    assert (run_dir / "report.html").read_text() == before
    assert f"Written to {run_dir / 'report.html'}" in capsys.readouterr().out
    for arguments, status in (([], 2), (["--help"], 0), (["nowhere"], 2)):
        monkeypatch.setattr(sys, "argv", ["report", *arguments])
        assert guarded("report", command) == status


def test_hostile_text_and_torn_lines(run_dir, tmp_path):
    config = Run(run_dir).config
    run = Run.create(tmp_path / "</title><script>", config, Run(run_dir).tokenizers)
    with pytest.raises(UserError, match="no metrics yet"):
        write_report(run.path)
    hostile = "<script>alert(1)</script>&\"'"
    record = {"kind": "evaluation", "step": 3, "bleu": 1.5, "nll": 2.0, "samples": [[hostile] * 3]}
    (run.path / "metrics.jsonl").write_text(json.dumps(record) + '\n{"kind": "tra')
    page = parsed(write_report(run.path).read_text())
    assert "script" not in page.seen
    assert page.text.count(hostile) == 3


STRANGE = [
    ("metrics.jsonl", '{"kind": "training"}'),
    ("metrics.jsonl", '{"kind": "start", "step": 3}'),
    ("metrics.jsonl", '{"kind": ["x"], "step": 3}'),
    ("metrics.jsonl", '{"kind": "training", "step": 3, "nll": NaN, "tokens_per_second": Infinity}'),
    ("metrics.jsonl", '{"kind": "evaluation", "step": 3, "samples": ["a"]}'),
    ("results.json", "{"),
    ("results.json", "{}"),
    ("results.json", '{"bleu": {"value": "x"}}'),
]


@pytest.mark.parametrize(("name", "line"), STRANGE)
def test_what_others_wrote_is_left_out(run_dir, tmp_path, name, line):
    run = Path(shutil.copytree(run_dir, tmp_path / "run"))
    with open(run / name, "a" if name == "metrics.jsonl" else "w") as file:
        file.write(line + "\n")
    page = parsed(write_report(run).read_text())
    assert "nan" not in page.text.lower().split()
    assert "BLEU at step 12" in page.text


def test_charts_are_to_scale():
    chart = line_chart("x", {"one": [(0, 0.0), (50, 5.0), (100, 10.0)]})
    (way,) = re.findall(r'd="M([^"]*)"', chart)
    (x0, y0), (x1, y1), (x2, y2) = ([float(c) for c in point.split(",")] for point in way.split())
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    assert y0 > y2
    bars = bar_chart("lengths", {"8": 10, "16": 5, "more": 0})
    heights = [float(height) for height in re.findall(r'height="([\d.]+)"><title>', bars)]
    assert heights[0] == 2 * heights[1]
    assert heights[2] == 0
    line_chart("flat", {"zero": [(0, 0.0)]})
