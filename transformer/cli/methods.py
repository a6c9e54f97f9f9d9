"""The search method of a command line, which decides what options it has."""

import re

from transformer.config import DecodingConfig, changed_search
from transformer.config.decoding import METHODS, check_option, methods_of, names_of
from transformer.errors import UserError
from transformer.systems.registry import REGISTRY, options_of


def with_method(current: DecodingConfig, arguments: list[str], prefix: str) -> DecodingConfig:
    """The options with the method that the arguments name, so that the parser knows its others.

    Args:
      current: the options without this command line.
      arguments: the command line.
      prefix: of its search options, such as `--decoding.`.

    Raises:
      UserError: there is no such method, or an option belongs to another one.
    """
    words = [re.sub(r"=.*", "", word, flags=re.DOTALL) for word in arguments]
    named = next((place for place, word in enumerate(words) if word == f"{prefix}method"), None)
    if named is not None:
        value = arguments[named].partition("=")[2] or (*arguments[named + 1 :], "")[0]
        if value in METHODS and value != current.method:
            current = changed_search(current, {"method": value})
    everything = set().union(*map(names_of, METHODS.values()))
    for word in words:
        name = word.removeprefix(prefix).replace("-", "_")
        if word.startswith(prefix) and name in everything:
            check_option(methods_of(type(current)), current.method, name)
        elif word.startswith(prefix) and name not in names_of(type(current)) and (others := _having(name)):
            raise UserError(f"{word}: it is for {', '.join(others)}; leave it out")
    return current


def _having(option: str) -> list[str]:
    """The systems with a search option."""
    kinds = {name: methods_of(options_of(name).decoding).values() for name in REGISTRY}
    return [system for system, each in kinds.items() if any(option in names_of(kind) for kind in each)]
