"""A job for devices that are not here: its real training step and its real search, lowered; and how fast this
host makes batches."""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer.config.options import Config
from transformer.data.sequences import Sequences, gathered, sides, stacked
from transformer.decoding.searches.search import RowOptions
from transformer.decoding.service.lanes import STEPS, LaneShape, ProgramKey, batch, lane_shapes, programs_of
from transformer.model.parameters import tracing_for
from transformer.systems.parameters import as_computed, declared_parameters, model_shapes
from transformer.systems.registry import system_of
from transformer.systems.system import System, stepwise
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.task import Task
from transformer.tasks.text import spelling
from transformer.training.methods.registry import objective_of
from transformer.training.objective import Context, Objective
from transformer.training.parametrisation import parametrisation_of
from transformer.training.schedule import make_optimizer
from transformer.training.sharding import configured_step, layout_of
from transformer.training.step import init_state


@dataclass(frozen=True)
class Job:
    """What is lowered: a system and its task, without a corpus."""

    config: Config
    """The config, with the sizes of the model."""
    system: System
    task: Task

    @classmethod
    def of(cls, system: System, config: Config) -> "Job":
        """The job of a config and its system."""
        task = system.task.without_corpus(config)
        return cls(task.config, system, task)

    @property
    def model(self) -> nn.Module:
        """The model to train."""
        return self.system.model(self.config.model)

    def objective(self, load_teacher: Callable[[Path], Any]) -> Objective:
        """The loss to minimise."""
        return objective_of(self.system, self.config, load_teacher, spelling(self.task))

    @property
    def global_batch(self) -> dict[str, np.ndarray]:
        """The arrays of a training batch in the longest bucket."""
        batching = self.task.batching()
        bucket = batching.buckets[-1]
        return stacked([], self.task.fields, bucket, batching.rows(bucket), segments=batching.packed)


def lowered_step(job: Job, objective: Objective, devices: Sequence[Any], platform: str) -> Any:
    """The training step on these devices, as a `jax.stages.Lowered`.

    Raises:
      UserError: the devices do not fit the mesh.
    """
    config, system, model = job.config, job.system, job.model
    t = config.training
    declared = declared_parameters(system, config)
    optimizer = make_optimizer(config, declared)
    layout = layout_of(config.mesh, declared, devices)
    how = parametrisation_of(config, model_shapes(system, config)["params"], declared)
    state = jax.eval_shape(
        lambda: init_state(
            model,
            optimizer,
            t.seed,
            system.task.example(config),
            average=t.ema > 0,
            carry=system.carry(config, False),
            parametrisation=how,
        )
    )
    step = configured_step(t, model, objective, optimizer, layout)
    inputs = layout.abstract_inputs(state, job.global_batch, t.accumulate)
    with tracing_for(platform):
        spread: Any = layout.compile_step(step, donate_state=True)
        return spread.lower(*inputs)


def lowered_search(job: Job, device: Any, platform: str) -> tuple[Any, LaneShape | None]:
    """The search of one device, as a `jax.stages.Lowered`, and the size of its longest lane: `None` for a
    system that searches without lanes, in one program for a whole batch."""
    task, model, options = job.task, job.model, job.config.decoding
    system_search = job.system.search_with(job.config.model, options)
    assert isinstance(task, DecodingTask)
    fields = task.input_fields
    sharding = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())

    def there(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype, sharding=sharding), tree)

    dtype, declared = job.config.model.compute_dtype, declared_parameters(job.system, job.config)
    held = functools.partial(as_computed, dtype=dtype, declared=declared)  # as a loaded model has them
    variables = there(jax.eval_shape(held, model_shapes(job.system, job.config)))
    with tracing_for(platform):
        if not (steps := stepwise(system_search)):
            inputs = there(batch([], fields, options.buckets[-1], options.rows))
            lines = there(np.zeros(options.rows, np.int32))
            search = functools.partial(system_search, model, options=options)
            return jax.jit(lambda v, i, n: search(v, i, n)).lower(variables, inputs, lines), None
        key = ProgramKey(steps, model, options.shared(), tuple(fields.items()))
        programs, shape = programs_of(key), lane_shapes(key, options.rows)[0]
        rows = shape.slots[-1]
        inputs = batch([], fields, shape.inputs, rows)
        row_options = RowOptions.of([options], [0], rows)
        init_lane = functools.partial(programs.init_lane, shape.inputs, shape.columns)
        slots = jax.eval_shape(init_lane, variables, inputs, row_options)
        numbers = there((np.int32(0), np.int32(STEPS)))
        return programs.advance.lower(variables, there(slots), *numbers), shape


def training_flops(job: Job, objective: Objective) -> float:
    """The FLOPs of an update's matrix products: those of the objective, three times (the gradients need twice
    as many). Neither recomputation nor element-wise work counts; masked products do."""
    model, carry = job.model, job.system.carry(job.config, False)

    def total(variables: Any, batch: Mapping[str, Any]) -> Any:
        return objective(model, variables, batch, Context(carry=carry)).total

    with tracing_for("cpu"):
        shapes = model_shapes(job.system, job.config)
        return 3 * products(jax.make_jaxpr(total)(shapes, job.global_batch).jaxpr)


def products(jaxpr: Any) -> float:
    """The FLOPs of all matrix products and convolutions of a jaxpr. The body of a loop whose length depends
    on data counts once, and so does the costliest branch of a conditional."""
    total = 0.0
    for equation in jaxpr.eqns:
        result = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        if equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            total += 2 * result * math.prod(equation.invars[0].aval.shape[axis] for axis in summed)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            numbers = equation.params["dimension_numbers"]
            total += 2 * result * math.prod(kernel) / kernel[numbers.rhs_spec[0]]
        inner = [products(body) for body in _inside(equation.params)]
        if inner:
            times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            total += times * (max(inner) if equation.primitive.name == "cond" else sum(inner))
    return total


def _inside(parameters: Mapping[str, Any]) -> list[Any]:
    """The jaxprs of an equation."""
    jaxprs = []
    for value in parameters.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            item = getattr(item, "jaxpr", item)
            if hasattr(item, "eqns"):
                jaxprs.append(item)
    return jaxprs


# How fast this host makes batches, without a corpus.


TOKENS = 32  # of an example in packed rows: of a sentence
POOL = 8  # batches of different examples, more than caches hold


def input_rate(config: Config, seconds: float = 2.0) -> float:
    """Elements of a side, padding included, that one thread of this host gathers into batches per second.

    Args:
      config: of the job, with its batching decided.
      seconds: how long to measure.
    """
    task = Job.of(system_of(config), config).task
    fields = task.fields
    batching = task.batching()
    longest = batching.buckets[-1]
    random = np.random.default_rng(0)
    rows = batching.rows(longest)
    per_row = max(1, max(longest, default=1) // TOKENS) if batching.packed else 1
    count = POOL * rows * per_row
    arrays: dict[str, Sequences | np.ndarray] = {
        name: np.zeros((count, *field.shape), field.dtype) for name, field in fields.items()
    }
    for name, length in zip(sides(fields), longest, strict=True):
        size = max(1, length // per_row)
        field = fields[name]
        values = np.zeros((count * size, *field.shape), field.dtype)
        arrays[name] = Sequences(values, np.arange(count + 1) * size)
    counts = np.full(rows, per_row)
    num_elements = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        chosen = random.integers(count, size=rows * per_row)
        gathered(arrays, chosen, counts, fields, longest, rows, batching.packed)
        num_elements += rows * max(longest, default=1)
    return num_elements / (time.perf_counter() - start)
