"""What decoding caches between two tokens.

A search sees a `Cache` and never its layers. Each of `b` rows (sentences) has `n` beams. A layer caches
either keys and values, which are only appended, or states, which are gathered when beams continue others.
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


def put_rows(tree: T, rows: Int[Array, " r"], new: T) -> T:
    """The tree with these rows replaced by those of `new`; rows beyond the last are dropped."""
    return jax.tree.map(lambda x, y: x.at[rows].set(y, mode="drop") if x.ndim else x, tree, new)


def join_heads(x: Float[Array, "b h t d"]) -> Float[Array, "b 1 t hd"]:
    """The heads side by side, as one wide head."""
    return x.swapaxes(1, 2).reshape(x.shape[0], 1, x.shape[2], -1)


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

    def put_rows(self, rows: Int[Array, " r"], new: Any) -> "LayerCache":
        """The cache with these rows reset to those of `new`, a cache before its first step."""
        ...


class ByRows:
    """Takes and puts rows of a pytree."""

    def take_rows(self: T, rows: Int[Array, " r"]) -> T:
        """The cache of the given rows."""
        return take_rows(self, rows)

    def put_rows(self: T, rows: Int[Array, " r"], new: T) -> T:
        """With these rows replaced by those of `new`."""
        return put_rows(self, rows, new)


@struct.dataclass
class KeysValues(ByRows):
    """Keys and values of attention. In decoding they are a ring, and only appended to it: those that beam i
    wrote at column c are entry c * n + i, and the ancestors of the `Cache` mark each beam's past. On a TPU
    the heads are joined (`heads.with_joined_heads`)."""

    keys: Float[Array, "b h k d_k"]
    values: Float[Array, "b h k d_v"]

    def append(self, new: "KeysValues", column: Int[Array, ""], positions: Int[Array, " b"]) -> "KeysValues":
        """Writes the keys and values of n beams."""

        def write(old: Array, x: Array) -> Array:
            x = join_heads(x) if x.shape[1] != old.shape[1] else x
            start = column * x.shape[2]
            return jax.lax.dynamic_update_slice_in_dim(old, x.astype(old.dtype), start, axis=2)

        return jax.tree.map(write, self, new)

    def select(self, parents: Int[Array, "b n"]) -> "KeysValues":
        """Returns itself: no entry is moved."""
        return self

    def put_rows(self, rows: Int[Array, " r"], new: "KeysValues") -> "KeysValues":
        """Returns itself: a row that is reset has no past."""
        return self


@struct.dataclass
class Shared(Generic[T]):
    """Arrays `[b, ...]` among those of `States` that all beams of a row share."""

    value: T


@struct.dataclass
class States(ByRows, Generic[T]):
    """Arrays `[b, n, ...]` that a new token replaces, such as recurrent states or the sums of linear
    attention. Those in `Shared` have no beams, and stay."""

    value: T

    def append(self, new: T, column: Int[Array, ""], positions: Int[Array, " b"]) -> "States[T]":
        """The new states."""
        return States(new)

    def select(self, parents: Int[Array, "b n"]) -> "States[T]":
        """Gathers the states of the parents."""

        def gather(x: Any) -> Any:
            if is_shared(x):
                return x
            return jnp.take_along_axis(x, parents.reshape(*parents.shape, *(1,) * (x.ndim - 2)), axis=1)

        return jax.tree.map(gather, self, is_leaf=is_shared)


def is_shared(x: Any) -> bool:
    """Whether a part of a state is that of all beams."""
    return isinstance(x, Shared)


class AnyCache(ByRows):
    """What a search sees: the cache of a decoder, or those of several (`transformer.decoding.beside`)."""

    added: Any = None
    """What a language model beside the decoder adds to the log-probabilities of the next token."""

    def select(self, parents: Int[Array, "b n"]) -> Any:
        """The cache in which beam i continues beam parents[:, i]."""
        raise NotImplementedError


@struct.dataclass
class Cache(AnyCache):
    """The cache of a decoder: those of its layers, and what they read of the source."""

    layers: tuple[Any, ...]
    """A `LayerCache` for each layer."""
    column: Int[Array, ""]
    """The column of the ring that all rows write next."""
    positions: Int[Array, " b"]
    """The position of the next token in each row."""
    source: PyTree[Array]
    """What all beams of a row share, such as projected keys and values: arrays with rows first."""
    ancestors: Bool[Array, "b n entries"] | None = None
    """For layers that cache `KeysValues`: the entries of each beam's own past. A column has an entry for
    every beam, and a row may take as many steps as there are columns."""

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
          ancestors: for layers that cache `KeysValues`, the numbers of beams and of entries.
        """
        return cls(
            layers=layers,
            column=jnp.zeros((), jnp.int32),
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

    def put_rows(self, rows: Int[Array, " r"], new: "Cache") -> "Cache":
        """The cache with these rows reset to those of `new`, a cache before its first step with any
        number of columns. Rows beyond the last are dropped."""
        past = self.ancestors
        return replace(
            self,
            layers=tuple(x.put_rows(rows, y) for x, y in zip(self.layers, new.layers, strict=True)),
            positions=put_rows(self.positions, rows, new.positions),
            source=put_rows(self.source, rows, new.source),
            ancestors=None if past is None else past.at[rows].set(False, mode="drop"),
        )

    def begin_step(self) -> "Cache":
        """Adds each beam's new entry to its past."""
        if self.ancestors is None:
            return self
        n, entries = self.ancestors.shape[1:]
        newest = jnp.arange(entries) == self.column * n + jnp.arange(n)[:, None]
        return replace(self, ancestors=self.ancestors | newest)

    def _ages(self) -> Int[Array, " entries"]:
        """How many steps ago each entry was written."""
        assert self.ancestors is not None
        n, entries = self.ancestors.shape[1:]
        return (self.column - jnp.arange(entries) // n) % (entries // n)

    def mask(self, window: int | None = None) -> Mask:
        """Each beam's past, for self-attention."""
        assert self.ancestors is not None
        near = True if window is None else self._ages() <= window
        return Mask(pairs=self.ancestors & near)

    def key_positions(self) -> Int[Array, "b entries"]:
        """The position of the token of each entry."""
        return self.positions[:, None] - self._ages()

    def end_step(self, layers: list[LayerCache]) -> "Cache":
        """The cache after this step, with those of the layers."""
        column = self.column + 1
        if self.ancestors is not None:
            column = column % (self.ancestors.shape[2] // self.ancestors.shape[1])
        return replace(self, layers=tuple(layers), column=column, positions=self.positions + 1)
