"""What comes after the search: the outputs of a request, scores of given outputs, and what else is requested
of each."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config.arguments import true_or_false
from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.ranges import Option
from transformer.config.searches import MbrConfig
from transformer.data.sequences import length_in_search
from transformer.decoding.calls import Inputs
from transformer.decoding.forced import TokenScores
from transformer.decoding.scores import SearchResult
from transformer.decoding.searches.search import distinct
from transformer.decoding.service.lanes import Job, LaneShape, batch
from transformer.decoding.service.queue import Request
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import shard_rows
from transformer.systems.system import System
from transformer.tasks.outputs import TRUNCATED, Output
from transformer.tasks.text import Hypothesis
from transformer.translator.confidence import FILE, Confidence
from transformer.translator.loaded import LoadedModel
from transformer.translator.search_inputs import bucket_of, padded

# A model's log-probabilities and alignments of given outputs.


@functools.partial(jax.jit, static_argnums=(0, 1))
def scored(
    system: System, model: nn.Module, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> TokenScores:
    return system.required("scores")(model, variables, inputs, target)


def without_start(
    of_tokens: Float[Array, "b t"], target: Int[np.ndarray, "b t"], start: Sequence[int]
) -> Float[np.ndarray, "b t"]:
    """Scores of tokens, where those that every output begins with cost nothing: as in a search, they are no
    choice of the model."""
    scores = np.array(of_tokens)
    is_start = np.logical_and.accumulate(target[:, : len(start)] == np.array(start), axis=1)
    scores[:, : len(start)][is_start] = 0
    return scores


@functools.partial(jax.jit, static_argnums=(0, 1))
def aligned(
    system: System, model: nn.Module, variables: Variables, inputs: Inputs, target: Array
) -> Float[Array, "b t s"]:
    return system.required("alignment")(model, variables, inputs, target)


UNPAID = 1e-6  # the least attention of a source token, of which the coverage penalty takes the logarithm


@dataclass(frozen=True)
class Extras:
    """What to return of every hypothesis besides its text and score: keywords of searches, options of
    decode.py and fields of the server. Alignments and times take another pass of the model, and token scores
    and the confidence of words another."""

    alignments: bool = False
    """The cross-attention of each token: a row for it, and a column for each position of the input."""
    token_scores: bool = False
    """The log-probability and the entropy of each token."""
    times: bool = False
    """When each word begins and ends in a recording."""
    word_confidences: bool = False
    """The probability that each word is right, if the run has learned it (`transformer calibrate`)."""

    def asked(
        self, names: Iterable[str], options: Mapping[str, Option]
    ) -> tuple["Extras", dict[str, Option]]:
        """These and those among the keywords of a search, and its other keywords.

        Args:
          names: of the extras that there are.
          options: the keywords.

        Raises:
          UserError: one is no truth value.
        """
        extras = {name: true_or_false(name, options[name]) for name in names if name in options}
        return replace(self, **extras), {name: options[name] for name in options if name not in extras}


NO_EXTRAS = Extras()
WITH_SCORES = Extras(token_scores=True)


def required_confidence(decoder: LoadedModel[Any]) -> Confidence:
    """The confidence of a model in its words.

    Raises:
      UserError: it has none.
    """
    decoder.system.required("scores")
    if decoder.confidence is None:
        raise UserError(
            f"the confidence of words is not known for this model: transformer calibrate writes {FILE} into "
            "runs from text to text (an ensemble has none)"
        )
    return decoder.confidence


def check_extras(decoder: LoadedModel[Any], extras: Extras) -> None:
    """Raises UserError if a model has no confidence of words, and it is asked for."""
    if extras.word_confidences:
        required_confidence(decoder)


def identity(decoder: LoadedModel[Any], extras: Extras) -> list[str]:
    """What determines the extras besides model and outputs: the confidence, if it is asked for."""
    return [repr(decoder.confidence)] if extras.word_confidences else []


def available(decoder: LoadedModel[Any]) -> Extras:
    """What a model can return of each output, without times."""
    scores = decoder.system.scores is not None
    confident = scores and decoder.confidence is not None
    return Extras(decoder.system.alignment is not None, scores, word_confidences=confident)


def search_outputs(decoder: LoadedModel[Any], request: Request, result: Any) -> list[Output]:
    """The outputs of a request, best first, given what the search found: a row of its arrays."""
    settings = request.options
    extras = request.extras
    task = decoder.task
    coverage = settings.coverage_penalty
    in_groups = isinstance(settings, BeamConfig) and settings.groups > 1
    outputs = task.outputs(distinct(result) if in_groups else result, request.record, request.certain)
    if not outputs:
        raise UserError(f"{type(task).__name__}.outputs returned none: give at least one output of a record")
    if request.example.get(TRUNCATED):
        outputs = [replace(x, truncated=True) if hasattr(x, TRUNCATED) else x for x in outputs]
    if isinstance(settings, MbrConfig):
        outputs = task.consensus(outputs)[: request.n_best]
    if not coverage and extras == NO_EXTRAS:
        return outputs
    arrays = teacher_forcing(decoder, request, result, outputs)
    if coverage or extras.alignments or extras.times:
        columns = decoder.source_positions(request, arrays[-2])
        outputs = with_alignments(outputs, aligned(*arrays), columns)
    if extras.token_scores or extras.word_confidences:
        start = task.forced_ids(request.record)
        outputs = with_token_scores(outputs, scored(*arrays), np.asarray(arrays[-1]), start)
    if extras.word_confidences:
        confidence = required_confidence(decoder)
        outputs = [replace(x, word_confidences=confidence.of_words(x)) for x in outputs]
        if not extras.token_scores:
            outputs = [replace(x, token_log_probabilities=None, entropies=None) for x in outputs]
    if coverage:
        outputs = by_coverage(outputs, coverage)[: request.n_best]
    return outputs if extras.alignments or extras.times else [replace(x, alignment=None) for x in outputs]


def teacher_forcing(
    decoder: LoadedModel[Any], request: Request, result: SearchResult, hypotheses: Sequence[Hypothesis]
) -> tuple[System, nn.Module, Variables, Inputs, jax.Array]:
    """The arguments of `scored` and `aligned` for the hypotheses of a request. They have the rows and columns
    of the search's result, and inputs are padded beyond those of the lane before, so there is one program for
    each bucket."""
    fields = decoder.task.input_fields
    rows, columns = result.tokens.shape
    length = max(length_in_search(request.example, fields), request.beyond + 1)
    bucket = bucket_of(length, request.options)
    target = padded([x.ids for x in hypotheses], columns, rows, decoder.task.special.pad)
    return _forced(decoder, batch([request.example], fields, bucket, 1), target)


def _forced(
    decoder: LoadedModel[Any], row: Mapping[str, np.ndarray], target: Int[np.ndarray, "b t"]
) -> tuple[System, nn.Module, Variables, Inputs, jax.Array]:
    """The arguments of `scored` and `aligned` for several outputs of one input."""
    repeated = (np.repeat(array, len(target), axis=0) for array in row.values())
    *arrays, target_rows = shard_rows(*repeated, target)
    inputs = dict(zip(row, arrays, strict=True))
    return decoder.system, decoder.model, decoder.variables, inputs, target_rows


def programs_of_extras(
    decoder: LoadedModel[Any], shapes: Iterable[LaneShape], settings: DecodingConfig, extras: Extras
) -> list[Job]:
    """What compiles the programs of alignments and token scores: one for each bucket."""
    task = decoder.task
    programs = [aligned] if extras.alignments or extras.times or settings.coverage_penalty else []
    programs += [scored] if extras.token_scores or extras.word_confidences else []
    jobs = list[Job]()
    for shape in shapes if programs else ():
        for bucket in (length for length in settings.buckets if shape.beyond < length <= shape.inputs):
            target = padded([], shape.columns, settings.num_hypotheses, task.special.pad)
            arrays = _forced(decoder, batch([], task.input_fields, bucket, 1), target)
            jobs += [functools.partial(compile_for, program, *arrays) for program in programs]
    return jobs


def compile_for(program: Any, *arguments: Any) -> None:
    """Compiles a program of `jax.jit` for its next calls with such arguments. It does not run, which takes
    gigabytes for long texts."""
    with jax.default_device(None):  # as `Decoder.finished`
        program.lower(*arguments).compile()


def with_alignments(
    hypotheses: Iterable[Hypothesis], weights: Float[Array, "b t s"], columns: int
) -> list[Hypothesis]:
    """Hypotheses, those of the first rows, with their alignments to so many source positions."""
    pairs = zip(hypotheses, np.asarray(weights), strict=False)
    return [replace(x, alignment=row[: len(x.ids), :columns]) for x, row in pairs]


def with_token_scores(
    hypotheses: Sequence[Hypothesis],
    scores: TokenScores,
    target: Int[np.ndarray, "b t"],
    start: Sequence[int],
) -> list[Hypothesis]:
    """Hypotheses, those of the first rows of `target`, with the scores of their tokens. Those in `start` have
    none."""

    def of_tokens(rows: Float[Array, "b t"]) -> list[tuple[float, ...]]:
        pairs = zip(hypotheses, without_start(rows, target, start), strict=False)
        return [tuple(row[: len(hypothesis.ids)].tolist()) for hypothesis, row in pairs]

    triples = zip(hypotheses, of_tokens(scores.log_p), of_tokens(scores.entropy), strict=True)
    return [replace(x, token_log_probabilities=log_p, entropies=entropy) for x, log_p, entropy in triples]


def by_coverage(hypotheses: Iterable[Hypothesis], beta: float) -> list[Hypothesis]:
    """Hypotheses re-ranked by the coverage penalty, which is added to their scores: beta times the sum over
    source tokens of the logarithm of the attention that each has got, if that is less than 1 (Wu et al. 2016,
    Eq. 15)."""

    def penalised(hypothesis: Hypothesis) -> Hypothesis:
        assert hypothesis.alignment is not None
        attention = hypothesis.alignment[:, :-1].sum(axis=0)  # without the source's <eos>
        penalty = beta * float(np.log(np.clip(attention, UNPAID, 1)).sum())
        return replace(hypothesis, score=hypothesis.score + penalty)

    return sorted(map(penalised, hypotheses), key=lambda hypothesis: -hypothesis.score)
