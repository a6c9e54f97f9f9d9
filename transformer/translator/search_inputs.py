"""What a search reads of records, and what steers it: rules of the options, prefixes, terms."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer.config import BeamConfig, DecodingConfig
from transformer.data.corpus import Record
from transformer.data.features.shortlist import Shortlist
from transformer.data.sequences import Example, Fields, length_in_search
from transformer.decoding import shortlist
from transformer.decoding.calls import Inputs
from transformer.decoding.hooks import NO_HOOK, Hooks, Renormalised, SearchHook
from transformer.decoding.lanes import batch
from transformer.decoding.lengths import bucket_of
from transformer.decoding.opening import opening_of
from transformer.decoding.rules import Rules
from transformer.decoding.search import AutoregressiveSearch
from transformer.runtime.errors import UserError
from transformer.systems.system import System
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.text import Steering, TextTask, text_task
from transformer.translator.biasing import Biasing
from transformer.translator.fusion import AnyLanguageModel


@dataclasses.dataclass(frozen=True)
class SearchInputs:
    """What a search reads of records."""

    examples: Sequence[Example]
    """One for each record."""
    fields: Fields
    hooks: tuple[SearchHook, ...] = ()
    """What the outputs of these records need, such as prefixes."""
    language_model: AnyLanguageModel | None = None
    """In the search. None: there is none."""


def search_inputs(
    system: System,
    task: DecodingTask,
    records: Mapping[int, Record],
    settings: DecodingConfig,
    warned: Sequence[int] = (),
    language_model: AnyLanguageModel | None = None,
    bias: Biasing | None = None,
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
    if settings.steered and isinstance(system.search, AutoregressiveSearch):
        phrases = _forbidden(task, settings)
        special, opening = task.config.model.special, opening_of(Hooks(tuple(hooks))).size
        rules = Rules.of(settings, special, system.search.limits, phrases, opening)
        hooks.insert(0, rules)
        fields = {**fields, **rules.fields}
        examples = [{**example, **rules.example(settings, phrases)} for example in examples]
    language_model = language_model if language_model and language_model.weight else None
    bias = bias if bias and bias.weight else None
    several_beside: tuple[AnyLanguageModel | Biasing | None, ...] = language_model, bias
    for beside in several_beside:
        if beside:
            check_steps(system.search_with(task.config.model, settings), beside.option)
            hooks += beside.hooks
            fields = {**fields, **beside.fields}
            of_beside = beside.example
            examples = [{**example, **of_beside} for example in examples]
    if settings.shortlist and isinstance(task, TextTask) and task.shortlist:
        first = shortlist.always(task.config.model.special)
        examples, fields = _with_candidates(task.shortlist, first, examples, fields, settings.buckets[-1])
    return SearchInputs(examples, fields, tuple(hooks), language_model)


def check_steps(search: Any, option: str) -> None:
    """Raises UserError if a search does not choose one token after another."""
    if not isinstance(search, AutoregressiveSearch):
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
    table: Shortlist, first: Sequence[int], examples: Sequence[Example], fields: Fields, longest: int
) -> tuple[list[Example], Fields]:
    """Examples with what their outputs may have, by a shortlist, besides what each may have."""
    field = shortlist.field(*table.room, longest)
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
    if not isinstance(search, AutoregressiveSearch) or not (hooks or settings.renormalise):
        return search
    own_hooks = [search.hook] if search.hook != NO_HOOK else []
    sized = [hook.within(settings) if isinstance(hook, Rules) else hook for hook in hooks]
    hook: SearchHook = Hooks((*own_hooks, *sized))
    if settings.renormalise:
        hook = Renormalised(hook, task.config.model.search_ids)
    return dataclasses.replace(search, hook=hook)


def search_of_one(
    system: System,
    task: DecodingTask,
    record: Record,
    settings: DecodingConfig,
    language_model: AnyLanguageModel | None = None,
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
    if not isinstance(system.search, AutoregressiveSearch):
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
