"""What the compiler of NVIDIA's GPUs makes of the step: nobody should lose what was won there.

`pip install '.[plan]'`, then `pytest -m slow tests/test_plan_on_gpus.py`.
"""

import importlib.util
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from transformer.config.options import Config, MeshConfig
from transformer.plan.costs import Instruction, Program, arrays_of
from transformer.plan.machines import machine
from transformer.plan.plan import Limits, compiled
from transformer.systems.presets import PRESETS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("jax_cuda13_plugin") is None,
        reason="the CUDA plugin is not installed: pip install '.[plan]'",
    ),
]
VOCABULARY, ROWS, LENGTH = 32_000, 16, 128
RECORDED = {"replicas": 677.0, "fsdp": 428.0}
"""Memory of a device in MB (JAX 0.12.0, CUDA plugin 0.12.0)."""


def products(program: Program) -> list[tuple[Instruction, list[str]]]:
    """The matrix products, and the types of their operands."""
    found = []
    for body in program.computations.values():
        for each in body.values():
            gemm = each.operation == "custom-call" and re.search("gemm|matmul", each.rest)
            if each.operation == "dot" or gemm:
                types = [arrays_of(body[name].shape)[0][0] for name in each.operands[:2] if name in body]
                found.append((each, types))
    return found


@pytest.mark.parametrize("layout", RECORDED)
def test_a_step(layout: str, tmp_path: Path) -> None:
    base, file = PRESETS["base"], tmp_path / "program.txt"
    config: Config = replace(
        base,
        model=replace(base.model, num_layers=1, vocab_size=VOCABULARY, dtype="bfloat16"),
        data=replace(base.data, batching="packed", max_length=LENGTH, batch_tokens=8 * ROWS * LENGTH),
        mesh=MeshConfig(fsdp=8 if layout == "fsdp" else 1),
    )
    found = compiled("step", config, machine("h100:8"), Limits(15), text=str(file))
    text = file.read_text()
    program = Program(text)
    # self-attention of both sides and attention to the source, in cuDNN's kernels
    calls = re.findall(r'custom_call_target="__cudnn\$fmha(\w*)"', text)
    assert sorted(name.endswith("Backward") for name in calls) == [False] * 3 + [True] * 3
    assert products(program)
    for each, types in products(program):
        if math.prod(arrays_of(each.shape)[0][1]) > 2**16:
            assert set(types) == {"bf16"}, (each.source, types)
    # no product for queries, keys and values together, of which they are copied
    assert not re.search(rf"bf16\[(1,)?{ROWS * LENGTH},1536\]", text)
    # the logits of all tokens never exist
    for body in program.computations.values():
        for each in body.values():
            for kind, axes in arrays_of(each.shape):
                assert math.prod(axes) < ROWS * LENGTH * VOCABULARY, (each.name, kind, axes)
    assert found["memory"]["total"] / 1e6 == pytest.approx(RECORDED[layout], rel=0.05)
