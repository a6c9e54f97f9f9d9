"""What a command line states before it is parsed, which decides the options and their defaults."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from transformer.config.decoding import DecodingConfig, names_of
from transformer.config.searches import METHODS, changed_search, check_option, methods_of
from transformer.runtime.errors import UserError
from transformer.systems.registry import REGISTRY, options_of

FIRST = "quickstart"
FINE_TUNE = "fine-tune"
"""The presets of a command line that names none, without and with a run to initialise from."""
TEXT = ("--data.train", "--data.dataset")  # options that select the training text
_ALIASES = {
    "--help-all": "--help",
    "--init-from": "--training.init-from",
    "--init-encoder-from": "--training.init-encoder-from",
}


def options_in(words: Sequence[str]) -> dict[str, str]:
    """The options of a command line by name, such as --run-dir, with the word that follows: the value of an
    option that has one, otherwise empty or anything. The last one counts."""
    options = {}
    for word, following in itertools.pairwise([*words, ""]):
        if word.startswith("--"):
            name, is_assigned, value = word.partition("=")
            next_word = "" if following.startswith("--") else following
            options[name.replace("_", "-")] = value if is_assigned else next_word
    return options


@dataclass(frozen=True)
class TrainLine:
    """The command line of `train.py`."""

    preset: str
    """The preset, also if none is named."""
    is_named: bool
    """Whether the preset is named."""
    variants: tuple[str, ...]
    """The variants of the preset, in order."""
    lists_presets: bool
    """Whether it asks for the list of presets."""
    wants_help: bool
    """Whether it asks for the short help."""
    words: tuple[str, ...]
    """What is left for the parser."""
    options: Mapping[str, str]
    """Those words, as by `options_in`."""
    config: str = ""
    """The file with further options. Empty: none."""
    in_config: Mapping[str, str] = field(default_factory=dict)
    """The options that the file gives, by name, once it has been read."""

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "TrainLine":
        """Reads a command line.

        Raises:
          UserError: a variant has no name, or there are two presets.
        """
        variants, words, config = list[str](), list[str](), ""
        rest = iter(arguments)
        for word in rest:
            name, is_assigned, value = word.partition("=")
            if name == "--variant":
                variant = value if is_assigned else next(rest, "")
                if not variant or variant.startswith("-"):
                    raise UserError("--variant needs a name, such as --variant rdrop; see --list-presets")
                variants.append(variant)
            elif name == "--config":
                if config:
                    raise UserError("--config is given twice: leave one of the files out")
                config = value if is_assigned else next(rest, "")
                if not config or config.startswith("-"):
                    raise UserError("--config needs a file, such as --config run.yaml")
            else:
                words.append(_ALIASES.get(name, name) + is_assigned + value)
        is_named = bool(words) and not words[0].startswith("-")
        named = words.pop(0) if is_named else ""
        if is_named and words and not words[0].startswith("-"):
            raise UserError(
                f"{words[0]!r} after {named!r}: give one preset, and --variant NAME or other options"
            )
        options = options_in(words)
        default = FINE_TUNE if options.get("--training.init-from") else FIRST
        return cls(
            preset=named or default,
            is_named=is_named,
            variants=tuple(variants),
            lists_presets="--list-presets" in arguments,
            wants_help=not {"--help", "-h"}.isdisjoint(arguments),
            words=tuple(words),
            options=options,
            config=config,
        )

    def with_config(self, options: Mapping[str, str]) -> "TrainLine":
        """The line with the options that its file gives."""
        starts = options.get("--training.init-from") and not self.is_named
        return replace(self, in_config=options, preset=FINE_TUNE if starts else self.preset)

    def _given(self, option: str) -> str | None:
        return self.options.get(option) or self.in_config.get(option) or None

    @property
    def parent(self) -> str | None:
        """The run to initialise from."""
        return self._given("--training.init-from")

    @property
    def encoder(self) -> str | None:
        """The run whose encoder to initialise from."""
        return self._given("--training.init-encoder-from")

    @property
    def resumes(self) -> str | None:
        """The run directory of a line that resumes it and starts from no other run."""
        return None if self.parent or self.encoder else self.started

    @property
    def started(self) -> str | None:
        """The run directory whose options are the defaults, if it exists, also if the line names the run that
        it starts from."""
        return None if self.is_named or self.variants or self.config else self.options.get("--run-dir")

    @property
    def has_text(self) -> bool:
        """Whether it selects the training text."""
        return any(option.startswith(TEXT) for option in (*self.options, *self.in_config))


def with_method(current: DecodingConfig, options: Mapping[str, str], prefix: str) -> DecodingConfig:
    """The options of a search with the method that a command line names, so that the parser knows its others.

    Args:
      current: the options without this command line.
      options: those of the command line, as by `options_in`.
      prefix: of its search options, such as `--decoding.`.

    Raises:
      UserError: there is no such method, or an option belongs to another one.
    """
    method = options.get(f"{prefix}method")
    if method in METHODS and method != current.method:
        current = changed_search(current, {"method": method})
    everything = set().union(*map(names_of, METHODS.values()))
    for option in options:
        name = option.removeprefix(prefix).replace("-", "_")
        if option.startswith(prefix) and name in everything:
            check_option(methods_of(type(current)), current.method, name)
        elif option.startswith(prefix) and name not in names_of(type(current)) and (owners := _having(name)):
            raise UserError(f"{option}: it is for {', '.join(owners)}; leave it out")
    return current


def _having(option: str) -> list[str]:
    """The systems with a search option."""
    systems = {name: methods_of(options_of(name).decoding).values() for name in REGISTRY}
    return [name for name, kinds in systems.items() if any(option in names_of(cls) for cls in kinds)]
