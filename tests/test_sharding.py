"""Training gives the same results in any layout of devices and processes.

Tolerances: float32 sums in another order differ by about 1e-7 of their terms. Adam's epsilon is 1e-4 here:
with 1e-9 the rounding error of an almost zero gradient would become a whole step. Parameters, which move up
to 0.2 in 20 updates of 0.01, agree to 1e-6, and losses to a relative 1e-6.
"""

import functools
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from configs import CONFIGS
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec
from of_a_config import declared_parameters, model_shapes
from run_command import on_devices
from small_run import small_config
from tiers import mostly_slow

from transformer import Config, Run, TransformerConfig, UserError
from transformer.config.options import MeshConfig, flatten
from transformer.config.training import TrainingConfig
from transformer.runs.config_json import to_json
from transformer.systems.registry import REGISTRY
from transformer.training.sharding import AXES, Shards, check_rows, layout_of

REPLICAS, MAPPED = (1, 1), (1, 1, "shard_map")
Layout = tuple[int, int, tuple[Any, ...]]  # processes, devices of each, the arguments of `MeshConfig`
LAYOUTS: dict[str, Layout] = {
    "8 replicas": (1, 8, REPLICAS),
    "mesh 2 x 2 x 2": (1, 8, (2, 2)),
    "mesh 1 x 8 x 1": (1, 8, (8, 1)),
    "8 replicas by shard_map": (1, 8, MAPPED),
    "2 processes x 2 replicas": (2, 2, REPLICAS),
    "2 processes x 2 replicas by shard_map": (2, 2, MAPPED),
    "2 processes, mesh 1 x 2 x 2": (2, 2, (2, 2)),
    "4 processes x 1 replica": (4, 1, REPLICAS),
}
QUICK = ("8 replicas", "mesh 2 x 2 x 2")  # the others are slow tests; test_hosts.py has two processes
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LAYOUTS]
Found = dict[str, Any]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def trained(layout: Layout, part: str, folder: Path) -> Found:
    """Trains in a layout and returns a part of `many_devices`, which must be equal in all processes."""
    processes, devices, cuts = layout
    tests = Path(__file__).parent
    environment = {
        **on_devices(devices),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(tests.parent), str(tests)]),
    }
    given: Found = {"part": part, "cuts": cuts}
    if processes > 1:
        given |= {"processes": processes, "port": free_port()}
    running = []
    for index in range(processes):
        mine = given | {"process": index, "output": str(folder / f"{index}.json")}
        log = open(folder / f"{index}.log", "w")  # noqa: SIM115 (the process inherits it)
        command = [sys.executable, str(tests / "many_devices.py"), json.dumps(mine)]
        running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        log.close()
    try:
        statuses = [process.wait(timeout=600) for process in running]
    finally:
        for process in running:
            process.kill()
    assert not any(statuses), [(folder / f"{index}.log").read_text() for index in range(processes)]
    found = [json.loads((folder / f"{index}.json").read_text()) for index in range(processes)]
    assert all(each == found[0] for each in found)
    return dict(found[0])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Found]:
    """Maps the name of a layout, and a part of `many_devices`, to its results."""

    @functools.cache
    def find(name: str, part: str) -> Found:
        return trained(LAYOUTS.get(name, (1, 1, REPLICAS)), part, tmp_path_factory.mktemp("layout"))

    return find


@pytest.mark.thorough
@pytest.mark.by_default("mesh 2 x 2 x 2")
@pytest.mark.parametrize("name", NAMES)
def test_every_layout_trains_alike(found: Callable[[str, str], Found], name: str) -> None:
    processes, devices, (fsdp, tensor, *_) = LAYOUTS[name]
    one, this = found("one device", "training"), found(name, "training")
    assert this["devices"] == processes * devices
    np.testing.assert_allclose(this["losses"], one["losses"], rtol=1e-6)
    np.testing.assert_allclose(this["validation"], one["validation"], rtol=1e-6)
    for ours, theirs, before in zip(this["params"], one["params"], one["began"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        assert np.abs(np.subtract(ours, before)).max() > 0.01  # the parameters changed
    assert this["bytes"] < 1.5 * one["bytes"] / (fsdp * tensor)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalization", ["batch", "power"])
def test_statistics_are_those_of_the_whole_batch(
    found: Callable[[str, str], Found], name: str, normalization: str
) -> None:
    one, this = (found(layout, "statistics")[normalization] for layout in ("one device", name))
    for ours, theirs in zip(this, one, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_with_dropout_a_layout_repeats_itself(found: Callable[[str, str], Found], name: str) -> None:
    this = found(name, "dropout")
    assert this["dropout"]["bits"] == this["again"]["bits"]
    assert this["dropout"]["losses"] == this["again"]["losses"]
    assert this["dropout"]["losses"] != this["losses"]


@pytest.mark.thorough
def test_pmap_is_shard_map(found: Callable[[str, str], Found]) -> None:
    """The same bits, also with dropout, and rows keep their memory."""
    this = found("8 replicas", "mapped")
    assert this["results"][0] == this["results"][1]
    assert this["results"][0][-1] == this["memory"]


@pytest.mark.slow
def test_every_replica_draws_its_own_random_numbers(found: Callable[[str, str], Found]) -> None:
    mean, square = found("8 replicas", "replicas")["draws"]
    assert square - mean**2 > 1e-3


@pytest.mark.slow
def test_gradients_that_are_sent_in_bfloat16(found: Callable[[str, str], Found]) -> None:
    this = found("8 replicas", "replicas")
    assert this["rounded"] != this["losses"]
    # a sum of eight rounds to 8 bits at most eight times; the losses fall by more than half
    np.testing.assert_allclose(this["rounded"], this["losses"], rtol=8 * 2**-8)
    one = found("one device", "replicas")
    assert one["rounded"] == one["losses"]  # nothing is sent


TRAIN = """
import sys
from transformer.runs.config_json import from_json
from transformer.trainer.train import train
train(from_json(open(sys.argv[1]).read()), sys.argv[2])
"""


@pytest.mark.slow
def test_a_run_goes_on_in_other_layouts(tmp_path: Path) -> None:
    """Trains on four replicas, then resumes on one device, a mesh, and two replicas. Batches and final
    parameters are those of a run on one device, and no device computes more at a time than at first."""
    small = small_config(tmp_path)
    optimizer = replace(small.optimizer, epsilon=1e-4)
    small = replace(small, model=replace(small.model, dropout=0.0), optimizer=optimizer)
    stages = [(4, (1, 1), 4), (1, (1, 1), 8), (4, (2, 2), 12), (2, (1, 1), 16)]
    for name, plan in {"one": [(1, (1, 1), 4)] * 4, "several": stages}.items():
        for (devices, cuts, _), (*_, steps) in zip(plan, stages, strict=True):
            training = replace(small.training, steps=steps)
            config = replace(small, training=training, mesh=MeshConfig(*cuts))
            (tmp_path / "config.json").write_text(to_json(config))
            command = [sys.executable, "-c", TRAIN, str(tmp_path / "config.json"), str(tmp_path / name)]
            done = subprocess.run(command, env=on_devices(devices), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    said = (tmp_path / "several" / "log.txt").read_text()
    assert re.findall(r"each update in (\d) slices, so", said) == ["4", "2", "2"]  # the mesh has two parts
    records = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "several")
    ]
    one, several = ([r for r in some if r["kind"] == "training"] for some in records)
    assert [r["weight"] for r in one] == [r["weight"] for r in several]  # the same batches
    np.testing.assert_allclose([r["loss"] for r in one], [r["loss"] for r in several], rtol=1e-5)
    runs = (Run(tmp_path / name) for name in ("one", "several"))
    weights = (jax.tree.leaves(run.variables(16)) for run in runs)
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.slow
def test_every_system_has_the_same_gradients_on_a_mesh() -> None:
    ran = subprocess.run(
        [sys.executable, Path(__file__).parent / "systems_on_a_mesh.py"],
        env=on_devices(8),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found.keys() == REGISTRY.keys()
    assert max(found.values()) < 1e-6, found


def test_what_is_cut_along_which_axis() -> None:
    model = TransformerConfig(vocab_size=64, num_layers=1, d_model=16, d_ff=32, num_heads=2)
    config = Config(model=model)
    shapes = model_shapes(config)["params"]
    layout = Shards(MeshConfig(), declared_parameters(config))
    layout.mesh = jax.sharding.AbstractMesh((2, 2, 2), ("data", "fsdp", "tensor"))
    found = layout.shardings({"params": shapes, "step": jax.ShapeDtypeStruct((), "int32")})
    decoder = found["params"]["decoder_0"]
    assert found["params"]["source_embedding"]["table"].spec == PartitionSpec("tensor", "fsdp")
    assert decoder["cross_attention"]["key"].spec == PartitionSpec("fsdp", "tensor", None)
    assert decoder["self_attention"]["out"].spec == PartitionSpec("tensor", None, "fsdp")
    assert decoder["feed_forward"]["inner"]["kernel"].spec == PartitionSpec("fsdp", "tensor")
    assert decoder["feed_forward"]["outer"]["kernel"].spec == PartitionSpec("tensor", "fsdp")
    assert decoder["feed_forward"]["outer"]["bias"].spec == PartitionSpec()
    assert found["step"].spec == PartitionSpec()
    odd = {"optimizer": {"source_embedding": {"table": jax.ShapeDtypeStruct((63, 16), "float32")}}}
    odd = layout.shardings(odd)["optimizer"]["source_embedding"]
    assert odd["table"].spec == PartitionSpec(None, "fsdp")


def networks() -> list[str]:
    """The first preset of those whose networks differ in sizes only."""
    first: dict[object, str] = {}
    for name, config in CONFIGS.items():
        options = flatten(config.model).items()
        kinds = [option for option in options if isinstance(option[1], bool | str | None)]
        first.setdefault((config.system, *kinds), name)
    return list(first.values())


@pytest.mark.thorough
@pytest.mark.parametrize("preset", mostly_slow(list(CONFIGS), networks()))
def test_every_parameter_of_every_preset_declares_its_sharding(preset: str) -> None:
    config = CONFIGS[preset]
    from_data = dict.fromkeys(config.model.FROM_DATA, 64)
    config = replace(config, model=replace(config.model, num_layers=1, **from_data))
    shapes = flatten_dict(model_shapes(config)["params"])
    declared = declared_parameters(config)
    assert declared.keys() == shapes.keys()
    for name, parameter in declared.items():
        assert len(parameter.names) == len(shapes[name].shape), name
        assert set(parameter.names) <= {*AXES, None}, name


def test_memory_that_the_devices_cannot_share_is_refused() -> None:
    check_rows({"memory": np.zeros((8, 16))}, 4)
    check_rows((), 3)
    with pytest.raises(UserError, match="memory for 8 rows, which do not divide equally by 3 shards: use"):
        check_rows({"memory": np.zeros((8, 16))}, 3)
    with pytest.raises(UserError, match="equally by 2 shards times --training.accumulate 8: use"):
        check_rows({"memory": np.zeros((8, 16))}, 2, 8)


def test_the_type_of_sums_is_for_replicas() -> None:
    with pytest.raises(UserError, match="--training.reduce-dtype bfloat16 is for replicas"):
        Config(mesh=MeshConfig(fsdp=2), training=TrainingConfig(reduce_dtype="bfloat16"))


def test_meshes_that_cannot_be() -> None:
    with pytest.raises(UserError, match=r"--mesh.fsdp 3 .* does not divide the 1 device"):
        layout_of(MeshConfig(fsdp=3))
    with pytest.raises(UserError, match="--mesh.tensor must be from 1"):
        MeshConfig(tensor=0)
    with pytest.raises(UserError, match="--mesh.replicas shard_map is for replicas: with --mesh.fsdp"):
        MeshConfig(fsdp=2, replicas="shard_map")
