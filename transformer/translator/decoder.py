"""Decodes records of any task with a trained model."""

import hashlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import (
    Config,
    DecodingConfig,
    MbrConfig,
    Option,
    changed_search,
)
from transformer.config.ranges import any_number, seconds, true_or_false, whole_number
from transformer.data.corpus import Record
from transformer.data.sequences import length_in_search
from transformer.decoding.admission import Admission
from transformer.decoding.calls import Inputs
from transformer.decoding.queue import Answer, Request
from transformer.model.encoder_decoder import EncoderDecoder
from transformer.model.int8 import INT8, in_int8
from transformer.model.parameters import Variables, count
from transformer.runs.run import Run, adapter_run
from transformer.runtime.arrays import on_local_devices
from transformer.runtime.compilation import keep_programs
from transformer.runtime.errors import UserError
from transformer.runtime.forks import refuse_forked
from transformer.systems.parameters import declared_parameters
from transformer.systems.registry import system_of
from transformer.systems.system import System
from transformer.tasks.outputs import DecodingTask, Output
from transformer.translator.biasing import Biasing, Names
from transformer.translator.confidence import Confidence
from transformer.translator.fusion import AnyLanguageModel, read_language_model
from transformer.translator.lengths import within_positions
from transformer.translator.search_inputs import search_inputs
from transformer.translator.search_outputs import (
    NO_EXTRAS,
    Extras,
    check_extras,
    compile_extras,
    search_outputs,
)
from transformer.translator.services import SearchServices

AHEAD = 4096  # records read, and outputs buffered, while an earlier one is searched
TOGETHER = 256  # records prepared at once
Numbered = tuple[int, Record] | None
TaskT = TypeVar("TaskT", bound=DecodingTask)
D = TypeVar("D", bound="Decoder[Any]")


class Decoder(Generic[TaskT]):
    """A trained model that decodes. Threads may share it: their records join the same search.

    An output does not depend on what else is searched, up to rounding: scores differ by millionths in
    float32, and by about a hundredth with int8 weights. Up to `decoding.rows` records are searched at once.
    When one is done, the next takes its place (`transformer.decoding.slots`). The search runs in threads,
    where JAX context managers of the caller do not apply.

    Args:
      config: of the run.
      variables: of the model.
      task: what it reads and writes.
      warns: whether to log the lines that are changed, such as truncated ones.

    Attributes:
      origin: the run and the checkpoint it was loaded from, if any.
      longest: the length up to which the decoder has positions; None: any.
      longest_source: that of the encoder.
      confidence: of its words, if the run has it (`transformer calibrate`).
      language_model: of the outputs, in its search (`use_language_model`). None: there is none.
      bias: names that its search expects (`use_names`). None: there are none.
    """

    reads: ClassVar[Any] = DecodingTask
    """The type of its runs' task."""
    does: ClassVar[str] = "decode"
    """What they do, for messages."""

    def __init__(self, config: Config, variables: Variables, task: TaskT, *, warns: bool = True) -> None:
        self.config, self.task, self._warns = config, task, warns
        self.longest = config.model.longest
        self.longest_source = config.model.longest_source
        self.variables: Variables = on_local_devices(variables)
        self.system: System = system_of(config)
        self.model: nn.Module = self.system.model(config.model)
        self.origin = ""
        self.confidence: Confidence | None = None
        self.language_model: AnyLanguageModel | None = None
        self.bias: Biasing | None = None
        self._services = SearchServices()
        self._admission = Admission()

    def __repr__(self) -> str:
        size = count(self.variables)
        parts = [self.origin, self.task.describe(), self.config.system, f"{size:,} parameters"]
        return f"<{type(self).__name__}: {', '.join(filter(None, parts))}>"

    def __reduce__(self) -> str:
        raise UserError(
            f"a {type(self).__name__} cannot be pickled: its compiled programs and arrays belong to this "
            f"process. Send the run directory, and call {type(self).__name__}.load there"
        )

    @classmethod
    def load(
        cls: type[D],
        run_dir: Path | str,
        checkpoint: str | int = "best",
        *,
        int8: bool = False,
        adapter: Path | str | None = None,
    ) -> D:
        """Loads a trained model from a run directory, which is self-contained.

        Args:
          run_dir: a run directory.
          checkpoint: "best" (by the first score of validation), "last", "average" (of the last ones), or a
            step.
          int8: use int8 weights (see `transformer.model.int8`): faster on CPUs, at similar quality.
          adapter: a run with changes of this model (--adapter.rank). Then the checkpoint is the adapter's. An
            adapter is loaded without this too, if the model is where it was in training.

        Raises:
          UserError: the directory or the checkpoint is missing or damaged; the adapter changes another model.
        """
        for name, path in (("run_dir", run_dir), *([("adapter", adapter)] if adapter is not None else [])):
            if not isinstance(path, str | Path):
                raise UserError(f"{name} {path!r}: must be the path of a run directory")
        int8 = true_or_false("int8", int8)
        refuse_forked()
        keep_programs()
        run = Run(run_dir)
        if adapter is None:
            variables = run.variables(checkpoint)
        else:
            base, run = run, adapter_run(adapter)
            step = run.config.adapter.base_step
            variables = run.variables(checkpoint, base.variables("best" if step is None else step)["params"])
        if int8:
            declared = declared_parameters(run.system, run.config)
            variables = in_int8(variables, {path: leaf.summed for path, leaf in declared.items()})
        decoder = cls.of_run(run, variables)
        decoder.origin = f"{run.name}, checkpoint {checkpoint}" + (", int8" if int8 else "")
        decoder.confidence = Confidence.read(run.path)
        return decoder

    def adapted(self: D, adapter: Path | str, checkpoint: str | int = "best") -> D:
        """This model with the changes of an adapter, trained on its parameters. It shares those arrays with
        this one that are not changed, and its compiled programs.

        Args:
          adapter: a run that was trained with --adapter.rank.
          checkpoint: of the adapter, as in `load`.

        Raises:
          UserError: it is no adapter, or one of another model; this one has int8 weights, or is an ensemble.
        """
        run = adapter_run(adapter)
        if INT8 in self.variables:
            raise UserError("adapted: load the model without int8, or the adapter with it")
        decoder = type(self).of_run(run, run.variables(checkpoint, self.variables["params"]))
        decoder.origin = f"{run.name}, checkpoint {checkpoint}"
        decoder.confidence = Confidence.read(run.path)
        return decoder

    @classmethod
    def of_run(cls: type[D], run: Run, variables: Variables) -> D:
        """With the config and the task of a run.

        Raises:
          UserError: it has another task.
        """
        task: Any = run.task
        if not isinstance(task, cls.reads):
            raise UserError(f"{run.name} holds a system that does not {cls.does}: {run.config.system}")
        return cls(run.config, variables, task)

    def use_language_model(self, path: Path | str | None, weight: float | int = 0.3) -> None:
        """Searches with a language model of the outputs from now on (shallow fusion): hypotheses are ranked
        by log P + weight * log p of it. Their `log_probability` stays that of the model.

        Args:
          path: a file in ARPA form, whose words are tokens of this model (`transformer ngram`), or a run of
            language-model with the vocabulary of the outputs. None: the search is without it.
          weight: with 0, outputs are those without it.

        Raises:
          UserError: there is no such model, or this one does not write text token by token.
        """
        self.longest = self.config.model.longest
        self.language_model = None
        if path is not None:
            self.language_model = read_language_model(Path(path), weight, self.system, self.task)
            lengths = self.longest, self.language_model.longest
            self.longest = min((length for length in lengths if length is not None), default=None)

    def use_names(self, names: Names | None, weight: float | int = 0.5) -> None:
        """Searches with names that outputs are expected to have from now on: a hypothesis gains the weight of
        each token of a name in it, but never more than the name costs. Its `log_probability` stays that of
        the model.

        Args:
          names: words or phrases, a dictionary of them with own weights, or the path of a file with one on
            each line, and after a tab its own weight. None: the search is without them.
          weight: in nats, by which own weights are multiplied. With 0, outputs are those without names.

        Raises:
          UserError: the names cannot be used, or this model does not write text token by token.
        """
        self.bias = None if names is None else Biasing.of(names, weight, self.system, self.task)

    def fingerprint(self) -> str:
        """A hash of the network, its parameters and its vocabularies, which determine outputs, and of its
        language model and names."""
        digest = hashlib.blake2b(repr((self.config.system, self.model)).encode(), digest_size=16)
        digest.update(self.task.content())
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.variables):
            digest.update(jax.tree_util.keystr(path).encode())
            digest.update(np.asarray(leaf).tobytes())
        if self.language_model and self.language_model.weight:
            digest.update(repr((self.language_model.identity, self.language_model.weight)).encode())
        if self.bias and self.bias.weight:
            digest.update(self.bias.fingerprint().encode())
        return digest.hexdigest()

    def decode(
        self, records: Sequence[Record], *, n_best: int | None = None, first_line: int = 1, **options: Option
    ) -> list[list[Output]]:
        """The outputs for every record, best first.

        Args:
          records: what the task reads.
          n_best: outputs for each. None: all that the search returns.
          first_line: the number of the first record, for warnings and for sampling.
          options: any field of `DecodingConfig`.

        Raises:
          UserError: n_best is more than the search keeps, an option is invalid, or the model's parameters are
            not finite.
        """
        return list(self.stream(records, n_best=n_best, first_line=first_line, **options))

    def stream(
        self,
        records: Iterable[Record | None],
        *,
        n_best: int | None = None,
        first_line: int = 1,
        **options: Option,
    ) -> Iterator[list[Output]]:
        """`decode` for any number of records in bounded memory. Outputs are in order.

        Args:
          records: what the task reads. The other arguments are those of `decode`.
        """
        records = any_number("inputs", records, "records")
        numbered = enumerate(records, whole_number("first_line", first_line))
        return self.outputs(numbered, self.settings(n_best, options), n_best)

    def outputs(
        self,
        records: Iterable[Numbered],
        settings: DecodingConfig,
        n_best: int | None,
        extras: Extras = NO_EXTRAS,
    ) -> Iterator[Any]:
        """`stream` with checked options, for records that may arrive slowly.

        Args:
          records: line numbers and records; None where no other has arrived yet.
          settings: of the search.
          n_best: as in `decode`.
          extras: what to return besides.

        Yields:
          The outputs of each record; None where no other has arrived and all are out.
        """
        futures = deque[Future[Any]]()
        unread = iter(records)
        longest = settings.buckets[-1]
        is_over = False
        try:
            while futures or not is_over:
                chunk = list[tuple[int, Record]]()
                is_paused = False
                room = 0 if is_over else min(TOGETHER, AHEAD - len(futures))
                for numbered in itertools.islice(unread, room):
                    if numbered is None:
                        is_paused = True
                        break
                    chunk.append((numbered[0], self.task.as_read(numbered[1], longest)))
                is_over = is_over or (len(chunk) < room and not is_paused)
                if chunk:
                    futures += self._submit_all(chunk, settings, n_best, extras)
                if is_paused and not futures:
                    yield None
                while futures and (futures[0].done() or is_over or len(futures) >= AHEAD):
                    yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()

    def submit(
        self,
        record: Record,
        *,
        n_best: int | None = None,
        line: int = 1,
        priority: int = 0,
        deadline: float | int | None = None,
        partial: Callable[[Output], None] | None = None,
        extras: Extras = NO_EXTRAS,
        **options: Option,
    ) -> Future[list[Output]]:
        """Begins to decode a record, and returns at once. Requests of all threads join the same search, with
        any options.

        Args:
          record: what the task reads.
          n_best: as in `decode`.
          line: its number, for warnings and for sampling.
          priority: requests with a higher one are searched first.
          deadline: seconds from now after which the search is not begun any more. Requests with an earlier
            one are searched first.
          partial: is called with the best unfinished output every few steps, if the model writes token by
            token. It runs in the thread that searches, so it must be short.
          extras: what to return besides.
          options: as in `decode`.

        Returns:
          A future of the outputs, best first; of `Expired`, if the deadline was over. It can be cancelled,
          also while it is searched. Its callbacks run in the thread that searches: they must be short, and
          cannot wait for other records.

        Raises:
          QueueFull: as many requests as `queue_limit` are not done.
          UserError: an option is invalid, or the model was closed.
        """
        line = whole_number("line", line)
        until = None if deadline is None else time.monotonic() + seconds("deadline", deadline)
        urgency = {"priority": whole_number("priority", priority), "deadline": until}
        settings = self.settings(n_best, options)
        numbered = line, self.task.as_read(record, settings.buckets[-1])
        if partial is not None and not callable(partial):
            raise UserError(f"partial must be a function, not {type(partial).__name__}")

        def show(result: Any, request: Request) -> None:
            (output,) = self.task.outputs(result, request.record, 1)[:1]
            partial(output)  # type: ignore[misc]

        self._admission.admit()
        future: Future[list[Output]] | None = None
        try:
            (future,) = self._submit_all(
                [numbered], settings, n_best, extras, partial=show if partial else None, **urgency
            )
            return future
        finally:
            self._admission.opened(future)

    @property
    def queue_limit(self) -> int | None:
        """How many requests of `submit` may be waiting or searched at once. None, the default: any number."""
        return self._admission.limit

    @queue_limit.setter
    def queue_limit(self, limit: int | None) -> None:
        if limit is not None and whole_number("queue_limit", limit) < 1:
            raise UserError(f"queue_limit {limit}: must be at least 1, or None")
        self._admission.limit = limit

    @property
    def waiting(self) -> int:
        """How many records wait to be searched."""
        return sum(service.waiting for service in list(self._services.values()))

    @property
    def searching(self) -> int:
        """How many are being searched: the slots in use."""
        return sum(service.busy for service in list(self._services.values()))

    def close(self, drain: bool = True, timeout: float | int | None = None) -> bool:
        """Accepts no more records, and waits for those that were submitted.

        Args:
          drain: whether to wait for them. False: they are cancelled.
          timeout: seconds after which those that are left are cancelled. None: waits until all are done.

        Returns:
          Whether none had to be cancelled.
        """
        until = None if timeout is None else seconds("timeout", timeout)
        return self._admission.close(true_or_false("drain", drain), until)

    def warm_up(self, *, extras: Extras = NO_EXTRAS, **options: Option) -> None:
        """Compiles all programs that `decode` with these options can need.

        Args:
          extras: what is returned besides.
          options: any field of `DecodingConfig`.
        """
        self._warm_up({}, extras, options)

    def _warm_up(self, records: Mapping[int, Record], extras: Extras, options: dict[str, Option]) -> None:
        """As `warm_up`, for searches that are steered as those of records are."""
        refuse_forked()
        check_extras(self, extras)
        settings = self.settings(None, options)
        service = self._services.service(
            self,
            settings,
            search_inputs(self.system, self.task, records, settings, (), self.language_model, self.bias),
        )
        service.prepare()
        if extras != NO_EXTRAS or getattr(settings, "coverage_penalty", 0) > 0:
            compile_extras(self, service.shapes, settings, extras)

    def settings(self, n_best: int | None, options: dict[str, Option]) -> DecodingConfig:
        """The options of a search: those given, otherwise the run's. Raises UserError if they are invalid
        for this model."""
        settings = changed_search(self.config.decoding, options)
        most = settings.num_hypotheses
        if n_best is not None and not 1 <= whole_number("n_best", n_best) <= most:
            raise UserError(
                f"--n-best {n_best}: must be at least 1 and at most {most}, which this search keeps; see "
                "--decoding.beam-size, --decoding.samples and --decoding.method"
            )
        self.system.check_search(self.task, settings)
        return within_positions(settings, self.longest, self.longest_source)

    # Inside

    def finished(self, result: Any, request: Request) -> list[Output]:
        """The outputs of a request, best first. It runs in the thread that has searched it."""
        return search_outputs(self, request, result)

    def source_positions(self, request: Request, inputs: Inputs) -> int:
        """The number of source positions that outputs attend to; the others are padding."""
        name, model = self.task.inputs[0], self.model
        if np.issubdtype(self.task.fields[name].dtype, np.integer) or not isinstance(model, EncoderDecoder):
            return len(request.example[name])
        return int(np.asarray(model.source_mask(jnp.asarray(inputs[name])))[0].sum())

    def _submit_all(
        self,
        records: Sequence[tuple[int, Record]],
        settings: DecodingConfig,
        n_best: int | None,
        extras: Extras = NO_EXTRAS,
        **urgency: Any,
    ) -> list[Future[Any]]:
        """Adds numbered records to the search, and returns the futures of their outputs. Fields of `Request`
        say how urgent they are."""
        refuse_forked()
        self._admission.check()
        check_extras(self, extras)
        filled = {line: record for line, record in records if not self.task.is_empty(record)}
        warned = list(filled) if self._warns else ()
        beside = self.language_model, self.bias
        inputs = search_inputs(self.system, self.task, filled, settings, warned, *beside)
        is_reranked = isinstance(settings, MbrConfig) or getattr(settings, "coverage_penalty", 0) > 0
        certain = None if is_reranked else n_best
        requests = dict[int, Request]()
        for (line, record), example in zip(filled.items(), inputs.examples, strict=True):
            searched = example, length_in_search(example, inputs.fields), line, settings, certain
            requests[line] = Request(*searched, self.finished, record, n_best, extras, **urgency)
        self._services.service(self, settings, inputs).submit(requests.values())
        empty = [line for line, _ in records if line not in requests]
        futures = {line: Answer.of([self.task.empty_output()]) for line in empty}
        futures |= {line: request.future for line, request in requests.items()}
        return [futures[line] for line, _ in records]
