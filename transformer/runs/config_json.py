"""A config as JSON text and back, also with the names that built-in corpora had before."""

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, get_type_hints

from transformer.config.decoding import DecodingConfig, names_of
from transformer.config.options import Config
from transformer.config.searches import METHODS, SampleConfig, methods_of
from transformer.runtime.errors import UserError, nearest
from transformer.runtime.files import display_path, parse_object
from transformer.systems.registry import options_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# What built-in corpora were called before they had versions: a hash of the files that generated them.


EARLIER = {
    "built-in-sentences-v1-145e2df572abf90e": "built-in-sentences-6aa0df631c06e19c",
    "built-in-tagged-v1-bfbf3fd0edad45cc": "built-in-tagged-a1c95c78c1f7d96e",
    "built-in-text-v1-145e2df572abf90e": "built-in-text-6aa0df631c06e19c",
    "built-in-v1-3d3d87006718a5a1": "built-in-e3ad7c407358e543",
    "built-in-v1-932dca55dd0835bb": "built-in-e70e6a5ca52e6af2",
    "conversations-v1-c3c92cb28c110b4d": "conversations-67ed7b93c3d3c6db",
    "convex-hull-v1-1f4ebf73f685f33b": "convex-hull-94a7115fcd317735",
    "dialogue-en-v1-18dd86a274cd773c": "dialogue-en-6c3701779929b449",
    "dialogue-zh-v1-18dd86a274cd773c": "dialogue-zh-6c3701779929b449",
    "drawings-v1-2cc22d917af47fcb": "drawings-35a1698d30901788",
    "drawings-v1-b01721eb4ca35cdc": "drawings-90d975e86c547045",
    "drawings-v1-cd1627cb7be86ef4": "drawings-310a834d8a66a3f3",
    "drawings-v1-ed278add69754280": "drawings-9a45967f90b9a1a3",
    "opinions-v1-db587e2a58f0515a": "opinions-b560131a57ae8be2",
    "pronouns-v1-9effcc246241dfc8": "pronouns-00ca598e4c5bc9e7",
    "pronunciation-v1-18dd86a274cd773c": "pronunciation-6d4dfc5adbc430bf",
    "reports-v1-f6b19b8122e7f61d": "reports-406f63b8bc3f1d87",
    "sorting-v1-1f4ebf73f685f33b": "sorting-94a7115fcd317735",
    "spelling-v1-18dd86a274cd773c": "spelling-50086830f8804fbd",
    "spoken-digits-v1-a4191631298860b6": "spoken-digits-9f900ad785d61e28",
    "spoken-digits-v1-c114d7f2558d59d5": "spoken-digits-6c9de194e8dbedee",
    "spoken-digits-v1-e59c46f40d25d16f": "spoken-digits-22fed0921b639089",
    "stories-v1-4ebe755ec87e3521": "stories-dbabe4e01a14ffec",
    "topics-v1-39c6cfa067b699c1": "topics-73163b24fe80118f",
    "treebank-v1-22a817de215c762b": "treebank-dbee96901dad6680",
}
"""The earlier names by those of today, for the sizes of the presets, and of the runs that the tests have."""


def is_earlier_name(began_with: str, corpus: str) -> bool:
    """Whether a run that stores the first name began with this corpus, as it was called then."""
    return EARLIER.get(corpus) == began_with


def may_be_earlier_name(began_with: str, corpus: str) -> bool:
    """Whether it may have: the name has the same built-in corpus, whose version is the first, and a hash that
    nobody can compare."""
    prefix, version, _ = corpus.rpartition("-v1-")
    return bool(version) and bool(re.fullmatch(f"{re.escape(prefix)}-[0-9a-f]{{16}}", began_with))


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
        config_class = getattr(options, name)
        if isinstance(values.get(name), dict):
            build = _search if issubclass(config_class, DecodingConfig) else _build
            values[name] = build(config_class, values[name], f"{name}.")
    return _build(Config, values)


# options as earlier versions stored them
_GONE = {"baseline_decay", "opening"}
_CONSTANT: dict[str, float] = (
    {"class_cost": 1, "giou_weight": 2, "l1_weight": 5}  # detection
    | {"fertility_weight": 1, "length_weight": 1, "max_fertility": 8}  # nonautoregressive
    | {"entropy_weight": 0.01, "reward_weight": 1}  # recurrent
    | {"duration_kernel": 3, "duration_weight": 1, "postnet_kernel": 5, "stop_weight": 5}  # synthesis
)
"""Options that nobody set, with the value that is now the only one."""
_RENAMED = {"parallel": "mesh", "fed": "decoder_input", "places": "bos_length"}
_RENAMED_SYSTEMS = {"parallel": "nonautoregressive"}


def _search(default_class: type[DecodingConfig], values: dict[str, Any], prefix: str) -> Any:
    """The options of a search. Earlier versions stored those of all methods, and the number of samples as
    the beam size."""
    search_types = methods_of(default_class)
    config_class = search_types.get(values.get("method", "beam"), default_class)
    other_options = set().union(*map(names_of, METHODS.values())) - names_of(config_class)
    if issubclass(config_class, SampleConfig) and "beam_size" in values:
        values = {"samples": values["beam_size"]} | values
    usable = {name: value for name, value in values.items() if name not in other_options}
    return _build(config_class, usable, prefix)


def _build(cls: type, values: dict[str, Any], prefix: str = "") -> Any:
    hints = get_type_hints(cls)
    values = {_RENAMED.get(name, name): value for name, value in values.items() if name not in _GONE}
    for name in values.keys() & (_CONSTANT.keys() - hints.keys()):
        if (value := values.pop(name)) != _CONSTANT[name]:
            raise ValueError(f"{prefix}{name} is {value!r}, and this version has {_CONSTANT[name]} only")
    unknown = sorted(values.keys() - hints.keys())
    if unknown:
        hint = nearest(unknown[0], hints) if len(unknown) == 1 else ""
        raise ValueError(f"unknown field {', '.join(prefix + name for name in unknown)}{hint}")

    return cls(**{name: _section(prefix + name, hints[name], value) for name, value in values.items()})


def _section(name: str, hint: Any, value: Any) -> Any:
    """The value of a field: that of a section is built from its options."""
    is_section = dataclasses.is_dataclass(hint) and isinstance(value, dict)
    return _build(hint, value, f"{name}.") if is_section else value  # type: ignore[arg-type]
