"""What the compiler of TPUs makes of the step and the search: nobody should lose what was won there.

`pip install '.[plan]'`, then `pytest -m slow tests/test_plan_on_tpus.py`.
"""

import importlib.util
import math
from dataclasses import replace

import jax
import pytest
from of_a_config import model_shapes

from transformer.config.options import Config, MeshConfig
from transformer.plan.costs import Program, arrays_of
from transformer.plan.machines import machine
from transformer.plan.plan import Limits, compiled
from transformer.systems.presets import PRESETS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install '.[plan]'"
    ),
]
VOCABULARY = 8_192
SHARDED = {"all-gather", "all-reduce", "reduce-scatter", "all-to-all"}
LAYOUTS = {
    "replicas": (MeshConfig(), {"all-reduce"}, 75.9),
    "fsdp": (MeshConfig(fsdp=8), SHARDED, 33.4),
    "fsdp and tensor": (MeshConfig(fsdp=4, tensor=2), {*SHARDED, "collective-permute"}, 50.8),
}
"""Layouts, the kinds of transfers, and the recorded memory of a device in MB (libtpu 0.0.50.1, JAX
0.12.0.1)."""


def config(mesh: MeshConfig) -> Config:
    """One layer of half the base model's width, with packed rows in bfloat16."""
    base, half = PRESETS["base"], {"num_layers": 1, "d_model": 256, "d_ff": 1024, "num_heads": 4}
    return replace(
        base,
        model=replace(base.model, **half, vocab_size=VOCABULARY, dtype="bfloat16"),
        data=replace(base.data, batching="packed", max_length=128, batch_tokens=8 * 16 * 128),
        mesh=mesh,
    )


def program_of(what: str, given: Config, folder) -> tuple[dict, Program]:
    file = folder / "program.txt"
    found = compiled(what, given, machine("v5e:2x4"), Limits(15), text=str(file))
    return found, Program(file.read_text())


def every(program: Program):
    """All instructions, also those inside fusions."""
    return [each for body in program.computations.values() for each in body.values()]


def is_wide(each) -> bool:
    """Whether it works on at least as many elements as the vocabulary has words."""
    return any(math.prod(axes) >= VOCABULARY for _, axes in arrays_of(each.shape))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step(layout, tmp_path):
    mesh, kinds, recorded = LAYOUTS[layout]
    found, program = program_of("step", config(mesh), tmp_path)
    assert {each["kind"] for each in found["collectives"]} <= kinds
    assert found["memory"]["total"] / 1e6 == pytest.approx(recorded, rel=0.05)
    sorts = [each for each in every(program) if each.operation == "sort" and each.source.count("loss")]
    assert not sorts
    in_loops = {name for name, times in program.times.items() if times > 1}
    loops = [each for name in in_loops for each in program.computations[name].values()]
    assert not [each for each in loops if "scatter" in each.name and is_wide(each)]
    for each in every(program):
        if each.operation == "convolution" and is_wide(each):
            body = next(body for body in program.computations.values() if each.name in body)
            kinds_read = {arrays_of(body[name].shape)[0][0] for name in each.operands}
            assert kinds_read == {"bf16"}, each.source


def test_a_search_never_sorts_the_vocabulary_or_pads_narrow_keys(tmp_path):
    found, program = program_of("search", config(MeshConfig()), tmp_path)
    assert found["lane"]["slots"] == 32
    assert found["memory"]["total"] / 1e6 == pytest.approx(27.5, rel=0.05)  # 31.0 with separate heads
    assert [each for each in every(program) if each.operation == "sort"]
    for each in every(program):
        if each.operation == "sort":
            assert all(axes[-1] < VOCABULARY / 4 for _, axes in arrays_of(each.shape)), each.shape


def test_a_search_reads_its_logits_once(tmp_path):
    found, program = program_of("search", config(MeshConfig()), tmp_path)
    size, step = found["lane"]["slots"] * 4 * VOCABULARY, program.step()
    logits = {
        each.name
        for _, each, _ in step.running()
        for kind, axes in arrays_of(each.shape)
        if kind == "f32" and math.prod(axes) == size
    }
    assert len(logits) == 1  # none are written again without forbidden tokens
    readers = [each for _, each, _ in step.running() if logits & set(each.operands)]
    passes = [each for each in readers if each.operation == "fusion" and "gather" not in each.name]
    assert len(passes) == 1, [each.source for each in passes]


def test_gradients_alone_cross_between_slices(tmp_path):
    """Two slices of eight: each device sends about an eighth of the gradients over the slow network."""
    given, sent = config(MeshConfig()), {}
    parameters = sum(x.size for x in jax.tree.leaves(model_shapes(given)["params"]))
    for mesh in (MeshConfig(), MeshConfig(fsdp=8)):
        found = compiled("step", replace(given, mesh=mesh), machine("2xv5e:2x4"), Limits(15))
        assert found["devices"] == 16
        sent[mesh.fsdp] = sum(each["sent"] for each in found["collectives"] if each["across"])
    assert 4 * parameters / 8 < sent[1] < 2 * 4 * parameters / 8
    assert 0 < sent[8] < 4 * parameters / 2  # of a shared table more than an eighth crosses
