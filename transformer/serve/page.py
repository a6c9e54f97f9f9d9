"""The page that a server has: a form for what its runs can do. It loads nothing from elsewhere."""

import importlib.resources
import json
from collections.abc import Sequence

from transformer.runs.report.markup import source_of
from transformer.serve.service import Service

STYLES = ("transformer.translator.explorer", "explorer.css"), ("transformer.serve", "form.css")


def page_of_services(services: Sequence[Service]) -> str:
    """A form for the endpoints of runs. Its policy allows its own style and script alone, by their hashes,
    and connections to its server."""
    style = "".join(_file(*names) for names in STYLES)
    script = _file("transformer.serve", "form.js")
    page = (
        _file("transformer.serve", "form.html").replace("/* STYLE */", style).replace("/* SCRIPT */", script)
    )
    for element in ("style", "script"):
        content = page.partition(f"<{element}>")[2].partition(f"</{element}>")[0]
        page = page.replace(f"{element.upper()}-SOURCE", source_of(content))
    models = json.dumps([service.about() for service in services])
    for character in "<>&":  # they occur only inside strings
        models = models.replace(character, f"\\u{ord(character):04x}")
    return page.replace('"DATA"', models)


def _file(package: str, name: str) -> str:
    return (importlib.resources.files(package) / "page" / name).read_text(encoding="utf-8")
