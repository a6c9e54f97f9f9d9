"""Decodes records of any task with a trained model, in batches."""

import dataclasses
import functools
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Int

from transformer.config import Config, DecodingConfig, Option, check_beam
from transformer.data.batching import Fields, stacked
from transformer.data.corpus import Record
from transformer.data.plans import Example
from transformer.decoding.in_turn import batches_at_once, in_turn, meanwhile
from transformer.errors import UserError, nearest
from transformer.model.int8 import in_int8
from transformer.model.parameters import Variables
from transformer.runs.run import Run
from transformer.runtime.compilation import keep_programs
from transformer.runtime.forks import refuse_forked
from transformer.runtime.sharding import on_local_devices, shard_rows
from transformer.systems.registry import System, declared_parameters, find_system, model_shapes
from transformer.tasks.task import Output, Task

WINDOW = 4096  # records of a stream sorted by length at a time
FEW = 8  # n records one by one cost no more than a batch of n * FEW rows
Arrays = dict[str, np.ndarray]
Program = tuple[int, DecodingConfig]
"""What a compiled program depends on: padded length and search options."""
TaskT = TypeVar("TaskT", bound=Task)
D = TypeVar("D", bound="Decoder[Any]")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Padded inputs."""

    inputs: Arrays
    length: int
    """Their padded length."""
    lines: list[int]
    """The line number of each of the first rows; the other rows are empty."""


class Decoder(Generic[TaskT]):
    """A trained model that decodes. Threads may share it.

    An output does not depend on the rest of the batch, up to rounding: scores differ by millionths in
    float32, and by about a hundredth with int8 weights. Records of similar length are searched together,
    `decoding.rows` at a time, and padded to the smallest of `decoding.buckets` that holds them. Each bucket
    has one compiled program, and another one for only a few records, which are searched one by one. On a CPU
    two batches are searched concurrently in threads, where JAX context managers of the caller do not apply.

    Args:
      config: of the run.
      variables: of the model.
      task: what it reads and writes.
      warns: whether to log the lines that are changed, such as truncated ones.

    Attributes:
      origin: the run and the checkpoint it was loaded from, if any.
      programs: the programs compiled so far: padded length and search options, including rows (without seed
        and temperature, which all programs share).
    """

    def __init__(self, config: Config, variables: Variables, task: TaskT, *, warns: bool = True) -> None:
        self.config, self.task, self._warns = config, task, warns
        self.variables: Variables = on_local_devices(variables)
        self.system: System = find_system(config.system)
        self.model: nn.Module = self.system.model(config.model)
        self.programs: set[Program] = set()
        self.origin = ""
        self._compiling: dict[Program, threading.Lock] = {}

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
        refuse_forked()
        keep_programs()
        run = Run(run_dir)
        variables = run.checkpoints.variables(checkpoint, model_shapes(run.config))
        if int8:
            declared = declared_parameters(run.config)
            variables = in_int8(variables, {path: each.summed for path, each in declared.items()})
        decoder = cls.of_run(run, variables)
        decoder.origin = f"{run.path}, checkpoint {checkpoint}" + (", int8" if int8 else "")
        return decoder

    @classmethod
    def of_run(cls: type[D], run: Run, variables: Variables) -> D:
        """With the config and the task of a run."""
        task: Any = run.task
        return cls(run.config, variables, task)

    def fingerprint(self) -> str:
        """A hash of the network, its parameters and its vocabularies, which determine outputs."""
        digest = hashlib.blake2b(repr((self.config.system, self.config.model)).encode(), digest_size=16)
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
        settings = dealt_out(len(records), self.settings(n_best, options))
        return self.decoded(records, settings, n_best, first_line)

    def stream(
        self,
        records: Iterable[Record],
        *,
        window: int = WINDOW,
        n_best: int | None = None,
        first_line: int = 1,
        **options: Option,
    ) -> Iterator[list[Output]]:
        """`decode` for any number of records in bounded memory. Results are in order; `window` records at a
        time are sorted by length and searched."""
        numbered, settings = iter(records), self.settings(n_best, options)
        chunk = list(itertools.islice(numbered, window))
        settings = dealt_out(len(chunk), settings)  # a few records at the end use the same programs
        while chunk:
            yield from self.decoded(chunk, settings, n_best, first_line)
            first_line += len(chunk)
            chunk = list(itertools.islice(numbered, window))

    def warm_up(self, **options: Option) -> int:
        """Compiles all programs that `decode` with these options can need, except for alignments.

        Args:
          options: any field of `DecodingConfig`.

        Returns:
          The number of programs: one per bucket, and if a batch has many rows another for single records.
        """
        settings = self.settings(None, options)
        few_and_many = dict.fromkeys(dealt_out(count, settings) for count in (1, settings.rows))
        programs = [(chosen, length) for chosen in few_and_many for length in settings.buckets]
        for chosen, length in programs:
            self._compile(length, chosen)
        return len(programs)

    def settings(self, n_best: int | None, options: dict[str, Option]) -> DecodingConfig:
        """The options of a search: those given, otherwise the run's. Raises UserError if they are invalid
        for this model."""
        known = [item.name for item in dataclasses.fields(self.config.decoding)]
        for name in options:
            if name not in known:
                meant = nearest(name, known) or f"; there are {', '.join(known)}"
                raise UserError(f"search option {name!r} does not exist{meant}")
        settings = dataclasses.replace(self.config.decoding, **options)
        kept = 1 if settings.method == "greedy" else settings.beam_size
        if n_best is not None and not 1 <= n_best <= kept:
            raise UserError(
                f"--n-best {n_best}: must be at least 1 and at most {kept}, which this search keeps; see "
                "--decoding.beam-size and --decoding.method"
            )
        check_beam(settings, self.config.model)
        return within_positions(settings, self.config.model.longest)

    # Batches

    def decoded(
        self,
        records: Sequence[Record],
        settings: DecodingConfig,
        n_best: int | None,
        first_line: int,
        then: Callable[[Batch, Any, list[list[Output]]], None] | None = None,
    ) -> list[list[Output]]:
        """`decode` with checked options. `then` gets each batch, its search result and its outputs."""
        found: list[list[Output]] = [
            [self.task.empty_output()] if self.task.is_empty(record) else [] for record in records
        ]
        for batch, result in self.searched(records, settings, first_line):
            places = [line - first_line for line in batch.lines]
            outputs = [
                self.task.outputs(jax.tree.map(lambda x, row=row: x[row], result), records[place], n_best)
                for row, place in enumerate(places)
            ]
            if then:
                then(batch, result, outputs)
            for place, output in zip(places, outputs, strict=True):
                found[place] = output
        return found

    def searched(
        self, records: Sequence[Record], settings: DecodingConfig, first_line: int = 1
    ) -> Iterator[tuple[Batch, Any]]:
        """Yields batches and what the system's search returned for them, as NumPy arrays. The next ones are
        searched meanwhile."""
        refuse_forked()
        batches = list(self._batches(records, settings, first_line))
        results = in_turn(lambda batch: self._search(batch, settings), batches, batches_at_once())
        later = list(dict.fromkeys(batch.length for batch in batches))[1:]
        if batches_at_once() == 1:  # compile in the caller's thread: others lack its JAX contexts
            later = []
        # if this raises, waiting batches are cancelled
        with closing(results), meanwhile(functools.partial(self._compile, settings=settings), later):
            for batch, result in zip(batches, results, strict=True):
                yield batch, jax.tree.map(np.asarray, result)

    def _batches(
        self, records: Sequence[Record], settings: DecodingConfig, first_line: int
    ) -> Iterator[Batch]:
        """Yields batches of `rows` records of similar length."""
        lines = [line for line, x in enumerate(records, first_line) if not self.task.is_empty(x)]
        examples = self.task.input_examples(
            [records[line - first_line] for line in lines],
            settings.buckets[-1],
            lines if self._warns else (),
        )
        lengths = [self._length(example) for example in examples]
        for rows, length in of_like_length(lengths, settings):
            inputs = self._stacked([examples[row] for row in rows], length, settings.rows)
            yield Batch(inputs, length, [lines[row] for row in rows])

    @property
    def _fields(self) -> Fields:
        """The fields that decoding reads."""
        return {name: self.task.fields[name] for name in self.task.inputs}

    def _length(self, example: Example) -> int:
        return max((len(example[name]) for name, field in self._fields.items() if field.padded), default=1)

    def _stacked(self, examples: list[Example], length: int, rows: int) -> Arrays:
        """A batch of exactly `rows` rows. Additional rows are empty; a search skips them."""
        fields = self._fields
        lengths = [length for field in fields.values() if field.padded]
        return stacked([[example] for example in examples], fields, lengths, rows)

    def _search(self, batch: Batch, settings: DecodingConfig) -> Any:
        """What the system's search returns for a batch."""
        program = batch.length, settings.static()
        rows = len(next(iter(batch.inputs.values())))
        lines: Int[np.ndarray, " rows"] = np.resize(batch.lines, rows).astype(np.int32)
        # the first batch compiles while the others wait; otherwise each would compile
        compiling = self._compiling.setdefault(program, threading.Lock())
        with nullcontext() if program in self.programs else compiling:
            *arrays, lines_there = shard_rows(*batch.inputs.values(), lines)
            inputs = dict(zip(batch.inputs, arrays, strict=True))
            result = self.system.search(self.model, self.variables, inputs, lines_there, settings)
            self.programs.add(program)
        return jax.block_until_ready(result)

    def _compile(self, length: int, settings: DecodingConfig) -> None:
        """Compiles the program for this length, by searching an empty batch."""
        refuse_forked()
        if (length, settings.static()) not in self.programs:
            self._search(Batch(self._stacked([], length, settings.rows), length, [1]), settings)


def within_positions(settings: DecodingConfig, table: int | None) -> DecodingConfig:
    """Limits inputs and outputs to the size of a learned position table, if there is one."""
    if table is None:
        return settings
    buckets = (*(length for length in settings.buckets if length < table), table)
    return dataclasses.replace(
        settings,
        buckets=buckets if settings.buckets[-1] > table else settings.buckets,
        max_length=min(settings.max_length or table, table),
    )


def dealt_out(records: int, settings: DecodingConfig) -> DecodingConfig:
    """The options of each concurrent search, which share the rows. A few records are searched one by one."""
    rows = 1 if records <= settings.rows // FEW else max(1, settings.rows // batches_at_once())
    return dataclasses.replace(settings, rows=rows)


def of_like_length(lengths: list[int], settings: DecodingConfig) -> Iterator[tuple[list[int], int]]:
    """Yields indices of similar length, `rows` at a time, and their padded length: the smallest bucket that
    holds them. If the last batch is not full, it has the shortest."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for start in range(0, len(order), settings.rows):
        members = order[start : start + settings.rows]
        yield members, next(size for size in settings.buckets if size >= lengths[members[0]])
