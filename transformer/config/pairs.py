"""The rules of pairs of text: which are left out (--data.filter), which are changed (--data.noise), and how
many are drawn from each of several corpora (--data.mix)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformer.config.ranges import COUNTS
from transformer.runtime.errors import UserError, nearest

FILTERS: dict[str, float | str | None] = {
    "ratio": 3.0,
    "long": 1000.0,
    "copies": None,
    "repeated": None,
    "numbers": None,
    "letters": 0.5,
    "entities": None,
    "scripts": "",
    "languages": "",
}
"""The rules of --data.filter, with their values. None: it has no value; empty: what is written so varies."""


def filters_of(rules: Sequence[str]) -> dict[str, float | str | None]:
    """The value of each rule of --data.filter, such as ratio=2.5 or copies.

    Raises:
      UserError: there is no such rule, it is there twice, or its value is none.
    """
    values: dict[str, float | str | None] = {}
    for rule in rules:
        name, _, value = rule.partition("=")
        option, default = f"--data.filter {rule}", FILTERS.get(name)
        if name not in FILTERS:
            hint = nearest(name, FILTERS) or f": choose {', '.join(FILTERS)}"
            raise UserError(f"{option}: there is no such rule{hint}")
        if name in values:
            raise UserError(f"{option}: {name} is there twice; name it once")
        if value and default is None:
            raise UserError(f"{option}: {name} has no value; leave it out")
        values[name] = value or default
        if name == "scripts" and not re.fullmatch(r"[A-Za-z+]+(:[A-Za-z+]+)?", value):
            raise UserError(
                f"{option}: name the scripts of source and target, such as scripts=Latin:Han+Bopomofo"
            )
        if name == "languages" and not re.fullmatch(r"([\w-]+:[\w-]+)?", value):
            raise UserError(f"{option}: name the languages of source and target, such as languages=en:de")
        if isinstance(default, float):
            try:
                values[name] = float(values[name] or 0)
            except ValueError:
                raise UserError(f"{option}: the value must be a number, such as {name}={default:g}") from None
            if not 0 < float(values[name] or 0) < COUNTS:
                raise UserError(f"{option}: the value must be positive, and below {COUNTS:,}")
    return values


NOISES = ("punctuation", "typos", "title", "upper")
"""What --data.noise changes, in the order in which it is made."""


def noise_of(noise: Sequence[str]) -> dict[str, float]:
    """The share of pairs that each change of --data.noise gets, in the order of `NOISES`.

    Raises:
      UserError: there is no such change, it is there twice, or its share is none.
    """
    shares = dict[str, float]()
    for word in noise:
        name, _, value = word.partition("=")
        if name not in NOISES or name in shares:
            what = "is there twice" if name in shares else f"is none of {', '.join(NOISES)}"
            raise UserError(f"--data.noise {word}: {name or 'a name'} {what}")
        try:
            shares[name] = float(value)
        except ValueError:
            shares[name] = -1
        if not 0 < shares[name] <= 1:
            raise UserError(f"--data.noise {word}: give a share of the pairs, such as {name}=0.1")
    return {name: shares[name] for name in NOISES if name in shares}


@dataclass(frozen=True)
class MixStage:
    """What --data.mix says from an update on."""

    start: int
    """The update, from 0."""
    weights: Mapping[str, float]
    """Of corpora. One that is not there has none."""


def mix_stages(mix: Sequence[str]) -> list[MixStage]:
    """The stages of --data.mix, in order.

    Raises:
      UserError: they are not as the option says.
    """
    stages, weights = list[MixStage](), dict[str, float]()
    for word in ("@0", *mix):
        option = f"--data.mix {word}"
        name, equals, value = word.rpartition("=")
        if word.startswith("@") and not equals:
            is_number = re.fullmatch(r"@\d{1,10}", word)  # int refuses thousands of digits
            if stages and not (weights and is_number and stages[-1].start < int(word[1:]) < COUNTS):
                raise UserError(
                    f"{option}: write weights, then the update from which others count, such as clean=1 "
                    "noisy=3 @20000 clean=1"
                )
            weights = {}
            stages.append(MixStage(int(word[1:]), weights))
            continue
        if not equals or not re.fullmatch(r"[^@{}][^{}]*", name):
            raise UserError(f"{option}: write the name of a corpus and its weight, such as europarl=1")
        if name in weights:
            raise UserError(f"{option}: {name} is there twice; name it once")
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = -1
        if not 0 <= weights[name] < COUNTS:
            raise UserError(f"{option}: a weight is a number from 0, below {COUNTS:,}")
    if mix and not all(any(stage.weights.values()) for stage in stages):
        raise UserError(f"--data.mix {' '.join(mix)}: give a corpus a positive weight in each stage")
    return stages
