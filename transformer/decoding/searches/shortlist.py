"""Lexical shortlists: which target pieces a source may need, from tables of translations.

The file is Marian's: 64-bit numbers (a mark, a checksum, how many first ids every output may have, how many
translations a source piece has, the lengths of what follows), where the translations of each source
id begin, and these, as 32-bit ids.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config.decoding import DecodingConfig
from transformer.config.model import ModelConfig, SpecialIds
from transformer.data.sequences import Field
from transformer.decoding.beside.ensemble import Caches
from transformer.decoding.calls import Inputs
from transformer.decoding.hooks import NO_HOOKS
from transformer.decoding.scores import Limits, SearchResult
from transformer.decoding.searches.search import AutoregressiveSearch, unchanged
from transformer.model.parameters import QuantizedMatrix, Variables
from transformer.model.transformer import Transformer
from transformer.runtime.errors import UserError
from transformer.runtime.files import read_bytes, write_whole

FILE = "shortlist.bin"
_MARK = 0xF11A48D5013417F5
_HEADER = struct.Struct("<6Q")
_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class Shortlist:
    """A table of translations of single pieces.

    Args:
      first: every output may have the ids below this.
      best: how many translations a source id has at most, but for </s>.
      ends: where the translations of each source id begin, and the last ones end.
      ids: the translations.
    """

    first: int
    best: int
    ends: Int[np.ndarray, " sources_and_one"]
    ids: Int[np.ndarray, " translations"]

    def candidates(self, source: Sequence[int], always: Sequence[int]) -> list[int]:
        """The ids that the output of a source may have: first `always` (each of them, in this order), then
        the others, ascending.

        Args:
          source: its ids. Ids beyond the table have no translations.
          always: ids that no source must name.
        """
        parts = [np.arange(self.first)]
        for index in set(source):
            if index + 1 < len(self.ends):
                parts.append(self.ids[self.ends[index] : self.ends[index + 1]])
        others = np.setdiff1d(np.concatenate(parts), always)
        return [*always, *others.tolist()]

    @property
    def room(self) -> tuple[int, int]:
        """How many candidates a source has at most: so many for each of its ids, and so many once."""
        *_, per_id, longest = np.sort(np.diff(self.ends, prepend=[0, 0]))
        return int(per_id), self.first + int(longest)

    def content(self) -> bytes:
        """The content of Marian's file."""
        body = _HEADER.pack(0, 0, self.first, self.best, len(self.ends), len(self.ids))[16:]
        body += self.ends.astype("<u8").tobytes() + self.ids.astype("<u4").tobytes()
        return struct.pack("<QQ", _MARK, _checksum(body)) + body

    def write(self, path: Path) -> None:
        """Writes the file. Raises OSError if it cannot be written."""
        write_whole(path, self.content())

    @classmethod
    def read(cls, path: Path, vocab_size: int) -> "Shortlist":
        """Reads a shortlist from a file.

        Args:
          path: of the file.
          vocab_size: of the target.

        Raises:
          UserError: it cannot be read, is something else, or is for another vocabulary.
        """
        try:
            content = read_bytes(path)
            mark, checksum, first, best, num_ends, num_ids = _HEADER.unpack_from(content)
        except (OSError, struct.error) as error:
            raise UserError(f"{path} cannot be read: {error}") from error
        if mark != _MARK or len(content) != _HEADER.size + 8 * num_ends + 4 * num_ids or not num_ends:
            raise UserError(f"{path} is no lexical shortlist, or is truncated")
        if _checksum(content[16:]) != checksum:
            raise UserError(f"{path} is damaged: its checksum is another one")
        ends = np.frombuffer(content, "<u8", num_ends, _HEADER.size)
        ids = np.frombuffer(content, "<u4", num_ids, _HEADER.size + 8 * num_ends)
        is_ordered = (ends[1:] >= ends[:-1]).all() and ends[-1] <= num_ids
        if not is_ordered:
            raise UserError(f"{path} is damaged: its lists of translations do not fit together")
        if ids.max(initial=0) >= vocab_size or first > vocab_size:
            raise UserError(f"{path} is for another vocabulary: the target has {vocab_size:,} ids")
        owners = np.searchsorted(ends, np.arange(num_ids), side="right")
        links = np.sort(owners * vocab_size + ids.astype(np.int64))
        if (repeats := np.flatnonzero(links[1:] == links[:-1])).size:
            source, target = divmod(int(links[repeats[0]]), vocab_size)
            raise UserError(f"{path} is damaged: source id {source - 1} has the translation {target} twice")
        return cls(first, best, ends.astype(np.int64), ids.astype(np.int32))


def _checksum(body: bytes) -> int:
    """Marian's checksum of a file: 64-bit words, combined as boost does."""
    seed = 0
    for word in np.frombuffer(body, "<u8", len(body) // 8).tolist():
        seed ^= (word + 0x9E3779B9 + ((seed << 6) & _BITS) + (seed >> 2)) & _BITS
    return seed


def counted_table(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    sizes: tuple[int, int],
    eos: int,
    best: int = 50,
    frequent: int = 50,
    iterations: int = 5,
) -> Shortlist:
    """The table of a parallel corpus: the most probable translations of each source id by IBM model 1 (Brown
    et al. 1993).

    Args:
      pairs: ids of sentences and their translations, without special ids.
      sizes: of the source and the target vocabulary.
      eos: the id that ends every source. Its translations are the most frequent target ids, which every
        output may have.
      best: translations of each source id.
      frequent: translations of `eos`.
      iterations: of expectation maximisation.
    """
    source, target, position, offset = [], [], [], 0
    for words, translation in pairs:
        s, t = np.array(words, np.int64), np.array(translation, np.int64)
        source.append(np.tile(s, len(t)))
        target.append(np.repeat(t, len(s)))
        position.append(offset + np.repeat(np.arange(len(t)), len(s)))
        offset += len(t)
    from_, to, index = (
        np.concatenate(parts or [np.zeros(0, np.int64)]) for parts in (source, target, position)
    )
    links, link = np.unique(from_ * sizes[1] + to, return_inverse=True)
    sources, targets = links // sizes[1], links % sizes[1]
    probability: np.ndarray = np.ones(len(links))
    for _ in range(iterations):
        share = probability[link]
        expected = np.bincount(link, share / np.bincount(index, share, offset)[index], len(links))
        probability = expected / np.bincount(sources, expected, sizes[0])[sources]
    number = np.bincount(np.concatenate([np.asarray(t, np.int64) for _, t in pairs]), minlength=sizes[1])
    most_frequent = np.argsort(-number, kind="stable")[:frequent]
    order = np.lexsort((-probability, sources))
    starts = np.searchsorted(sources[order], np.arange(sizes[0] + 1))
    rank = np.arange(len(order)) - starts[sources[order]]
    chosen = order[(rank < best) & (sources[order] != eos)]
    all_sources = np.concatenate([sources[chosen], np.full(len(most_frequent), eos)])
    all_targets = np.concatenate([targets[chosen], most_frequent])
    order = np.lexsort((all_targets, all_sources))
    ends = np.searchsorted(all_sources[order], np.arange(sizes[0] + 1))
    return Shortlist(0, best, ends, all_targets[order].astype(np.int32))


# Searches that choose among few tokens: those of a lexical shortlist for each source.


CANDIDATES = "shortlist"
"""The input with the candidates of each row."""
LOCAL = SpecialIds()
"""The special ids among the candidates: they come first."""
_NONE = -1  # where there are no more candidates


def field(per_id: int, once: int, longest: int, vocab_size: int) -> Field:
    """What a search reads of each source: so many candidates that even all different ones have room.

    Args:
      per_id: candidates of each source token.
      once: of every source.
      longest: the longest bucket.
      vocab_size: of the target.
    """
    return Field(fill=_NONE, share=per_id + (once + 4) / longest, most=vocab_size + 4)


def always(special: SpecialIds) -> tuple[int, ...]:
    """The ids that come first, in the order of `LOCAL`."""
    return special.pad, special.bos, special.eos, special.unk


class Shortlisted(nn.Module):
    """A model that predicts one of the candidates. Its variables are those of the model; it has none of its
    own, and is never bound."""

    model: Transformer

    @property
    def config(self) -> ModelConfig:
        """The config of the model, with the special ids of the candidates."""
        return replace(self.model.config, special=LOCAL)

    def apply(  # type: ignore[override]
        self, variables: Variables, *arguments: Any, method: str | Callable[..., Any]
    ) -> Any:
        """Calls a method, as `flax.linen.Module.apply` does."""

        def run(model: Transformer) -> Any:
            bound = _Bound(model)
            return method(bound, *arguments) if callable(method) else getattr(bound, method)(*arguments)

        return self.model.apply(variables, method=run)


@dataclass(frozen=True)
class _Bound:
    """The model, bound to its variables."""

    model: Transformer

    def encode(self, **inputs: Array) -> tuple[Any, Array]:
        """What the model reads of the source, and the candidates."""
        ids = inputs.pop(CANDIDATES)
        (source,) = inputs.values()
        return self.model.encode(source), ids

    def init_cache(self, memory: tuple[Any, Array], beams: int, length: int) -> Caches:
        """The cache of the model, with the output matrix of the candidates."""
        states, ids = memory
        table = self.model.unembedding()
        rows = jnp.maximum(ids, 0)
        gathered = table[rows]
        is_missing = (ids == _NONE) & (jnp.arange(ids.shape[1]) > max(always(LOCAL)))
        missing = jnp.where(is_missing, -jnp.inf, 0.0)
        bias = self.model.output_bias[rows] + missing if self.model.config.output_bias else missing
        dtype = jnp.float32 if isinstance(table, QuantizedMatrix) else self.model.config.compute_dtype
        cache = self.model.init_cache(states, beams, length)
        return Caches((cache,), (ids, gathered.astype(dtype).swapaxes(1, 2), bias))

    def decode_step(self, cache: Caches, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n k"], Caches]:
        """Logits of the candidates."""
        of_model: Any
        (of_model,), (ids, table, bias) = cache.members, cache.of_rows
        newest = jnp.take_along_axis(ids, tokens, axis=1)
        hidden, after = self.model.hidden_step(of_model, newest)
        scaled = self.model.scaled(hidden).astype(table.dtype)
        logits = jnp.einsum("bnm,bmk->bnk", scaled, table, preferred_element_type=jnp.float32)
        return logits + bias[:, None], replace(cache, members=(after,))


@dataclass(frozen=True)
class _SourceLimits:
    """The limits of a search, which read the source with the special ids of the model."""

    limits: Callable[[Inputs, SpecialIds, DecodingConfig], Limits]
    special: SpecialIds

    def __call__(self, inputs: Inputs, special: SpecialIds, options: DecodingConfig) -> Limits:
        return self.limits(inputs, self.special, options)


def shortlisted(search: Any, model: nn.Module) -> tuple[AutoregressiveSearch, Shortlisted]:
    """The search among candidates, and its model.

    Raises:
      UserError: the model or the search cannot have a shortlist.
    """
    if not isinstance(search, AutoregressiveSearch) or type(model) is not Transformer:
        raise UserError(
            "--decoding.shortlist is for one model of system transformer; leave it out for others and for "
            "ensembles"
        )
    if search.hooks != NO_HOOKS or search.named is not unchanged:
        raise UserError(
            "--decoding.shortlist does not go with prefixes, terms, codes of languages, a language model, "
            "and options that forbid tokens: leave one of them out"
        )
    limits = _SourceLimits(search.limits, model.config.special)
    return replace(search, limits=limits, named=_ids_of_candidates), Shortlisted(model)


def _ids_of_candidates(model: nn.Module, result: SearchResult, inputs: Mapping[str, Array]) -> SearchResult:
    """The result with ids of the vocabulary."""
    return replace(result, tokens=_named(result.tokens, inputs[CANDIDATES]))


@jax.jit
def _named(tokens: Int[Array, "b n t"], ids: Int[Array, "b k"]) -> Int[Array, "b n t"]:
    flat = tokens.reshape(len(tokens), -1)
    return jnp.take_along_axis(ids, flat, axis=1).reshape(tokens.shape)
