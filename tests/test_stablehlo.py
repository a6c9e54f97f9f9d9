"""Exported programs run without this package, and give the outputs of a greedy search."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from reference_search import random_variables
from systems_on_a_mesh import config_of
from tiers import mostly_slow

from transformer import Config, UserError
from transformer.commands.models import export_command
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.interop.pretrained import import_model
from transformer.interop.stablehlo import export_stablehlo
from transformer.runs.run import Run
from transformer.systems.registry import REGISTRY, find_system
from transformer.tasks.texts.translation import Translation
from transformer.translator.translator import Translator

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data" / "pretrained"
TRANSLATE = ("transformer", "recurrent", "convolutional", "fast-autoregressive")
TEXT = ["a dog runs over the green field", "two men ride their bikes", "the small house is old"]
LONG = 24
GREEDY = {"method": "greedy", "rows": 4, "buckets": (64,), "extra_length": 60}


def example() -> str:
    """The program of the page."""
    page = (ROOT / "docs" / "pretrained" / "export.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page.split("\n## ")[1], re.DOTALL)
    return program


def outputs(folder: Path, sentences: list[list[int]]) -> list[list[int]]:
    """Those of the page's program, in a process that has not imported this package."""
    check = "\nassert not [name for name in sys.modules if name.split('.')[0] in ('transformer', 'flax')]\n"
    lines = [" ".join(map(str, ids)) for ids in sentences]
    words = [sys.executable, "-I", "-c", example() + check, str(folder), *lines]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return [list(map(int, line.split())) for line in ended.stdout.splitlines()]


@pytest.mark.by_default("lines1")
@pytest.mark.parametrize("lines", [["1 2 3", "4"], ["1 2 3 4 5 6 7 8"]])
def test_the_program_refuses_what_does_not_fit(tmp_path, lines):
    """More sentences than rows, or one that is longer, with its end."""
    (tmp_path / "programs.json").write_text(json.dumps({"rows": 1, "length": 8, "eos": 0, "pad": 0}))
    text = example()
    program = (
        text[: text.index("params =")] + text[text.index("sentences =") : text.index("source = np.full")]
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), *lines], capture_output=True, text=True, check=False
    )
    assert ended.stderr.startswith("at most 1 sentences of 8 ids, with the end"), ended.stderr


def equal(run_dir: Path, folder: Path) -> None:
    translator = Translator.load(run_dir)
    tokenizer, eos = translator.tokenizers[0], translator.task.special.eos
    texts = ["a dog runs", "the small green house"]
    export_command([str(run_dir), str(folder), "--to", "stablehlo", "--rows", "3", "--length", str(LONG)])
    sources = [tokenizer.encode(text) for text in texts]
    for min_length in (0, LONG):  # outputs of random models are short, or end never
        if min_length:
            about = json.loads((folder / "programs.json").read_text())
            about["never_predicted"].append(eos)
            (folder / "programs.json").write_text(json.dumps(about))
        results = translator.search(texts, **GREEDY, min_length=min_length, max_length=LONG + 1)
        expected = [[index for index in best.ids if index != eos] for (best, *_) in results]
        assert outputs(folder, sources) == expected
    assert {*map(len, expected)} == {LONG}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(["t5", "nllb", "bart", "pegasus"], ["nllb"]))
def test_imported_models_run_as_programs(name, tmp_path):
    languages = ("eng_Latn", "deu_Latn") if name == "nllb" else ()
    import_model(DATA / name, tmp_path / "run", *languages)
    equal(tmp_path / "run", tmp_path / "programs")


@pytest.mark.thorough
@pytest.mark.parametrize("name", mostly_slow(TRANSLATE, ["recurrent"]))
def test_each_system_that_translates_token_by_token_runs_as_programs(name, tmp_path):
    tokenizer = train_tokenizer(TEXT * 9, "unigram", 280)
    config = config_of(name)
    config = dataclasses.replace(
        config, model=dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size)
    )
    variables = random_variables(find_system(name).model(config.model), 3)
    task = Translation(config, (tokenizer, tokenizer))
    Run.create(tmp_path / "run", config, task, variables=variables)
    equal(tmp_path / "run", tmp_path / "programs")


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - set(TRANSLATE)))
def test_other_systems_are_refused(name, tmp_path, monkeypatch):
    config = config_of(name)
    monkeypatch.setattr("transformer.interop.stablehlo.Run", lambda path: FakeRun(config))
    with pytest.raises(UserError, match=f"{name} model: only models that translate token by token"):
        export_stablehlo(tmp_path / "run", tmp_path / "programs")
    assert not (tmp_path / "programs").exists()


@dataclasses.dataclass
class FakeRun:
    """A run of which only the config is read."""

    config: Config
    name: str = "run"


def test_mistakes_are_named(tmp_path):
    import_model(DATA / "t5", tmp_path / "run")
    arguments = [str(tmp_path / "run"), str(tmp_path / "programs")]
    for options, message in (
        (["--to", "stablehlo", "--rows", "0"], "--rows 0: must be from 1"),
        (["--to", "stablehlo", "--length", "9999999"], "--length 9999999: must be from 1"),
        (["--rows", "2"], "--rows is for --to stablehlo"),
    ):
        with pytest.raises(UserError, match=message):
            export_command([*arguments, *options])
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "mine").write_text("")
    with pytest.raises(UserError, match="exists: name a new folder"):
        export_command([*arguments, "--to", "stablehlo"])
