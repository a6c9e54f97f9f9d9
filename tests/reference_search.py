"""Slow reference searches: whole prefixes, the whole model at every step, no cache, no batch."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config.decoding import DecodingConfig
from transformer.config.model import SpecialIds
from transformer.config.transformer import TransformerConfig
from transformer.decoding.hooks import Hooks
from transformer.decoding.searches.search import AutoregressiveSearch
from transformer.decoding.steering.rules import Rules
from transformer.model.transformer import Transformer

Tokens = tuple[int, ...]
Scored = tuple[float, Tokens]
NextLogP = Callable[[Sequence[Tokens]], np.ndarray]
"""Prefixes, without <bos>, to log-probabilities of what follows each: [prefixes, vocabulary]."""

MODEL = Transformer(
    TransformerConfig(vocab_size=11, num_layers=1, d_model=16, d_ff=32, num_heads=2, share_embeddings="none")
)
SOURCES = np.array(
    [[4, 5, 6, 2, 0, 0], [7, 2, 0, 0, 0, 0], [9, 8, 4, 5, 10, 2], [3, 3, 7, 6, 2, 0]], np.int32
)
_ROWS, _TIME = 8, 22  # one compiled program scores prefixes of every number and length


def random_variables(model: Any, seed: int, shapes: Any = None) -> Any:
    """Variables with which a model is fairly certain, and does not repeat itself: large embeddings, small
    biases. `shapes` are theirs, if its source is not ids."""
    rng, ids = np.random.default_rng(seed), np.ones((1, 2), np.int32)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        spread = {"table": 0.7, "scale": 0.1, "bias": 0.1}.get(path[-1].key, 0.35)
        return rng.normal(path[-1].key == "scale", spread, leaf.shape).astype(np.float32)

    shapes = shapes or jax.eval_shape(model.init, jax.random.key(0), ids, ids)
    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.partial(jax.jit, static_argnames="model")
def _teacher_forced(model: Transformer, variables: Any, sources: Any, targets: Any) -> jax.Array:
    return jax.nn.log_softmax(model.apply(variables, sources, targets))


def next_log_p(model: Transformer, variables: Any, source: np.ndarray) -> NextLogP:
    """The model's log-probabilities for one source sentence, by teacher forcing."""

    def ask(prefixes: Sequence[Tokens]) -> np.ndarray:
        found = []
        for start in range(0, len(prefixes), _ROWS):
            some = prefixes[start : start + _ROWS]
            targets = np.full((_ROWS, _TIME), model.config.special.bos, np.int32)
            for row, prefix in enumerate(some):
                targets[row, 1 : len(prefix) + 1] = prefix
            log_p = np.asarray(_teacher_forced(model, variables, np.tile(source, (_ROWS, 1)), targets))
            found += [log_p[row, len(prefix)] for row, prefix in enumerate(some)]
        return np.array(found, np.float64)

    return ask


def log_p_of(tokens: Tokens, ask: NextLogP) -> float:
    """log P(tokens | source)."""
    log_p = ask([tokens[:length] for length in range(len(tokens))])
    return float(log_p[np.arange(len(tokens)), list(tokens)].sum())


def enumerate_all(ask: NextLogP, words: Sequence[int], eos: int, limit: int) -> list[Scored]:
    """All sentences of at most `limit` tokens, including <eos>, with their log P."""
    sentences = [(*chosen, eos) for n in range(limit) for chosen in itertools.product(words, repeat=n)]
    return [(log_p_of(tokens, ask), tokens) for tokens in sentences]


def search_steps(
    ask: NextLogP, special: SpecialIds, n: int, penalty: Callable[[float], float], limit: int
) -> Iterator[tuple[list[Scored], list[Scored]]]:
    """Yields (finished, live) of beam search at each step up to the limit, best first."""
    finished: list[Scored] = []
    live: list[Scored] = [(0.0, ())]
    for length in range(1, limit + 1):
        candidates = [
            (score + gained, (*tokens, token))
            for (score, tokens), row in zip(live, ask([tokens for _, tokens in live]), strict=True)
            for token, gained in enumerate(row)
            if token not in (special.pad, special.bos) and (length < limit or token == special.eos)
        ]
        candidates = sorted(candidates, reverse=True)[: 2 * n]
        ended = [(score, tokens) for score, tokens in candidates[:n] if tokens[-1] == special.eos]
        ended = [(score / penalty(length), tokens) for score, tokens in ended]
        finished = sorted([*finished, *ended], reverse=True)[:n]
        live = [(score, tokens) for score, tokens in candidates if tokens[-1] != special.eos][:n]
        yield finished, live


def slow_search(*arguments: Any) -> list[Scored]:
    """The result of beam search at the limit. Arguments as in `search_steps`."""
    *_, (finished, _) = search_steps(*arguments)
    return finished


def hypotheses(result: Any, row: int, special: SpecialIds) -> list[Scored]:
    """The hypotheses of one sentence in a SearchResult, whose form is checked."""
    found = []
    for ids, score in zip(np.asarray(result.tokens)[row], np.asarray(result.scores)[row], strict=True):
        ends = np.flatnonzero(ids == special.eos)
        length = int(ends[0]) + 1 if np.isfinite(score) else 0
        assert (ids[length:] == special.pad).all()
        assert special.pad not in ids[:length]
        assert special.bos not in ids[:length]
        if length:
            found.append((float(score), tuple(ids[:length].tolist())))
    return found


def with_rules(
    search: AutoregressiveSearch,
    inputs: dict[str, Any],
    options: DecodingConfig,
    phrases: Sequence[Sequence[int]] = (),
    special: SpecialIds | None = None,
) -> tuple[AutoregressiveSearch, dict[str, Any]]:
    """A search with the rules of options, and the inputs with what it reads of them."""
    rules = Rules.of(options, special or MODEL.config.special, search.limits, phrases).within(options)
    rows = len(inputs["source"])
    read = {
        name: jnp.asarray(np.repeat(np.asarray(value)[None], rows, 0))
        for name, value in rules.example(options, phrases).items()
    }
    return dataclasses.replace(search, hooks=Hooks((rules,))), inputs | read
