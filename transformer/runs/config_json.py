"""A config as JSON text and back."""

import dataclasses
import json
from typing import TYPE_CHECKING, Any, get_type_hints

from transformer.config import Config
from transformer.config.decoding import METHODS, DecodingConfig, SampleConfig, methods_of, names_of
from transformer.runtime.errors import UserError
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
        values = parse_object(text)
        name = values.get("system", "transformer")
        values["system"] = _RENAMED_SYSTEMS.get(name, name) if isinstance(name, str) else name
        options = options_of(values["system"])
        for name in ("model", "decoding", "data"):
            kind = getattr(options, name)
            if isinstance(values.get(name), dict):
                search = issubclass(kind, DecodingConfig)
                values[name] = _search(kind, values[name]) if search else _build(kind, values[name])
        return _build(Config, values)
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"not a config of this version: {error}") from error


# options as earlier versions stored them
_GONE = {"baseline_decay", "opening"}
_RENAMED = {"parallel": "mesh", "fed": "decoder_input", "places": "bos_length"}
_RENAMED_SYSTEMS = {"parallel": "nonautoregressive"}


def _search(kind: type[DecodingConfig], values: dict[str, Any]) -> Any:
    """The options of a search. Earlier versions stored those of all methods, and the number of samples as
    the beam size."""
    kinds = methods_of(kind)
    config_class = kinds.get(values.get("method", "beam"), kind)
    others = set().union(*map(names_of, METHODS.values())) - names_of(config_class)
    if issubclass(config_class, SampleConfig) and "beam_size" in values:
        values = {"samples": values["beam_size"]} | values
    return _build(config_class, {name: value for name, value in values.items() if name not in others})


def _build(cls: type, values: dict[str, Any]) -> Any:
    hints = get_type_hints(cls)
    values = {_RENAMED.get(name, name): value for name, value in values.items() if name not in _GONE}
    unknown = sorted(values.keys() - hints.keys())
    if unknown:
        raise ValueError(f"unknown field {', '.join(unknown)}")

    return cls(**{name: _section(hints[name], value) for name, value in values.items()})


def _section(hint: Any, value: Any) -> Any:
    """The value of a field: that of a section is built from its options."""
    is_section = dataclasses.is_dataclass(hint) and isinstance(value, dict)
    return _build(hint, value) if is_section else value  # type: ignore[arg-type]
