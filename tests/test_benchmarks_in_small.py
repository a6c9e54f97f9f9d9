"""Commands of `benchmarks` that no other file tests, at small sizes."""

import asyncio
import itertools
import json
import pickle
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import soundfile
from served import translations
from small_run import WORDS
from small_translator import small_translator, stored

from benchmarks.measure import Contestant, Measurement
from benchmarks.quality import endurance, live, long_recordings, steering, student, whisper
from benchmarks.speed import decoding, grid, lengths, peer_server, pretrained, rows, serving, training
from benchmarks.speed import input as input_speed
from benchmarks.studies import methods, systems
from transformer import Config
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.interop.pretrained import import_model
from transformer.plan.machines import Machine
from transformer.serve.app import server_app
from transformer.serve.services.limits import Limits

WHISPER = Path(__file__).parent / "data" / "whisper"
NUMBERS = [str(number) for number in range(100)]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with as many words as the widest search needs, and random parameters."""
    translator = small_translator(words=NUMBERS, tokenizer=("whitespace", 104))
    return stored(translator, tmp_path_factory.mktemp("numbers") / "run")


def written(path: Path, count: int) -> Path:
    """A file of sentences of four numbers."""
    path.write_text("".join(" ".join(NUMBERS[line : line + 4]) + "\n" for line in range(count)))
    return path


def measured_here(contestants: Sequence[Contestant], rounds: int, warm_up: int = 0) -> list[Measurement]:
    """`side_by_side` without a process for each, which takes seconds to start. What goes to it and comes back
    is pickled as for one."""
    found = []
    for each in contestants:
        make, options = pickle.loads(pickle.dumps((each.make, each.options)))
        work, start = make(**options), time.perf_counter()
        output = pickle.loads(pickle.dumps(work()))
        seconds = [time.perf_counter() - start] * rounds
        found.append(Measurement(each.name, seconds, output, 2**20, seconds))
    return found


@pytest.mark.slow
def test_speed_of_the_input(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(input_speed, "preset", lambda name: config)
    input_speed.main(["small", "--batches", "3", "--batch-tokens", "128"])
    out = capsys.readouterr().out
    for stage in ("records read", "examples encoded", "plan of all", "batches gathered", "in training"):
        assert re.search(rf"^{stage}: [\d,]+ tokens a CPU second", out, re.MULTILINE), stage


@pytest.mark.slow
def test_what_steering_brings(numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = written(tmp_path / "text", 4)
    steering.main(f"{numbers} {numbers} --source {text} --reference {text} --rounds 1".split())
    out = capsys.readouterr().out
    beginnings = ["beam 8: ", "beam 8 with terms: ", "beam 8, terms appended: ", "  CPU seconds for 4"]
    beginnings += ["minimum Bayes risk, beam 32: ", "beam 8, coverage penalty 0.2: "]
    beginnings += ["ensemble, mean of logarithms: ", "the other alone, beam 8: ", "completed, samples"]
    for beginning in beginnings:
        assert f"\n{beginning}" in f"\n{out}", beginning
    plain, other = (re.search(rf"^{name}: (.*)", out, re.MULTILINE) for name in ("beam 8", "the other.*8"))
    assert plain
    assert other
    assert plain[1] == other[1]  # the same run


@pytest.mark.slow
def test_systems_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    """The teacher and one parallel decoder, in two steps as with `--only` in two processes."""
    corpus, work = tmp_path / "corpus", tmp_path / "work"
    corpus.mkdir()
    for option, file in systems.text_files(corpus).items():
        shutil.copyfile(getattr(config.data, option), file)
    monkeypatch.setitem(systems.PRESETS, "tiny", config)
    arguments = f"{work} --corpus {corpus} --updates 2 --students 1 --rounds 1".split()
    parallel = f"masked-{systems.DISTILLED}"
    systems.main([*arguments, "--only", systems.TEACHER, parallel])
    systems.main([*arguments, "--table"])
    found = json.loads((work / "systems.json").read_text())["rows"]
    assert [row["run"] for row in found] == [systems.TEACHER] * 2 + [parallel] * 4
    assert [row["updates"] for row in found] == [2] * 2 + [1] * 4


@pytest.mark.slow
def test_methods_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(methods.PRESETS, "quickstart", config)
    ordinary = methods.Plan.config

    def small(plan: methods.Plan, name: str, seed: int) -> Config:
        return replace(ordinary(plan, name, seed), data=config.data)

    monkeypatch.setattr(methods.Plan, "config", small)
    monkeypatch.setattr(methods, "SENTENCES", 4)
    monkeypatch.setattr(methods, "side_by_side", measured_here)
    work = tmp_path / "work"
    methods.main(f"{work} --updates 4 --seeds 1 --rounds 1 --only plain rdrop".split())
    found = json.loads((work / "methods.json").read_text())["rows"]
    assert [row["name"] for row in found] == ["plain", "rdrop"]
    assert all(row["update"] > 0 for row in found)
    assert "| rdrop |" in (work / "methods.md").read_text()


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that transcribes with random parameters."""
    path = tmp_path_factory.mktemp("recogniser") / "run"
    import_model(WHISPER, path, "en")
    return path


@pytest.mark.slow
def test_recognition_of_sound_that_arrives(recogniser: Path, tmp_path: Path) -> None:
    live.main([str(recogniser), "--output", str(tmp_path / "live"), "--minutes", "1", "--steps", "8"])
    found = json.loads((tmp_path / "live.json").read_text())["rows"]
    assert found.keys() == {"whole", "8"}
    assert (tmp_path / "live.png").exists()


@pytest.mark.slow
def test_long_recordings(recogniser: Path, capsys: pytest.CaptureFixture) -> None:
    long_recordings.main([str(recogniser), "--minutes", "1"])
    *_, row = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\| 1 min \| [\d.]+ % \| [\d.]+ % \| .*MB \|", row)


@pytest.mark.slow
def test_endurance_is_written(tmp_path: Path) -> None:
    endurance.main([str(tmp_path / "work"), "--steps", "4", "--lines", "200"])
    memory = json.loads((tmp_path / "work/endurance.json").read_text())["memory"]
    assert memory.keys() == {"4 updates", "200 lines"}
    assert (tmp_path / "work/endurance.png").exists()


# Servers


@pytest.fixture
def address() -> Iterator[str]:
    """That of a server."""
    import uvicorn

    app = server_app([translations()], Limits(), "")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not (server.started and app.state.readiness.is_ready):
            time.sleep(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.slow
def test_a_server_under_load(address: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    texts, restart = tmp_path / "texts", tmp_path / "restarted"
    texts.write_text("".join(f"{word} {other}\n" for word in WORDS for other in WORDS[:2]))
    counts = "--count 8 --clients 4 --rates 50 --small 4 --disconnects 8 --soak 3 --rate 8"
    command = [address, str(texts), "--reference", str(texts), *counts.split()]
    serving.main([*command, "--restart", f"echo restarted >> {restart}"])
    out = capsys.readouterr().out
    beginnings = ["4 clients: 8 in", "one by one: 2 in", "50 a second, joined: p50", "50 a second, one by"]
    beginnings += ["small requests: 4 in", "8 disconnects: all slots"]
    for beginning in [*beginnings, "a slow reader has all", "deep: [4", "soak of 3 s, 2 restarts: "]:
        assert f"\n{beginning}" in f"\n{out}", beginning
    assert restart.read_text().count("restarted") == 2


class Echo:
    """In place of CTranslate2's translator: it says what it is asked."""

    def __init__(self, folder: str, intra_threads: int) -> None:
        assert (Path(folder) / "source.spm").exists()
        assert intra_threads == 1

    def translate_batch(self, rows: list[list[str]], beam_size: int) -> list[SimpleNamespace]:
        assert beam_size == 5
        assert {row[-1] for row in rows} == {"</s>"}
        return [SimpleNamespace(hypotheses=[row[:-1]]) for row in rows]


def test_the_server_to_compare_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers as the client of the comparison reads it. Its model is a stand-in."""
    lines = ["ein Haus am See", "das Haus ist rot", "der See ist tief"]
    tokenizer = train_tokenizer(lines, "bpe", 280)
    for side in "source", "target":
        tokenizer.save(tmp_path / f"{side}.spm")
    started: dict[str, Any] = {}
    monkeypatch.setattr(peer_server, "needs", lambda *names: None)
    monkeypatch.setitem(sys.modules, "ctranslate2", SimpleNamespace(Translator=Echo))
    monkeypatch.setattr("uvicorn.run", lambda app, **options: started.update(options, app=app))
    peer_server.main(f"{tmp_path} --port 8002 --beam-size 5 --threads 1".split())
    assert started["port"] == 8002

    async def answers() -> list[tuple[str, float]]:
        client, app = serving.Client("http://peer", 2), started["app"]
        client.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://peer")
        async with app.router.lifespan_context(app):
            return await asyncio.gather(*map(client.ask, lines))

    assert [text for text, _ in asyncio.run(answers())] == lines


# Estimates of compilers


@pytest.mark.slow
def test_the_grid_of_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """On a machine whose compiler is everywhere."""
    base = grid.PRESETS["base"]
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
    monkeypatch.setitem(grid.PRESETS, "base", replace(base, model=replace(base.model, **sizes)))
    monkeypatch.setattr(grid, "NODE", 2)
    command = f"--output {tmp_path}/grid.json --models base --machines cpu:2 --rows 2".split()
    for _ in range(2):  # the second compiles nothing
        grid.main(command)
    found = json.loads((tmp_path / "grid.json").read_text())["rows"]
    assert [row["layout"] for row in found] == list(grid.LAYOUTS)
    assert all(row["step"]["memory"]["total"] > 0 for row in found)
    assert capsys.readouterr().out.count("base | cpu:2 | fsdp | ") == 1


@pytest.mark.slow
def test_long_inputs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lengths.main(f"--output {tmp_path}/lengths.json --lengths 300 --rounds 1 --width 16".split())
    assert len(json.loads((tmp_path / "lengths.json").read_text())["rows"]) == 4
    assert "sinusoidal" in capsys.readouterr().out


def test_the_grid_of_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """With what a compiler of an accelerator says."""
    asked = []

    def compiled(what: str, config: Config, where: Machine, limits: Any) -> Any:
        asked.append((what, config.decoding.rows))
        lane = {"slots": 32, "columns": 30, "inputs": 24}
        seconds = {"computation": 2e-3, "copying": 1e-4}
        return {"lane": lane, "seconds": seconds, "memory": {"total": 2e9}}

    monkeypatch.setattr("transformer.plan.plan.compiled", compiled)
    grid.main(f"--search --models base --machines h100:1 --output {tmp_path}/grid.json".split())
    assert asked == [("search", 32), ("search", 256)]
    out = capsys.readouterr().out
    assert "base, h100:1, 256 sentences, sources to 24, 30 columns: a step 2.00 ms" in out
    assert len(json.loads((tmp_path / "grid.json").read_text())["rows"]) == 2


@pytest.mark.slow
def test_plans_of_pretrained_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(pretrained, "config_of", partial(pretrained.config_of, quick=True))
    pretrained.main(f"--output {tmp_path}/plan.json --models T5-base --machines cpu:1".split())
    found = json.loads((tmp_path / "plan.json").read_text())["rows"]
    assert [row["what"] for row in found] == list(pretrained.KINDS)
    assert not [row for row in found if "failed" in row["found"]]
    assert capsys.readouterr().out.count("| T5-base | cpu:1 |") == 2 * len(found)


# Beside other programs, which the extra for tests does not have


@pytest.mark.slow
def test_training_beside_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the command compares with it")
    monkeypatch.setattr(training, "side_by_side", measured_here)
    training.main(f"tiny --quick --rounds 1 --output {tmp_path}/training".split())
    found = json.loads((tmp_path / "training.json").read_text())["rows"]
    assert [row["name"] for row in found] == ["transformer", "torch eager", "torch.compile"]


@pytest.mark.slow
def test_decoding_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "torch", "transformers", "ctranslate2":
        pytest.importorskip(name, reason="the command compares with it")
    monkeypatch.setattr(decoding, "side_by_side", measured_here)
    ordinary = decoding.prepared
    monkeypatch.setattr(decoding, "prepared", lambda given, count: ordinary(given, min(count, 4)))
    decoding.main(f"--quick --rounds 1 --work {tmp_path} --output {tmp_path}/decoding".split())
    found = json.loads((tmp_path / "decoding.json").read_text())["rows"]
    assert len({row["section"] for row in found}) == len(decoding.SECTIONS)
    assert (tmp_path / "decoding.png").exists()


@pytest.mark.slow
def test_few_rows_beside_ctranslate2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2", reason="the command compares with it")
    monkeypatch.setattr(rows, "side_by_side", measured_here)
    rows.main(f"--quick --sentences 1 --rounds 1 --output {tmp_path}/rows.json".split())
    found = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["sentences"] for row in found] == [1] * 4
    assert [row["identical"] for row in found[:2]] == [1, 1]  # the same weights in float32


@pytest.mark.slow
def test_a_student_beside_ctranslate2(
    untrained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2", reason="the command compares with it")
    monkeypatch.setattr(student, "side_by_side", measured_here)
    text = tmp_path / "text"
    text.write_text("ein Haus am See\nder See ist rot\n")
    command = f"{untrained_run} {untrained_run} --source {text} --reference {text} --rounds 1"
    student.main([*command.split(), "--output", str(tmp_path / "student.json")])
    found = json.loads((tmp_path / "student.json").read_text())["rows"]
    assert [row["name"] for row in found[::2]] == ["student", "teacher", student.PEER]
    assert found[0]["bleu"] == found[2]["bleu"]  # the same run


@pytest.fixture
def converted(tmp_path: Path) -> str:
    pytest.importorskip("ctranslate2", reason="the command compares with it")
    pytest.importorskip("transformers", reason="CTranslate2 converts from it")
    from ctranslate2.converters import TransformersConverter

    files = ["tokenizer.json", "preprocessor_config.json"]
    TransformersConverter(str(WHISPER), copy_files=files).convert(str(tmp_path / "converted"))
    return str(tmp_path / "converted")


@pytest.mark.slow
def test_whisper_beside_ctranslate2(
    converted: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    for index, clip in enumerate(itertools.islice(long_recordings.built_in(), 2)):
        soundfile.write(sounds / f"{index}.wav", clip.wave, long_recordings.RATE)
    monkeypatch.setattr(whisper, "LONGEST", 24)  # this small model has 32 positions, and writes to the end
    compared, ordinary = [], whisper.agreement
    monkeypatch.setattr(whisper, "agreement", lambda *found: compared.append(found) or ordinary(*found))
    whisper.main([str(sounds), "--weights", converted, "--count", "2", "--beams", "1"])
    out = capsys.readouterr().out
    assert "| greedy | " in out
    assert "| greedy, with times | " in out
    for ours, theirs in compared:  # which ends at half of the length, as OpenAI's does
        assert [one[0].ids[: len(other.ids)] for one, other in zip(ours, theirs, strict=True)] == [
            other.ids for other in theirs
        ]


@pytest.mark.slow
def test_silence_beside_faster_whisper(
    converted: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faster_whisper", reason="the command compares with it")
    segments = [SimpleNamespace(text=" You")]
    monkeypatch.setattr("faster_whisper.WhisperModel.transcribe", lambda *_, **__: (segments, None))
    whisper.main(["--silence", "--weights", converted, "--only", "digital silence"])
    assert "| digital silence |  | You |" in capsys.readouterr().out


@pytest.mark.thorough
def test_text_files_in_shards(capsys: pytest.CaptureFixture[str]) -> None:
    of_shards = ["--shard-pairs", "150", "--workers", "1", "--vocab-size", "400", "--whole", "--shuffle"]
    input_speed.main(["--pairs", "600", *of_shards])
    *_, in_shards, apart, whole, _ = capsys.readouterr().out.splitlines()
    assert in_shards.startswith("| 600 | 1 |")
    assert whole.startswith("| 600 | whole |")
    assert "of the text apart" in apart
