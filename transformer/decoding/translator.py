"""Text in, text out: the programmatic API."""

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
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.compilation import keep_programs
from transformer.config import Config, DecodingConfig, check_beam
from transformer.data.batching import Tokenizers
from transformer.data.corpora import one_line
from transformer.decoding.beam import SearchResult
from transformer.decoding.in_turn import batches_at_once, in_turn, meanwhile
from transformer.errors import UserError, nearest
from transformer.forks import refuse_forked
from transformer.model.int8 import in_int8
from transformer.parallel import deal_rows, on_this_host
from transformer.run import Run
from transformer.systems import System, find_system

Batch = tuple[Int[np.ndarray, "rows s"], list[int]]
"""Padded sources, and the numbers of the lines that the first rows come from."""
log = logging.getLogger("transformer")
WINDOW = 4096  # lines of a stream sorted by length at a time
NAMED = 3  # of the lines that were cut, in a warning each
FEW = 8  # sentences one by one cost no more than a batch of this many times as many


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence."""

    text: str
    tokens: tuple[str, ...]
    """Its subwords."""
    score: float
    """The log-probability divided by the length penalty: what hypotheses are compared by."""
    log_probability: float
    """log P(translation | source) in nats, <eos> counted: what `Translator.score` says of it, but for
    rounding. (Of a parallel decoder that says words anew or draws fertilities, each word has the
    probability with which it was decided.)"""
    alignment: Float[np.ndarray, "target source"] | None = None
    """Cross-attention, if asked for: a row for every token and one for <eos>, a column for every
    source subword (see `Translator.subwords`; of a source that was cut, those kept) and one for
    its <eos>; each row sums to 1."""
    ids: tuple[int, ...] = field(default=(), repr=False)
    """What the model said, id for id: the tokens, then <eos>."""


class Translator:
    """A trained model, ready to translate. It never changes, so threads may share it.

    What is said of a sentence does not depend on the others, but for rounding: scores differ by millionths
    in float32, and by about a hundredth in 8-bit integers. Sentences
    of like length are searched together, `decoding.rows` at a time and padded to the smallest of
    `decoding.buckets` that holds them: there is one compiled program for each of these, and another
    for when there are only a few sentences, which are searched one by one. On a CPU two batches are searched
    at a time, each in a thread of its own (where no context managers of JAX hold that the caller entered).

    Attributes:
      origin: the run and the checkpoint it was loaded from, if any.
      programs: what was compiled so far: a padded length and the options of the search, rows among them
        (but for seed and temperature, with which no program differs).
    """

    def __init__(self, config: Config, variables: Any, tokenizers: Tokenizers) -> None:
        self.config, self.tokenizers = config, tokenizers
        self.variables = on_this_host(variables)
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
        """The translator of a run directory, which needs nothing outside itself.

        Args:
          run_dir: what training wrote.
          checkpoint: "best" (by validation BLEU), "last", "average" (of the last ones), or a step.
          int8: multiply in 8-bit integers (see `transformer.model.int8`): faster on CPUs and nearly as good.

        Raises:
          UserError: the directory or the checkpoint is missing or damaged.
        """
        refuse_forked()
        keep_programs()
        run = Run(run_dir)
        variables = run.variables(checkpoint, model_shapes(run.config))
        translator = cls(run.config, in_int8(variables) if int8 else variables, run.tokenizers)
        translator.origin = f"{run.path}, checkpoint {checkpoint}" + (", int8" if int8 else "")
        return translator

    def fingerprint(self) -> str:
        """A hash of the network, its parameters and its vocabularies: what is equal translates alike."""
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
        """The best translation of every sentence, in order; an empty one stays empty. Of one string, one.

        Args:
          sources: sentences. A line break around one is passed over, one inside is read as a space, with a
            warning.
          options: any field of `DecodingConfig`, in place of the run's own.
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
          n_best: how many of each; None: as many as `beam_size`.
          alignments: whether to find what each token looked at.
          first_line: the number of the first sentence, for warnings and for sampling.
          options: any field of `DecodingConfig`.

        Raises:
          UserError: n_best is more than the search keeps, an option has no sensible value, or the
            model's parameters are not numbers.
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
        if batches_at_once() == 1:  # the caller's thread compiles: others lack what contexts it has entered
            later = []
        # where this raises, what waits is not begun
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
                            "the model gives no probabilities, its parameters are not finite: choose an "
                            "earlier checkpoint"
                        )
                if alignments:
                    places = [line - first_line for line in lines]
                    self._align(batch, tokens[:, :n_best], places, found)
        return found

    def _searched(
        self, batch: Int[np.ndarray, "rows s"], lines: list[int], settings: DecodingConfig
    ) -> SearchResult:
        """The search for a full batch, of which the first rows come from these lines."""
        program = _program(batch.shape[1], settings)
        numbers = np.resize(lines, len(batch)).astype(np.int32)
        # the first batch compiles, the others wait for it: otherwise each would
        compiling = self._compiling.setdefault(program, threading.Lock())
        with nullcontext() if program in self.programs else compiling:
            rows = deal_rows(batch, numbers)
            result = self.system.search(self.model, self.variables, *rows, settings)
            self.programs.add(program)
        return jax.block_until_ready(result)  # type: ignore[no-any-return]

    def _compile(self, length: int, settings: DecodingConfig) -> None:
        """A search for nothing, with the program for this length."""
        refuse_forked()
        if _program(length, settings) not in self.programs:
            self._searched(self._padded([], length, settings.rows), [1], settings)

    def settings(self, n_best: int | None, options: dict[str, Any]) -> DecodingConfig:
        """The options of a search: the run's, but for those given. Raises UserError where they make no
        sense for this model."""
        known = [item.name for item in dataclasses.fields(self.config.decoding)]
        for name in options:
            if name not in known:
                meant = nearest(name, known) or f"; there are {', '.join(known)}"
                raise UserError(f"no option {name!r} of a search{meant}")
        settings = dataclasses.replace(self.config.decoding, **options)
        kept = 1 if settings.method == "greedy" else settings.beam_size
        if n_best is not None and not 1 <= n_best <= kept:
            raise UserError(
                f"--n-best {n_best}: must be at least 1 and at most {kept}, what this search keeps; see "
                "--decoding.beam-size and --decoding.method"
            )
        check_beam(settings, self.config.model)
        return self._within_positions(settings)

    def warm_up(self, **options: Any) -> int:
        """Compiles all that `search` with these options can need, but for alignments, so that no later call
        waits for it.

        Args:
          options: any field of `DecodingConfig`.

        Returns:
          How many programs there are: for each bucket one, and where a batch has many rows another for
          single sentences.
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
        """`search` for any number of lines in bounded memory: results in order, `window` lines
        sorted by length and searched at a time."""
        numbered, settings = iter(lines), self.settings(n_best, options)
        chunk = list(itertools.islice(numbered, window))
        settings = _dealt_out(len(chunk), settings)  # a few lines that are left over need no other program
        while chunk:
            yield from self._search(chunk, settings, n_best, alignments, first_line)
            first_line += len(chunk)
            chunk = list(itertools.islice(numbered, window))

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, lines: Sequence[int] | None = None
    ) -> Float[np.ndarray, " pairs"]:
        """log P(target | source) of every pair, in nats, <eos> counted.

        Args:
          sources: sentences.
          targets: as many translations.
          lines: their numbers, for warnings. None: 1, 2, 3, ...

        Raises:
          UserError: there are not as many targets as sources.
        """
        if isinstance(sources, str) or isinstance(targets, str) or len(sources) != len(targets):
            raise UserError(
                f"two lists of as many sentences, not {len(sources)} sources, {len(targets)} targets"
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
            found = _scored(self.system, self.model, self.variables, *deal_rows(source, target))
            scores[rows] = np.asarray(found)[: len(rows)]
        return scores

    def subwords(self, source: str) -> list[str]:
        """A source sentence as the model sees it: the columns of an alignment, but for <eos>."""
        tokenizer = self.tokenizers[0].for_source(source)
        return tokenizer.pieces(tokenizer.encode(one_line(source)))

    def source_row(self, source: str, **options: Any) -> Int[np.ndarray, "1 s"]:
        """The ids of a source sentence as a search with these options sees it: cut to what the model
        can read, closed by <eos>, padded to its bucket."""
        settings = self.settings(None, options)
        (ids,) = self._ids([source], self.tokenizers[0], settings.buckets[-1])
        ((_, length),) = _of_like_length([len(ids)], settings)
        return self._padded([ids], length, 1)

    def as_trained(self, hypothesis: Hypothesis) -> str:
        """A translation as this model's training text has it: where words were cut beforehand, still cut."""
        cut = self.tokenizers[1].presegmented
        return " ".join(hypothesis.tokens) if cut else hypothesis.text

    # From text to batches

    def _ids(
        self, texts: Sequence[str], tokenizer: Any, longest: int, lines: Sequence[int] = ()
    ) -> list[list[int]]:
        """Ids closed by <eos>, cut to what the model can read. Of changed lines the first are named."""
        whole = [one_line(text) for text in texts]
        encoded = [tokenizer.encode(text) for text in whole]
        inside = {
            line: "its line breaks are read as spaces"
            for line, text, read in zip(lines, texts, whole, strict=False)
            if text.strip("\r\n") != read
        }
        cut = {
            line: f"cut from {len(ids)} to {longest - 1} subwords"
            for line, ids in zip(lines, encoded, strict=False)
            if len(ids) >= longest
        }
        for changed, what in (inside, "have line breaks inside"), (cut, "were cut"):
            for line in list(changed)[:NAMED]:
                log.warning("line %d: %s", line, changed[line])
            if len(changed) > NAMED:
                log.warning("%d more lines, to line %d, %s", len(changed) - NAMED, max(changed), what)
        return [[*ids[: longest - 1], tokenizer.special.eos] for ids in encoded]

    def _source_batches(
        self, sources: Sequence[str], settings: DecodingConfig, first_line: int
    ) -> Iterator[Batch]:
        """Batches of `rows` sources of like length, and the lines they came from."""
        lines = [line for line, text in enumerate(sources, first_line) if text.strip()]
        texts = [sources[line - first_line] for line in lines]
        encoded = self._ids(texts, self.tokenizers[0], settings.buckets[-1], lines)
        for rows, length in _of_like_length([len(ids) for ids in encoded], settings):
            batch = self._padded([encoded[row] for row in rows], length, settings.rows)
            yield batch, [lines[row] for row in rows]

    def _padded(self, sentences: list[list[int]], length: int, rows: int) -> Int[np.ndarray, "rows s"]:
        """Always `rows` rows: those that are missing are empty, and a search is done with them at once."""
        batch = np.full((rows, length), self.config.model.special.pad, np.int32)
        for row, ids in enumerate(sentences):
            batch[row, : len(ids)] = ids
        return batch

    def _within_positions(self, settings: DecodingConfig) -> DecodingConfig:
        """Learned positions reach no further than their table: nor may sources or translations."""
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
                _aligned(self.system, self.model, self.variables, *deal_rows(source, tokens[:, rank]))
            )
            for row, place in enumerate(places):
                if rank < len(found[place]):
                    size = (tokens[row, rank] != pad).sum(), (source[row] != pad).sum()
                    alignment = weights[row, : size[0], : size[1]]
                    found[place][rank] = dataclasses.replace(found[place][rank], alignment=alignment)


def model_shapes(config: Config) -> Any:
    """The shapes of the model's variables, without making them."""
    model, ids = find_system(config.system).model(config.model), jnp.ones((1, 2), jnp.int32)
    return jax.eval_shape(model.init, jax.random.key(0), ids, ids)


def _program(length: int, settings: DecodingConfig) -> tuple[int, DecodingConfig]:
    """What the compiled program of a search depends on."""
    return length, settings.static()


def _dealt_out(sentences: int, settings: DecodingConfig) -> DecodingConfig:
    """The options of each of the searches that run at the same time, for so many sentences: they share the
    rows; where there are few sentences, they are searched one by one."""
    rows = 1 if sentences <= settings.rows // FEW else max(1, settings.rows // batches_at_once())
    return dataclasses.replace(settings, rows=rows)


def _of_like_length(lengths: list[int], settings: DecodingConfig) -> Iterator[tuple[list[int], int]]:
    """Indices of like length, `rows` at a time, and the length to pad them to: the smallest bucket
    that holds them. Where there are too few for a full batch, those are the shortest."""
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
