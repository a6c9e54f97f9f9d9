"""Table 1 holds for these layers, by counting and by gradients; nothing is timed."""

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks.studies import table1


@pytest.mark.by_default("linear-1")
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("self-attention", 1),
        ("restricted", 2),
        ("linear", 1),
        ("recurrent", 15),
        ("convolutional", 15),
        ("dilated", 4),
    ],
)
def test_longest_paths_over_sixteen_words(kind, path):
    # restricted: 15 / 8; convolutional: one neighbour on each side; dilated: 1 + 3 + 9 < 15
    assert table1.longest_path(kind, 16) == path


@pytest.mark.parametrize(
    ("kind", "steps"), [("self-attention", 1), ("linear", 1), ("convolutional", 1), ("recurrent", 24)]
)
def test_sequential_operations(kind, steps):
    model, x = table1.layer(kind, 32), jnp.zeros((1, 24, 32))
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    assert table1.sequential_operations(jax.make_jaxpr(model.apply)(shapes, x).jaxpr) == steps


def test_each_kind_of_attention_is_another():
    """With the same parameters, these layers differ."""
    x = jax.random.normal(jax.random.key(1), (1, 24, 32))
    variables = table1.layer("self-attention", 32).init(jax.random.key(0), x)
    full, *others = (table1.layer(kind, 32).apply(variables, x) for kind in table1.ORDER[:3])
    assert all(float(jnp.abs(full - other).max()) > 1e-2 for other in others)


@pytest.mark.slow
def test_it_writes_a_table_and_plots(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table1, "measure", lambda lengths, widths, repeats: costs)
    costs = [
        table1.Cost(kind, length, width, length**2 * width * 1e-3, 1.0, 1)
        for kind in table1.TIMED
        for length, width in ((32, 128), (64, 128), (128, 128), (128, 64), (128, 256))
    ]
    assert table1.growth(costs, "restricted", "length") == pytest.approx(2)
    assert table1.growth(costs, "restricted", "width") == pytest.approx(1)
    monkeypatch.setattr(table1, "longest_path", lambda kind, length: length)
    table1.main(["--quick", "--output", str(tmp_path / "out")])
    assert "written to" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out.json").read_text())["costs"]) == len(costs)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
