"""`python -m benchmarks.speed.gpu` without a GPU: small sizes on the CPU, what is refused, what a call
leaves, the table."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import jax
import pytest
import sentencepiece
from of_a_config import job_of
from tiers import combinations

from benchmarks.command import run
from benchmarks.speed import gpu, gpu_table
from benchmarks.speed.decoding import enlarged
from benchmarks.speed.gpu import time_limit
from benchmarks.speed.training import batch_of, case_of, network
from transformer import PRESETS

CARD = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def _platforms_are_restored(monkeypatch):
    """`main` sets them for the processes that it starts."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.fixture
def output(tmp_path):
    return tmp_path / "gpu.jsonl"


def call(*arguments, output):
    gpu.main(["--quick", "--rounds", "1", "--output", str(output), "--work", str(output.parent), *arguments])


def lines(output):
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.slow
def test_a_case_of_each_part_at_small_sizes(output, finished, monkeypatch, capsys):
    first = {part: dict([next(iter(cases.items()))]) for part, cases in gpu.PARTS.items()}
    monkeypatch.setattr(gpu, "PARTS", first)
    call("--model", str(finished), "--without", *gpu.PEERS, output=output)
    plan, train, decode = lines(output)
    assert plan["memory"] > 0
    assert (train["updates"], train["tokens"]) == (2, 4 * 128)
    (program,) = train["programs"]
    assert program["median"] > 0
    assert program["memory"] > 0
    assert decode["sentences"] == 4
    assert decode["programs"][0]["tokens"] >= 4
    assert "nothing is left" in capsys.readouterr().out


@pytest.mark.parametrize(("preset", "batch"), combinations(gpu.PRESETS, list(gpu.BATCHES)))
def test_what_is_timed_is_what_a_gpu_trains(preset, batch):
    job = job_of(gpu.config_of(preset, batch))
    config = job.config
    assert (config.model.dtype, config.data.batching) == ("bfloat16", "packed")
    case = case_of(preset, config)
    assert network(case) == config.model
    assert config.model == replace(PRESETS[preset].model, dtype="bfloat16", vocab_size=37_000)
    timed, trained = batch_of(case), job.global_batch
    assert jax.tree.map(lambda x: (x.shape, x.dtype), timed) == jax.tree.map(
        lambda x: (x.shape, x.dtype), trained
    )
    assert case.tokens == {"25,000 tokens": 195 * 128, "96 x 256 tokens": 96 * 256}[batch]


class Cases:
    """Three cases that take no time, of which one may fail."""

    def __init__(self):
        self.measured, self.error = [], {}

    def __call__(self, name, given):
        if name in self.error:
            raise self.error[name]
        self.measured.append(name)
        return {"memory": 1, "seconds": None}


@pytest.fixture
def cases(monkeypatch):
    measure = Cases()
    monkeypatch.setattr(gpu, "PARTS", {"plan": {name: partial(measure, name) for name in "abc"}})
    return measure


@pytest.mark.parametrize("stopped", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_a_call_that_is_stopped_loses_one_case(stopped, cases, output):
    cases.error["b"] = stopped
    with pytest.raises(type(stopped)):
        call(output=output)
    assert [line["case"] for line in lines(output)] == ["a"]
    with output.open("a") as file:
        file.write('{"part": "pl')  # a copy that was cut off
    cases.error.clear()
    call(output=output)
    assert [line["case"] for line in lines(output)] == ["a", "b", "c"]
    assert cases.measured == ["a", "b", "c"]


def test_no_case_begins_that_would_not_end_in_time(cases, output, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for name, minutes in {"a": 4, "b": 3, "c": 1}.items():

        def measure(given, name=name, minutes=minutes):
            now[0] += 60 * minutes
            return cases(name, given)

        gpu.PARTS["plan"][name] = measure
    call(output=output)
    assert cases.measured == ["a", "b"]  # after 7 minutes, another one of 4 would be too much
    assert "left: plan c. Repeat the call." in capsys.readouterr().out


def test_a_case_that_takes_longer_than_there_is_time(cases, output, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "time_limit", lambda seconds: time_limit(0.01))
    gpu.PARTS["plan"]["b"] = lambda given: time.sleep(3600)
    call(output=output)
    assert "left: plan b, plan c" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["gpu", "--quick", "--output", str(output), "--work", str(output.parent)])
    assert run("benchmarks.speed.gpu", gpu.main) == 2
    assert capsys.readouterr().err == (
        "benchmarks.speed.gpu: plan b: not done in 9 minutes. Compiled programs are kept: repeat the call, "
        "or raise --minutes\n"
    )
    assert [line["case"] for line in lines(output)] == ["a"]


@pytest.mark.parametrize(
    ("card", "missing", "arguments", "message"),
    [
        (None, [], [], "nvidia-smi finds no GPU: --part plan needs none, and --quick tries everything"),
        (None, [], ["--part", "train"], "nvidia-smi finds no GPU"),
        (CARD, ["torch"], ["--part", "train"], "torch not installed: pip install '.[bench]'; --without"),
        (None, ["ctranslate2", "torch"], ["--quick"], "ctranslate2, torch not installed"),
        (None, ["transformers"], ["--quick", "--without", "transformers"], "transformers not installed"),
        (None, ["jax_cuda12_plugin", "jax_cuda13_plugin"], ["--part", "plan"], "JAX has no CUDA here"),
        (CARD, [], ["--part", "train"], "JAX finds no GPU that it can use"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_measured(
    card, missing, arguments, message, output, monkeypatch, capsys
):
    def find(module):
        return None if module in missing else module  # all others are installed

    monkeypatch.setattr(gpu, "gpu", lambda *_: card)
    monkeypatch.setattr(gpu, "measure", pytest.fail)
    monkeypatch.setattr(gpu, "find_spec", find)
    monkeypatch.setattr(gpu, "ON_CARD", {"JAX_PLATFORMS": "none"})
    monkeypatch.setattr("importlib.util.find_spec", find)
    monkeypatch.setattr("sys.argv", ["gpu", *arguments, "--output", str(output)])
    assert run("benchmarks.speed.gpu", gpu.main) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"benchmarks.speed.gpu: {message}")
    assert not output.exists()


def trained(card):
    programs = [{"name": "transformer", "median": 0.5, "memory": 2**31}]
    programs += [{"name": "torch.compile", "median": 1.0, "memory": 2**30}]
    names = {"part": "train", "case": "base", "card": card, "about": {"torch": "2.13"}}
    return {**names, "updates": 10, "tokens": 25_000, "flops": 989e10, "programs": programs}


def test_the_table_of_a_known_card():
    plan = {
        "part": "plan",
        "case": "base",
        "card": "h100:1",
        "about": {},
        "seconds": 0.02,
        "memory": 3 * 2**30,
    }
    searched = [{"name": "ours", "median": 2.0, "tokens": 300, "identical": 1.0}]
    searched += [{"name": "CTranslate2", "median": 1.0, "tokens": 310, "identical": 0.9}]
    decode = {"part": "decode", "case": "1 at once", "card": CARD, "about": {}, "sentences": 32}
    text = gpu_table.markdown([plan, trained(CARD), decode | {"programs": searched}])
    # ten times 989e10 FLOPs in half a second are a fifth of the 989e12 a second of NVIDIA's data sheet
    assert "| base | transformer | 500,000 | 50.0 ms |  | 20.0% | 2.0 GiB | 20.0 ms, 3.0 GiB |" in text
    assert "| base | torch.compile | 250,000 | 100.0 ms | 2.00 | 10.0% | 1.0 GiB |  |" in text
    assert "| 1 at once | ours | 16.0 | 150 |  |  |" in text
    assert "| 1 at once | CTranslate2 | 32.0 | 310 | 0.50 | 90% |" in text
    assert text.count("**") == 2
    assert "does not know" not in text
    alone = gpu_table.markdown([plan])
    assert "| base |  |  |  |  |  |  | 20.0 ms, 3.0 GiB |" in alone
    assert "Nothing is measured yet" in alone


def test_an_unknown_card_has_no_estimate(cases, output, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "place_of", lambda card: None)
    monkeypatch.setattr(gpu, "SIMULATED", None)
    call(output=output)
    assert cases.measured == []
    assert "--plan does not know this card" in capsys.readouterr().out


@pytest.mark.parametrize("card", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"])
def test_an_unknown_card_has_no_share_of_the_peak(card):
    text = gpu_table.markdown([trained(card)])
    assert "does not know the peak of this card" in text
    assert "| base | transformer | 500,000 | 50.0 ms |  |  | 2.0 GiB |  |" in text


@pytest.mark.slow
def test_subwords_that_never_occur_change_no_sentence():
    config = PRESETS["quickstart"]
    config = replace(config, data=replace(config.data, built_in_size=500, vocab_size=400))
    one, other = (sentencepiece.SentencePieceProcessor() for _ in range(2))
    one.LoadFromSerializedProto(enlarged(config, 0))
    other.LoadFromSerializedProto(enlarged(config, 3000))
    assert (one.GetPieceSize(), other.GetPieceSize()) == (400, 3000)
    texts = ["Anna kann um drei Uhr ihren Bruder abholen.", "the unused words <never 1000> 语"]
    assert other.Encode(texts) == one.Encode(texts)


def test_the_command_as_it_is_typed(output):
    command = [sys.executable, "-m", "benchmarks.speed.gpu", "--table", "--output", str(output)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "nothing is measured yet\n"
