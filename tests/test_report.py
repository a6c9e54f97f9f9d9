"""The page of a run says what the run's files say, and nothing in them can break it."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import test_explorer
from test_explorer import driver  # noqa: F401

from transformer import Run, UserError
from transformer.commands.models import report_main
from transformer.config.options import as_decided, flatten
from transformer.runs.report import write_comparison, write_report
from transformer.runs.report.charts import WIDTH, bar_chart, document, line_chart, log_ticks, table
from transformer.runs.report.logged import Logged, duration, time_spent
from transformer.systems.presets import PRESETS
from transformer.systems.registry import as_option


class Balanced(HTMLParser):
    """Fails where a page's elements are not closed in order; collects them and the text."""

    EMPTY = ("meta", "link")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        addresses = [value for name, value in attrs if name in ("src", "href") and tag != "a"]
        self.fetched += [value for value in addresses if not value.startswith("data:")]
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
    assert "--model.d-model" in page.text
    assert "1 process" in page.text
    assert "process(es)" not in page.text
    first = page.text[: page.text.index("Curves")]  # what the first screen shows
    best = max(evaluations, key=lambda record: (record["bleu"], -record["nll"]))
    for fact in (f"{results['bleu']['value']:.2f}", start["parameters"], start["devices"]):
        assert fact in first
    assert "pairs200" in first  # the languages of these files are unknown
    assert " to de" not in first
    assert f"{best['step']:,} (validation loss, BLEU {best['bleu']:.2f}, first 8 of 12 pairs)" in first
    assert time_spent(records[-1]["spent"]) in first
    assert "script" not in page.seen
    assert page.fetched == []


def test_it_is_written_again_from_the_files_alone(run_dir, call):
    before = (run_dir / "report.html").read_text()
    (run_dir / "report.html").unlink()
    status, out, _ = call(report_main, run_dir)
    assert status == 0
    assert (run_dir / "report.html").read_text() == before
    assert f"Written to {run_dir / 'report.html'}" in out
    for arguments, message in (
        ([], "no run directory"),
        (["nowhere"], "nowhere: no such run directory"),
        ([run_dir, "--output", "page.html"], "--output is for several runs"),
        ([run_dir, run_dir, "--output", "/nowhere/page.html"], "cannot write --output"),
    ):
        status, *shown = call(report_main, *arguments)
        assert status == 2
        assert message in "".join(shown)


def test_options_are_shown_as_differences_from_the_nearest_preset(run_dir):
    page = parsed((run_dir / "report.html").read_text())
    nearest, found = Logged(run_dir).changed()
    stored = Run(run_dir).config
    config, preset = flatten(stored), flatten(as_decided(PRESETS[nearest], stored))
    expected = {name for name in config | preset if config.get(name, "none") != preset.get(name, "none")}
    assert {name for name, *_ in found} == expected - {"model.vocab_size"}
    assert f"Differences from the nearest preset, {nearest}." in page.text
    shown = page.text[page.text.index("Differences from") : page.text.index("All ")]
    assert all(as_option(name) in shown for name, *_ in found)  # to be pasted
    assert "--optimizer.beta1" not in shown
    assert "details" in page.seen


def test_several_runs_side_by_side(run_dir, tmp_path, monkeypatch, call):
    other = Path(shutil.copytree(run_dir, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    before, config["model"]["dropout"] = config["model"]["dropout"], 0.25
    (other / "config.json").write_text(json.dumps(config))
    (other / "results.json").unlink()
    monkeypatch.chdir(tmp_path)
    status, out, _ = call(report_main, run_dir, "other")
    assert status == 0
    assert "Written to comparison.html" in out
    page = parsed((tmp_path / "comparison.html").read_text())
    assert page.text.startswith(f"{run_dir.name} and other")
    options, _, folded = page.text[page.text.index("Options that differ") :].partition("with one value")
    assert f"--model.dropout{before}0.25" in options
    assert "--model.d-model" not in options
    assert f"--model.d-model{config['model']['d_model']}" in folded
    assert page.text.count("validation BLEU, first 8 of 12 pairs by step") == 1
    for name in (run_dir.name, "other"):  # a line of each run in one chart
        assert f"{name} at step" in page.text
    again = Path(shutil.copytree(run_dir, tmp_path / "again" / run_dir.name))
    results = json.loads((again / "results.json").read_text()) | {"split": "validation"}
    (again / "results.json").write_text(json.dumps(results))
    write_comparison([run_dir, run_dir, again], tmp_path / "same.html")
    same = parsed((tmp_path / "same.html").read_text())
    assert "They have the same options." in same.text
    assert same.text.count(f"{run_dir} and {again}") == 2  # in title and heading
    assert "validation BLEU" in same.text[: same.text.index("Curves")]
    lines = {str(number): [(0, 1.0), (9, 1.5)] for number in range(9)}
    assert line_chart("many", lines).count('path class="a') == 2
    assert 'path class="a dashed"' in line_chart("many", lines)


def test_the_best_score_is_bold_equal_rows_are_folded_and_runs_are_linked(run_dir, tmp_path):
    runs = [Path(shutil.copytree(run_dir, tmp_path / name)) for name in ("a run", "b", "c")]
    for run, bleu, error in zip(runs, (1.5, 3.25, 3.25), (20.0, 10.0, None), strict=True):
        results = json.loads((run / "results.json").read_text())
        results["bleu"] |= {"value": bleu}
        results["wer"] = {"title": "WER", "value": error, "higher_is_better": False, "signature": ""}
        (run / "results.json").write_text(json.dumps(results))
    (runs[2] / "report.html").unlink()
    write_comparison(runs, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    results = page[page.index("Results") : page.index("Curves")]
    shown, folded = results.split("<details>")
    bold = re.findall(r"<td><strong>([\d.]+)", shown)
    assert bold == ["3.25", "3.25", "10.00"]  # of two equal ones both; errors are better if lower
    assert "parameters" in folded
    assert "parameters" not in shown
    assert set(re.findall(r'<a href="([^"]*)"', page)) == {"a%20run/report.html", "b/report.html"}
    assert '<th><span class="key b">b</span></th>' in shown


def test_samples_of_compared_runs_are_side_by_side(run_dir, tmp_path):
    runs = [Path(shutil.copytree(run_dir, tmp_path / name)) for name in ("one", "two")]
    for run in runs:
        sample = ["<source>", "a reference", f"the output of {run.name}"]
        record = {"kind": "evaluation", "step": 99, "bleu": 50.0, "nll": 1.0, "samples": [sample]}
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
    write_comparison(runs, tmp_path / "page.html")
    page = parsed((tmp_path / "page.html").read_text())
    samples = page.text[page.text.index("Samples") :]
    assert "<source>referencea referenceonethe output of onetwothe output of two" in samples


def test_a_run_has_one_colour_in_all_charts(run_dir, tmp_path):
    """Also where another run has no line, and a chart of one line says whose it is."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    kept = {"training": "training", "evaluated": "evaluation", "both": ""}
    for name, kind in kept.items():
        shutil.copytree(run_dir, tmp_path / name)
        some = [line for line in lines if not kind or json.loads(line)["kind"] == kind]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(some) + "\n")
    page = tmp_path / "page.html"
    write_comparison([tmp_path / name for name in kept], page)
    head, *figures = page.read_text().split("<figure>")
    colours = dict(zip(kept, "abc", strict=True))
    for name, colour in colours.items():
        assert f'<span class="key {colour}">{name}</span>' in head
    shown = []
    for figure in figures:
        figure = figure[: figure.index("</figure>")]
        keys = dict(re.findall(r'<span class="key (\w)">(\w+)</span>', figure))
        points = set(re.findall(r'<circle class="(\w)".*?<text class="said".*?>(\w+) at step', figure))
        assert {(colours[name], name) for name in keys.values()} == set(keys.items()) == points
        assert set(re.findall(r'<path class="(\w)"', figure)) == set(keys)
        shown.append(tuple(keys.values()))
    assert {("training", "both"), ("evaluated", "both")} <= set(shown)


def test_hostile_text_and_torn_lines(run_dir, tmp_path):
    config = Run(run_dir).config
    run = Run.create(tmp_path / "</title><script>", config, Run(run_dir).task)
    with pytest.raises(UserError, match="no metrics: "):
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


def test_a_chart_has_a_logarithmic_scale_where_it_shows_more():
    chart = line_chart("x", {"one": [(0, 0.1), (50, 1.0), (100, 10.0)]})
    linear, log = chart.split('<g class="log">')
    assert "log scale" in linear
    (way,) = re.findall(r'd="M([^"]*)"', log)
    ys = [float(point.split(",")[1]) for point in way.split()]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    for lines in ([(0, 0.0), (9, 5.0)], [(0, 3.0), (9, 4.0)]):
        assert "log" not in line_chart("x", {"one": lines})


@pytest.mark.parametrize(("low", "high"), [(0.9, 2.1), (0.002, 7.5), (1e-12, 5e9), (1, 1000), (3, 300)])
def test_marks_of_a_logarithmic_scale(low, high):
    marks = log_ticks(low, high)
    assert marks[0] <= low * (1 + 1e-12)
    assert marks[-1] >= high
    assert marks == sorted(set(marks))
    assert 2 <= len(marks) <= 8


def test_points_can_be_read_in_a_browser(run_dir, tmp_path, request):
    """Without a script: pointing at a point shows its value, and the box chooses the scale."""
    pytest.importorskip("selenium")
    if not (test_explorer.BROWSER and test_explorer.DRIVER):
        pytest.skip("needs Chromium and its driver")
    page = test_explorer.Page(request.getfixturevalue("driver"))
    chart = line_chart("loss", {"one": [(step, 9.0 / (step + 1)) for step in range(1, 300)]})
    wide = table([("--a.very.long-option", *["0.123456789"] * 9)])
    (tmp_path / "page.html").write_text(document("x", [f'<div class="charts">{chart}</div>{wide}']))
    page.show(390, "light")
    page.driver.get((tmp_path / "page.html").as_uri())
    assert page.run("return document.documentElement.scrollWidth") == 390
    point = page.all(".linear .near")[40]
    said = page.all(".linear .said")[40]
    assert said.value_of_css_property("visibility") == "hidden"
    page.point_at(point)
    assert said.value_of_css_property("visibility") == "visible"
    assert said.get_attribute("textContent") == "one at step 121: 0.07377"
    assert not page.all(".log")[0].is_displayed()
    page.all("input")[0].click()
    assert page.all(".log")[0].is_displayed()
    assert not page.all(".linear")[0].is_displayed()
    assert "gradient" in page.all(".wide")[0].value_of_css_property(
        "background-image"
    )  # a shadow: it scrolls
    assert page.driver.get_log("browser") == []


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


@pytest.mark.parametrize("most", [7, 1200, 100_000, 1_000_000, 12_345_678])
def test_no_label_is_clipped_or_touches_another(most):
    """Letters of 13 units are 7.5 wide, somewhat more than in any of the page's fonts."""
    line = line_chart("x", {"one": [(0, 0.0), (most, 123_456.0)], "two": [(1, 0.00002)]})
    bars = bar_chart("x", {str(length): 1 for length in range(1000, 1040)})
    for chart in (line, bars, line_chart("y", {"small": [(0, 0.0), (most, 1.25e-5)]})):
        boxes = []
        for x, y, anchor, label in re.findall(
            r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]*)', chart
        ):
            start = float(x) - 7.5 * len(label) / (1 if anchor == "end" else 2)
            boxes.append((float(y), start, start + 7.5 * len(label)))
        assert len(boxes) > 2
        assert all(start >= 0 and end <= WIDTH for _, start, end in boxes)
        for (y1, _, end), (y2, start, _) in zip(sorted(boxes), sorted(boxes)[1:], strict=False):
            assert y1 != y2 or end <= start


def test_durations():
    assert [duration(s) for s in (0.4, 45, 723, 19_200)] == ["0 s", "45 s", "12 min 3 s", "5 h 20 min"]
