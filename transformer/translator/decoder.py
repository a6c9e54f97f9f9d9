"""Decodes records of any task with a trained model."""

import dataclasses
import functools
import hashlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import (
    BeamConfig,
    Config,
    DecodingConfig,
    MbrConfig,
    Option,
    changed_search,
    check_beam,
)
from transformer.config.ranges import any_number, true_or_false, whole_number
from transformer.data.corpus import Record
from transformer.data.sequences import Example, Fields
from transformer.decoding.calls import Inputs
from transformer.decoding.diverse import distinct
from transformer.decoding.hooks import NO_HOOK, Hooks, SearchHook
from transformer.decoding.lanes import BatchSearch, Lane, ProgramKey, batch, sizes
from transformer.decoding.queue import Answer, Queue, Request
from transformer.decoding.rules import Rules
from transformer.decoding.search import AutoregressiveSearch
from transformer.decoding.workers import Worker, Workers, places
from transformer.errors import UserError
from transformer.model.int8 import in_int8
from transformer.model.parameters import Variables
from transformer.runs.run import Run
from transformer.runtime.arrays import on_local_devices
from transformer.runtime.compilation import keep_programs
from transformer.runtime.forks import refuse_forked
from transformer.systems.parameters import declared_parameters, model_shapes
from transformer.systems.registry import find_system
from transformer.systems.system import System
from transformer.tasks.task import Output, Steering, Task
from transformer.translator.lengths import of_like_length, within_positions

AHEAD = 4096  # records read, and outputs kept, while an earlier one is searched
TOGETHER = 256  # records prepared at once
END: Any = object()
Numbered = tuple[int, Record] | None
TaskT = TypeVar("TaskT", bound=Task)
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
      longest: the length up to which the model has positions; None: any.
    """

    reads: ClassVar[Any] = Task
    """The type of its runs' task."""
    does: ClassVar[str] = "decode"
    """What they do, for messages."""

    def __init__(self, config: Config, variables: Variables, task: TaskT, *, warns: bool = True) -> None:
        self.config, self.task, self._warns = config, task, warns
        self.longest = config.model.longest
        self.variables: Variables = on_local_devices(variables)
        self.system: System = find_system(config.system)
        self.model: nn.Module = self.system.model(config.model)
        self.origin = ""
        self._searches: dict[tuple[DecodingConfig, tuple[SearchHook, ...]], SearchService] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        size = sum(x.size for x in jax.tree.leaves(self.variables))
        parts = [self.origin, self.task.describe(), self.config.system, f"{size:,} parameters"]
        return f"<{type(self).__name__}: {', '.join(filter(None, parts))}>"

    def __reduce__(self) -> str:
        raise UserError(
            f"a {type(self).__name__} cannot be pickled: its compiled programs and arrays belong to this "
            f"process. Send the run directory, and call {type(self).__name__}.load there"
        )

    @classmethod
    def load(cls: type[D], run_dir: Path | str, checkpoint: str | int = "best", *, int8: bool = False) -> D:
        """Loads a trained model from a run directory, which is self-contained.

        Args:
          run_dir: a run directory.
          checkpoint: "best" (by the first score of validation), "last", "average" (of the last ones), or a
            step.
          int8: use int8 weights (see `transformer.model.int8`): faster on CPUs, at similar quality.

        Raises:
          UserError: the directory or the checkpoint is missing or damaged.
        """
        if not isinstance(run_dir, str | Path):
            raise UserError(f"run_dir {run_dir!r}: must be the path of a run directory")
        int8 = true_or_false("int8", int8)
        refuse_forked()
        keep_programs()
        run = Run(run_dir)
        variables = run.checkpoints.variables(checkpoint, model_shapes(run.config))
        if int8:
            declared = declared_parameters(run.config)
            variables = in_int8(variables, {path: each.summed for path, each in declared.items()})
        decoder = cls.of_run(run, variables)
        decoder.origin = f"{run.name}, checkpoint {checkpoint}" + (", int8" if int8 else "")
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

    def fingerprint(self) -> str:
        """A hash of the network, its parameters and its vocabularies, which determine outputs."""
        digest = hashlib.blake2b(repr((self.config.system, self.model)).encode(), digest_size=16)
        digest.update(self.task.content())
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.variables):
            digest.update(jax.tree_util.keystr(path).encode())
            digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()

    def decode(
        self,
        records: Sequence[Record],
        *,
        n_best: int | None = None,
        first_line: int = 1,
        **options: Option,
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
          records: what the task reads.
          n_best: as in `decode`.
          first_line: as in `decode`.
          options: as in `decode`.
        """
        records = any_number("inputs", records, "records")
        numbered = enumerate(records, whole_number("first_line", first_line))
        return self.outputs(numbered, self.settings(n_best, options), n_best)

    def outputs(
        self, records: Iterable[Numbered], settings: DecodingConfig, n_best: int | None, **then: Any
    ) -> Iterator[Any]:
        """`stream` with checked options, for records that may arrive slowly.

        Args:
          records: line numbers and records; None where no other has arrived yet.
          settings: of the search.
          n_best: as in `decode`.
          then: what `finished` needs besides.

        Yields:
          The outputs of each record; None where no other has arrived and all are out.
        """
        begun: deque[Future[Any]] = deque()
        as_read, longest = self.task.as_read, settings.buckets[-1]
        source, going_on = iter(records), True
        try:
            while going_on or begun:
                some: list[tuple[int, Record]] = []
                pause = False
                while going_on and not pause and len(some) < TOGETHER and len(begun) + len(some) < AHEAD:
                    numbered = next(source, END)
                    if numbered is END:
                        going_on = False
                    elif numbered is None:
                        pause = True
                    else:
                        some.append((numbered[0], as_read(numbered[1], longest)))
                if some:
                    begun += self._submit_all(some, settings, n_best, **then)
                if pause and not begun:
                    yield None
                while begun and (begun[0].done() or not going_on or len(begun) >= AHEAD):
                    yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()

    def submit(
        self, record: Record, *, n_best: int | None = None, line: int = 1, **options: Option
    ) -> Future[list[Output]]:
        """Begins to decode a record, and returns at once. Requests of all threads join the same search.

        Args:
          record: what the task reads.
          n_best: as in `decode`.
          line: its number, for warnings and for sampling.
          options: as in `decode`.

        Returns:
          A future of the outputs, best first. It can be cancelled. Its callbacks run in the thread that
          searches: they must be short, and cannot wait for other records.
        """
        numbered = whole_number("line", line), record
        (future,) = self._submit_all([numbered], self.settings(n_best, options), n_best)
        return future

    def warm_up(self, **options: Option) -> None:
        """Compiles all programs that `decode` with these options can need, except for alignments.

        Args:
          options: any field of `DecodingConfig`.
        """
        refuse_forked()
        self._search(self.settings(None, options)).workers.prepare()

    def settings(self, n_best: int | None, options: dict[str, Option]) -> DecodingConfig:
        """The options of a search: those given, otherwise the run's. Raises UserError if they are invalid
        for this model."""
        settings = changed_search(self.config.decoding, options)
        kept = settings.num_hypotheses
        if n_best is not None and not 1 <= whole_number("n_best", n_best) <= kept:
            raise UserError(
                f"--n-best {n_best}: must be at least 1 and at most {kept}, which this search keeps; see "
                "--decoding.beam-size, --decoding.samples and --decoding.method"
            )
        check_beam(settings, self.config.model)
        self.task.check_search(settings)
        return within_positions(settings, self.longest)

    # Searching

    def finished(
        self, found: Any, record: Record, settings: DecodingConfig, n_best: int | None
    ) -> list[Output]:
        """The outputs for a record, given what the search with these options found."""
        if isinstance(settings, BeamConfig) and settings.groups > 1:
            found = distinct(found)
        if isinstance(settings, MbrConfig):
            return self.task.consensus(self.task.outputs(found, record, None))[:n_best]
        return self.task.outputs(found, record, n_best)

    def _submit_all(
        self,
        records: Sequence[tuple[int, Record]],
        settings: DecodingConfig,
        n_best: int | None,
        **then: Any,
    ) -> list[Future[Any]]:
        """Adds records to the search, and returns the futures of their outputs."""
        refuse_forked()
        there = {line: record for line, record in records if not self.task.is_empty(record)}
        warned = list(there) if self._warns else ()
        examples, hooks, fields = self._steered(there, settings, warned)
        search = self._search(settings, hooks, fields)
        requests = {}
        ranked_anew = isinstance(settings, MbrConfig) or getattr(settings, "coverage_penalty", 0) > 0
        certain = None if ranked_anew else n_best
        for (line, record), example in zip(there.items(), examples, strict=True):
            length = self._length(example, fields)
            finish = functools.partial(self.finished, record=record, settings=settings, n_best=n_best, **then)
            lane = next(index for index, longest in enumerate(search.inputs) if longest >= length)
            requests[line] = Request(example, length, line, settings, finish, certain, lane)
        search.workers.submit(requests.values())
        return [requests[line].future if line in requests else self._empty() for line, _ in records]

    def _empty(self) -> Future[Any]:
        future = Answer()
        future.set_result([self.task.empty_output()])
        return future

    @property
    def _fields(self) -> Fields:
        """The fields that decoding reads."""
        return {name: self.task.fields[name] for name in self.task.inputs}

    def _length(self, example: Example, fields: Fields) -> int:
        return max((len(example[name]) for name, field in fields.items() if field.padded), default=1)

    def _steered(
        self, there: Mapping[int, Record], settings: DecodingConfig, warned: Sequence[int] = ()
    ) -> tuple[list[Example], tuple[SearchHook, ...], Fields]:
        """What the search reads of records, by their lines; the hooks that their outputs need; the fields."""
        records = list(there.values())
        examples = self.task.input_examples(records, settings.buckets[-1], warned)
        fields, asked = self._fields, self.task.steering(records, list(there))
        self._check_steering(list(there), examples, asked, settings)
        for each in asked:
            fields = {**fields, **each.fields}
            examples = [{**example, **more} for example, more in zip(examples, each.examples, strict=True)]
        return examples, tuple(each.hook for each in asked), fields

    def steered_inputs(self, record: Record, settings: DecodingConfig) -> tuple[Any, Inputs]:
        """The search of one record alone, and its inputs: arrays with one row, padded to its bucket."""
        (example,), hooks, fields = self._steered({1: record}, settings)
        ((_, length),) = of_like_length([self._length(example, fields)], settings)
        return self.steered(settings, hooks), jax.tree.map(jnp.asarray, batch([example], fields, length, 1))

    def _check_steering(
        self, lines: list[int], examples: list[Example], asked: list[Steering], settings: DecodingConfig
    ) -> None:
        """Raises UserError if this search cannot do what is asked, or an output has no room for it."""
        names = " and ".join(each.name for each in asked)
        if asked and not isinstance(self.system.search, AutoregressiveSearch):
            raise UserError(
                f"{names}: this needs an autoregressive model, and this one predicts all tokens at once; "
                "leave it out"
            )
        for each in asked:
            if each.by_beam and not (isinstance(settings, BeamConfig) and settings.groups == 1):
                raise UserError(
                    f"{each.name}: only --decoding.method beam, without --decoding.groups, can find them"
                )
        for line, example, *least in zip(lines, examples, *(each.min_lengths for each in asked), strict=True):
            most = self._room(example, settings)
            if sum(least) > most:
                limits = "extra-length", "max-length", "buckets"
                raise UserError(
                    f"line {line}: {sum(least)} tokens are asked for ({names}), and the output may have "
                    f"{most}: see {', '.join(f'--decoding.{limit}' for limit in limits)}"
                )

    def _room(self, example: Example, settings: DecodingConfig) -> int:
        longest = self._length(example, self._fields) + settings.extra_length
        return min(longest, settings.max_length or longest, settings.buckets[-1]) - 1

    def room(self, record: Record, settings: DecodingConfig) -> int:
        """How many tokens the output of a record may have, besides <eos>."""
        (example,) = self.task.input_examples([record], settings.buckets[-1])
        return self._room(example, settings)

    def _search(
        self, settings: DecodingConfig, hooks: Sequence[SearchHook] = (), fields: Fields | None = None
    ) -> "SearchService":
        """The search with these options, which goes on as long as there are requests."""
        key = settings.static(), tuple(hooks)
        with self._lock:
            if key not in self._searches:
                self._searches[key] = self._new_search(settings, hooks, fields or self._fields)
            return self._searches[key]

    def _new_search(
        self, settings: DecodingConfig, more: Sequence[SearchHook], fields: Fields
    ) -> "SearchService":
        whole = all(x.is_fully_replicated for x in jax.tree.leaves(self.variables))
        devices = places() if whole else [None]  # a model may be too large for one device
        rows, method = -(-settings.rows // len(devices)), self.steered(settings, more)
        variables = [self._on(device) for device in devices]
        if not isinstance(method, AutoregressiveSearch):
            queue = Queue(1)

            def batches(worker: int) -> list[Worker]:
                search = functools.partial(method, self.model, variables[worker])
                return [BatchSearch(search, settings, fields, queue, rows)]

            return SearchService(Workers(queue, batches, devices), [settings.buckets[-1]])
        padded = tuple(name for name, field in fields.items() if field.padded)
        job = ProgramKey(method, self.model, settings.static(), padded)
        each = sizes(job, fields, rows)
        queue = Queue(len(each))

        def lanes(worker: int) -> list[Worker]:
            return [
                Lane(index, job, size, fields, variables[worker], queue, len(devices))
                for index, size in enumerate(each)
            ]

        return SearchService(Workers(queue, lanes, devices), [size.inputs for size in each])

    def steered(self, settings: DecodingConfig, more: Sequence[SearchHook] = ()) -> Any:
        """The system's search, with the rules of the options and other hooks.

        Raises:
          UserError: a rule is about words, and outputs have none.
        """
        search = self.system.required("search")
        if not isinstance(search, AutoregressiveSearch) or not (settings.steered or more):
            return search
        hooks = [search.hook] if search.hook != NO_HOOK else []
        if settings.steered:
            phrases = tuple(ids for text in settings.forbidden for ids in self.task.phrases(text))
            hooks.append(Rules(settings.static(), self.config.model.special, search.limits, phrases))
        return dataclasses.replace(search, hook=Hooks((*hooks, *more)))

    def _on(self, device: jax.Device | None) -> Variables:
        """The variables on one of the devices that have them all; None: as they are."""
        if device is None:
            return self.variables

        def there(x: jax.Array) -> jax.Array:
            return next(part.data for part in x.addressable_shards if part.device == device)

        return jax.tree.map(there, self.variables)


@dataclasses.dataclass(frozen=True)
class SearchService:
    """A search with fixed options."""

    workers: Workers
    inputs: list[int]
    """The longest input of each lane of the queue."""
