"""What a job needs on other machines: reading compiled programs, what they cost, and `train.py --plan`."""

import contextlib
import importlib
import json
import math
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from configs import CONFIGS
from of_a_config import job_of, model_shapes
from tiers import mostly_slow

from transformer.commands.plan import rows
from transformer.commands.train import train_main
from transformer.config.options import MeshConfig
from transformer.plan.compiler import too_much
from transformer.plan.costs import Collective, Program, estimate, flops_of
from transformer.plan.jobs import input_rate, products, training_flops
from transformer.plan.machines import CHIPS, machine
from transformer.plan.plan import Limits, compiled, reason
from transformer.plan.plan import plan as planned
from transformer.runtime.errors import UserError
from transformer.systems.presets import PRESETS
from transformer.systems.registry import REGISTRY, find_system

PROGRAM = """HloModule jit_f, num_partitions=16

%body (p: f32[4]) -> f32[4] {
  %p = f32[8,16]{1,0} parameter(0)
  %a = f32[8,16]{1,0} all-reduce(%p), channel_id=1, replica_groups=[2,8]<=[16], to_apply=%add
}

%condition (c: s32[]) -> pred[] {
  %c = s32[] parameter(0)
  %n = s32[] constant(3)
  ROOT %less = pred[] compare(%c, %n), direction=LT
}

%unknown (c: s32[]) -> pred[] {
  %c = s32[] parameter(0)
  ROOT %less = pred[] compare(%c, %c), direction=GT
}

%all-reduce-scatter.1 (q: f32[32]) -> f32[4] {
  %q = f32[32]{0} parameter(0)
  %r = f32[32]{0} all-reduce(%q), channel_id=7, replica_groups=[2,8]<=[16], to_apply=%add
  ROOT %d = f32[4]{0} dynamic-slice(%r, %q)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %b = bf16[4]{0} parameter(1)
  %big = f32[80]{0} parameter(2)
  %w = f32[4]{0} while(%x), condition=%condition, body=%body
  %v = f32[4]{0} while(%x), condition=%unknown, body=%body
  %g = (bf16[4]{0}, bf16[8]{0}) all-gather-start(%b), replica_groups={{0,8},{1,9}}, dimensions={0}
  %s = f32[10]{0} reduce-scatter(%big), replica_groups=mesh['x'=2,'y'=8] {'y'}, dimensions={0}
  %o = ((f32[4]{0}), f32[4]{0}) all-reduce-start(%x), replica_groups=[4,4]<=[16], to_apply=%add
  %n = f32[4]{0} all-reduce(%x), replica_groups=[16,1]<=[16], to_apply=%add
  %f = f32[4]{0} fusion(%big), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %h = f32[4]{0} fusion(%big), kind=kCustom, calls=%all-reduce-scatter.1
}
"""
"""A loop whose length only its condition tells, one of unknown length, and one transfer in two fusions."""


def test_collectives_are_read_with_their_groups_and_counts():
    found = {each.kind: each for each in Program(PROGRAM).collectives(near=8) if each.group != 4}
    assert found.pop("reduce-scatter")
    assert found["all-reduce"] == Collective("all-reduce", 8, False, 32, (3 + 1) * 8 * 16 * 4, 4)
    assert found["all-gather"] == Collective("all-gather", 2, True, 16, 2 * 4 * 2, 1)
    assert len(found) == 2  # a group of one sends nothing
    begun = [each for each in Program(PROGRAM).collectives() if each.group == 4]
    assert begun == [Collective("all-reduce", 4, False, 32, 4 * 4, 1)]
    scattered = [each for each in Program(PROGRAM).collectives() if each.kind == "reduce-scatter"]
    assert scattered == [Collective("reduce-scatter", 8, False, 32, 80 * 4 + 32 * 4, 2)]


def test_loops_of_known_and_unknown_length():
    program = Program(PROGRAM)
    loops = [each for _, each, _ in program.running() if each.operation == "while"]
    assert [program.trips(each) for each in loops] == [3, None]
    assert program.step().times == {"body": 1}


def test_time_on_the_links():
    near = Collective("all-reduce", 8, False, 32, 8_000_000, 1)
    assert near.sent == 2 * 7 / 8 * 8e6
    assert near.seconds(450e9, 50e9, 8) == pytest.approx(near.sent / 450e9)
    # of 64 devices in 8 nodes only an eighth of the bytes leaves a node
    across = Collective("all-reduce", 64, True, 32, 8_000_000, 1)
    assert across.seconds(450e9, 50e9, 8) == pytest.approx(near.sent / 450e9 + 2 * 7 / 8 * 1e6 / 50e9)


def test_costs_are_the_compilers_or_from_flops_and_bytes():
    chip, text = (
        CHIPS["v5e"],
        """HloModule m
%sliced (p: f32[100,64], i: s32[]) -> f32[64] {
  %p = f32[100,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %d = f32[1,64]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,64}
}

ENTRY %main (a: bf16[8,32]) -> bf16[8,16] {
  %a = bf16[8,32]{1,0} parameter(0)
  %b = bf16[32,16]{1,0} parameter(1)
  %l = f32[100,64]{1,0} parameter(2)
  %i = s32[] parameter(3)
  %told = bf16[8,16]{1,0} fusion(%a), calls=%none, backend_config={"estimated_cycles":"1500"}
  %slice = f32[1,64]{1,0} fusion(%l, %i), kind=kLoop, calls=%sliced
  %copy = (f32[100,64]{1,0}, f32[100,64]{1,0:S(1)}, u32[]) copy-start(%l)
  ROOT %dot = bf16[8,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""",
    )
    program = Program(text)
    found = estimate(program, chip)
    seconds = {cost.instruction.name: cost.seconds for cost in found.costs}
    assert seconds["told"] == pytest.approx(1500 / chip.clock)
    assert seconds["slice"] == pytest.approx((2 * 64 * 4 + 4) / chip.bandwidth)  # not the whole array
    moved = 2 * (8 * 32 + 32 * 16 + 8 * 16)
    assert seconds["dot"] == pytest.approx(max(2 * 8 * 16 * 32 / chip.peak, moved / chip.bandwidth))
    assert found.copying == pytest.approx(100 * 64 * 4 / chip.bandwidth)
    assert found.estimated == pytest.approx((seconds["slice"] + seconds["dot"]) / sum(seconds.values()))
    around = program.computations[program.entry]
    assert flops_of(program, around, around["dot"]) == 2 * 8 * 16 * 32


def test_products_are_those_of_the_formula():
    """A scan's body counts once for each turn, a conditional once."""

    def function(x, w):
        x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=5)
        return jax.lax.cond(x.sum() > 0, lambda: x @ w, lambda: x)

    x, w = jnp.ones((3, 4)), jnp.ones((4, 4))
    assert products(jax.make_jaxpr(function)(x, w).jaxpr) == 6 * 2 * 3 * 4 * 4


def test_flops_of_the_base_model():
    """Six for each parameter and target token, and those of attention (section 3.2.1)."""
    base = PRESETS["base"]
    config = replace(
        base,
        model=replace(base.model, vocab_size=37_000),
        data=replace(base.data, max_length=128, batch_tokens=1280),
    )
    size = sum(x.size for x in jax.tree.leaves(model_shapes(config)["params"]))
    attention = 3 * 18 * 2 * 2 * 1280 * 128 * 512
    expected = 6 * 1280 * size + attention
    job = job_of(config)
    assert training_flops(job, job.objective(lambda path: None)) == pytest.approx(
        expected, rel=0.01
    )  # biases and norms are no products


def small(system):
    """A small config of a system, of one layer, for eight devices."""
    name = next(n for n in CONFIGS if CONFIGS[n].system == system and n.startswith(SMALL))
    preset = CONFIGS[name]
    data = replace(preset.data, batch_tokens=1024, max_length=32)
    return replace(preset, model=replace(preset.model, num_layers=1), data=data)


SMALL = (
    "quickstart",
    "tiny",
    "dialogue",
    "lstm",
    "convolutional",
    "rnn",
    "conv",
    "language-model",
    "masked-lm",
    "tagging",
    "speech",
    "synthesis",
    "captioning",
    "detection",
    "nonautoregressive",
)


@pytest.mark.slow
@pytest.mark.parametrize("system", mostly_slow(list(REGISTRY), ["transformer", "nonautoregressive"]))
def test_every_system_is_planned(system):
    config, place = small(system), machine("cpu:8")
    for what in ("step", "search"):
        if what == "search" and not find_system(system).search:
            continue
        if system == "nonautoregressive-synthesis":  # a job that could not begin
            with pytest.raises(UserError, match="--model.teacher RUN"):
                compiled(what, config, place, Limits(5))
            continue
        found = compiled(what, config, place, Limits(5))
        assert found["fits"]
        assert found["memory"]["total"] > 1e5
        if what == "step":
            size = sum(x.size for x in jax.tree.leaves(found_shapes(config))) * 4
            sent = sum(each["sent"] for each in found["collectives"])
            assert sent == pytest.approx(2 * 7 / 8 * size, rel=0.02)  # all gradients, once


def found_shapes(config):
    return model_shapes(find_system(config.system).task.without_corpus(config).config)["params"]


@pytest.mark.slow
def test_parameters_come_to_the_rows_and_not_the_rows_to_the_parameters():
    """With fsdp a device sends about as much as the parameters are: each is gathered for the forward pass
    and the backward pass, and its gradient is summed. Activations stay where they are."""
    config = replace(small("transformer"), mesh=MeshConfig(fsdp=8))
    config = replace(config, data=replace(config.data, batch_tokens=8 * 64 * 32))
    found = compiled("step", config, machine("cpu:8"), Limits(5))
    size = sum(x.size for x in jax.tree.leaves(found_shapes(config))) * 4
    assert sum(each["sent"] for each in found["collectives"]) < 5 * size
    assert found["memory"]["state and batch"] < 1.5 * 3 * size / 8


def a_step(seconds, memory=1e9, devices=8, **more):
    """What the compiler says of a step that takes so long, with and without overlap."""
    known = {"devices": devices, "device": "TPU", "dtype": "bfloat16", "batching": "packed", "packs": True}
    sizes = {"fits": memory < 4e9, "limit": 4e9, "memory": {"total": memory}, "flops": 1e12}
    ends = {"fastest": seconds[0], "slowest": seconds[1]}
    return {**known, **sizes, "seconds": ends, "collectives": [], "estimated": 0.0, "lane": None} | more


@pytest.mark.parametrize(
    ("options", "answers", "expected"),
    [
        # twice the tokens in 1.25 to 1.5 times the time; sharded, faster only if transfers overlap
        ({}, {"batch": (1.25, 1.5), "mesh": (0.5, 1.01)}, {"--data.batch-tokens 50000": 4 / 3}),
        ({}, {"batch": (2.0, 2.0), "mesh": (0.8, 0.5)}, {"--mesh.fsdp 8": 1.25}),
        ({}, {"batch": (1.99, 1.99), "mesh": (1.0, 1.0)}, {}),  # below what an estimate can tell
        (
            {"dtype": "float32"},
            {"batch": (2.0, 2.0), "mesh": (1.0, 1.0), "dtype": (0.5, 0.75)},
            {"--model.dtype bfloat16": 4 / 3},
        ),
    ],
)
def test_options_that_make_a_job_faster_are_named_with_their_gain(options, answers, expected, monkeypatch):
    base = PRESETS["base"]
    config, asked = replace(base, model=replace(base.model, **options)), []

    def answer(what, given, *_):
        if what == "search":
            return a_step((1, 1))
        changed = [
            name for name in ("data", "mesh", "model") if getattr(given, name) != getattr(config, name)
        ]
        asked.append(changed)
        key = {"data": "batch", "mesh": "mesh", "model": "dtype"}[changed[0]] if changed else None
        return a_step(answers[key] if key else (1.0, 1.0))

    monkeypatch.setattr("transformer.plan.plan.compiled", answer)
    monkeypatch.setattr("transformer.plan.jobs.input_rate", lambda config: 12_345_678.9)
    place = machine("v5e:2x4")
    found = planned(config, place, Limits(), lambda what: contextlib.nullcontext())
    assert {each["option"]: each["times"] for each in found["faster"]} == pytest.approx(expected)
    assert all(len(changed) <= 1 for changed in asked)  # one option at a time
    assert len(asked) <= 4  # the job, twice the batch, and at most two more
    table = dict(rows(config, found))
    assert table["batches, by one thread here"] == "12,345,679 tokens/s (measured)"
    assert ("faster (estimate)" in table) == bool(expected)
    assert all(option in table["faster (estimate)"] for option in expected)


@pytest.mark.parametrize("preset", ["base", "language-model", "speech", "synthesis", "dialogue-en"])
@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_input_is_measured_without_a_corpus(preset, batching):
    config = PRESETS[preset]
    if preset == "base" or batching == "buckets":
        config = replace(config, data=replace(config.data, batching=batching))
        assert input_rate(config, seconds=0.01) > 0


@pytest.mark.thorough
def test_the_command_prints_a_table_and_writes_json(tmp_path, call):
    sizes = ("--data.batch-tokens", "1024", "--data.max-length", "32", "--model.num-layers", "1")
    asked = "--plan", "cpu:2", "--plan-json", tmp_path / "p.json"
    status, printed, _ = call(train_main, "quickstart", *sizes, *asked)
    assert status == 0
    assert "Plan for cpu:2" in printed
    assert f"written to {tmp_path / 'p.json'}" in printed
    found = json.loads((tmp_path / "p.json").read_text())
    assert found["devices"] == 2
    assert found["layout"] == {"fsdp": 1, "tensor": 1}
    assert found["search"]["lane"]["slots"] == 64


def test_a_text_is_not_replaced_by_the_plan(tmp_path, refused):
    (text := tmp_path / "text").write_text("a dog\n")
    texts = ["--data.train-source", text, "--data.train-target", text]
    errors = refused(train_main, "quickstart", *texts, "--plan", "cpu:2", "--plan-json", text)
    assert "is the file of --data.train-source, which would be lost" in errors
    assert text.read_text() == "a dog\n"


@pytest.mark.thorough("arguments15-does not divide the 8 devices")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "v9:2x2"], "--plan v9:2x2: no accelerator 'v9'"),
        (["--plan", "2xv4:2x2x2"], "--plan 2xv4:2x2x2: only v5e, v5p and v6e have several slices here"),
        (["--plan", "2xh100:8"], "--plan 2xh100:8: give the number of all GPUs, as in h100:16"),
        (["--plan", "0xv5e:2x4"], "--plan 0xv5e:2x4: no accelerator '0xv5e'"),
        (["--plan", "v5e"], "--plan v5e: give the arrangement of the chips of a slice, as in v5e:2x4"),
        (["--plan", ""], "--plan : no accelerator ''"),
        (["--plan", "a100:8"], "did you mean h100? Give one with its shape: v5e:2x4"),
        (["--plan", "cpu:99992"], "--plan cpu:99992: at most 1024 devices"),
        (["--plan", "h100:12"], "--plan h100:12: give the number of devices: 1 to 8, or a multiple of 8"),
        (["--plan", "cpu:2", "--plan-minutes", "nan"], "--plan-minutes nan: must be positive"),
        (["--plan", "cpu:2", "--plan-gigabytes", "-1"], "--plan-gigabytes -1: must be positive"),
        (["--plan-minutes", "1"], "--plan-minutes needs --plan, such as --plan v5e:2x4"),
        (["--plan-json", "plan.json"], "--plan-json needs --plan"),
        (["--plan", "cpu:2", "--data.vocab-size", "1"], "--data.vocab-size must be from 5"),
        (["--plan", "cpu:2", "--plan-json", "/no/where"], "--plan-json /no/where: cannot be written"),
        (["--plan", "cpu:8", "--mesh.fsdp", "3"], "does not divide the 8 devices"),
        (["--plan", "cpu:2", "--plan-minutes", "0.01"], "takes more than 0.01 minutes: raise --plan-minutes"),
        (["--plan", "cpu:2", "--plan-gigabytes", "0.1"], "takes more than 0.1 GB of memory here: raise"),
    ],
)
def test_what_is_refused(arguments, message, refused):
    errors = refused(train_main, "quickstart", *arguments)
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr("transformer.plan.machines.find_spec", lambda name: None)
    monkeypatch.setattr(
        "jax.experimental.topologies.get_topology_desc", lambda **_: (_ for _ in ()).throw(RuntimeError)
    )
    with pytest.raises(UserError, match="compiler is missing: pip install '..plan.', or 'jax.tpu.'"):
        machine("v5e:2x4").devices()
    assert math.isnan(CHIPS["cpu"].peak)


def test_where_pip_has_put_cudnn_is_where_the_compiler_looks(tmp_path, monkeypatch):
    """The folder that a wheel of NVIDIA's makes, before what the user has set."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/own")
    folder = tmp_path / "nvidia/cudnn/lib"
    folder.mkdir(parents=True)
    assert machine("h200:1").libraries["LD_LIBRARY_PATH"].split(":")[0] == str(folder)
    assert machine("h200:1").libraries["LD_LIBRARY_PATH"].split(":")[-1] == "/own"
    assert machine("v5e:2x4").libraries == machine("cpu:2").libraries == {}
    environment = {}

    def started(*_, env, **__):
        environment.update(env)
        raise OSError("stopped here")

    monkeypatch.setattr("transformer.plan.plan.subprocess.Popen", started)
    with pytest.raises(OSError, match="stopped here"):
        compiled("step", PRESETS["tiny"], machine("h200:1"), Limits(1))
    assert environment["LD_LIBRARY_PATH"].startswith(str(folder))


def test_a_compiler_without_cudnn_says_where_to_get_it(monkeypatch):
    failing = "import sys; sys.exit('RuntimeError: cuDNN not found.')"
    ordinary = subprocess.Popen

    def started(command, **options):
        return ordinary([sys.executable, "-c", failing], **options)

    monkeypatch.setattr("transformer.plan.plan.subprocess.Popen", started)
    advice = r"pip install '.\[plan\]', or nvidia-cudnn-cu13; .* LD_LIBRARY_PATH$"
    for name, remedy in (("h200:1", rf"\. .*{advice}"), ("cpu:2", "$")):
        with pytest.raises(UserError, match=f"the compiler failed: RuntimeError: cuDNN not found{remedy}"):
            compiled("step", PRESETS["tiny"], machine(name), Limits(1))


def test_a_run_that_is_not_there(refused):
    errors = refused(train_main, "--run-dir", "runs/mistyped", "--plan", "cpu:2")
    assert "--run-dir runs/mistyped: there is no run to plan; name a preset" in errors


def test_the_reason_of_a_failure_is_its_message_and_not_the_note_of_jax():
    program = "import jax; jax.jit(lambda x: 1 / 0)(1)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = ended.stderr.strip().splitlines()
    assert lines[-1].startswith("For simplicity, JAX has removed")  # otherwise nothing is tested here
    assert reason(lines) == "ZeroDivisionError: division by zero"
    assert reason(["RESOURCE_EXHAUSTED: E1001", "Ran out of vmem", "See https://a.b/e"]) == "Ran out of vmem"
    assert reason([]) == "it printed nothing"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm.",
            (20.5, 15.75),
        ),
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
            "required for HLO temporaries (16.68G) exceeds available HBM (15.75G). HLO module: jit_advance.",
            (16.68, 15.75),
        ),
        ("INVALID_ARGUMENT: a message (16.68G) of another kind", None),
    ],
)
def test_a_compiler_says_that_a_program_does_not_fit(message, expected):
    """The second message is that of libtpu 0.0.50.1."""
    assert too_much(message) == (expected and tuple(size * 2**30 for size in expected))
