"""The items of a checkpoint: `model`, which decoding reads, and `training`, which only resuming needs."""

from dataclasses import replace

import jax

from transformer.model.parameters import Variables
from transformer.runtime.files import Json
from transformer.training.step import TrainState


def items_of(state: TrainState) -> dict[str, Variables]:
    """What a checkpoint stores of a training state, by item."""
    training: Json = {"step": state.step, "optimizer": state.optimizer}
    if state.average is not None:  # otherwise the model has them
        training["params"] = state.trained
    if jax.tree.leaves(state.carry):
        training["carry"] = state.carry
    return {"model": model_of(state), "training": training}


def model_of(state: TrainState) -> Variables:
    """The item "model": all variables, or those of an adapter without the parameters that it changes."""
    if state.parametrisation.is_adapter:
        return {"params": state.best_trained, **state.statistics}
    return state.best_variables


def state_of(model: Variables, training: Json, like: TrainState) -> TrainState:
    """The training state that these items were stored of: the inverse of `items_of`.

    Args:
      model: the item "model".
      training: the item "training".
      like: a state of the same run; the fixed parameters of an adapter are taken from it.
    """
    statistics = dict(model)
    best, fixed = statistics.pop("params"), like.fixed
    if not like.parametrisation.is_adapter:
        best, fixed = like.parametrisation.split(best)
    return replace(
        like,
        step=training["step"],
        trained=training.get("params") or best,
        optimizer=training["optimizer"],
        statistics=statistics,
        average=None if like.average is None else best,
        carry=training.get("carry", ()),
        fixed=fixed,
    )
