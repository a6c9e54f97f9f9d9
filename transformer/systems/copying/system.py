"""Outputs that can be words of the source, for the Transformer: the pointer-generator (See et al. 2017),
CopyNet (Gu et al. 2016) and the pointer network (Vinyals et al. 2015); likelihood of generating and copying,
the coverage loss, search, scores and alignments.

An id at or above the vocabulary size stands for an out-of-vocabulary word, the same in source and target.
The network reads all of these as <unk>, and outputs one by pointing to its position in the source. In
searches such a word is `vocab_size` + its first position. Every source is closed by <eos>, so an output that
only points ends by pointing to that position.
"""

import functools
import math
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.options import Config, text_data
from transformer.decoding.calls import Inputs
from transformer.decoding.forced import TokenScores, score_tokens
from transformer.decoding.scores import SearchResult
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.model.cache import Cache, States
from transformer.model.encoder_decoder import Segments, decoder_input
from transformer.model.parameters import Variables, declared, dense
from transformer.model.stack import Memory
from transformer.model.statistics import INTERMEDIATES
from transformer.model.transformer import Transformer
from transformer.runtime.errors import UserError
from transformer.systems.copying.options import CopyingConfig
from transformer.systems.system import System
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training

TINY = 1e-30  # keeps logarithms finite; smaller than all probabilities that matter


@struct.dataclass
class SourceMemory(Memory):
    """The encoder's output, and the source ids."""

    ids: Int[Array, "b s"]


@struct.dataclass
class Mixture:
    """The distribution of the next word at each target position: generated or copied."""

    logits: Float[Array, "b t v"]
    """The logits of generating each word, whose softmax is P_vocab."""
    log_generate: Float[Array, "b t"]
    """log of p_gen, the probability of generating."""
    log_copy: Float[Array, "b t"]
    """log of 1 - p_gen."""
    pointer: Float[Array, "b t s"]
    """The distribution over the source positions, rows summing to 1."""


class CopyingTransformer(Transformer):
    """The Transformer with one of three output layers that point to the source."""

    config: CopyingConfig
    reads_unknown = True

    def setup(self) -> None:
        super().setup()
        width = self.config.d_model
        match self.config.output:
            case "copynet":
                # scores of copying begin with a variance of about 1, as those of generating
                initial = nn.initializers.variance_scaling(1 / width, "fan_in", "truncated_normal")
                kernel = declared(initial, ("model", "hidden"))
                self.copy_key = nn.Dense(width, use_bias=False, kernel_init=kernel)
            case "pointer":
                self.pointer_query, self.pointer_key = (dense(width, use_bias=False) for _ in range(2))
                self.energy = dense(1, use_bias=False)
            case _:
                self.pointer_query, self.pointer_key = (dense(width, use_bias=False) for _ in range(2))
                self.gate = dense(1)

    def known(self, ids: Int[Array, "*time"]) -> Int[Array, "*time"]:
        """Ids as the network reads them: <unk> for every word outside the vocabulary."""
        return jnp.where(ids >= self.config.output_size, self.config.special.unk, ids)

    def __call__(
        self,
        source: Int[Array, "b s"],
        decoder_input: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "b t extended"]:
        """Teacher forcing: log-probabilities of every next token, over the vocabulary and then the source
        positions (`extended`)."""
        memory = self.encode(source, deterministic=deterministic)
        hidden = self.decode(memory, decoder_input, deterministic=deterministic)
        return self.extended(hidden, memory, counted(decoder_input, source))

    def encode(
        self,
        source: Int[Array, "b s"],
        *,
        segments: Int[Array, "b s"] | None = None,
        deterministic: bool = True,
        every_layer: bool = False,
    ) -> SourceMemory:
        memory = super().encode(self.known(source), deterministic=deterministic, every_layer=every_layer)
        return SourceMemory(memory.states, memory.mask, memory.layers, source)

    def decode(
        self,
        memory: Memory,
        decoder_input: Int[Array, "b t"],
        *,
        segments: Segments | None = None,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        return super().decode(
            memory, self.known(decoder_input), deterministic=deterministic, embedded=embedded
        )

    def mixture(
        self, hidden: Float[Array, "b t m"], memory: SourceMemory, counts: Int[Array, "b t s"] | None
    ) -> Mixture:
        """The distribution of the next word for every state of the decoder.

        Args:
          hidden: the decoder's states.
          memory: the encoded source.
          counts: how often the word at each source position was output before, for `once`.
        """
        allowed = memory.mask[:, None, :]
        if self.config.once:
            assert counts is not None
            allowed &= counts <= _earlier(memory.ids)[:, None, :]
        match self.config.output:
            case "copynet":
                mixture = self._one_softmax(hidden, memory, allowed)
            case "pointer":
                mixture = self._pointed(hidden, memory, allowed)
            case _:
                mixture = self._gated(hidden, memory, allowed)
        self.sow(INTERMEDIATES, "pointer", mixture.pointer)
        return mixture

    def _gated(
        self, hidden: Float[Array, "b t m"], memory: SourceMemory, allowed: Bool[Array, "b #t s"]
    ) -> Mixture:
        """The pointer-generator: p_gen is a gate (See et al. 2017, Eq. 8), the pointer an attention."""
        logits = self.output(hidden)
        query, key = self.pointer_query(hidden), self.pointer_key(memory.states)
        scores = jnp.einsum("btm,bsm->bts", query, key, preferred_element_type=jnp.float32)
        pointer = jax.nn.softmax(_only(allowed, scores / math.sqrt(key.shape[-1])))
        context = jnp.einsum("bts,bsm->btm", pointer.astype(hidden.dtype), memory.states)
        gate = self.gate(jnp.concatenate([hidden, context], axis=-1)).astype(jnp.float32)[..., 0]
        return Mixture(logits, jax.nn.log_sigmoid(gate), jax.nn.log_sigmoid(-gate), pointer)

    def _one_softmax(
        self, hidden: Float[Array, "b t m"], memory: SourceMemory, allowed: Bool[Array, "b #t s"]
    ) -> Mixture:
        """CopyNet: one softmax over the scores of generating each word of the vocabulary and of copying each
        source position, tanh(h_j W_c) . s_t (Gu et al. 2016, Eq. 4-8). That is a mixture in which the two
        sums of exponentials are in the ratio of p_gen and 1 - p_gen."""
        logits = self.output(hidden)
        key = jnp.tanh(self.copy_key(memory.states))
        scores = jnp.einsum("btm,bsm->bts", hidden, key, preferred_element_type=jnp.float32)
        scores = _only(allowed, scores)
        gate = jax.nn.logsumexp(logits, axis=-1) - jax.nn.logsumexp(scores, axis=-1)
        return Mixture(logits, jax.nn.log_sigmoid(gate), jax.nn.log_sigmoid(-gate), jax.nn.softmax(scores))

    def _pointed(
        self, hidden: Float[Array, "b t m"], memory: SourceMemory, allowed: Bool[Array, "b #t s"]
    ) -> Mixture:
        """The pointer network: softmax over v . tanh(W_1 e_j + W_2 d_i) (Vinyals et al. 2015, Eq. 3). It
        generates nothing."""
        query, key = self.pointer_query(hidden), self.pointer_key(memory.states)
        scores = self.energy(jnp.tanh(query[:, :, None, :] + key[:, None, :, :]))[..., 0]
        pointer = jax.nn.softmax(_only(allowed, scores.astype(jnp.float32)))
        always = jnp.zeros(hidden.shape[:2])
        return Mixture(
            jnp.zeros((*hidden.shape[:2], self.config.output_size)), always - jnp.inf, always, pointer
        )

    def extended(
        self, hidden: Float[Array, "b t m"], memory: SourceMemory, counts: Int[Array, "b t s"] | None
    ) -> Float[Array, "b t extended"]:
        """log P of every word of the vocabulary, then of every source position. If the word at a position is
        in the vocabulary or at an earlier position, its probability is added to that one. Arguments as of
        `mixture`."""
        mixture = self.mixture(hidden, memory, counts)
        generated = jax.nn.log_softmax(mixture.logits) + mixture.log_generate[..., None]
        size = generated.shape[-1]
        num_positions = memory.ids.shape[1]
        copied = mixture.pointer * jnp.exp(mixture.log_copy)[..., None]
        share = jnp.exp(jnp.pad(generated, ((0, 0), (0, 0), (0, num_positions)), constant_values=-jnp.inf))
        rows = jnp.arange(memory.ids.shape[0])[:, None]
        share = share.at[rows, :, extended_ids(memory.ids, memory.ids, size)].add(jnp.swapaxes(copied, 1, 2))
        least = 0.0 if self.config.output == "pointer" else TINY  # other words are impossible
        return jnp.log(share + least)

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        """The Transformer's cache, the source to point to, and with `once` the counts of `mixture`."""
        assert isinstance(memory, SourceMemory)
        cache = super().init_cache(memory, beam_size, length)
        rows, num_positions = memory.ids.shape
        counts = jnp.zeros((rows, beam_size, num_positions), jnp.int32) if self.config.once else None
        return replace(cache, layers=(*cache.layers, States(counts)), source=(cache.source, memory))

    def decode_step(
        self, cache: Cache, tokens: Int[Array, "b n"]
    ) -> tuple[Float[Array, "b n extended"], Cache]:
        decoder_source, memory = cache.source
        *layers, past = cache.layers
        if self.config.once:
            ids = extended_ids(memory.ids, memory.ids, self.config.output_size)
            past = States(past.value + (tokens[:, :, None] == ids[:, None, :]))
        cache = replace(cache, layers=tuple(layers), source=decoder_source)
        hidden, cache = self.hidden_step(cache, self.known(tokens))
        log_p = self.extended(hidden, memory, past.value)
        return log_p, replace(cache, layers=(*cache.layers, past), source=(decoder_source, memory))


def _only(allowed: Bool[Array, "b #t s"], scores: Float[Array, "b t s"]) -> Float[Array, "b t s"]:
    """Scores of which a softmax is zero where it is not allowed."""
    return jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)


def _earlier(ids: Int[Array, "b s"]) -> Int[Array, "b s"]:
    """How many earlier positions have the same word."""
    return jnp.tril(ids[:, :, None] == ids[:, None, :], -1).sum(axis=-1)


def counted(target_input: Int[Array, "b t"], source: Int[Array, "b s"]) -> Int[Array, "b t s"]:
    """How often the word at each source position is in each prefix of the decoder input."""
    return jnp.cumsum(target_input[:, :, None] == source[:, None, :], axis=1)


def pointer(intermediates: Variables) -> Float[Array, "1 b 1 t s"]:
    """The pointer's attention."""
    (weights,) = intermediates["pointer"]
    return weights[None, :, None]  # type: ignore[no-any-return]


def extended_ids(ids: Int[Array, "b t"], source: Int[Array, "b s"], vocab_size: int) -> Int[Array, "b t"]:
    """Ids over vocabulary and source positions: an out-of-vocabulary word is `vocab_size` + its first source
    position, or `vocab_size` + s if it is not in the source."""
    same: Bool[Array, "b t s"] = ids[:, :, None] == source[:, None, :]
    position = jnp.where(same.any(axis=-1), same.argmax(axis=-1), source.shape[1])
    return jnp.where(ids >= vocab_size, vocab_size + position, ids)


# Likelihood of generating and copying, and the coverage loss.


def copying_objective(config: Config) -> Objective:
    """-log P(target | source) of the mixture, and coverage if it has a weight.

    The metrics are means over the tokens: `nll`; `correct`, whether a token has more than half of the
    probability; `copied`, its share of copying (1 - p_gen); and `coverage`, if it has a weight.

    Raises:
      UserError: the tokenizer is not open-word, label smoothing is used, or vocabularies are separate.
    """
    data = text_data(config)
    if data.tokenizer != "open-word":
        raise UserError(
            f"--data.tokenizer {data.tokenizer}: out-of-vocabulary words need their own ids to be "
            "copied: use open-word"
        )
    if config.training.label_smoothing:
        raise UserError("--training.label-smoothing must be 0: label smoothing is undefined for copied words")
    if not data.joint_vocabulary:
        raise UserError("--data.no-joint-vocabulary: copying needs a joint vocabulary")
    assert isinstance(config.model, CopyingConfig)
    coverage_weight = config.model.coverage_weight

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, CopyingTransformer)
        source, target = batch["source"], batch["target"]
        (log_p, likely, mixture), sown = forced(model, variables, source, target, context)
        is_token = (target != model.config.special.pad).astype(jnp.float32)
        loss = -(log_p * is_token).sum()
        weight = is_token.sum()
        sums = {
            "nll": loss,
            "correct": (likely * is_token).sum(),
            "copied": (jnp.exp(mixture.log_copy) * is_token).sum(),
        }
        if coverage_weight:
            seen = jnp.cumsum(mixture.pointer, axis=1) - mixture.pointer
            sums["coverage"] = (jnp.minimum(mixture.pointer, seen).sum(axis=-1) * is_token).sum()
            loss += coverage_weight * sums["coverage"]
        metrics = {name: (jax.lax.stop_gradient(total), weight) for name, total in sums.items()}
        return Loss(loss, weight, metrics, **sown)

    return objective


Forced = tuple[Float[Array, "b t"], Float[Array, "b t"], Mixture]
EVALUATION = Context()


def forced(
    model: CopyingTransformer,
    variables: Variables,
    source: Int[Array, "b s"],
    target: Int[Array, "b t"],
    context: Context = EVALUATION,
) -> tuple[Forced, dict[str, Variables]]:
    """With teacher forcing: log P of every target token, whether P is more than one half (1 or 0), and the
    mixture; and what the model has sown.

    P(w) = p_gen P_vocab(w) + (1 - p_gen) sum of the pointer over the positions of w (See et al. 2017, Eq. 9).
    An out-of-vocabulary word that is not in the source is generated as <unk>. A pointer network gives a word
    that is not in the source the probability 1e-30.
    """
    special = model.config.special
    target_input = decoder_input(target, special)

    def run(model: CopyingTransformer) -> Mixture:
        memory = model.encode(source, deterministic=context.deterministic)
        hidden = model.decode(memory, target_input, deterministic=context.deterministic)
        return model.mixture(hidden, memory, counted(target_input, source))

    mixture, sown = apply_training(model, variables, context, rngs=context.rngs("dropout"), method=run)
    log_vocabulary = jax.nn.log_softmax(mixture.logits)
    outside = target >= model.config.output_size
    held = target[:, :, None] == source[:, None, :]
    spoken = jnp.where(outside, special.unk, target)
    generated = jnp.take_along_axis(log_vocabulary, spoken[..., None], axis=-1)[..., 0] + mixture.log_generate
    generated = jnp.where(outside & held.any(axis=-1), -jnp.inf, generated)
    pointed = jnp.where(held, mixture.pointer, 0).sum(axis=-1)
    log_p = jnp.logaddexp(generated, jnp.log(pointed + TINY) + mixture.log_copy)
    return (log_p, (log_p > math.log(0.5)).astype(jnp.float32), mixture), sown


# Search, scores and alignments of models that copy.


@functools.partial(jax.jit, static_argnums=2)
def named(tokens: Int[Array, "b n t"], source: Int[Array, "b s"], vocab_size: int) -> Int[Array, "b n t"]:
    """Replaces ids at or above the vocabulary size, which are source positions, by the ids there."""
    position = jnp.clip(tokens - vocab_size, 0, source.shape[1] - 1)
    copied = jnp.take_along_axis(source[:, None, :], position, axis=2)
    return jnp.where(tokens >= vocab_size, copied, tokens)


def _copied_words(model: CopyingTransformer, result: SearchResult, inputs: Inputs) -> SearchResult:
    """The source's ids for copied words."""
    return replace(result, tokens=named(result.tokens, inputs["source"], model.config.output_size))


copying_search = AutoregressiveSearch(named=_copied_words)


def copying_scores(
    model: CopyingTransformer, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> TokenScores:
    """log P of each target token, including <eos>. The entropy is that of the choice between generating and
    copying, and of the word or the source position chosen."""
    (log_p, _, mixture), _ = forced(model, variables, inputs["source"], target)
    is_token = target != model.config.special.pad
    generate = jnp.exp(mixture.log_generate)
    copy = jnp.exp(mixture.log_copy)
    pointed_entropy = -(mixture.pointer * jnp.log(jnp.maximum(mixture.pointer, TINY))).sum(axis=-1)
    generated_entropy = score_tokens(mixture.logits, jnp.zeros_like(target), -1).entropy
    entropy = copy * (pointed_entropy - mixture.log_copy)
    of_generating = generate * (generated_entropy - mixture.log_generate)
    entropy += jnp.where(generate > 0, of_generating, 0)  # 0 log 0 = 0
    return TokenScores(jnp.where(is_token, log_p, 0), jnp.where(is_token, entropy, 0))


def pointers(
    model: CopyingTransformer, variables: Variables, inputs: Inputs, target: Int[Array, "b t"]
) -> Float[Array, "b t s"]:
    """The pointer distribution over the source for each token of a translation."""
    (_, _, mixture), _ = forced(model, variables, inputs["source"], target)
    return mixture.pointer


SYSTEM = System(
    model=CopyingTransformer,
    objective=lambda config, _: copying_objective(config),
    search=copying_search,
    attentions=pointer,
    alignment=pointers,
    scores=copying_scores,
    copies=True,
)
