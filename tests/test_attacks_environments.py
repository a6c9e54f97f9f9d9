"""Full disks, closed streams, missing homes, signals, forks, odd names and clocks."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import jax
import orbax.checkpoint as ocp
import pytest
from run_command import ROOT, command, contents
from small_run import changed, quiet

from transformer import Config, Run, Translator, UserError
from transformer.cli.decode_arguments import parse_decode
from transformer.cli.guard import run_command
from transformer.cli.output_file import LongOutput
from transformer.commands.decode_lines import decode_lines
from transformer.commands.main import main
from transformer.config.corpus import DataConfig
from transformer.data.sources import text_files
from transformer.interop.architectures import marian_files
from transformer.interop.pretrained import import_model
from transformer.runs import sealed as bounds
from transformer.runs.checkpoints import Checkpoints
from transformer.runs.report import write_report
from transformer.runtime.files import read_bytes
from transformer.trainer import loop
from transformer.trainer.train import train

MARIAN = Path(__file__).parent / "data" / "marian"


def test_a_signal_while_a_checkpoint_is_measured_is_no_damage(
    run_dir: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are mapped into memory just then."""
    before = contents(run_dir / "checkpoints")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bounds, "_block_sizes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(changed(config, steps=20), run_dir, watch=quiet())
    assert contents(run_dir / "checkpoints") == before
    assert not (run_dir / "damaged").exists()


def test_a_signal_during_an_import_waits_for_its_end(tmp_path: Path) -> None:
    """As during the import of JAX, which would report it as its own error."""
    (tmp_path / "long.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.1)\n"
        "except BaseException as error:\n"
        "    raise ImportError('Encountered an error') from error\n"
    )
    program = (
        f"import sys, time; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from transformer.cli.guard import run_command\n"
        "def command(_):\n"
        "    import long\n"
        "    time.sleep(60)\n"
        "raise SystemExit(run_command('program', command))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (130, "program: interrupted\n")


ENDS = """
import atexit, sys
import jax
from transformer.cli.guard import leave, run_command

def command(line):
    print("written")
    if line == ["interrupted"]:
        raise KeyboardInterrupt

atexit.register(print, "JAX ends")
leave(run_command("program", command))
"""


def test_an_interrupted_command_does_not_destroy_what_jax_compiles_with() -> None:
    """Its threads may still compile, and would crash."""
    for words, status, out in (([], 0, "written\nJAX ends\n"), (["interrupted"], 130, "written\n")):
        done = command("-c", ENDS, *words)
        assert (done.returncode, done.stdout) == (status, out), done.stderr


SHARING = """
import multiprocessing, os, signal, sys, types
from transformer.cli.guard import leave, run_command

sys.modules["jax"] = types.ModuleType("jax")
sys.modules["jax"].distributed = types.SimpleNamespace(is_initialized=lambda: False)

def command(arguments):
    global shared
    shared = multiprocessing.get_context("spawn").Value("q")
    os.kill(os.getpid(), signal.SIGTERM)

leave(run_command("program", command))
"""


def test_a_signal_leaves_no_semaphores() -> None:
    """The tracker of multiprocessing would warn of them, after the command's last line."""
    done = command("-c", SHARING)
    assert (abs(done.returncode) % 128, done.stderr) == (15, "program: interrupted\n")


IMPORTED = """
import os, runpy, signal, sys

class Interrupted:
    def find_spec(self, name, *others):
        if name.rpartition(".")[0] == "transformer.commands" and not name.endswith("main"):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
sys.argv = [sys.argv[1], "average", "run"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", ["train.py", "decode.py", "transformer/__main__.py"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(name: str) -> None:
    done = command("-c", IMPORTED, name)
    assert (abs(done.returncode) % 128, done.stderr) == (2, "")  # of SIGINT, as Python or bash says it


@pytest.mark.slow
def test_a_full_device_as_standard_output(run_dir: Path) -> None:
    for name in ("report", "average"):
        done = command("-m", "transformer", name, run_dir, shell="> /dev/full")
        assert done.returncode == 2
        assert done.stderr == f"transformer {name}: No space left on device: standard output, or a file\n"
    assert "</html>" in (run_dir / "report.html").read_text()
    assert (run_dir / "average").is_dir()
    done = command("train.py", "--help", shell="> /dev/full")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_an_average_that_cannot_be_written_leaves_the_old_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(run_dir)
    variables = run.averaged()
    run.checkpoints.store_average(variables, run.checkpoints.newest())
    before = contents(run_dir)

    def fail(self: object, path: Path, *_: object) -> None:
        (path.parent / (path.name + ".orbax-checkpoint-tmp")).mkdir()
        raise ValueError("RESOURCE_EXHAUSTED: no space left")

    monkeypatch.setattr(ocp.StandardCheckpointer, "save", fail)
    with pytest.raises(UserError, match="average: RESOURCE_EXHAUSTED: no space left"):
        run.checkpoints.store_average(variables, run.checkpoints.newest())
    assert contents(run_dir) == before
    assert not list(run_dir.glob(".average*"))


def test_an_average_is_never_lost_and_attempts_leave_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be killed between any two renames; Orbax's threads may write after a full disk."""
    run = Run(run_dir)
    variables = run.averaged()
    run.checkpoints.store_average(variables, run.checkpoints.newest())
    (run_dir / ".average.0123.orbax-checkpoint-tmp").mkdir()
    ordinary = os.replace

    def replaced(*paths: Path) -> None:
        assert run.checkpoints.average(run.shapes) is not None
        ordinary(*paths)
        assert run.checkpoints.average(run.shapes) is not None

    monkeypatch.setattr(os, "replace", replaced)
    run.checkpoints.store_average(variables, run.checkpoints.newest())
    assert not list(run_dir.glob(".average*"))
    ordinary(run_dir / "average", run_dir / ".average.before")
    monkeypatch.setattr(ocp.StandardCheckpointer, "save", Mock(side_effect=ValueError("full")))
    with pytest.raises(UserError, match="full"):
        run.checkpoints.store_average(variables, run.checkpoints.newest())
    assert (run_dir / "average" / "steps.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv, to take root's capabilities away")
def test_an_average_of_a_read_only_run_is_refused_in_one_line(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    run_dir.chmod(0o555)
    words = [sys.executable, "-m", "transformer", "average", run_dir]
    if os.geteuid() == 0:
        words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *words]
    done = subprocess.run(words, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"could not write {run_dir}/average: Permission denied. The checkpoints are unchanged" in line


def test_what_is_refused_leaves_no_run_directory(config: Config, tmp_path: Path) -> None:
    """Otherwise the corrected command would find a run with other options."""
    short = replace(config, data=replace(config.data, max_length=2))
    broad = replace(config, decoding=replace(config.decoding, beam_size=500))
    for wrong, message in ((short, "raise it"), (broad, "more than half the vocabulary")):
        with pytest.raises(UserError, match=message):
            train(wrong, tmp_path / "run", watch=quiet())
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["decode", "x" * 300],
        ["decode", "RUN", "--input", "x" * 300],
        ["decode", "RUN", "--input", __file__, "--output", "x" * 300],
        ["decode", "RUN", "--checkpoint", "9" * 5000],
        ["average", "x" * 300],
        ["import", "x" * 300, "y"],
        ["train", "--run-dir", "x" * 300, "--init-from", "RUN"],
        ["report", os.fsdecode(b"\xff")],
    ],
    ids=range(8),
)
def test_odd_names(decoder: Path, words: list[str], refused: Callable[..., str]) -> None:
    assert refused(main, *(decoder if word == "RUN" else word for word in words)).count("\n") == 1


@pytest.mark.slow
def test_a_name_that_is_no_text() -> None:
    done = subprocess.run([sys.executable, "decode.py", b"\xff"], cwd=ROOT, capture_output=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_out_of_memory_is_one_message(refused: Callable[..., str]) -> None:
    def command(_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 160 bytes.\nAnd more")

    errors = refused(partial(run_command, "decode.py", command))
    assert errors.startswith("decode.py: out of memory: reduce the batch size")


@pytest.mark.slow
def test_closed_standard_streams(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("red cat\n")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out"]
    for shell, arguments, status, message in (
        ("<&-", [], 2, "standard input is closed: name a file with --input"),
        (">&- < /dev/null", [], 2, "standard output is closed: name a file with --output"),
        ("2>&- <&-", [], 2, ""),
        ("<&- >&- 2>&-", files, 0, ""),
    ):
        done = command("decode.py", decoder, *arguments, shell=shell)
        assert (done.returncode, done.stdout) == (status, ""), (shell, done.stderr)
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert (tmp_path / "out").read_text().count("\n") == 1


@pytest.mark.slow
def test_a_reader_that_has_gone_does_not_cost_the_output(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("red cat\n" * 50)
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out", "--reference", tmp_path / "in", "-v"]
    done = command("decode.py", decoder, *files, shell="2>&1 | head -c 1; exit ${PIPESTATUS[0]}")
    assert done.returncode == 0
    assert (tmp_path / "out").read_text().count("\n") == 50
    assert not list(tmp_path.glob(".out*"))
    done = command("decode.py", decoder, "--n-best", "99", shell="2> >(exec 0<&-; sleep 5)")
    assert done.returncode == 2


NOBODY = """
import os, sys
del os.environ["HOME"]
os.getuid = lambda: 54321
import pwd
def unknown(*arguments): raise KeyError("uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
sys.argv = sys.argv[1:]
from transformer.commands.decode import decode_main
from transformer.commands.train import train_main
sys.exit((decode_main if "decode" in sys.argv[0] else train_main)())
"""


@pytest.mark.slow
def test_a_user_without_home_or_name(decoder: Path, tmp_path: Path) -> None:
    """As Kubernetes runs containers: a random user id."""
    environment = {k: v for k, v in os.environ.items() if k not in ("TRANSFORMER_CACHE", "TFDS_DATA_DIR")}
    (tmp_path / "in").write_text("red cat\n")
    done = command("-c", NOBODY, "decode.py", decoder, "--input", tmp_path / "in", env=environment)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    done = command("-c", NOBODY, "train.py", env=environment)
    assert done.returncode == 2
    assert "no home directory; set TRANSFORMER_CACHE" in done.stderr
    done = command("-c", NOBODY, "train.py", "--data.dataset", "wmt14_translate/de-en", env=environment)
    assert done.returncode == 2
    assert "no home directory: give --data.cache-dir" in done.stderr
    assert not (ROOT / "~").exists()


@pytest.mark.parametrize("name", ["config.json", "source.model", "checkpoints/1/manifest.json"])
@pytest.mark.parametrize("to", ["/dev/zero", "pipe", "/dev/null", "folder"])
def test_devices_in_place_of_files(decoder: Path, tmp_path: Path, name: str, to: str) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (run_dir / name).unlink()
    (run_dir / name).symlink_to(to if to.startswith("/") else tmp_path / to)
    with pytest.raises(UserError):
        Translator.load(run_dir)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '"system": "transformer"'),
        ("source.model", '"kind": "words"'),
        ("checkpoints/1/manifest.json", '"": ""'),
    ],
)
def test_a_name_that_a_file_of_a_run_has_twice(decoder: Path, tmp_path: Path, name: str, text: str) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    content = (run_dir / name).read_text()
    assert content.startswith("{")
    (run_dir / name).write_text(f"{{{text}, {text}, {content[1:]}")
    with pytest.raises(UserError, match=f"{name}.*: it is given twice"):
        Translator.load(run_dir)


def test_a_log_that_is_too_large_is_not_lost(config: Config, run_dir: Path) -> None:
    with open(run_dir / "metrics.jsonl", "ab") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="cannot read .*metrics.jsonl: larger than 256 MiB"):
        train(changed(config, steps=14), run_dir, watch=quiet())
    assert (run_dir / "metrics.jsonl").stat().st_size == 2**40


def test_a_language_is_no_path() -> None:
    for name in ("../x", "a/b", "", ".", "en\x1b"):
        with pytest.raises(UserError, match="--data.target-language must be a code"):
            DataConfig(target_language=name)


def test_a_partial_output_that_somebody_else_wrote(decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("red\nblue\n")
    files = ["--input", tmp_path / "in", "--output", tmp_path / "out", "--reference", tmp_path / "in"]
    arguments = parse_decode([*map(str, [decoder, *files]), "--format", "json", "--resume"])
    ordinary = LongOutput._open
    for line in (b"[]\n", b"\xff\n", b"{}\n", b'{"hypotheses": []}\n'):

        def opened(self: LongOutput, line: bytes = line) -> object:
            self._partial.write_bytes(line)
            return ordinary(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LongOutput, "_open", opened)
            with pytest.raises(UserError, match="is damaged: run the command without --resume"):
                decode_lines(arguments)


def test_devices_as_metrics(run_dir: Path) -> None:
    for name in ("metrics.jsonl", "results.json", "corpus"):
        (run_dir / name).unlink()
        (run_dir / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match="cannot read .*metrics.jsonl: not a regular file"):
        write_report(run_dir)
    with pytest.raises(UserError, match="the training data has changed"):
        Run(run_dir).check_corpus("text")


def test_files_that_are_too_large(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="larger than 256 MiB"):
        read_bytes(tmp_path / "large")
    with pytest.raises(UserError, match="line 1: longer than 64 MiB"):
        list(text_files.read_lines(tmp_path / "large"))


@pytest.mark.slow
def test_control_characters_do_not_reach_a_log() -> None:
    assert str(UserError("model\x1b[2J \u202eevil\x07\nline")) == "model\\x1b[2J \\u202eevil\\x07\nline"


def test_control_characters_do_not_reach_the_terminal(decoder: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(decoder, tmp_path / "run"))
    (run_dir / "config.json").write_text(json.dumps({"\x1b[31m\x07evil": 1}))
    done = command("decode.py", run_dir, shell="< /dev/null")
    assert done.returncode == 2
    assert "\\x1b[31m\\x07evil" in done.stderr


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("vocab.json", {"<unk>": True}),
        ("vocab.json", {"<unk>": 10**400}),
        ("vocab.json", {"\ud800": 59}),
        ("config.json", {"encoder_layers": 10**7}),
        ("config.json", {"decoder_layers": 10**7}),
        ("config.json", {"vocab_size": 10**400}),
        ("config.json", {"max_length": float("inf"), "num_beams": float("inf")}),
        ("config.json", {"pad_token_id": -1}),
        ("config.json", {"d_model": True}),
        ("config.json", {"dropout": 10**400}),
    ],
)
def test_a_refused_import_leaves_nothing(tmp_path: Path, file: str, changes: dict) -> None:
    folder = Path(shutil.copytree(MARIAN, tmp_path / "marian"))
    about = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(about | changes))
    begun = time.process_time()
    with pytest.raises(UserError):
        import_model(folder, tmp_path / "run")
    assert time.process_time() - begun < 20
    assert os.listdir(tmp_path) == ["marian"]


def test_a_name_in_a_model_that_no_file_can_have(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MARIAN, tmp_path / "marian"))
    weights = folder / "model.safetensors"
    weights.unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "a" * 5000}}))
    with pytest.raises(UserError, match="no such file"):
        import_model(folder, tmp_path / "run")
    with pytest.raises(UserError, match="Import a folder with one"):
        marian_files._model(folder, {"models": ["a" * 5000]})


def test_an_import_refused_while_it_is_stored_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "store_model", refuse)
        with pytest.raises(UserError, match="no"):
            import_model(MARIAN, tmp_path / "run")
    assert os.listdir(tmp_path) == []
    import_model(MARIAN, tmp_path / "run")


def in_child(queue: "multiprocessing.Queue[str]", work: Callable[[], object]) -> None:
    try:
        queue.put(f"worked: {work()}")
    except UserError as error:
        queue.put(str(error))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_is_told(decoder: Path) -> None:
    translator = Translator.load(decoder)
    assert len(translator.translate(["red"])) == 1
    context = multiprocessing.get_context("fork")
    for work in (
        lambda: translator.translate(["red"]),
        lambda: translator.score(["red"], ["red"]),
        lambda: Translator.load(decoder),
        lambda: translator.warm_up(),
    ):
        queue = context.Queue()
        child = context.Process(target=in_child, args=(queue, work))
        child.start()
        assert "forked from one that used JAX" in queue.get(timeout=60)
        child.join(60)
    assert len(translator.translate(["red"])) == 1


@pytest.mark.slow
def test_a_clock_that_jumps_is_not_a_full_disk(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ordinary = time.time, loop.Loop._checkpoint

    def keep(self: loop.Loop, stop: int) -> None:
        ordinary(self, stop)
        if self.step == 8:  # its checkpoint is being written
            monkeypatch.setattr(time, "time", lambda: now() + 30 * 365 * 86400)

    monkeypatch.setattr(loop.Loop, "_checkpoint", keep)
    with pytest.raises(UserError, match=r"timed out .*or was the clock changed\?") as caught:
        train(config, tmp_path / "run", watch=quiet())
    assert "full" not in str(caught.value)
    monkeypatch.undo()
    train(config, tmp_path / "run", watch=quiet())
    assert Run(tmp_path / "run").checkpoints.steps()[-1] == 12
