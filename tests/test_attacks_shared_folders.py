"""Files that other processes change at the same time."""

import fcntl
import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_command import command
from small_run import WORDS
from small_translator import small_translator

from transformer import Config, Run, Translator, UserError
from transformer.cli import output_file
from transformer.cli.decode_arguments import parse_decode
from transformer.cli.output_file import LongOutput
from transformer.commands.decode_lines import decode_lines
from transformer.commands.translations import Translations
from transformer.data import store
from transformer.data.sources.corpora import open_corpus
from transformer.interop.folders.folder import write_folder
from transformer.runs.stores import store_type


@pytest.mark.slow
def test_a_new_average_is_another_model(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted output is not continued after the average has been recomputed."""
    run = Run(shutil.copytree(finished, tmp_path / "run"))
    (tmp_path / "in").write_text("".join(f"{word} {other}\n" for word in WORDS for other in WORDS))
    arguments = [
        run.path,
        "--checkpoint",
        "average",
        "--input",
        tmp_path / "in",
        "--output",
        tmp_path / "out",
    ]

    def decode(*more: object) -> None:
        decode_lines(parse_decode([*map(str, [*arguments, *more])]))

    run.checkpoints.store_average(run.averaged(run.checkpoints.steps()[:1]), run.checkpoints.steps()[:1])
    ordinary = Translations.of

    def of(self: Translations, lines: Any) -> Any:
        yield from itertools.islice(ordinary(self, lines), 12)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Translations, "of", of)
        with pytest.raises(KeyboardInterrupt):
            decode("--resume")
    run.checkpoints.store_average(run.averaged(run.checkpoints.steps()), run.checkpoints.steps())
    decode("--resume")
    expected = Translator.load(run.path, "average").translate((tmp_path / "in").read_text().splitlines())
    assert (tmp_path / "out").read_text().splitlines() == expected


def test_fingerprints_tell_models_apart() -> None:
    same = {small_translator().fingerprint() for _ in range(2)}
    others = {small_translator(seed=6).fingerprint(), small_translator(words=WORDS[::-1]).fingerprint()}
    assert (len(same), len(same | others)) == (1, 3)


@pytest.mark.slow
def test_an_input_that_changes_while_it_is_translated(
    decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("red\n")
    ordinary = Translations.of

    def of(self: Translations, lines: Any) -> Any:
        (tmp_path / "in").write_text("blue\n")
        return ordinary(self, lines)

    monkeypatch.setattr(Translations, "of", of)
    with pytest.raises(UserError, match="in changed while it was translated"):
        decode_lines(
            parse_decode([str(decoder), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")])
        )
    assert os.listdir(tmp_path) == ["in"]


def test_a_text_that_is_replaced_while_it_is_stored(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text must not be stored under the hash of another."""
    data = config.data
    source = Path(shutil.copy(data.train_source, tmp_path / "train.in"))
    data = replace(data, train_source=source, cache_dir=tmp_path / "cache")
    ordinary = store.prepare

    def prepare(*arguments: object) -> object:
        source.write_text(source.read_text().replace("red", "green"))
        return ordinary(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store, "prepare", prepare)
        with pytest.raises(UserError, match="text changed while it was read"):
            open_corpus(data)
    assert not list((tmp_path / "cache").rglob("*array_record*"))
    shutil.copy(config.data.train_source, source)
    expected = source.read_text().splitlines()
    assert [pair[0] for pair in open_corpus(data).splits["train"]] == expected


def test_a_pipe_as_training_text(config: Config, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"cannot read {path}: not a regular file"):
            open_corpus(replace(config.data, train_source=path))


@pytest.mark.slow
def test_standard_input_as_training_text(config: Config) -> None:
    files = ["--data.train-source", "/dev/stdin", "--data.train-target", str(config.data.train_target)]
    files += ["--data.validation-tsv", str(config.data.train_target)]
    done = command("train.py", *files, shell="< <(yes)")
    assert (done.returncode, "cannot read /dev/stdin: not a regular file" in done.stderr) == (2, True)


def test_a_lock_that_was_waited_for_is_compared_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process opens the partial file; before it has the lock, the other one completes it and renames it."""
    path = tmp_path / "out"
    first = LongOutput(path, "job", resume=False)
    file = first.__enter__()
    file.write("finished\n")
    ordinary = fcntl.flock

    def flock(*arguments: object) -> None:
        monkeypatch.setattr(output_file.fcntl, "flock", ordinary)
        first.__exit__(None, None, None)
        ordinary(*arguments)

    monkeypatch.setattr(output_file.fcntl, "flock", flock)
    second = LongOutput(path, "job", resume=False)
    other = second.__enter__()
    assert path.read_text() == "finished\n"
    other.write("again\n")
    second.__exit__(None, None, None)
    assert path.read_text() == "again\n"
    assert os.listdir(tmp_path) == ["out"]


def test_the_lock_is_held_until_the_output_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = os.replace

    def replaced(partial: Path, path: Path) -> None:
        with open(partial) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ordinary(partial, path)

    monkeypatch.setattr(output_file.os, "replace", replaced)
    with LongOutput(tmp_path / "out", "job", resume=False) as file:
        file.write("line\n")
    assert (tmp_path / "out").read_text() == "line\n"


def test_a_partial_output_is_not_written_through_a_link(tmp_path: Path) -> None:
    long = LongOutput(tmp_path / "out", "job", resume=True)
    (tmp_path / "precious").write_text("mine\n")
    long._partial.symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="cannot write --output"), long:
        pass
    assert (tmp_path / "precious").read_text() == "mine\n"


def new_run(folder: Path) -> None:
    with store_type(folder)(folder, writes=True).created() as partial:
        (partial / "config.json").write_text("{}")


def new_export(folder: Path) -> None:
    write_folder(folder, {}, {}, {"config.json": {}})


@pytest.mark.parametrize("create", [new_run, new_export])
def test_what_a_killed_import_or_export_has_left_is_removed_by_the_next(create: Any, tmp_path: Path) -> None:
    """And nothing else, such as the folder of one that still runs, which may just have created it."""
    left, running, new = (tmp_path / f".mine[1].{number:012x}" for number in range(3))
    others = {
        running,
        new,
        *(tmp_path / name for name in (".mine[1]", ".mine[1].old", ".mine1.00000000000a")),
    }
    for folder in {left, *others}:
        folder.mkdir()
        if folder != new:
            (folder / "weights").touch()
    held = os.open(running, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    create(tmp_path / "mine[1]")
    os.close(held)
    assert {*tmp_path.iterdir()} == {*others, tmp_path / "mine[1]"}
    assert {folder for folder in others if not any(folder.iterdir())} == {new}


def test_a_new_folder_stays_while_another_process_creates_it_too(tmp_path: Path) -> None:
    first = store_type(tmp_path / "mine")(tmp_path / "mine", writes=True).created()
    partial = first.__enter__()
    (partial / "weights").touch()
    new_run(tmp_path / "mine")
    assert (partial / "weights").exists()
    with pytest.raises(OSError, match="not empty"):
        first.__exit__(None, None, None)
    assert [*tmp_path.iterdir()] == [tmp_path / "mine"]
