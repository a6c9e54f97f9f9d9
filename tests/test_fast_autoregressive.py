"""AT and FAT: their equations in NumPy, and what the hybrid forward pass skips."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from reference_search import random_variables
from tiers import mostly_slow

from transformer import UserError
from transformer.systems.fast_autoregressive.options import FastAutoregressiveConfig
from transformer.systems.fast_autoregressive.system import FastAutoregressive

SOURCE = jnp.asarray([[5, 6, 7, 4, 2], [8, 9, 2, 0, 0]])
GIVEN = jnp.asarray([[1, 4, 5, 6, 9, 2], [1, 8, 6, 9, 2, 0]])
WORDS = [5, 3]  # of each source
SIZES = {"vocab_size": 12, "num_layers": 2, "d_model": 8, "dropout": 0.0}
OPTIONS = {
    "AT": {"encoder": "lstm", "weights": "additive"},
    "AT, left to right": {"encoder": "lstm", "weights": "additive", "bidirectional": False},
    "FAT": {"num_heads": 2, "table_size": 4},
    "FAT, left to right": {"num_heads": 2, "table_size": 4, "bidirectional": False},
    "FAT, tanh": {"num_heads": 2, "weights": "tanh"},
    "FAT, hybrid": {"num_heads": 2, "hybrid": True},
    "FAT, hybrid, frequent": {"num_heads": 2, "hybrid": True, "frequent": 0.5},
}
QUICK = ["AT", "FAT, left to right", "FAT, tanh", "FAT, hybrid, frequent"]  # every option once
every = pytest.mark.parametrize("name", mostly_slow(list(OPTIONS), QUICK))


@functools.cache
def built(name):
    model = FastAutoregressive(FastAutoregressiveConfig(**SIZES, **OPTIONS[name]))
    return model, jax.tree.map(jnp.asarray, random_variables(model, 1))


def run(name, source=SOURCE, given=GIVEN):
    model, variables = built(name)
    return np.asarray(jax.jit(model.apply)(variables, source, given))


# The equations, in NumPy, for one sentence without padding


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def affine(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def gru(p, h, x):
    """Cho et al. 2014, with the reset gate after the product."""
    r = sigmoid(affine(p["ir"], x) + affine(p["hr"], h))
    z = sigmoid(affine(p["iz"], x) + affine(p["hz"], h))
    n = np.tanh(affine(p["in"], x) + r * affine(p["hn"], h))
    return (1 - z) * n + z * h


def lstm(p, xs):
    """Hochreiter and Schmidhuber 1997."""
    h = c = np.zeros(p["hi"]["kernel"].shape[0])
    states = []
    for x in xs:
        i, f, o = (sigmoid(affine(p[f"i{k}"], x) + affine(p[f"h{k}"], h)) for k in "ifo")
        c = f * c + i * np.tanh(affine(p["ig"], x) + affine(p["hg"], h))
        h = o * np.tanh(c)
        states.append(h)
    return np.stack(states)


def lstm_encoder(p, xs, options):
    for layer in map(p.get, sorted(p)):
        if options.get("bidirectional", True):
            there, back = (layer[f"{direction}_rnn"]["cell"] for direction in ("forward", "backward"))
            xs = np.concatenate([lstm(there, xs), lstm(back, xs[::-1])[::-1]], axis=-1)
        else:
            xs = lstm(layer["cell"], xs)
    return xs


def slow_attention(p, x, below, options):
    """e[i, j] = || ReLU(QueryMap(Q_i) + KeyMap(K_j)) ||_2 / sqrt(d_key); heads with an input gate."""
    heads, d = options["num_heads"], below.shape[1] // options["num_heads"]
    q, k, v, gate = (
        affine(p[n], y) for n, y in (("query", x), ("key", below), ("value", below), ("gate", below))
    )
    joined = np.zeros(below.shape)
    for i, head in itertools.product(range(len(below)), range(heads)):
        part = slice(head * d, head * d + d)
        reads = len(below) if options.get("bidirectional", True) else i + 1
        e = [
            np.linalg.norm(
                np.maximum(affine(p["query_map"], q[i, part]) + affine(p["key_map"], k[j, part]), 0)
            )
            for j in range(reads)
        ]
        alpha = softmax(np.array(e) / np.sqrt(d))
        joined[i, part] = (alpha @ v[:reads, part]) * sigmoid(gate[i, part])
    x = below + affine(p["out"], joined)
    normalised = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return normalised * p["norm"]["scale"] + p["norm"]["bias"]


def attention_encoder(p, x, options):
    m = x.shape[1]
    angles = np.arange(len(x))[:, None] / 10_000.0 ** (np.arange(0, m, 2) / m)
    x = x + np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(x.shape)
    states = x
    for layer in sorted(p):
        states = slow_attention(p[layer], x, states, options)
    return states


def numpy_logits(p, source, given, options):
    table = p["source_embedding"]["table"] * np.sqrt(8)
    encoder = lstm_encoder if options.get("encoder") == "lstm" else attention_encoder
    states = encoder(p["encoder"], table[source], options)
    h, keys, decoder = np.tanh(affine(p["start"], states.mean(0))), affine(p["key"], states), p["decoder"]
    found = []
    for t, token in enumerate(given):
        word = table[token]
        query = affine(decoder["query"], h)
        if options.get("weights") == "additive":
            query = query + affine(decoder["word"], word)
            alpha = softmax(np.maximum(query + keys, 0) @ decoder["energy"])
        else:
            last = options.get("table_size", 128) - 1
            u = decoder["table"][min(t, last), np.minimum(np.arange(len(source)), last)]
            omega = keys @ query / np.sqrt(8) + u + decoder["bias"]
            tanh = options.get("weights") == "tanh"
            alpha = np.tanh(omega) / np.exp(omega).sum() if tanh else softmax(omega)
        rare = token >= 12 * options.get("frequent", 1.0)
        if options.get("hybrid") and token != 1 and (token not in source or rare):
            alpha, word = alpha * 0, word * 0
        context = alpha @ states
        x = word * affine(decoder["gate"], context)
        h = gru(decoder["cell"], h, x)
        inner = np.tanh(affine(p["readout"], np.concatenate([h, context, x])))
        found.append(inner @ p["source_embedding"]["table"].T)
    return np.stack(found)


@pytest.mark.by_default("FAT, hybrid, frequent")
@every
def test_the_equations_in_numpy(name):
    _, variables = built(name)
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    found = run(name)
    for row, words in enumerate(WORDS):
        source, given = np.asarray(SOURCE)[row, :words].tolist(), np.asarray(GIVEN)[row].tolist()
        expected = numpy_logits(params, source, given, OPTIONS[name])
        np.testing.assert_allclose(found[row], expected, atol=5e-5)


@pytest.mark.by_default("FAT, left to right")
@every
def test_step_by_step_is_teacher_forcing(name):
    model, variables = built(name)
    memory = apply(model, variables, SOURCE, method="encode")
    cache = apply(model, variables, memory, 1, 8, method="init_cache")
    step = jax.jit(functools.partial(model.apply, method="decode_step"))
    for time in range(GIVEN.shape[1]):
        logits, cache = step(variables, cache, GIVEN[:, time : time + 1])
        np.testing.assert_allclose(logits[:, 0], run(name)[:, time], atol=2e-5)


@pytest.mark.slow
def test_what_is_not_in_the_source_is_not_read():
    """Neither the word itself nor the source: a step gets zeros in its place."""
    ordinary, hybrid = "FAT", "FAT, hybrid"
    other = GIVEN.at[0, 4].set(10)  # for 9, which the first source does not have either
    np.testing.assert_array_equal(run(hybrid, given=other), run(hybrid))
    assert np.abs(run(ordinary, given=other) - run(ordinary))[0, 4].max() > 1e-3
    present = GIVEN.at[0, 4].set(7)
    assert np.abs(run(hybrid, given=present) - run(hybrid))[0, 4].max() > 1e-3


def test_a_step_that_is_skipped_equals_one_that_is_masked():
    """If no hypothesis uses its word the branch is another."""
    model, variables = built("FAT, hybrid")
    alone = jnp.full((1, 1), 9)
    both = jnp.asarray([[9, 5]])
    for tokens in (alone, both):
        memory = apply(model, variables, SOURCE[:1], method="encode")
        cache = apply(model, variables, memory, tokens.shape[1], 8, method="init_cache")
        logits, _ = apply(model, variables, cache, tokens, method="decode_step")
        skipped = logits[:, 0] if tokens is alone else skipped  # noqa: F821
    np.testing.assert_allclose(logits[:, 0], skipped, atol=1e-6)
    program = jax.jit(functools.partial(model.apply, method="decode_step")).lower(variables, cache, both)
    assert "stablehlo.case" in program.as_text()


@pytest.mark.thorough
def test_gradients_are_finite_where_a_norm_is_zero():
    model, variables = built("FAT")
    zeros = jax.tree.map(jnp.zeros_like, variables["params"]["encoder"])
    params = {**variables["params"], "encoder": zeros}
    gradient = jax.grad(lambda p: jnp.square(apply(model, {"params": p}, SOURCE, GIVEN)).sum())(params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_what_cannot_be_built_is_refused():
    for options, message in (
        ({"d_model": 7}, "must be even"),
        ({"num_heads": 3}, "not divisible by --model.num-heads 3"),
        ({"dtype": "bfloat16"}, "float32 only"),
        ({"hybrid": True, "share_embeddings": "none"}, "needs a joint vocabulary"),
        ({"frequent": 0.5}, "nothing is skipped without --model.hybrid"),
        ({"hybrid": True, "frequent": 1.5}, "must be in (0, 1]"),
        ({"table_size": 0}, "table-size"),
    ):
        with pytest.raises(UserError, match=message.replace("(", r"\(").replace("]", r"\]")):
            FastAutoregressiveConfig(**{"d_model": 8, **options})
