"""Any command line, input or folder gives a result, or one message and exit status 2: never a traceback, a
hang, or a lost line.

`TRANSFORMER_FUZZ=2500 pytest tests/test_fuzz.py` tries 2,500 cases of each; by default there are a few.
"""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore
from configs import CONFIGS
from fuzzing import CHANCE, JSON, VALUES, contents, damage, fuzz
from hypothesis import given
from hypothesis import strategies as st
from small_translator import small_translator, stored

from benchmarks.measure import peak_memory_of_host
from transformer import PRESETS, VARIANTS, Config, Run, Translator, UserError
from transformer.commands import plan as planning
from transformer.commands.decode import decode_main
from transformer.commands.train import train_main
from transformer.config.options import flatten
from transformer.decoding.service import service as workers
from transformer.decoding.service.queue import SearchThread
from transformer.runs.config_json import from_json, to_json
from transformer.runs.report import write_report
from transformer.systems.registry import find_system
from transformer.tasks.texts.translation import Translation
from transformer.trainer import train as training
from transformer.training.schedule import make_optimizer
from transformer.training.step import init_state

# if one array is damaged, TensorStore's threads report the others too late
late_callbacks = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. None:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def _threads_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "IDLE", 0.0)


FIELDS = ["kind", "step", "nll", "bleu", "learning_rate", "tokens_per_second", "samples", "data", "split"]
FIELDS += ["sentences", "checkpoint", "chrf", "date", "devices", "versions"]
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=60)

EXAMPLE = Translation.example(Config())


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of random parameters."""
    return stored(small_translator(), tmp_path_factory.mktemp("fuzz") / "run")


def ended(main: Any, arguments: list[str], stdin: bytes = b"") -> tuple[int, str, str]:
    """A command in this process: exit status, standard output, standard error. Exceptions pass through."""
    streams = sys.argv, sys.stdin, sys.stdout, sys.stderr
    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    sys.argv, sys.stdin = ["program", *arguments], io.TextIOWrapper(io.BytesIO(stdin))
    sys.stdout, sys.stderr = out, errors
    try:
        status = main()
    except SystemExit as stop:  # raised by the parser for --help and bad options
        status = stop.code
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = streams
        out.flush(), errors.flush()
        # type checks of lists draw from `random`, and Hypothesis forbids that while it draws
        for thread in filter(lambda each: isinstance(each, SearchThread), threading.enumerate()):
            thread.join()
    return status, *(stream.buffer.getvalue().decode() for stream in (out, errors))


@pytest.mark.thorough
@fuzz
@given(text=st.text(max_size=200) | JSON.map(json.dumps))
def test_a_config_that_is_any_text(text: str) -> None:
    with contextlib.suppress(UserError):
        from_json(text)


@fuzz
@given(data=st.data())
def test_a_config_with_anything_anywhere(data: st.DataObject) -> None:
    """An accepted config is unchanged in JSON; others are refused."""
    values: Any = json.loads(to_json(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]))
    for _ in range(data.draw(st.integers(1, 3))):
        section = values[data.draw(st.sampled_from(sorted(values)))]
        if isinstance(section, dict):
            section[data.draw(st.sampled_from(sorted(section)))] = data.draw(JSON)
    try:
        config = from_json(json.dumps(values))
    except UserError:
        return
    assert from_json(to_json(config)) == config


MORE = ("plan", "plan-json", "plan-minutes", "plan-gigabytes", "profile")


@fuzz
@given(data=st.data())
def test_any_command_line(data: st.DataObject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything up to training, which is replaced by a check of its arguments."""

    def enough(config: Config, *_: Any, **__: Any) -> None:
        dataclasses.asdict(config)
        raise UserError("enough")

    monkeypatch.setattr(training, "train", enough)
    monkeypatch.setattr(planning, "plan", enough)
    monkeypatch.chdir(tmp_path)
    names = st.sampled_from([*sorted(flatten(Config())), "run-dir", "hosts.process", "init-from", *MORE])
    option = names.map(lambda name: "--" + name.replace("_", "-"))
    value = st.integers().map(str) | st.floats().map(str) | st.text(max_size=10) | st.just("None")
    words = st.lists(
        option | value | st.sampled_from([*PRESETS, *VARIANTS, "--variant", "--help", "-h"]), max_size=5
    )
    status, out, errors = ended(train_main, [word.replace("\0", "") for word in data.draw(words)])
    assert status == 2 or (status == 0 and "usage" in out)
    assert "Traceback" not in errors


@pytest.mark.thorough
@fuzz
@given(lines=st.lists(LINE, max_size=6), last=st.booleans())
def test_any_text_is_translated_line_by_line(run_dir: Path, lines: list[str], last: bool) -> None:
    text = "\n".join(lines) + ("\n" if last and lines else "")
    status, out, _ = ended(decode_main, [str(run_dir), "--method", "greedy"], text.encode())
    assert status == 0
    count = len(text.removesuffix("\n").split("\n")) if text else 0
    assert out.count("\n") == count
    for line, translation in zip(text.split("\n"), out.split("\n"), strict=False):
        assert line.strip() or translation == ""


@fuzz
@given(content=st.binary(max_size=200))
def test_any_bytes(run_dir: Path, content: bytes) -> None:
    status, out, errors = ended(decode_main, [str(run_dir), "--method", "greedy"], content)
    try:
        content.decode()
    except UnicodeDecodeError:
        assert status == 2
        assert "standard input, line" in errors
    else:
        assert status == 0
        assert out.count("\n") == content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


@pytest.mark.slow
def test_a_line_of_a_megabyte(run_dir: Path) -> None:
    for word in ("red ", "x", "\0"):
        content = (word * 2**20)[: 2**20].encode() + b"\nred cat\n"
        status, out, _ = ended(decode_main, [str(run_dir)], content)
        assert (status, out.count("\n")) == (0, 2)


@fuzz
@given(chance=CHANCE, values=VALUES)
def test_a_run_directory_with_anything_in_it(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory, chance: Random, values: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run"
    shutil.copytree(run_dir, path)
    damage(chance, values, path)
    before = {entry for entry in path.parent.rglob("*")}
    with contextlib.suppress(UserError):
        assert np.isfinite(parameter(Translator.load(path, "last"))).all()
    assert before == {entry for entry in path.parent.rglob("*")}  # reading writes nothing
    shutil.rmtree(path.parent)


@pytest.mark.slow
@late_callbacks
@fuzz
@given(chance=CHANCE, values=VALUES)
def test_a_run_directory_that_is_continued(
    finished: Path, tmp_path_factory: pytest.TempPathFactory, chance: Random, values: list[Any]
) -> None:
    """Everything that training does on resume, except for the steps: nothing outside is changed."""
    folder = tmp_path_factory.mktemp("continued")
    outside, path = folder / "outside", folder / "run"
    outside.mkdir()
    shutil.copytree(finished, path)
    for _ in range(chance.randint(1, 2)):
        with contextlib.suppress(OSError, ValueError):  # both may hit the same place
            damage(chance, values, path, outside)
    before = contents(outside)
    with contextlib.suppress(UserError):
        run = Run(path)
        run.check_resumable()
        assert run.task
        with run.claimed():
            model, optimizer = (
                find_system(run.config.system).model(run.config.model),
                make_optimizer(run.config),
            )
            average = run.config.training.ema > 0
            like = jax.eval_shape(lambda: init_state(model, optimizer, 0, EXAMPLE, average=average))
            if state := run.checkpoints.resume(like, lambda _: None):
                run.log.records()
                run.log.append({"kind": "start", "step": int(state.step)})
                run.checkpoints.save(dataclasses.replace(state, step=state.step + 1), {"bleu": 1.0})
                run.checkpoints.finish_saving()
                assert run.checkpoints.find("last") >= int(state.step)
                write_report(path)
    assert contents(outside) == before
    assert set(os.listdir(folder)) == {"outside", "run"}
    shutil.rmtree(
        folder, ignore_errors=True
    )  # a checkpoint that could not be written may still be written to


@pytest.mark.slow
@late_callbacks
@fuzz
@given(chance=CHANCE, values=VALUES)
def test_arrays_with_anything_in_their_database(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory, chance: Random, values: list[Any]
) -> None:
    """Zarr's metadata, chunks, and the database's own files, without the hashes that would detect it."""
    path = tmp_path_factory.mktemp("arrays") / "run"
    shutil.copytree(run_dir, path)
    (checkpoint,) = (path / "checkpoints").iterdir()
    (checkpoint / "manifest.json").unlink()
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.5:
            files = [
                file
                for file in (checkpoint / "model").rglob("*")
                if "ocdbt" in file.name or "d" in file.parts
            ]
            flip(chance, chance.choice(sorted(file for file in files if file.is_file())))
        else:
            with contextlib.suppress(ValueError):  # of TensorStore, if its files are damaged already
                change_an_entry(chance, values, checkpoint / "model")
    if (peak := Path("/proc/self/clear_refs")).exists():
        peak.write_text("5")  # from now on the peak counts anew (man 5 proc)
    before = peak_memory_of_host()
    with contextlib.suppress(UserError):
        parameter(Translator.load(path, "last"))
    assert peak_memory_of_host() - before < 300 * 2**20
    shutil.rmtree(path.parent)


def flip(chance: Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 4) if content else 0):
        content[chance.randint(0, len(content) - 1)] ^= chance.randint(1, 255)
    file.write_bytes(content)


def change_an_entry(chance: Random, values: list[Any], model: Path) -> None:
    """One of Zarr's entries in the database: a field of the metadata, or the bytes of a chunk."""
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": model.absolute().as_uri() + "/"}).result()
    key = chance.choice(sorted(store.list().result()))
    value = store.read(key).result().value
    if key.endswith(b".zarray") and chance.random() < 0.5:
        about = json.loads(value)
        large = [chance.randint(0, 10**6) for _ in range(chance.randint(0, 3))]
        about[chance.choice(sorted(about))] = chance.choice([values.pop(), large, "|S99999", "<c16"])
        value = json.dumps(about).encode()
    else:
        value = chance.randbytes(chance.randint(0, 100)) + value[chance.randint(0, len(value)) :]
    store.write(key, value).result()


@fuzz
@given(records=st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON), max_size=4))
def test_a_report_of_any_metrics(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("report") / "run"
    path.mkdir()
    shutil.copy(run_dir / "config.json", path)
    kinds = ["start", "training", "evaluation"]
    lines = [{"kind": kinds[i % 3], "step": i, **record} for i, record in enumerate(records)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "results.json").write_text(json.dumps(records[-1] if records else None))
    with contextlib.suppress(UserError):
        assert write_report(path).read_text().endswith("</html>\n")
    shutil.rmtree(path.parent)


def parameter(translator: Translator) -> np.ndarray:
    """One of its parameters."""
    return np.asarray(translator.variables["params"]["source_embedding"]["table"])
