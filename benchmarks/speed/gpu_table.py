"""The table of `python -m benchmarks.speed.gpu`, in Markdown."""

from collections.abc import Iterable
from typing import Any

from transformer.plan.machines import machine

CARDS = {"H100 80GB HBM3": "h100:1", "H200": "h200:1"}
"""How names of cards end, and the machine of `--plan`. (PCIe and NVL cards have another peak.)"""
TRAINING = (
    "model, batch",
    "program",
    "tokens/s",
    "an update",
    "time, x ours",
    "of the peak",
    "peak memory",
    "--plan",
)
DECODING = ("sentences", "program", "sentences/s", "tokens/s", "time, x ours", "identical translations")
GIB = 2**30
Line = dict[str, Any]
"""A case, as `benchmarks.speed.gpu` writes it."""


def place_of(card: str) -> str | None:
    """The machine of `--plan` that a card is. None: it is not known there."""
    return next((place for name, place in CARDS.items() if card.endswith(name)), None)


def markdown(lines: Iterable[Line]) -> str:
    """The tables of all cards.

    Args:
      lines: of `benchmarks.speed.gpu`. Of several for the same case on the same card, the last one counts.
    """
    cards: dict[str, dict[tuple[str, str], Line]] = {}
    for line in lines:
        card = line["card"]
        cards.setdefault(place_of(card) or card, {})[line["part"], line["case"]] = line
    if not cards:
        return "nothing is measured yet"
    return "\n\n".join(text for place, cases in cards.items() for text in _of_card(place, cases))


def _of_card(place: str, cases: dict[tuple[str, str], Line]) -> list[str]:
    """The texts of a card: what it is, and a table for each part."""
    peak = machine(place).chip.peak if place in CARDS.values() else None
    abouts = {", ".join(f"{key} {value}" for key, value in each["about"].items()) for each in cases.values()}
    measured = {part for part, _ in cases} - {"plan"}
    card = next((line["card"] for (part, _), line in cases.items() if part in measured), place)
    texts = [f"**{card}** ({'; '.join(sorted(abouts))})"]
    if not measured:
        texts.append("Nothing is measured yet: the compiler's estimates alone.")
    elif peak is None:
        texts.append("`plan/machines.py` does not know the peak of this card: no shares of it.")
    names = dict.fromkeys(case for part, case in cases if part != "decode")
    training = [row for case in names for row in _training(case, cases, peak)]
    decoding = [row for (part, _), line in cases.items() if part == "decode" for row in _decoding(line)]
    texts += [_table(head, rows) for head, rows in ((TRAINING, training), (DECODING, decoding)) if rows]
    return texts


def _training(case: str, cases: dict[tuple[str, str], Line], peak: float | None) -> Iterable[tuple[str, ...]]:
    line, plan = cases.get(("train", case)), cases.get(("plan", case))
    estimate = ""
    if plan:
        estimate = f"{plan['memory'] / GIB:.1f} GiB"
        if plan["seconds"]:
            estimate = f"{plan['seconds'] * 1e3:.1f} ms, {estimate}"
    if line is None:
        yield case, *[""] * (len(TRAINING) - 2), estimate
        return
    ours = line["programs"][0]["median"]
    for index, each in enumerate(line["programs"]):
        update = each["median"] / line["updates"]
        yield (
            case,
            each["name"],
            f"{line['tokens'] / update:,.0f}",
            f"{update * 1e3:.1f} ms",
            f"{each['median'] / ours:.2f}" if index else "",
            f"{line['flops'] / update / peak:.1%}" if peak else "",
            f"{each['memory'] / GIB:.1f} GiB",
            "" if index else estimate,
        )


def _decoding(line: Line) -> Iterable[tuple[str, ...]]:
    ours = line["programs"][0]["median"]
    for index, each in enumerate(line["programs"]):
        median = each["median"]
        yield (
            line["case"],
            each["name"],
            f"{line['sentences'] / median:,.1f}",
            f"{each['tokens'] / median:,.0f}",
            f"{median / ours:.2f}" if index else "",
            f"{each['identical']:.0%}" if index else "",
        )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))
