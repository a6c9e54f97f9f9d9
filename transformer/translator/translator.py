"""The Python API for translation."""

import dataclasses
import functools
import hashlib
import itertools
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config import Config, DecodingConfig, check_beam
from transformer.data.batching import Tokenizers
from transformer.data.sources.corpora import one_line
from transformer.decoding.beam import SearchResult
from transformer.decoding.in_turn import batches_at_once, in_turn, meanwhile
from transformer.errors import UserError, nearest
from transformer.model.int8 import in_int8
from transformer.runs.run import Run
from transformer.runtime.compilation import keep_programs
from transformer.runtime.forks import refuse_forked
from transformer.runtime.sharding import on_local_devices, shard_rows
from transformer.systems.registry import System, declared_parameters, find_system, model_shapes

Batch = tuple[Int[np.ndarray, "rows s"], list[int]]
"""Padded sources, and the line numbers of the first rows; the others are empty."""
log = logging.getLogger("transformer")
WINDOW = 4096  # lines of a stream sorted by length at a time
NAMED = 3  # lines that get a warning each, if they were changed
FEW = 8  # n sentences one by one cost no more than a batch of n * FEW rows


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence."""

    text: str
    tokens: tuple[str, ...]
    """Its subwords."""
    score: float
    """The log-probability divided by the length penalty, by which hypotheses are ranked."""
    log_probability: float
    """log P(translation | source) in nats, including <eos>: equal to `Translator.score` up to rounding. (For
    a parallel decoder that re-predicts tokens or samples fertilities, each token has the probability with
    which it was chosen.)"""
    alignment: Float[np.ndarray, "target source"] | None = None
    """Cross-attention, if requested: a row for every token and <eos>, a column for every source subword (see
    `Translator.subwords`; without those that were truncated) and <eos>. Each row sums to 1."""
    ids: tuple[int, ...] = field(default=(), repr=False)
    """The generated ids: the tokens, then <eos>."""


class Translator:
    """A trained model that translates. Threads may share it.

    A translation does not depend on the rest of the batch, up to rounding: scores differ by millionths in
    float32, and by about a hundredth with int8 weights. Sentences of similar length are searched together,
    `decoding.rows` at a time, and padded to the smallest of `decoding.buckets` that holds them. Each bucket
    has one compiled program, and another one for only a few sentences, which are searched one by one. On a
    CPU two batches are searched concurrently in threads, where JAX context managers of the caller do not
    apply.

    Args:
      config, variables, tokenizers: of a model.
      warns: whether to log the lines that are truncated or have line breaks inside.

    Attributes:
      origin: the run and the checkpoint it was loaded from, if any.
      programs: the programs compiled so far: padded length and search options, including rows (without seed
        and temperature, which all programs share).
    """

    def __init__(self, config: Config, variables: Any, tokenizers: Tokenizers, *, warns: bool = True) -> None:
        self.config, self.tokenizers, self._warns = config, tokenizers, warns
        self.variables = on_local_devices(variables)
        self.system: System = find_system(config.system)
        self.model: nn.Module = self.system.model(config.model)
        self.programs: set[tuple[int, DecodingConfig]] = set()
        self.origin = ""
        self._compiling: dict[tuple[int, DecodingConfig], threading.Lock] = {}

    def __repr__(self) -> str:
        data, size = self.config.data, sum(x.size for x in jax.tree.leaves(self.variables))
        languages = f"{data.source_language} to {data.target_language}"
        origin = f"{self.origin}, " if self.origin else ""
        return f"<Translator: {origin}{languages}, {self.config.system}, {size:,} parameters>"

    def __reduce__(self) -> Any:
        raise UserError(
            "a Translator cannot be pickled: its compiled programs and arrays belong to this process. "
            "Send the run directory, and call Translator.load there"
        )

    @classmethod
    def load(cls, run_dir: Path | str, checkpoint: str | int = "best", *, int8: bool = False) -> "Translator":
        """Loads a translator from a run directory, which is self-contained.

        Args:
          run_dir: a run directory.
          checkpoint: "best" (by validation BLEU), "last", "average" (of the last ones), or a step.
          int8: use int8 weights (see `transformer.model.int8`): faster on CPUs, at similar quality.

        Raises:
          UserError: the directory or the checkpoint is missing or damaged.
        """
        refuse_forked()
        keep_programs()
        run = Run(run_dir)
        variables = run.variables(checkpoint, model_shapes(run.config))
        if int8:
            declared = declared_parameters(run.config)
            variables = in_int8(variables, {path: each.summed for path, each in declared.items()})
        translator = cls(run.config, variables, run.tokenizers)
        translator.origin = f"{run.path}, checkpoint {checkpoint}" + (", int8" if int8 else "")
        return translator

    def fingerprint(self) -> str:
        """A hash of the network, its parameters and its vocabularies, which determine translations."""
        digest = hashlib.blake2b(repr((self.config.system, self.config.model)).encode(), digest_size=16)
        for tokenizer in self.tokenizers:
            digest.update(tokenizer.content())
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.variables):
            digest.update(jax.tree_util.keystr(path).encode())
            digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()

    @overload
    def translate(self, sources: str, **options: Any) -> str: ...

    @overload
    def translate(self, sources: Iterable[str], **options: Any) -> list[str]: ...

    def translate(self, sources: str | Iterable[str], **options: Any) -> str | list[str]:
        """The best translation of every sentence, in order. Empty sentences stay empty.

        Args:
          sources: sentences, or one string. Line breaks at their ends are ignored; those inside are read as
            spaces, with a warning.
          options: any field of `DecodingConfig`, instead of the run's value.

        Returns:
          A list of translations; for one string, a string.
        """
        if isinstance(sources, str):
            return self.search([sources], **options)[0][0].text
        return [found[0].text for found in self.search(sources, **options)]

    def search(
        self,
        sources: Iterable[str],
        *,
        n_best: int | None = None,
        alignments: bool = False,
        first_line: int = 1,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """The best translations of every sentence, best first.

        Args:
          sources: sentences, as in `translate`.
          n_best: translations per sentence. None: `beam_size`.
          alignments: whether to return the cross-attention of each token.
          first_line: the number of the first sentence, for warnings and for sampling.
          options: any field of `DecodingConfig`.

        Raises:
          UserError: n_best is more than the search keeps, an option is invalid, or the model's parameters
            are not finite.
        """
        if isinstance(sources, str):
            raise UserError("sources must be a list of sentences, not one string")
        sources = list(sources)
        if wrong := [type(source).__name__ for source in sources if not isinstance(source, str)]:
            raise UserError(f"sources must be sentences, not {wrong[0]}")
        settings = _dealt_out(len(sources), self.settings(n_best, options))
        return self._search(sources, settings, n_best, alignments, first_line)

    def _search(
        self,
        sources: Sequence[str],
        settings: DecodingConfig,
        n_best: int | None,
        alignments: bool,
        first_line: int,
    ) -> list[list[Hypothesis]]:
        refuse_forked()
        found: list[list[Hypothesis]] = [[Hypothesis("", (), 0.0, 0.0)] for _ in sources]
        batches = list(self._source_batches(sources, settings, first_line))
        results = in_turn(lambda batch: self._searched(*batch, settings), batches, batches_at_once())
        later = list(dict.fromkeys(batch.shape[1] for batch, _ in batches))[1:]
        if batches_at_once() == 1:  # compile in the caller's thread: others lack its JAX contexts
            later = []
        # if this raises, waiting batches are cancelled
        with closing(results), meanwhile(functools.partial(self._compile, settings=settings), later):
            for (batch, lines), result in zip(batches, results, strict=True):
                tokens, *scores = (
                    np.asarray(x) for x in (result.tokens, result.scores, result.log_probabilities)
                )
                for row, line in enumerate(lines):
                    each = zip(*(x[row, :n_best].tolist() for x in scores), tokens[row, :n_best], strict=True)
                    found[line - first_line] = [
                        self._hypothesis(ids, score, log_p, sources[line - first_line])
                        for score, log_p, ids in each
                        if np.isfinite(score)
                    ]
                    if not found[line - first_line]:
                        raise UserError(
                            "the model's parameters are not finite, so it gives no probabilities: choose an "
                            "earlier checkpoint"
                        )
                if alignments:
                    places = [line - first_line for line in lines]
                    self._align(batch, tokens[:, :n_best], places, found)
        return found

    def _searched(
        self, batch: Int[np.ndarray, "rows s"], lines: list[int], settings: DecodingConfig
    ) -> SearchResult:
        """Searches a padded batch, whose first rows come from these lines."""
        program = _program(batch.shape[1], settings)
        numbers = np.resize(lines, len(batch)).astype(np.int32)
        # the first batch compiles while the others wait; otherwise each would compile
        compiling = self._compiling.setdefault(program, threading.Lock())
        with nullcontext() if program in self.programs else compiling:
            rows = shard_rows(batch, numbers)
            result = self.system.search(self.model, self.variables, *rows, settings)
            self.programs.add(program)
        return jax.block_until_ready(result)  # type: ignore[no-any-return]

    def _compile(self, length: int, settings: DecodingConfig) -> None:
        """Compiles the program for this length, by searching an empty batch."""
        refuse_forked()
        if _program(length, settings) not in self.programs:
            self._searched(self._padded([], length, settings.rows), [1], settings)

    def settings(self, n_best: int | None, options: dict[str, Any]) -> DecodingConfig:
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
        return self._within_positions(settings)

    def warm_up(self, **options: Any) -> int:
        """Compiles all programs that `search` with these options can need, except for alignments.

        Args:
          options: any field of `DecodingConfig`.

        Returns:
          The number of programs: one per bucket, and if a batch has many rows another for single sentences.
        """
        settings = self.settings(None, options)
        few_and_many = dict.fromkeys(_dealt_out(sentences, settings) for sentences in (1, settings.rows))
        programs = [(chosen, length) for chosen in few_and_many for length in settings.buckets]
        for chosen, length in programs:
            self._compile(length, chosen)
        return len(programs)

    def stream(
        self,
        lines: Iterable[str],
        *,
        window: int = WINDOW,
        n_best: int | None = None,
        alignments: bool = False,
        first_line: int = 1,
        **options: Any,
    ) -> Iterator[list[Hypothesis]]:
        """`search` for any number of lines in bounded memory. Results are in order; `window` lines at a time
        are sorted by length and searched."""
        numbered, settings = iter(lines), self.settings(n_best, options)
        chunk = list(itertools.islice(numbered, window))
        settings = _dealt_out(len(chunk), settings)  # a few lines at the end use the same programs
        while chunk:
            yield from self._search(chunk, settings, n_best, alignments, first_line)
            first_line += len(chunk)
            chunk = list(itertools.islice(numbered, window))

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, lines: Sequence[int] | None = None
    ) -> Float[np.ndarray, " pairs"]:
        """log P(target | source) of every pair, in nats, including <eos>.

        Args:
          sources: sentences.
          targets: one translation each.
          lines: line numbers for warnings. None: 1, 2, 3, ...

        Raises:
          UserError: the numbers of sources and targets differ.
        """
        if isinstance(sources, str) or isinstance(targets, str) or len(sources) != len(targets):
            raise UserError(
                f"give two lists of equal length, not {len(sources)} sources and {len(targets)} targets"
            )
        refuse_forked()
        settings = self._within_positions(self.config.decoding)
        sides = [
            self._ids(texts, tokenizer, settings.buckets[-1], lines or range(1, len(texts) + 1))
            for texts, tokenizer in zip((sources, targets), self.tokenizers, strict=True)
        ]
        longest = [max(map(len, pair)) for pair in zip(*sides, strict=True)]
        scores = np.zeros(len(sources), np.float32)
        for rows, length in _of_like_length(longest, settings):
            source, target = (
                self._padded([ids[row] for row in rows], length, settings.rows) for ids in sides
            )
            found = _scored(self.system, self.model, self.variables, *shard_rows(source, target))
            scores[rows] = np.asarray(found)[: len(rows)]
        return scores

    def subwords(self, source: str) -> list[str]:
        """The subwords of a source sentence: the columns of an alignment, except <eos>."""
        tokenizer = self.tokenizers[0].for_source(source)
        return tokenizer.pieces(tokenizer.encode(one_line(source)))

    def source_row(self, source: str, **options: Any) -> Int[np.ndarray, "1 s"]:
        """The ids of a source sentence in a search with these options: truncated to the largest bucket,
        closed by <eos>, padded to its bucket."""
        settings = self.settings(None, options)
        (ids,) = self._ids([source], self.tokenizers[0], settings.buckets[-1])
        ((_, length),) = _of_like_length([len(ids)], settings)
        return self._padded([ids], length, 1)

    def as_trained(self, hypothesis: Hypothesis) -> str:
        """A translation in the form of this model's training text: as subwords if that is presegmented."""
        cut = self.tokenizers[1].presegmented
        return " ".join(hypothesis.tokens) if cut else hypothesis.text

    # From text to batches

    def _ids(
        self, texts: Sequence[str], tokenizer: Any, longest: int, lines: Sequence[int] = ()
    ) -> list[list[int]]:
        """Ids closed by <eos>, truncated to `longest`. Warns of changed lines."""
        whole = [one_line(text) for text in texts]
        encoded = [tokenizer.encode(text) for text in whole]
        inside = {
            line: "its line breaks are read as spaces"
            for line, text, read in zip(lines, texts, whole, strict=False)
            if text.strip("\r\n") != read
        }
        cut = {
            line: f"truncated from {len(ids)} to {longest - 1} subwords"
            for line, ids in zip(lines, encoded, strict=False)
            if len(ids) >= longest
        }
        for changed, what in (inside, "have line breaks inside"), (cut, "were truncated"):
            for line in list(changed)[:NAMED]:
                log.warning("line %d: %s", line, changed[line])
            if len(changed) > NAMED:
                log.warning("%d more lines, up to line %d, %s", len(changed) - NAMED, max(changed), what)
        return [[*ids[: longest - 1], tokenizer.special.eos] for ids in encoded]

    def _source_batches(
        self, sources: Sequence[str], settings: DecodingConfig, first_line: int
    ) -> Iterator[Batch]:
        """Yields batches of `rows` sources of similar length, and their line numbers."""
        lines = [line for line, text in enumerate(sources, first_line) if text.strip()]
        texts = [sources[line - first_line] for line in lines]
        encoded = self._ids(texts, self.tokenizers[0], settings.buckets[-1], lines if self._warns else ())
        for rows, length in _of_like_length([len(ids) for ids in encoded], settings):
            batch = self._padded([encoded[row] for row in rows], length, settings.rows)
            yield batch, [lines[row] for row in rows]

    def _padded(self, sentences: list[list[int]], length: int, rows: int) -> Int[np.ndarray, "rows s"]:
        """A batch of exactly `rows` rows. Additional rows are empty; a search skips them."""
        batch = np.full((rows, length), self.config.model.special.pad, np.int32)
        for row, ids in enumerate(sentences):
            batch[row, : len(ids)] = ids
        return batch

    def _within_positions(self, settings: DecodingConfig) -> DecodingConfig:
        """Limits sources and translations to the size of a learned position table."""
        table = self.config.model.longest
        if table is None:
            return settings
        buckets = (*(length for length in settings.buckets if length < table), table)
        return dataclasses.replace(
            settings,
            buckets=buckets if settings.buckets[-1] > table else settings.buckets,
            max_length=min(settings.max_length or table, table),
        )

    # From batches to text

    def _hypothesis(
        self, ids: Int[np.ndarray, " t"], score: float, log_probability: float, source: str
    ) -> Hypothesis:
        tokenizer, special = self.tokenizers[1].for_source(source), self.config.model.special
        words = [int(index) for index in ids if index not in (special.pad, special.eos)]
        said = (*words, special.eos)
        text, pieces = tokenizer.decode(words), tuple(tokenizer.pieces(words))
        return Hypothesis(text, pieces, score, log_probability, ids=said)

    def _align(
        self,
        source: Int[np.ndarray, "rows s"],
        tokens: Int[np.ndarray, "rows n t"],
        places: list[int],
        found: list[list[Hypothesis]],
    ) -> None:
        pad = self.config.model.special.pad
        for rank in range(tokens.shape[1]):
            weights = np.asarray(
                _aligned(self.system, self.model, self.variables, *shard_rows(source, tokens[:, rank]))
            )
            for row, place in enumerate(places):
                if rank < len(found[place]):
                    size = (tokens[row, rank] != pad).sum(), (source[row] != pad).sum()
                    alignment = weights[row, : size[0], : size[1]]
                    found[place][rank] = dataclasses.replace(found[place][rank], alignment=alignment)


def _program(length: int, settings: DecodingConfig) -> tuple[int, DecodingConfig]:
    """What the compiled program of a search depends on."""
    return length, settings.static()


def _dealt_out(sentences: int, settings: DecodingConfig) -> DecodingConfig:
    """The options of each concurrent search, which share the rows. A few sentences are searched one by
    one."""
    rows = 1 if sentences <= settings.rows // FEW else max(1, settings.rows // batches_at_once())
    return dataclasses.replace(settings, rows=rows)


def _of_like_length(lengths: list[int], settings: DecodingConfig) -> Iterator[tuple[list[int], int]]:
    """Yields indices of similar length, `rows` at a time, and their padded length: the smallest bucket that
    holds them. If the last batch is not full, it has the shortest."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for start in range(0, len(order), settings.rows):
        members = order[start : start + settings.rows]
        yield members, next(size for size in settings.buckets if size >= lengths[members[0]])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _scored(
    system: System, model: nn.Module, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, " b"]:
    return system.scores(model, variables, source, target)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _aligned(
    system: System, model: nn.Module, variables: Any, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> Float[Array, "b t s"]:
    return system.alignment(model, variables, source, target)
