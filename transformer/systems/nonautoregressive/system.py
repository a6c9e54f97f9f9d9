"""A Transformer whose decoder self-attention is bidirectional: it predicts all target positions at once. Its
loss, and its search, which predicts the length or the fertilities, then all tokens."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.options import Config
from transformer.decoding.calls import Inputs, as_variables
from transformer.decoding.forced import TokenScores, score_tokens, sown_attention, whole
from transformer.decoding.hooks import never_predicted
from transformer.decoding.scores import NEVER, SearchResult, in_order, source_limits
from transformer.decoding.scores import lengths as lengths_of
from transformer.decoding.searches.search import length_penalty
from transformer.model.encoder_decoder import Segments
from transformer.model.masks import Mask
from transformer.model.parameters import Variables, dense
from transformer.model.stack import Memory
from transformer.model.transformer import Transformer, cross_attention
from transformer.runtime.errors import UserError
from transformer.systems.nonautoregressive.options import (
    NonAutoregressiveConfig,
    NonAutoregressiveDecodingConfig,
)
from transformer.systems.system import System
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


# Log-probabilities and cross-attention of given translations.


def initial_draft(
    model: NonAutoregressiveTransformer,
    variables: Variables,
    source: Int[Array, "b s"],
    target: Int[Array, "b t"],
) -> Int[Array, "b _"]:
    """The decoder's input in the first iteration, for translations as long as the target: it has no target
    tokens yet."""
    c = model.config
    is_token = target != c.special.pad
    if c.decoder_input == "bos":
        return jnp.full((target.shape[0], c.bos_length), c.mask)
    if c.decoder_input == "fertility":
        memory = model.apply(variables, source, method="encode")
        fertility = jnp.asarray(model.apply(variables, memory, method="plan")).argmax(axis=-1)
        fertility = jnp.where(source != c.special.pad, fertility, 0)
        return copied_source(source, fertility, is_token, c.special.pad)
    return jnp.where(is_token, c.mask, c.special.pad)


def nonautoregressive_scores(
    model: NonAutoregressiveTransformer,
    variables: Variables,
    inputs: Inputs,
    target: Int[Array, "b t"],
) -> TokenScores:
    """log P of each target token, with all predicted at once from the likeliest fertilities. The length is
    given, except for decoder input bos, where tokens beyond `bos_length` are impossible."""
    c = model.config
    draft = initial_draft(model, variables, inputs["source"], target)
    logits = _as_long(jnp.asarray(whole(model, variables, inputs, draft)), target)
    scores = score_tokens(logits, target, c.special.pad)
    is_token = target != c.special.pad
    beyond = is_token & (jnp.arange(target.shape[1]) >= draft.shape[1])
    return replace(scores, log_p=jnp.where(beyond, -jnp.inf, scores.log_p))


def nonautoregressive_attention(
    model: NonAutoregressiveTransformer,
    variables: Variables,
    inputs: Inputs,
    target: Int[Array, "b t"],
) -> Float[Array, "b t s"]:
    """Cross-attention weights of each target position, averaged over layers and heads. The input of a masked
    decoder is the target, that of the others the initial draft."""
    draft = target
    if model.config.decoder_input != "masked":
        draft = initial_draft(model, variables, inputs["source"], target)
    weights = sown_attention(cross_attention, model, variables, inputs, draft)
    return jax.lax.stop_gradient(_as_long(weights, target))


def _as_long(x: Float[Array, "b _ n"], target: Int[Array, "b t"]) -> Float[Array, "b t n"]:
    """What there is of each target position; zeros beyond the draft."""
    missing = max(0, target.shape[1] - x.shape[1])
    return jnp.pad(x, ((0, 0), (0, missing), (0, 0)))[:, : target.shape[1]]


# Non-autoregressive search: predicts the length or the fertilities, then all tokens. A masked decoder
# refines them in iterations.


Apply = Callable[..., Any]
"""Calls a method of the model, given its name, with the model's variables."""
DRAFTS = (32, 128, 512)  # positions; each size is a part of the compiled program that runs only if needed


def nonautoregressive_search(
    model: NonAutoregressiveTransformer,
    params: Variables,
    inputs: Inputs,
    lines: Int[Array, " b"],
    options: NonAutoregressiveDecodingConfig,
) -> SearchResult:
    """Translations of each sentence, best first. They are ranked by the probabilities with which their tokens
    were chosen: in the iteration that predicted each last, given the sampled fertilities. log P(Y | X) is
    that of `nonautoregressive_scores`.

    Args:
      inputs: `source`, ids, each sentence closed by <eos>, then <pad>.
      lines: numbers of the input lines, folded into the random key that samples fertilities.

    Raises:
      UserError: several iterations without a masked decoder, or a length_scale with decoder input bos.
    """
    key = jax.random.key(options.seed)
    return _search(model, params, inputs["source"], lines, key, options.static())


@functools.partial(jax.jit, static_argnames=("model", "options"))
def _search(
    model: NonAutoregressiveTransformer,
    params: Variables,
    source: Int[Array, "b s"],
    lines: Int[Array, " b"],
    key: Array,
    options: NonAutoregressiveDecodingConfig,
) -> SearchResult:
    variables = as_variables(params)
    c = model.config
    penalty = length_penalty(options)
    if options.iterations > 1 and c.decoder_input != "masked":
        raise UserError(
            f"--decoding.iterations {options.iterations}: a model with --model.decoder-input "
            f"{c.decoder_input} predicts all tokens in one iteration"
        )
    if options.length_scale != 1 and c.decoder_input == "bos":
        raise UserError("--decoding.length-scale: a model with --model.decoder-input bos predicts no length")
    apply: Any = functools.partial(model.apply, variables)
    bounds = source_limits(source, c.special.pad, options.extra_length, options.max_length)
    limits = bounds.each
    longest = bounds.longest
    memory = apply(source, method="encode")

    def ranked(
        tokens: Int[Array, "b n t"], chosen: Float[Array, "b n"], log_p: Float[Array, "b n"]
    ) -> SearchResult:
        return in_order(tokens, chosen / penalty(lengths_of(tokens, c.special.pad)), log_p)

    if c.decoder_input == "bos":
        draft = jnp.full((source.shape[0], c.bos_length), c.mask)
        tokens, log_p = truncate_at_eos(apply(memory, draft, method="logits")[:, :longest], limits, c)
        return ranked(tokens[:, None], log_p[:, None], log_p[:, None])
    plan = apply(memory, method="plan")
    n = 1 if options.method == "greedy" else options.beam_size
    if c.decoder_input == "fertility":
        fertilities = sample_fertilities(plan, source != c.special.pad, lines, n, key)
        lengths = fertilities.sum(axis=-1)
    else:
        fertilities = None
        n = min(n, plan.shape[-1])
        _, classes = jax.lax.top_k(plan, n)
        lengths = (source != c.special.pad).sum(axis=1)[:, None] + classes - c.length_span
    lengths = jnp.round(lengths * options.length_scale).astype(jnp.int32)
    lengths = jnp.clip(lengths, 1, jnp.maximum(limits[:, None], 1))  # the limit of an empty row is 0

    # the decoder has no beam axis: each candidate is a row
    batch = source.shape[0]
    rows = jax.tree.map(lambda x: jnp.repeat(x, n, axis=0), memory)
    lengths = lengths.reshape(-1)

    def decode(size: int) -> Any:
        """All candidates, with a decoder input of `size` positions."""
        positions = jnp.arange(size) < lengths[:, None]
        if fertilities is None:
            draft = likeliest = jnp.where(positions, c.mask, c.special.pad)
        else:
            of_first = jnp.repeat(fertilities[:, :1], n, axis=1)
            draft, likeliest = (
                copied_source(
                    jnp.repeat(source, n, axis=0), fertility.reshape(batch * n, -1), positions, c.special.pad
                )
                for fertility in (fertilities, of_first)
            )
        tokens, log_p = predict_tokens(apply, c, rows, draft, lengths)
        chosen = log_p
        if c.decoder_input == "masked":
            tokens, chosen = refine(apply, c, rows, tokens, log_p, lengths, options.iterations)
        if (n > 1 and fertilities is not None) or options.iterations > 1:  # another draft, or other tokens
            logits = apply(rows, likeliest, method="logits")
            log_p = score_tokens(logits, tokens, c.special.pad).log_p
        padded = jnp.pad(tokens, ((0, 0), (0, longest - size)), constant_values=c.special.pad)
        return padded, *((values * positions).sum(axis=1) for values in (chosen, log_p))

    # as many positions as the longest candidate of this batch needs
    sizes = draft_sizes(longest)
    needed = (lengths.max() > jnp.asarray(sizes)).sum()
    tokens, chosen, log_p = jax.lax.switch(needed, [functools.partial(decode, size) for size in sizes])
    return ranked(tokens.reshape(batch, n, -1), chosen.reshape(batch, n), log_p.reshape(batch, n))


def draft_sizes(longest: int) -> tuple[int, ...]:
    """The numbers of positions that a draft may have."""
    return (*(size for size in DRAFTS if 1.5 * size <= longest), longest)


def predict_tokens(
    apply: Apply,
    config: NonAutoregressiveConfig,
    memory: Memory,
    draft: Int[Array, "b t"],
    lengths: Int[Array, " b"],
) -> tuple[Int[Array, "b t"], Float[Array, "b t"]]:
    """The most likely token at every position of the draft, and its log-probability: <eos> at the last
    position, another token before it, <pad> after it."""
    special = config.special
    logits = apply(memory, draft, method="logits")
    vocabulary, position = jnp.arange(logits.shape[-1]), jnp.arange(draft.shape[1])
    never = _never_predicted(config, logits.shape[-1])
    last = (position == lengths[:, None] - 1)[..., None]
    allowed = jnp.where(last, vocabulary == special.eos, ~never & (vocabulary != special.eos))
    tokens = jnp.where(allowed, logits, NEVER).argmax(axis=-1)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
    return jnp.where(position < lengths[:, None], tokens, special.pad), log_p


def refine(
    apply: Apply,
    config: NonAutoregressiveConfig,
    memory: Memory,
    tokens: Int[Array, "b t"],
    log_p: Float[Array, "b t"],
    lengths: Int[Array, " b"],
    iterations: int,
) -> tuple[Int[Array, "b t"], Float[Array, "b t"]]:
    """Mask-predict (Ghazvininejad et al. 2019, section 3): masks the least certain tokens and predicts them
    again. Iteration t of T (from 0) masks N (T - t) / T of N tokens. `tokens` are those of iteration 0."""
    positions = jnp.arange(tokens.shape[1]) < lengths[:, None]

    def iteration(t: Array, drafted: tuple[Array, Array]) -> tuple[Array, Array]:
        tokens, log_p = drafted
        number = lengths * (iterations - t) // iterations
        rank = jnp.argsort(jnp.argsort(jnp.where(positions, log_p, jnp.inf), axis=1), axis=1)
        masked: Bool[Array, "b t"] = positions & (rank < number[:, None])
        draft = jnp.where(masked, config.mask, tokens)
        predicted, predicted_log_p = predict_tokens(apply, config, memory, draft, lengths)
        return jnp.where(masked, predicted, tokens), jnp.where(masked, predicted_log_p, log_p)

    return jax.lax.fori_loop(1, iterations, iteration, (tokens, log_p))


def sample_fertilities(
    logits: Float[Array, "b s f"],
    is_token: Bool[Array, "b s"],
    lines: Int[Array, " b"],
    n: int,
    key: Array,
) -> Int[Array, "b n s"]:
    """The most likely fertilities of each source token, then n - 1 samples (Gu et al. 2018, section 4.2)."""

    def sample(line: Array, logits: Array) -> Array:
        line_key = jax.random.fold_in(key, line)
        return jax.random.categorical(line_key, logits, shape=(n - 1, logits.shape[0]))

    likeliest = logits.argmax(axis=-1)[:, None, :]
    fertilities = jnp.concatenate([likeliest, jax.vmap(sample)(lines, logits)], axis=1)
    return jnp.where(is_token[:, None, :], fertilities, 0)


def truncate_at_eos(
    logits: Float[Array, "b t v"], limits: Int[Array, " b"], config: NonAutoregressiveConfig
) -> tuple[Int[Array, "b t"], Float[Array, " b"]]:
    """The most likely token at every position up to the first <eos>, and their total log-probability."""
    special = config.special
    position = jnp.arange(logits.shape[1])
    tokens = jnp.where(_never_predicted(config, logits.shape[-1]), NEVER, logits).argmax(axis=-1)
    tokens = jnp.where(position >= jnp.minimum(limits, position.size)[:, None] - 1, special.eos, tokens)
    lengths = (tokens == special.eos).argmax(axis=1) + 1
    inside = position < lengths[:, None]
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]
    return jnp.where(inside, tokens, special.pad), (log_p * inside).sum(axis=1)


def _never_predicted(config: NonAutoregressiveConfig, size: int) -> Bool[Array, " v"]:
    """True at the ids that no output has: special ones, and that of the mask."""
    never = never_predicted(config.special, size)
    return never if config.mask_id is None else never | (jnp.arange(size) == config.mask_id)


SYSTEM = System(
    model=NonAutoregressiveTransformer,
    objective=nonautoregressive_objective,
    search=nonautoregressive_search,
    attentions=cross_attention,
    alignment=nonautoregressive_attention,
    scores=nonautoregressive_scores,
)
