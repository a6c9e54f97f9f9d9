"""The pages of docs/tutorial: their files, commands and outputs, and what runs them.

    python tests/tutorial_pages.py WORK [NUMBER ...]

runs the pages, or those of these numbers, one after the other in the folder WORK, and writes the outputs
into the pages. What has run in that folder is not run again: give a new folder for new outputs. The fenced
blocks of a page:

- `python title="NAME"`: the file NAME, or its next part.
- `bash`: commands. Lines that install or change folders are for readers, and are not run here.
- `text` after it: its output. A comment before it chooses lines: `<!-- output: PATTERN -->`. Without one, it
  is all of the standard output. With `output varies`, it may be another one on another machine.

Comments before other blocks:

- `<!-- not run: WHY -->` before `bash`: nobody runs it here.
- `<!-- until: PATTERN -->` before `bash`: the command stays in the background once its output matches.
- `<!-- picture of FILE OR ADDRESS: SELECTOR -->` before an image: what the image shows.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorial"
PAGES = sorted(FOLDER.glob("[1-9]-*.md"))
FOR_READERS = re.compile(r"(pip|python -m venv|mkdir|cd|git|\.) ")
NUMBER = re.compile(r"\d[\d.,:]*")
GAP = "..."
HIGHEST = 845  # pixels of a picture
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n+)?"
    r"^(?:```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$"
    r"|!\[[^\]]*\]\((?P<image>[^)]+)\))",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, or an image, with the comment before it."""

    kind: str
    """bash, python, text, ..., or image."""
    text: str
    title: str
    note: str
    span: tuple[int, int]
    """Where the text is on the page."""

    @property
    def varies(self) -> bool:
        """Whether an output may differ on other machines."""
        return self.note.startswith("output varies")

    @property
    def pattern(self) -> str:
        """What follows the colon of the comment."""
        return self.note.partition(": ")[2]

    def commands(self) -> str:
        """What is run of it."""
        whole = self.text.replace("\\\n", " ")
        return "\n".join(line for line in whole.splitlines() if not FOR_READERS.match(line))


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order."""
    found = []
    for match in BLOCK.finditer(page):
        kind, text = (match["kind"], "text") if match["kind"] else ("image", "image")
        block = Block(kind, match[text], match["title"] or "", match["note"] or "", match.span(text))
        found.append(block)
    return found


def chosen(output: str, pattern: str) -> str:
    """The lines of an output that match, with a line of dots for those between."""
    shown: list[str] = []
    for line in output.rstrip().splitlines():
        if not pattern or re.search(pattern, line):
            shown.append(line.rstrip())
        elif shown and shown[-1] != GAP:
            shown.append(GAP)
    return "".join(f"{line}\n" for line in (shown[:-1] if shown and shown[-1] == GAP else shown))


def stable(output: str) -> list[str]:
    """What of the lines of an output does not depend on the machine: no numbers, no spaces."""
    lines = (re.sub(r"[\s─]+", " ", NUMBER.sub("#", line)) for line in output.splitlines())
    return [line for line in lines if line != GAP]


class Reader:
    """Runs the blocks of pages in a folder, as a reader would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / ".programs"
        programs.mkdir(parents=True, exist_ok=True)
        for name, words in {"transformer": "-m transformer", "python": ""}.items():
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TRANSFORMER_CACHE": str(folder / ".cache"),
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
            "COLUMNS": "90",
            "PYTHONUNBUFFERED": "1",
        }
        self.background: list[subprocess.Popen] = []

    def run(self, block: Block) -> tuple[str, str]:
        """The standard output of a block of commands, and the same with the errors.

        Raises:
          RuntimeError: a command has failed.
        """
        if block.note.startswith("until: "):
            return (self._until(block),) * 2
        stored = self.folder / ".outputs" / hashlib.sha256(block.commands().encode()).hexdigest()
        if not stored.exists():
            stored.parent.mkdir(exist_ok=True)
            stored.write_text(json.dumps(self._run(block, stored.with_suffix(".log"))), encoding="utf-8")
        output, everything = json.loads(stored.read_text(encoding="utf-8"))
        return output, everything

    def _run(self, block: Block, log: Path) -> tuple[str, str]:
        """The same, with a file for the second."""
        log.unlink(missing_ok=True)
        script = f"set -e\nexec 2> >(exec cat >> {log}) > >(exec tee -a {log})\n{block.commands()}\n"
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=3600,
        )
        everything = log.read_text(encoding="utf-8")
        if ran.returncode:
            raise RuntimeError(f"{block.text}status {ran.returncode}\n{everything}")
        return ran.stdout, everything

    def _until(self, block: Block) -> str:
        """The output of a command up to a line that matches; the command stays."""
        path = self.folder / ".background"
        with path.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {block.commands()}"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
            )
        self.background.append(process)
        deadline = time.monotonic() + 1800
        while not re.search(block.pattern, output := path.read_text(encoding="utf-8")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{block.text}{output}")
            time.sleep(0.2)
        return output

    def close(self) -> None:
        """Stops what is in the background, as Ctrl-C does."""
        for process in self.background:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
        self.background.clear()

    def outputs(self, page: str) -> Iterator[tuple[Block, str]]:
        """Runs a page. Each block of output, and what it is now; each image, and where it was written."""
        ran, files = ("", ""), dict[str, list[str]]()
        try:
            for block in blocks(page):
                if block.kind == "python" and block.title:
                    files.setdefault(block.title, []).append(block.text)
                    (self.folder / block.title).write_text("\n\n".join(files[block.title]), encoding="utf-8")
                elif block.kind == "bash" and not block.note.startswith("not run"):
                    ran = self.run(block)
                elif block.kind == "text":
                    yield block, chosen(ran[bool(block.pattern)], block.pattern)
                elif block.kind == "image" and block.note.startswith("picture of "):
                    yield block, ""
        finally:
            self.close()


def take_picture(block: Block, folder: Path) -> None:
    """Writes the image of a block: the elements of a page that a selector finds, or all of it."""
    from PIL import Image
    from selenium import webdriver
    from selenium.webdriver.support.wait import WebDriverWait
    from test_explorer import BROWSER, QUIET

    where, _, selector = block.note.removeprefix("picture of ").partition(": ")
    address = where if "//" in where else (folder / where).absolute().as_uri()
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for option in (*QUIET.split(), "--window-size=1000,1600", "--force-device-scale-factor=1"):
        options.add_argument(option)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    target = (FOLDER / block.text).resolve()
    try:
        driver.get(address)
        selector, _, typed = selector.partition(" typed: ")
        if typed:
            driver.find_element("id", "text").send_keys(typed)
            driver.find_element("id", "send").click()
            WebDriverWait(driver, 300).until(
                lambda driver: driver.find_elements("css selector", "#sources .piece")
            )
        driver.find_element("css selector", selector or "body").screenshot(str(target))
    finally:
        driver.quit()
    image = Image.open(target)
    image = image.crop((0, 0, image.width, min(image.height, HIGHEST)))
    image.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(target, optimize=True)


def main(folder: str, *numbers: str) -> None:
    """Runs pages, and writes their outputs and pictures."""
    reader = Reader(Path(folder).absolute())
    for path in PAGES:
        if numbers and path.name[0] not in numbers:
            continue
        page = path.read_text(encoding="utf-8")
        parts, end, start = [], 0, time.monotonic()
        for block, output in reader.outputs(page):
            if block.kind == "image":
                take_picture(block, reader.folder)
                continue
            parts += [page[end : block.span[0]], output]
            end = block.span[1]
        path.write_text("".join([*parts, page[end:]]), encoding="utf-8")
        print(f"{path.name}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
