"""Run directories and text at remote addresses, in fsspec's file system in memory. Each `machine` has a cache
of its own."""

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from small_run import changed, parameters, quiet, same, small_config

from transformer import Config, Run, Translator
from transformer.data import remote
from transformer.runs import stores
from transformer.runs.report import write_report
from transformer.runtime.errors import UserError
from transformer.runtime.files import MiB, address, display_path
from transformer.trainer.train import train

RUN = "memory://bucket/run"
Machine = Callable[[str], None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Moves this process to another machine, which has nothing of the run."""

    def move(name: str) -> None:
        monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / name))
        remote.fetched.cache_clear()

    move("first")
    return move


@pytest.fixture
def store() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return changed(small_config(tmp_path_factory.mktemp("text")), steps=8)


@pytest.fixture(scope="module")
def trained(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Maps a number of steps to a run of so many, which is on no other machine."""

    @functools.cache
    def trained_run(steps: int) -> Path:
        run_dir = tmp_path_factory.mktemp("trained") / "run"
        return train(changed(config, steps=steps), run_dir, watch=quiet())

    return trained_run


@pytest.fixture
def sent(
    trained: Callable[[int], Path], machine: Machine, store: fsspec.AbstractFileSystem
) -> Callable[[int], None]:
    """Stores such a run at its address, without the files of this machine."""

    def send(steps: int) -> None:
        run_dir = trained(steps)
        for path in filter(Path.is_file, run_dir.rglob("*")):
            name = str(path.relative_to(run_dir))
            if not name.startswith("lock"):
                store.pipe_file(f"/bucket/run/{name}", path.read_bytes())

    return send


def names(store: fsspec.AbstractFileSystem) -> set[str]:
    return {path.removeprefix("/bucket/run/") for path in store.find("/bucket/run")}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("gs://bucket/run", "gs://bucket/run"),
        (Path("gs://bucket/run"), "gs://bucket/run"),
        ("s3://bucket/run/", "s3://bucket/run"),
        (Path("file:///tmp/run"), "file:///tmp/run"),
        ("runs/a", None),
        ("/runs/a:/b", None),
        ("C:/runs", None),
    ],
)
def test_addresses(path, expected) -> None:
    assert address(path) == expected
    assert display_path(path) == expected or expected is None


@pytest.mark.thorough
def test_a_run_goes_on_on_another_machine(config, trained, machine, store) -> None:
    assert train(changed(config, steps=4), RUN, watch=quiet()) == Path(RUN)
    machine("second")
    train(config, RUN, watch=quiet())
    found = names(store)
    assert {"config.json", "metrics.jsonl", "results.json", "report.html"} <= found
    assert not {name for name in found if "lock" in name or ".orbax" in name}
    assert store.cat("/bucket/run/log.txt").decode().count("\n===") == 1  # between what two machines showed
    machine("third")
    assert Run(RUN).checkpoints.steps() == Run(trained(8)).checkpoints.steps()
    assert same(trained(8), RUN)
    here, there = (
        [(each["step"], each["nll"]) for each in Run(run).log.records("evaluation")]
        for run in (trained(8), RUN)
    )
    assert here == there


def test_only_what_is_read_is_copied(sent, machine, tmp_path) -> None:
    sent(8)
    machine("second")
    Translator.load(RUN)
    best = Run(RUN).checkpoints.best()
    copied = [path for path in (tmp_path / "second").rglob("*") if "/checkpoints/" in str(path)]
    assert {path.parts[path.parts.index("checkpoints") + 1] for path in copied if "/model/" in str(path)} == {
        str(best)
    }
    assert not [path for path in copied if "/training/" in str(path)]
    copies = {path: path.stat().st_mtime_ns for path in copied if path.is_file()}
    Translator.load(RUN)
    assert {path: path.stat().st_mtime_ns for path in copies} == copies


@pytest.mark.slow
def test_checkpoints_that_are_deleted_here_are_deleted_there(config, sent, store) -> None:
    sent(4)
    train(changed(config, steps=16, keep_last=1), RUN, watch=quiet())
    steps = {name.split("/")[1] for name in names(store) if name.startswith("checkpoints/")}
    assert steps == {str(step) for step in Run(RUN).checkpoints.steps()}
    assert len(steps) <= 2
    assert "16" in steps


@pytest.mark.slow
def test_a_checkpoint_without_a_manifest_does_not_count(config, machine, store) -> None:
    train(config, RUN, watch=quiet())
    store.rm("/bucket/run/checkpoints/8/manifest.json")
    assert Run(RUN).checkpoints.steps() == [4]
    train(config, RUN, watch=quiet())
    machine("second")
    assert Run(RUN).checkpoints.steps() == [4, 8]


def test_who_starts_last_takes_a_run_over(sent, machine, store) -> None:
    sent(4)

    def taken_over() -> None:
        first = Run(RUN, writes=True)
        with first.claimed():
            machine("second")
            second = Run(RUN, writes=True)
            with second.claimed():
                (second.path / "note").write_text("second")
            (first.path / "note").write_text("first")

    with pytest.raises(UserError, match="has taken this run over"):
        taken_over()
    assert store.cat("/bucket/run/note") == b"second"


def test_two_trainings_on_one_machine(sent) -> None:
    sent(4)
    with Run(RUN, writes=True).claimed(), pytest.raises(UserError, match="another process trains there"):
        Run(RUN, writes=True)
    with pytest.raises(UserError, match="http://there/run: it cannot be written"):
        Run("http://there/run", writes=True)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_moved_aside(config, sent, store) -> None:
    sent(8)
    part = next(path for path in store.find("/bucket/run/checkpoints/8/training") if "/d/" in path)
    store.pipe_file(part, b"not it")
    train(changed(config, steps=12), RUN, watch=quiet())
    assert any(name.startswith("damaged/8/") for name in names(store))
    assert 12 in Run(RUN).checkpoints.steps()


def test_names_that_lead_outside_are_not_copied(sent, machine, store, tmp_path) -> None:
    sent(8)
    for name in ("../escaped", "a/../../escaped", f"/{tmp_path}/escaped"):
        store.pipe_file(f"/bucket/run/{name}", b"here")
        store.store[f"/bucket/run/{name}"] = store.store.pop(store._strip_protocol(f"/bucket/run/{name}"))
    machine("second")
    Run(RUN)
    assert not [path for path in tmp_path.rglob("*") if path.name == "escaped"]


def test_what_is_copied_is_bounded_before_and_while_it_is_copied(
    config, sent, machine, store, monkeypatch
) -> None:
    sent(8)
    steps = Run(RUN).checkpoints.steps()
    machine("second")
    store.pipe_file("/bucket/run/checkpoints/8/model/d/more", bytes(70 * MiB))
    with pytest.raises(UserError, match=r"run/checkpoints/8/model/: larger than 64 MiB, so it is not copied"):
        Translator.load(RUN, 8)
    store.pipe_file("/bucket/run/checkpoints/8/training/d/more", bytes(70 * MiB))
    with pytest.raises(UserError, match=r"run/checkpoints/8/: larger than 128 MiB, so it is not copied"):
        train(changed(config, steps=12), RUN, watch=quiet())
    assert Run(RUN).checkpoints.steps() == steps  # nothing was lost
    find = store.find

    def lies(*args, **options):
        return {name: about | {"size": 10} for name, about in find(*args, **options).items()}

    monkeypatch.setattr(store, "find", lies)
    machine("third")
    with pytest.raises(UserError, match=r"run/checkpoints/8/model/: larger than 64 MiB, so it is not copied"):
        Translator.load(RUN, 8)
    monkeypatch.setattr(stores, "MOST", MiB)
    store.pipe_file("/bucket/run/junk", bytes(2 * MiB))
    machine("fourth")
    with pytest.raises(UserError, match="memory://bucket/run: larger than 1 MiB"):
        Run(RUN)
    monkeypatch.undo()
    monkeypatch.setattr(stores, "MOST", MiB)
    with pytest.raises(UserError, match="memory://bucket/run: larger than 1 MiB"):
        Run(RUN)


@pytest.mark.parametrize("name", ["report.html", "writer", "new/link", "checkpoints/1/manifest.json"])
def test_links_are_not_followed_there(config, machine, decoder, tmp_path, name) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(secret)
    for use in (Run, write_report, lambda where: train(config, where, watch=quiet())):
        with pytest.raises(UserError, match=f"{name} is a link, a pipe or a device: a run directory may"):
            use(f"file://{run_dir}")
    assert secret.read_text() == "secret"
    assert not [path for path in (tmp_path / "first").rglob("*") if path.name == Path(name).name]


def test_a_run_at_a_link_is_followed_and_a_pipe_is_not_read(machine, decoder, tmp_path) -> None:
    (tmp_path / "latest").symlink_to(decoder)
    assert Run(f"file://{tmp_path}/latest").config == Run(decoder).config
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: not a regular file"):
        remote.fetched(Path(f"file://{tmp_path}/pipe"))
    (tmp_path / "large").write_bytes(bytes(2 * MiB))
    with pytest.raises(UserError, match="large: larger than 1 MiB"):
        remote.fetched(Path(f"file://{tmp_path}/large"), MiB)


def test_average_and_report(sent, machine, store) -> None:

    sent(8)
    run = Run(RUN)
    average = run.averaged()
    run.checkpoints.store_average(average, run.checkpoints.newest())
    store.rm("/bucket/run/report.html")
    assert display_path(write_report(RUN)) == f"{RUN}/report.html"
    assert "report.html" in names(store)
    machine("second")
    assert len(parameters(RUN, "average")) == len(parameters(RUN))


def test_of_an_older_average_nothing_is_left(sent, machine, store) -> None:
    """Also if another machine has written it, whose files are not copied before a new one is made."""
    sent(8)
    for name in "second", "third":
        machine(name)
        run = Run(RUN)
        run.checkpoints.store_average(run.averaged(), run.checkpoints.newest())
        files = {str(path.relative_to(run.path)) for path in (run.path / "average").rglob("*")}
        assert {name for name in names(store) if name.startswith("average/")} <= files


def test_training_leaves_an_average_that_another_machine_makes(sent, machine, store) -> None:
    sent(8)
    training = Run(RUN)
    with training.claimed():
        machine("second")
        other = Run(RUN)
        other.checkpoints.store_average(other.averaged([4]), [4])
        training.store.push()
    assert {"average/steps.json", "average/manifest.ocdbt"} <= names(store)


@pytest.mark.slow
def test_text_is_read_from_there(config, trained, machine, store, tmp_path) -> None:
    paths = {}
    for field in dataclasses.fields(config.data):
        value = getattr(config.data, field.name)
        if isinstance(value, Path) and value.is_file():
            store.pipe_file(f"/text/{value.name}", value.read_bytes())
            paths[field.name] = Path(f"memory://text/{value.name}")
    assert len(paths) == 6
    there = dataclasses.replace(config, data=dataclasses.replace(config.data, **paths))
    train(there, tmp_path / "there", watch=quiet())
    assert same(trained(8), tmp_path / "there")
    assert json.loads((tmp_path / "there" / "config.json").read_text())["data"]["train_source"]


def test_mistakes(config, machine, store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="memory://bucket/none is not a run directory"):
        Run("memory://bucket/none")
    with pytest.raises(UserError, match="nowhere:// is unknown"):
        Run("nowhere://bucket/none")
    for nothing in ("gs://", Path("file://"), "memory:///"):
        with pytest.raises(UserError, match="names no bucket"):
            train(config, nothing, watch=quiet())
    with pytest.raises(UserError, match="must not contain ::"):
        train(config, "memory://bucket/a::b", watch=quiet())
    with pytest.raises(UserError, match="cannot be written to"):
        train(config, "file:///proc/none/run", watch=quiet())
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(UserError, match="pip install gcsfs"):
        Run("gs://bucket/none")
    text = dataclasses.replace(config.data, train_source=Path("memory://text/none"))
    with pytest.raises(UserError, match="memory://text/none: no such file"):
        train(dataclasses.replace(config, data=text), RUN, watch=quiet())
    with pytest.raises(UserError, match="--data.cache-dir memory://cache: must be on this machine"):
        dataclasses.replace(config.data, cache_dir=Path("memory://cache"))
    assert not store.find("/bucket")
    store.pipe_file("/bucket/run/other", b"not a run")
    with pytest.raises(UserError, match="exists already"):
        train(config, RUN, watch=quiet())


def test_a_store_that_fails(config, sent, store, monkeypatch: pytest.MonkeyPatch) -> None:
    sent(4)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("quota exceeded\nmore")

    sent = type(store).pipe_file

    def fail_later(self: object, path: str, *rest: object, **more: object) -> None:
        if "checkpoints/8" in path or "results" in path:
            fail()
        sent(self, path, *rest, **more)

    with monkeypatch.context() as out_of_reach:
        out_of_reach.setattr(type(store), "pipe_file", fail_later)
        with pytest.raises(UserError, match=r"quota exceeded. What was not sent is in .*: the same command"):
            train(config, RUN, watch=quiet())
    assert not any(name.startswith("checkpoints/8/manifest") for name in names(store))
    Run(RUN, writes=True)  # sends it
    assert "checkpoints/8/manifest.json" in names(store)
    train(config, RUN, watch=quiet())
    assert Run(RUN).checkpoints.steps()[-1] == 8


def test_what_was_not_sent_before_an_interrupt_is_sent_later(sent, store, monkeypatch) -> None:
    sent(4)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def write() -> None:
        run = Run(RUN, writes=True)
        with run.claimed():
            (run.path / "note").write_text("unsent")
            monkeypatch.setattr(type(store), "pipe_file", interrupt)

    ordinary = type(store).pipe_file
    with pytest.raises(KeyboardInterrupt):
        write()
    monkeypatch.setattr(type(store), "pipe_file", ordinary)
    assert "note" not in names(store)
    Run(RUN, writes=True)
    assert store.cat("/bucket/run/note") == b"unsent"
