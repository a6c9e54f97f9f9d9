"""What the site makes itself: the help of every command, tables of presets, special tokens as text, and links
to its sources, if the package has a public address."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

SPECIAL = re.compile(r"<(/?(?:s|eos|bos|pad|unk|glue))>")
PYPROJECT = Path(__file__).parent / "pyproject.toml"


def on_config(config: Any) -> Any:
    """Takes the addresses from `[project.urls]` of pyproject.toml, the only place that has them."""
    urls = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"].get("urls", {})
    if repository := urls.get("Repository"):
        config.repo_url, config.edit_uri = repository, "edit/main/docs/"
        config.repo_name = "/".join(repository.rstrip("/").split("/")[-2:])
    if site := urls.get("Documentation"):
        config.site_url = site
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fills in `{{ commands }}`, `{{ presets }}` and `{{ variants }}`."""
    if "{{ presets }}" in markdown:
        markdown = markdown.replace("{{ presets }}", _presets()).replace("{{ variants }}", _variants())
    if "{{ commands }}" in markdown:
        markdown = markdown.replace("{{ commands }}", _commands())
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Special tokens that docstrings name, such as <eos>, are no tags. (No page strikes text through.)"""
    return SPECIAL.sub(r"&lt;\1&gt;", html)


def _presets() -> str:
    from transformer.systems.presets import PRESET_GROUPS, PRESETS

    rows = ["| preset | what it is | system | layers x width | updates |", "|---|---|---|---|---|"]
    for group, described in PRESET_GROUPS.items():
        rows.append(f"| **{group}** | | | | |")
        for name, what in described.items():
            c = PRESETS[name]
            what = what.replace("<", "&lt;")
            sizes = f"{c.system} | {c.model.num_layers} x {c.model.d_model} | {c.training.steps:,}"
            rows.append(f"| `{name}` | {what} | {sizes} |")
    return "\n".join(rows)


def _variants() -> str:
    from transformer.systems.presets import VARIANT_GROUPS, VARIANTS

    rows = ["| variant | what it changes | options |", "|---|---|---|"]
    for group, names in VARIANT_GROUPS.items():
        rows.append(f"| **{group}** | | |")
        for name in names:
            about, words = VARIANTS[name].about.replace("<", "&lt;"), VARIANTS[name].words
            rows.append(f"| `{name}` | {about} | {words and f'`{words}`'} |")
    return "\n".join(rows)


def _commands() -> str:
    from transformer.commands.main import COMMANDS
    from transformer.runtime.errors import command_for

    parts = []
    for name, (_, _, what) in COMMANDS.items():
        option = "--help-all" if name == "decode" else "--help"
        parts.append(f"## {name}\n\n`{command_for(name)}`: {what}.\n\n```text\n{_help(name, option)}\n```\n")
        if name == "train":
            parts.append(f"### Every option of train\n\n```text\n{_help(name, '--help-all')}\n```\n")
    return "\n".join(parts)


def _help(name: str, option: str) -> str:
    environment = {**os.environ, "COLUMNS": "90", "NO_COLOR": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "transformer", name, option]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
