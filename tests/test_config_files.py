"""`train.py --config FILE`: what a config.json of a run holds can be given back, or a part of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import changed, parameters

from transformer import Config, UserError
from transformer.cli.command_line import TrainLine
from transformer.commands import train as command
from transformer.commands.config_file import read_options, with_options
from transformer.config.options import flatten
from transformer.runs.config_json import to_json
from transformer.systems.presets import every_system, preset


def as_toml(values: dict[str, Any], prefix: str = "") -> str:
    """Values without those that are null, which TOML cannot say."""
    own = {name: value for name, value in values.items() if not isinstance(value, dict) and value is not None}
    lines = [f"{name} = {json.dumps(value)}" for name, value in own.items()]
    if prefix:
        lines.insert(0, f"[{prefix}]")
    for name, value in values.items():
        if isinstance(value, dict):
            lines.append(as_toml(value, f"{prefix}.{name}" if prefix else name))
    return "\n".join(lines) + "\n"


WRITERS = {"json": json.dumps, "yaml": yaml.safe_dump, "yml": yaml.safe_dump, "toml": as_toml}


def config_of(*words: object) -> Config:
    arguments, _ = command._initial_arguments(TrainLine.of([str(word) for word in words]))
    return arguments.config


@pytest.mark.by_default("json", "toml")
@pytest.mark.parametrize("form", WRITERS)
def test_the_config_of_every_system_is_read_back(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"config.{form}"
    for name, config in every_system().items():
        path.write_text(WRITERS[form](json.loads(to_json(config))))
        found = with_options(preset("quickstart"), read_options(str(path)), str(path), ())
        assert flatten(found) == flatten(config), name
        assert type(found.decoding) is type(config.decoding)


@pytest.mark.slow
def test_a_run_is_repeated_by_its_config(config: Config, finished: Path, tmp_path: Path, call: Any) -> None:
    status, out, err = call(
        command.train_main, f"--config={finished / 'config.json'}", "--run-dir", tmp_path / "again"
    )
    assert status == 0, err
    assert (tmp_path / "again" / "config.json").read_bytes() == (finished / "config.json").read_bytes()
    assert [x.tolist() for x in parameters(tmp_path / "again")] == [x.tolist() for x in parameters(finished)]
    assert out.startswith(f"Config {finished / 'config.json'}\n")
    status, out, err = call(  # the same line again resumes it
        command.train_main, "--config", finished / "config.json", "--run-dir", tmp_path / "again"
    )
    assert status == 0, err
    assert "Training is complete" in out


def test_a_part_of_a_config_changes_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "training: {steps: 7, minutes: 0.5}\n"
        "optimizer: {peak: 1e-3, epsilon: 2.5E-7, clip_norm: 1}\n"
        "decoding: {method: sample, samples: 3, forbidden: [a b, c]}\n"
        "data: {train_tsv: pairs.tsv}\nmodel: {encoder_stack: {norm: pre}}\n"
    )
    found, base = config_of("multi30k", "--config", path, "--training.minutes", 9), preset("multi30k")
    assert (found.training.steps, found.training.minutes) == (7, 9.0)
    assert (found.optimizer.peak, found.optimizer.epsilon, found.optimizer.clip_norm) == (1e-3, 2.5e-7, 1.0)
    assert (found.decoding.method, found.decoding.samples) == ("sample", 3)
    assert found.decoding.forbidden == ("a b", "c")
    assert found.data.train_tsv == Path("pairs.tsv")
    assert found.model.encoder_stack.norm == "pre"
    assert found.model.d_model == base.model.d_model
    assert found.data.vocab_size == base.data.vocab_size
    _, about = command._initial_arguments(TrainLine.of(["--config", str(path), "--training.steps", "9"]))
    assert " ".join(about.split()) == f"Preset quickstart, config {path}, with --training.steps 9"


def test_options_and_variants_of_the_command_line_win(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[training]\nepochs = 3.0\nlabel_smoothing = 0.3\n[rdrop]\nweight = 2.0\n")
    assert config_of("--config", path).training.epochs == 3.0
    found = config_of("--config", path, "--training.steps", 5, "--variant", "rdrop")
    assert (found.training.steps, found.training.epochs) == (5, None)
    assert found.training.label_smoothing == 0.3
    assert found.rdrop == config_of("--variant", "rdrop").rdrop


def test_a_file_may_name_the_run_to_start_from(untrained_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"training: {{init_from: {untrained_run}}}\ndata: {{train_tsv: pairs.tsv}}\n")
    found = config_of("--config", path)
    assert found == config_of("--init-from", untrained_run, "--data.train-tsv", "pairs.tsv")
    path.write_text(path.read_text().replace("train_tsv: pairs.tsv", "train_tsv: pairs.tsv, vocab_size: 9"))
    with pytest.raises(UserError, match="--init-from brings its own vocabulary; leave it out"):
        config_of("--config", path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "training: {stepz: 3}", r"a.yaml: unknown field training.stepz: did you mean steps\?"),
        ("a.yaml", "training: {warmup-steps: 3}", "a.yaml: unknown field training.warmup-steps"),
        ("a.yaml", "steps: 3", "a.yaml: unknown field steps: write it into the section training"),
        (
            "a.yaml",
            "training.steps: 3",
            "a.yaml: training.steps: .* steps into the section training",
        ),
        ("a.json", '{"model.d_model": 32}', "write d_model into the section model"),
        ("a.toml", "run_dir = 'runs/a'", r"run_dir: give it on the command line \(--run-dir\), not in"),
        ("a.yaml", "preset: tiny", "preset: give it on the command line"),
        ("a.yaml", "model: 32", "a.yaml: model 32: must be a section with options, such as "),
        (
            "a.json",
            '{"training": {"steps": 3, "steps": 4}}',
            "a.json cannot .*: steps: it is given twice",
        ),
        ("a.json", '{"training": {}, "training": {}}', "a.json cannot be read: training: it is given twice"),
        ("a.yaml", "training: 3", "a.yaml: training 3: must be a section with options, such as steps"),
        (
            "a.yaml",
            "model: {encoder_stack: {nrom: pre}}",
            "field model.encoder_stack.nrom: did you mean norm",
        ),
        ("a.json", '{"training": {"steps": "3"}}', "a.json: --training.steps '3': must be a whole number"),
        ("a.json", '{"training": {"steps": 3.5}}', "a.json: --training.steps 3.5: must be a whole number"),
        ("a.json", '{"training": {"steps": 0}}', "a.json: --training.steps must be from 1 to"),
        (
            "a.toml",
            "[training]\nreduce_dtype = 'bflaot16'",
            "a.toml: --training.reduce-dtype 'bflaot16': choose float32 or bfloat16",
        ),
        ("a.toml", "[training]\nsteps = 3\nsteps = 4", "a.toml cannot be read: Cannot overwrite a value"),
        ("a.toml", "[training]\nsteps = 3\nepochs = 4", "training.epochs are both the length"),
        ("a.yaml", "training: {steps: 3, steps: 4}", "a.yaml cannot .*: steps, line 1: it is given twice"),
        ("a.yaml", "training:\n  steps: [3", "a.yaml cannot be read: .*line 2"),
        ("a.yaml", "1: 2", "the name of an option must be a text"),
        ("a.yaml", "", "it must have sections, such as training"),
        ("a.json", "[]", "not a JSON object"),
        ("a.json", "{", "a.json cannot be read"),
        (
            "a.yaml",
            "decoding: {method: greedy, beam_size: 4}",
            "a.yaml: --decoding.beam-size is an option of",
        ),
        ("a.yaml", "decoding: {method: beem}", "a.yaml: --decoding.method beem: choose "),
        ("a.yaml", "decoding: {beam_sise: 4}", "a.yaml: search option 'beam_sise' does not exist"),
        ("a.yaml", "{system: speech, decoding: {method: greedy, beam_size: 4}}", "is an option of"),
        ("a.yaml", "system: speach", "a.yaml: .*speach"),
        ("a.yaml", "optimizer: {peak: .inf}", "a.yaml: "),
        ("a.txt", "training: {steps: 3}", "give a file whose name ends in .json, .toml, .yaml, .yml"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        config_of("--config", tmp_path / name)


def test_lines_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--config needs a file"):
        config_of("--config")
    with pytest.raises(UserError, match="--config is given twice"):
        config_of("--config", "a.yaml", "--config=b.yaml")
    with pytest.raises(UserError, match="nowhere.yaml cannot be read: No such file"):
        config_of("--config", tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match=f"--config {tmp_path} is a folder: give .* {tmp_path}/config.json"):
        config_of("--config", tmp_path)
    (tmp_path / "speech.yaml").write_text("system: speech\n")
    with pytest.raises(UserError, match="system is speech, and preset multi30k is of transformer: leave out"):
        config_of("multi30k", "--config", tmp_path / "speech.yaml")


def test_a_misspelt_value_in_python_is_named_with_its_choices(config: Config) -> None:
    with pytest.raises(UserError, match="^--training.reduce-dtype 'bflaot16': choose float32 or bfloat16$"):
        changed(config, reduce_dtype="bflaot16")


def test_values_beside_a_run_that_differ_are_refused(
    config: Config, finished: Path, tmp_path: Path, refused: Any
) -> None:
    (tmp_path / "other.json").write_text(to_json(changed(config, evaluate_every=5)))
    err = refused(command.train_main, "--config", tmp_path / "other.json", "--run-dir", finished)
    assert "was made with other options: --training.evaluate-every: 4 -> 5" in err


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "distributed.md").read_text(encoding="utf-8")
    words = re.search(r"^python train.py (--config run.yaml .*)$", page, re.MULTILINE)[1]
    (tmp_path / "run.yaml").write_text(re.search(r"```yaml\n(data: .*?)```", page, re.DOTALL)[1])
    found = config_of(*words.replace("run.yaml", str(tmp_path / "run.yaml")).split())
    assert (found.training.epochs, found.training.minutes, found.training.save_minutes) == (10.0, 230.0, 30.0)
    assert (found.data.train_target, found.data.vocab_size) == (Path("train.de"), 4000)
    assert found.model.dropout == 0.2
