"""Recurrent sequence to sequence: a bidirectional encoder, and a decoder with soft, hard or no attention."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer.config.options import Config
from transformer.model.cache import Cache, States
from transformer.model.encoder_decoder import EncoderDecoder, decoder_input
from transformer.model.layers import Dropout
from transformer.model.parameters import Module, Variables, declared, dense
from transformer.model.statistics import INTERMEDIATES
from transformer.runtime.errors import UserError
from transformer.systems.recurrent.options import RecurrentConfig
from transformer.systems.system import autoregressive
from transformer.training.cross_entropy import cross_entropy
from transformer.training.objective import (
    Batch,
    Context,
    Loss,
    Objective,
    apply_training,
    translation_objective,
)

# Recurrent sequence to sequence: a bidirectional encoder, and a decoder that reads one fixed vector
# (Sutskever et al. 2014; Cho et al. 2014) or attends to the source at each step (Bahdanau et al. 2015).


Carry = Any
"""The state of a cell: one or two arrays `[b, n, d]`."""


@struct.dataclass
class Source:
    """The encoded source, the same at every step of the decoder."""

    keys: Float[Array, "b s m"]
    values: Float[Array, "b s m"]
    mask: Bool[Array, "b s"]
    summary: Float[Array, "b m"]
    """The encoder's last states of both directions."""


@struct.dataclass
class Memory:
    """The encoded source, and the initial state of each layer of the decoder."""

    source: Source
    starts: list[Carry]


@struct.dataclass
class Steps:
    """The output of the decoder, for `t` steps of one beam or one step of `n` beams."""

    states: Float[Array, "b t m"]
    contexts: Float[Array, "b t m"]
    weights: Float[Array, "b t s"]
    """Attention: rows sum to 1; for hard attention, the distribution to sample from."""
    choices: Int[Array, "b t"]
    """hard: the position that was sampled; otherwise the most probable one."""


CELLS = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell, "rnn": nn.SimpleCell}


def make_cell(cell: str, width: int) -> nn.RNNCellBase:
    """A GRU (Cho et al. 2014), LSTM (Hochreiter and Schmidhuber 1997) or tanh RNN cell (Elman 1990)."""
    return CELLS[cell](
        width,
        kernel_init=declared(nn.initializers.lecun_normal(), ("model", "hidden")),
        recurrent_kernel_init=declared(nn.initializers.orthogonal(), ("model", "hidden")),
        bias_init=declared(nn.initializers.zeros_init(), (None,)),
    )


def _half(config: RecurrentConfig) -> nn.RNN:
    """One direction of an encoder layer."""
    return nn.RNN(make_cell(config.cell, config.d_model // 2))


class Encoder(Module):
    """Bidirectional layers, with half of d_model for each direction."""

    config: RecurrentConfig

    def setup(self) -> None:
        c = self.config
        self.layers = [
            nn.Bidirectional(_half(c), _half(c), return_carry=True)  # type: ignore[arg-type]
            for _ in range(c.num_layers)
        ]
        self.dropout = Dropout(c.dropout)

    def __call__(
        self, x: Float[Array, "b s m"], lengths: Int[Array, " b"], deterministic: bool
    ) -> tuple[Float[Array, "b s m"], list[Float[Array, "b m"]]]:
        """The states at every position, and each layer's last states."""
        last = []
        for layer in self.layers:
            carries, x = layer(self.dropout(x, deterministic), seq_lengths=lengths)
            last.append(jnp.concatenate([_output(carry) for carry in carries], axis=-1))
        return x, last


class DecoderStep(Module):
    """One step of all decoder layers. The context is computed from the previous state."""

    config: RecurrentConfig

    def setup(self) -> None:
        c = self.config
        self.cells = [make_cell(c.cell, c.d_model) for _ in range(c.num_layers)]
        self.dropout = Dropout(c.dropout)
        if c.attention != "fixed":
            self.query = dense(c.d_model, use_bias=False)
        if c.attention in ("additive", "hard"):
            self.energy = dense(1, use_bias=False)

    def __call__(
        self, states: list[Carry], embedded: Float[Array, "b n m"], source: Source, deterministic: bool
    ) -> tuple[list[Carry], Steps]:
        context, weights, choice = self._attend(_output(states[-1]), source)
        x = jnp.concatenate([embedded, context], axis=-1)
        after = []
        for cell, state in zip(self.cells, states, strict=True):
            state, x = cell(state, self.dropout(x, deterministic))
            after.append(state)
        return after, Steps(x, context, weights, choice)

    def _attend(self, state: Float[Array, "b n m"], source: Source) -> tuple[Array, Array, Array]:
        """Context, weights and choice: a(s_{i-1}, h_j) of Bahdanau et al. 2015, section 3.1."""
        shape = (*state.shape[:2], source.mask.shape[1])
        scores = self._scores(state, source) if self.config.attention != "fixed" else jnp.zeros(shape)
        scores = jnp.where(source.mask[:, None, :], scores, jnp.finfo(jnp.float32).min)
        weights, choice = jax.nn.softmax(scores), scores.argmax(axis=-1)
        match self.config.attention:
            case "fixed":
                context = jnp.broadcast_to(source.summary[:, None, :], state.shape)
            case "hard":
                if self.has_rng("draw"):
                    choice = jax.random.categorical(self.make_rng("draw"), scores)
                context = jnp.take_along_axis(source.values, choice[..., None], axis=1)
            case _:
                context = jnp.einsum("bns,bsm->bnm", weights, source.values)
        return context, weights, choice

    def _scores(self, state: Float[Array, "b n m"], source: Source) -> Float[Array, "b n s"]:
        query = self.query(state)
        if self.config.attention == "dot":
            return jnp.einsum("bnm,bsm->bns", query, source.keys) / math.sqrt(query.shape[-1])
        return self.energy(jnp.tanh(query[:, :, None, :] + source.keys[:, None, :, :]))[..., 0]


class Recurrent(EncoderDecoder):
    """The recurrent encoder-decoder."""

    config: RecurrentConfig

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.encoder = Encoder(c)
        self.starts = [dense(c.d_model) for _ in range(c.num_layers)]
        self.key = dense(c.d_model)
        self.decoder = DecoderStep(c)
        self.readout, self.dropout = dense(c.d_model), Dropout(c.dropout)

    def encode(self, source: Int[Array, "b s"], *, deterministic: bool = True) -> Memory:
        source_mask = self.source_mask(source)
        values, last = self.encoder(self.source_embedding(source), source_mask.sum(axis=1), deterministic)
        starts = [jnp.tanh(start(state)) for start, state in zip(self.starts, last, strict=True)]
        return Memory(
            Source(self.key(values), values, source_mask, last[-1]),
            [self._carry(start[:, None, :]) for start in starts],
        )

    def _carry(self, start: Float[Array, "b 1 m"]) -> Any:
        return (jnp.zeros_like(start), start) if self.config.cell == "lstm" else start

    def steps(
        self,
        memory: Memory,
        decoder_input: Int[Array, "b t"],
        *,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> tuple[Steps, Float[Array, "b t m"]]:
        """The decoder's steps with teacher forcing, and the embedded `decoder_input`."""
        embedded = self.embed_target(decoder_input) if embedded is None else embedded
        scan = nn.scan(
            lambda step, states, word: step(states, word, memory.source, deterministic),
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True, "draw": True},
            in_axes=1,
            out_axes=1,
        )
        _, steps = scan(self.decoder, memory.starts, embedded[:, :, None, :])
        steps = jax.tree.map(lambda x: x.squeeze(2), steps)
        if self.config.attention != "fixed":
            self.sow(INTERMEDIATES, "weights", steps.weights)
        return steps, embedded

    def decode(
        self,
        memory: Memory,
        decoder_input: Int[Array, "b t"],
        *,
        deterministic: bool = True,
        embedded: Float[Array, "b t m"] | None = None,
    ) -> Float[Array, "b t m"]:
        steps, embedded = self.steps(memory, decoder_input, deterministic=deterministic, embedded=embedded)
        return self.read(steps, embedded, deterministic)

    def decode_own(
        self,
        memory: Memory,
        decoder_input: Int[Array, "b t"],
        replaced: Bool[Array, "b t"],
        choose: Callable[[Float[Array, "b v"], Int[Array, ""]], Int[Array, " b"]],
    ) -> Float[Array, "b t m"]:
        """As `decode` in training, but some steps read what the step before predicts (Bengio et al. 2015).

        Args:
          memory: the encoded source.
          decoder_input: the target shifted right.
          replaced: which of them are replaced by predictions.
          choose: (logits, step) -> the predicted ids.
        """

        def step(model: Recurrent, carry: Any, token: Array, replaced: Array, time: Array) -> Any:
            states, predicted = carry
            word = model.embed_target(jnp.where(replaced, predicted, token)[:, None])
            states, output = model.decoder(states, word, memory.source, False)
            hidden = model.read(output, word, False)
            predicted = jax.lax.stop_gradient(choose(model.output(hidden)[:, 0], time))
            return (states, predicted), (hidden[:, 0], output.weights[:, 0])

        scan = nn.scan(
            step,
            variable_broadcast="params",
            split_rngs={"params": False, "dropout": True},
            in_axes=(1, 1, 0),
            out_axes=1,
        )
        start = memory.starts, decoder_input[:, 0]
        _, (hidden, weights) = scan(self, start, decoder_input, replaced, jnp.arange(decoder_input.shape[1]))
        if self.config.attention != "fixed":
            self.sow(INTERMEDIATES, "weights", weights)
        return hidden  # type: ignore[no-any-return]

    def read(
        self, steps: Steps, embedded: Float[Array, "b t m"], deterministic: bool = True
    ) -> Float[Array, "b t m"]:
        """The states before `output`, from state, context and previous word (Bahdanau et al. 2015, Eq. 4)."""
        joined = jnp.concatenate([steps.states, steps.contexts, embedded], axis=-1)
        return self.dropout(jnp.tanh(self.readout(joined)), deterministic)

    def init_cache(self, memory: Memory, beam_size: int, length: int) -> Cache:
        """A cache of beams that are all in the initial states of the decoder."""

        def repeat(x: Array) -> Array:
            return jnp.repeat(x, beam_size, axis=1)

        layers = tuple(States(jax.tree.map(repeat, start)) for start in memory.starts)
        return Cache.empty(layers, memory.source, rows=len(memory.source.keys))

    def decode_step(self, cache: Cache, tokens: Int[Array, "b n"]) -> tuple[Float[Array, "b n v"], Cache]:
        embedded = self.embed_target(tokens)
        states, step = self.decoder([layer.value for layer in cache.layers], embedded, cache.source, True)
        layers = [
            layer.append(state, cache.column, cache.positions)
            for layer, state in zip(cache.layers, states, strict=True)
        ]
        return self.output(self.read(step, embedded)), cache.end_step(layers)


def _output(carry: Any) -> Array:
    """The output in a cell's carry: h of an LSTM's (c, h)."""
    return carry[1] if isinstance(carry, tuple) else carry


def attention(intermediates: Variables) -> Float[Array, "1 b 1 t s"]:
    """The attention of each step.

    Raises:
      UserError: the model sees the source as one fixed vector.
    """
    if "weights" not in intermediates:
        raise UserError("a decoder with a fixed context has no attention: there is no alignment to show")
    (weights,) = intermediates["weights"]
    return weights[None, :, None]  # type: ignore[no-any-return]


# REINFORCE for hard attention (Williams 1992; Xu et al. 2015).


def recurrent_objective(config: Config) -> Objective:
    """The objective of the recurrent model: cross-entropy, and REINFORCE for hard attention."""
    assert isinstance(config.model, RecurrentConfig)
    if config.model.attention == "hard":
        return hard_attention_objective(config.training.label_smoothing)
    return translation_objective(config.training.label_smoothing)


ENTROPY_WEIGHT = 0.01
"""Of the entropy of hard attention, which keeps it from becoming certain too early (Xu et al. 2015, section
4.1)."""


def hard_attention_objective(smoothing: float) -> Objective:
    """Label-smoothed cross-entropy with sampled positions, plus REINFORCE for these.

    The metrics are those of `translation_objective` and the `entropy` of the sampling distributions, in nats.
    In evaluation nothing is sampled: it is `translation_objective`.
    """
    plain = translation_objective(smoothing)

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        if context.deterministic:
            return plain(model, variables, batch, context)
        assert isinstance(model, Recurrent)
        target = batch["target"]
        special = model.config.special
        is_token = (target != special.pad).astype(jnp.float32)

        inputs = batch["source"], decoder_input(target, special)
        decode = functools.partial(
            apply_training, model, variables, context, *inputs, method=_steps_and_logits
        )
        (steps, logits), sown = decode(rngs=context.rngs("dropout", "draw"))
        (_, greedy_logits), _ = decode(rngs=context.rngs("dropout"))
        nll = cross_entropy(logits, target)
        greedy_nll = cross_entropy(greedy_logits, target)
        # return - baseline
        advantage = _from_here_on(jax.lax.stop_gradient(greedy_nll - nll) * is_token)
        chosen = jnp.take_along_axis(steps.weights, steps.choices[..., None], axis=-1)[..., 0]
        entropy = -(steps.weights * jnp.log(steps.weights + 1e-20)).sum(axis=-1)
        draws = -advantage * jnp.log(chosen + 1e-20)
        loss = cross_entropy(logits, target, smoothing) - ENTROPY_WEIGHT * entropy
        loss += draws - jax.lax.stop_gradient(draws)  # a gradient, but no value, which would mean nothing
        weight = is_token.sum()
        correct = logits.argmax(-1) == target
        metrics = {
            name: (jax.lax.stop_gradient((values * is_token).sum()), weight)
            for name, values in {"nll": nll, "correct": correct, "entropy": entropy}.items()
        }
        return Loss((loss * is_token).sum(), weight, metrics, **sown)

    return objective


def _steps_and_logits(model: Recurrent, source: Array, target: Array) -> tuple[Steps, Array]:
    memory = model.encode(source, deterministic=False)
    steps, embedded = model.steps(memory, target, deterministic=False)
    return steps, model.output(model.read(steps, embedded, deterministic=False))


def _from_here_on(values: Float[Array, "b t"]) -> Float[Array, "b t"]:
    """The sum of each word's value and those of all later words."""
    return jnp.cumsum(values[:, ::-1], axis=1)[:, ::-1]


SYSTEM = autoregressive(Recurrent, attention, objective=lambda config, _: recurrent_objective(config))
