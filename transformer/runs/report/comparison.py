"""Several runs side by side on one page: results, curves, and the options in which they differ."""

import html
from collections.abc import Sequence
from pathlib import Path

from transformer.config import flatten
from transformer.runs.report.charts import key, line_chart
from transformer.runs.report.logged import Logged
from transformer.runs.report.markup import document, table
from transformer.runtime.errors import UserError
from transformer.runtime.files import address, write_output


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
        f'<h2>Curves</h2><div class="charts">{_curves(names, runs)}</div>',
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


def _curves(names: list[str], runs: list[Logged]) -> str:
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
