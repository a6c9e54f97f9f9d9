"""A search hook that forbids a token."""

from dataclasses import dataclass

import jax.numpy as jnp

from toys.task import text
from transformer.decoding.hooks import Hooks, SearchHook
from transformer.decoding.searches.search import AutoregressiveSearch


@dataclass(frozen=True)
class Forbid(SearchHook):
    """Never generates a token, and counts the tokens of each beam."""

    token: int

    def init(self, inputs):
        return {"tokens": jnp.zeros(len(inputs["source"]), jnp.int32)}

    def filter(self, logits, state, steps_left):
        return logits.at[..., self.token].set(-jnp.inf)

    def advance(self, tokens, state):
        return {"tokens": state["tokens"] + (tokens >= 0)}


FORBIDDEN = 5


SYSTEM = text(search=AutoregressiveSearch(hooks=Hooks((Forbid(FORBIDDEN),))))
