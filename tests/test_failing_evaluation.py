"""An evaluation that fails loses no step, and the command that resumes is the same wherever it is printed."""

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from small_run import changed, quiet, same
from tiers import mostly_slow

from transformer import Run, UserError
from transformer.cli.command_line import TrainLine
from transformer.commands.train import _continued
from transformer.runtime import hosts
from transformer.runtime.invocation import command
from transformer.trainer.evaluator import Evaluator
from transformer.trainer.resolved import resume_command
from transformer.trainer.train import train

ERRORS = [UserError("this needs jiwer"), MemoryError("out of memory")]


@pytest.mark.slow
@pytest.mark.parametrize("error", mostly_slow(ERRORS, ERRORS[1:]))
def test_the_step_is_saved_before_the_error(config, finished, tmp_path, monkeypatch, error):
    def fail(self, *_):
        raise error

    watch, told = quiet(), []
    monkeypatch.setattr(watch, "message", lambda text, **_: told.append(text))
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "validate", fail)
        for _ in range(2):  # the second begins with the evaluation, which fails again
            with pytest.raises(type(error), match=str(error)):
                train(config, tmp_path / "run", watch=watch)
            run = Run(tmp_path / "run")
            assert run.checkpoints.steps() == [4]
            assert told[-1] == f"The evaluation failed. Step 4 is saved. Resume with: {resume_command(run)}"
    train(config, tmp_path / "run", watch=quiet())
    assert same(tmp_path / "run", finished)
    steps = [each["step"] for each in Run(tmp_path / "run").log.records("evaluation")]
    assert steps == [4, 8, 12]


def test_an_error_of_one_process_is_raised_on_all(monkeypatch):
    def work(items):
        raise UserError("no output for line 3")

    monkeypatch.setattr(hosts.jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "gathered", lambda mine: json.loads(json.dumps([[[1, 2], ""], mine])))
    with pytest.raises(UserError, match="no output for line 3"):
        hosts.by_turns([1, 2, 3], work)
    assert hosts.by_turns([1, 2, 3], lambda items: [3]) == [1, 2, 3]


def parsed(line: str, run_dir: Path):
    """The config of a printed command that resumes."""
    program, *words = shlex.split(line)
    assert (program, words[0]) == ("python", "train.py")
    assert words[1:3] == ["--run-dir", str(run_dir)]
    parsed_line = TrainLine.of(words[1:])
    assert parsed_line.started == str(run_dir)
    return _continued(parsed_line, run_dir).config


@pytest.mark.parametrize("name", ["run", "my 'run'; echo"])
def test_the_command_that_resumes(finished, tmp_path, name):
    """With the paths of one's own text, for names that a shell would divide, and with other lengths."""
    run_dir = Path(shutil.copytree(finished, tmp_path / name))
    run = Run(run_dir)
    assert parsed(resume_command(run), run_dir) == run.config
    longer = changed(run.config, steps=20, patience=3)
    assert "--training.patience 3" in resume_command(run, longer)
    assert parsed(resume_command(run, longer), run_dir) == longer
    assert parsed(resume_command(run, changed(longer, patience=None)), run_dir).training.steps == 20


def test_an_error_prints_that_command(config, finished):
    other = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, peak=0.5))
    with pytest.raises(UserError) as refused:
        train(other, finished, watch=quiet())
    (line,) = re.findall("these options: (.*); or name another", str(refused.value))
    assert line == resume_command(Run(finished))
    assert parsed(line, finished) == Run(finished).config


def test_a_run_of_a_built_in_corpus_needs_no_more_than_its_name(decoder):
    run = Run(decoder)
    assert resume_command(run) == f"python train.py --run-dir {decoder}"


def test_printed_commands_are_quoted():
    assert command("decode", "a b") == "python decode.py 'a b'"
    assert command("average", "x", "--last", "2") == "python -m transformer average x --last 2"
