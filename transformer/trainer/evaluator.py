"""Evaluation in training: losses and the task's first score on the validation set, all scores on the test
set."""

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax

from transformer.config.options import Config
from transformer.data.store import Record
from transformer.explorer.attention import exhibits_of
from transformer.model.parameters import Variables
from transformer.runs.exhibits import exhibit_as_json
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, brief
from transformer.runtime.hosts import by_turns, is_main_process
from transformer.systems.system import System
from transformer.tasks.exhibit import Exhibits, Overview, ReportSample
from transformer.tasks.metrics.scores import Metric, Score
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.preparation import TrainingData
from transformer.tasks.task import Evaluation
from transformer.trainer.profile import StopRequest, asked
from transformer.training.objective import Objective
from transformer.training.sharding import Layout
from transformer.training.step import EvalState, make_eval_step
from transformer.translator.decoder import Decoder

log = logging.getLogger("transformer")

Sample = tuple[str, str, str]
"""Input, reference, output."""
EXHIBITS = 3
"""The most exhibits of a report, which they make large."""


class Validation(NamedTuple):
    """An evaluation in training."""

    scores: Json
    """What is logged."""
    samples: list[Sample]
    overview: list[Json]
    """Exhibits of the whole split."""


class Tested(NamedTuple):
    """The evaluation of the final model."""

    split: str
    """The test split; without one, the validation split."""
    records: list[Record]
    scores: dict[Metric, Score]
    overview: list[Json]


Progress = Callable[[int, int, float | None], None]
"""Told the number of records that are done, that of all, and how many seconds the others will take, if that
is known."""


class _Counted(Decoder[Any]):
    """A decoder that tells how many records are done, which is not in their order."""

    tell: Callable[[int], None]
    _done = 0

    def finished(self, result: Any, request: Any) -> list[Any]:
        """The outputs of a request."""
        outputs = super().finished(result, request)
        self._done += 1
        self.tell(self._done)
        return outputs


@dataclass(eq=False)
class Evaluator:
    """Evaluates variables of the config's model."""

    config: Config
    system: System
    objective: Objective
    """Its loss is evaluated."""
    data: TrainingData
    """With the validation and test sets."""
    layout: Layout
    """Of the devices."""
    tell: Progress = lambda done, count, seconds: None
    """Is told the progress."""

    def __post_init__(self) -> None:
        self._seconds: dict[str, float] = {}  # of a record, for its loss and for its output
        self.task = self.data.task
        self.decoding = self.task if isinstance(self.task, DecodingTask) else None
        self._warned: set[str] = set()
        model = self.system.model(self.config.model)
        self._step = self.layout.compile_step(make_eval_step(model, self.objective))

    def seconds(self, split: str) -> float | None:
        """How long the evaluation of a split will take, by the last one; None if there was none."""
        if not self._seconds:
            return None
        count = decoded = len(self.data.corpus.splits[split])
        if split == "validation":
            decoded = min(count, self.config.training.evaluate_sentences)
        outputs = self._seconds.get("outputs", 0.0) if self.task.decodes else 0.0
        return self._seconds.get("loss", 0.0) * count + outputs * decoded

    def validate(self, variables: Variables, request: StopRequest) -> Validation | None:
        """Losses on the whole validation set, the first score on its first records, and sample outputs. None
        if a stop was requested before the end."""
        start = time.monotonic()
        records = self.data.corpus.splits["validation"]
        means = self._means(variables, "validation", request)
        chosen = records.__getitems__(range(min(len(records), self.config.training.evaluate_sentences)))
        task = self.task
        decoding = self.decoding
        count = self.config.training.samples
        prompts = decoding.prompts(chosen, count) if decoding else []
        shown = chosen if task.decodes else prompts
        outputs = self._decoded(variables, "validation", shown, request) if means else []
        if asked(request) or means is None:
            return None
        evaluation = Evaluation(chosen, outputs if task.decodes else [], means)
        measure, score_of = next(iter(task.measures().items()))
        by_part = task.scores(evaluation) if task.parts(evaluation) else {}
        score = by_part[measure] if by_part else score_of(evaluation)
        if not isinstance(score, Score):
            name = f"{type(task).__name__}.measures(): {measure.name}"
            raise UserError(f"{name} must give a Score, not {type(score).__name__}")
        lengths = [len(str(record)) for record in shown]
        indices = _of_various_lengths(lengths, count) if task.decodes else range(len(shown))
        samples = [_sample(decoding, shown[i], outputs[i]) for i in indices] if decoding else []
        scored = len(chosen) if task.decodes else len(records)
        extent = f"first {scored:,} of " if scored < len(records) else "all "
        record = {
            "loss": means["loss"],
            **task.summary(means),
            measure.name: score.value,
            **flatten_scores(by_part),
            "merit": measure.merit(score.value),
            "measure": asdict(measure),
            "scored": f"{extent}{len(records):,} {task.unit}",
            "signature": score.signature,
            "seconds": time.monotonic() - start,
            "samples": samples,
        }
        return Validation(record, samples, self._overview("validation", evaluation))

    def _means(self, variables: Variables, split: str, request: StopRequest) -> dict[str, float] | None:
        """The mean of the loss and of every metric on a split. None if a stop was requested."""
        records = self.data.corpus.splits[split]
        batches = self.task.fixed_batches(records, jax.process_index(), jax.process_count())
        fill = {name: field.fill for name, field in self.task.fields.items()}
        totals: dict[str, tuple[float, float]] = {}
        carry = self.system.carry(self.config, True)
        start = time.monotonic()
        self.tell(0, 0, self.seconds(split))
        for batch in self.layout.batches(batches, fill=fill):
            if asked(request):
                return None
            after, sums = self._step(EvalState(variables, carry), batch)
            carry = after.carry
            for name, (total, weight) in jax.device_get(sums).items():
                before = totals.get(name, (0.0, 0.0))
                totals[name] = before[0] + float(total), before[1] + float(weight)
        self._seconds["loss"] = (time.monotonic() - start) / max(1, len(records))
        return {name: total / weight if weight else 0.0 for name, (total, weight) in totals.items()}

    @property
    def tested(self) -> str:
        """The split of the test: of a corpus without one, the validation split."""
        return "test" if "test" in self.data.corpus.splits else "validation"

    def test(self, variables: Variables, request: StopRequest) -> Tested | None:
        """All scores on the test split. None if a stop was requested before the end."""
        splits = self.data.corpus.splits
        split = self.tested
        records = list(splits[split])
        means = self._means(variables, split, request)
        outputs = self._decoded(variables, split, records, request) if means and self.task.decodes else []
        if asked(request) or means is None:
            return None
        evaluation = Evaluation(records, outputs, means)
        return Tested(split, records, self.task.scores(evaluation), self._overview(split, evaluation))

    def _overview(self, split: str, evaluation: Evaluation) -> list[Json]:
        """What the report shows of the outputs for a split, if the task has it."""
        if not (isinstance(self.task, Overview) and evaluation.outputs):
            return []
        title = f"{split}, {len(evaluation.records):,} {self.task.unit}"
        try:
            tables = tuple(self.task.overview(evaluation))
            comparisons = tuple(self.task.comparisons(evaluation))
            sample = ReportSample(title, {}, tables=tables, comparisons=comparisons)
            return [exhibit_as_json(sample)]
        except Exception as error:  # a table must not cost the run
            log.warning("the report has no tables: %s: %s", type(error).__name__, error)
            return []

    def exhibits(self, variables: Variables, request: StopRequest) -> list[Json]:
        """What the report shows of the first records of the validation that the task exhibits; none if a stop
        was requested."""
        count = min(EXHIBITS, self.config.training.samples)
        if not (count and self.decoding and isinstance(self.task, Exhibits)):
            return []
        chosen = self.task.exhibited(self.data.corpus.splits["validation"], count)
        if not chosen:
            return []
        decoder = Decoder(self.config, variables, self.decoding, warns=False)

        def made(share: list[Record]) -> list[Json]:
            try:
                until_stopped = itertools.takewhile(lambda _: not request.signal, exhibits_of(decoder, share))
                return [exhibit_as_json(exhibit) for exhibit in until_stopped]
            except Exception as error:  # a picture must not cost the run
                log.warning("the report has no examples: %s: %s", type(error).__name__, error)
                return []

        exhibits = by_turns(chosen, made)
        return [] if asked(request) else exhibits

    def _decoded(
        self, variables: Variables, split: str, records: list[Record], request: StopRequest
    ) -> list[Any]:
        """The best output of each record, as scores need it. Some are missing if a stop was requested."""
        task = self.decoding
        if task is None or not records:
            return []
        if is_main_process() and split not in self._warned:
            if warning := task.truncated(records, self.config.decoding.buckets[-1]):
                log.warning(warning, split)
            self._warned.add(split)

        def decode(share: list[Record]) -> list[Any]:
            decoder = _Counted(self.config, variables, task, warns=False)
            start, count = time.monotonic(), len(share)
            before = self._seconds.get("outputs")

            def tell(done: int) -> None:
                """The more are done, the less an earlier evaluation says."""
                spent, whole = time.monotonic() - start, before and before * count
                if done > count / 10 or (done and whole):
                    so_far = spent * count / done
                    whole = so_far + (1 - done / count) * ((whole or so_far) - so_far)
                self.tell(done, count, whole and max(whole - spent, 0.0))

            decoder.tell = tell
            tell(0)
            outputs = itertools.takewhile(lambda _: not request.signal, decoder.stream(share))
            scored = [task.scored(best[0]) for best in outputs]
            self._seconds["outputs"] = (time.monotonic() - start) / max(1, len(scored))
            return scored

        return by_turns(records, decode)


def flatten_scores(scores: Mapping[Metric, Score]) -> dict[str, float]:
    """Numbers by name: `bleu`, and `bleu en to de` for each direction."""
    numbers = {}
    for measure, score in scores.items():
        numbers[measure.name] = score.value
        numbers |= {f"{measure.name} {name}": value for name, value in score.parts.items()}
    return numbers


def _sample(task: DecodingTask, record: Record, output: Any) -> Sample:
    """A record and its output as texts. Raises UserError if they are something else."""
    sample = task.shown(record, output)
    if not isinstance(sample, tuple) or [type(text) for text in sample] != [str] * 3:
        name = f"{type(task).__name__}.shown"
        description = brief(str(sample))
        raise UserError(f"{name} must return three texts (input, reference, output), not {description}")
    return sample


def _of_various_lengths(lengths: list[int], count: int) -> list[int]:
    """Indices of `count` records, from the median length to the 95th percentile."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    shares = [0.5 + 0.45 * rank / max(count - 1, 1) for rank in range(count)]
    return [order[int(share * len(order))] for share in shares]
