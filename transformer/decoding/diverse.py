"""Diverse beam search (Vijayakumar et al. 2018): groups of beams that avoid what earlier groups choose."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer.decoding.beam import BeamSearch, Candidates
from transformer.decoding.scores import SearchResult
from transformer.decoding.slots import Finished, Slots
from transformer.decoding.steps import Predicted, Reach, Selection


@dataclass(frozen=True)
class Diverse:
    """The strategy of diverse beam search. At each step the groups choose one after another, each as a beam
    search of its own; a token loses `diversity` for every beam of earlier groups that has just chosen it
    (Hamming diversity, section 4). Only the strategy is affected: scores stay those of the model."""

    beam_size: int
    groups: int
    diversity: float
    stop: str = "exact"

    @property
    def _group(self) -> BeamSearch:
        return BeamSearch(self.beam_size // self.groups, self.stop)

    def first(self) -> Float[Array, " n"]:
        return jnp.tile(self._group.first(), self.groups)

    def __call__(self, slots: Slots, predicted: Predicted, eos: int) -> Selection:
        best = self._group
        size = self.beam_size // self.groups
        logits = predicted.logits
        log_normaliser = predicted.log_normaliser
        rows = jnp.arange(len(slots.live))[:, None]
        taken = jnp.zeros((len(slots.live), logits.shape[-1]), logits.dtype)
        parts: list[Selection] = []
        for start in range(0, self.beam_size, size):
            beams = slice(start, start + size)
            finished = jax.tree.map(lambda x, beams=beams: x[:, beams], slots.finished)
            finished = replace(finished, beam=finished.beam - start)
            group = replace(slots, live=slots.live[:, beams], finished=finished, read=())
            penalised = logits[:, beams] - self.diversity * taken[:, None]
            of_group = replace(
                predicted, logits=penalised, log_normaliser=log_normaliser[:, beams], unrestricted=None
            )
            candidates = best.candidates(group, of_group)
            lost = self.diversity * jnp.take_along_axis(taken, candidates.token, axis=1)
            candidates = Candidates(candidates.log_p + lost, candidates.parent, candidates.token)
            chosen = best.chosen(
                group, candidates, eos, predicted.reach and _of_group(predicted.reach, start)
            )
            taken = taken.at[rows, chosen.tokens].add((chosen.live > -jnp.inf).astype(taken.dtype))
            ended = replace(chosen.finished, beam=chosen.finished.beam + start)
            parts.append(replace(chosen, parents=chosen.parents + start, finished=ended))

        def joined(name: str) -> Array:
            return jnp.concatenate([getattr(part, name) for part in parts], axis=1)

        all_finished: Finished = jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves, axis=1), *(part.finished for part in parts)
        )
        enough = jnp.stack([part.enough for part in parts]).all(axis=0)
        return Selection(joined("tokens"), joined("parents"), joined("live"), all_finished, enough)


def _of_group(reach: Reach, start: int) -> Reach:
    """`Predicted.reach` of the beams from a number on."""
    return lambda tokens, parents: reach(tokens, parents + start)


def distinct(result: SearchResult) -> SearchResult:
    """The different hypotheses of one input, in their order: groups may find the same."""
    _, first = np.unique(np.asarray(result.tokens), axis=0, return_index=True)
    order = np.sort(first)
    unique: SearchResult = jax.tree.map(lambda x: x[order], result)
    return unique
