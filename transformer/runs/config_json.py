"""A config as JSON text and back."""

import dataclasses
import json
from typing import TYPE_CHECKING, Any, get_type_hints

from transformer.config import Config
from transformer.config.decoding import METHODS, DecodingConfig, SampleConfig, methods_of, names_of
from transformer.runtime.errors import UserError, nearest
from transformer.runtime.files import display_path, parse_object
from transformer.systems.registry import options_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_json(config: "DataclassInstance") -> str:
    """A config dataclass as indented JSON text; `from_json` is its inverse."""
    return json.dumps(dataclasses.asdict(config), indent=2, default=display_path) + "\n"


def from_json(text: str) -> Config:
    """The config that `to_json` wrote.

    Raises:
      UserError: the text is not JSON, or has a field that this version does not know.
    """
    try:
        return config_of(parse_object(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"not a config of this version: {error}") from error


def config_of(values: dict[str, Any]) -> Config:
    """The config of values as JSON has them, by section.

    Raises:
      ValueError: a field is unknown, or has another type; the message has its dotted name.
      UserError: values do not go together; there is no such system.
    """
    values = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
    name = values.get("system", "transformer")
    values["system"] = _RENAMED_SYSTEMS.get(name, name) if isinstance(name, str) else name
    options = options_of(values["system"])
    for name in ("model", "decoding", "data"):
        kind = getattr(options, name)
        if isinstance(values.get(name), dict):
            build = _search if issubclass(kind, DecodingConfig) else _build
            values[name] = build(kind, values[name], f"{name}.")
    return _build(Config, values)


# options as earlier versions stored them
_GONE = {"baseline_decay", "opening"}
_RENAMED = {"parallel": "mesh", "fed": "decoder_input", "places": "bos_length"}
_RENAMED_SYSTEMS = {"parallel": "nonautoregressive"}


def _search(kind: type[DecodingConfig], values: dict[str, Any], prefix: str) -> Any:
    """The options of a search. Earlier versions stored those of all methods, and the number of samples as
    the beam size."""
    kinds = methods_of(kind)
    config_class = kinds.get(values.get("method", "beam"), kind)
    others = set().union(*map(names_of, METHODS.values())) - names_of(config_class)
    if issubclass(config_class, SampleConfig) and "beam_size" in values:
        values = {"samples": values["beam_size"]} | values
    usable = {name: value for name, value in values.items() if name not in others}
    return _build(config_class, usable, prefix)


def _build(cls: type, values: dict[str, Any], prefix: str = "") -> Any:
    hints = get_type_hints(cls)
    values = {_RENAMED.get(name, name): value for name, value in values.items() if name not in _GONE}
    unknown = sorted(values.keys() - hints.keys())
    if unknown:
        meant = nearest(unknown[0], hints) if len(unknown) == 1 else ""
        raise ValueError(f"unknown field {', '.join(prefix + name for name in unknown)}{meant}")

    return cls(**{name: _section(prefix + name, hints[name], value) for name, value in values.items()})


def _section(name: str, hint: Any, value: Any) -> Any:
    """The value of a field: that of a section is built from its options."""
    is_section = dataclasses.is_dataclass(hint) and isinstance(value, dict)
    return _build(hint, value, f"{name}.") if is_section else value  # type: ignore[arg-type]
