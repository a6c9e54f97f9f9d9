"""The variables of the model that a config describes, and what a search holds of them; and systems from
outside: how they are added, and how their mistakes are named in a sentence."""

import contextlib
import inspect
import math
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import optax
from flax import traverse_util

from transformer.config.options import Config
from transformer.config.ranges import typed
from transformer.model.declarations import declarations, shapes_of
from transformer.model.parameters import INT8, Declarations, Variables, quantized
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.machine import LARGE, release_memory
from transformer.systems.presets import PRESETS, VARIANTS, add
from transformer.systems.registry import REGISTRY, Options, Preset, Registered, Variant, is_from_outside
from transformer.systems.system import System
from transformer.tasks.task import Task

# Mistakes in the model or objective of a system from outside, named in a sentence.


_OTHERS = str(Path(__file__).parents[1]), *(str(Path(x.__file__ or "").parent) for x in (flax, jax, optax))
"""The folders of code that is not the system's."""
_MISTAKES = (
    *(TypeError, ValueError, LookupError, AttributeError, AssertionError, NotImplementedError),
    flax.errors.FlaxError,
)


@contextlib.contextmanager
def mistakes_named(system: str) -> Iterator[None]:
    """While code of a system runs. Errors of the systems of this package remain what they are.

    Raises:
      UserError: the model or objective of a system from outside has failed.
    """
    try:
        yield
    except _MISTAKES as error:
        if not is_from_outside(system):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            f"{x.filename}, line {x.lineno}" for x in frames if not x.filename.startswith((*_OTHERS, "<"))
        ]
        where = f" ({lines[-1]})" if lines else ""
        raise UserError(
            f"system {system}: {type(error).__name__}: {first_line(error)}{where}. Its model must accept "
            "what its task's example gives, and its objective the fields of a batch"
        ) from error


def with_any_sizes(config: Config) -> Config:
    """A config that has sizes where the corpus will decide them, for what does not depend on these: the names
    of parameters, the number of layers."""
    model = config.model
    open_sizes: dict[str, Any] = {
        name: 8
        for name in model.FROM_DATA
        if name != "target_vocab_size" and not getattr(model, name)  # which is 0 for one vocabulary
    }
    return replace(config, model=replace(model, **open_sizes))


def model_shapes(system: System, config: Config) -> Variables:
    """The shapes of the model's variables, without allocating them."""
    with mistakes_named(config.system):
        return shapes_of(system.model(config.model), system.task.example(config))


def declared_parameters(system: System, config: Config) -> Declarations:
    """The declaration of each of the model's parameters."""
    with mistakes_named(config.system):
        return declarations(system.model(config.model), system.task.example(config))


def as_computed(variables: Variables, dtype: str, declared: Declarations) -> Variables:
    """The variables with the matrices that products read in the type that these compute in: cast once, where
    otherwise each step of a search would cast them again. The results are the same bits.

    Args:
      variables: of a model; int8 weights stay.
      dtype: `ModelConfig.compute_dtype`.
      declared: the declarations of its parameters.
    """
    params = traverse_util.flatten_dict(variables["params"])
    for path, leaf in declared.items():
        if leaf.summed and path in params and params[path].dtype != dtype:
            params[path] = params[path].astype(dtype)
    return {**variables, "params": traverse_util.unflatten_dict(params)}


def in_int8(
    variables: Mapping[str, Any], summed: Mapping[tuple[str, ...], tuple[int, ...]]
) -> dict[str, Any]:
    """The variables of a model with int8 weights: the matrices of attention, feed-forward layers and
    embeddings move from "params" to "int8".

    Args:
      variables: of a model.
      summed: the axes that products with each parameter sum over, by its path; none for one that stays.
    """
    params = traverse_util.flatten_dict(variables["params"])
    others = {name: of_name for name, of_name in variables.items() if name != "params"}
    del variables  # if the caller has let it go too, each array is freed when it is quantised
    matrices, size = {}, 0
    for path in sorted((path for path, axes in summed.items() if axes), key=lambda path: params[path].size):
        if (size := size + params[path].nbytes) > LARGE:
            release_memory(cycles=False)  # of those before
            size = 0
        axes = summed[path]
        kernel = np.moveaxis(params.pop(path), axes, range(-len(axes), 0))
        inputs = math.prod(kernel.shape[-len(axes) :])
        matrices[path] = jax.jit(quantized)(kernel.reshape(-1, inputs))
    unflatten = traverse_util.unflatten_dict
    return {"params": unflatten(params), **others, INT8: unflatten(matrices)}


# Adds systems from outside this package.


@typed
def register(name: str, options: Options, system: System) -> None:
    """Adds a system, so that training, decoding, resuming and reports work with it.

    Args:
      name: for `--system` and config.json.
      options: its options, presets and help texts.
      system: what training and decoding need.

    Raises:
      UserError: a name is taken or unusable, or an argument is of the wrong kind.
    """
    if not re.fullmatch("[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"system {name!r}: its name must consist of small letters, digits, - and _")
    if name in REGISTRY:
        raise UserError(f"system {name} is registered already: choose another name")
    for preset, described in options.presets.items():
        if not isinstance(described, Preset) or described.config.system != name:
            raise UserError(f"preset {preset}: must be a transformer.Preset of a config with system={name!r}")
    for variant, change in options.variants.items():
        if not isinstance(change, Variant):
            raise UserError(f"variant {variant}: must be a transformer.Variant, not {type(change).__name__}")
    _check_task(system.task)
    try:
        inspect.signature(system.objective).bind(Config(), None)
    except TypeError as error:
        raise UserError(
            f"system {name}: its objective must be a function of the config and of a function that loads a "
            f"teacher, such as lambda config, load_teacher: OBJECTIVE ({error})"
        ) from None
    conflicts = [f"preset {preset}" for preset in options.presets if preset in PRESETS]
    conflicts += [f"variant {variant}" for variant in options.variants if variant in VARIANTS]
    if conflicts:
        raise UserError(f"{conflicts[0]} is registered already: choose another name")
    REGISTRY[name] = Registered(options, system)
    add(name, options)


def _check_task(task: type[Task]) -> None:
    """Raises UserError if something that every task must have is missing."""
    missing = sorted(getattr(task, "__abstractmethods__", ()))
    missing += [name for name in ("criterion",) if not hasattr(task, name)]
    if missing:
        raise UserError(f"task {task.__name__}: define {', '.join(missing)}, as transformer.Task describes")
