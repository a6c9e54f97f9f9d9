"""A run as a page, `report.html`: results, curves, sounds, samples over time, data, configuration; and
several runs side by side."""

import html
import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from transformer.config.options import as_word, flatten
from transformer.runs.log import standing
from transformer.runs.report.charts import (
    Markup,
    bar_chart,
    document,
    facts,
    folded,
    key,
    line_chart,
    table,
    text,
)
from transformer.runs.report.exhibits import exhibits_of, overview_of
from transformer.runs.report.logged import Logged
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, address, write_output, write_whole
from transformer.systems.registry import as_option

REPORT = "report.html"
CHANGES = 100  # samples of an input over time
SIDES = 10  # with a chart of lengths
SAMPLES = 50  # of a comparison


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
    sections = [
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
    write_whole(run.path / REPORT, document(run.path.name, sections))
    run.publish()
    return Path(run.name) / REPORT


def _curves(run: Logged) -> str:
    figures = (line_chart(name, lines) for name, lines in run.curves().items() if any(lines.values()))
    return f'<h2>Curves</h2><div class="charts">{"".join(figures)}</div>'


def _scores(run: Logged) -> str:
    if not run.scores:
        return ""
    rows = [
        (title, f"{value:.{score['digits']}f}", detail)
        for score in run.scores.values()
        for title, value, detail in (
            (score["title"], score["value"], score.get("signature") or score.get("detail", "")),
            *((f"{score['title']}, {group}", value, "") for group, value in score["parts"].items()),
        )
    ]
    return f"<h2>Scores</h2><p>{html.escape(run.tested)}</p>" + table(rows)


def _translations(evaluations: list[Json]) -> str:
    with_samples = [record for record in evaluations if record.get("samples")]
    if not with_samples:
        return ""
    note = f"Evaluations that changed nothing are omitted; of the others the newest {CHANGES} are shown."
    sections = [f"<h2>Samples over time</h2><p>{note}</p>"]
    for index, (source, reference, _) in enumerate(with_samples[-1]["samples"]):
        rows = deque[tuple[str, str]](maxlen=CHANGES)
        before = None
        for record in with_samples:
            if index < len(record["samples"]) and (output := record["samples"][index][2]) != before:
                rows.append((f"step {record['step']:,}", output))
                before = output
        reference_line = f"<p>Reference: {html.escape(reference)}</p>" if reference else ""
        sections.append(f"<h3>{html.escape(source)}</h3>{reference_line}{table(rows)}")
    return "".join(sections)


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
    options = [(_option(name), as_word(value)) for name, value in flatten(run.config).items()]
    shown = [(_option(name), as_word(preset), as_word(here)) for name, preset, here in changed]
    differences = table(shown, ("option", f"preset {nearest}", "here")) if changed else ""
    note = "Differences from the nearest preset" if changed else "As the preset"
    return f"<h2>Configuration</h2><p>{note}, {html.escape(nearest)}.</p>{differences}" + folded(
        f"All {len(options)} options", table(options)
    )


def _option(name: str) -> Markup:
    """An option as a command line has it, in one line."""
    return Markup(f"<code>{text(as_option(name))}</code>")


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
    keys = [Markup(key(index, name)) for index, name in enumerate(names)]
    links = [_linked(label, run, page) for label, run in zip(keys, runs, strict=True)]
    sections = [
        f"<h1>{html.escape(title)}</h1><p>{' '.join(links)}</p>",
        "<h2>Results</h2>",
        _results(keys, runs),
        f'<h2>Curves</h2><div class="charts">{_curves_of_runs(names, runs)}</div>',
        _samples(keys, runs),
        "<h2>Options that differ</h2>",
        _options(keys, runs),
    ]
    write_output(page, document(title, sections))


def _linked(label: str, run: Logged, page: Path) -> str:
    """The label of a run, with a link to its own page if there is one beside the other."""
    report = run.path / REPORT
    if address(run.name) or not report.is_file():
        return label
    return f'<a href="{quote(os.path.relpath(report, page.absolute().parent))}">{label}</a>'


def _results(keys: list[Markup], runs: list[Logged]) -> str:
    """A row for each fact, a column for each run. The best score is bold, and rows that are alike are
    folded."""
    summaries = [{"system": run.config.system, **run.summary()} for run in runs]
    scores = [run.scores.get("bleu", {}).get("signature", "") for run in runs]
    if any(scores):
        for summary, signature in zip(summaries, scores, strict=True):
            summary["BLEU signature"] = signature
    merits = [run.merits() for run in runs]
    rows = list[tuple[str, ...]]()
    for fact in dict.fromkeys(name for summary in summaries for name in summary):
        numbers = [merit.get(fact) for merit in merits]
        best = max((number for number in numbers if number is not None), default=None)
        is_decided = len({number for number in numbers if number is not None}) > 1
        cells = (
            Markup(f"<strong>{text(value)}</strong>") if is_decided and number == best else value
            for value, number in zip((summary.get(fact, "") for summary in summaries), numbers, strict=True)
        )
        rows.append((fact, *cells))
    return _compared_table(rows, ("", *keys))


def _compared_table(rows: Sequence[tuple[str, ...]], head: Sequence[str]) -> str:
    """A table of what differs, and behind a click one of the rows that have one value."""
    differing = [row for row in rows if len(set(row[1:])) > 1]
    alike = [row[:2] for row in rows if len(set(row[1:])) == 1]
    same = folded(f"{counted(len(alike), 'row')} with one value for all runs", table(alike)) if alike else ""
    return (table(differing, head) if differing else "") + same


def _samples(keys: list[Markup], runs: list[Logged]) -> str:
    """What each run made of the samples of its best evaluation, below each other."""
    samples: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for label, run in zip(keys, runs, strict=True):
        best = max(run.evaluations, key=standing, default={})
        for source, reference, output in best.get("samples", ()):
            samples.setdefault((source, reference), []).append((label, output))
    items = [
        f"<h3>{text(source)}</h3>" + table([*[("reference", reference)] * bool(reference), *outputs])
        for (source, reference), outputs in islice(samples.items(), SAMPLES)
    ]
    return f"<h2>Samples</h2><p>Of the best checkpoint of each run.</p>{''.join(items)}" if items else ""


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


def _options(keys: list[Markup], runs: list[Logged]) -> str:
    options = [{name: as_word(value) for name, value in flatten(run.config).items()} for run in runs]
    names = dict.fromkeys(name for run_options in options for name in run_options)
    rows = [(_option(name), *(run_options.get(name, "") for run_options in options)) for name in names]
    differ = any(len(set(row[1:])) > 1 for row in rows)
    return "<p>They have the same options.</p>" * (not differ) + _compared_table(rows, ("option", *keys))
