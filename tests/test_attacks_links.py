"""Links, pipes and devices in run directories: nothing outside is read or written."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from run_command import command, contents
from small_run import changed, quiet

from transformer import Config, Run, Translator, UserError
from transformer.interop.pretrained import import_model
from transformer.runs.report import write_report
from transformer.trainer.train import train

DATA = Path(__file__).parent / "data"
LINKED = [
    "lock",
    "metrics.jsonl",
    "log.txt",
    "checkpoints",
    "tensorboard",
    "average",
    "damaged",
    "results.json",
]


def linked(run_dir: Path, name: str, outside: Path) -> Path:
    """Replaces an entry of a run by a link to something outside, and returns the latter."""
    entry = run_dir / name
    outside.mkdir()
    target = outside / "target"
    if entry.is_dir():
        shutil.copytree(entry, target)
        shutil.rmtree(entry)
    else:
        target.write_text(entry.read_text() if entry.exists() else "precious\n")
        entry.unlink(missing_ok=True)
    entry.parent.mkdir(exist_ok=True)
    entry.symlink_to(target)
    return target


@pytest.mark.parametrize("name", [*LINKED, "checkpoints/8", "checkpoints/12/manifest.json", "new/deep/link"])
def test_continuing_a_run_never_follows_a_link(
    config: Config, run_dir: Path, tmp_path: Path, name: str
) -> None:
    (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
    target = linked(run_dir, name, tmp_path / "outside")
    before = contents(target)
    with pytest.raises(UserError, match=f"{name} is a link: a run directory may contain only"):
        train(changed(config, steps=14, keep_last=1), run_dir, watch=quiet())
    assert contents(target) == before


def test_nor_a_pipe_or_a_device(config: Config, run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").unlink()
    os.mkfifo(run_dir / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics.jsonl is a pipe or a device: a run directory may"):
        train(changed(config, steps=14), run_dir, watch=quiet())


@pytest.mark.thorough
def test_a_run_may_itself_be_named_by_a_link(config: Config, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run_dir)
    train(changed(config, steps=14), tmp_path / "latest", watch=quiet())
    assert Run(run_dir).checkpoints.steps()[-1] == 14


def test_a_link_made_while_it_trains_is_not_written_through(run_dir: Path, tmp_path: Path) -> None:
    target = linked(run_dir, "metrics.jsonl", tmp_path / "outside")
    before = contents(target)
    with pytest.raises(OSError, match="symbolic link"):
        Run(run_dir).log.append({"kind": "start", "step": 1})
    assert contents(target) == before


@pytest.mark.slow
def test_an_average_is_not_written_through_a_link(run_dir: Path, tmp_path: Path) -> None:
    target = linked(run_dir, "average", tmp_path / "outside")
    before = contents(target)
    done = command("-m", "transformer", "average", run_dir)
    assert (done.returncode, contents(target)) == (2, before)
    assert "average is a link" in done.stderr


def test_a_report_replaces_a_link(run_dir: Path, tmp_path: Path) -> None:
    target = linked(run_dir, "report.html", tmp_path / "outside")
    before = contents(target)
    write_report(run_dir)
    assert contents(target) == before
    assert not (run_dir / "report.html").is_symlink()


def test_a_checkpoint_with_a_link_is_not_read(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    linked(run_dir, "checkpoints/1/model/_METADATA", tmp_path / "outside")
    with pytest.raises(UserError, match="_METADATA is a link: a checkpoint may contain only"):
        Translator.load(run_dir)


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/1", "checkpoints/1/model"])
def test_nor_is_one_that_a_link_leads_to(decoder: Path, tmp_path: Path, name: str) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    linked(run_dir, name, tmp_path / "outside")
    with pytest.raises(UserError, match="link"):
        Translator.load(run_dir)


def test_folders_in_folders_in_folders(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    here = os.getcwd()
    try:
        os.chdir(run_dir / "checkpoints" / "1" / "model")
        for _ in range(1500):
            os.mkdir("e")
            os.chdir("e")
        with pytest.raises(UserError, match="nested folders"):
            Translator.load(run_dir)
    finally:
        os.chdir(here)
        subprocess.run(["rm", "-r", run_dir], check=True)


def test_an_import_stores_nothing_of_a_file_that_a_link_leads_to(tmp_path: Path) -> None:
    """Who exports the run would publish it; but the hub's library stores a model as links to its blobs."""
    blobs, model = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "1"
    shutil.copytree(DATA / "pretrained" / "bart", model)
    blobs.mkdir()
    (model / "golden.json").unlink()
    (tmp_path / "auths.json").write_text('{"secret": 1}')
    (blobs / "2").write_text('{"kept": 2}')
    (model / "chat.json").symlink_to(tmp_path / "auths.json")
    (model / "more.json").symlink_to(Path("..", "..", "blobs", "2"))
    (model / "itself.json").symlink_to("itself.json")
    run = import_model(model, tmp_path / "run")
    stored = (run.path / "imported.json").read_text()
    assert ("secret" in stored, "kept" in stored) == (False, True)
