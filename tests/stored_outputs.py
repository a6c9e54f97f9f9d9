"""What is stored of outputs: those in docs/tutorial, the README and the notebooks, and their pictures; and
what makes them.

    python tests/stored_outputs.py WORK [NAME ...]

makes all of them, or those of the files in whose path a NAME is, such as `tutorial/3`, `notebooks/1`, README
or docs/pictures. What has run in the folder WORK is not run again: give a new folder for new outputs. With
the name `explorers`, stored explorers are drawn anew from their numbers, without running their notebooks. So,
after a change of style: `python tests/stored_outputs.py WORK explorers README docs/pictures`.

The fenced blocks of a page:

- `python title="NAME"`: the file NAME, or its next part.
- `bash`: commands. Lines that install or change folders are for readers, and are not run here.
- `text` after it: its output. A comment before it chooses lines: `<!-- output: PATTERN -->`. Without one, it
  is all of the standard output. With `output varies`, it may be another one on another machine.

Comments before other blocks:

- `<!-- not run: WHY -->` before `bash`: nobody runs it here.
- `<!-- until: PATTERN -->` before `bash`: the command stays in the background once its output matches.
- `<!-- picture of SOURCE: SELECTOR -->` before an image: what of a file or an address it shows. After the
  selector may follow `typed: TEXT` (into a form), `at: TOKEN` (which is chosen), `size: WIDTH x HEIGHT` and
  `scale: FACTOR`. SOURCE may be a notebook: its explorer, or with `output of NAME` the figure of the cell
  that calls NAME.
"""

import base64
import contextlib
import hashlib
import html
import io
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from transformer.explorer.explorer import FILES, PICTURE_FILES, SOUND_FILES
from transformer.explorer.page_files import page_of
from transformer.runs.report.charts import document
from transformer.serve.app import FORM

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorial"
PAGES = sorted(FOLDER.glob("[1-9]-*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
README = ROOT / "README.md"
WITH_PICTURES = [README, ROOT / "docs" / "pictures.md", *PAGES]
PAGE_FILES = {files.title: files for files in (FILES, PICTURE_FILES, SOUND_FILES)}
FIXED_PAGES = {
    "explorer": page_of({}, FILES),
    "form": page_of({}, FORM),
    "report": document("", []),
}
CPU_SECONDS = re.compile(r"(?<=about )[\d,]+(?= CPU seconds)")
FRAME = re.compile(r'(?<=srcdoc=")[^"]*')
DATA = re.compile(r'(?<=<script type="application/json" id="data">).*?(?=</script>)', re.DOTALL)
FOR_READERS = re.compile(r"(pip|python -m venv|mkdir|cd|git|\.) ")
NUMBER = re.compile(r"\d[\d.,:]*")
GAP = "..."
HIGHEST = 845  # pixels of a picture
HIDDEN = "--hide-scrollbars"  # a picture has none, and would be cut where one was
MARGIN = 12  # pixels above an element, if the picture goes to the edges of the page
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n+)?"
    r"^(?:```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$"
    r"|!\[[^\]]*\]\((?P<image>[^)]+)\)|<img src=\"(?P<tag>[^\"]+)\")",
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
        image = "image" if match["image"] else "tag"
        kind, text = (match["kind"], "text") if match["kind"] else ("image", image)
        block = Block(kind, match[text], match["title"] or "", match["note"] or "", match.span(text))
        found.append(block)
    return found


def chosen(output: str, pattern: str) -> str:
    """The lines of an output that match, with a line of dots for those between. A pattern that begins with
    (?s) chooses texts of several lines."""
    if pattern.startswith("(?s)"):
        texts = [match[0] for match in re.finditer(pattern, output, re.MULTILINE)]
        return f"\n{GAP}\n".join(texts) + "\n"
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

    def __init__(self, folder: Path, in_a_checkout: bool = False) -> None:
        self.folder = folder
        programs = folder / ".programs"
        programs.mkdir(parents=True, exist_ok=True)
        for name, words in {"transformer": "-m transformer", "python": ""}.items():
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        for name in ("train.py", "decode.py", "transformer") if in_a_checkout else ():
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(ROOT / name)
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
        shows_outputs = any(block.kind == "text" for block in blocks(page))  # otherwise only pictures
        try:
            for block in blocks(page):
                if block.kind == "python" and block.title:
                    files.setdefault(block.title, []).append(block.text)
                    (self.folder / block.title).write_text("\n\n".join(files[block.title]), encoding="utf-8")
                elif block.kind == "bash" and shows_outputs and not block.note.startswith("not run"):
                    ran = self.run(block)
                elif block.kind == "text":
                    yield block, chosen(ran[bool(block.pattern)], block.pattern)
                elif block.kind == "image" and block.note.startswith("picture of "):
                    yield block, ""
        finally:
            self.close()


@dataclass(frozen=True)
class Picture:
    """What an image shows, as the comment before it says."""

    source: str
    selector: str
    typed: str
    token: str
    """The token that is chosen."""
    size: tuple[int, int] | None
    scale: float = 1.0

    @classmethod
    def of(cls, note: str) -> "Picture":
        """Raises ValueError: the note is of no picture."""
        parts = re.fullmatch(
            r"picture of (?P<source>\S+): (?P<selector>.*?)(?: typed: (?P<typed>.*?))?"
            r"(?: at: (?P<token>\S+))?(?: size: (?P<width>\d+) x (?P<height>\d+))?"
            r"(?: scale: (?P<scale>[\d.]+))?",
            note,
        )
        if not parts:
            raise ValueError(f"no picture: {note}")
        size = (int(parts["width"]), int(parts["height"])) if parts["width"] else None
        scale = float(parts["scale"] or 1)
        return cls(
            parts["source"], parts["selector"], parts["typed"] or "", parts["token"] or "", size, scale
        )


def take_picture(picture: Picture, target: Path, folder: Path) -> None:
    """Writes an image: the element of a page that a selector finds, from its corner on, or a figure."""
    from PIL import PngImagePlugin

    source = picture.source
    if source.endswith(".ipynb"):
        notebook = nbformat.read(ROOT / source, as_version=4)
        function = picture.selector.removeprefix("output of ")
        if function != picture.selector:
            target.write_bytes(figure_of(notebook, function))
            return
        (_, page), *_ = explorers(notebook)
        (folder / "stored.html").write_text(page, encoding="utf-8")
        source = "stored.html"
    address = source if "//" in source else (folder / source).absolute().as_uri()
    image, page = _photographed(picture, address)
    about = PngImagePlugin.PngInfo()
    about.add_text("style", style_of(page))
    target.write_bytes(smaller(image, about))


def smaller(png: bytes, about: Any = None) -> bytes:
    """A picture in 256 colours, with texts about it."""
    from PIL import Image

    written = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    colours = image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    colours.save(written, "PNG", optimize=True, pnginfo=about)
    return written.getvalue()


def _photographed(picture: Picture, address: str) -> tuple[bytes, str]:
    """A PNG of a page in a browser, and the page."""
    from selenium import webdriver
    from selenium.webdriver.support.wait import WebDriverWait
    from test_explorer import BROWSER, QUIET

    width, height = (round(side / picture.scale) for side in picture.size or (1000, HIGHEST))
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for option in (*QUIET.split(), "--window-size=1000,1600", "--force-device-scale-factor=1", HIDDEN):
        options.add_argument(option)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        screen = {"width": width, "height": 1600, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        driver.get(address)
        if picture.typed:
            driver.find_element("id", "text").send_keys(picture.typed)
            wait = WebDriverWait(driver, 60)
            wait.until(lambda driver: driver.find_element("id", "send").is_enabled())
            driver.find_element("id", "send").click()
            wait.until(lambda driver: driver.find_elements("css selector", "#keys > *"))
            driver.find_element("css selector", "#details > summary").click()
        if picture.token:
            tokens = driver.find_elements("css selector", "#queries > *")
            next(token for token in tokens if picture.token in token.text.split()).click()
        element = driver.find_element("css selector", picture.selector or "body")
        box = driver.execute_script("return arguments[0].getBoundingClientRect().toJSON()", element)
        top = box["top"] + driver.execute_script("return scrollY")
        clip = {"x": 0, "y": max(0, top - MARGIN), "width": width, "height": height, "scale": picture.scale}
        if not picture.size:
            height = math.ceil(top + box["height"]) - int(top)  # a border at a fraction of a pixel too
            clip |= {"x": box["x"], "y": int(top), "width": box["width"], "height": min(height, HIGHEST)}
        whole = {"clip": clip, "captureBeyondViewport": True}
        image = base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", whole)["data"])
        return image, driver.page_source
    finally:
        driver.quit()


def style_of(page: str) -> str:
    """The hash of the style of a page on a screen: a picture does not show what is printed."""
    style = page.partition("<style>")[2].partition("</style>")[0]
    style = re.sub(r"@media print \{(?:[^{}]*\{[^{}]*\})*\s*\}\n?", "", style)
    return hashlib.sha256(style.encode()).hexdigest()[:16]


def figure_of(notebook: Any, function: str) -> bytes:
    """The figure of the first cell that calls a function."""
    cell = next(cell for cell in notebook.cells if f"{function}(" in cell.source)
    (image,) = (output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", ()))
    return base64.b64decode(image)


def explorers(notebook: Any) -> Iterator[tuple[Any, str]]:
    """The stored explorers of a notebook: the output, and the page in it."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if match := FRAME.search(output.get("data", {}).get("text/html", "")):
                yield output, html.unescape(match[0])


def drawn_anew(page: str) -> str:
    """A stored explorer as the package makes it today, from the numbers in it."""
    title = page.partition("<title>")[2].partition("</title>")[0]
    (data,) = DATA.findall(page)
    return page_of(json.loads(data), PAGE_FILES[title])


def execute(path: Path, cache: Path, changes: dict[str, str] | None = None) -> tuple[Any, float]:
    """Runs every cell of a notebook, with these changes of text, in a separate process.

    Returns:
      The notebook with its outputs, and the CPU seconds that it took.
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    for before, after in (changes or {}).items():
        (cell,) = (cell for cell in notebook.cells if before in cell.source)
        cell.source = cell.source.replace(before, after)
    start = _cpu_seconds_of_children()
    environment = {**os.environ, "TRANSFORMER_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    client = NotebookClient(
        notebook, timeout=900, kernel_name="python3", coalesce_streams=True, record_timing=False
    )
    client.execute(env=environment)
    return notebook, _cpu_seconds_of_children() - start


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def store_notebook(path: Path, folder: Path) -> None:
    """Runs a notebook, and writes its outputs and the CPU seconds that it took, in tens."""
    notebook, seconds = execute(path, folder / f".cache-{path.stem}")
    introduction = notebook.cells[0]
    introduction.source = CPU_SECONDS.sub(f"{10 * -(-seconds // 10):,.0f}", introduction.source)
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if image := output.get("data", {}).get("image/png"):
            output.data["image/png"] = base64.b64encode(smaller(base64.b64decode(image))).decode("ascii")
    nbformat.write(notebook, path)
    print(f"{path.name}: {seconds:.0f} CPU seconds")


def store_explorers(path: Path) -> None:
    """Draws the stored explorers of a notebook anew, and writes them."""
    notebook = nbformat.read(path, as_version=4)
    for output, page in explorers(notebook):
        now = html.escape(drawn_anew(page))
        output.data["text/html"] = FRAME.sub(lambda _, now=now: now, output.data["text/html"])
    nbformat.write(notebook, path)


def store_page(path: Path, reader: Reader) -> None:
    """Runs a page, and writes its outputs and pictures."""
    page = path.read_text(encoding="utf-8")
    parts, end, start = [], 0, time.monotonic()
    for block, output in reader.outputs(page):
        if block.kind == "image":
            take_picture(Picture.of(block.note), (path.parent / block.text).resolve(), reader.folder)
            continue
        parts += [page[end : block.span[0]], output]
        end = block.span[1]
    path.write_text("".join([*parts, page[end:]]), encoding="utf-8")
    print(f"{path.name}: {time.monotonic() - start:.0f} s")


def main(folder: str, *names: str) -> None:
    """Makes what is stored, of all files or of those that are named."""
    reader = Reader(Path(folder).absolute())
    in_a_checkout = Reader(reader.folder / ".checkout", in_a_checkout=True)
    if "explorers" in names:
        for path in NOTEBOOKS:
            store_explorers(path)
    for path in (*NOTEBOOKS, *WITH_PICTURES):
        if names and not any(name in str(path.relative_to(ROOT)) for name in names):
            continue
        if path.suffix == ".ipynb":
            store_notebook(path, reader.folder)
        else:
            store_page(path, reader if path.parent == FOLDER else in_a_checkout)


if __name__ == "__main__":
    main(*sys.argv[1:])
