"""The items of a checkpoint: `model`, which decoding reads, and `training`, which only resuming needs."""

import jax

from transformer.model.parameters import Variables
from transformer.runtime.files import Json
from transformer.training.step import TrainState


def items_of(state: TrainState) -> dict[str, Variables]:
    """What a checkpoint stores of a training state, by item."""
    training: Json = {"step": state.step, "optimizer": state.optimizer}
    if state.average is not None:  # otherwise the model has them
        training["params"] = state.params
    if jax.tree.leaves(state.carry):
        training["carry"] = state.carry
    return {"model": state.best_variables, "training": training}


def state_of(model: Variables, training: Json, averages: bool) -> TrainState:
    """The training state that these items were stored of: the inverse of `items_of`.

    Args:
      model: the item "model".
      training: the item "training".
      averages: whether the state has an average of its parameters.
    """
    return TrainState(
        step=training["step"],
        params=training.get("params") or model["params"],
        optimizer=training["optimizer"],
        statistics={name: value for name, value in model.items() if name != "params"},
        average=model["params"] if averages else None,
        carry=training.get("carry", ()),
    )
