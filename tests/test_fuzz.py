"""Whatever is typed, read or found in a folder: a result, or one message and exit status 2. Never a
traceback, a hang, or a line that is lost.

`TRANSFORMER_FUZZ=2500 pytest tests/test_fuzz.py` tries 2,500 cases of each; otherwise there are a few.
"""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_translator import small_translator, stored

from transformer import PRESETS, Config, Translator, UserError
from transformer.cli import decode_main, train_main
from transformer.config import flatten
from transformer.config_json import from_json, to_json
from transformer.interop.folders import import_marian
from transformer.training import train as training

CASES = int(os.environ.get("TRANSFORMER_FUZZ", 10))
fuzz = settings(
    max_examples=CASES,
    deadline=None,
    derandomize=CASES < 1000,  # the same cases every day, unless somebody looks for new ones
    database=None,
    suppress_health_check=list(HealthCheck),
)

OPTIONS = sorted({part for name in flatten(Config()) for part in name.split(".")})
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 300), st.floats(), st.text(max_size=8)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(OPTIONS) | st.text(max_size=8), inner)
    ),
    max_leaves=6,
)
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=60)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of random parameters."""
    return stored(small_translator(), tmp_path_factory.mktemp("fuzz") / "run")


def ended(main: Any, arguments: list[str], stdin: bytes = b"") -> tuple[int, str, str]:
    """A command in this process: exit status, standard output, standard error. What it raises is raised."""
    streams = sys.argv, sys.stdin, sys.stdout, sys.stderr
    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    sys.argv, sys.stdin = ["program", *arguments], io.TextIOWrapper(io.BytesIO(stdin))
    sys.stdout, sys.stderr = out, errors
    try:
        status = main()
    except SystemExit as stop:  # what the parser does with --help and bad options
        status = stop.code
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = streams
        out.flush(), errors.flush()
    return status, *(stream.buffer.getvalue().decode() for stream in (out, errors))


@fuzz
@given(text=st.text(max_size=200) | JSON.map(json.dumps))
def test_a_config_that_is_any_text(text: str) -> None:
    with contextlib.suppress(UserError):
        from_json(text)


@fuzz
@given(data=st.data())
def test_a_config_with_anything_anywhere(data: st.DataObject) -> None:
    """What is taken comes back as it was; what is not is refused."""
    values: Any = json.loads(to_json(PRESETS[data.draw(st.sampled_from(sorted(PRESETS)))]))
    for _ in range(data.draw(st.integers(1, 3))):
        section = values[data.draw(st.sampled_from(sorted(values)))]
        if isinstance(section, dict):
            section[data.draw(st.sampled_from(sorted(section)))] = data.draw(JSON)
    try:
        config = from_json(json.dumps(values))
    except UserError:
        return
    assert from_json(to_json(config)) == config


@fuzz
@given(data=st.data())
def test_any_command_line(data: st.DataObject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything up to the training itself, which only looks at what it was given."""

    def train(config: Config, run_dir: Path | None) -> None:
        dataclasses.asdict(config)
        raise UserError("enough")

    monkeypatch.setattr(training, "train", train)
    monkeypatch.chdir(tmp_path)
    names = st.sampled_from([*sorted(flatten(Config())), "run-dir", "hosts.process", "init-from"])
    option = names.map(lambda name: "--" + name.replace("_", "-"))
    value = st.integers().map(str) | st.floats().map(str) | st.text(max_size=10) | st.just("None")
    words = st.lists(option | value | st.sampled_from([*PRESETS, "--help", "-h"]), max_size=5)
    status, out, errors = ended(train_main, [word.replace("\0", "") for word in data.draw(words)])
    assert status == 2 or (status == 0 and "usage" in out)
    assert "Traceback" not in errors


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


def test_a_line_of_a_megabyte(run_dir: Path) -> None:
    for word in ("red ", "x", "\0"):
        content = (word * 2**20)[: 2**20].encode() + b"\nred cat\n"
        status, out, _ = ended(decode_main, [str(run_dir)], content)
        assert (status, out.count("\n")) == (0, 2)


def damage(data: st.DataObject, folder: Path) -> None:
    """Any of its files cut short, changed, replaced, removed, or in the place of a folder."""
    file = data.draw(st.sampled_from(sorted(entry for entry in folder.rglob("*") if entry.is_file())))
    content = bytearray(file.read_bytes())
    match data.draw(st.sampled_from(["cut", "flip", "fill", "remove", "folder"])):
        case "cut":
            file.write_bytes(content[: data.draw(st.integers(0, max(len(content) - 1, 0)))])
        case "flip":
            for _ in range(data.draw(st.integers(1, 4))):
                if content:
                    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
            file.write_bytes(content)
        case "fill":
            file.write_bytes(data.draw(st.binary(max_size=300)))
        case "remove":
            file.unlink()
        case "folder":
            file.unlink()
            file.mkdir()


@fuzz
@given(data=st.data())
def test_a_run_directory_with_anything_in_it(
    run_dir: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run") / "run"
    shutil.copytree(run_dir, path)
    damage(data, path)
    before = {entry for entry in path.parent.rglob("*")}
    with contextlib.suppress(UserError):
        assert np.isfinite(parameter(Translator.load(path, "last"))).all()
    assert before == {entry for entry in path.parent.rglob("*")}  # reading writes nothing
    shutil.rmtree(path.parent)


@fuzz
@given(data=st.data())
def test_a_model_to_import_with_anything_in_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """It is imported or refused whole, and nothing is written beside the new run."""
    folder = tmp_path_factory.mktemp("import")
    shutil.copytree(Path(__file__).parent / "data" / "marian", folder / "marian")
    if data.draw(st.booleans()):
        damage(data, folder / "marian")
    else:
        about = json.loads((folder / "marian" / "config.json").read_text())
        about[data.draw(st.sampled_from(sorted(about)))] = data.draw(JSON)
        (folder / "marian" / "config.json").write_text(json.dumps(about))
    before = {entry for entry in folder.rglob("*")}
    with contextlib.suppress(UserError):
        import_marian(folder / "marian", folder / "run")
        before |= {folder / "run", *(folder / "run").rglob("*")}
    assert before == {entry for entry in folder.rglob("*")}
    shutil.rmtree(folder)


def parameter(translator: Translator) -> np.ndarray:
    """One of its parameters."""
    return np.asarray(translator.variables["params"]["source_embedding"]["table"])
