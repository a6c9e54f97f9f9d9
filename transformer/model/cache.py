"""What decoding keeps between two tokens.

A search sees a `Cache` and never its layers. Each of `b` rows (sentences) has `n` beams. A layer keeps either
keys and values, which are only appended, or states, which are gathered when beams continue others.
"""

from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from transformer.model.masks import Mask

T = TypeVar("T")


def take_rows(tree: T, rows: Int[Array, " r"]) -> T:
    """These rows of every array; scalars are shared by all rows."""
    return jax.tree.map(lambda x: x[rows] if x.ndim else x, tree)


def put_rows(tree: T, rows: Int[Array, " r"], other: T) -> T:
    """The tree with these rows replaced by those of `other`."""
    return jax.tree.map(lambda x, new: x.at[rows].set(new) if x.ndim else new, tree, other)


@runtime_checkable
class LayerCache(Protocol):
    """The cache of one layer: a pytree of arrays whose first axis is the rows."""

    def append(self, new: Any, column: Int[Array, ""], positions: Int[Array, " b"]) -> "LayerCache":
        """With what the layer computed for a new token of every beam.

        Args:
          new: keys and values, or states.
          column: where to write it, the same for all rows.
          positions: its position in each row's sentence.
        """
        ...

    def select(self, parents: Int[Array, "b n"]) -> "LayerCache":
        """The cache in which beam i continues beam parents[:, i]."""
        ...

    def take_rows(self, rows: Int[Array, " r"]) -> "LayerCache":
        """The cache of these rows."""
        ...

    def put_rows(self, rows: Int[Array, " r"], other: Any) -> "LayerCache":
        """The cache with these rows replaced by those of another."""
        ...


class ByRows:
    """Takes and puts rows of a pytree."""

    def take_rows(self: T, rows: Int[Array, " r"]) -> T:
        """These rows."""
        return take_rows(self, rows)

    def put_rows(self: T, rows: Int[Array, " r"], other: T) -> T:
        """With these rows replaced by those of `other`."""
        return put_rows(self, rows, other)


@struct.dataclass
class KeysValues(ByRows):
    """Keys and values of attention. In decoding they are only appended: step t of beam i is in column
    t * n + i, and the ancestors of the `Cache` mark the columns of each beam's past."""

    keys: Float[Array, "b h k d_k"]
    values: Float[Array, "b h k d_v"]

    def append(self, new: "KeysValues", column: Int[Array, ""], positions: Int[Array, " b"]) -> "KeysValues":
        """Writes the keys and values of n beams."""

        def write(old: Array, x: Array) -> Array:
            place = column * x.shape[2]
            return jax.lax.dynamic_update_slice_in_dim(old, x.astype(old.dtype), place, axis=2)

        return jax.tree.map(write, self, new)

    def select(self, parents: Int[Array, "b n"]) -> "KeysValues":
        """Itself: nothing is moved."""
        return self

    def grow(self, columns: int) -> "KeysValues":
        """With room for that many columns."""
        more = columns - self.keys.shape[2]
        return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))), self)


@struct.dataclass
class States(ByRows, Generic[T]):
    """Arrays `[b, n, ...]` that a new token replaces, such as recurrent states or the sums of linear
    attention."""

    value: T

    def append(self, new: T, column: Int[Array, ""], positions: Int[Array, " b"]) -> "States[T]":
        """The new states."""
        return States(new)

    def select(self, parents: Int[Array, "b n"]) -> "States[T]":
        """Gathers the states of the parents."""

        def gather(x: Array) -> Array:
            return jnp.take_along_axis(x, parents.reshape(*parents.shape, *(1,) * (x.ndim - 2)), axis=1)

        return jax.tree.map(gather, self)


@struct.dataclass
class Cache(ByRows):
    """The cache of a decoder: those of its layers, and what they read of the source."""

    layers: tuple[Any, ...]
    """A `LayerCache` for each layer."""
    step: Int[Array, ""]
    """The step to compute next: the column that all rows write."""
    positions: Int[Array, " b"]
    """The position of its token in each row."""
    source: PyTree[Array]
    """What all beams of a row share, such as projected keys and values: arrays with rows first."""
    ancestors: Bool[Array, "b n columns"] | None = None
    """For layers that keep `KeysValues`: the columns of each beam's own past."""

    @classmethod
    def empty(
        cls,
        layers: tuple[LayerCache, ...],
        source: PyTree[Array],
        rows: int,
        ancestors: tuple[int, int] | None = None,
    ) -> "Cache":
        """A cache before the first step.

        Args:
          layers: their empty caches.
          source: see above.
          rows: number of rows, b.
          ancestors: for layers that keep `KeysValues`, the numbers of beams and of columns.
        """
        return cls(
            layers=layers,
            step=jnp.zeros((), jnp.int32),
            positions=jnp.zeros(rows, jnp.int32),
            source=source,
            ancestors=None if ancestors is None else jnp.zeros((rows, *ancestors), bool),
        )

    def select(self, parents: Int[Array, "b n"]) -> "Cache":
        """The cache in which beam i continues beam parents[:, i]. Of appended keys and values only the small
        ancestor mask is reordered."""
        past = self.ancestors
        if past is not None:
            past = jnp.take_along_axis(past, parents[:, :, None], axis=1)
        return replace(self, layers=tuple(x.select(parents) for x in self.layers), ancestors=past)

    def grow(self, length: int) -> "Cache":
        """The same cache with room for `length` steps."""
        past = self.ancestors
        if past is None:
            return self
        columns = length * past.shape[1]
        return replace(
            self,
            layers=tuple(x.grow(columns) for x in self.layers),
            ancestors=jnp.pad(past, ((0, 0), (0, 0), (0, columns - past.shape[2]))),
        )

    def begin_step(self) -> "Cache":
        """Adds each beam's new column to its past."""
        if self.ancestors is None:
            return self
        n, columns = self.ancestors.shape[1:]
        own = jnp.arange(columns) == self.step * n + jnp.arange(n)[:, None]
        return replace(self, ancestors=self.ancestors | own)

    def mask(self, window: int | None = None) -> Mask:
        """Each beam's past, for self-attention."""
        assert self.ancestors is not None
        n, columns = self.ancestors.shape[1:]
        near = True if window is None else self.step - jnp.arange(columns) // n <= window
        return Mask(pairs=self.ancestors & near)

    def key_positions(self) -> Int[Array, "b columns"]:
        """The position of the token in each column."""
        assert self.ancestors is not None
        n, columns = self.ancestors.shape[1:]
        return self.positions[:, None] - (self.step - jnp.arange(columns) // n)

    def end_step(self, layers: list[LayerCache]) -> "Cache":
        """With the layers' caches after this step."""
        return replace(self, layers=tuple(layers), step=self.step + 1, positions=self.positions + 1)
