"""The state that a training starts from: of a checkpoint, of a parent's model or its encoder, or new."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import optax

from transformer.config import Config, first_added
from transformer.runs.base import check_base
from transformer.runs.run import Run
from transformer.systems.parameters import declared_parameters
from transformer.systems.system import System
from transformer.training.growth import with_added_rows
from transformer.training.loop.starts import encoder_variables
from transformer.training.step import TrainState, init_state


def first_state(
    config: Config,
    system: System,
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    run: Run,
    parent: Run | None,
    say: Callable[[str], None],
) -> TrainState:
    """The state of the run's newest intact checkpoint; without checkpoints, that of step 0.

    Args:
      config: of the run.
      system: of the config.
      model: of the system.
      optimizer: of the model's parameters.
      run: where the checkpoints are.
      parent: a run whose best model is trained further. None: the one that the config names, if any.
      say: shows a message, such as which checkpoints are damaged.

    Raises:
      UserError: all checkpoints are damaged; the parent has none that is intact.
    """
    t = config.training
    how = run.parametrisation
    example = system.task.example(config)
    carry = system.carry(config, False)

    def initial(variables: Mapping[str, Any]) -> TrainState:
        return init_state(
            model,
            optimizer,
            t.seed,
            example,
            average=t.ema > 0,
            variables=variables,
            carry=carry,
            parametrisation=how,
        )

    if run.checkpoints.steps():
        like = jax.eval_shape(lambda: initial({}))
        if how.is_adapter:
            _, fixed = how.split(run.base())
            like = replace(like, fixed=fixed)
        state = run.checkpoints.resume(like, say)
        assert state  # there are checkpoints
        return state
    if t.init_encoder_from:
        return initial(encoder_variables(Run(t.init_encoder_from)))
    if parent is None and t.init_from:  # stopped before its first checkpoint
        parent = Run(t.init_from)
    if how.is_adapter and parent:
        step = config.adapter.base_step
        assert step is not None
        variables = parent.variables(step)
        check_base(run.name, config.adapter, variables["params"])
    else:
        variables = parent.variables("best") if parent else {}
    first = first_added(config)
    if parent and first is not None:
        variables["params"] = with_added_rows(
            variables["params"],
            declared_parameters(system, config),
            first,
            parent.task.replaced_ids(run.task),
        )
    return initial(variables)
