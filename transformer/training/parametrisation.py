"""What is trained of a model's parameters, and what is fixed.

    split(params) -> (trained, fixed);  merge(trained, fixed) -> params

A parameter is trained whole, or fixed, or fixed with a low-rank change (LoRA, Hu et al. 2022), or its first
rows are fixed and those that were added are trained. Gradients, optimizer and averages know the trained part
only.
"""

import difflib
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array

from transformer.model.declarations import vocabulary_axes
from transformer.model.parameters import Declarations, Params
from transformer.runtime.errors import UserError
from transformer.training.step import WHOLE, Parametrised

if TYPE_CHECKING:
    from transformer.config.options import Config

# Patterns for names of parameters, such as `encoder` or `*attention.query`.


Path = tuple[str, ...]
"""Where a parameter is: the names of modules, and its own."""


def name_of(path: Path) -> str:
    """The name of a parameter: its path, joined by points."""
    return ".".join(path)


def matches(pattern: str, path: Path) -> bool:
    """Whether a parameter's name begins with a pattern, in which `*` stands for any letters. The rest of the
    name follows a point or an underscore, so `decoder_1` is no part of `decoder_10`."""
    name = name_of(path)
    first, *others = pattern.split("*")
    if not name.startswith(first):
        return False
    end = len(first)
    if not others:
        return _is_whole(name, end)
    for letters in others[:-1]:  # the first occurrence leaves most for the others
        start = name.find(letters, end)
        if start < 0:
            return False
        end = start + len(letters)
    while (start := name.find(others[-1], end)) >= 0:
        if _is_whole(name, start + len(others[-1])):
            return True
        end = start + 1
    return False


def _is_whole(name: str, end: int) -> bool:
    """Whether a part of a name ends there."""
    return end == len(name) or name[end] in "._"


def chosen(option: str, patterns: Sequence[str], paths: Iterable[Path]) -> frozenset[Path]:
    """The parameters that match any of the patterns.

    Args:
      option: for messages.
      patterns: of names.
      paths: of all parameters.

    Raises:
      UserError: a pattern matches none; it names the closest ones.
    """
    paths = list(paths)
    for pattern in patterns:
        if not any(matches(pattern, path) for path in paths):
            raise UserError(f"{option} {pattern}: no parameter has such a name; {_closest(pattern, paths)}")
    return frozenset(path for path in paths if any(matches(pattern, path) for pattern in patterns))


def _closest(pattern: str, paths: Sequence[Path]) -> str:
    """What could have been meant."""
    beginnings = {name_of(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    parts = {name for path in paths for name in path}
    alike = difflib.get_close_matches(pattern.strip("*."), sorted(beginnings | parts), n=3, cutoff=0.5)
    shown = [name if name in beginnings else f"*{name}" for name in alike]
    return f"closest: {', '.join(shown or sorted({path[0] for path in paths})[:6])}"


DOWN, UP = "down", "up"  # the two factors of a low-rank change: A and B of the paper


@dataclass(frozen=True)
class Parametrisation(Parametrised):
    """How the parameters of a model follow from what is trained, where that is not all of them."""

    fixed: frozenset[Path] = frozenset()
    """Parameters that are not trained."""
    low_rank: frozenset[tuple[Path, tuple[int, ...]]] = frozenset()
    """Fixed matrices with a low-rank change, and the axes that their products sum over."""
    grown: frozenset[tuple[Path, int, int]] = frozenset()
    """Tables whose first rows are fixed: their axis of rows, and the number of these."""
    rank: int = 0
    """r: the width between the two factors of a change."""
    scale: float = 1.0
    """Factor of the changes: alpha / r of the paper."""

    @property
    def is_adapter(self) -> bool:  # type: ignore[override]
        """Whether it changes parameters that another run holds: then a checkpoint has the trained part
        only."""
        return bool(self.low_rank)

    def largest_rank(self, leaves: Mapping[Path, Any]) -> int:
        """The largest rank that a change of any of its matrices can have: its rows or columns, if fewer."""
        sizes = ((leaves[path].shape, axes) for path, axes in self.low_rank)
        inputs = [(math.prod(shape), math.prod(shape[axis] for axis in axes)) for shape, axes in sizes]
        return max(min(rows, size // rows) for size, rows in inputs)

    def split(self, params: Params, seed: int = 0) -> tuple[Params, Params]:
        """What is trained of parameters, and what is fixed. Changes begin as zero: A is random, B is zero.

        Args:
          params: of the model.
          seed: of the random numbers.
        """
        trained, fixed = flatten_dict(params), {}
        for path in self.fixed:
            fixed[path] = trained.pop(path)
        for path, axis, rows in self.grown:
            fixed[path], trained[path] = jnp.split(trained[path], [rows], axis)
        for number, (path, axes) in enumerate(sorted(self.low_rank)):
            matrix = fixed[path] = trained.pop(path)
            inputs = [matrix.shape[axis] for axis in axes]
            outputs = [size for axis, size in enumerate(matrix.shape) if axis not in axes]
            key = jax.random.fold_in(jax.random.key(seed), number)
            width = jnp.prod(jnp.array(inputs))
            trained[(*path, DOWN)] = jax.random.normal(key, (*inputs, self.rank), matrix.dtype) / width**0.5
            trained[(*path, UP)] = jnp.zeros((self.rank, *outputs), matrix.dtype)
        return unflatten_dict(trained), unflatten_dict(fixed)

    def merge(self, trained: Params, fixed: Params) -> Params:
        """The parameters of the model: W + scale A B for a matrix with a change (Hu et al. 2022, Eq. 3)."""
        parts, params = flatten_dict(trained), flatten_dict(fixed)
        for path, axes in self.low_rank:
            down, up = (parts.pop((*path, factor)) for factor in (DOWN, UP))
            params[path] = _changed(params[path], down, up, self.scale, axes)
        for path, axis, rows in self.grown:  # those of an adapter's base may have more, without a token
            params[path] = _joined(params[path], parts.pop(path), axis, rows)
        return unflatten_dict(params | parts)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _changed(matrix: Array, down: Array, up: Array, scale: float, axes: tuple[int, ...]) -> Array:
    change = jnp.tensordot(down, up, 1, precision=jax.lax.Precision.HIGHEST)
    return matrix + scale * jnp.moveaxis(change, range(len(axes)), axes)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _joined(old: Array, new: Array, axis: int, rows: int) -> Array:
    return jnp.concatenate([jax.lax.slice_in_dim(old, 0, rows, axis=axis), new], axis)


def parametrisation_of(config: "Config", shapes: Params, declared: Declarations) -> Parametrised:
    """That of a run. If words were added to its vocabulary, their rows are trained in frozen tables too.

    Args:
      config: of the run.
      shapes: the parameters of its model, or their shapes.
      declared: their declarations.

    Raises:
      UserError: a pattern matches nothing; nothing would be trained; nothing can have a low-rank change.
    """
    from transformer.config.options import first_added

    leaves: dict[Path, Any] = flatten_dict(shapes)
    first = first_added(config)
    tables = (
        {} if first is None else {path: (axis, first) for path, axis in vocabulary_axes(declared).items()}
    )
    adapter = config.adapter
    if not adapter.rank:
        fixed = chosen("--training.freeze", config.training.freeze, leaves)
        fixed |= chosen("--model.fixed", config.model.fixed, leaves)
        grown = frozenset((path, *tables[path]) for path in fixed & tables.keys())
        if fixed == leaves.keys() and not grown:
            raise UserError("--training.freeze: nothing would be left to train; freeze less")
        trained_whole = not (fixed.difference(tables) or grown)
        return WHOLE if trained_whole else Parametrisation(fixed.difference(tables), grown=grown)
    summed = {path: _summed(path, leaf, declared) for path, leaf in leaves.items()}
    matrices = {path: axes for path, axes in summed.items() if axes}
    if adapter.pattern:
        paths = chosen("--adapter.pattern", adapter.pattern, matrices)
    else:
        paths = frozenset(path for path in matrices if not is_table(path, declared))
    if not paths:
        raise UserError("--adapter.rank: this model has no matrix that can have a low-rank change")
    if both := sorted(paths & tables.keys()):
        raise UserError(
            f"--adapter.pattern: words were added to {'.'.join(both[0])}, whose new rows are trained whole; "
            "choose other parameters"
        )
    return Parametrisation(
        frozenset(leaves.keys() - paths - tables.keys()),
        frozenset((path, matrices[path]) for path in paths),
        frozenset((path, *table) for path, table in tables.items()),
        adapter.rank,
        adapter.scale,
    )


def _summed(path: Path, leaf: Any, declared: Declarations) -> tuple[int, ...]:
    """The axes that products with a parameter sum over. None for what is no matrix."""
    if path[-1].endswith("bias") or leaf.ndim < 2:
        return ()
    if path in declared and declared[path].summed:
        return declared[path].summed
    return tuple(range(leaf.ndim - 1))


def is_table(path: Path, declared: Declarations) -> bool:
    """Whether a parameter is a table of embeddings, a row for each id or position."""
    return path in declared and not {"vocabulary", "positions"}.isdisjoint(declared[path].names)
