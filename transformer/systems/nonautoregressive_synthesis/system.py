"""Non-autoregressive speech synthesis (FastSpeech, Ren et al. 2019): the model, its loss of frames and of
durations, and its search."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.decoding.calls import Inputs, as_variables
from transformer.decoding.forced import sown_attention
from transformer.model.layers import Affine, Dropout
from transformer.model.masks import Mask
from transformer.model.normalization import normalization
from transformer.model.parameters import Module, Variables
from transformer.model.stack import Memory
from transformer.model.transformer import cross_attention
from transformer.runtime.errors import UserError
from transformer.systems.nonautoregressive_synthesis.options import (
    NonAutoregressiveSynthesisConfig,
    NonAutoregressiveSynthesisDecodingConfig,
)
from transformer.systems.synthesis.system import (
    Convolution,
    Synthesiser,
    Utterances,
    Voice,
    at_rate,
    frames_error,
    most_steps,
)
from transformer.systems.synthesis.task import TextToSpeech
from transformer.systems.system import System
from transformer.training.objective import Batch, Context, Loss, Objective, apply_training

# A non-autoregressive synthesiser (FastSpeech, Ren et al. 2019), and its loss of frames and durations.


class Spoken(NamedTuple):
    """What is predicted for a text."""

    frames: Float[Array, "b t bands"]
    """The frames before the post-net."""
    refined: Float[Array, "b t bands"]
    """The frames after the post-net."""
    durations: Float[Array, "b s"]
    """log(1 + steps) of each token."""


class DurationPredictor(Module):
    """Two convolutions over the encoder's states, of 3 tokens, each with ReLU, LayerNorm and dropout (Ren et
    al. 2019, section 3.3)."""

    config: NonAutoregressiveSynthesisConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b s m"], source_mask: Bool[Array, "b s"], deterministic: bool
    ) -> Float[Array, "b s"]:
        c = self.config
        for _ in range(2):
            x = jnp.where(source_mask[..., None], x, 0)
            x = Convolution(c.d_model, 3, ("model", None))(x)
            x = normalization(c)(jax.nn.relu(x), source_mask, deterministic)
            x = Dropout(c.dropout)(x, deterministic)
        return Affine(1, ("model", None), name="out")(x)[..., 0].astype(jnp.float32)


class NonAutoregressiveSynthesiser(Voice):
    """Predicts how many steps each token takes, repeats the encoder's state of a token as often, and reads
    all of them at once. As in Gu et al. (2018), and not in FastSpeech, the decoder attends to the text
    too."""

    config: NonAutoregressiveSynthesisConfig

    def setup(self) -> None:
        super().setup()
        self.duration_predictor = DurationPredictor(self.config)

    def __call__(  # type: ignore[override]
        self,
        source: Int[Array, "b s"],
        target: Float[Array, "b t bands"],
        durations: Int[Array, "b s"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Spoken:
        """The frames of an utterance of known length.

        Args:
          source: ids, each text closed by <eos>, then <pad>.
          target: only its length matters: frames, then infinities.
          durations: steps of each token. None: as predicted.
          deterministic: False draws dropout masks from the rng named "dropout".
        """
        memory = self.encode(source, deterministic=deterministic)
        predicted = self.predict_durations(memory, deterministic)
        if durations is None:
            durations = steps_of(predicted, memory.mask)
        steps = self.target_mask(target)
        frames = self.speak(memory, durations, steps, deterministic)[:, : target.shape[1]]
        return Spoken(frames, self.refine(frames, jnp.isfinite(target[..., 0])), predicted)

    def predict_durations(self, memory: Memory, deterministic: bool = True) -> Float[Array, "b s"]:
        """log(1 + steps) of each token."""
        return self.duration_predictor(memory.states, memory.mask, deterministic)

    def speak(
        self,
        memory: Memory,
        durations: Int[Array, "b s"],
        steps: Bool[Array, "b t"],
        deterministic: bool = True,
    ) -> Float[Array, "b f bands"]:
        """The frames, before the post-net, of the steps that are not padding."""
        position = jnp.arange(steps.shape[1])
        token = (position[:, None] >= jnp.cumsum(durations, axis=1)[:, None, :]).sum(axis=-1)
        token = jnp.minimum(token, durations.shape[1] - 1)
        states = jnp.take_along_axis(memory.states, token[..., None], axis=1)
        c = self.config.special
        ids = jnp.where(steps, c.bos, c.pad)
        return self.frames(self.decode(memory, ids, deterministic=deterministic, embedded=states))

    def decoder_mask(self, decoder_input: Int[Array, "b t"]) -> Mask:
        """Every step attends to all others."""
        return Mask(keys=decoder_input != self.config.special.pad, window=self.config.window)


def steps_of(predicted: Float[Array, "b s"], source_mask: Bool[Array, "b s"]) -> Int[Array, "b s"]:
    """The steps of each token, rounded so that their sum is what it should be.

    Args:
      predicted: log(1 + steps).
      source_mask: False for padding.
    """
    durations = jnp.where(source_mask, jnp.maximum(jnp.expm1(predicted), 0), 0)
    ends = jnp.round(jnp.cumsum(durations, axis=1)).astype(jnp.int32)
    return jnp.diff(ends, axis=1, prepend=0)


# How long each token is spoken, by the attention of another model (Ren et al. 2019, section 3.3).


Durations = Callable[[Int[Array, "b s"], Float[Array, "b t bands"]], Int[Array, "b s"]]
"""(source, target) -> the steps of the decoder in which each token is spoken."""


def durations(
    attention: Float[Array, "b t s"], steps: Bool[Array, "b t"], tokens: Bool[Array, "b s"]
) -> Int[Array, "b s"]:
    """The number of steps of each token, if every step belongs to one token, tokens follow each other in
    order, some perhaps without a step, and the sum of the attention of steps to their tokens is as large as
    it can be.

    Args:
      attention: of steps to tokens.
      steps: False for padding.
      tokens: False for padding.
    """
    gains = jnp.where(tokens[:, None], jnp.where(steps[..., None], attention, 0), -jnp.inf)

    def forward(best: Array, gain: Array) -> tuple[Array, Array]:
        """The largest sum up to a step, for each token that it may belong to."""
        best = gain + jax.lax.cummax(best, axis=1)
        return best, best

    def backward(token: Array, best: Array) -> tuple[Array, Array]:
        """The token of a step, given that of the next one."""
        allowed = jnp.arange(best.shape[1]) <= token[:, None]
        token = jnp.where(allowed, best, -jnp.inf).argmax(axis=1)
        return token, token

    _, sums = jax.lax.scan(forward, jnp.zeros_like(gains[:, 0]), gains.swapaxes(0, 1))
    last = jnp.full(len(gains), gains.shape[-1] - 1)
    _, path = jax.lax.scan(backward, last, sums, reverse=True)
    spoken = jax.nn.one_hot(path.swapaxes(0, 1), gains.shape[-1], dtype=jnp.int32)
    return (spoken * steps[..., None]).sum(axis=1)


def teacher_durations(config: Config, load_teacher: Callable[[Path], Any]) -> Durations:
    """A function that gives the durations in an utterance, by the cross-attention of the teacher: its mean
    over layers and heads.

    Raises:
      UserError: there is no teacher, or it is no autoregressive synthesiser.
    """
    c = config.model
    assert isinstance(c, NonAutoregressiveSynthesisConfig)
    if c.teacher is None:
        raise UserError(c.untaught)
    teacher = load_teacher(c.teacher)
    model = teacher.model
    if not isinstance(model, Synthesiser):
        raise UserError(f"--model.teacher {c.teacher}: must be a run of system synthesis")
    variables = jax.device_get(teacher.variables)  # on the host, so that each layout places its own copy

    def durations_of(source: Int[Array, "b s"], target: Float[Array, "b t bands"]) -> Int[Array, "b s"]:
        traced = jax.tree.map(jnp.asarray, variables)
        attention = sown_attention(cross_attention, model, traced, {"source": source}, target)
        steps = jnp.isfinite(target[..., 0])[:, :: c.reduction]
        teacher_steps = jnp.arange(steps.shape[1]) * c.reduction // model.config.reduction
        return durations(attention[:, teacher_steps], steps, source != c.special.pad)

    return durations_of


# The loss of frames and of durations.


def nonautoregressive_synthesis_objective(config: Config, load_teacher: Callable[[Path], Any]) -> Objective:
    """The mean absolute error of the frames before and after the post-net, and the squared error of log(1 +
    steps) of each token (Ren et al. 2019).

    The metrics are `mel`, the error after the post-net, and `duration`, the squared error. The weight is the
    number of frames.

    Raises:
      UserError: as `teacher_durations`.
    """
    durations_of = teacher_durations(config, load_teacher)

    def objective(model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        assert isinstance(model, NonAutoregressiveSynthesiser)
        c = model.config
        source, target = batch["source"], batch["target"]
        durations = durations_of(source, target)
        outputs, sown = apply_training(
            model,
            variables,
            context,
            source,
            target,
            durations,
            deterministic=context.deterministic,
            rngs=context.rngs("dropout"),
        )
        spoken = Spoken(*outputs)
        source_mask = source != c.special.pad
        duration = jnp.where(source_mask, (spoken.durations - jnp.log1p(durations)) ** 2, 0).sum()
        refined = frames_error(spoken.refined, target)
        total = frames_error(spoken.frames, target) + refined + duration
        frames = jnp.isfinite(target[..., 0]).sum().astype(jnp.float32)
        metrics = {"mel": (refined, frames), "duration": (duration, source_mask.sum().astype(jnp.float32))}
        return Loss(total, frames, metrics, **sown)

    return objective


# The search of a non-autoregressive synthesiser.


SIZES = (64, 128, 192)  # steps; each size is a part of the compiled program that runs only if needed


def nonautoregressive_synthesis_search(
    model: nn.Module, variables: Variables, inputs: Inputs, lines: Int[Array, " b"], options: DecodingConfig
) -> Utterances:
    """Speaks a batch of texts.

    Args:
      model: a `NonAutoregressiveSynthesiser`.
      variables: its variables.
      inputs: `source`, ids `[rows, length]`.
      lines: unused: nothing is random.
      options: a `NonAutoregressiveSynthesisDecodingConfig`.
    """
    assert isinstance(model, NonAutoregressiveSynthesiser)
    assert isinstance(options, NonAutoregressiveSynthesisDecodingConfig)
    return _spoken(model, options.static(), variables, inputs["source"])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _spoken(
    model: NonAutoregressiveSynthesiser,
    options: NonAutoregressiveSynthesisDecodingConfig,
    variables: Variables,
    source: Int[Array, "b s"],
) -> Utterances:
    c = model.config
    apply: Any = functools.partial(model.apply, as_variables(variables))
    memory = apply(source, method="encode")
    durations = steps_of(apply(memory, method="predict_durations"), memory.mask)
    predicted = durations.sum(axis=1)
    max_steps = most_steps(model, options, source.shape[1])
    lengths = jnp.minimum(predicted, max_steps)

    def speak(size: int) -> Array:
        """All frames, with `size` steps of the decoder."""
        frames = apply(memory, durations, jnp.arange(size) < lengths[:, None], method="speak")
        frame_mask = jnp.arange(frames.shape[1]) < c.reduction * lengths[:, None]
        refined: Array = apply(frames, frame_mask, method="refine")
        return jnp.pad(refined, ((0, 0), (0, c.reduction * (max_steps - size)), (0, 0)))

    sizes = (*(size for size in SIZES if size < max_steps), max_steps)
    needed = (lengths.max() > jnp.asarray(sizes)).sum()
    frames = jax.lax.switch(needed, [functools.partial(speak, size) for size in sizes])
    return at_rate(Utterances(frames, c.reduction * lengths, predicted <= max_steps), options.length_scale)


SYSTEM = System(
    model=NonAutoregressiveSynthesiser,
    objective=nonautoregressive_synthesis_objective,
    search=nonautoregressive_synthesis_search,
    attentions=cross_attention,
    alignment=functools.partial(sown_attention, cross_attention),
    task=TextToSpeech,
)
