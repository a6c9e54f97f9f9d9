"""What the site makes itself: the help of every command, tables of options and presets, the public names of a
page of reference, special tokens as text, and links to its sources, if the package has a public address."""

import dataclasses
import functools
import html
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

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


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills in `{{ commands }}`, `{{ options }}`, `{{ presets }}`, `{{ variants }}` and `{{ names }}`."""
    for name, made in (
        ("commands", _commands),
        ("options", _options),
        ("presets", _presets),
        ("variants", _variants),
        ("names", functools.partial(_names, markdown)),
    ):
        if f"{{{{ {name} }}}}" in markdown:
            markdown = markdown.replace(f"{{{{ {name} }}}}", made())
    if page.file.src_uri == "reference/config.md":  # fields: a line each
        markdown = re.sub(
            r"^::: \S+$", r"\g<0>\n    options: {separate_signature: false}", markdown, flags=re.M
        )
    return markdown


def on_page_context(context: Any, page: Any, config: Any, **_: Any) -> None:
    """Each option is an entry of the search, which finds it as it is written."""
    if page.file.src_uri == OPTIONS_PAGE:
        (index,) = (each.search_index for each in config.plugins.values() if hasattr(each, "search_index"))
        index.entries += [
            {
                "location": f"{page.url}#{each.anchor}",
                "title": f"--{each.name}",
                "text": f"<p>{html.escape(', '.join(each.aliases))}: {html.escape(each.about)}</p>",
                "boost": 10 if each.anchor == each.name else 1,
            }
            for _, _, rows in _sections()
            for each in rows
        ]


def on_page_content(html: str, **_: Any) -> str:
    """Special tokens that docstrings name, such as <eos>, are no tags. (No page strikes text through.)
    Code in tables breaks between its words only, and no option at its dashes."""
    html = SPECIAL.sub(r"&lt;\1&gt;", html)
    html = re.sub(
        r"<td.*?</td>", lambda cell: re.sub(r"<code>[^<]* [^<]*</code>", _words, cell[0]), html, flags=re.S
    )
    option = re.compile(r"(?<![\w-])--?[a-z][\w.-]*")
    return re.sub(r"<code>[^<]*</code>", lambda code: option.sub(r"<span>\g<0></span>", code[0]), html)


def _words(code: re.Match[str]) -> str:
    text = code[0].removeprefix("<code>").removesuffix("</code>")
    return f"<code>{' '.join(f'<span>{word}</span>' for word in text.split(' '))}</code>"


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


@dataclass
class _Row:
    """An option on the page of options."""

    name: str
    """Without the leading dashes."""
    values: str
    """What it takes: INT, or the choices."""
    about: str
    anchor: str
    aliases: list[str]
    """Its names in Python and in `decode.py`."""
    defaults: dict[str, list[str]] = field(default_factory=dict)
    """By value: the presets that have it."""


@functools.cache
def _sections() -> list[tuple[str, str, list[_Row]]]:
    """Heading, text and options of each section, in the order of their use, then those of other systems."""
    from transformer.cli.decode_arguments import DecodeArguments
    from transformer.cli.parser import texts
    from transformer.commands.train_arguments import TrainArguments
    from transformer.config.decoding import BeamConfig
    from transformer.config.options import Config, HostsConfig
    from transformer.config.searches import METHODS
    from transformer.systems.presets import PRESETS, every_system

    rows: dict[tuple[str, str], _Row] = {}
    parts: dict[str, list[_Row]] = {name: [] for name in ("", *ORDER, "decode.py")}
    systems = {config.system for config in PRESETS.values()}
    by_variant: dict[str, tuple[str, Config]] = {}
    for name, config in every_system().items():
        if config.system not in systems:
            by_variant.setdefault(config.system, (name, config))
    presets = sorted(PRESETS.items(), key=lambda item: item[1].system != "transformer")
    for preset, config in (*presets, *by_variant.values()):
        for each, value in _leaves(config):
            if preset not in PRESETS and (each.name, each.about) in rows:
                continue
            section = each.name.partition(".")[0] if "." in each.name else ""
            if (each.name, each.about) not in rows:
                rows[each.name, each.about] = each
                if config.system != "transformer":
                    section = f"system {config.system}"
                    each.anchor = f"{config.system}.{each.name}"
                parts.setdefault(section, []).append(each)
            rows[each.name, each.about].defaults.setdefault(_shown(value), []).append(preset)
    for method, kind in METHODS.items():
        for each, value in _leaves(kind(), "decoding."):
            if (each.name, each.about) not in rows:
                rows[each.name, each.about] = each
                each.about = f"Method {method}. {each.about}"
                each.defaults[_shown(value)] = []
                parts["decoding"].append(each)
    command = [row for row, _ in _leaves(TrainArguments(Config()), skip=("config",))]
    parts[""][:0] = [row for row in command if "." not in row.name]
    parts["hosts"] = [row for row in command if row.name.startswith("hosts.")]
    decode = _leaves(DecodeArguments(Path(), (), BeamConfig()), skip=("decoding", "run_dir", "ensemble"))
    parts["decode.py"] = [row for row, _ in decode]
    for row in parts["decode.py"]:
        row.anchor = f"decode.{row.name}"
    about = texts(Config) | {"": TrainArguments.__doc__, "hosts": HostsConfig.__doc__}
    return [
        (name or "The command", (about.get(name) or "").partition("\n")[0], made)
        for name, made in parts.items()
        if made
    ]


ORDER = (
    *("data", "model", "optimizer", "training", "decoding", "mesh"),
    *("adapter", "guidance", "rdrop", "scheduled", "reward", "hosts"),
)
OPTIONS_PAGE = "options.md"


def _leaves(options: Any, prefix: str = "", skip: Sequence[str] = ()) -> Iterator[tuple[_Row, Any]]:
    """The options of a dataclass, with their values."""
    from transformer.cli.parser import help_of

    kind = type(options)
    hints = get_type_hints(kind)
    for item in dataclasses.fields(kind):
        value = getattr(options, item.name)
        if item.name in skip:
            continue
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{item.name}.")
            continue
        python = f"{prefix}{item.name}"
        name, about = python.replace("_", "-"), " ".join((help_of(kind, item.name, value) or "").split())
        aliases = [python, item.name, *([f"decode.py --{name[9:]}"] if prefix == "decoding." else [])]
        row = _Row(name, _values(hints[item.name]), about, name, list(dict.fromkeys(aliases)))
        if not prefix.startswith(ORDER):
            row.defaults[_shown(value)] = []
        yield row, value


def _values(hint: Any) -> str:
    """What an option takes: `INT`, `post, pre`, nothing for a switch."""
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_args(hint):
        values = dict.fromkeys(_values(each) for each in get_args(hint) if each not in (type(None), ...))
        return " or ".join(values) + (" ..." if get_origin(hint) is tuple else "")
    if hint is bool:
        return ""
    return getattr(hint, "__name__", str(hint)).upper()


def _shown(value: Any) -> str:
    """A default as the command line takes it."""
    if value in ("", ()):
        return "none"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _options() -> str:
    """The tables of the page of options."""
    parts = []
    for name, text, rows in _sections():
        heading = f"## {name}\n\n{text}\n\n"
        body = "".join(map(_as_row, rows))
        head = "<thead><tr><th>option</th><th>default</th><th>meaning</th></tr></thead>"
        table = f'<div class="options" data-search-exclude><table>{head}<tbody>{body}</tbody></table></div>\n'
        parts.append(heading + table)
    return "\n".join(parts)


def _as_row(row: _Row) -> str:
    named = f'<a href="#{row.anchor}"><code>--{row.name}</code></a> <small>{html.escape(row.values)}</small>'
    values = [
        f"<code>{html.escape(value)}</code>"
        + (f" <small>{', '.join(presets)}</small>" if number and presets else "")
        for number, (value, presets) in enumerate(row.defaults.items())
    ]
    first, *others = values or [""]
    if len(others) > 3:
        others = [f"<details><summary>{len(others)} others</summary>{'<br>'.join(others)}</details>"]
    about = re.sub(r"`([^`]*)`|(?<![\w-])(--[a-z][\w.-]*\w)", _as_code, html.escape(row.about, quote=False))
    cells = "".join(f"<td>{cell}</td>" for cell in (named, "<br>".join([first, *others]), about))
    return f'<tr id="{row.anchor}">{cells}</tr>\n'


def _as_code(match: re.Match[str]) -> str:
    return f"<code>{match[1] or match[2]}</code>"


def _names(markdown: str) -> str:
    """The names of `transformer.__all__` that the modules of a page have."""
    import transformer

    rows = []
    for module in re.findall(r"^::: transformer\.(\S+)", markdown, re.MULTILINE):
        for name in transformer._HOMES.get(module, ()):
            value = getattr(transformer, name)
            about = "" if isinstance(value, dict) else (inspect.getdoc(value) or "").partition("\n\n")[0]
            about = about.replace("<", "&lt;").replace("\n", " ")
            rows.append(f"- [`{name}`][transformer.{module}.{name}]" + (about and f": {about}"))
    return "\n".join(rows)


def _commands() -> str:
    from transformer.commands.main import COMMANDS
    from transformer.runtime.invocation import command_for

    return "\n".join(
        f"## {name}\n\n`{command_for(name)}`: {what}.\n\n```text\n{_help(name)}\n```\n"
        for name, (_, what) in COMMANDS.items()
    )


def _help(name: str) -> str:
    environment = {**os.environ, "COLUMNS": "90", "NO_COLOR": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "transformer", name, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
