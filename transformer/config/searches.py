"""The methods of search, each with its options, and how a search takes others."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, get_args, get_type_hints

from transformer.config.decoding import BeamConfig, DecodingConfig, names_of
from transformer.config.model import ModelConfig
from transformer.config.ranges import LENGTH, PROBABILITY, SIZE, TEMPERATURE, Option
from transformer.runtime.errors import UserError, nearest


@dataclass(frozen=True)
class GreedyConfig(DecodingConfig):
    """Greedy search: the most probable token at every step."""

    METHOD = "greedy"

    method: Literal["beam", "greedy", "sample", "mbr"] = "greedy"


@dataclass(frozen=True)
class SampleConfig(DecodingConfig):
    """Sampling."""

    METHOD = "sample"

    method: Literal["beam", "greedy", "sample", "mbr"] = "sample"
    samples: Annotated[int, SIZE] = 4
    """Number of samples of each sentence."""
    temperature: Annotated[float, replace(TEMPERATURE, note="for none, use method greedy")] = 1.0
    """Softmax temperature; lower values give more likely, higher ones more diverse translations."""
    top_k: Annotated[int, LENGTH] = 0
    """Sample from the k most likely tokens. 0: all."""
    top_p: Annotated[float, PROBABILITY] = 1.0
    """Sample from the most likely tokens with this total probability."""

    @property
    def num_hypotheses(self) -> int:
        return self.samples

    def static(self) -> Self:
        return replace(super().static(), temperature=1.0)

    def shared(self) -> Self:
        return replace(super().shared(), top_p=1.0 if self.top_p == 1 else 0.5)


@dataclass(frozen=True)
class MbrConfig(SampleConfig):
    """Minimum Bayes risk: of many candidates, the one that is most like all of them, by chrF."""

    METHOD = "mbr"

    method: Literal["beam", "greedy", "sample", "mbr"] = "mbr"
    samples: int = 64
    """Number of candidates of each sentence."""
    candidates: Literal["sample", "beam"] = "sample"
    """Where the candidates come from: sampling, or beam search with as many beams."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sampled = [name for name in ("temperature", "top_k", "top_p", "seed") if self._differs(name)]
        if self.candidates == "beam" and sampled:
            option = sampled[0].replace("_", "-")
            raise UserError(f"--decoding.{option} is for --decoding.candidates sample: leave it out")

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != getattr(SampleConfig, name))


METHODS: dict[str, type[DecodingConfig]] = {
    config_class.method: config_class for config_class in (BeamConfig, GreedyConfig, SampleConfig, MbrConfig)
}
"""The options of each method."""


def methods_of(config_class: type[DecodingConfig]) -> dict[str, type[DecodingConfig]]:
    """The methods of a system by its type of search options, and the type of each. A type that is not in
    `METHODS` is for all its methods."""
    if config_class is DecodingConfig or config_class in METHODS.values():
        return METHODS
    return dict.fromkeys(get_args(get_type_hints(config_class)["method"]), config_class)


def changed_search(current: DecodingConfig, values: Mapping[str, Option]) -> DecodingConfig:
    """The options of a search with others. A new method keeps the options that all methods have.

    Raises:
      UserError: there is no such method or option, it belongs to another method, or its value is wrong.
    """
    kinds = methods_of(type(current))
    method = values.get("method", current.method)
    if not isinstance(method, str) or method not in kinds:
        needs = ""
        if isinstance(method, str) and method in METHODS:
            needs = ": it needs an autoregressive model, and this one predicts all tokens at once"
        raise UserError(f"--decoding.method {method}{needs}: choose {' or '.join(kinds)}")
    config_class = kinds[method]
    for name in values:
        check_option(kinds, method, name)
    shared = names_of(config_class) & names_of(type(current))
    if config_class is not type(current):
        shared &= names_of(DecodingConfig) - {"method"}
    shared_values = {name: getattr(current, name) for name in shared}
    return config_class(**{"method": method} | shared_values | dict(values))


def check_option(kinds: Mapping[str, type[DecodingConfig]], method: str, name: str) -> None:
    """Raises UserError if a method does not have an option of that name."""
    if name in names_of(kinds[method]):
        return
    owners = [other for other, config_class in METHODS.items() if name in names_of(config_class)]
    if owners:
        usable = [owner for owner in owners if owner in kinds]
        remedy = f"--decoding.method {usable[0]}, or leave it out" if usable else "leave it out"
        raise UserError(
            f"--decoding.{name.replace('_', '-')} is an option of {' and '.join(owners)}, and this method is "
            f"{method}: {remedy}"
        )
    from transformer.config.names import keyword_hint

    known = [item.name for item in dataclasses.fields(kinds[method])]
    if here := keyword_hint(name):
        raise UserError(f"search option {name!r} does not exist; {here}")
    meant = nearest(name, known) or f"; there are {', '.join(known)}"
    raise UserError(f"search option {name!r} does not exist{meant}")


def check_beam(decoding: DecodingConfig, model: ModelConfig) -> None:
    """Raises UserError if the vocabulary is too small for the beam size, or for ids of the options."""
    if not model.output_size:
        raise UserError("--model.vocab-size 0: the preset or the task must set the size of the vocabulary")
    for name in "suppress", "suppress_first":
        if outside := [index for index in getattr(decoding, name) if index >= model.output_size]:
            option = name.replace("_", "-")
            raise UserError(
                f"--decoding.{option} {outside[0]}: the vocabulary has {model.output_size:,} ids, from 0"
            )
    if isinstance(decoding, BeamConfig) and 2 * decoding.beam_size > model.output_size:
        raise UserError(
            f"--decoding.beam-size {decoding.beam_size} is more than half the vocabulary of "
            f"{model.output_size}"
        )
