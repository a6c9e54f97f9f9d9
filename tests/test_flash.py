"""The kernel of a TPU computes what the einsums do, run without one."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_command import on_devices

from transformer.model import flash
from transformer.model.attention import attention_weights
from transformer.model.flash import flash_by_rows
from transformer.model.kernels import runs_flash
from transformer.model.layers import keep_mask
from transformer.model.masks import AttentionInputs, Mask
from transformer.model.parameters import tracing_for

ROWS, HEADS, WIDTH = 2, 3, 8
KEY = jax.random.key(5)


def inputs(queries, keys, values=WIDTH):
    rng = np.random.default_rng(1)
    shapes = (queries, WIDTH), (keys, WIDTH), (keys, values)
    return [jnp.asarray(rng.standard_normal((ROWS, HEADS, *shape)), jnp.float32) for shape in shapes]


def segments(queries, keys):
    drawn = (np.random.default_rng(n).integers(1, 5, (ROWS, n)) for n in (queries, keys))
    return tuple(jnp.asarray(np.sort(numbers, axis=1)) for numbers in drawn)


def padding(keys):
    return jnp.arange(keys)[None] < jnp.array([[keys], [keys - 50]])


def by_einsums(query, keys, values, mask, rate=0.0):
    weights = attention_weights(query, keys, mask.dense(query.shape[2], keys.shape[2]))
    if rate:
        weights = jnp.where(keep_mask(KEY, rate, weights.shape), weights / (1 - rate), 0)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, values)


CASES = {
    "everything": (128, 128, Mask(), 0.0),
    "padding": (128, 256, Mask(keys=padding(256)), 0.0),
    "causal, in blocks of queries": (256, 256, Mask(causal=True), 0.0),
    "packed": (256, 256, Mask(segments=segments(256, 256), causal=True), 0.0),
    "packed, other keys, padding": (128, 256, Mask(segments=segments(128, 256), keys=padding(256)), 0.0),
    "window": (256, 256, Mask(window=9, causal=True), 0.0),
    "dropout": (256, 256, Mask(keys=padding(256)), 0.3),
}


@pytest.mark.by_default("packed, other keys, padding-5")
@pytest.mark.parametrize("values", [WIDTH, 5])
@pytest.mark.parametrize("case", CASES)
def test_contexts_and_gradients_are_those_of_the_einsums(case, values, monkeypatch):
    queries, keys, mask, rate = CASES[case]
    monkeypatch.setattr(flash, "MOST_SCORES", 128 * 256)  # so that 256 queries are two blocks
    arrays = inputs(queries, keys, values)
    shape = ROWS, HEADS, queries, values
    weight = jnp.asarray(np.random.default_rng(2).standard_normal(shape), jnp.float32)

    def by_kernel(*arrays):
        dropout = (KEY, rate) if rate else None
        return flash_by_rows(AttentionInputs(*arrays, mask), dropout, interpret=True)

    expected, expected_vjp = jax.vjp(lambda *arrays: by_einsums(*arrays, mask, rate), *arrays)
    context, context_vjp = jax.vjp(by_kernel, *arrays)
    np.testing.assert_allclose(context, expected, atol=2e-6)
    for gradient, expected_gradient in zip(context_vjp(weight), expected_vjp(weight), strict=True):
        np.testing.assert_allclose(gradient, expected_gradient, atol=2e-5)


def test_heads_are_together_as_far_as_tiles_ask_for():
    assert flash.heads_together(8, 512, 512) == 2
    assert flash.heads_together(16, 1024, 2048) == 2
    assert flash.heads_together(4, 512, 512) == 1
    assert flash.heads_together(9, 576, 576) == 9  # narrow heads of an odd number


def test_groups_of_heads_have_the_contexts_and_gradients_of_all_at_once(monkeypatch):
    monkeypatch.setattr(flash, "MOST_SCORES", 128 * 256)
    query, keys, values = (jnp.tile(x, (1, 2, 1, 1)) * 0.1 for x in inputs(256, 256))  # six heads
    mask, dropout = Mask(causal=True), (KEY, 0.3)

    def contexts(*arrays):
        return flash_by_rows(AttentionInputs(*arrays, mask), dropout, interpret=True)

    results = []
    for together in (2, 6):
        monkeypatch.setattr(flash, "heads_together", lambda *_, number=together: number)
        context, vjp = jax.vjp(contexts, query, keys, values)
        results.append((context, *vjp(jnp.ones_like(context))))
    for of_groups, at_once in zip(*results, strict=True):
        np.testing.assert_allclose(of_groups, at_once, atol=1e-6)


def fits(queries, keys, mask=None, heads=8, width=64):
    query, key = (jnp.zeros((1, heads, length, width)) for length in (queries, keys))
    return flash.fits(AttentionInputs(query, key, key, mask or Mask()))


def test_what_does_not_fit():
    assert fits(128, 256)
    assert fits(2048, 2048)
    assert not fits(128, 256, Mask(causal=True))  # a memory before the queries
    assert not fits(128, 256, Mask(window=8))
    assert not fits(100, 128)
    assert not fits(128, 4096)
    assert not fits(2048, 2048, heads=9)  # which cannot be fewer at a time
    assert not fits(128, 128, Mask(pairs=jnp.ones((1, 128, 128), bool)))


@pytest.mark.by_default("shape3")
@pytest.mark.parametrize("shape", [(2, 3, 4), (6,), (5, 2), (3, 5)])
def test_accelerators_drop_the_same_elements(shape):
    expected = keep_mask(KEY, 0.4, shape)
    with tracing_for("tpu"):
        np.testing.assert_array_equal(keep_mask(KEY, 0.4, shape), expected)


def test_only_where_rows_are_known_to_be_divided(tiny):
    """In a plain `jit`, as in decoding, XLA may have to divide rows over devices, which it cannot for a
    kernel."""
    config, answers = tiny(dtype="bfloat16"), []

    def asks(x):
        answers.append(runs_flash(config, AttentionInputs(*inputs(128, 128), Mask())))
        return x

    with tracing_for("tpu"):
        jax.jit(asks)(1.0)
        jax.pmap(asks, devices=jax.devices()[:1])(jnp.ones(1))
    assert answers == [False, True]


MESH = """
import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_flash import AttentionInputs, Mask, flash_by_rows, inputs, padding

query, keys, values = (x[:, :2] for x in inputs(128, 128))
mask = Mask(keys=padding(128), causal=True)
mesh = Mesh(np.array(jax.devices()).reshape(1, 1, 2), ("data", "fsdp", "tensor"))


@jax.jit
def on_the_mesh(inputs):
    rules = [("rows", ("data", "fsdp")), ("heads", "tensor")]
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), nn.logical_axis_rules(rules):
        return flash_by_rows(inputs, None, interpret=True)


for heads in (2, 1):  # which two devices divide, or not
    whole = AttentionInputs(*(x[:, :heads] for x in (query, keys, values)), mask)
    expected = flash_by_rows(whole, None, interpret=True)
    context = on_the_mesh(jax.device_put(whole, NamedSharding(mesh, PartitionSpec())))
    np.testing.assert_allclose(context, expected, atol=1e-6)
"""


@pytest.mark.slow
def test_heads_on_a_mesh():
    tests = Path(__file__).parent
    environment = {
        **on_devices(2),
        "PYTHONPATH": os.pathsep.join([str(tests.parent), str(tests)]),
    }
    subprocess.run([sys.executable, "-c", MESH], env=environment, check=True)
