"""What a run directory records: configuration, metrics, test scores."""

import contextlib
import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer.config.corpus import DataConfig
from transformer.config.options import Config, as_decided, changed
from transformer.config.ranges import Option
from transformer.runs.log import overfitting, spent_of, standing
from transformer.runs.report.charts import Points
from transformer.runs.run import Run
from transformer.runtime.files import Json, MiB, parse_object, read_text
from transformer.tasks.metrics.scores import LONGEST_NAME, Metric

SPEEDS = 4  # charts of them, at most
CURVES = 6  # of parts of a score, at most
HIGHER_IS_BETTER = "bleu", "chrf", "exact"  # of runs that did not write it
MOST_PARTS = 10_000  # scores of which one is the mean


class Logged:
    """The records of a run, read once.

    Args:
      run_dir: what training wrote.

    Raises:
      UserError: it is not a run directory.
    """

    def __init__(self, run_dir: Path | str) -> None:
        run = Run(run_dir)
        self.path = run.path
        self.name = run.name
        self.config = run.config
        self.publish = run.store.push
        records = run.log.records()
        self.starts, self.training, self.evaluations = (
            [record for record in records if record["kind"] == kind]
            for kind in ("start", "training", "evaluation")
        )
        self.spent = spent_of(records)
        self.split, self.tested, self.scores = _scores(run.path / "results.json")

    @property
    def measure(self) -> Metric:
        """The score that decides which checkpoint is best."""
        return Metric.of(self.evaluations[-1] if self.evaluations else {})

    def __bool__(self) -> bool:
        return bool(self.starts or self.training or self.evaluations)

    def curves(self) -> dict[str, dict[str, Points]]:
        """The curves of each chart, by name: points (step, value)."""
        measure = self.measure
        names = {name for record in self.training for name in record if len(name) <= LONGEST_NAME}
        speeds = sorted(name for name in names if name.endswith("_per_second"))[:SPEEDS]
        return {
            "nats per token": {
                "training": _points(self.training, "nll"),
                "validation": _points(self.evaluations, "nll"),
            },
            f"validation {measure.title}{self._part()}": {
                measure.title: _points(self.evaluations, measure.name)
            }
            | {group: _points(self.evaluations, f"{measure.name} {group}") for group in self._part_names()},
            "learning rate": {"learning rate": _points(self.training, "learning_rate")},
            **{
                name.replace("_", " "): {name.replace("_per_second", "/s"): _points(self.training, name)}
                for name in speeds
            },
        }

    def _part_names(self) -> list[str]:
        """The names of some scores of which that of a validation is the mean, such as `en to de`."""
        before = f"{self.measure.name} "
        names = self.evaluations[-1] if self.evaluations else ()
        groups = [name.removeprefix(before) for name in names if name.startswith(before)]
        return [group for group in groups if len(group) <= LONGEST_NAME][:CURVES]

    def _part(self) -> str:
        """What a validation scored, such as `, first 500 of 1,000 pairs`; empty if it is not known."""
        scored = self.evaluations[-1].get("scored") if self.evaluations else None
        return f", {scored}" if isinstance(scored, str) else ""

    def summary(self) -> dict[str, str]:
        """What a reader wants first, as far as it is known: scores, checkpoint, time, size, data."""
        data = self.starts[-1].get("data") if self.starts else None
        data = data if isinstance(data, dict) else {}
        last = max((record["step"] for record in (*self.training, *self.evaluations)), default=0)
        best = max(self.evaluations, key=standing, default=None)
        languages = self.config.data.direction if isinstance(self.config.data, DataConfig) else ""
        facts: Json = {
            **{
                f"{self.split} {score['title']}": f"{score['value']:.{score['digits']}f} ({self.tested})"
                for score in self.scores.values()
            },
            "best checkpoint": best and f"{best['step']:,} (validation {_score(best)}{self._part()})",
            "updates": f"{last:,} of {self.config.training.steps:,}",
            "warning": overfitting(self.training, self.evaluations) or None,
            "time": time_spent(self.spent) if self.spent else None,
            "parameters": self.starts[-1].get("parameters") if self.starts else None,
            **_sizes(data, languages),
            "pairs by corpus": self.evaluations[-1].get("drawn") if self.evaluations else None,
            "devices": self.starts[-1].get("devices") if self.starts else None,
        }
        return {name: str(value) for name, value in facts.items() if value is not None}

    def merits(self) -> dict[str, float]:
        """The scores of `summary` as numbers, higher for a better one, by the name of their row."""
        measure, best = self.measure, max(self.evaluations, key=standing, default=None)
        numbers = {"best checkpoint": standing(best)[0]} if best else {}
        for name, score in self.scores.items():
            is_higher = measure.higher_is_better if name == measure.name else name in HIGHER_IS_BETTER
            sign = 1 if score.get("higher_is_better", is_higher) else -1
            if "higher_is_better" in score or name in {measure.name, *HIGHER_IS_BETTER}:
                numbers[f"{self.split} {score['title']}"] = sign * score["value"]
        return numbers

    def changed(self) -> tuple[str, list[tuple[str, Option, Option]]]:
        """The preset, or its variant, with the fewest differences, and these: option, its value in the
        preset, its value in this run."""
        from transformer.systems.presets import every_system

        return _nearest(self.config, tuple(every_system().items()))


@functools.lru_cache(maxsize=1)  # of the config of a run, whose report is written after every evaluation
def _nearest(
    config: Config, presets: tuple[tuple[str, Config], ...]
) -> tuple[str, list[tuple[str, Option, Option]]]:
    """The preset with the fewest differences from a config, and these."""
    size = config.model.vocab_size  # training sets it
    differences = {
        name: changed(
            as_decided(replace(preset, model=replace(preset.model, vocab_size=size)), config), config
        )
        for name, preset in presets
    }
    nearest = min(differences, key=lambda name: len(differences[name]))
    return nearest, differences[nearest]


def _score(evaluation: Json) -> str:
    """The score that decides, with its title; the loss instead where the score says nothing."""
    measure = Metric.of(evaluation)
    value = measure.value(evaluation)
    return f"{'loss, ' * measure.is_noise(value)}{measure.title} {measure.shown(value)}"


def _sizes(data: Json, languages: str) -> dict[str, str]:
    """The size of the training split in the task's unit, such as pairs, and the languages."""
    sizes = {name: str(size) for name, size in data.items() if name.startswith("train ")}
    name, size = next(iter(sizes.items()), ("train pairs", ""))
    description = ", ".join(filter(None, (size, languages)))
    return {name.replace("train", "training", 1): description} if description else {}


def time_spent(seconds: Mapping[str, float]) -> str:
    """The time of a run in words: `12 min 20 s (preparation 3 min 2 s, training 7 min 3 s, evaluation 2 min
    15 s)`."""
    phases = ", ".join(f"{phase} {duration(spent)}" for phase, spent in seconds.items())
    return f"{duration(sum(seconds.values()))} ({phases})"


def duration(seconds: float) -> str:
    """Seconds in words: `45 s`, `12 min 3 s` or `5 h 20 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _points(records: list[Json], name: str) -> Points:
    numbers = ((record["step"], record.get(name)) for record in records)
    return [(x, y) for x, y in numbers if isinstance(y, int | float) and math.isfinite(y)]


def _scores(path: Path) -> tuple[str, str, Json]:
    """From results.json: the split, a line about it, and the valid scores by name; none if it is damaged."""
    try:
        results = parse_object(read_text(path, MiB))
        split, unit = results["split"], results.get("unit", "sentences")
        if not all(isinstance(text, str) and len(text) <= LONGEST_NAME for text in (split, unit)):
            raise ValueError("a split and a unit are names")
        summary = f"{split}, {results['sentences']:,} {unit}, step {results['checkpoint']:,}"
    except (OSError, ValueError, KeyError, TypeError):
        return "test", "", {}
    scores = {}
    for name, score in results.items():
        if isinstance(score, dict):
            with contextlib.suppress(ValueError):
                scores[name] = _valid(name, score)
    return split, summary, scores


def _valid(name: str, score: Json) -> Json:
    """A test score, complete. Raises ValueError if it cannot be shown."""
    title = {"bleu": "BLEU", "chrf": "chrF", "exact": "exact match"}.get(name, name)  # not in version 0.1
    measure = Metric(name, score.get("title", title), digits=score.get("digits", 2))
    value = measure.value({name: score.get("value")})
    return score | {
        "title": measure.title,
        "digits": measure.digits,
        "value": value,
        "parts": _numbers(score.get("parts")),
    }


def _numbers(numbers: Any) -> dict[str, float]:
    """The numbers by name of which a score is the mean; none if there are others among them, or too many."""
    if not isinstance(numbers, dict) or len(numbers) > MOST_PARTS:
        return {}
    is_number = (type(value) in (int, float) and math.isfinite(value) for value in numbers.values())
    return numbers if all(is_number) and all(len(name) <= LONGEST_NAME for name in numbers) else {}
