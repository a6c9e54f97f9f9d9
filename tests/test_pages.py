"""Programs of the documentation run as printed, its sources are wrapped, and its tables are narrow."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from run_command import on_devices
from small_run import drawn_run
from small_translator import small_translator, stored
from test_generator import config_of

from transformer import PRESETS, Config
from transformer.commands.decode import decode_main
from transformer.config.options import flatten

DOCS = Path(__file__).parent.parent / "docs"
WIDEST = 130  # characters of a line of prose
MOST_COLUMNS = 6  # of a table: more cannot be read on a phone
SOURCES = [
    *DOCS.rglob("*.md"),
    *(DOCS.parent / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
]


def wide_prose(page: str) -> list[str]:
    """The lines of prose that are too long: not those of code, tables, headings, images, HTML or one link."""
    prose = re.sub(r"^ *```.*?^ *```", "", page, flags=re.DOTALL | re.MULTILINE)
    return [
        line
        for line in prose.splitlines()
        if len(line) > WIDEST and not re.match(r"\s*(\||#|!\[|<|\S+$)", line)
    ]


def test_lines_of_prose_are_short() -> None:
    long = "word " * 30
    page = f"# {long}\n{long}\n```\n{long}\n```\n| {long} |\n- {long}\n{'/'.join(long.split())}\n"
    assert wide_prose(page) == [long, f"- {long}"]
    for path in SOURCES:
        assert wide_prose(path.read_text(encoding="utf-8")) == [], path


def wide_tables(page: str) -> list[str]:
    """The heads of tables with too many columns: not those in blocks of code."""
    text = re.sub(r"^ *```.*?^ *```", "", page, flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^ *\|(.*)\|\n *\|[ :|-]+\|$", text, re.MULTILINE)
    return [head for head in heads if len(re.sub(r"`[^`]*`|\\\|", "", head).split("|")) > MOST_COLUMNS]


def test_tables_have_few_columns() -> None:
    def table(columns: int) -> str:
        return "| `a|b` " * columns + "|\n" + "|---" * columns + "|\n"

    wide, narrow = table(MOST_COLUMNS + 1), table(MOST_COLUMNS)
    page = f"{narrow}\n{wide}\n```\n{wide}```\n"
    assert wide_tables(page) == [wide.splitlines()[0].strip("|")]
    for path in SOURCES:
        assert wide_tables(path.read_text(encoding="utf-8")) == [], path


def programs_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_what_programs_of_pages_import_is_there() -> None:
    """Names of the package, which move: the programs themselves run in the slow tier."""
    for path in SOURCES:
        for program in re.findall(r"^```python.*?\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S):
            for node in ast.walk(ast.parse(program)):
                if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "transformer":
                    exec(ast.unparse(node), {})


@pytest.mark.slow
def test_a_training_loop_in_thirty_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    page = (DOCS / "training-loop.md").read_text(encoding="utf-8")
    program, _ = programs_of(page)
    assert len([line for line in program.splitlines() if line]) <= 30
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(program, names)
    assert capsys.readouterr().out == "4 3 2 1\n"
    assert float(names["metrics"]["correct"]) > 0.95
    translator, sources = names["Translator"].load("runs/reverse", "last"), names["sources"][:50]
    expected = [" ".join(reversed(source.split())) for source in sources]
    found = translator.translate(sources)
    assert sum(map(str.__eq__, found, expected)) >= 45


@pytest.mark.slow
def test_a_training_loop_on_several_devices(tmp_path: Path) -> None:
    """The second program takes the place of the last part of the first, as the page says."""
    one, several = programs_of((DOCS / "training-loop.md").read_text(encoding="utf-8"))
    before = one[: one.index("state = init_state")].replace("steps=600", "steps=20")
    after = one[one.index("run.checkpoints.store_model") :]
    again = "assert metrics['weight'] > 64 and metrics['loss'] < 3, metrics\n"
    text = before + several.replace(", 64)", ", 60)") + after + again
    ran = subprocess.run(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        env={**on_devices(8), "PYTHONPATH": str(DOCS.parent)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_each_way_to_steer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every command of the page, with untrained models instead of those of the quick start."""
    page = (DOCS / "steering.md").read_text(encoding="utf-8")
    words = re.findall(r'"(.*?)[\\t"]', page)
    for seed in 1, 2:
        translator = small_translator(words=words, seed=seed, tokenizer=("char", 400))
        stored(translator, tmp_path / f"runs/transformer-{seed}")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if "train.py" not in line]
    for command in commands:
        given, _, options = command.partition(" | python decode.py ")
        shell = subprocess.run(["sh", "-c", given], capture_output=True, check=True)
        if not options:
            continue
        Path("lines").write_bytes(shell.stdout)
        typed = ["decode.py", *shlex.split(options), "--input", "lines", "--buckets", "64"]
        monkeypatch.setattr(sys, "argv", typed)
        assert decode_main() == 0, (command, capfd.readouterr().err)
        assert capfd.readouterr().out.strip()
    assert len([command for command in commands if "decode.py" in command]) >= 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["config", "data", "training", "decoding", "searches", "systems", "inspection"]
)
def test_examples_of_the_reference(
    name: str, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """They run as printed, with small runs. What a line prints is the comment behind it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "quickstart", config)
    stored(small_translator(words=["A dog runs."], tokenizer=("char", 400)), tmp_path / "runs/mine")
    if name == "systems":
        drawn_run(config_of("language-model", tmp_path, 1), tmp_path / "runs/text")
    (program,) = programs_of((DOCS / f"reference/{name}.md").read_text(encoding="utf-8"))
    exec(program, {})
    printed = capsys.readouterr().out
    assert printed.strip()
    for comment in re.findall(r"^ *print\(.*\)  # ([(\d].*)", program, re.MULTILINE):
        assert f"{comment}\n" in printed


class Outside:
    """The package of the page, beside this one: found through its entry points by commands in another
    process."""

    def __init__(self, folder: Path) -> None:
        page = (DOCS / "own-system.md").read_text(encoding="utf-8")
        self.folder = folder
        for name, program in zip(("zloss", "sorter", "test_zloss"), programs_of(page), strict=True):
            (folder / f"{name}.py").write_text(program, encoding="utf-8")
        (project,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
        info = folder / "zloss-0.1.dist-info"
        info.mkdir()
        named = tomllib.loads(project)["project"]
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {named['name']}\nVersion: 0.1\n")
        points = named["entry-points"]["transformer.systems"] | {"sorter": "sorter"}
        (info / "entry_points.txt").write_text(
            "[transformer.systems]\n" + "".join(f"{name} = {module}\n" for name, module in points.items())
        )

    def run(self, *commands: tuple[list[object], str]) -> list[tuple[int, str, str]]:
        """The exit status, output and errors of commands with their standard inputs, which run one after
        the other in a process of their own."""
        given = [([str(word) for word in words], text) for words, text in commands]
        ran = subprocess.run(
            [sys.executable, "-c", COMMANDS, json.dumps(given)],
            env={**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{DOCS.parent}"},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert ran.returncode == 0, ran.stderr
        ended = [json.loads(line) for line in (self.folder / "statuses").read_text().splitlines()]
        return [
            (status, *((self.folder / f"{name}-{number}").read_text() for name in ("out", "errors")))
            for number, status in enumerate(ended)
        ]


COMMANDS = """
import json, os, sys
from transformer.commands.main import main
open("statuses", "w").close()
for number, (words, text) in enumerate(json.loads(sys.argv[1])):
    open(f"in-{number}", "w").write(text)
    for descriptor, name, mode in ((0, "in", "r"), (1, "out", "w"), (2, "errors", "w")):
        with open(f"{name}-{number}", mode) as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdin, sys.argv = open(0, closefd=False), ["transformer", *words]
    try:
        status = main()
    except SystemExit as stop:
        status = stop.code
    sys.stdout.flush()
    sys.stderr.flush()
    print(json.dumps(status), file=open("statuses", "a"))
"""


SIZES = [f"--model.{name}" for name in ("num-layers=1", "d-model=16", "d-ff=16", "num-heads=2")]


@pytest.mark.slow
def test_a_task_from_outside(tmp_path: Path) -> None:
    short = ["--training.steps=4", "--training.evaluate-every=2", "--optimizer.schedule=inverse_sqrt"]
    row = "3 1 2\n"
    done, resumed, decoded, truncated, *refused = Outside(tmp_path).run(
        (["train", "sorter", *SIZES, *short, "--run-dir=run", "--data.cache-dir=cache"], ""),
        (["train", "--run-dir=run", "--training.steps=6", "--data.cache-dir=cache"], ""),
        (["decode", "run"], f"{row}\n9 9 0\n"),
        (["decode", "run", "--buckets", "2"], row),
        (["decode", "run", "--reference", "run/config.json"], row),
        (["train", "sorter", *SIZES, "--init-from", "run"], row),
    )
    assert done[0] == 0, done
    assert "test rows sorted" in done[1] + done[2]
    assert resumed[0] == 0, resumed
    assert "200 rows of digits" in (tmp_path / "run/report.html").read_text()
    assert decoded[0] == 0, decoded
    assert re.fullmatch(r"([0-9 ]*\n){3}", decoded[1])
    assert "line 1: source truncated from 4 to 2" in truncated[2]
    for status, _, errors in refused:
        assert (status, len(errors.splitlines())) == (2, 1), errors


@pytest.mark.slow
def test_the_test_of_a_system_from_outside(tmp_path: Path) -> None:
    Outside(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "test_zloss.py"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{DOCS.parent}"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
def test_a_system_from_outside(tmp_path: Path, config: Config) -> None:
    outside = Outside(tmp_path)
    files = {name: value for name, value in flatten(config).items() if name.startswith("data.") and value}
    options = [
        f"--{name.replace('_', '-')}={files[name]}"
        for name in ("data.train_source", "data.train_target", "data.validation_source", "data.cache_dir")
        if name in files
    ]
    options.append(f"--data.validation-target={files['data.validation_target']}")
    short = ["--training.steps=4", "--training.evaluate-every=2", "--data.vocab-size=280"]
    short.append("--optimizer.schedule=inverse_sqrt")  # whose number of steps may change
    presets, trained, resumed, *others = outside.run(
        (["train", "--list-presets"], ""),
        (["train", "z-loss", *options, *SIZES, "--model.z-loss=0.5", *short, "--run-dir=run"], ""),
        (["train", "--run-dir=run", "--training.steps=6", *options], ""),
        *(([name, "run"], "a b\n") for name in ("decode", "average", "report")),
    )
    assert "quickstart with a z-loss" in presets[1]
    assert trained[0] == 0, trained
    assert resumed[0] == 0, resumed
    assert Path(tmp_path / "run/checkpoints/6").is_dir()
    assert '"z_loss": 0.5' in (tmp_path / "run/config.json").read_text()
    for status, _, errors in others:
        assert (status, "Traceback" in errors) == (0, False), errors
    (tmp_path / "zloss.py").write_text("import nothing_like_this")
    decoded, presets = outside.run((["decode", "run"], "a\n"), (["train", "--list-presets"], ""))
    assert decoded[0] == 2
    assert "the systems of package zloss cannot be imported: No module named" in decoded[2]
    assert presets[0] == 0  # others are known nevertheless
    assert "sorts digits" in presets[1]
    assert "cannot be imported" in presets[2]


@pytest.mark.parametrize("page", ["docs/design.md", "docs/journey.md", "docs/paper.md", "CONTRIBUTING.md"])
def test_files_that_pages_name_exist(page: str) -> None:
    """Files of the repository, of the package or of one of its rooms."""
    root = DOCS.parent
    here = {path.name for path in (root / "transformer").rglob("*.py")} | {
        path.name for path in root.iterdir()
    }
    named = re.findall(r"(?<![\w/])(?:[\w.]+/)*\w+\.py\b", (root / page).read_text(encoding="utf-8"))
    assert len(named) > 5
    missing = [
        name
        for name in named
        if "NAME" not in name
        and not ((root / name).exists() or (root / "transformer" / name).exists() or name in here)
    ]
    assert missing == []
