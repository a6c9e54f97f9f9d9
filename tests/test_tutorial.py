"""The tutorial: its commands are ones, its files are programs, and its outputs are those of its commands."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
import stored_outputs
from stored_outputs import PAGES, Picture, Reader, blocks, chosen, stable

from transformer.cli.command_line import TrainLine
from transformer.cli.decode_arguments import parse_decode
from transformer.commands.train_arguments import parse_train
from transformer.serve.command import parse_serve
from transformer.systems.presets import PRESETS

LONGEST = 149  # lines of a page
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in PAGES}
every_page = pytest.mark.parametrize("name", TEXTS)


def files_of(page: str) -> dict[str, str]:
    """The files of a page, which may have several parts."""
    files = dict[str, str]()
    for block in blocks(page):
        if block.kind == "python":
            files[block.title] = files.get(block.title, "") + block.text
    return files


def calls(script: str) -> list[list[str]]:
    """The arguments of `transformer` and `python` in a script, as bash passes them. Nothing runs."""
    record = r"""record() { printf '%s\0' "$@"; printf '\n'; } >> calls
    transformer() { record "$@"; }; python() { record python "$@"; }; PATH=
    """
    subprocess.run(["bash", "-c", record + script], capture_output=True, text=True)
    path = Path("calls")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.split("\0")[:-1] for line in lines]


def test_the_pages_follow_the_quick_start_in_this_order() -> None:
    assert [int(path.name[0]) for path in PAGES] == [1, 2, 3, 4, 5, 6]
    listed = re.findall(r": ([\w/.-]+\.md)$", (stored_outputs.ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    start = listed.index("quick-start.md") + 1
    assert listed[start : start + 6] == [f"tutorial/{path.name}" for path in PAGES]


@every_page
def test_pages_are_short_and_complete(name: str) -> None:
    """Each page says first what the reader will have, has all outputs, and ends with the next page."""
    page = TEXTS[name]
    assert page.count("\n") <= LONGEST
    assert page.split("\n")[2].startswith("At the end of this page ")
    assert all(block.text.strip() for block in blocks(page))
    number = int(name[0])
    assert number == 6 or "**Next:** [" in page.split("\n")[-2] + page.split("\n")[-3]
    for block in blocks(page):
        if block.kind == "image":
            assert (stored_outputs.FOLDER / block.text).resolve().is_file()


@every_page
def test_commands_parse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parsed = 0
    for block in blocks(TEXTS[name]):
        if block.kind != "bash":
            continue
        for words in calls(block.commands()):
            command, *arguments = words[2:] if words[:2] == ["python", "mine.py"] else words
            parsed += 1
            if command == "train":
                line = TrainLine.of(["quickstart" if word == "pooling" else word for word in arguments])
                parse_train(line, PRESETS[line.preset])
            elif command == "decode":
                parse_decode(arguments)
            elif command == "serve":
                parse_serve(arguments)
            else:
                assert command in ("python", "report", "--version")
    assert parsed or name.startswith("6")


@every_page
def test_files_are_programs(name: str) -> None:
    for title, text in files_of(TEXTS[name]).items():
        ast.parse(text, title)


def test_the_text_of_the_second_page(tmp_path: Path) -> None:
    """The block that writes it runs, and prints what the page shows."""
    page = TEXTS["2-your-own-data"]
    _, block, shown, *_ = blocks(page)
    (tmp_path / "swiss.py").write_text(files_of(page)["swiss.py"], encoding="utf-8")
    output, _ = Reader(tmp_path).run(block)
    assert output.split() == shown.text.split()
    german = (tmp_path / "train.de").read_text(encoding="utf-8")
    assert not set(re.findall(r"\w*(?:ß|ahrr)\w*", german))
    assert {"Velo", "Velos"} <= set(re.findall(r"\w+", german))


def test_what_is_chosen_of_an_output() -> None:
    output = "start\nstep 1  2.0\nnoise\nnoise\nstep 2  1.5\nend\n"
    assert chosen(output, "^step") == "step 1  2.0\n...\nstep 2  1.5\n"
    assert chosen(output, "") == output
    assert chosen(output, r"(?s)^step 1.*?noise|^end") == "step 1  2.0\nnoise\n...\nend\n"
    assert stable("a 1,024   b\n...\n") == stable("a 9   b\n") == ["a # b"]
    page = '<!-- output varies: x -->\n```text\nx 1\n```\n\n```python title="a.py"\nx\n```\n'
    text, program = blocks(page)
    assert (text.varies, text.pattern, page[slice(*text.span)]) == (True, "x", "x 1\n")
    assert (program.title, program.note) == ("a.py", "")


def test_what_a_picture_shows() -> None:
    page = '<!-- picture of a.ipynb: .words at: Haus size: 560 x 500 scale: 0.5 -->\n<img src="b.png" />\n'
    (block,) = blocks(page)
    assert (block.kind, block.text) == ("image", "b.png")
    assert Picture.of(block.note) == Picture("a.ipynb", ".words", "", "Haus", (560, 500), 0.5)
    form = Picture.of("picture of http://127.0.0.1:8000: main typed: My sister sells.")
    assert form == Picture("http://127.0.0.1:8000", "main", "My sister sells.", "", None)
    with pytest.raises(ValueError, match="no picture: picture of a"):
        Picture.of("picture of a")


@pytest.mark.slow
def test_every_command_runs_and_prints_what_is_shown(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for name, page in TEXTS.items():
        for block, output in reader.outputs(page):
            if block.kind == "text" and not block.varies:
                assert stable(output) == stable(block.text), name
            assert block.kind == "image" or output.strip(), (name, block)
