"""Pages as one file each, which loads nothing from elsewhere."""

import importlib.resources
import json
from dataclasses import dataclass
from typing import Any

from transformer.runs.report.charts import icon, source_of

EXPLORER = "transformer.explorer"


@dataclass(frozen=True)
class PageFiles:
    """What a page is made of: names of files in the folder `page` of a package, in the frame of all pages."""

    title: str
    body: str
    scripts: tuple[str, ...]
    styles: tuple[str, ...] = ()
    """Style sheets besides that of all pages."""
    package: str = EXPLORER
    shared: tuple[str, ...] = ()
    """Scripts of the explorer's package that several pages have, before its own."""
    sources: str = ""
    """What the page may load besides its own style and scripts, as its policy says it."""


def page_of(data: Any, files: PageFiles) -> str:
    """A page. Its policy allows the style and the scripts of this package alone, by their hashes: no text of
    a model could be run. The data is inserted last, so text in it is never taken for a placeholder.

    Args:
      data: what its scripts read.
      files: what it is made of.
    """
    scripts = _text(EXPLORER, *files.shared), _text(files.package, *files.scripts)
    contents = {
        "<!-- BODY -->\n": _text(files.package, files.body),
        "TITLE": files.title,
        "ICON": icon(),
        "FURTHER-SOURCES": files.sources,
        "/* STYLE */": _text(EXPLORER, "explorer.css") + _text(files.package, *files.styles),
        "/* SCRIPT */": "\n".join(filter(None, scripts)),
    }
    page = _text(EXPLORER, "frame.html")
    for placeholder, content in contents.items():
        page = page.replace(placeholder, content, 1)
    for element in ("style", "script"):
        content = page.partition(f"<{element}>")[2].partition(f"</{element}>")[0]
        page = page.replace(f"{element.upper()}-SOURCE", source_of(content), 1)
    return page.replace('"DATA"', _embedded(data))


def _text(package: str, *names: str) -> str:
    folder = importlib.resources.files(package) / "page"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _embedded(data: Any) -> str:
    """JSON that can neither end its script element nor open a comment in it."""
    text = json.dumps(data, separators=(",", ":"))
    for character in "<>&":  # they occur only inside strings
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
