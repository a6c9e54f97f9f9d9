"""The compiled programs that fill, step and resize the slots of a lane."""

import functools
from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from transformer.config import DecodingConfig
from transformer.data.sequences import Field, Fields, lengths_in_search
from transformer.decoding.calls import Inputs, as_variables, special_ids
from transformer.decoding.scores import SearchResult
from transformer.decoding.search import AutoregressiveSearch, RowOptions, noise_of, read_of, strategy_of
from transformer.decoding.slots import Slots, init_slots, results
from transformer.decoding.steps import run
from transformer.model.parameters import Variables


@dataclass(frozen=True)
class ProgramKey:
    """What the programs of a search depend on."""

    search: AutoregressiveSearch
    model: nn.Module
    options: DecodingConfig
    """Those that programs depend on (`DecodingConfig.static`)."""
    inputs: tuple[tuple[str, Field], ...]
    """The names and fields of what decoding reads."""

    @property
    def fields(self) -> Fields:
        """The fields of its inputs."""
        return dict(self.inputs)


@struct.dataclass
class LaneSnapshot:
    """What the host sees of slots."""

    done: Bool[Array, " b"]
    overflowed: Bool[Array, " b"]
    results: SearchResult


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def init_lane(
    job: ProgramKey, length: int, columns: int, variables: Variables, inputs: Inputs, conditions: RowOptions
) -> Slots:
    """Slots for inputs, before their first step. Their arrays are padded as if the inputs had this length."""
    hook = job.search.hook
    live = strategy_of(job.options, hook).first()
    read = read_of(job.options, conditions)
    noise = noise_of(job.options, conditions)
    lengths = lengths_in_search(job.fields, length)

    def slots(inputs: Inputs) -> Slots:
        limits = job.search.limits(inputs, special_ids(job.model), job.options)
        return init_slots(
            job.model, as_variables(variables), inputs, limits, columns, live, hook, read, noise
        )

    def lengthened(name: str, x: Array) -> jax.ShapeDtypeStruct:
        axes = (x.shape[0], lengths[name], *x.shape[2:]) if name in lengths else x.shape
        return jax.ShapeDtypeStruct(axes, x.dtype)

    def pad(x: Array, like: jax.ShapeDtypeStruct) -> Array:
        widths = [(0, longer - size) for size, longer in zip(x.shape, like.shape, strict=True)]
        return jnp.pad(x, widths) if any(after for _, after in widths) else x

    longer = {name: lengthened(name, x) for name, x in inputs.items()}
    if all(longer[name].shape == x.shape for name, x in inputs.items()):
        return slots(inputs)
    return jax.tree.map(pad, slots(inputs), jax.eval_shape(slots, longer))


@functools.partial(jax.jit, donate_argnums=0)
def insert(slots: Slots, into: Int[Array, " r"], pool: Slots, rows: Int[Array, " r"]) -> Slots:
    """These rows of the pool begin in these slots; those beyond the last are dropped."""
    return slots.put_rows(into, pool.take_rows(rows))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def advance(
    job: ProgramKey, variables: Variables, slots: Slots, running: Int[Array, ""], steps: Int[Array, ""]
) -> tuple[Slots, LaneSnapshot]:
    """Steps until no more than `running` slots are busy, and at most `steps` times."""
    strategy = strategy_of(job.options, job.search.hook)
    slots = run(job.model, as_variables(variables), slots, strategy, job.search.hook, running, steps)
    hypotheses = results(slots, special_ids(job.model), strategy.penalty)
    return slots, LaneSnapshot(slots.done, slots.overflowed, hypotheses)


@jax.jit
def resized(slots: Slots, rows: Int[Array, " r"], busy: Bool[Array, " r"]) -> Slots:
    """A lane of these slots, of which only some are busy."""
    chosen = slots.take_rows(rows)
    return replace(chosen, done=chosen.done | ~busy)
