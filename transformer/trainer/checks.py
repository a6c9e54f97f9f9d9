"""What training asks of a config, of this machine and of a corpus, in order, before anything is written.

A new check is a function here, and its name in one of the three tuples at the end. What options refuse
wherever they are made stands in their `__post_init__` (`transformer.config`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jaxtyping import Array

from transformer.config.corpus import DataConfig
from transformer.config.methods import check_idle
from transformer.config.options import Config, flatten
from transformer.config.searches import methods_of
from transformer.data.sequences import Example, sides
from transformer.data.store import Corpus
from transformer.model.statistics import INTERMEDIATES
from transformer.runtime import machine as extras
from transformer.runtime.errors import UserError, counted
from transformer.systems.parameters import declared_parameters, model_shapes, with_any_sizes
from transformer.systems.registry import options_of
from transformer.systems.system import System
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.task import Task
from transformer.trainer.resolved import Resolved, check_teacher
from transformer.training.methods.registry import as_replaceable, replacing
from transformer.training.parametrisation import Parametrisation, chosen, parametrisation_of
from transformer.training.sharding import check_rows, layout_of

FEW = 100  # records of each split that are checked


# Of a config


def check_types(resolved: Resolved) -> None:
    """Raises UserError if options belong to another system."""
    config, options = resolved.config, options_of(resolved.config.system)
    as_declared = (type(config.model), type(config.data)) == (options.model, options.data)
    if not as_declared or type(config.decoding) not in methods_of(options.decoding).values():
        raise UserError(
            f"--system {config.system}: start from one of its presets; these options belong to another system"
        )


def check_tokenizer(resolved: Resolved) -> None:
    """Raises UserError if words outside the vocabulary are kept for a system that cannot output them."""
    config = resolved.config
    if (
        isinstance(config.data, DataConfig)
        and config.data.tokenizer == "open-word"
        and not resolved.system.copies
    ):
        raise UserError(
            f"--data.tokenizer open-word: {config.system} cannot output out-of-vocabulary words; use word"
        )


def check_packing(resolved: Resolved) -> None:
    """Raises UserError if rows of several sentences are asked for, and something reads only one."""
    config = resolved.config
    if config.data.batching != "packed":
        return
    if config.model.packing_conflict or not resolved.system.packs:
        reader = config.model.packing_conflict or config.system
        raise UserError(
            f"--data.batching packed: {reader} reads one sentence per row; use --data.batching buckets"
        )
    if config.reward.share:
        raise UserError(
            "--reward.share: candidates are searched for rows of one sentence: use --data.batching buckets"
        )


def check_directions(resolved: Resolved) -> None:
    """Raises UserError if there are directions, and the system cannot begin outputs with a code."""
    config = resolved.config
    is_directed = isinstance(config.data, DataConfig) and config.data.directions
    if is_directed and not resolved.system.stepwise:
        raise UserError(
            f"--data.directions: an output begins with the code of its language, and {config.system} "
            "predicts all tokens at once; leave it out"
        )


def check_slices(resolved: Resolved) -> None:
    """Raises UserError if a batch is divided whose statistics the model needs as a whole."""
    config = resolved.config
    if config.training.accumulate > 1 and config.model.needs_whole_batch:
        raise UserError(
            f"--training.accumulate {config.training.accumulate}: {config.model.needs_whole_batch} needs the "
            "statistics of the whole batch; leave one of them out"
        )


def check_idle_options(resolved: Resolved) -> None:
    """Raises UserError if an option is for a method that is off. Older runs may have such options."""
    if resolved.run is None:
        check_idle(flatten(resolved.config), flatten(Config()))


def check_replacing(resolved: Resolved) -> None:
    """Raises UserError if several methods replace cross-entropy, or one cannot for this system."""
    config, system = resolved.config, resolved.system
    chosen = replacing(config)
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)}: each replaces cross-entropy; leave one of them out")
    if getattr(config.model, "teacher", None) is None:  # otherwise known when the teacher is loaded
        objective = system.objective(config, lambda path: None)
        for option in chosen:
            as_replaceable(objective, option, config)


def check_predictions(resolved: Resolved) -> None:
    """Raises UserError if a decoder should read its predictions step by step and cannot."""
    scheduled = resolved.config.scheduled
    by_steps = scheduled.share and scheduled.predictions == "steps"
    if by_steps and not hasattr(resolved.system.model, "decode_own"):
        raise UserError(
            f"--scheduled.predictions steps: {resolved.config.system} cannot read its predictions step by "
            "step, use passes"
        )


def check_candidates(resolved: Resolved) -> None:
    """Raises UserError if a reward needs candidates, and the system's search gives none to the step."""
    if resolved.config.reward.share and not resolved.system.stepwise:
        system = resolved.config.system
        raise UserError(f"--reward.share: {system} does not search token by token; leave it out")


def check_guidance(resolved: Resolved) -> None:
    """Raises UserError if there is no attention to guide, or not in the layers and heads that are named."""
    config, attentions = resolved.config, resolved.system.attentions
    guidance = config.guidance
    if not guidance.weight:
        return
    if attentions is None:
        raise UserError(f"--guidance.weight: {config.system} has no attention to a source; leave it out")
    if not guidance.layers and not guidance.heads:
        return
    config = with_any_sizes(config)
    model = resolved.system.model(config.model)

    def attention(*example: Any) -> Array:
        variables = model.init(jax.random.key(0), *example)
        _, sown = model.apply(variables, *example, mutable=[INTERMEDIATES])
        return attentions(sown[INTERMEDIATES])

    layers, _, heads, _, _ = jax.eval_shape(attention, *resolved.system.task.example(config)).shape
    for option, numbers, count in (("layers", guidance.layers, layers), ("heads", guidance.heads, heads)):
        if max(numbers, default=0) > count:
            raise UserError(f"--guidance.{option} {max(numbers)}: there are {count}, numbered from 1")


def check_growth(resolved: Resolved) -> None:
    """Raises UserError if words are added to no vocabulary."""
    data = resolved.config.data
    if resolved.config.training.init_from is not None or not isinstance(data, DataConfig):
        return
    for name in ("add_tokens", "add_language", "first_added"):
        if getattr(data, name) not in (None, ()):
            option = name.replace("_", "-")
            raise UserError(f"--data.{option} needs --init-from RUN: the model whose vocabulary grows")


def check_trained(resolved: Resolved) -> None:
    """Raises UserError if a pattern for parameters fits none, or nothing would be trained, or matrices have
    no changes of such a rank."""
    config, system = resolved.config, resolved.system
    if not (config.adapter.rank or config.training.freeze or config.optimizer.groups):
        return
    if config.adapter.rank and config.training.init_from is None:
        raise UserError(
            f"--adapter.rank {config.adapter.rank} needs --init-from RUN: the model that it changes"
        )
    if config.adapter.rank and config.training.freeze:
        raise UserError("--training.freeze: with --adapter.rank everything else is fixed; leave it out")
    config = with_any_sizes(config)
    params = model_shapes(system, config)["params"]
    how = parametrisation_of(config, params, declared_parameters(system, config))
    trained = flatten_dict(jax.eval_shape(how.split, params)[0])
    leaves = flatten_dict(params)
    for name, _ in config.optimizer.factors:
        if chosen("--optimizer.groups", [name], leaves | trained).isdisjoint(trained):
            raise UserError(f"--optimizer.groups {name}: what has such names is not trained; leave it out")
    if not isinstance(how, Parametrisation) or not how.is_adapter or resolved.run:
        return
    if how.rank > (limit := how.largest_rank(leaves)):
        raise UserError(
            f"--adapter.rank {how.rank}: changes of these matrices have a rank of at most {limit}; choose a "
            "smaller one"
        )


# Of this machine


def check_libraries(resolved: Resolved) -> None:
    """Raises UserError if libraries are missing that are not always installed."""
    config = resolved.config
    extras.check_libraries(resolved.system.task.libraries(config), f"system {config.system}")


def check_devices(resolved: Resolved) -> None:
    """Raises UserError if the mesh, or the memory of the rows, cannot be divided over these devices."""
    config = resolved.config
    layout = layout_of(config.mesh)
    carry = jax.eval_shape(lambda: resolved.system.carry(config, False))
    check_rows(carry, layout.shards, config.training.accumulate)


def check_texts(resolved: Resolved) -> None:
    """Raises UserError if the task refuses the options of its corpus, such as a file that is missing."""
    resolved.system.task.check(resolved.config)


# Of a corpus


def check_fields(system: System, task: Task, corpus: Corpus) -> None:
    """Raises UserError if the arrays of an example, or those that decoding has, are not declared."""
    name, fields = _name(task), getattr(task, "fields", None)
    if not fields:
        raise UserError(f"{name} has no fields: its __init__ must set self.fields, the arrays of an example")
    if isinstance(task, DecodingTask):
        inputs = getattr(task, "inputs", None)
        if not isinstance(inputs, tuple) or not inputs or not set(inputs) <= set(fields):
            raise UserError(
                f"{name}.inputs must be a tuple of names of its fields ({', '.join(fields)}), not {inputs!r}"
            )


def check_splits(system: System, task: Task, corpus: Corpus) -> None:
    """Raises UserError if a split is missing or empty."""
    for split in ("train", "validation"):
        if split not in corpus.splits or not len(corpus.splits[split]):
            raise UserError(f"corpus {corpus.name}: its {split} split is missing or empty")


def check_scores(system: System, task: Task, corpus: Corpus) -> None:
    """Raises UserError if there is no score, or it needs outputs and nothing searches for them."""
    if next(iter(task.measures()), None) != task.criterion:
        raise UserError(f"{_name(task)}.measures() must begin with its criterion, {task.criterion.name}")
    if task.decodes and not system.search:
        raise UserError(
            f"system {task.config.system} does not decode: give it a search, or set "
            f"{_name(task)}.decodes = False"
        )


def check_filled(system: System, task: Task, corpus: Corpus) -> None:
    """Raises UserError if all records of the validation or test split lack something, such as their
    references: no score would mean anything, nor the choice of the best checkpoint."""
    for split in [split for split in corpus.splits if split != "train"]:
        records, seen = corpus.splits[split], dict[str, bool]()
        for start in range(0, len(records), FEW):
            for record in records.__getitems__(range(start, min(start + FEW, len(records)))):
                filled = task.filled(record)
                seen |= {item: seen.get(item, False) or is_filled for item, is_filled in filled.items()}
            if all(seen.values()):
                break
        for item in (item for item, is_filled in seen.items() if not is_filled):
            raise UserError(
                f"corpus {corpus.name}: every {item} of its {split} split is empty, so nothing could be "
                f"compared with it: give another {split} set"
            )


def check_examples(system: System, task: Task, corpus: Corpus) -> None:
    """Raises UserError if the first examples of a split are not as the task's fields declare, are longer than
    the last bucket, or have ids that the model cannot predict."""
    size = task.config.model.output_size
    for split, records in corpus.splits.items():
        where = f"{_name(task)}.examples, {split} split"
        sample = records.__getitems__(range(min(FEW, len(records))))
        examples = task.examples(sample, truncate=True)
        if len(examples) != len(sample):
            number = counted(len(sample), "record")
            raise UserError(f"{where}: {counted(len(examples), 'example')} of {number}")
        for example in examples:
            _check_arrays(task, example, where)
        if size and not system.copies:
            _check_ids(task, examples, where, size)


def _check_arrays(task: Task, example: Example, where: str) -> None:
    if wrong := sorted(example.keys() ^ task.fields.keys()):
        raise UserError(f"{where}: {wrong[0]} is not in both the fields and the example")
    for name, field in task.fields.items():
        shape = np.shape(example[name])
        if shape[int(field.padded) :] != field.shape and not (field.padded and shape[:1] == (0,)):
            expected = f"[length, {', '.join(map(str, field.shape))}]" if field.padded else f"{field.shape}"
            raise UserError(f"{where}: {name} has the shape {shape}, not {expected}")
    for name, limit in zip(sides(task.fields), task.batching().buckets[-1], strict=True):
        if len(example[name]) > limit:
            raise UserError(
                f"{where}: {name} has {len(example[name])} elements, more than the longest bucket, "
                f"{limit}: shorten it if `truncate` is given"
            )


def _check_ids(task: Task, examples: Sequence[Example], where: str, size: int) -> None:
    """Raises UserError if a target has ids that the model cannot predict."""
    field = task.fields.get("target")
    if field is None or not np.issubdtype(field.dtype, np.integer):
        return
    ids = {int(i) for example in examples for i in np.ravel(example["target"])}
    if wrong := sorted(i for i in ids if not 0 <= i < size):
        raise UserError(
            f"{where}: target has the id {wrong[-1]}, and the vocabulary those from 0 to {size - 1:,} "
            "(--model.vocab-size)"
        )


def check_search(system: System, task: Task, corpus: Corpus) -> None:
    """Raises UserError if the search that evaluates cannot have such options."""
    if isinstance(task, DecodingTask):
        system.check_search(task, task.config.decoding)


def _name(task: Task) -> str:
    return type(task).__name__


OF_CONFIG: tuple[Callable[[Resolved], None], ...] = (
    check_types,  # first: the others read the options that the system declares
    check_tokenizer,
    check_packing,
    check_directions,
    check_slices,
    check_idle_options,
    check_replacing,
    check_predictions,
    check_candidates,
    check_guidance,
    check_growth,
    check_trained,
)
"""Whether its parts go together, wherever it trains: `--plan` asks for this too."""
OF_MACHINE: tuple[Callable[[Resolved], None], ...] = (
    check_libraries,
    check_devices,
    check_texts,
    check_teacher,
)
"""Checks whether this machine can train the run."""
OF_CORPUS: tuple[Callable[[System, Task, Corpus], None], ...] = (
    check_fields,  # first: the others make examples
    check_splits,
    check_scores,
    check_filled,
    check_examples,
    check_search,
)
"""Whether corpus and task are as the task declares, so that a mistake in either is named at once."""
