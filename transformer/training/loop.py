"""The loop people watch: train, log, evaluate, save, stop, resume."""

import contextlib
import dataclasses
import json
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from tensorboardX import SummaryWriter

from transformer.config import Config, differences
from transformer.data.batching import Tokenizers, fixed_batches
from transformer.data.corpora import Corpus, open_corpus
from transformer.data.pipeline import TrainingData, corpus_tokenizers, prepare
from transformer.decoding.translator import Translator
from transformer.errors import Stopped, UserError
from transformer.evaluation import bleu, chrf, exact_match
from transformer.parallel import device_batches, pmap_step, replicate
from transformer.run import Run
from transformer.systems import check_system, find_system
from transformer.training.schedule import learning_rate, make_optimizer
from transformer.training.step import TrainState, init_state, make_eval_step, make_train_step
from transformer.training.watch import Watch

CHANGEABLE = (
    "training.steps",
    "training.patience",
    "training.keep_last",
    "training.samples",
    "data.cache_dir",
)
"""Options that a resumed run may be given anew: they change no number already computed."""


def train(config: Config, run_dir: Path | str | None = None, *, watch: Watch | None = None) -> Path:
    """Trains what the config describes, and evaluates the best checkpoint on the test set.

    Args:
      config: everything.
      run_dir: where to; a run that is there already goes on where it stopped. None: a new
        directory under runs/.
      watch: what shows the progress. None: standard output, from the first host.

    Returns:
      The run directory.

    Raises:
      UserError: bad input; the run directory belongs to another config; the loss became
        non-finite; a checkpoint could not be written.
      Stopped: SIGINT or SIGTERM arrived; the state was saved.
    """
    watch = watch or Watch(quiet=jax.process_index() > 0)
    start = time.monotonic()
    check_system(config)
    run = _existing(run_dir, config)
    if run:
        config = dataclasses.replace(config, model=run.config.model)
    corpus = open_corpus_shown(config, watch)
    if run is None:
        tokenizers = corpus_tokenizers(corpus, config.data, config.model.special, watch.progress)
        config = _with_vocabulary(config, tokenizers)
        find_system(config.system).objective(config)  # refuses what it cannot learn, before there is a run
        run = Run.create(run_dir or _new_directory(config), config, tokenizers, corpus.place.name)
    else:
        run.check_corpus(corpus.place.name)
    data = prepare(
        corpus,
        run.tokenizers,
        config.data,
        host=jax.process_index(),
        hosts=jax.process_count(),
        progress=watch.progress,
    )
    loop = Loop(config, run, data, watch)
    loop.train()
    loop.report(time.monotonic() - start)
    return run.path


def open_corpus_shown(config: Config, watch: Watch) -> Corpus:
    """`open_corpus`, saying so: the first time takes a while."""
    watch.say("Preparing the corpus ...")
    start = time.monotonic()
    corpus = open_corpus(config.data)
    sizes = ", ".join(f"{name} {len(pairs):,}" for name, pairs in corpus.splits.items())
    watch.say(f"  {corpus.name}: {sizes} pairs, in {time.monotonic() - start:.1f} s")
    return corpus


def _existing(run_dir: Path | str | None, config: Config) -> Run | None:
    """The run that is there already, if it is of this config."""
    if run_dir is None:
        return None
    if not Path(run_dir, "config.json").exists():
        Run.check_free(Path(run_dir))
        return None
    run = Run(run_dir)
    given = dataclasses.replace(config, model=_sized_like(config, run.config))
    # a cosine's whole course depends on where it ends
    fixed = {"training.steps"} if run.config.optimizer.schedule == "cosine" else set()
    free = set(CHANGEABLE) - fixed
    changed = [line for line in differences(run.config, given) if line.split(":")[0] not in free]
    if changed:
        raise UserError(
            f"{run_dir} was made with another config: " + "; ".join(changed) + ". Leave these options "
            "out to go on with it, or choose another --run-dir"
        )
    return run


def _sized_like(config: Config, other: Config) -> Any:
    """The model config with the sizes that were taken from the tokenizers then."""
    model = config.model
    if not model.vocab_size:
        model = dataclasses.replace(
            model, vocab_size=other.model.vocab_size, target_vocab_size=other.model.target_vocab_size
        )
    return model


def _with_vocabulary(config: Config, tokenizers: Tokenizers) -> Config:
    source, target = (tokenizer.vocab_size for tokenizer in tokenizers)
    model = config.model
    if model.vocab_size and model.vocab_size != source:
        raise UserError(
            f"--model.vocab-size {model.vocab_size} but the tokenizer has {source} ids: leave it out"
        )
    separate = None if config.data.joint_vocabulary else target
    return dataclasses.replace(
        config, model=dataclasses.replace(model, vocab_size=source, target_vocab_size=separate)
    )


def _new_directory(config: Config) -> Path:
    """runs/<system>-<n>, the first n that is free."""
    number = 1
    while (path := Path("runs") / f"{config.system}-{number}").exists():
        number += 1
    return path


class Loop:
    """One training run, from wherever it stands to its end."""

    def __init__(self, config: Config, run: Run, data: TrainingData, watch: Watch) -> None:
        self.config, self.run, self.data, self.watch = config, run, data, watch
        system = find_system(config.system)
        model, optimizer, objective = (
            system.model(config.model),
            make_optimizer(config),
            system.objective(config),
        )
        t = config.training
        step = make_train_step(model, objective, optimizer, seed=t.seed, accumulate=t.accumulate, ema=t.ema)
        self.train_step = pmap_step(step, donate_state=True)
        self.eval_step = pmap_step(make_eval_step(model, objective))
        self.rate = learning_rate(config.optimizer, config.model.d_model, t.steps)
        self.state = self._first_state(model, optimizer)
        self.step = int(self.state.step)
        self.evaluations = self._earlier_evaluations()
        self.asked_to_stop = 0

    def _first_state(self, model: Any, optimizer: Any) -> TrainState:
        t = self.config.training
        steps = self.run.steps()
        if not steps:
            return replicate(init_state(model, optimizer, t.seed, average=t.ema > 0))
        shapes = jax.eval_shape(lambda: init_state(model, optimizer, t.seed, average=t.ema > 0))
        return replicate(self.run.restore(steps[-1], shapes))

    def _earlier_evaluations(self) -> list[dict[str, Any]]:
        """What metrics.jsonl tells of this run so far; lines past the checkpoint, written before
        the run was cut off, are taken out, since those steps will be taken again."""
        path = self.run.path / "metrics.jsonl"
        if not path.exists() or jax.process_index():
            return []
        records = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # the last line may be cut off
                record = json.loads(line)
                if record["step"] <= self.step and (record["kind"] != "evaluation" or record["bleu"] >= 0):
                    records.append(record)
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        path.write_text(text, encoding="utf-8")
        return [record for record in records if record["kind"] == "evaluation"]

    def train(self) -> None:
        """Takes the steps that are left."""
        t, plan = self.config.training, self.data.batcher.plan
        self.watch.say(
            f"{_size(self.state.params):,} parameters, vocabulary {self.config.model.vocab_size:,}, "
            f"{plan.steps_per_epoch:,} steps an epoch, padding {plan.padding:.1%}, "
            f"{plan.dropped:,} pairs dropped (longer than {self.config.data.max_length}, or empty); "
            f"{jax.device_count()} {jax.default_backend()} device(s)"
        )
        self.watch.say(
            f"{'Going on in' if self.step else 'Writing to'} {self.run.path}"
            + (f" from step {self.step}" if self.step else "")
        )
        if self.step >= t.steps or self._patience_is_over():
            return
        with self._signals(), self.watch.training(self.step, t.steps), self._events():
            batches = device_batches(
                self.data.batcher.stream(self.step, t.steps),
                pad=self.config.model.special.pad,
                multiple=t.accumulate,
            )
            self._take_steps(batches)
        self.run.finish_saving()

    def _take_steps(self, batches: Iterator[Any]) -> None:
        t = self.config.training
        pace = _Pace(self.step, t.steps)
        pending: tuple[int, Any] | None = None  # read one step late: the device never waits for us
        for batch in batches:
            self.state, metrics = self.train_step(self.state, batch)
            self.step += 1
            due = self.step % t.evaluate_every == 0 or self.step == t.steps
            if pending:
                self._read(*pending, pace)
            pending = (self.step, metrics)
            if due or self.asked_to_stop:
                self._read(*pending, pace)
                pending = None
                with pace.paused():
                    if due:
                        self._evaluate()
                    if self.asked_to_stop:
                        self._stop(saved=due)
                if due and self._patience_is_over():
                    self.watch.say(
                        f"No better BLEU in {t.patience} evaluations: stopping at step {self.step}."
                    )
                    return

    def _read(self, step: int, metrics: Any, pace: "_Pace") -> None:
        """Looks at the metrics of a step: is the loss a number, is it time to say something?"""
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

    def _log(self, record: dict[str, Any]) -> None:
        if jax.process_index():
            return
        self.run.log(record)
        for name, value in record.items():
            if isinstance(value, float):
                self.events.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    # Evaluation

    def _translator(self, variables: Any) -> Translator:
        return Translator(self.config, variables, self.run.tokenizers)

    def _evaluate(self) -> None:
        """Validation loss and BLEU of the state, and its checkpoint."""
        start, t = time.monotonic(), self.config.training
        pairs = self.data.corpus.splits["validation"]
        variables = self.state.best_variables
        nll, words = 0.0, 0.0
        fixed = fixed_batches(pairs, self.run.tokenizers, self.config.data)
        for batch in device_batches(fixed, pad=self.config.model.special.pad):
            sums = jax.device_get(self.eval_step(variables, batch))
            nll, words = nll + float(sums["nll"]), words + float(sums["weight"])
        sources, references = _sides(pairs.__getitems__(range(min(len(pairs), t.evaluate_sentences))))
        translations = self._translator(variables).translate(sources)
        references = [self.run.tokenizers[1].plain(text) for text in references]
        score = bleu(translations, references, t.bleu_tokenize)
        shown = _of_various_lengths(sources, t.samples)
        best = max((record["bleu"] for record in self.evaluations), default=-1.0)
        record = {
            "kind": "evaluation",
            "step": self.step,
            "nll": nll / words,
            "perplexity": math.exp(min(nll / words, 700)),
            "bleu": score.value,
            "signature": score.signature,
            "best": score.value > best,
            "seconds": time.monotonic() - start,
            "samples": [translations[index] for index in shown],
        }
        self.evaluations.append(record)
        self._log(record)
        self.run.save(self.state, score.value)
        self.watch.evaluation(record, [(sources[i], references[i], translations[i]) for i in shown])

    def _patience_is_over(self) -> bool:
        patience, scores = self.config.training.patience, [record["bleu"] for record in self.evaluations]
        if patience is None or not scores:
            return False
        return len(scores) - 1 - scores.index(max(scores)) >= patience

    def report(self, seconds: float) -> None:
        """Test scores of the best checkpoint, written to results.json and shown."""
        step = self.run.best_step()
        variables = self.run.variables(step, self.state.best_variables)
        split = "test" if "test" in self.data.corpus.splits else "validation"
        sources, references = _sides(list(self.data.corpus.splits[split]))
        translations = self._translator(variables).translate(sources)
        references = [self.run.tokenizers[1].plain(text) for text in references]
        tokenize = self.config.training.bleu_tokenize
        scores = {
            "bleu": bleu(translations, references, tokenize),
            "chrf": chrf(translations, references),
            "exact": exact_match(translations, references),
        }
        results = {"split": split, "checkpoint": step, "sentences": len(sources)}
        results |= {name: score.as_dict() for name, score in scores.items()}
        text = json.dumps(results, indent=2) + "\n"
        (self.run.path / "results.json").write_text(text, encoding="utf-8")
        m = self.config.model
        network = f"{self.config.system}, {m.num_layers}+{m.decoder_depth} layers, d_model {m.d_model}"
        self.watch.result(
            "Trained",
            [
                ("model", f"{network}, {_size(self.state.params):,} parameters"),
                ("corpus", f"{self.data.corpus.name}, {len(self.data.corpus.splits['train']):,} pairs"),
                ("steps", f"{self.step:,} (best by validation BLEU: {step:,})"),
                ("time", f"{int(seconds // 60)} min {seconds % 60:.0f} s"),
                (f"{split} BLEU", f"{scores['bleu'].value:.2f}   {scores['bleu'].signature}"),
                (f"{split} chrF", f"{scores['chrf'].value:.2f}   {scores['chrf'].signature}"),
                (f"{split} exact", scores["exact"].detail.removeprefix("exact match = ")),
                ("written to", str(self.run.path)),
            ],
        )
        self.watch.say(
            f"Try: echo {json.dumps(sources[0], ensure_ascii=False)} | python decode.py {self.run.path}"
        )

    # Stopping

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask to stop after the step; a second one ends at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked_to_stop = number
            # not what it was before: a job started in the background began with SIGINT ignored
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            self.watch.say("Stopping after this step; again to stop without saving.")

        before = {}
        try:
            for number in map(int, (signal.SIGINT, signal.SIGTERM)):
                before[number] = signal.signal(number, ask)
        except ValueError:  # not the main thread: somebody else's program handles signals
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, saved: bool) -> None:
        if not saved:
            self.run.save(self.state)
        self.run.finish_saving()
        raise Stopped(
            f"Stopped at step {self.step} and saved. Go on with: python train.py --run-dir {self.run.path}",
            self.asked_to_stop,
        )

    @contextlib.contextmanager
    def _events(self) -> Iterator[None]:
        folder = str(self.run.path / "tensorboard")
        with SummaryWriter(folder, write_to_disk=jax.process_index() == 0) as self.events:
            yield


def _size(params: Any) -> int:
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


def _of_various_lengths(sentences: list[str], count: int) -> list[int]:
    """Indices of `count` sentences, from one of middling length to one of the longest."""
    order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]))
    shares = [0.5 + 0.45 * rank / max(count - 1, 1) for rank in range(count)]
    return [order[int(share * len(order))] for share in shares]


def _sides(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [source for source, _ in pairs], [target for _, target in pairs]
