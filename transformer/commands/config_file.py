"""Files of options, for `train.py --config`: all that a run's `config.json` has, or a part of it, in JSON,
YAML or TOML."""

import dataclasses
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config, first_added, text_data
from transformer.config.searches import changed_search, check_option, methods_of
from transformer.runs.config_json import config_of, to_json
from transformer.runtime.errors import UserError, first_line
from transformer.runtime.files import Json, MiB, brief_json, parse_object, read_text
from transformer.systems.registry import options_of

LENGTHS = ("steps", "epochs")
"""Options of training, of which one is given."""
OF_THE_LINE = {
    "preset": "train.py PRESET --config FILE",
    "variant": "--variant NAME",
    "init_from": "--init-from RUN",
    "hosts": "--hosts.processes 1",
    **{name: f"--{name.replace('_', '-')}" for name in ("run_dir", "plan", "profile", "verbose")},
}
"""What the command line says of a training beside its config."""


def read_options(path: str) -> Json:
    """The values of a file, by section, as JSON has them.

    Raises:
      UserError: it cannot be read; its name does not say its format.
    """
    parsers: dict[str, Callable[[str], Json]] = {
        ".json": parse_object,
        ".toml": tomllib.loads,
        ".yaml": _parse_yaml,
        ".yml": _parse_yaml,
    }
    if Path(path).is_dir():
        raise UserError(
            f"--config {path} is a folder: give a file in it, such as {Path(path, 'config.json')}"
        )
    if (parse := parsers.get(Path(path).suffix.lower())) is None:
        raise UserError(f"--config {path}: give a file whose name ends in {', '.join(parsers)}")
    try:
        return parse(read_text(Path(path), MiB))
    except UnicodeDecodeError as error:
        raise UserError(f"--config {path}: it is not text in UTF-8") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"--config {path} cannot be read: {first_line(error)}") from error


def named_options(values: Json) -> dict[str, str]:
    """The options that a file gives, as on a command line: `{"--data.train-source": "train.en"}`. Those that
    are null are left out."""
    named = {}
    for section, options in values.items():
        for name, value in options.items() if isinstance(options, dict) else ():
            if value is not None:
                named[f"--{section}.{name}".replace("_", "-")] = str(value)
    return named


def with_options(default: Config, values: Json, path: str, line_options: Collection[str]) -> Config:
    """A config with the values of a file.

    Args:
      default: what the file leaves out, unless it names a system: then it has the defaults of its types.
      values: of the file.
      path: of the file, for messages.
      line_options: those of the command line, which win.

    Raises:
      UserError: a field is unknown, a value is wrong, or they do not go together; the message names file and
        field.
    """
    try:
        _check_sections(values, default)
        training = values.get("training")
        lengths = [name for name in LENGTHS if isinstance(training, dict) and training.get(name) is not None]
        if len(lengths) == len(LENGTHS):
            raise ValueError("training.steps and training.epochs are both the length: leave one of them out")
        if "system" in values:  # the file stands for itself, and others change a preset
            _check_search(methods_of(options_of(str(values["system"])).decoding), "beam", values)
            config = config_of(values)
        else:
            method = _check_search(methods_of(type(default.decoding)), default.decoding.method, values)
            search = changed_search(default.decoding, {"method": method})
            stored = parse_object(to_json(dataclasses.replace(default, decoding=search)))
            config = config_of(_merged(stored, values))
    except (ValueError, TypeError, RecursionError, UserError) as error:
        raise UserError(f"{path}: {error}") from error
    if lengths == ["steps"] or "--training.steps" in line_options:  # not those of the preset, or of the file
        config = dataclasses.replace(config, training=dataclasses.replace(config.training, epochs=None))
    return _as_new(config)


def _check_sections(values: Json, default: Config) -> None:
    """Raises ValueError if a file is not in sections, or has what is given on the command line."""
    sections = [name for name, value in vars(default).items() if dataclasses.is_dataclass(value)]
    for name, value in values.items():
        section, dot, option = name.partition(".")
        if dot and section in sections:
            raise ValueError(f"{name}: options are in sections: write {option} into the section {section}")
        if name in sections and not isinstance(value, dict):
            first = dataclasses.fields(getattr(default, name))[0].name
            raise ValueError(f"{name} {brief_json(value)}: must be a section with options, such as {first}")
        if name in OF_THE_LINE:
            raise ValueError(f"{name}: give it on the command line ({OF_THE_LINE[name]}), not in the file")
        having = [section for section in sections if hasattr(getattr(default, section), name)]
        if having and name not in sections and not hasattr(default, name):
            raise ValueError(f"unknown field {name}: write it into the section {' or '.join(having)}")


def _check_search(search_types: Mapping[str, type[DecodingConfig]], method: str, values: Json) -> str:
    """The method of a search that a file gives, or else this one.

    Raises:
      UserError: an option of the search belongs to another method, which would leave it out.
    """
    search = values.get("decoding")
    if not isinstance(search, dict):
        return method
    method = str(search.get("method", method))
    for name in search if method in search_types else ():
        check_option(search_types, method, name)
    return method


def _as_new(config: Config) -> Config:
    """The config without what is decided when a run begins and cannot be given: where words that were added
    to a vocabulary begin, and the sizes that follow."""
    if first_added(config) is None:
        return config
    names = config.model.FROM_DATA
    fields = dataclasses.fields(config.model)
    sizes: dict[str, Any] = {item.name: item.default for item in fields if item.name in names}
    data = dataclasses.replace(text_data(config), first_added=None)
    return dataclasses.replace(config, data=data, model=dataclasses.replace(config.model, **sizes))


def _merged(default: Json, values: Mapping[str, Any]) -> Json:
    """Values of sections within sections, over others."""
    merged = dict(default)
    for name, value in values.items():
        inner: Any = merged.get(name)
        is_section = isinstance(inner, dict) and isinstance(value, dict)
        merged[name] = _merged(inner, value) if is_section else value
    return merged


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as in YAML 1.2, and a key that is given twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key_node, _ in node.value:
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise ValueError(f"{key!r}, line {line}: the name of an option must be a text")
            if key in seen:
                raise ValueError(f"{key}, line {line}: it is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse_yaml(text: str) -> Json:
    """A mapping in YAML. Raises ValueError if it is something else."""
    try:
        values = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise ValueError(f"{getattr(error, 'problem', None) or 'not YAML'}{line}") from error
    if not isinstance(values, dict):
        raise ValueError("it must have sections, such as training, with options in them")
    return values
