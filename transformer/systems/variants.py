"""Variants: changes of presets that have names."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from transformer.config import Config, ModelConfig, Option, as_word
from transformer.runtime.errors import UserError


@dataclass(frozen=True)
class Variant:
    """A change of presets. It has a name in `Options.variants`."""

    about: str
    """What it changes, in a line."""
    options: Mapping[str, Option] = field(default_factory=dict)
    """The values of options by their dotted names, such as {"rdrop.weight": 3.0}."""
    group: str = ""
    """The group of variants that lists it. Empty: that of its system."""
    systems: tuple[str, ...] = ()
    """The systems whose presets it changes. Empty: every system that has these options."""
    change: Callable[[Config], Config] | None = None
    """What it changes before the options, such as the type of the model. None: nothing."""
    continues: bool = False
    """Whether it is for a trained model, given by --init-from."""

    def of(self, config: Config) -> Config:
        """The changed config.

        Raises:
          UserError: the variant does not fit its system; its options do not go together with the others.
        """
        if self.systems and config.system not in self.systems:
            raise UserError(f"it is for system {' or '.join(self.systems)}, not for {config.system}")
        if self.change:
            config = self.change(config)
        sections: dict[str, dict[str, Option]] = {}
        for name, value in self.options.items():
            section, _, option = name.partition(".")
            if not hasattr(getattr(config, section), option):
                raise UserError(f"it changes {as_option(name)}, which system {config.system} does not have")
            sections.setdefault(section, {})[option] = value
        return replace(
            config,
            **{section: replace(getattr(config, section), **values) for section, values in sections.items()},
        )

    @property
    def described(self) -> str:
        """What it changes, with its options."""
        return ": ".join(filter(None, (self.about, self.words)))

    @property
    def words(self) -> str:
        """Its options, as on a command line."""
        return " ".join(itertools.starmap(as_words, self.options.items()))


def as_option(name: str) -> str:
    """The option of a dotted name: --model.d-model of model.d_model."""
    return f"--{name.replace('_', '-')}"


def as_words(name: str, value: Option) -> str:
    """An option as on a command line: --model.d-model 512, --model.remat, --decoding.buckets 8 16."""
    if isinstance(value, bool):
        section, dot, option = name.rpartition(".")
        return as_option(name if value else f"{section}{dot}no-{option}")
    return f"{as_option(name)} {as_word(value)}"


def of_system(config: Config, system: str, model: type[ModelConfig]) -> Config:
    """The config with a model of another system, which may not support packed batches. Options that both
    types have keep their values."""
    shared = {item.name for item in fields(model)} & {item.name for item in fields(config.model)}
    values = {name: getattr(config.model, name) for name in shared}
    data = replace(config.data, batching="auto") if config.data.batching == "packed" else config.data
    return replace(config, system=system, model=model(**values), data=data)
