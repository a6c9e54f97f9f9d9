"""Training objectives, as sums over a batch."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer.config.model import SpecialIds
from transformer.config.ranges import RATE, typed
from transformer.model.encoder_decoder import EncoderDecoder, decoder_argument, decoder_input
from transformer.model.parameters import Variables
from transformer.model.statistics import INTERMEDIATES, SUMS
from transformer.training.cross_entropy import output_cross_entropy

Batch = Mapping[str, Array]
"""Arrays by name, rows first: the fields of the task (`transformer.tasks`)."""
Carry = Any
"""Memory that belongs to the rows of a batch and passes from each step to the next: a pytree of arrays
`[rows, ...]`, empty for most models."""
Metrics = dict[str, tuple[Float[Array, ""], Float[Array, ""]]]
"""The sum and the weight of each metric, whose mean is the sum over the weight."""


@struct.dataclass
class Loss:
    """The loss of a batch and what was measured with it.

    All are sums and not means, so they do not depend on how a batch is split over devices, processes and
    slices.
    """

    total: Float[Array, ""]
    """The sum to minimise."""
    weight: Float[Array, ""]
    """What the sum of the whole batch is divided by: for text, the number of target tokens."""
    metrics: Metrics = struct.field(default_factory=dict)
    statistics: Variables = struct.field(default_factory=dict)
    """The `Sums` of running statistics, by module and name (`transformer.model.statistics`)."""
    intermediates: Variables = struct.field(default_factory=dict)
    """What the model has sown, such as attention weights, if `Context.sows`."""
    carry: Carry = ()
    """The rows' memory for the next step. It has no gradient."""


@struct.dataclass
class Context:
    """What an objective gets besides model, variables and batch."""

    key: Array | None = None
    """Random key of this step, replica and slice. None in evaluation, where nothing is random."""
    step: Int[Array, ""] | int = 0
    """Number of updates so far, for annealed objectives."""
    carry: Carry = ()
    """The rows' memory from the step before."""
    sows: bool = False
    """Whether the loss is to return the model's intermediates."""

    @property
    def deterministic(self) -> bool:
        """Whether nothing is random."""
        return self.key is None

    def rngs(self, *names: str) -> dict[str, Array] | None:
        """A random key for each name, independent of each other; None if nothing is random."""
        if self.key is None:
            return None
        return {name: jax.random.fold_in(self.key, zlib.crc32(name.encode())) for name in names}


Objective = Callable[[nn.Module, Variables, Batch, Context], Loss]
"""(model, variables, batch, context) -> Loss."""


def apply_training(
    model: nn.Module, variables: Variables, context: Context, *arguments: Any, **options: Any
) -> tuple[Any, dict[str, Variables]]:
    """`model.apply`, and what the model has sown meanwhile: the arguments `statistics` and `intermediates` of
    `Loss`."""
    collections = [SUMS, INTERMEDIATES] if context.sows else [SUMS]
    result: Any = model.apply(variables, *arguments, mutable=collections, **options)
    output, sown = result
    return output, {"statistics": sown.get(SUMS, {}), "intermediates": sown.get(INTERMEDIATES, {})}


@dataclass(frozen=True)
class TranslationObjective:
    """Label-smoothed cross-entropy of the target given the inputs, with teacher forcing.

    The batch has the inputs, named as the arguments of the model, and `target`, ids `[rows, length]`, each
    sentence closed by <eos>, then <pad>; for packed rows also `source_segments` and `target_segments`, the
    index of each token's sentence in its row.

    The metrics are `nll`, the unsmoothed negative log-likelihood in nats, and `correct`, whether the target
    had the highest logit, of each target token. The weight is their number.
    """

    smoothing: float
    inputs: tuple[str, ...] = ("source",)

    def __call__(self, model: nn.Module, variables: Variables, batch: Batch, context: Context) -> Loss:
        factors, sown = self.factors(model, variables, batch, context)
        return self.of_factors(model, batch, factors, sown)

    def inputs_of(self, batch: Batch) -> Batch:
        """What the encoder reads."""
        return {name: batch[name] for name in self.inputs}

    def decoder_input(
        self, model: nn.Module, batch: Batch
    ) -> tuple[Int[Array, "b t"], tuple[Array, Array] | None]:
        """What the decoder reads, and the segments of packed rows."""
        segments = None
        if "target_segments" in batch:
            segments = (batch["source_segments"], batch["target_segments"])
        return decoder_input(batch["target"], _special(model), segments and segments[1]), segments

    def factors(
        self, model: nn.Module, variables: Variables, batch: Batch, context: Context
    ) -> tuple[tuple[Array, Array], dict[str, Variables]]:
        """The two factors of the logits, and what the model has sown."""
        target_input, segments = self.decoder_input(model, batch)
        result: tuple[tuple[Array, Array], dict[str, Variables]] = apply_training(
            model,
            variables,
            context,
            **self.inputs_of(batch),
            **{decoder_argument(type(model).hidden): target_input},  # type: ignore[attr-defined]
            segments=segments,
            deterministic=context.deterministic,
            rngs=context.rngs("dropout"),
            method=_output_factors,
        )
        return result

    def of_factors(
        self, model: nn.Module, batch: Batch, factors: tuple[Array, Array], sown: dict[str, Variables]
    ) -> Loss:
        """The loss, given the two factors of the logits."""
        is_token = (batch["target"] != _special(model).pad).astype(jnp.float32)
        loss, nll, correct = output_cross_entropy(*factors, batch["target"], is_token, self.smoothing)
        weight = is_token.sum()
        return Loss(loss, weight, {"nll": (nll, weight), "correct": (correct, weight)}, **sown)


@typed
def translation_objective(
    smoothing: Annotated[float, RATE], inputs: tuple[str, ...] = ("source",)
) -> TranslationObjective:
    """Label-smoothed cross-entropy, see `TranslationObjective`."""
    return TranslationObjective(smoothing, tuple(inputs))


def _special(model: nn.Module) -> SpecialIds:
    assert isinstance(model, EncoderDecoder)
    return model.config.special


def _output_factors(model: EncoderDecoder, **inputs: Any) -> tuple[Array, Array]:
    return model.output_factors(model.hidden(**inputs))
