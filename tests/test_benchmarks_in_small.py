"""Commands of `benchmarks` that no other file tests, at small sizes."""

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from served import translations
from small_run import WORDS
from small_translator import small_translator, stored

from benchmarks.quality import long_recordings, steering
from benchmarks.speed import (
    grid,
    latency,
    peer_server,
    serving,
)
from benchmarks.speed import input as input_speed
from benchmarks.studies import suspicion
from transformer import Config
from transformer.data.features.tokenizers import train_tokenizer
from transformer.interop.pretrained import import_model
from transformer.serve.app import server_app
from transformer.serve.limits import Limits
from transformer.training.plan.machines import Machine

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
def test_latency_of_single_requests(finished: Path, capsys: pytest.CaptureFixture) -> None:
    latency.main([str(finished), "--count", "4", "--rates", "100"])
    out = capsys.readouterr().out
    assert "100 a second, joined: median" in out
    assert "100 a second, one by one: median" in out


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
def test_suspicious_translations(numbers: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = written(tmp_path / "text", 20)
    suspicion.main([str(numbers), str(text), "--reference", str(text), "--lines", "12"])
    cells = re.findall(r"^\| (.+) \| ([\d.]+) \| ([\d.]+) \|$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, *_ in cells] == [*suspicion.BREAKS, "of another line", "references"]
    assert all(0 <= float(share) <= 100 for _, *shares in cells for share in shares)


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that transcribes with random parameters."""
    path = tmp_path_factory.mktemp("recogniser") / "run"
    import_model(WHISPER, path, "en")
    return path


@pytest.mark.slow
def test_long_recordings(recogniser: Path, capsys: pytest.CaptureFixture) -> None:
    long_recordings.main([str(recogniser), "--minutes", "1"])
    *_, row = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\| 1 min \| [\d.]+ % \| [\d.]+ % \| .*MB \|", row)


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
    counts = "--count 8 --clients 4 --small 4 --disconnects 8 --soak 3 --rate 8"
    command = [address, str(texts), "--reference", str(texts), *counts.split()]
    serving.main([*command, "--restart", f"echo restarted >> {restart}"])
    out = capsys.readouterr().out
    beginnings = ["4 clients: 8 in", "one by one: 2 in", "small requests: 4 in", "8 disconnects: all slots"]
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

    monkeypatch.setattr("transformer.training.plan.plan.compiled", compiled)
    grid.main(f"--search --models base --machines h100:1 --output {tmp_path}/grid.json".split())
    assert asked == [("search", 32), ("search", 256)]
    out = capsys.readouterr().out
    assert "base, h100:1, 256 sentences, sources to 24, 30 columns: a step 2.00 ms" in out
    assert len(json.loads((tmp_path / "grid.json").read_text())["rows"]) == 2
