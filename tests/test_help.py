"""Help texts of the commands, and the names by which they refer to each other."""

import dataclasses
import importlib
import itertools
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from configs import CONFIGS

import transformer
from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.guard import wrapped_help
from transformer.cli.parser import texts
from transformer.commands.doctor import DoctorArguments
from transformer.commands.help import preset_table, train_help
from transformer.commands.main import COMMANDS, main
from transformer.commands.models import AverageArguments, DistillArguments, ReportArguments
from transformer.commands.train_arguments import TrainArguments
from transformer.config.options import HostsConfig, flatten
from transformer.runs.config_json import to_json
from transformer.runtime.errors import nearest
from transformer.runtime.invocation import command_for
from transformer.systems.presets import PRESET_GROUPS, PRESETS, VARIANT_GROUPS, VARIANTS
from transformer.systems.registry import COMMON

ROOT = Path(__file__).parent.parent


def help_of(words: str) -> str:
    """The short help of a preset, or of `PRESET --variant NAME`."""
    return train_help(*words.split(" --variant "))


@pytest.mark.parametrize(("groups", "table"), [(PRESET_GROUPS, PRESETS), (VARIANT_GROUPS, VARIANTS)])
def test_every_preset_and_variant_is_described_once(groups, table):
    described = [name for group in groups.values() for name in group]
    assert sorted(described) == sorted(table)
    for name in table:
        assert name in train_help()
        assert re.search(rf"^  {re.escape(name)} ", preset_table(), re.MULTILINE)


def test_the_help_fits_on_a_page(call):
    status, out, _ = call(main, "train", "--help")
    assert status == 0
    assert out.strip() == train_help()
    for text in (out, preset_table()):
        assert max(map(len, text.splitlines())) <= 80
    assert [name for name in CONFIGS if len(help_of(name).splitlines()) > 75] == []


def ragged(text: str) -> list[str]:
    """The lines in the boxes of a help that end although the next word, of the same text, has room."""
    lines = [line[2:-2] for line in text.splitlines() if line.startswith("│ ")]
    found = []
    for line, after in itertools.pairwise(lines):
        depth, words = len(line) - len(line.lstrip()), after.split()
        names = any(
            re.match(r" *[-─]|[A-Z]+ {2}|\[", each) for each in (line, after)
        )  # of options, and rules
        same = line.strip() and after.startswith(" " * depth) and after[depth : depth + 1].strip()
        if same and not names and len(line.rstrip()) + 1 + len(words[0]) <= len(line):
            found.append(line.strip())
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_described_in_whole_paragraphs(name, monkeypatch, call):
    """Whatever a line of a docstring begins with."""
    option = "--help-all" if name in ("train", "decode") else "--help"
    for columns in ("80", "103"):
        monkeypatch.setenv("COLUMNS", columns)
        status, out, _ = call(main, name, option)
        assert status == 0
        assert ragged(out) == []


def test_raggedness_is_seen():
    box = "│ --x INT           │\n│     one two       │\n│     {}        │"
    assert ragged(box.format("three")) == ["one two"]
    assert ragged(box.format("three,four")) == []


NAMES = ("alpha", "beta", "epsilon_ls", "g:", "h,", "sacreBLEU's")  # of the papers


def makes_sense_alone(text: str) -> bool:
    """Whether the text of an option begins with a noun or verb, and not with a choice or with what its
    neighbour has named."""
    needs = re.match(r"(The same|Theirs?|Its?|Of|These|Those|They|As)\b", text)
    return text.startswith(NAMES) or (text[0].isupper() and not needs)


def test_every_option_of_every_system_has_a_text():
    """Of its own, or that of the field which it repeats; without line breaks but between paragraphs."""
    kinds = {type(section) for config in CONFIGS.values() for section in sections(config)}
    for kind in (
        *kinds,
        DecodeArguments,
        TrainArguments,
        DistillArguments,
        AverageArguments,
        ReportArguments,
        DoctorArguments,
    ):
        for item in dataclasses.fields(kind):
            text = texts(kind).get(item.name)
            nested = dataclasses.is_dataclass(item.type) or item.name in (
                "config",
                "decoding",
                "hosts",
                "windows",
            )
            assert text or nested, f"{kind.__name__}.{item.name}"
            for paragraph in (text or "").split("\n\n"):
                assert paragraph == " ".join(paragraph.split())
            assert not text or makes_sense_alone(text), f"{kind.__name__}.{item.name}: {text}"


FORMULAS = {"d_model", "d_k", "d_v", "num_heads", "warmup_steps"}
"""Options that have the names of the paper."""


def test_texts_name_options_as_a_command_line_does():
    kinds = {type(section) for config in CONFIGS.values() for section in sections(config)}
    names = {item.name for kind in kinds for item in dataclasses.fields(kind) if "_" in item.name} - FORMULAS
    wrong = {text for kind in kinds for text in texts(kind).values() if names & {*re.findall(r"\w+", text)}}
    assert not wrong


def sections(config):
    """The parts of a config."""
    values = (getattr(config, item.name) for item in dataclasses.fields(config))
    return [value for value in values if dataclasses.is_dataclass(value)]


def test_a_docstring_is_taken_in_paragraphs():
    @dataclasses.dataclass
    class Below:
        a: int = 0
        """One line
        (and another),
        `and` more.

        A second
        paragraph."""
        b: int = 0

    class Above(Below):
        pass

    @dataclasses.dataclass
    class Again(Below):
        a: int = 1

    whole = {"a": "One line (and another), `and` more.\n\nA second paragraph."}
    assert texts(Below) == texts(Above) == texts(Again) == whole


@pytest.mark.parametrize(
    "words", [("fine-tune",), *(("tiny", "--variant", name) for name in VARIANTS if VARIANTS[name].continues)]
)
def test_options_for_a_trained_model_are_described_without_one(words, call):
    status, everything, errors = call(main, "train", *words, "--help-all")
    assert (status, errors) == (0, "")
    assert "--training.init-from" in everything
    assert call(main, "train", *words)[0] == 2


def test_common_options_are_options(call):
    status, everything, _ = call(main, "train", "--help-all")
    assert status == 0
    for name in COMMON:
        assert f"--{name.replace('_', '-')} " in everything
    mentioned = set(re.findall(r"--[a-z][a-z.-]*[a-z]", train_help()))
    short = {"--init-from", "--help-all", "--list-presets", "--version", "--data.test-source"}
    assert all(option in everything for option in mentioned - short)


def test_the_help_has_the_values_of_the_preset(call):
    _, out, _ = call(main, "train", "tiny", "--help")
    assert out.strip() == train_help("tiny")
    assert "[value in preset tiny]" in out
    assert re.search(r"--model.num-layers .*\[4\]", out)
    _, out, _ = call(main, "train", "tiny", "--variant", "A-heads-16", "--help")
    assert out.strip() == train_help("tiny", "A-heads-16")
    assert "[value in preset tiny, variant A-heads-16]" in out
    assert re.search(r"--variant A-heads-16 +Table 3 \(A\): --model.num-heads 16", out)
    _, out, _ = call(main, "train", "--variant=C-width-256", "--help")
    assert re.search(r"--model.d-model .*\[256\]", " ".join(out.split()))
    for name in CONFIGS:
        assert max(map(len, help_of(name).splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_a_version(name, call):
    status, out, _ = call(main, name, "--help")
    assert status == 0
    assert "usage: " in out
    status, out, _ = call(main, name, "--version")
    assert status == 0
    assert out.startswith(f"transformer {transformer.__version__} (jax ")


SLOW = {"jax", "numpy", "flax", "importlib.metadata", "google.protobuf"}
"""What takes long to import, and no help needs."""


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        ("train --help", {*SLOW, "tyro"}),
        ("train tiny --variant fat --help", {*SLOW, "tyro"}),
        ("decode --help", SLOW - {"importlib.metadata", "google.protobuf"}),
    ],
)
def test_a_help_imports_nothing_slow(words, unneeded):
    program = (
        "import atexit, sys; from transformer.commands.main import main\n"
        "atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr)); main()"
    )
    done = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True)
    assert "usage: " in done.stdout
    assert not {name for name in unneeded if f"'{name}'" in done.stderr}
    assert "'transformer.systems.presets'" in done.stderr or words.startswith("decode")


ALWAYS = {"torch", "transformers", "matplotlib", "pandas", "scipy.optimize", "scipy.linalg"}
"""What no command imports but where a user asks for it."""
UNNEEDED = {
    "decode RUN": {"sacrebleu", "tensorflow_datasets", "tensorboardX", "soundfile", "PIL"},
    "report RUN": {"sacrebleu", "tensorflow_datasets", "tensorboardX", "soundfile", "PIL"},
    "average RUN": {"sacrebleu", "tensorflow_datasets", "tensorboardX"},
    "train --run-dir RUN --config CONFIG": {"soundfile"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("words", UNNEEDED)
def test_a_command_imports_what_it_needs(words, finished, tmp_path):
    """It takes a second and more to import one of these, and hundreds of megabytes."""
    names = {"RUN": shutil.copytree(finished, tmp_path / "run")}
    program = (
        "import atexit, sys; from transformer.commands.main import main\n"
        "atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr)); sys.exit(main())"
    )
    config = tmp_path / "run" / "config.json"
    words_of = [str(names.get(word, config if word == "CONFIG" else word)) for word in words.split()]
    done = subprocess.run(
        [sys.executable, "-c", program, *words_of], capture_output=True, text=True, input="red cat\n"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not {name for name in ALWAYS | UNNEEDED[words] if f"'{name}'" in done.stderr}


def test_the_nearest_name_is_suggested(call):
    assert call(main, "trian")[2] == "transformer: no command 'trian': did you mean train?\n"
    status, _, err = call(main, "train", "tiny-recurent")
    assert status == 2
    assert "no preset 'tiny-recurent': did you mean tiny-recurrent" in err
    status, _, err = call(main, "train", "zzz")
    assert "no preset 'zzz'; see --list-presets" in err
    status, _, err = call(main, "train", "--data.vocabsize", "9")
    assert status == 2
    assert "--data.vocab-size" in err
    assert nearest("qqqqq", PRESETS) == ""


def test_commands_are_called_by_names_that_work_here(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert command_for("train") == "python train.py"
    assert command_for("average") == "python -m transformer average"
    for name in ("train", "decode", "average"):  # the two scripts, and what the others are like
        words = [sys.executable, *command_for(name).split()[1:], "--version"]
        assert subprocess.run(words, capture_output=True, check=True).stdout
    monkeypatch.chdir(tmp_path)
    assert command_for("train") == "transformer train"


def test_installed_commands_are_there(monkeypatch):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {*scripts} == {"transformer", "transformer-train", "transformer-decode"}
    for name, entry in scripts.items():
        module, _, function = entry.partition(":")
        monkeypatch.setattr("transformer.commands.main.main", lambda: len(sys.argv))
        monkeypatch.setattr(sys, "argv", [name, "--version"])
        with pytest.raises(SystemExit) as end:
            getattr(importlib.import_module(module), function)()
        assert sys.argv == [name, *name.split("-")[1:], "--version"]
        assert end.value.code == len(sys.argv)


@pytest.mark.slow
def test_printed_commands_run_outside_the_repository(tmp_path, monkeypatch, call):
    """From the end of a training to the command that it prints."""
    for name, line in {"en": "a dog\n", "de": "ein Hund\n"}.items():
        (tmp_path / f"text.{name}").write_text("".join(f"{number} {line}" for number in range(40)))
    options = ["--data.train-source", "text.en", "--data.train-target", "text.de", "--run-dir", "run"]
    options += ["--training.steps", "1", "--data.tokenizer", "char", "--data.cache-dir", "cache"]
    options += ["--model.num-layers", "1", "--model.d-model", "32", "--model.d-ff", "32"]
    monkeypatch.chdir(tmp_path)
    status, out, err = call(main, "train", *options)
    assert status == 0, err
    assert "is held out" in out
    (line,) = re.findall(r"^Try: echo (.*) \| transformer decode run$", out, re.MULTILINE)
    sentence = " ".join(shlex.split(line)) + "\n"
    status, out, err = call(main, "decode", "run", stdin=sentence.encode())
    assert status == 0, err
    assert out.count("\n") == 1


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_on_pages_exist(page):
    known = {f"--{name.replace('_', '-')}" for config in CONFIGS.values() for name in flatten(config)}
    known |= {f"--hosts.{item.name.replace('_', '-')}" for item in dataclasses.fields(HostsConfig)}
    sections = "model|data|optimizer|training|decoding|mesh|hosts"
    found = set(re.findall(rf"--(?:{sections})(?:\.[a-z0-9-]+)+", page.read_text())) - {"--model.z-loss"}
    negated = {option.replace(".no-", ".") for option in found}
    assert {option for option in negated if not option.endswith("-")} <= known


@pytest.mark.parametrize("page", ["install"])
def test_code_on_a_page_runs(page):
    for program in re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.DOTALL):
        exec(program, {})


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_what_a_command_does_fits_in_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = "word " * 40 + "\n\n  a command with --an-option\n"
    lines = wrapped_help(text).split("\n")
    assert columns - 5 <= max(map(len, lines)) <= columns
    assert "  a command with --an-option" in lines
    assert " ".join(wrapped_help(text).split()) == " ".join(text.split())


def test_no_default_is_shown_as_nothing(call):
    for name in COMMANDS:
        option = "--help-all" if name in ("train", "decode") else "--help"
        _, out, _ = call(main, name, option)
        assert "(default: )" not in " ".join(out.replace("│", " ").split())


def test_the_help_of_a_run_has_the_options_that_it_has_a_use_for(call, tmp_path):
    only_some = {
        "--until": "shakespeare",
        "--times": "speech",
        "--pronunciation": "synthesis",
        "--tsv": "tiny",
    }
    for preset in only_some.values():
        config = PRESETS[preset]
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=300))
        (tmp_path / "config.json").write_text(to_json(config))
        status, out, _ = call(main, "decode", str(tmp_path), "--help")
        assert status == 0
        assert [only_some[option] for option in only_some if f"│ {option}" in out] == [preset]


@pytest.mark.parametrize("preset", ["", "tiny", "speech", "shakespeare"])
def test_the_help_of_decode_has_common_options_and_says_how_many_there_are(preset, call, tmp_path):
    words = [str(tmp_path)] if preset else []
    if preset:
        config = PRESETS[preset]
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=300))
        (tmp_path / "config.json").write_text(to_json(config))
    _, short, _ = call(main, "decode", *words, "--help")
    _, everything, _ = call(main, "decode", *words, "--help-all")
    common, every = (set(re.findall(r"^│ (?:-v, )?(--[a-z.-]+)", text, re.M)) for text in (short, everything))
    assert common < every
    assert short.splitlines()[-1] == f"These are the common options; --help-all describes all {len(every)}."
    assert "--help-all describes" not in everything
    assert len(common) == 35 or preset != "tiny"
