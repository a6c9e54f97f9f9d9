"""A built-in corpus of short reports and their summaries: races, the weather, and markets.

    On Friday a race took place in Suvton. The road was wet in some places. The time of Chairty was 34
    minutes. Trazor finished after 57 minutes. Broania needed 43 minutes.
    Chairty won the race in Suvton in 34 minutes.

A summary needs selection: the fastest runner, the warmest town, the towns where it rained, the seller with
the highest takings. Reports have five to ten sentences, some of which do not matter. Names are invented, and
no split has those of another, so a model has to copy them. Every report has two valid summaries, the second
in other words; the first is the target.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from transformer.data.built_in.generated import SENTENCES, Pair, draw_split, grouped, persons, towns

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ASIDES = grouped(SENTENCES["asides"])
GOODS = ("apples", "bread", "cheese", "flowers", "honey", "lamps", "pears", "toys")


class Report(NamedTuple):
    """A report and what summarises it."""

    report: str
    summaries: tuple[str, ...]
    """Valid summaries of the report."""


def race(chance: random.Random, split: str) -> Report:
    """Who won a race: the runner with the shortest time."""
    runners = persons(chance, split, chance.randint(3, 6))
    times = chance.sample(range(30, 60), len(runners))
    (town,), day = towns(chance, split, 1), chance.choice(DAYS)
    wordings = ("{} needed {} minutes.", "{} finished after {} minutes.", "The time of {} was {} minutes.")
    facts = [chance.choice(wordings).format(*pair) for pair in zip(runners, times, strict=True)]
    winner, time = min(zip(runners, times, strict=True), key=lambda pair: pair[1])
    opening = f"On {day} a race took place in {town}."
    return _report(
        chance,
        "race",
        opening,
        facts,
        f"{winner} won the race in {town} in {time} minutes.",
        f"With a time of {time} minutes, {winner} was the fastest runner in {town}.",
    )


def weather(chance: random.Random, split: str) -> Report:
    """Where it was warmest, and where it rained, in the order of the report."""
    names, day = towns(chance, split, chance.randint(3, 6)), chance.choice(DAYS)
    degrees = chance.sample(range(2, 32), len(names))
    rains = [chance.random() < 0.3 for _ in names]
    facts = []
    for name, degree, has_rain in zip(names, degrees, rains, strict=True):
        sky = chance.choice(("it rained", "rain fell") if has_rain else ("it was sunny", "it stayed dry"))
        wordings = f"In {name} {sky} at {degree} degrees.", f"{name} had {degree} degrees, and {sky}."
        facts.append(chance.choice(wordings))
    order = chance.sample(range(len(names)), len(names))
    facts = [facts[index] for index in order]
    wet = [names[index] for index in order if rains[index]]
    warmest, degree = max(zip(names, degrees, strict=True), key=lambda pair: pair[1])
    rain = f"It rained in {listed(wet)}." if wet else "It was dry everywhere."
    return _report(
        chance,
        "weather",
        f"This was the weather on {day}.",
        facts,
        f"It was warmest in {warmest} with {degree} degrees. {rain}",
        f"{warmest} was the warmest town with {degree} degrees. {rain}",
    )


def market(chance: random.Random, split: str) -> Report:
    """Who took the most money at a market, and with what."""
    sellers = persons(chance, split, chance.randint(3, 6))
    takings = chance.sample(range(10, 100), len(sellers))
    goods = chance.sample(GOODS, len(sellers))
    (town,), day = towns(chance, split, 1), chance.choice(DAYS)
    wordings = "{0} sold {1} for {2} euros.", "{0} took {2} euros with {1}.", "For {1}, {0} got {2} euros."
    rows = list(zip(sellers, goods, takings, strict=True))
    facts = [chance.choice(wordings).format(*row) for row in rows]
    seller, good, taking = max(rows, key=lambda row: row[2])
    return _report(
        chance,
        "market",
        f"{town} held its market on {day}.",
        facts,
        f"At the market in {town}, {seller} took the most money: {taking} euros with {good}.",
        f"{seller} earned most at the market in {town}, {taking} euros with {good}.",
    )


KINDS = (race, weather, market)


def records(split: str, seed: int = 0) -> Iterator[Report]:
    """Yields reports, as `draw_split`. The names of splits are disjoint."""

    def draw(chance: random.Random) -> Report:
        return chance.choice(KINDS)(chance, split)

    return draw_split("reports", split, seed, draw, lambda record: record.report)


def pairs(split: str, seed: int = 0) -> Iterator[Pair]:
    """Yields reports and their first summaries."""
    return ((record.report, record.summaries[0]) for record in records(split, seed))


def listed(names: list[str]) -> str:
    """Names with commas, and "and" before the last."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _report(chance: random.Random, event: str, opening: str, facts: list[str], *summaries: str) -> Report:
    sentences = list(facts)
    for aside in chance.sample(ASIDES[event], chance.randint(max(0, 4 - len(facts)), 3)):
        sentences.insert(chance.randint(0, len(sentences)), aside)
    return Report(" ".join((opening, *sentences)), summaries)
