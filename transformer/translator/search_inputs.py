"""What a search reads of records, what steers it (rules of the options, prefixes, terms), and the compiled
searches of a model."""

import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.data.sequences import Example, Fields, length_in_search
from transformer.data.store import Record
from transformer.decoding.calls import Inputs
from transformer.decoding.hooks import Hooks, SearchHook
from transformer.decoding.searches import shortlist
from transformer.decoding.searches.shortlist import Shortlist, shortlisted
from transformer.decoding.service.lanes import batch
from transformer.decoding.service.service import SearchService, has_room, programs_for, with_room
from transformer.decoding.steering.prefix import opening_of
from transformer.decoding.steering.rules import Rules
from transformer.runtime.errors import UserError
from transformer.systems.system import System, stepwise
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.text import Steering, TextTask, text_task
from transformer.translator.beside import Beside
from transformer.translator.loaded import LoadedModel

# The lengths of inputs and outputs, and batches of one length.


def within_positions(
    settings: DecodingConfig, longest: int | None, longest_source: int | None
) -> DecodingConfig:
    """Limits inputs and outputs to the sizes of learned position tables, if there are some."""
    if longest is not None:
        settings = dataclasses.replace(settings, max_length=min(settings.max_length or longest, longest))
    if longest_source is not None and settings.buckets[-1] > longest_source:
        shorter = (length for length in settings.buckets if length < longest_source)
        settings = dataclasses.replace(settings, buckets=(*shorter, longest_source))
    return settings


def bucket_of(length: int, settings: DecodingConfig) -> int:
    """The padded length of an input: that of the smallest bucket that holds it."""
    return next(size for size in settings.buckets if size >= length)


def of_like_length(lengths: list[int], settings: DecodingConfig) -> Iterator[tuple[list[int], int]]:
    """Yields indices of similar length, `rows` at a time, and their padded length: the smallest bucket that
    holds them. If the last batch is not full, it has the shortest."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for start in range(0, len(order), settings.rows):
        members = order[start : start + settings.rows]
        yield members, bucket_of(lengths[members[0]], settings)


def of_any_length(
    lengths: list[int], settings: DecodingConfig, table: int | None
) -> Iterator[tuple[list[int], int, int]]:
    """`of_like_length` for lengths of which some are beyond the buckets: yields indices, their padded length
    and the number of rows. Each of the longer ones is alone."""
    last = settings.buckets[-1]
    short = [index for index, length in enumerate(lengths) if length <= last]
    for members, length in of_like_length([lengths[index] for index in short], settings):
        yield [short[member] for member in members], length, settings.rows
    for index, length in enumerate(lengths):
        if length > last:
            whole = -(-length // last) * last
            yield [index], min(whole, table or whole), 1


def shapes_of_any_length(settings: DecodingConfig, table: int | None, longest: int) -> list[tuple[int, int]]:
    """All padded lengths and numbers of rows that `of_any_length` can have.

    Args:
      settings: as of `of_any_length`, and so is table.
      table: see `settings`.
      longest: of the lengths, at most.
    """
    last = settings.buckets[-1]
    longer = [min(whole, table or whole) for whole in range(2 * last, longest + last, last)]
    return [(length, settings.rows) for length in settings.buckets] + [(whole, 1) for whole in longer]


def padded(
    sentences: Sequence[Sequence[int]], length: int, rows: int, pad: int
) -> Int[np.ndarray, "{rows} {length}"]:
    """A batch of exactly `rows` rows."""
    batch = np.full((rows, length), pad, np.int32)
    for row, ids in enumerate(sentences):
        batch[row, : len(ids)] = ids
    return batch


@dataclasses.dataclass(frozen=True)
class SearchInputs:
    """What a search reads of records."""

    examples: Sequence[Example]
    """One for each record."""
    fields: Fields
    hooks: tuple[SearchHook, ...] = ()
    """What the outputs of these records need, such as prefixes."""
    language_model: Beside | None = None
    """In the search. None: there is none."""


def search_inputs(
    system: System,
    task: DecodingTask,
    records: Mapping[int, Record],
    settings: DecodingConfig,
    warned: Sequence[int] = (),
    language_model: Beside | None = None,
    bias: Beside | None = None,
) -> SearchInputs:
    """The inputs of records, by their line numbers. Those in `warned` are logged if they are truncated. A
    language model or names without weight are left out.

    Raises:
      UserError: this search cannot do what is asked of the outputs, or an output has no room for it.
    """
    lines = list(records)
    several = list(records.values())
    examples = task.input_examples(several, settings.buckets[-1], warned)
    fields = task.input_fields
    steerings = task.steering(several, lines) if isinstance(task, TextTask) else []
    if steerings:
        rooms = [_room(task, example, settings) for example in examples]
        _check_steering(system, steerings, settings, dict(zip(lines, rooms, strict=True)))
    for steering in steerings:
        fields = {**fields, **steering.fields}
        pairs = zip(examples, steering.examples, strict=True)
        examples = [{**example, **steered} for example, steered in pairs]
    hooks = [steering.hook for steering in steerings]
    if settings.steered and (steps := system.stepwise):
        phrases = _forbidden(task, settings)
        special, opening = task.config.model.special, opening_of(Hooks(tuple(hooks))).size
        rules = Rules.of(settings, special, steps.limits, phrases, opening)
        hooks.insert(0, rules)
        fields = {**fields, **rules.fields}
        examples = [{**example, **rules.example(settings, phrases)} for example in examples]
    for beside in (language_model, bias):
        if beside and beside.weight:
            check_steps(system.search_with(task.config.model, settings), beside.option)
            hooks += beside.hooks
            fields = {**fields, **beside.fields}
            of_beside = beside.example
            examples = [{**example, **of_beside} for example in examples]
    language_model = language_model if language_model and language_model.weight else None
    if settings.shortlist and isinstance(task, TextTask) and task.shortlist:
        sizes = settings.buckets[-1], task.config.model.output_size
        first = shortlist.always(task.config.model.special)
        examples, fields = _with_candidates(task.shortlist, first, examples, fields, sizes)
    return SearchInputs(examples, fields, tuple(hooks), language_model)


def check_steps(search: Any, option: str) -> None:
    """Raises UserError if a search does not choose one token after another."""
    if not stepwise(search):
        raise UserError(
            f"{option}: this search does not choose one token after another (as with CTC alone); leave it out"
        )


def _forbidden(task: DecodingTask, settings: DecodingConfig) -> list[tuple[int, ...]]:
    """The sequences of tokens of the forbidden phrases.

    Raises:
      UserError: outputs have no words.
    """
    return [
        ids
        for text in settings.forbidden
        for ids in text_task(task, f"--decoding.forbidden {text!r}").phrases(text)
    ]


def _with_candidates(
    table: Shortlist,
    first: Sequence[int],
    examples: Sequence[Example],
    fields: Fields,
    sizes: tuple[int, int],
) -> tuple[list[Example], Fields]:
    """Examples with what their outputs may have, by a shortlist, besides what each may have. The sizes are
    those of the longest bucket and of the target vocabulary."""
    field = shortlist.field(*table.room, *sizes)
    candidates = (table.candidates(example["source"], first) for example in examples)
    several = zip(examples, candidates, strict=True)
    name = shortlist.CANDIDATES
    return [{**example, name: ids} for example, ids in several], {**fields, name: field}


def steered_search(
    system: System, task: DecodingTask, settings: DecodingConfig, hooks: Sequence[SearchHook] = ()
) -> Any:
    """The system's search with these hooks, such as those of `search_inputs`.

    Raises:
      UserError: it has none.
    """
    search = system.search_with(task.config.model, settings)
    steps = stepwise(search)
    if not steps or not (hooks or settings.renormalise):
        return search
    sized = (hook.within(settings) if isinstance(hook, Rules) else hook for hook in hooks)
    normalised = task.config.model.search_ids if settings.renormalise else None
    return dataclasses.replace(steps, hooks=Hooks((*steps.hooks.each, *sized), normalised))


def search_of_one(
    system: System,
    task: DecodingTask,
    record: Record,
    settings: DecodingConfig,
    language_model: Beside | None = None,
) -> tuple[Any, Inputs]:
    """The search of one record alone, and its inputs: arrays with one row, padded to its bucket."""
    inputs = search_inputs(system, task, {1: record}, settings, language_model=language_model)
    length = bucket_of(length_in_search(inputs.examples[0], inputs.fields), settings)
    row = jax.tree.map(jnp.asarray, batch(inputs.examples, inputs.fields, length, 1))
    return steered_search(system, task, settings, inputs.hooks), row


def room_of(task: DecodingTask, record: Record, settings: DecodingConfig) -> int:
    """How many tokens the output of a record may have, besides <eos>."""
    (example,) = task.input_examples([record], settings.buckets[-1])
    return _room(task, example, settings)


def _room(task: DecodingTask, example: Example, settings: DecodingConfig) -> int:
    longest = length_in_search(example, task.input_fields) + settings.extra_length
    return min(longest, settings.max_length or longest, settings.buckets[-1]) - 1


def _check_steering(
    system: System, steerings: Sequence[Steering], settings: DecodingConfig, rooms: Mapping[int, int]
) -> None:
    """Raises UserError if this search cannot do what is asked, or the output of a line has no room for it."""
    names = " and ".join(steering.name for steering in steerings)
    if not system.stepwise:
        raise UserError(
            f"{names}: this needs an autoregressive model, and this one predicts all tokens at once; "
            "leave it out"
        )
    for steering in steerings:
        if steering.by_beam and not (isinstance(settings, BeamConfig) and settings.groups == 1):
            raise UserError(
                f"{steering.name}: only --decoding.method beam, without --decoding.groups, can find them"
            )
    min_lengths = (steering.min_lengths for steering in steerings)
    for (line, room), *tokens in zip(rooms.items(), *min_lengths, strict=True):
        if sum(tokens) > room:
            limits = "extra-length", "max-length", "buckets"
            raise UserError(
                f"line {line}: {sum(tokens)} tokens are asked for ({names}), and the output may have "
                f"{room}: see {', '.join(f'--decoding.{limit}' for limit in limits)}"
            )


# The compiled searches of a model: one for each steering and each set of options that shapes programs.


SERVICES = 8
"""How many are kept."""


class SearchServices(dict[tuple[DecodingConfig, tuple[SearchHook, ...], bytes], SearchService]):
    """Searches by what their programs depend on, the one that was used last at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def service(
        self, searched: LoadedModel[Any], settings: DecodingConfig, inputs: SearchInputs
    ) -> SearchService:
        """The search of such inputs with these options. One is made if there is none, or if its programs have
        no room for so long outputs; those that were not used for long are dropped.

        Args:
          searched: the model.
          settings: options of the search.
          inputs: what the search reads.
        """
        beside = inputs.language_model.identity if inputs.language_model else b""
        key = programs_for(searched.system.search, settings), inputs.hooks, beside
        with self._lock:
            service = self.pop(key, None)
            if service is None or not has_room(service.options, settings):
                program = settings if service is None else with_room(service.options, settings)
                program = within_positions(program, searched.longest, searched.longest_source)
                service = _new_service(searched, program, inputs)
            self[key] = service
            while len(self) > SERVICES:
                del self[next(iter(self))]
            return service


def _new_service(searched: LoadedModel[Any], settings: DecodingConfig, inputs: SearchInputs) -> SearchService:
    search = steered_search(searched.system, searched.task, settings, inputs.hooks)
    model, variables = searched.model, searched.variables
    if inputs.language_model:
        model, variables = inputs.language_model.searched(model, variables)
    if settings.shortlist:
        search, model = shortlisted(search, model)
    return SearchService(search, model, variables, settings, inputs.fields)
