"""A run as a page, `report.html`: results, curves, sounds, samples over time, data, configuration; and
several runs side by side."""

import html
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from transformer.config.options import as_word, flatten
from transformer.runs.report.charts import bar_chart, document, facts, folded, key, line_chart, table
from transformer.runs.report.exhibits import exhibits_of, overview_of
from transformer.runs.report.logged import Logged
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, address, write_output, write_whole

REPORT = "report.html"
CHANGES = 100  # samples of an input over time
SIDES = 10  # with a chart of lengths


def write_report(run_dir: Path | str) -> Path:
    """Writes the page of a run, from the files of its directory alone.

    Args:
      run_dir: what training wrote.

    Raises:
      UserError: it is not a run directory, or nothing was logged yet.
      OSError: it cannot be written to.
    """
    run = Logged(run_dir)
    if not run:
        raise UserError(f"{run.name} has no metrics: it was not trained here, or metrics.jsonl is damaged")
    network = f"{run.config.system}, {run.config.model.described}"
    parts = [
        f"<h1>{html.escape(run.path.name)}</h1><p>{html.escape(network)}</p>",
        facts(run.summary()),
        _curves(run),
        _scores(run),
        overview_of(run.path),
        exhibits_of(run.path),
        _translations(run.evaluations),
        _data(run.starts),
        _starts(run.starts),
        _configuration(run),
    ]
    write_whole(run.path / REPORT, document(run.path.name, parts))
    run.publish()
    return Path(run.name) / REPORT


def _curves(run: Logged) -> str:
    figures = (line_chart(name, lines) for name, lines in run.curves().items() if any(lines.values()))
    return f'<h2>Curves</h2><div class="charts">{"".join(figures)}</div>'


def _scores(run: Logged) -> str:
    if not run.scores:
        return ""
    rows = [
        (title, f"{value:.{score['digits']}f}", about)
        for score in run.scores.values()
        for title, value, about in (
            (score["title"], score["value"], score.get("signature") or score.get("detail", "")),
            *((f"{score['title']}, {part}", value, "") for part, value in score["parts"].items()),
        )
    ]
    return f"<h2>Scores</h2><p>{html.escape(run.tested)}</p>" + table(rows)


def _translations(evaluations: list[Json]) -> str:
    with_samples = [record for record in evaluations if record.get("samples")]
    if not with_samples:
        return ""
    about = f"Evaluations that changed nothing are omitted; of the others the newest {CHANGES} are shown."
    parts = [f"<h2>Samples over time</h2><p>{about}</p>"]
    for index, (source, reference, _) in enumerate(with_samples[-1]["samples"]):
        rows = deque[tuple[str, str]](maxlen=CHANGES)
        before = None
        for record in with_samples:
            if index < len(record["samples"]) and (text := record["samples"][index][2]) != before:
                rows.append((f"step {record['step']:,}", text))
                before = text
        reference_line = f"<p>Reference: {html.escape(reference)}</p>" if reference else ""
        parts.append(f"<h3>{html.escape(source)}</h3>{reference_line}{table(rows)}")
    return "".join(parts)


def _data(starts: list[Json]) -> str:
    data = starts[-1].get("data") if starts else None
    if not data:
        return ""
    rows = [(name.replace("_", " "), value) for name, value in data.items() if name != "lengths"]
    figures = "".join(
        bar_chart(f"{side} by length: up to so many elements", counts)
        for side, counts in islice(data.get("lengths", {}).items(), SIDES)
    )
    return f'<h2>Data</h2>{table(rows)}<p></p><div class="charts">{figures}</div>'


def _starts(starts: list[Json]) -> str:
    rows = [
        (f"step {start['step']:,}", *(start.get(name, "") for name in ("date", "devices", "versions")))
        for start in starts
    ]
    return "<h2>Starts</h2>" + table(rows, ("from", "date", "devices", "versions")) if rows else ""


def _configuration(run: Logged) -> str:
    nearest, changed = run.changed()
    every = [(name, as_word(value)) for name, value in flatten(run.config).items()]
    shown = [(name, as_word(preset), as_word(here)) for name, preset, here in changed]
    differences = table(shown, ("option", f"preset {nearest}", "here")) if changed else ""
    text = "Differences from the nearest preset" if changed else "As the preset"
    return f"<h2>Configuration</h2><p>{text}, {html.escape(nearest)}.</p>{differences}" + folded(
        f"All {len(every)} options", table(every)
    )


# Several runs side by side on one page: results, curves, and the options in which they differ.


def write_comparison(run_dirs: Sequence[Path | str], page: Path) -> None:
    """Writes the page of several runs.

    Args:
      run_dirs: what the trainings wrote; a run that is given twice counts once.
      page: where to write.

    Raises:
      UserError: one is not a run directory or has no metrics yet.
      OSError: the page cannot be written.
    """
    locations = dict.fromkeys(address(run_dir) or Path(run_dir).resolve() for run_dir in run_dirs)
    runs = [Logged(location) for location in locations]
    for run in runs:
        if not run:
            raise UserError(
                f"{run.name} has no metrics: it was not trained here, or metrics.jsonl is damaged"
            )
    names = [run.path.name for run in runs]
    if len(set(names)) < len(names):
        names = [run.name for run in runs]
    title = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    keys = " ".join(key(index, name) for index, name in enumerate(names))
    parts = [
        f"<h1>{html.escape(title)}</h1><p>{keys}</p>",
        "<h2>Results</h2>",
        _results(names, runs),
        f'<h2>Curves</h2><div class="charts">{_curves_of_runs(names, runs)}</div>',
        "<h2>Options that differ</h2>",
        _options(names, runs),
    ]
    write_output(page, document(title, parts))


def _results(names: list[str], runs: list[Logged]) -> str:
    """A row for each fact, a column for each run."""
    summaries = [{"system": run.config.system, **run.summary()} for run in runs]
    facts = dict.fromkeys(name for summary in summaries for name in summary)
    rows = [(fact, *(summary.get(fact, "") for summary in summaries)) for fact in facts]
    scores = [run.scores.get("bleu", {}).get("signature", "") for run in runs]
    if any(scores):
        rows.append(("BLEU signature", *scores))
    return table(rows, ("", *names))


def _curves_of_runs(names: list[str], runs: list[Logged]) -> str:
    """A chart for each quantity, a line for each run that has it."""
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, run in zip(names, runs, strict=True):
        for chart, lines in run.curves().items():
            for label, points in lines.items():
                title = chart if len(lines) == 1 else f"{label}, {chart}"
                if points:
                    charts.setdefault(title, {})[name] = list(points)
    return "".join(line_chart(title, lines, names) for title, lines in charts.items())


def _options(names: list[str], runs: list[Logged]) -> str:
    options = [flatten(run.config) for run in runs]
    every = dict.fromkeys(name for run_options in options for name in run_options)
    values = {name: tuple(str(run_options.get(name, "")) for run_options in options) for name in every}
    rows = [(name, *row) for name, row in values.items() if len(set(row)) > 1]
    return table(rows, ("option", *names)) if rows else "<p>They have the same options.</p>"
