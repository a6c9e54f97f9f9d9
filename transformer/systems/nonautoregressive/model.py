"""A Transformer whose decoder self-attention is bidirectional: it predicts all target positions at once; and
its loss."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.options import Config
from transformer.model.encoder_decoder import Segments
from transformer.model.masks import Mask
from transformer.model.parameters import Variables, dense
from transformer.model.stack import Memory
from transformer.model.transformer import Transformer
from transformer.runtime.errors import UserError
from transformer.systems.nonautoregressive.options import NonAutoregressiveConfig
from transformer.training.cross_entropy import cross_entropy, output_cross_entropy
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training

MAX_FERTILITY = 8
"""Copies of a source token at most."""


class NonAutoregressiveTransformer(Transformer):
    """Encoder and layers are those of the Transformer. The decoder's input is a draft of the target instead
    of the previous tokens.

    In `__call__` and `hidden`, `decoder_input` is that draft: `config.mask` at masked positions, <pad> after
    the end; with fertilities, copied source tokens.
    """

    config: NonAutoregressiveConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        if c.decoder_input in ("length", "masked"):
            self.length = dense(2 * c.length_span + 1)
        if c.decoder_input == "fertility":
            self.fertility = dense(MAX_FERTILITY + 1)

    def hidden(
        self,
        source: Int[Array, "b s"],
        decoder_input: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t m"]:
        memory = self.encode(source, deterministic=deterministic)
        if self.is_initializing():
            self.plan(memory)
        return self.decode(memory, decoder_input, deterministic=deterministic)

    def embed_target(self, ids: Int[Array, "b t"]) -> Float[Array, "b t m"]:
        copied = self.config.decoder_input == "fertility"
        return self.source_embedding(ids) if copied else super().embed_target(ids)

    def decoder_mask(self, decoder_input: Int[Array, "b t"]) -> Mask:
        """Every position of the draft attends to all others."""
        return Mask(keys=decoder_input != self.config.special.pad, window=self.config.window)

    def logits(self, memory: Memory, decoder_input: Int[Array, "b t"]) -> Float[Array, "b t v"]:
        """Logits over the vocabulary at every position of the draft."""
        return self.output(self.decode(memory, decoder_input))

    def plan(self, memory: Memory) -> Float[Array, "b *_"] | None:
        """Logits of what is predicted before any token: target minus source length, `[b, 2 length_span + 1]`,
        or the fertility of each source token, `[b, s, MAX_FERTILITY + 1]`. None for decoder input bos."""
        states = memory.states.astype(jnp.float32)
        if self.config.decoder_input == "fertility":
            return self.fertility(states)
        if self.config.decoder_input == "bos":
            return None
        is_token = memory.mask[:, :, None]
        return self.length(jnp.where(is_token, states, 0).sum(axis=1) / jnp.maximum(is_token.sum(axis=1), 1))


def copied_source(
    source: Int[Array, "*b s"], fertility: Int[Array, "*b s"], positions: Bool[Array, "*b t"], pad: int
) -> Int[Array, "*b t"]:
    """The decoder's input from fertilities: each source token is repeated as often as its fertility, in order
    (Gu et al. 2018, section 3.1).

    Args:
      positions: True at the positions to fill, over which the copies are spread evenly. The other positions
        are <pad>.
    """
    ends = jnp.cumsum(fertility, axis=-1)
    length = positions.sum(axis=-1, keepdims=True)
    # the centre of position j, (j + 1/2) / length, as a number of copies
    copies = (jnp.arange(positions.shape[-1]) + 0.5) * ends[..., -1:] / jnp.maximum(length, 1)
    origin = (copies[..., :, None] > ends[..., None, :]).sum(axis=-1)
    origin = jnp.minimum(origin, source.shape[-1] - 1)
    return jnp.where(positions, jnp.take_along_axis(source, origin, axis=-1), pad)


# The loss of non-autoregressive models: of the tokens and of the plan (lengths or fertilities).


Fertility = Callable[[Int[Array, "b s"], Int[Array, "b t"]], Int[Array, "b s"]]


def nonautoregressive_objective(config: Config, load_teacher: Callable[[Path], Any]) -> Objective:
    """Cross-entropy of the predicted tokens, plus that of the plan (lengths or fertilities).

    The metrics are those of `translation_objective` over the predicted tokens, and `plan`, the loss of the
    plan. A masked decoder predicts the masked tokens only; in evaluation all are masked.

    Raises:
      UserError: with decoder input fertility, the teacher is missing; or bos_length is less than the maximum
        length of training sentences.
    """
    c, smoothing = config.model, config.training.label_smoothing
    assert isinstance(c, NonAutoregressiveConfig)
    if c.decoder_input == "bos" and c.bos_length < config.data.max_length:
        raise UserError(
            f"--model.bos-length {c.bos_length} is less than --data.max-length {config.data.max_length}: "
            "raise it"
        )
    fertility_of = teacher_fertilities(config, load_teacher) if c.decoder_input == "fertility" else None

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, NonAutoregressiveTransformer)
        source, target = batch["source"], batch["target"]
        is_token = target != c.special.pad
        fertility, predicted = None, is_token
        match c.decoder_input:
            case "length":
                draft = jnp.where(is_token, c.mask, c.special.pad)
            case "bos":
                first = jnp.where(is_token.any(axis=1, keepdims=True), c.mask, c.special.pad)
                draft = jnp.repeat(first, c.bos_length, axis=1)
            case "fertility":
                assert fertility_of
                fertility = jnp.minimum(fertility_of(source, target), MAX_FERTILITY)
                draft = copied_source(source, fertility, is_token, c.special.pad)
            case "masked":
                if rngs := context.rngs("mask"):
                    predicted = sample_mask(rngs["mask"], is_token)
                draft = jnp.where(predicted, c.mask, target)

        def run(model: NonAutoregressiveTransformer) -> tuple[tuple[Array, Array], Array | None]:
            memory = model.encode(source, deterministic=context.deterministic)
            hidden = model.decode(memory, draft, deterministic=context.deterministic)
            return model.output_factors(hidden[:, : target.shape[1]]), model.plan(memory)

        outputs, sown = apply_training(model, variables, context, rngs=context.rngs("dropout"), method=run)
        (hidden, table), plan = outputs
        weights = predicted.astype(jnp.float32)
        loss, nll, correct = output_cross_entropy(hidden, table, target, weights, smoothing)
        plan_loss = jnp.zeros(())
        if fertility is not None:
            is_source = (source != c.special.pad).astype(jnp.float32)
            plan_loss = (cross_entropy(plan, fertility) * is_source).sum()
        elif plan is not None:
            classes = length_class(source, is_token, c)
            is_sentence = is_token.any(axis=1).astype(jnp.float32)
            plan_loss = (cross_entropy(plan, classes) * is_sentence).sum()
        sums, weight = {"nll": nll, "correct": correct, "plan": plan_loss}, weights.sum()
        metrics = {name: (jax.lax.stop_gradient(total), weight) for name, total in sums.items()}
        return Loss(loss + plan_loss, weight, metrics, **sown)

    return objective


def length_class(
    source: Int[Array, "b s"], is_token: Bool[Array, "b t"], config: NonAutoregressiveConfig
) -> Int[Array, " b"]:
    """The class of target minus source length, which is clipped to plus and minus `length_span`."""
    difference = is_token.sum(axis=1) - (source != config.special.pad).sum(axis=1)
    return jnp.clip(difference, -config.length_span, config.length_span) + config.length_span


def sample_mask(key: Array, is_token: Bool[Array, "b t"]) -> Bool[Array, "b t"]:
    """Samples the tokens to mask: the number of masks in each sentence is uniform from 1 to its length, and
    their positions are uniform (Ghazvininejad et al. 2019, section 2.2)."""
    number_key, position_key = jax.random.split(key)
    lengths = is_token.sum(axis=1)
    number = 1 + jnp.floor(jax.random.uniform(number_key, lengths.shape) * lengths).astype(lengths.dtype)
    noise = jnp.where(is_token, jax.random.uniform(position_key, is_token.shape), 2.0)
    rank = jnp.argsort(jnp.argsort(noise, axis=1), axis=1)
    return is_token & (rank < number[:, None])


def teacher_fertilities(config: Config, load_teacher: Callable[[Path], Any]) -> Fertility:
    """A function that gives the fertility of each source token: the number of target tokens that attend to it
    most, in the cross-attention of the teacher.

    Raises:
      UserError: there is no teacher.
    """
    c = config.model
    assert isinstance(c, NonAutoregressiveConfig)
    if c.teacher is None:
        raise UserError(c.untaught)
    teacher = load_teacher(c.teacher)
    variables = jax.device_get(teacher.variables)  # on the host, so that each layout places its own copy

    def fertilities(source: Int[Array, "b s"], target: Int[Array, "b t"]) -> Int[Array, "b s"]:
        traced = jax.tree.map(jnp.asarray, variables)
        weights = teacher.system.required("alignment")(teacher.model, traced, {"source": source}, target)
        weights = jnp.where((source != c.special.pad)[:, None, :], weights, -1)
        aligned = jax.nn.one_hot(weights.argmax(axis=-1), source.shape[1], dtype=jnp.int32)
        return (aligned * (target != c.special.pad)[:, :, None]).sum(axis=1)

    return fertilities
