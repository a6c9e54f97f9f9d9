"""Makes one model of several translators."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.config.arguments import choice
from transformer.config.ranges import shown
from transformer.decoding.beside.ensemble import Ensemble, alike, as_one_model, by_members, ensemble_scores
from transformer.decoding.calls import Inputs
from transformer.decoding.searches.search import autoregressive_search
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.systems.system import System
from transformer.tasks.texts.text_to_text import TextToText
from transformer.translator.decoder import Decoder


@dataclass(frozen=True)
class MeanAlignment:
    """The mean of the members' alignments, by their weights."""

    systems: tuple[System, ...]
    """Of each kind of member."""

    def __call__(
        self, model: Ensemble, variables: Variables, inputs: Inputs, target: Array
    ) -> Float[Array, "b t s"]:
        def one(index: int, module: nn.Module, member_variables: Variables) -> Array:
            return self.systems[index].required("alignment")(module, member_variables, inputs, target)

        alignments = jnp.concatenate(by_members(model, variables, one))
        return jnp.tensordot(jnp.array(sum(model.weights, ())), alignments, axes=1)


def shares_of(weights: Sequence[float], models: int, name: str) -> Float[np.ndarray, " models"]:
    """Weights of models, so that they add up to 1. Empty: equal ones.

    Raises:
      UserError: they do not fit, with the name of the option.
    """
    subject = f"each of the {models} models" if models > 1 else "the model"
    try:
        if any(not isinstance(weight, numbers.Real) for weight in weights):
            raise TypeError
        shares = np.array([float(weight) for weight in weights] or [1.0] * models)
    except (TypeError, ValueError, OverflowError):
        shares = np.array([])
    if len(shares) != models or not (np.isfinite(shares) & (shares > 0)).all():
        raise UserError(f"{name} {shown(weights)}: give a positive number for {subject}")
    shares /= shares.max()  # their sum may be no number
    normalised: np.ndarray = shares / shares.sum()
    return normalised


def ensemble_of(
    members: Sequence[Decoder[TextToText]], weights: Sequence[float] | None, mean: str
) -> tuple[System, Ensemble, Variables]:
    """The system, the model and the variables of an ensemble. See `Translator.together`."""
    several = not isinstance(members, Decoder) and isinstance(members, Sequence) and members
    if not several or not all(isinstance(member, Decoder) for member in members):
        raise UserError("an ensemble is made of translators: give a list with at least one")
    first = members[0]
    member_shares = shares_of(() if weights is None else weights, len(members), "--weights")
    choice("mean", mean, ("probabilities", "logarithms"))
    for member in members:
        name = member.origin or member.config.system
        if member.system.search != autoregressive_search:
            raise UserError(
                f"{name}: a {member.config.system} model cannot be part of an ensemble, whose models "
                "generate words of one vocabulary one after another"
            )
        if member.task.data.context != first.task.data.context:
            raise UserError(f"{name} reads another number of previous sentences (--data.context)")
        if member.language_model:
            raise UserError(f"{name} has a language model: give it to the ensemble, by use_language_model")
        if member.bias:
            raise UserError(f"{name} has names: give them to the ensemble, by use_names")
        if member.task.content() != first.task.content():
            raise UserError(f"{name} has another vocabulary than {first.origin or 'the first model'}")
    kinds = alike([(member.config.system, member.model, _form(member.variables)) for member in members])
    systems = tuple(members[indices[0]].system for indices in kinds.values())
    system = System(
        model=first.system.model,
        objective=first.system.objective,
        search=autoregressive_search,
        alignment=MeanAlignment(systems),
        scores=ensemble_scores,
    )
    shares = tuple(tuple(float(member_shares[index]) for index in indices) for indices in kinds.values())
    model = Ensemble(tuple(module for _, module, _ in kinds), shares, mean)
    variables = as_one_model([[members[index].variables for index in indices] for indices in kinds.values()])
    return system, model, variables


def _form(variables: Variables) -> tuple[tuple[str, str], ...]:
    """The names, shapes and types of variables: int8 weights differ from others."""
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return tuple((jax.tree_util.keystr(path), str(jax.typeof(leaf))) for path, leaf in leaves)
