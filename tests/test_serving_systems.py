"""Every system of the registry is served or refused; the command itself, from the first line to SIGTERM."""

import asyncio
import io
import logging
import os
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from invented_sound import bad_recordings
from served import asked
from small_run import WORDS

from transformer import UserError
from transformer.data.signals import waveforms
from transformer.decoding.service.lanes import Preparation
from transformer.serve import server as server_module
from transformer.serve.answers import Answers, Work
from transformer.serve.metrics import Readiness
from transformer.serve.services.limits import ALLOWED, OF_RECORDS, Limits
from transformer.serve.services.service import Service, service_of
from transformer.systems.registry import REGISTRY

STORED = Path(__file__).parent / "data" / "older_runs"
NOT_SERVED = {"synthesis", "nonautoregressive-synthesis", "masked-lm"}
NO_TRANSLATORS = {"speech", "language-model", "captioning", "detection", "tagging"}
ANSWERED = "Stopped: all that was begun is answered\n"
TEXTS = [f"{WORDS[0]} {WORDS[1]}", WORDS[2]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    return {name: one_run(name, folder) for name in REGISTRY}


def one_run(name: str, folder: Path) -> Path:
    """A small run of a system, in a folder."""
    with zipfile.ZipFile(STORED / f"{name}.zip") as archive:
        members = [member for member in archive.namelist() if member.startswith(f"{name}/run/")]
        archive.extractall(folder, members)
    return folder / name / "run"


def served(path: Path, name: str, int8: bool = False, allowed: tuple[str, ...] = ALLOWED) -> Service:
    kind = service_of(path)
    return kind(name, kind.loads.load(path, int8=int8), allowed, Limits())


def recording(seconds: int = 1) -> bytes:
    """A second of noise, as a WAV file."""
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile: pip install '.[speech]'")
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).normal(0, 0.1, 8000 * seconds), 8000, format="WAV")
    return file.getvalue()


@pytest.mark.by_default("True-convolutional")
@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - NOT_SERVED - NO_TRANSLATORS))
@pytest.mark.parametrize("int8", [False, True])
def test_a_system_that_translates_is_served(runs, name, int8):
    service = served(runs[name], name, int8)
    with asked(service) as client:
        answer = client.post("/translate", json={"text": TEXTS})
        assert answer.status_code == 200, answer.text
        outputs = [output["hypotheses"][0]["text"] for output in answer.json()["outputs"]]
        assert outputs == service.decoder.translate(TEXTS)
        scored = client.post("/score", json={"text": TEXTS[0], "target": TEXTS[1]})
        assert (scored.status_code == 200) == (service.decoder.system.scores is not None)


@pytest.mark.thorough("fast-autoregressive", "recurrent")
@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - NOT_SERVED))
def test_what_a_server_prepares_are_arguments_of_the_decoder(runs, name, monkeypatch):
    """A server whose preparation fails is never ready."""
    service = served(runs[name], name, allowed=(*ALLOWED, *OF_RECORDS))
    prepared = list[Any]()

    def prepare(*arguments: Any) -> Preparation:
        prepared.append(arguments)
        return Preparation(())

    monkeypatch.setattr(service.decoder, "_preparation", prepare)
    service.preparation()
    has_alignments = any(extras.alignments for _, extras, _ in prepared)
    assert has_alignments == (
        "alignments" in service.loads.extras and service.decoder.system.alignment is not None
    )
    for _, _, options in prepared:
        service.decoder.settings(None, options)


@pytest.mark.parametrize("name", sorted(NOT_SERVED))
def test_a_system_without_requests_is_refused(runs, name):
    instead = "it has no outputs that can be served" if name == "masked-lm" else "use decode.py"
    with pytest.raises(UserError, match=f"runs of system {name} are not served; {instead}"):
        service_of(runs[name])


def test_a_language_model_continues_and_scores(runs):
    service = served(runs["language-model"], "lm")
    with asked(service) as client:
        whole = client.post("/generate", json={"text": "7 and ", "max_length": 12}).json()
        text = whole["outputs"][0]["hypotheses"][0]["text"]
        assert text == service.decoder.generate("7 and ", max_length=12)
        end = text[3:5]
        cut = client.post("/generate", json={"text": "7 and ", "max_length": 12, "until": [end]}).json()
        assert cut["outputs"][0]["hypotheses"][0]["text"] == text[: text.index(end)]
        scores = client.post("/score", json={"text": ["7 and 49, ", "7"]}).json()["scores"]
        assert scores == [scored.to_json() for scored in service.decoder.score(["7 and 49, ", "7"])]
        wrong = client.post("/score", json={"text": "7 and", "target": "x"})
        assert wrong.json() == {"error": "target: run lm scores texts alone; leave it out"}


@pytest.mark.thorough
def test_a_recogniser_hears_a_recording(runs, tmp_path):
    service = served(runs["speech"], "ears")
    (tmp_path / "noise.wav").write_bytes(recording())
    with asked(service) as client:
        answer = client.post("/transcribe", content=recording())
        expected = service.decoder.transcribe([tmp_path / "noise.wav"])
        assert [output["hypotheses"][0]["text"] for output in answer.json()["outputs"]] == expected
        long = recording(5)
        (tmp_path / "long.wav").write_bytes(long)
        assert service.decoder.hears() < 5
        answer = client.post("/transcribe?times=true", content=long)
        assert answer.is_success, answer.text
        (output,) = answer.json()["outputs"]
        assert output["hypotheses"][0]["text"] == service.decoder.transcribe(tmp_path / "long.wav")
        wrong = client.post("/transcribe?alignments=true", content=long)
        assert (wrong.status_code, "longer than the model hears" in wrong.json()["error"]) == (422, True)
        wrong = client.post("/transcribe", content=b"RIFFnothing")
        assert wrong.status_code == 422
        assert "the recording" in wrong.json()["error"]


def test_recordings_that_cannot_be_heard_are_refused(runs, monkeypatch):
    """Headers that lie, damaged files, sound that is no number, and hours of silence in a few bytes."""
    monkeypatch.setattr(waveforms, "MOST", 1_000_000)  # so that the hours of silence are refused sooner
    ignored = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with asked(served(runs["speech"], "ears")) as client:
        for name, (content, message) in bad_recordings().items():
            answer = client.post("/transcribe", content=content)
            assert answer.status_code == 422, (name, answer.text)
            error = answer.json()["error"]
            assert error.startswith("the recording: "), name
            assert message in error, name
    assert not ignored


def test_long_recordings_wait_as_they_were_sent(runs):
    """Not as samples: a few bytes may hold an hour of them, and many may wait."""
    soundfile = pytest.importorskip("soundfile", reason="needs soundfile: pip install '.[speech]'")
    file = io.BytesIO()
    soundfile.write(file, np.zeros(3600 * 1000, np.int16), 1000, format="FLAC")
    service = served(runs["speech"], "ears")
    stored = waveforms.StoredRecording(file.getvalue(), "the recording")
    record, _ = service.record(stored, service.search.asked())
    assert record.source.content == file.getvalue()
    arrays = [value for value in vars(record).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == 0


def test_who_leaves_ends_the_reading_of_a_recording(runs, monkeypatch):
    """A few bytes may hold an hour of sound, which takes seconds to read, in a thread that others need."""
    service, read, block = served(runs["speech"], "ears"), [], waveforms.powers_of
    works = []

    def leaving(*arguments):
        read.append(1)
        works[0].cancel()
        return block(*arguments)

    async def ask():
        works.append(Work(service, service.search.asked(), [recording(60)], 1))
        with ThreadPoolExecutor(1) as pool:
            await works[0].begin(pool)

    monkeypatch.setattr(waveforms, "BLOCK", 16_000)
    monkeypatch.setattr(waveforms, "powers_of", leaving)
    with pytest.raises(UserError, match="the recording: nobody waits for it"):
        asyncio.run(ask())
    assert len(read) == 1


def picture() -> bytes:
    """A PNG file."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install '.[pictures]'")
    file = io.BytesIO()
    image.new("RGB", (40, 30), (200, 30, 60)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.thorough
def test_pictures_are_described_and_searched(runs, tmp_path):
    (tmp_path / "a.png").write_bytes(picture())
    services = [served(runs[name], name) for name in ("captioning", "detection")]
    captioner, detector = (service.decoder for service in services)
    with asked(*services) as client:
        answer = client.post("/caption?n_best=1&alignments=true", content=picture()).json()
        (expected,) = captioner.search([tmp_path / "a.png"], n_best=1, alignments=True)
        assert answer["outputs"] == [{"hypotheses": [output.to_json() for output in expected]}]
        form = client.post("/detect", files={"file": ("a.png", picture())}).json()
        objects = [item.to_dict() for item in detector.detect(tmp_path / "a.png")]
        assert form == {"model": "detection", "outputs": [{"objects": objects}]}
        for path in "/caption", "/detect":
            wrong = client.post(path, content=b"GIF89a")
            assert (wrong.status_code, "the picture: is no PNG file" in wrong.json()["error"]) == (422, True)


def test_words_are_labelled(runs):
    service = served(runs["tagging"], "tags")
    with asked(service) as client:
        answer = client.post("/tag", json={"text": ["The dog sleeps .", ["A", "cat"], ""]}).json()
        expected = service.decoder.tag(["The dog sleeps .", ["A", "cat"], ""])
        assert [output["labels"] for output in answer["outputs"]] == [list(tags.labels) for tags in expected]
        assert answer["outputs"][1]["words"] == ["A", "cat"]
        one = client.post("/tag", json={"text": "The dog"}).json()
        assert one["outputs"][0]["words"] == ["The", "dog"]
        wrong = client.post("/tag", json={"text": [["A", ""]]})
        assert "a sentence is a string or a list of words" in wrong.json()["error"]
        long = client.post("/tag", json={"text": "dog " * 400})
        assert (long.status_code, "divide it" in long.json()["error"]) == (422, True)


@pytest.mark.slow
def test_runs_of_several_kinds_are_served_together(runs):
    names = "transformer", "language-model", "recurrent"
    services = [served(runs[name], name) for name in names]
    with asked(*services) as client:
        assert [model["name"] for model in client.get("/models").json()["models"]] == list(names)
        for service in services[::2]:
            answer = client.post("/translate", json={"text": TEXTS[0], "model": service.name}).json()
            assert answer["model"] == service.name
            assert answer["outputs"][0]["hypotheses"][0]["text"] == service.decoder.translate(TEXTS[0])
        assert client.post("/generate", json={"text": "7 and "}).json()["model"] == "language-model"
        wrong = client.post("/generate", json={"text": "7 and ", "model": "transformer"})
        assert wrong.json()["error"].startswith("model 'transformer': no such run does this")


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(runs):
    """Whoever reads its first line can connect; SIGTERM ends it without an error."""
    command = [sys.executable, "-m", "transformer", "serve", str(runs["transformer"])]
    options = ["--port", "0", "--names", "small", "--allow", "max_length"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stdout
        try:
            line = server.stdout.readline()
            assert line.startswith("Serving small at http://127.0.0.1:")
            address = line.split()[-1]
            assert httpx.get(f"{address}/health").json() == {"status": "ok"}
            while httpx.get(f"{address}/ready").status_code != 200:
                pass
            answer = httpx.post(f"{address}/translate", json={"text": TEXTS, "max_length": 5})
            assert len(answer.json()["outputs"]) == len(TEXTS)
        finally:
            server.send_signal(signal.SIGTERM)
        *lines, stopped = server.stdout.read().splitlines()
        assert any(line.startswith("Ready after ") for line in lines)
        assert f"{stopped}\n" == ANSWERED
        assert server.wait(60) == 0


@pytest.mark.slow
def test_a_second_signal_ends_the_command_at_once(runs):
    command = [sys.executable, "-m", "transformer", "serve", str(runs["transformer"]), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stdout
        address = server.stdout.readline().split()[-1]
        assert httpx.get(f"{address}/health").json() == {"status": "ok"}  # its programs are being compiled
        server.send_signal(signal.SIGINT)
        while server.poll() is None:
            server.send_signal(signal.SIGINT)
            time.sleep(0.05)
        last = server.stdout.read().splitlines(keepends=True)[-1]
        assert (last, server.returncode) in (
            ("Stopped: what was begun is lost\n", 128 + signal.SIGINT),
            (ANSWERED, 0),
        )


def test_a_start_tells_how_far_it_is(monkeypatch, capsys):
    """Also if it is ended before all programs are compiled."""
    for name in "BEAT", "LINES":
        monkeypatch.setattr(server_module, name, 0.0)
    readiness = Readiness([])
    readiness.needed, readiness.count, readiness.done = 2, 5, 1
    out = ""
    with server_module.start_shown(readiness):
        while "\n" not in (out := out + capsys.readouterr().out):
            pass
        assert out.startswith("Compiled 1 of 2 programs")
        readiness.done, readiness.is_ready = 2, True
    readiness.done, readiness.is_complete = 5, True
    with server_module.start_shown(readiness):
        pass
    end = capsys.readouterr().out.splitlines()[-3:]
    ready = "Ready after 0 s with 2 of 5 programs; the others are compiled while it answers"
    assert end == [ready, ready, "All programs are compiled after 0 s"]


def test_a_line_of_the_log_names_run_and_request(caplog):
    log = logging.getLogger("transformer")

    class Warns:
        name, limits = "small", SimpleNamespace(sentences=2)

        def numbers(self, items, asked):
            return [1] * len(items)

        def submit(self, item, asked, line, partial, is_wanted):
            log.warning("line %d: truncated", line)
            return Future()

    async def ask():
        answers = Answers(None, ThreadPoolExecutor(1))
        for _ in range(2):
            await answers.begun(Warns(), SimpleNamespace(stream=False), ["text"])

    with caplog.at_level(logging.WARNING, "transformer"):
        asyncio.run(ask())
        log.warning("of none")
    names = [f"run small, request {number}: line 1: truncated" for number in (1, 2)]
    assert [record.getMessage() for record in caplog.records] == [*names, "of none"]
