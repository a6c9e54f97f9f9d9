"""Non-autoregressive speech synthesis: its search, and the system."""

import functools
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from transformer.config.decoding import DecodingConfig
from transformer.decoding.calls import Inputs, as_variables, sown_attention
from transformer.model.parameters import Variables
from transformer.model.transformer import cross_attention
from transformer.systems.nonautoregressive_synthesis.model import (
    NonAutoregressiveSynthesiser,
    nonautoregressive_synthesis_objective,
    steps_of,
)
from transformer.systems.nonautoregressive_synthesis.options import NonAutoregressiveSynthesisDecodingConfig
from transformer.systems.synthesis.system import Utterances, at_rate, most_steps
from transformer.systems.synthesis.task import TextToSpeech
from transformer.systems.system import System

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
    most = most_steps(model, options, source.shape[1])
    lengths = jnp.minimum(predicted, most)

    def speak(size: int) -> Array:
        """All frames, with `size` steps of the decoder."""
        frames = apply(memory, durations, jnp.arange(size) < lengths[:, None], method="speak")
        frame_mask = jnp.arange(frames.shape[1]) < c.reduction * lengths[:, None]
        refined: Array = apply(frames, frame_mask, method="refine")
        return jnp.pad(refined, ((0, 0), (0, c.reduction * (most - size)), (0, 0)))

    sizes = (*(size for size in SIZES if size < most), most)
    needed = (lengths.max() > jnp.asarray(sizes)).sum()
    frames = jax.lax.switch(needed, [functools.partial(speak, size) for size in sizes])
    return at_rate(Utterances(frames, c.reduction * lengths, predicted <= most), options.length_scale)


SYSTEM = System(
    model=NonAutoregressiveSynthesiser,
    objective=nonautoregressive_synthesis_objective,
    search=nonautoregressive_synthesis_search,
    attentions=cross_attention,
    alignment=partial(sown_attention, cross_attention),
    task=TextToSpeech,
)
