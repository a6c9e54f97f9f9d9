"""Decodes records of any task with a trained model."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, TypeVar

import jax

from transformer.config.arguments import any_number, seconds, true_or_false, whole_number
from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.config.ranges import Option, instance, shown
from transformer.config.searches import MbrConfig, changed_search
from transformer.data.sequences import length_in_search
from transformer.data.store import Record
from transformer.decoding.service.lanes import Preparation
from transformer.decoding.service.queue import Admission, Answer, Request, Together
from transformer.decoding.service.service import prepare
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import refuse_forked
from transformer.tasks.outputs import Output
from transformer.translator.loaded import LoadedModel, TaskT
from transformer.translator.search_inputs import SearchServices, search_inputs, within_positions
from transformer.translator.search_outputs import (
    NO_EXTRAS,
    Extras,
    check_extras,
    programs_of_extras,
    search_outputs,
)

AHEAD = 4096  # records read, and outputs buffered, while an earlier one is searched
TOGETHER = 256  # records prepared at once
SHOWN = 8  # of the records of a request, one in so many is seen to grow before all are joined again
Numbered = tuple[int, Record] | None
ItemT = TypeVar("ItemT")


class Decoder(LoadedModel[TaskT]):
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
    """

    extras: ClassVar[tuple[str, ...]] = ()
    """What may be asked of each output besides: names of `Extras`."""

    def __init__(self, config: Config, variables: Variables, task: TaskT, *, warns: bool = True) -> None:
        super().__init__(config, variables, task)
        self._warns = warns
        self._services = SearchServices()
        self._admission = Admission()

    def decode(
        self, records: Sequence[Record], *, n_best: int | None = None, first_line: int = 1, **options: Option
    ) -> list[list[Output]]:
        """The outputs for every record, best first.

        Args:
          records: what the task reads.
          n_best: outputs for each. None: all that the search returns.
          first_line: the number of the first record, for warnings and for sampling.
          options: any field of `DecodingConfig`, and what to return besides (`extras`).

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
        extras, options = NO_EXTRAS.asked(self.extras, options)
        return self.outputs(numbered, self.settings(n_best, options), n_best, extras)

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
                    chunk.append((numbered[0], self._as_read(numbered[1], longest)))
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

    def answers(
        self,
        requests: Iterable[tuple[int, ItemT, Record] | None],
        settings: DecodingConfig,
        n_best: int | None,
        extras: Extras = NO_EXTRAS,
    ) -> Iterator[tuple[int, ItemT, list[Any]] | None]:
        """As `outputs`, of which each comes with the number and the item of its record.

        Args:
          requests: numbers, items, such as lines of text, and records; None where no other has arrived yet.
          settings: as of `outputs`, and so are n_best and extras.
          n_best: see `settings`.
          extras: see `settings`.
        """
        waiting = deque[tuple[int, ItemT]]()

        def records() -> Iterator[Numbered]:
            for request in requests:
                if request:
                    waiting.append(request[:2])
                yield request and (request[0], request[2])

        for outputs in self.outputs(records(), settings, n_best, extras):
            yield outputs and (*waiting.popleft(), outputs)

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
          extras: what to return besides; also by their names.
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
        extras, options = self._asked(extras, options)
        settings = self.settings(n_best, options)
        numbered = [(line, self._as_read(record, settings.buckets[-1]))]
        return self._admitted(numbered, settings, n_best, extras, priority, deadline, partial)

    def _admitted(
        self,
        records: Sequence[tuple[int, Record]],
        settings: DecodingConfig,
        n_best: int | None,
        extras: Extras,
        priority: int,
        deadline: float | int | None,
        partial: Callable[[Output], None] | None,
        join: Callable[[list[list[Output]]], list[Output]] | None = None,
    ) -> Future[list[Output]]:
        """Begins to decode the numbered records of a request. Arguments are those of `submit`.

        Args:
          join: makes the outputs of the request from those of its records. None: there is one record.
        """
        until = None if deadline is None else time.monotonic() + seconds("deadline", deadline)
        urgency = {"priority": whole_number("priority", priority), "deadline": until}
        if partial is not None and not callable(partial):
            raise UserError(f"partial must be a function, not {type(partial).__name__}")
        latest = {line: [self.task.empty_output()] for line, _ in records} if join else {}
        steps = itertools.count()

        def show(result: Any, request: Request) -> None:
            outputs = self.task.outputs(result, request.record, 1)[:1]
            if join:
                latest[request.line] = outputs
                if next(steps) % (1 + len(latest) // SHOWN):
                    return
                outputs = join(list(latest.values()))
            partial(outputs[0])  # type: ignore[misc]

        self._admission.admit()
        future: Future[list[Output]] | None = None
        try:
            show_partial = show if partial else None
            futures = self._submit_all(records, settings, n_best, extras, partial=show_partial, **urgency)
            future = Together(futures, join) if join else futures[0]
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
          extras: what is returned besides; also by their names.
          options: as in `decode`.
        """
        prepare(self.preparation(extras=extras, **options))

    def preparation(self, *, extras: Extras = NO_EXTRAS, **options: Option) -> Preparation:
        """What `warm_up` does, in stages. As soon as the first are done nobody needs to wait for programs who
        wants no `extras`; until all are done, the search has fewer of them, and may be slower."""
        return self._preparation({}, *self._asked(extras, options))

    def _preparation(
        self, records: Mapping[int, Record], extras: Extras, options: dict[str, Option]
    ) -> Preparation:
        """As `preparation`, for searches that are steered as those of records are."""
        refuse_forked()
        check_extras(self, extras)
        settings = self.settings(None, options)
        service = self._services.service(
            self,
            settings,
            search_inputs(self.system, self.task, records, settings, (), self.language_model, self.bias),
        )
        jobs = programs_of_extras(self, service.shapes, settings, extras)
        of_search = service.preparation()
        if settings.coverage_penalty:
            return Preparation((*of_search.first, jobs), of_search.rest)
        return Preparation(of_search.first, (*of_search.rest, jobs))

    def settings(self, n_best: int | None, options: dict[str, Option]) -> DecodingConfig:
        """The options of a search: those given, otherwise the run's. Raises UserError if they are invalid
        for this model."""
        instance("options", options, Mapping)
        instance("method", options.get("method"), str | None)
        settings = changed_search(self.config.decoding, options)
        limit = settings.num_hypotheses
        is_too_low = isinstance(n_best, int) and n_best < 1
        if n_best is not None and (is_too_low or whole_number("n_best", n_best, 1) > limit):
            raise UserError(
                f"--n-best {shown(n_best)}: must be at least 1 and at most {limit}, which this search keeps; "
                "see --decoding.beam-size, --decoding.samples and --decoding.method"
            )
        self.system.check_search(self.task, settings)
        return within_positions(settings, self.longest, self.longest_source)

    # Inside

    def finished(self, result: Any, request: Request) -> list[Output]:
        """The outputs of a request, best first. It runs in the thread that has searched it."""
        with jax.default_device(None):  # in any worker the programs that `programs_of_extras` compiles
            return search_outputs(self, request, result)

    def _asked(self, extras: Extras, options: Mapping[str, Option]) -> tuple[Extras, dict[str, Option]]:
        """Extras, also those among the keywords of a search, and its other keywords."""
        instance("extras", extras, Extras)
        return extras.asked(self.extras, options)

    def _as_read(self, record: Record, longest: int) -> Record:
        """A record without what the search does not read. Raises UserError if it is no record of the task."""
        record_type = self.task.record_type
        if not isinstance(record, record_type):
            raise UserError(f"a record must be of the type {record_type.__name__}, not {shown(record)}")
        return self.task.as_read(record, longest)

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
        is_reranked = isinstance(settings, MbrConfig) or settings.coverage_penalty > 0
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
