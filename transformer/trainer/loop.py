"""The training loop: train, log, evaluate, save, stop, resume."""

import contextlib
import json
import math
import platform
import shlex
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.core import FrozenDict

from transformer.commands import called
from transformer.config import Config
from transformer.config.locations import as_options, locations
from transformer.data.batching import sides
from transformer.errors import Stopped, UserError
from transformer.files import Json, write_whole
from transformer.runs.report import REPORT, write_report
from transformer.runs.report.logged import duration
from transformer.runs.run import Run, merit
from transformer.runtime.console import Watch
from transformer.runtime.hosts import gathered, is_main_process
from transformer.runtime.sharding import layout_of
from transformer.systems.registry import declared_parameters, find_system, model_shapes
from transformer.tasks.preparation import TrainingData
from transformer.trainer.evaluator import Evaluator, Sample
from transformer.trainer.events import Events
from transformer.trainer.signals import asked, stop_requests
from transformer.training.objective import Batch, Objective
from transformer.training.schedule import learning_rate, make_optimizer
from transformer.training.step import Means, Params, TrainState, init_state, make_train_step

NONE_GIVEN: FrozenDict[str, Any] = FrozenDict()
ASK_EVERY = 8  # steps between the checks of several processes whether to stop


class Loop:
    """A training run, from its current step to the end."""

    def __init__(
        self,
        config: Config,
        objective: Objective,
        run: Run,
        data: TrainingData,
        watch: Watch,
        parent: Run | None = None,
    ) -> None:
        self.config, self.run, self.data, self.watch = config, run, data, watch
        model, optimizer = find_system(config.system).model(config.model), make_optimizer(config)
        t = config.training
        self.layout = layout_of(config.mesh, declared_parameters(config))
        step = make_train_step(
            model,
            objective,
            optimizer,
            seed=t.seed,
            accumulate=t.accumulate,
            ema=t.ema,
            gather=self.layout.gather,
        )
        self.train_step = self.layout.spread(step, donate_state=True)
        self.evaluator = Evaluator(config, objective, data, self.layout)
        self.rate = learning_rate(config.optimizer, config.model.d_model, t.steps)
        self.state = self._first_state(model, optimizer, parent)
        self.step = int(self.state.step)
        earlier = self._earlier() if is_main_process() else ([], 0.0)
        self.evaluations, self._elapsed_before = gathered(earlier)[0]
        self._began = time.monotonic()

    def _first_state(
        self, model: nn.Module, optimizer: optax.GradientTransformation, parent: Run | None
    ) -> TrainState:
        t, system = self.config.training, find_system(self.config.system)
        example, carry = system.task.example(), system.carry(self.config)

        def first(variables: Mapping[str, Any] = NONE_GIVEN) -> TrainState:
            average = t.ema > 0
            return init_state(
                model, optimizer, t.seed, example, average=average, variables=variables, carry=carry
            )

        if self.run.steps():
            shapes = jax.eval_shape(first)
            state = self.run.resume(shapes, self.watch.message)
            assert state  # there are checkpoints
            return self.layout.place(state)
        if parent is None and t.init_from:  # stopped before its first checkpoint
            parent = Run(t.init_from)
        variables = parent.variables("best", model_shapes(parent.config)) if parent else {}
        return self.layout.place(first(variables))

    def _earlier(self) -> tuple[list[Json], float]:
        """The evaluations in metrics.jsonl, and the seconds trained. Removes the records after the checkpoint
        from the file, since those steps will be repeated."""
        records = [record for record in self.run.records() if record["step"] <= self.step]
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        write_whole(self.run.path / "metrics.jsonl", text)
        seconds = [each["elapsed"] for each in records if isinstance(each.get("elapsed"), int | float)]
        return [each for each in records if each["kind"] == "evaluation"], max(seconds, default=0.0)

    def train(self) -> None:
        """Trains for the remaining steps."""
        t, plan = self.config.training, self.data.batcher.plan
        outgrown = f" and {plan.outgrown:.2%} of the sampled segmentations" if plan.outgrown else ""
        self.watch.message(
            f"{_size(self.state.params):,} parameters, vocabulary {self.config.model.vocab_size:,}, "
            f"{plan.steps_per_epoch:,} steps an epoch, padding {plan.padding:.1%}, {plan.dropped:,} "
            f"{self.data.task.unit} dropped (longer than {self.config.data.max_length}, or empty){outgrown}; "
            f"{jax.device_count()} {jax.default_backend()} device(s)"
        )
        left = self.step < t.steps and not self._patience_is_over()
        if not left and not self._evaluation_is_due():
            self.watch.message(f"Training is complete in {self.run.path}: testing step {self.step} again")
            return
        self.watch.message(
            f"{'Resuming' if self.step else 'Writing to'} {self.run.path}"
            + (f" from step {self.step}" if self.step else "")
        )
        with (
            stop_requests(self.watch.descriptor) as self.stop_request,
            self.watch.training(self.step, t.steps),
            contextlib.closing(Events(self.run.path / "tensorboard"))
            if is_main_process()
            else contextlib.nullcontext() as self.events,
        ):
            self._log_start()
            if self._evaluation_is_due():  # it was stopped before the evaluation
                self._keep(stop=0)
            batches = self.layout.batches(
                self.data.batcher.stream(self.step, t.steps),
                fill={name: field.fill for name, field in self.data.task.fields.items()},
                multiple=t.accumulate,
            )
            if not self._patience_is_over():
                self._take_steps(batches)
            self.run.finish_saving()
            if stop := asked(self.stop_request):
                self._stop(stop)

    def _log_start(self) -> None:
        """Logs the data, devices and versions, for the report page."""
        plan, task = self.data.batcher.plan, self.data.task
        counts, buckets = {}, zip(*task.batching().buckets, strict=True)
        for side, lengths, edges in zip(sides(task.fields), self.data.lengths.T, buckets, strict=True):
            found = np.bincount(np.searchsorted(edges, lengths), minlength=len(edges) + 1)
            counts[side] = dict(zip([*map(str, edges), "more"], found.tolist(), strict=True))
        data = {
            "corpus": self.data.corpus.name,
            **{f"{name} {task.unit}": f"{len(each):,}" for name, each in self.data.corpus.splits.items()},
            "dropped": f"{plan.dropped:,} (empty, or longer than {self.config.data.max_length} tokens)",
            "padding": f"{plan.padding:.1%} of the positions in a batch",
            "steps an epoch": f"{plan.steps_per_epoch:,}",
            "lengths": counts,
        }
        devices = f"{jax.device_count()} {jax.devices()[0].device_kind}, {jax.process_count()} process(es)"
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "flax", "optax"))
        versions += f", Python {platform.python_version()}"
        about = {"date": time.strftime("%Y-%m-%d %H:%M"), "devices": devices, "versions": versions}
        about["parameters"] = f"{_size(self.state.params):,}"
        if is_main_process():
            self.run.log({"kind": "start", "step": self.step, **about, "data": data})

    def _take_steps(self, batches: Iterator[Batch]) -> None:
        t = self.config.training
        pace = _Pace(self.step, t.steps)
        pending: tuple[int, Means] | None = None  # read one step late, so that the device never waits
        for batch in batches:
            self.state, metrics = self.train_step(self.state, batch)
            self.step += 1
            if pending:
                self._read(*pending, pace)
            pending = (self.step, metrics)
            stop = self._asked_to_stop()
            if stop or self._evaluation_is_due():
                self._read(*pending, pace)
                pending = None
                with pace.paused():
                    self._keep(stop)
                if self._patience_is_over():
                    title = self.data.task.criterion.title
                    self.watch.message(
                        f"No better {title} in {t.patience} evaluations: stopping at step {self.step}."
                    )
                    return

    def _read(self, step: int, metrics: Means, pace: "_Pace") -> None:
        """Checks that the loss of a step is finite, and logs the metrics if that is due."""
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not math.isfinite(values["loss"]) or not math.isfinite(values["gradient_norm"]):
            with contextlib.suppress(UserError):
                self.run.finish_saving()
            kept = self.run.steps()
            raise UserError(
                f"the loss is {values['loss']} and the gradient's norm {values['gradient_norm']} at "
                f"step {step}: lower the learning rate (--optimizer.peak or --optimizer.scale), warm up "
                "for longer, or clip (--optimizer.clip-norm 1). "
                + (f"The checkpoint of step {kept[-1]} is untouched" if kept else "Nothing was saved yet")
            )
        pace.took(values["weight"])
        if step % self.config.training.log_every and step != self.config.training.steps:
            return
        tokens_per_second, seconds_left = pace.report(step)
        self.watch.step(step, self.config.training.steps, values["loss"], tokens_per_second, seconds_left)
        record = {"kind": "training", "step": step, **values, "learning_rate": float(self.rate(step - 1))}
        self._log(record | {"tokens_per_second": tokens_per_second})

    def _elapsed(self) -> float:
        """Seconds of training, including those before the checkpoint that was resumed."""
        return self._elapsed_before + time.monotonic() - self._began

    def _log(self, record: Json) -> None:
        if self.events is None:
            return
        self.run.log(record | {"elapsed": round(self._elapsed(), 1)})
        values = {name: value for name, value in record.items() if isinstance(value, float)}
        self.events.add(record["step"], {f"{record['kind']}/{name}": x for name, x in values.items()})

    # Evaluation

    def _evaluation_is_due(self) -> bool:
        t, last = self.config.training, max((record["step"] for record in self.evaluations), default=0)
        return last < self.step and (self.step % t.evaluate_every == 0 or self.step == t.steps)

    def _keep(self, stop: int) -> None:
        """Evaluates and saves a checkpoint. If a signal requests a stop, before or during the evaluation, it
        only saves and stops; the evaluation is rerun on resume."""
        found = None
        if not stop:
            found = self.evaluator.validate(self.state.best_variables, self.stop_request)
            stop = asked(self.stop_request)
        if found:
            self._tell_evaluation(*found)
        else:
            self.run.save(self.state)
        if stop:
            self.run.finish_saving()
            self._stop(stop)

    def _tell_evaluation(self, found: Json, samples: list[Sample]) -> None:
        """Logs an evaluation, saves the state with its score, and shows the scores."""
        best = max(map(merit, self.evaluations), default=-math.inf)
        record = {"kind": "evaluation", "step": self.step, **found, "best": found["merit"] >= best}
        self.evaluations.append(record)
        self._log(record)
        name = self.data.task.criterion.name
        self.run.save(self.state, {name: found[name], "merit": found["merit"]})
        self.watch.evaluation(record, samples)
        if is_main_process():
            write_report(self.run.path)

    def _patience_is_over(self) -> bool:
        patience, scores = self.config.training.patience, [merit(record) for record in self.evaluations]
        if patience is None or not scores:
            return False
        return len(scores) - 1 - scores.index(max(scores)) >= patience

    def report(self) -> None:
        """Tests the best checkpoint, writes the scores to results.json and shows them."""
        step = self.run.best_step()
        variables = self.run.variables(step, self.state.best_variables)
        split, records, scores = self.evaluator.test(variables)
        results: Json = {"split": split, "checkpoint": step, "sentences": len(records)}
        for measure, score in scores.items():
            results[measure.name] = {"title": measure.title, **score.as_dict()}
        text = json.dumps(results, indent=2) + "\n"
        if is_main_process():
            write_whole(self.run.path / "results.json", text)
            write_report(self.run.path)
        m, criterion = self.config.model, self.data.task.criterion.title
        network = f"{self.config.system}, {m.num_layers}+{m.decoder_depth} layers, d_model {m.d_model}"
        corpus, unit = self.data.corpus, self.data.task.unit
        self.watch.result(
            "Trained",
            [
                ("model", f"{network}, {_size(self.state.params):,} parameters"),
                ("corpus", f"{corpus.name}, {len(corpus.splits['train']):,} {unit}"),
                ("steps", f"{self.step:,} (best by validation {criterion}: {step:,})"),
                ("time", duration(self._elapsed())),
                *((f"{split} {measure.title}", score.line()) for measure, score in scores.items()),
                ("written to", str(self.run.path)),
                ("report", str(self.run.path / REPORT)),
            ],
        )
        if example := self.data.task.example_line(records[0]):
            self.watch.message(
                f"Try: echo {shlex.quote(example)} | {called('decode')} {self.run.path}", command=True
            )

    # Stopping

    def _asked_to_stop(self) -> int:
        """The signal that requested a stop, or 0. If any process received one, all stop at the same step."""
        if jax.process_count() > 1 and self.step % ASK_EVERY:
            return 0
        return asked(self.stop_request)

    def _stop(self, signal: int) -> None:
        again = f"{called('train')} --run-dir {self.run.path}{as_options(locations(self.config))}"
        raise Stopped(f"Stopped at step {self.step} and saved. Resume with: {again}", signal)


def _size(params: Params) -> int:
    return sum(x.size for x in jax.tree.leaves(params))


class _Pace:
    """Tokens per second since the last report, and time left; evaluations do not count."""

    def __init__(self, step: int, total: int) -> None:
        self._first, self._total = step, total
        self._since = self._start = time.monotonic()
        self._tokens = 0.0

    def took(self, tokens: float) -> None:
        self._tokens += tokens

    def report(self, step: int) -> tuple[float, float]:
        now = time.monotonic()
        rate = self._tokens / max(now - self._since, 1e-9)
        left = (now - self._start) / max(step - self._first, 1) * (self._total - step)
        self._since, self._tokens = now, 0.0
        return rate, left

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        before = time.monotonic()
        yield
        paused = time.monotonic() - before
        self._since, self._start = self._since + paused, self._start + paused
