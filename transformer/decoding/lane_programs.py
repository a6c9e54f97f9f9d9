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
from transformer.decoding.search import (
    AutoregressiveSearch,
    RowOptions,
    noise_of,
    penalty_of,
    read_of,
    row_limits,
    strategy_of,
)
from transformer.decoding.slots import Finished, Slots, init_slots, results
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


class Programs:
    """The compiled programs of a search.

    Args:
      job: what they depend on.
    """

    def __init__(self, job: ProgramKey) -> None:
        self.init_lane = jax.jit(functools.partial(_init_lane, job), static_argnums=(0, 1))
        """(length, columns, variables, inputs, conditions) -> slots for inputs, before their first step. They
        are padded as if the inputs had this length."""
        self.insert = jax.jit(functools.partial(_insert), donate_argnums=0)
        """(slots, into, pool, rows) -> the slots, where these rows of the pool begin; those beyond the last
        are dropped."""
        self.advance = jax.jit(functools.partial(_advance, job), donate_argnums=1)
        """(variables, slots, running, steps) -> the slots after steps until no more than `running` are busy,
        and at most `steps` times; and what the host sees of them."""
        self.partial = jax.jit(functools.partial(_partial, job))
        """(slots) -> the unfinished outputs of all, as if they ended here."""
        self.resized = jax.jit(functools.partial(_resized))
        """(slots, rows, busy) -> a lane of these slots, of which only some are busy."""


@functools.lru_cache(maxsize=16)
def programs_of(job: ProgramKey) -> Programs:
    """The programs of a search, for all that search so. Those that were not asked for in a long time are
    dropped, with their memory."""
    return Programs(job)


def _init_lane(
    job: ProgramKey, length: int, columns: int, variables: Variables, inputs: Inputs, conditions: RowOptions
) -> Slots:
    hook = job.search.hook
    live = strategy_of(job.options, hook).first()
    read = read_of(job.options, conditions)
    noise = noise_of(job.options, conditions)
    penalty = penalty_of(job.options, hook, conditions)
    lengths = lengths_in_search(job.fields, length)

    def slots(inputs: Inputs) -> Slots:
        limits = row_limits(job.search, inputs, special_ids(job.model), job.options, conditions)
        return init_slots(
            job.model, as_variables(variables), inputs, limits, columns, live, penalty, hook, read, noise
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


def _insert(slots: Slots, into: Int[Array, " r"], pool: Slots, rows: Int[Array, " r"]) -> Slots:
    return slots.put_rows(into, pool.take_rows(rows))


def _advance(
    job: ProgramKey, variables: Variables, slots: Slots, running: Int[Array, ""], steps: Int[Array, ""]
) -> tuple[Slots, LaneSnapshot]:
    strategy = strategy_of(job.options, job.search.hook)
    slots = run(job.model, as_variables(variables), slots, strategy, job.search.hook, running, steps)
    return slots, LaneSnapshot(slots.done, slots.overflowed, results(slots, special_ids(job.model)))


def _partial(job: ProgramKey, slots: Slots) -> SearchResult:
    rows, beams = slots.live.shape
    step = jnp.broadcast_to(slots.length[:, None], (rows, beams))
    beam = jnp.broadcast_to(jnp.arange(beams), (rows, beams))
    unfinished = replace(slots, finished=Finished(slots.live, step, beam), log_p=None)
    return results(unfinished, special_ids(job.model))


def _resized(slots: Slots, rows: Int[Array, " r"], busy: Bool[Array, " r"]) -> Slots:
    chosen = slots.take_rows(rows)
    return replace(chosen, done=chosen.done | ~busy)
