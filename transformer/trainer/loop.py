"""The training loop: train, log, evaluate, save, stop, resume."""

import contextlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import jax

from transformer.config.options import Config
from transformer.data.sequences import side_lengths
from transformer.model.declarations import count
from transformer.model.parameters import Variables
from transformer.runs.checkpoints import model_of
from transformer.runs.exhibits import EXHIBITS, OVERVIEW, read_exhibits, write_exhibits
from transformer.runs.log import LOSSES, overfitting, standing
from transformer.runs.report import REPORT, write_report
from transformer.runs.report.logged import time_spent
from transformer.runs.run import Run
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import Stopped, UserError, counted
from transformer.runtime.files import Json, write_whole
from transformer.runtime.hosts import gathered, is_main_process
from transformer.runtime.invocation import command
from transformer.systems.parameters import declared_parameters, mistakes_named
from transformer.systems.system import System
from transformer.tasks.outputs import Lines
from transformer.tasks.preparation import TrainingData
from transformer.trainer.evaluator import Evaluator, Sample, Tested, Validation
from transformer.trainer.journal import EVALUATION, TRAINING, WAITING, Clock, Journal, Pace, Track
from transformer.trainer.profile import (
    TIME_IS_OVER,
    Profile,
    StopRequest,
    asked,
    memory_profiled,
    stop_requests,
)
from transformer.trainer.resolved import resume_command
from transformer.trainer.starts import first_state
from transformer.training.objective import Batch, Objective
from transformer.training.optimizers import after_evaluation, scale_of
from transformer.training.schedule import learning_rate, make_optimizer
from transformer.training.sharding import configured_step, layout_of
from transformer.training.step import Means

ASK_EVERY = 8  # steps between the checks of several processes whether to stop
MOST_WAITING = 0.05  # share of the time spent waiting for input that is not warned of


@dataclass(eq=False)
class Loop:
    """A training run, from its current step to the end."""

    config: Config
    system: System
    objective: Objective
    run: Run
    data: TrainingData
    watch: ProgressReporter
    parent: Run | None
    track: Track
    traced: int
    """Number of steps of which a trace is written."""
    clock: Clock

    def __post_init__(self) -> None:
        config, system, run, clock = self.config, self.system, self.run, self.clock
        model = system.model(config.model)
        declared = declared_parameters(system, config)
        optimizer = make_optimizer(config, declared)
        self.layout = layout_of(config.mesh, declared)
        step = configured_step(config.training, model, self.objective, optimizer, self.layout)
        self.train_step = mistakes_named(config.system)(self.layout.compile_step(step, donate_state=True))
        self.evaluator = Evaluator(
            config, system, self.objective, self.data, self.layout, self._tell_evaluated
        )
        self.rate = learning_rate(config.optimizer, config.model.d_model, config.training.steps)
        first = first_state(config, system, model, optimizer, run, self.parent, self.watch.message)
        self.reduction = scale_of(first.optimizer)
        self.state = self.layout.place(first)
        self.step = self.first_step = int(self.state.step)
        self.num_parameters = count(run.shapes["params"])
        minutes = config.training.minutes
        self.deadline = math.inf if minutes is None else clock.began + 60 * minutes
        self.last_save = clock.began
        self.journal = Journal(run, self.step, clock, self.track)
        self.pace = Pace(self.step, config.training.steps, clock)
        self.is_testing = False
        self.has_warned_of_input = self.has_said_what_decides = False
        self.profile = Profile(run.path / "profile", self.step, self.traced, self.watch)

    def _trained(self) -> str:
        """How many parameters there are, how many of them are trained, and what the optimizer needs."""
        trained, state = count(self.state.trained), self.state.optimizer
        memory = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
        number = f"{self.num_parameters:,} parameters"
        if self.state.fixed:
            number += f" of the model, {trained:,} trained ({trained / self.num_parameters:.2%})"
        return f"{number}, optimizer state {memory / 1e6:,.1f} MB"

    def train(self) -> None:
        """Trains for the remaining steps."""
        t = self.config.training
        plan = self.data.batcher.plan
        unit = self.data.task.unit
        dropped = counted(plan.dropped, unit.removesuffix("s"))
        dropped += "" if plan.examined is None else f" of the first {plan.examined:,}"
        outgrown = f" and {plan.outgrown:.2%} of the sampled segmentations" if plan.outgrown else ""
        self.watch.message(
            f"{self._trained()}, vocabulary {self.config.model.vocab_size:,}, "
            f"{counted(plan.steps_per_epoch, 'step')} an epoch, padding {plan.padding:.1%}, "
            f"{dropped} dropped ({self.data.task.drops}){outgrown}; "
            + counted(jax.device_count(), f"{jax.default_backend()} device")
        )
        if plan.dropped > (plan.examined or len(self.data.corpus.splits["train"])) / 2:
            hint = self.data.task.hint(side_lengths(self.data.batcher.examples))
            self.watch.message(
                f"Warning: most {unit} are dropped: look at the training text, or raise --data.max-length"
                + hint
            )
        if not self.step:
            for warning in self.data.unknown(self.config):
                self.watch.message(f"Warning: {warning}")
        is_unfinished = self.step < t.steps and not self._patience_is_over()
        if not is_unfinished and not self._evaluation_is_due():
            self.watch.message(f"Training is complete in {self.run.name}: testing its best checkpoint again")
            return
        where = self.run.name
        self.watch.message(f"Resuming {where} from step {self.step}" if self.step else f"Writing to {where}")
        self.watch.compiling()
        with (
            stop_requests(self.watch.interject, self.deadline) as self.stop_request,
            self.journal.opened(),
        ):
            num_parts = self.layout.shards * t.accumulate
            self.journal.write_start(self.step, self.data, self.num_parameters, num_parts)
            if self._evaluation_is_due():  # it was stopped before the evaluation
                self._checkpoint(stop=0)
            batches = self.layout.batches(
                self.data.batcher.stream(self.step, t.steps),
                fill={name: field.fill for name, field in self.data.task.fields.items()},
                multiple=t.accumulate,
            )
            if not self._patience_is_over():
                self.clock.enter(TRAINING)
                with contextlib.closing(self.profile), memory_profiled(run_dir=self.run.path):
                    self._take_steps(batches)
            self.run.checkpoints.finish_saving()
            if stop := asked(self.stop_request):
                self._stop(stop)

    def _take_steps(self, batches: Iterator[Batch]) -> None:
        t = self.config.training
        pace = self.pace = Pace(self.step, t.steps, self.clock)
        pending: tuple[int, Means] | None = None  # read one step late, so that the device never waits
        for batch in self._waited_for(batches):
            self.profile.before(self.step)
            self.state, metrics = self.train_step(self.state, batch)
            self.step += 1
            if pending:
                self._read(*pending, pace)
            pending = (self.step, metrics)
            stop = asked(self.stop_request) if self._processes_meet() else 0
            is_due = stop or self._evaluation_is_due()
            if is_due or self._save_is_due():
                self._read(*pending, pace)
                pending = None
                with self.clock.during(EVALUATION):
                    self._checkpoint(stop) if is_due else self._save()
                if is_due and self._patience_is_over():
                    criterion = self.data.task.criterion
                    better = (
                        f"No lower validation loss ({criterion.noise} says nothing yet)"
                        if self._is_noise(max(self.journal.evaluations, key=standing))
                        else f"Neither a better {criterion.title} nor an equal one with a lower loss"
                    )
                    self.watch.message(f"{better} in {t.patience} evaluations: stopping at step {self.step}.")
                    return

    def _waited_for(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches; the time until each arrives counts as waiting for input."""
        while True:
            with self.clock.during(WAITING):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _read(self, step: int, metrics: Means, pace: Pace) -> None:
        """Checks that the loss of a step is finite, and logs the metrics if that is due."""
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not math.isfinite(values["loss"]) or not math.isfinite(values["gradient_norm"]):
            with contextlib.suppress(UserError):
                self.run.checkpoints.finish_saving()
            saved = self.run.checkpoints.steps()
            raise UserError(
                f"the loss is {values['loss']} and the gradient's norm {values['gradient_norm']} at "
                f"step {step}: lower the learning rate (--optimizer.peak or --optimizer.scale), warm up "
                "for longer, or clip (--optimizer.clip-norm 1). "
                + (f"The checkpoint of step {saved[-1]} is untouched" if saved else "Nothing was saved yet")
            )
        pace.took(step, self.data.size(step - 1, values["weight"]))
        time_left = self._time_left(0.0)
        self.watch.advance(step, *time_left)
        if step % self.config.training.log_every and step != self.config.training.steps:
            return
        rate, waited = pace.report()
        waits = gathered(waited)  # of each host
        waited = max(waits)
        if waited > MOST_WAITING and not self.has_warned_of_input:
            self.has_warned_of_input = True
            where = f" on host {waits.index(waited)}" * (len(waits) > 1)
            samples = getattr(self.config.data, "subword_sampling", 0)
            self.watch.message(
                f"Training waited for its input {waited:.0%} of the time up to step {step}{where}. The "
                "processor makes the batches: leave it idle cores"
                + ", or train without --data.subword-sampling"
                * bool(samples)
            )
        counted = self.config.data.counted
        shown = {name: values[name] for name in ("loss", "reward") if name in values}
        self.watch.step(step, self.config.training.steps, shown, rate, counted, *time_left)
        learning_rate = float(self.rate(step - 1)) * self.reduction
        record = {"kind": "training", "step": step, **values, "learning_rate": learning_rate}
        hosts = {"input_waits": waits} if len(waits) > 1 else {}
        self.journal.write(record | {f"{counted}_per_second": rate, "input_wait": waited} | hosts)

    def _time_left(self, current: float | None) -> tuple[float, bool]:
        """Seconds until the end of the test, and whether there is work of which it is not yet known how long
        it takes.

        Args:
          current: seconds that the present evaluation, or the test, needs. None: it is not known.
        """
        t, times = self.config.training, [current]
        if not self.is_testing:
            last = max((record["step"] for record in self.journal.evaluations), default=0)
            since = last if current == 0 else self.step
            evaluations = t.steps // t.evaluate_every - since // t.evaluate_every
            evaluations += t.steps % t.evaluate_every > 0 and since < t.steps
            seconds = self.evaluator.seconds("validation")
            times += [self.pace.seconds_left, *[seconds] * evaluations]
            times.append(self.evaluator.seconds(self.evaluator.tested))
        spans = [seconds for seconds in times if seconds is not None]
        until_deadline = self.deadline - time.monotonic()
        return min(sum(spans), until_deadline), len(spans) < len(times) and sum(spans) < until_deadline

    # Evaluation

    def _tell_evaluated(self, done: int, count: int, seconds: float | None) -> None:
        """Shows how far an evaluation, or the test, is."""
        activity = "testing" if self.is_testing else "evaluating"
        self.watch.phase(activity, done, count, *self._time_left(seconds))

    def _evaluation_is_due(self) -> bool:
        t = self.config.training
        last = max((record["step"] for record in self.journal.evaluations), default=0)
        return last < self.step and (self.step % t.evaluate_every == 0 or self.step == t.steps)

    def _checkpoint(self, stop: int) -> None:
        """Evaluates and saves a checkpoint. If a signal requests a stop, before or during the evaluation, it
        only saves and stops; the evaluation is rerun on resume."""
        with self.clock.during(EVALUATION):
            evaluation = None
            if not stop:
                evaluation = self._validated()
                stop = asked(self.stop_request)
            if evaluation:
                self._record_evaluation(*evaluation)
            else:
                self._save()
        if stop:
            self.run.checkpoints.finish_saving()
            self._stop(stop)

    def _validated(self) -> Validation | None:
        """The scores and samples of the evaluation; None if a stop was requested. If it fails, the state is
        saved first."""
        try:
            return self.evaluator.validate(self.state.best_variables, self.stop_request)
        except Exception as error:
            if jax.process_count() == 1 or isinstance(error, UserError):  # which all processes have
                self._save_now()
                again = resume_command(self.run, self.config)
                self.watch.message(f"The evaluation failed. Step {self.step} is saved. Resume with: {again}")
            raise

    def _save_is_due(self) -> bool:
        """Whether so many minutes have passed since the last checkpoint that the state is saved again. The
        clock of the main process decides."""
        minutes = self.config.training.save_minutes
        if minutes is None or not self._processes_meet():
            return False
        return gathered(time.monotonic() - self.last_save >= 60 * minutes)[0]

    def _save(self, scores: dict[str, float] | None = None) -> None:
        """Starts to save the state, with the scores of an evaluation if there was one."""
        self.run.checkpoints.save(self.state, scores)
        self.last_save = time.monotonic()

    def _save_now(self) -> None:
        self._save()
        self.run.checkpoints.finish_saving()

    def _record_evaluation(self, evaluation: Json, samples: list[Sample], overview: list[Json]) -> None:
        """Logs an evaluation, saves the state with its score, and shows the scores."""
        measure = self.data.task.criterion
        if not math.isfinite(evaluation[measure.name]):
            self._save_now()
            raise UserError(
                f"validation {measure.title} is {evaluation[measure.name]}, by which no checkpoint can be "
                f"compared: repair {type(self.data.task).__name__}.measures(). The state of step {self.step} "
                "is saved"
            )
        is_best = all(standing(evaluation) > standing(earlier) for earlier in self.journal.evaluations)
        record = {"kind": "evaluation", "step": self.step, **evaluation, "best": is_best}
        if drawn := self.data.drawn(self.step):
            record["drawn"] = drawn
        self.journal.write(record)
        self._reduce_rate(standing(evaluation))
        scores = {name: evaluation[name] for name in (measure.name, "merit", *LOSSES) if name in evaluation}
        self._save(scores)
        self.watch.evaluation(record, samples)
        if self._is_noise(evaluation) and not self.has_said_what_decides:
            self.has_said_what_decides = True
            self.watch.message(
                f"{measure.noise} says nothing yet: until then the lowest validation loss decides which "
                "checkpoint is best" + ", and when to stop" * (self.config.training.patience is not None)
            )
        if is_best:
            self._exhibit(self.state.best_variables, self.step, self.stop_request)
            self._write(self.step, overview, OVERVIEW)
        if is_main_process():
            write_report(self.run.path)

    def _reduce_rate(self, now: tuple[float, float]) -> None:
        """Lets the learning rate fall if its schedule asks for that after an evaluation."""
        options = self.config.optimizer
        if options.schedule != "plateau":
            return
        self.state = replace(self.state, optimizer=after_evaluation(self.state.optimizer, now, options))
        before, self.reduction = self.reduction, scale_of(self.state.optimizer)
        if self.reduction < before:
            self.watch.message(
                f"No better {self.data.task.criterion.title} in "
                f"{counted(options.decay_patience, 'evaluation')}: the learning rate falls to "
                f"{self.reduction:.3g} of the schedule's"
            )

    def _exhibit(self, variables: Variables, step: int, request: StopRequest) -> None:
        """Writes the exhibits of a checkpoint, if its task has any."""
        self._write(step, self.evaluator.exhibits(variables, request), EXHIBITS)

    def _write(self, step: int, exhibits: list[Json], name: str) -> None:
        """Writes what the report shows of a checkpoint, if there is something."""
        if exhibits and is_main_process():
            write_exhibits(self.run.path, step, exhibits, name)

    def _is_noise(self, evaluation: Json) -> bool:
        """Whether the score that decides says nothing in an evaluation."""
        measure = self.data.task.criterion
        return measure.is_noise(evaluation.get(measure.name, math.nan))

    def _patience_is_over(self) -> bool:
        patience = self.config.training.patience
        standings = list(map(standing, self.journal.evaluations))
        if patience is None or not standings:
            return False
        return len(standings) - 1 - standings.index(max(standings)) >= patience

    def test(self) -> tuple[int, Tested]:
        """Tests the best checkpoint. Returns its step, and the scores."""
        self.clock.enter(EVALUATION)
        self.is_testing = True
        step = self.run.checkpoints.best()
        variables = self.run.checkpoints.variables(step, model_of(self.state))
        if self.state.parametrisation.is_adapter:
            variables["params"] = self.state.parametrisation.merge(variables["params"], self.state.fixed)
        request = StopRequest(self.deadline)
        tested = self.evaluator.test(variables, request)
        if tested is None:
            self._stop(TIME_IS_OVER)
        if gathered(read_exhibits(self.run.path)[0])[0] != step:
            self._exhibit(variables, step, request)
        return step, tested

    def report(self, step: int, tested: Tested) -> None:
        """Writes the scores of the best checkpoint to results.json, and shows them."""
        split, records, scores, overview = tested
        self._write(step, overview, OVERVIEW)
        unit = self.data.task.unit
        results: Json = {"split": split, "checkpoint": step, "sentences": len(records), "unit": unit}
        for measure, score in scores.items():
            results[measure.name] = {
                "title": measure.title,
                "digits": measure.digits,
                "higher_is_better": measure.higher_is_better,
                **score.as_dict(),
            }
        if is_main_process():
            write_whole(self.run.path / "results.json", json.dumps(results, indent=2) + "\n")
        spent = self.journal.write_test(self.step)
        if is_main_process():
            write_report(self.run.path)
        criterion = self.data.task.criterion
        best = next((record for record in self.journal.evaluations if record["step"] == step), {})
        decided = criterion.title + (f", {best['scored']}" if "scored" in best else "")
        if self._is_noise(best):
            decided = f"loss, since {criterion.noise} says nothing"
        network = f"{self.config.system}, {self.config.model.described}"
        corpus = self.data.corpus
        self.watch.result(
            "Trained",
            [
                ("model", f"{network}, {self.num_parameters:,} parameters"),
                ("corpus", f"{corpus.name}, {len(corpus.splits['train']):,} {unit}"),
                ("steps", f"{self.step:,}"),
                ("best step", f"{step:,} by validation {decided}"),
                ("time", time_spent(spent)),
                ("tested on", f"{split}, all {len(records):,} {unit}"),
                *(
                    (f"{split} {name}", line)
                    for measure, score in scores.items()
                    for name, line in (
                        (measure.title, score.line(measure.digits)),
                        *((f"{measure.title}, {part}", measure.shown(x)) for part, x in score.parts.items()),
                    )
                ),
                ("written to", self.run.name),
                ("report", f"{self.run.name}/{REPORT}"),
            ],
        )
        if warning := overfitting(self.run.log.records("training"), self.journal.evaluations):
            self.watch.message(f"Warning: {warning}")
        task = self.data.task
        decode = command("decode", self.run.name)
        if isinstance(task, Lines) and (example := task.short_example(records, decode)):
            self.watch.message(f"Try: {example}", command=True)

    # Stopping

    def _processes_meet(self) -> bool:
        """Whether several processes, which have to decide the same, communicate after this step."""
        return jax.process_count() == 1 or self.step % ASK_EVERY == 0

    def _stop(self, signal: int) -> NoReturn:
        again = resume_command(self.run, self.config)
        if signal != TIME_IS_OVER:
            raise Stopped(f"Stopped at step {self.step} and saved. Resume with: {again}", signal)
        remedy = ""
        if self.step == self.first_step:
            remedy = (
                "No update was made in that time: give it more, or fewer sentences to an evaluation "
                "(--training.evaluate-sentences). "
            )
        limit = f"{self.config.training.minutes:g} minutes (--training.minutes)"
        message = f"Stopped after {limit} at step {self.step} and saved. {remedy}Continue with: {again}"
        raise Stopped(message, 0)
