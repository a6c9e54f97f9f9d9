"""What is asked of a translation."""

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import NamedTuple

from transformer.errors import UserError


class Asked(NamedTuple):
    """A sentence to be translated, and what is asked of its translation."""

    source: str
    target: str = ""
    """Always empty."""
    prefix: str = ""
    """What the translation must begin with."""
    terms: tuple[str, ...] = ()
    """Words and phrases that must occur in it."""


def asked(
    sources: Iterable[object], prefixes: Iterable[object] = (), terms: Iterable[object] = ()
) -> Iterator[Asked]:
    """Records of sentences, and of the prefixes and terms of the first ones.

    Raises:
      UserError: something else than text is among them.
    """
    for name, given in ("prefixes", prefixes), ("terms", terms):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise UserError(f"{name} must be a list: one for each sentence")
        if isinstance(given, Sized) and isinstance(sources, Sized) and len(given) > len(sources):
            raise UserError(f"{len(given)} {name} for {len(sources)} sentences: give one for each")
    more = itertools.chain(prefixes, itertools.repeat("")), itertools.chain(terms, itertools.repeat(()))
    for source, prefix, own in zip(sources, *more, strict=False):
        if isinstance(own, str) or not isinstance(own, Iterable):
            raise UserError("the terms of a sentence must be a list of words and phrases")
        texts = (sentence(text, "terms must be words and phrases") for text in own)
        yield Asked(sentence(source), "", sentence(prefix, "prefixes must be text"), tuple(texts))


def sentence(text: object, rule: str = "sources must be sentences") -> str:
    """A text. Raises UserError if it is something else."""
    if not isinstance(text, str):
        raise UserError(f"{rule}, not {type(text).__name__}")
    return text
