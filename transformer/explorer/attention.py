"""All attention weights of an output: of every kind, layer and head; and those to the source, for reports."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config.ranges import Option
from transformer.config.transformer import StackConfig
from transformer.data.sequences import Example, sides, stacked
from transformer.data.store import Record
from transformer.model.encoder_decoder import EncoderDecoder, decoder_input
from transformer.model.parameters import Variables
from transformer.model.statistics import INTERMEDIATES, layers_sown
from transformer.runtime.errors import UserError
from transformer.runtime.text import has_text
from transformer.tasks.exhibit import ReportSample
from transformer.tasks.outputs import Plain
from transformer.translator.decoder import Decoder
from transformer.translator.search_outputs import aligned
from transformer.translator.translator import Hypothesis, Translator

MULTIPLE = 32
"""Lengths are padded to a multiple of this, so that few programs are compiled."""


def forced_attention(decoder: Decoder[Any], example: Example) -> Float[np.ndarray, "t s"] | None:
    """The cross-attention with teacher forcing, as its mean over layers and heads, without padding. None if
    the system has no alignments.

    Args:
      decoder: the model.
      example: its source and target.
    """
    system = decoder.system
    model = decoder.model
    fields = decoder.task.fields
    if system.alignment is None or not isinstance(model, EncoderDecoder):
        return None
    lengths = [len(example[name]) + -len(example[name]) % MULTIPLE for name in sides(fields)]
    batch = stacked([example], fields, lengths, 1)
    inputs = {name: jnp.asarray(batch[name]) for name in decoder.task.inputs}
    target = jnp.asarray(batch["target"])
    weights = np.asarray(aligned(system, model, decoder.variables, inputs, target))[0]
    rows, columns = model.target_mask(target), model.source_mask(inputs["source"])
    return weights[np.asarray(rows)[0]][:, np.asarray(columns)[0]]


# Exhibits of records, for the report of a run.


def exhibits_of(decoder: Decoder[Any], records: Sequence[Record]) -> Iterator[ReportSample]:
    """The exhibits of records: their best outputs, and the attention given their references.

    Args:
      decoder: of a task that exhibits.
      records: what `Task.exhibited` chose.
    """
    task = decoder.task
    for record, best in zip(records, decoder.stream(records, n_best=1), strict=True):
        attention = None
        if task.shows_attention:
            (example,) = task.examples([record], truncate=True)
            attention = forced_attention(decoder, example)
        yield task.exhibit(record, best[0], attention)


# All attention weights of a translation: of every kind, layer and head. They are computed in one pass with
# teacher forcing, so the search does not have to store them.


Kind = Literal["cross", "encoder", "decoder"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Weights = Float[Array, "_layers b h _q _k"]


@dataclass(frozen=True, eq=False)
class Attention(Plain):
    """The attention weights of one translation. Each row of weights sums to 1."""

    source: tuple[str, ...]
    """The source's subwords, then </s>; empty for a language model."""
    target: tuple[str, ...]
    """The translation's subwords, then </s>: one row of decoder and cross for each predicted token."""
    given: tuple[str, ...]
    """The decoder's input: <s>, then the target without its last token."""
    encoder: Float[np.ndarray, "layers heads source source"]
    decoder: Float[np.ndarray, "layers heads target given"]
    cross: Float[np.ndarray, "layers heads target source"]

    def words(self, kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The query and the key tokens of a kind, which label its rows and columns.

        Raises:
          UserError: there is no such kind.
        """
        _check_kind(kind)
        queries = self.source if kind == "encoder" else self.target
        return queries, self.given if kind == "decoder" else self.source

    def weights(
        self, kind: Kind, layer: int | None = None, head: int | None = None
    ) -> Float[np.ndarray, "queries keys"]:
        """The weights of one head. Layers and heads are counted from 0; None averages over all of them.

        Raises:
          UserError: there is no such kind, layer or head.
        """
        _check_kind(kind)
        weights: np.ndarray = getattr(self, kind)
        for name, index, size in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
            if index is not None and not 0 <= index < size:
                raise UserError(f"{name} {index}: {kind} attention has {size}, counted from 0")
        weights = weights.mean(axis=0) if layer is None else weights[layer]
        return weights.mean(axis=0) if head is None else weights[head]


def attention_of(
    translator: Translator, source: str, hypotheses: Sequence[Hypothesis], **options: Option
) -> list[Attention]:
    """The attention weights of translations of a source sentence.

    Args:
      source: the sentence.
      hypotheses: some of `translator.search([source])[0]`.
      options: fields of `DecodingConfig`, as passed to the search.

    Raises:
      UserError: the model is not an autoregressive Transformer, the sentence is empty, or a hypothesis
        has no ids.
    """
    check_inspectable(translator, source)
    if not all(hypothesis.ids for hypothesis in hypotheses):
        raise UserError("a hypothesis has no ids: pass hypotheses that Translator.search returned")
    if not hypotheses:
        return []
    special = translator.model.config.special  # type: ignore[attr-defined]
    source = translator.task.read(source, translator.settings(None, options).buckets[-1])
    row = translator.source_row(source, **options)
    time = max(len(hypothesis.ids) for hypothesis in hypotheses)
    padded = time + -time % 16  # few lengths, so few compilations
    target = np.full((len(hypotheses), padded), special.pad, np.int32)
    for index, hypothesis in enumerate(hypotheses):
        target[index, : len(hypothesis.ids)] = hypothesis.ids
    weights = _all_weights(
        translator.model, translator.variables, np.repeat(row, len(target), axis=0), target
    )
    encoder, decoder, cross = map(np.asarray, weights)

    source_ids = [int(index) for index in row[0] if index != special.pad]
    pieces = tuple(translator.tokenizers[0].for_source(source).pieces(source_ids))
    tokenizer = translator.tokenizers[1].for_source(source)
    attentions = []
    for index, hypothesis in enumerate(hypotheses):
        s = len(source_ids)
        t = len(hypothesis.ids)
        target_pieces = tuple(tokenizer.pieces(hypothesis.ids))
        attentions.append(
            Attention(
                source=pieces,
                target=target_pieces,
                given=(*tokenizer.pieces([special.bos]), *target_pieces[:-1]),
                encoder=encoder[:, index, :, :s, :s],
                decoder=decoder[:, index, :, :t, :t],
                cross=cross[:, index, :, :t, :s],
            )
        )
    return attentions


def check_inspectable(decoder: Decoder[Any], source: str | None = None) -> None:
    """Raises UserError if the model is not an autoregressive Transformer, or the source is empty."""
    if not decoder.system.stepwise or not isinstance(decoder.config.model, StackConfig):
        raise UserError(
            f"system {decoder.config.system} has no attention to explore: that needs an autoregressive "
            "Transformer, such as system transformer"
        )
    if isinstance(decoder, Translator) and source is not None and not has_text(source):
        raise UserError("an empty sentence has no attention: give one with text")


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UserError(f"no attention of kind {kind!r}: choose one of {', '.join(KINDS)}")


@functools.partial(jax.jit, static_argnums=0)
def _all_weights(
    model: nn.Module, variables: Variables, source: Int[Array, "b s"], target: Int[Array, "b t"]
) -> tuple[Weights, Weights, Weights]:
    """The weights of encoder self-attention, decoder self-attention and cross-attention."""
    config = model.config  # type: ignore[attr-defined]
    target_input = decoder_input(target, config.special)
    _, sown = model.apply(variables, source, target_input, mutable=[INTERMEDIATES])

    def weights(stack: str, attention: str) -> Weights:
        layers = layers_sown(sown[INTERMEDIATES], stack)
        return jnp.stack([layer[attention]["weights"][0] for layer in layers])

    has_recurrence = getattr(config, "decoder_recurrence", "none") != "none"
    return (
        weights("encoder", "self_attention"),
        weights("decoder", "recurrence" if has_recurrence else "self_attention"),
        weights("decoder", "cross_attention"),
    )
