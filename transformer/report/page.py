"""A run as a page, `report.html`: curves, translations over time, data, speed, configuration.

Everything in it comes from the run directory, so `python -m transformer.report RUN` writes it again.
"""

import html
import importlib.resources
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformer.config import flatten
from transformer.errors import UserError
from transformer.files import MiB, parse_object, read_text, write_whole
from transformer.report.charts import bar_chart, line_chart

REPORT = "report.html"


def write_report(run_dir: Path | str) -> Path:
    """Writes the page of a run.

    Args:
      run_dir: what training wrote.

    Raises:
      UserError: it is not a run directory, or nothing was logged yet.
      OSError: it cannot be written to.
    """
    from transformer.run import Run

    run = Run(run_dir)
    by_kind: dict[str, list[dict[str, Any]]] = {"start": [], "training": [], "evaluation": []}
    for record in run.records():
        by_kind[record["kind"]].append(record)
    if not any(by_kind.values()):
        raise UserError(f"{run.path} has no metrics yet: train on")
    parts = [
        f"<h1>{html.escape(run.path.name)}</h1><p>{html.escape(_headline(run, by_kind))}</p>",
        _curves(by_kind["training"], by_kind["evaluation"]),
        _scores(run.path / "results.json"),
        _translations(by_kind["evaluation"]),
        _data(by_kind["start"]),
        _starts(by_kind["start"]),
        "<h2>Configuration</h2>" + _table((name, value) for name, value in flatten(run.config).items()),
    ]
    style = (importlib.resources.files("transformer.report") / "page.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{html.escape(run.path.name)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )
    write_whole(run.path / REPORT, page)
    return run.path / REPORT


def _table(rows: Iterable[tuple[Any, ...]], head: Sequence[str] = ()) -> str:
    def cells(rest: Iterable[Any]) -> str:
        return "".join(f"<td>{html.escape(str(cell))}</td>" for cell in rest)

    body = "".join(f"<tr><th>{html.escape(str(name))}</th>{cells(rest)}</tr>" for name, *rest in rows)
    top = "<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr>" if head else ""
    return f'<div class="wide"><table>{top}{body}</table></div>'


def _headline(run: Any, by_kind: dict[str, list[dict[str, Any]]]) -> str:
    model = run.config.model
    last = (by_kind["training"] or by_kind["evaluation"] or [{"step": 0}])[-1]["step"]
    return (
        f"{run.config.system}, {model.num_layers}+{model.decoder_depth} layers, d_model {model.d_model}; "
        f"{last:,} of {run.config.training.steps:,} updates"
    )


def _curves(training: list[dict[str, Any]], evaluation: list[dict[str, Any]]) -> str:
    def of(records: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
        numbers = ((r["step"], r.get(name)) for r in records)
        return [(x, y) for x, y in numbers if isinstance(y, int | float) and math.isfinite(y)]

    charts = [
        ("nats a token", {"training": of(training, "nll"), "validation": of(evaluation, "nll")}),
        ("validation BLEU", {"BLEU": of(evaluation, "bleu")}),
        ("learning rate", {"learning rate": of(training, "learning_rate")}),
        ("tokens a second", {"tokens/s": of(training, "tokens_per_second")}),
    ]
    figures = (line_chart(name, lines) for name, lines in charts if any(lines.values()))
    return f'<h2>Curves</h2><div class="charts">{"".join(figures)}</div>'


def _scores(path: Path) -> str:
    try:
        results = parse_object(read_text(path, MiB))
        rows = [
            (name, f"{score['value']:.2f}", score.get("signature") or score.get("detail", ""))
            for name, score in results.items()
            if isinstance(score, dict)
        ]
        about = f"{results['split']}, {results['sentences']:,} sentences, step {results['checkpoint']:,}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none yet, or somebody else's file
        return ""
    return f"<h2>Scores</h2><p>{html.escape(about)}</p>" + _table(rows)


def _translations(evaluation: list[dict[str, Any]]) -> str:
    def triples(samples: Any) -> bool:
        return isinstance(samples, list) and all(
            isinstance(each, list) and len(each) == 3 and all(isinstance(text, str) for text in each)
            for each in samples
        )

    told = [record for record in evaluation if record.get("samples") and triples(record["samples"])]
    if not told:
        return ""
    parts = ["<h2>Translations over time</h2>"]
    for index, (source, reference, _) in enumerate(told[-1]["samples"]):
        rows, before = [], None
        for record in told:
            if index < len(record["samples"]) and (said := record["samples"][index][2]) != before:
                rows.append((f"step {record['step']:,}", said))
                before = said
        parts.append(f"<h3>{html.escape(source)}</h3><p>{html.escape(reference)}</p>" + _table(rows))
    return "".join(parts)


def _data(starts: list[dict[str, Any]]) -> str:
    data = starts[-1].get("data") if starts else None
    if not isinstance(data, dict):
        return ""
    rows = [(name.replace("_", " "), value) for name, value in data.items() if name != "lengths"]
    lengths = data.get("lengths")
    figures = "".join(
        bar_chart(f"{side} sentences by length in tokens, up to", counts)
        for side, counts in (lengths.items() if isinstance(lengths, dict) else ())
        if isinstance(counts, dict) and all(type(count) is int and count >= 0 for count in counts.values())
    )
    return f'<h2>Data</h2>{_table(rows)}<p></p><div class="charts">{figures}</div>'


def _starts(starts: list[dict[str, Any]]) -> str:
    rows = [
        (f"step {start['step']:,}", *(start.get(name, "") for name in ("date", "devices", "versions")))
        for start in starts
    ]
    return "<h2>Started</h2>" + _table(rows, ("from", "when", "on", "versions")) if rows else ""
