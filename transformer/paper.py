"""*Attention Is All You Need* (Vaswani et al. 2017) as plain functions, in the order of the paper: its model,
an update of its training, and its search.

There is nothing here but the paper: no options, no cache, one device. The rest of the package is faster and
does more, and must compute the same: `tests/test_paper.py` compares logits, loss, gradients, updates and
translations. Whoever has read this file knows what each room of the package generalises.

Axes: `b` sentences of a batch, `s` and `t` tokens of source and target, `m` d_model, `h` heads, `d` width of
a head, `v` vocabulary. Ids are int32, everything else is float32.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

Params = dict[str, Any]
"""Arrays by name, and a list of layers for each stack: what `init` returns."""
Keys = Iterator[jax.Array] | None
"""Fresh random keys for dropout. None: nothing is dropped."""

PAD, BOS, EOS = 0, 1, 2
"""The ids of <pad>, which fills rows, of <s>, the first input of the decoder, and of </s>, the end."""
DROPOUT = 0.1
"""P_drop of the base model (section 5.4)."""
SMOOTHING = 0.1
"""epsilon_ls (section 5.4)."""
WARMUP = 4000
"""warmup_steps (section 5.3)."""
BEAMS, ALPHA, EXTRA = 4, 0.6, 50
"""Beam size, exponent of the length penalty, and how much longer than its source an output may be (6.1)."""


# Section 3.2: attention


def attention(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (Eq. 1).

    Args:
      query: [b, h, t, d].
      keys: [b, h, s, d].
      values: [b, h, s, d].
      mask: which keys a query may see: True or False, [b or 1, 1, t or 1, s].

    Returns:
      [b, h, t, d].
    """
    scores = jnp.einsum("bhtd,bhsd->bhts", query, keys) / math.sqrt(query.shape[-1])
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhts,bhsd->bhtd", weights, values)


def multi_head(p: Params, x: jax.Array, memory: jax.Array, mask: jax.Array) -> jax.Array:
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, where head_i attends with its projections W_i^Q,
    W_i^K, W_i^V (section 3.2.2). Queries are of `x` [b, t, m], keys and values of `memory` [b, s, m]."""
    query = jnp.einsum("btm,mhd->bhtd", x, p["query"])
    keys = jnp.einsum("bsm,mhd->bhsd", memory, p["key"])
    values = jnp.einsum("bsm,mhd->bhsd", memory, p["value"])
    heads = attention(query, keys, values, mask)
    return jnp.einsum("bhtd,hdm->btm", heads, p["out"])


# Section 3.3: the feed-forward network of each position


def feed_forward(p: Params, x: jax.Array) -> jax.Array:
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (Eq. 2): [b, t, m] -> [b, t, m]."""
    return jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


# Section 3.1: residual sums, and the two stacks


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    """Each position's features with mean 0 and variance 1, then scale and offset (Ba et al. 2016)."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = jnp.square(x - mean).mean(axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-6) * p["scale"] + p["offset"]


def dropout(x: jax.Array, keys: Keys) -> jax.Array:
    """Sets a tenth of the numbers to 0, and enlarges the others (section 5.4)."""
    if keys is None:
        return x
    survives = jax.random.bernoulli(next(keys), 1 - DROPOUT, x.shape)
    return jnp.where(survives, x / (1 - DROPOUT), 0)


def residual(p: Params, x: jax.Array, sublayer: jax.Array, keys: Keys) -> jax.Array:
    """LayerNorm(x + Sublayer(x)), with dropout on the output of the sublayer."""
    return layer_norm(p, x + dropout(sublayer, keys))


def encode(params: Params, source: jax.Array, keys: Keys = None) -> jax.Array:
    """The encoder: N layers of self-attention and feed-forward. [b, s] -> [b, s, m]."""
    mask = (source != PAD)[:, None, None, :]
    x = embed(params["embedding"], source, keys)
    for p in params["encoder"]:
        x = residual(p["self_norm"], x, multi_head(p["self"], x, x, mask), keys)
        x = residual(p["feed_norm"], x, feed_forward(p["feed"], x), keys)
    return x


def decode(
    params: Params, memory: jax.Array, source: jax.Array, decoder_input: jax.Array, keys: Keys = None
) -> jax.Array:
    """The decoder: its layers also attend to the encoder's output, and each position sees only those up to
    itself, so that the prediction for it depends on known outputs alone.

    Args:
      params: of the model.
      memory: what `encode` returned, [b, s, m].
      source: its ids, [b, s].
      decoder_input: the target one to the right (`shifted`), [b, t].
      keys: for dropout.

    Returns:
      Logits of the next token at each position, [b, t, v]. Their matrix is the embedding (section 3.4).
    """
    of_source = (source != PAD)[:, None, None, :]
    length = decoder_input.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))[None, None]
    x = embed(params["embedding"], decoder_input, keys)
    for p in params["decoder"]:
        x = residual(p["self_norm"], x, multi_head(p["self"], x, x, causal), keys)
        x = residual(p["cross_norm"], x, multi_head(p["cross"], x, memory, of_source), keys)
        x = residual(p["feed_norm"], x, feed_forward(p["feed"], x), keys)
    return x @ params["embedding"].T


# Sections 3.4 and 3.5: embeddings and positions


def embed(table: jax.Array, ids: jax.Array, keys: Keys) -> jax.Array:
    """Embeddings times sqrt(d_model), plus positions, then dropout. [b, t] -> [b, t, m]."""
    width = table.shape[1]
    return dropout(table[ids] * math.sqrt(width) + positions(ids.shape[1], width), keys)


def positions(length: int, width: int) -> jax.Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i / m)) and PE(pos, 2i + 1) = cos(the same): [length, m]."""
    rates = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    angles = jnp.arange(length)[:, None] * rates
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, width)


# Section 5: training


def init(
    key: jax.Array, *, vocabulary: int, layers: int = 6, width: int = 512, heads: int = 8, inner: int = 2048
) -> Params:
    """Random parameters; sizes of the base model (Table 3). The paper does not say how they begin: here
    matrices as Glorot and Bengio (2010), embeddings with variance 1 / m."""
    keys = iter(jax.random.split(key, 1 + layers * 16))

    def matrix(fan_in: int, fan_out: int, *shape: int) -> jax.Array:
        bound = math.sqrt(6 / (fan_in + fan_out))
        return jax.random.uniform(next(keys), shape, minval=-bound, maxval=bound)

    def attends() -> Params:
        depth = width // heads
        into = {name: matrix(width, width, width, heads, depth) for name in ("query", "key", "value")}
        return into | {"out": matrix(width, width, heads, depth, width)}

    def feeds() -> Params:
        first, second = matrix(width, inner, width, inner), matrix(inner, width, inner, width)
        return {"w1": first, "b1": jnp.zeros(inner), "w2": second, "b2": jnp.zeros(width)}

    def norm() -> Params:
        return {"scale": jnp.ones(width), "offset": jnp.zeros(width)}

    def layer(*attentions: str) -> Params:
        p: Params = {"feed": feeds(), "feed_norm": norm()}
        for name in attentions:
            p |= {name: attends(), f"{name}_norm": norm()}
        return p

    return {
        "embedding": jax.random.normal(next(keys), (vocabulary, width)) / math.sqrt(width),
        "encoder": [layer("self") for _ in range(layers)],
        "decoder": [layer("self", "cross") for _ in range(layers)],
    }


def shifted(target: jax.Array) -> jax.Array:
    """What the decoder reads while it learns to predict `target` [b, t]: <s>, then all but the last token."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """-sum_k q(k) log p(k), where q is 1 - epsilon for the target and the same for all others (section 5.4):
    [b, t, v] and [b, t] -> [b, t], in nats."""
    size = logits.shape[-1]
    q = jnp.where(jax.nn.one_hot(target, size, dtype=bool), 1 - SMOOTHING, SMOOTHING / (size - 1))
    return -(q * jax.nn.log_softmax(logits)).sum(axis=-1)


def loss(params: Params, source: jax.Array, target: jax.Array, keys: Keys = None) -> jax.Array:
    """The mean over the target's tokens. Rows of ids end with </s>, then <pad>."""
    logits = decode(params, encode(params, source, keys), source, shifted(target), keys)
    is_token = target != PAD
    return (cross_entropy(logits, target) * is_token).sum() / is_token.sum()


def learning_rate(step: jax.Array, width: int) -> jax.Array:
    """m^-0.5 min(step^-0.5, step warmup_steps^-1.5) (Eq. 3), for steps from 1."""
    step = jnp.asarray(step, jnp.float32)
    return width**-0.5 * jnp.minimum(step**-0.5, step * WARMUP**-1.5)


def adam(width: int) -> optax.GradientTransformation:
    """Adam with the paper's beta_1, beta_2 and epsilon (section 5.3). Optax counts steps from 0."""
    return optax.adam(lambda count: learning_rate(count + 1, width), b1=0.9, b2=0.98, eps=1e-9)


@jax.jit
def update(
    params: Params, state: optax.OptState, source: jax.Array, target: jax.Array, key: jax.Array | None = None
) -> tuple[Params, optax.OptState, jax.Array]:
    """One step of training on a batch: new parameters, new state of `adam`, and the loss before it. Without a
    key nothing is dropped."""
    keys = None if key is None else _keys(key, params)
    value, gradients = jax.value_and_grad(loss)(params, source, target, keys)
    updates, state = adam(params["embedding"].shape[1]).update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def _keys(key: jax.Array, params: Params) -> Iterator[jax.Array]:
    return iter(jax.random.split(key, 2 + 2 * len(params["encoder"]) + 3 * len(params["decoder"])))


# Section 6.1: translating


@jax.jit
def next_log_p(params: Params, source: jax.Array, output: jax.Array, length: jax.Array) -> jax.Array:
    """log P of each token after the first `length` tokens of outputs [b, t], given sources [b, s]: [b, v].
    Nobody writes <pad> and <s>, so these are never chosen."""
    logits = decode(params, encode(params, source), source, shifted(output))
    log_p = jax.nn.log_softmax(logits[:, length])
    return log_p.at[:, jnp.array([PAD, BOS])].set(-jnp.inf)


def greedy(params: Params, source: jax.Array) -> list[int]:
    """The translation of one sentence [s] that takes the most probable token at each step, with its </s>."""
    limit = int((source != PAD).sum()) + EXTRA
    output = jnp.full((1, limit), PAD)
    for length in range(limit):
        log_p = next_log_p(params, source[None], output, length)[0]
        token = EOS if length == limit - 1 else int(log_p.argmax())
        output = output.at[0, length].set(token)
        if token == EOS:
            break
    return [int(token) for token in output[0, : length + 1]]


def beam_search(params: Params, source: jax.Array) -> list[tuple[float, list[int]]]:
    """The translations of one sentence [s] that beam search finds, each with its score, best first.

    The score is log P(Y) / lp(Y), where |Y| counts </s>. At each step the candidates are all tokens after all
    live hypotheses. Those among the `BEAMS` best that end are finished, and the `BEAMS` best that do not end
    live on. The search ends where no live one can still win: log P only falls, and at the longest length it
    is divided by most.
    """
    limit = int((source != PAD).sum()) + EXTRA
    sources = jnp.tile(source, (BEAMS, 1))
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        rows = [tokens + [PAD] * (limit - len(tokens)) for _, tokens in live]
        output = jnp.array(rows + [[PAD] * limit] * (BEAMS - len(rows)))
        log_p = next_log_p(params, sources, output, length - 1)[: len(live)]
        if length == limit:  # nothing but the end is left
            log_p = jnp.where(jnp.arange(log_p.shape[1]) == EOS, log_p, -jnp.inf)
        totals = jnp.array([total for total, _ in live])[:, None] + log_p
        best, chosen = jax.lax.top_k(totals.ravel(), min(2 * BEAMS, totals.size))
        candidates = []
        for total, index in zip(best.tolist(), chosen.tolist(), strict=True):
            beam, token = divmod(index, log_p.shape[1])
            candidates.append((total, [*live[beam][1], token]))
        ended = [(total, tokens) for total, tokens in candidates[:BEAMS] if tokens[-1] == EOS]
        finished += [(total / length_penalty(length), tokens) for total, tokens in ended if total > -math.inf]
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:BEAMS]
        live = [(total, tokens) for total, tokens in candidates if tokens[-1] != EOS][:BEAMS]
        if len(finished) == BEAMS and finished[-1][0] >= live[0][0] / length_penalty(limit):
            break
    return finished


def length_penalty(length: int) -> float:
    """lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, Eq. 14)."""
    return float(((5 + length) / 6) ** ALPHA)


# The same parameters under the names of the package


def from_package(params: Params) -> Params:
    """The parameters of a `transformer.Transformer` with the paper's options, under this file's names."""

    def norm(p: Params) -> Params:
        return {"scale": p["norm"]["norm"]["scale"], "offset": p["norm"]["norm"]["bias"]}

    def layer(p: Params, *attentions: str) -> Params:
        inner, outer = p["feed_forward"]["inner"], p["feed_forward"]["outer"]
        feed = {"w1": inner["kernel"], "b1": inner["bias"], "w2": outer["kernel"], "b2": outer["bias"]}
        renamed: Params = {"feed": feed, "feed_norm": norm(p["feed_forward_residual"])}
        for name in attentions:
            renamed |= {name: p[f"{name}_attention"], f"{name}_norm": norm(p[f"{name}_residual"])}
        return renamed

    def stack(name: str, *attentions: str) -> list[Params]:
        count = sum(key.startswith(f"{name}_") for key in params)
        return [layer(params[f"{name}_{index}"], *attentions) for index in range(count)]

    return {
        "embedding": params["source_embedding"]["table"],
        "encoder": stack("encoder", "self"),
        "decoder": stack("decoder", "self", "cross"),
    }
