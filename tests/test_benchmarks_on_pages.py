"""Commands of `benchmarks` that a page names and that no other file tests, at small sizes."""

import importlib
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from served import translations
from small_run import WORDS
from test_benchmarks import ROOT

from benchmarks.__main__ import GROUPS, commands
from benchmarks.quality import live, steering
from benchmarks.speed import input as input_speed
from benchmarks.speed import latency, peer_server, serving, start
from benchmarks.studies import simultaneous, suspicion, systems
from transformer import Config
from transformer.interop.pretrained import import_model
from transformer.runs.config_json import to_json
from transformer.serve.app import server_app
from transformer.serve.limits import Limits

WHISPER = Path(__file__).parent / "data" / "whisper"


def test_every_command_on_a_page_is_called_by_a_test() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"-m\s+benchmarks\.(\w+\.\w+)", text))
    assert named <= {name.removeprefix("benchmarks.") for group in GROUPS for name in commands(group)}
    tested = set[str]()
    for path in Path(__file__).parent.glob("test_*.py"):
        tests = path.read_text(encoding="utf-8")
        for group, several, one in re.findall(
            r"from benchmarks\.(\w+) import (?:\(([\w\s,]+)\)|([\w ,]+))", tests
        ):
            for imported in (several or one).split(","):
                name, _, alias = imported.strip().partition(" as ")
                if re.search(rf"\b{alias or name}\.(main|started)\(", tests):
                    tested.add(f"{group}.{name}")
        for group, name, _, alias in re.findall(
            r"from benchmarks\.(\w+)\.(\w+) import .*\bmain( as (\w+))?", tests
        ):
            if re.search(rf"\b{alias or 'main'}\(", tests):
                tested.add(f"{group}.{name}")
        tested |= set(re.findall(r"benchmarks\.(\w+\.\w+)", tests))  # as a process
    assert sorted(named - tested) == []


@pytest.mark.parametrize("group", GROUPS)
def test_every_command_finds_what_it_imports(group: str) -> None:
    for name in commands(group):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(("transformer", "benchmarks")):
                raise  # the others are programs that some compare with


def listed(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True
    )


def test_the_list_of_commands() -> None:
    assert listed().returncode == listed("--help").returncode == 0
    wrong = listed("nosuch")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "benchmarks: 'nosuch': there is no such argument; python -m benchmarks lists all\n"
    for name in ("start", "speed.start", "benchmarks.speed.start"):
        assert "run it with python -m benchmarks.speed.start" in listed(name).stderr
    reader = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m benchmarks | head -n 1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (reader.returncode, reader.stderr, reader.stdout.count("\n")) == (0, "", 1)


STARTED = """
import sys
from pathlib import Path
from benchmarks.speed import start
from transformer.runs.config_json import from_json
start.preset = lambda name: from_json(Path(sys.argv[1]).read_text())
start.started("small", Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_stages_of_a_start(config: Config, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(to_json(config))
    for names in (start.NAMES, [name for name in start.NAMES if name != "examples"]):  # the second is resumed
        subprocess.run(
            [sys.executable, "-c", STARTED, tmp_path / "config.json", tmp_path], cwd=ROOT, check=True
        )
        stages = json.loads((tmp_path / "stages.json").read_text())
        assert {*names, "rest", "all"} <= stages.keys()
        assert all(len(times) == 2 for times in stages.values())
        assert stages["first update"][1] > 0
    with pytest.raises(SystemExit):
        start.main(["--nothing"])


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
def test_what_steering_brings(finished: Path, config: Any, capsys: pytest.CaptureFixture) -> None:
    source, reference = config.data.test_source, config.data.test_target
    steering.main(
        f"{finished} {finished} --source {source} --reference {reference} --count 4 --rounds 1".split()
    )
    out = capsys.readouterr().out
    for way in ("beam 4", "minimum Bayes risk, beam 32", "coverage penalty", "ensemble, mean of logarithms"):
        assert way in out


@pytest.mark.slow
def test_suspicious_translations(finished: Path, config: Any, capsys: pytest.CaptureFixture) -> None:
    source, reference = config.data.test_source, config.data.test_target
    suspicion.main([str(finished), str(source), "--reference", str(reference), "--lines", "12"])
    out = capsys.readouterr().out
    assert "%" in out


@pytest.mark.slow
def test_simultaneous_translation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "cache"))
    options = "--data.built-in-size 600 --data.vocab-size 200 --model.d-model 16 --model.d-ff 32"
    options += " --training.steps 2 --training.evaluate-every 2 --training.evaluate-sentences 4"
    simultaneous.main([str(tmp_path / "work"), "quickstart", "--wait", "2", *options.split()])
    rows = json.loads((tmp_path / "work/simultaneous.json").read_text())["rows"]
    assert rows.keys() == {"wait-2", "whole sentence"}


@pytest.mark.slow
def test_systems_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The teacher and one student of each kind of search, in two processes as on its page."""
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(systems, "BUILT_IN", 600)
    arguments = [str(tmp_path / "work"), "--updates", "2", "--students", "1", "--rounds", "1"]
    systems.main([*arguments, "--only", systems.TEACHER, "masked"])
    systems.main([*arguments, "--table"])
    rows = json.loads((tmp_path / "work/systems.json").read_text())["rows"]
    assert [row["run"] for row in rows].count("masked") == 4
    assert {row["run"] for row in rows} == {systems.TEACHER, "masked"}


@pytest.mark.slow
def test_recognition_of_sound_that_arrives(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("jiwer")
    pytest.importorskip("soundfile")
    import_model(WHISPER, tmp_path / "whisper", "en")
    live.main(
        [str(tmp_path / "whisper"), "--output", str(tmp_path / "live"), "--minutes", "1", "--steps", "8"]
    )
    rows = json.loads((tmp_path / "live.json").read_text())["rows"]
    assert rows.keys() == {"whole", "8"}


@pytest.mark.slow
def test_a_server_under_load(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    (tmp_path / "texts").write_text("".join(f"{word} {other}\n" for word in WORDS for other in WORDS[:2]))
    settings = uvicorn.Config(server_app([translations()], Limits(), ""), port=0, log_level="warning")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started or not settings.loaded_app.state.readiness.is_ready:
            time.sleep(0.1)
        port = server.servers[0].sockets[0].getsockname()[1]
        serving.main(
            f"http://127.0.0.1:{port} {tmp_path}/texts --count 8 --clients 4 --small 4 --soak 1".split()
        )
    finally:
        server.should_exit = True
        thread.join()
    out = capsys.readouterr().out
    assert "4 clients" in out
    assert "one by one" in out


def test_the_server_to_compare_with_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        peer_server.main(["--help"])
    assert ended.value.code == 0
