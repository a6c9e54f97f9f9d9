"""What is unusual about the pairs of a corpus: said in one line when training begins, and not changed."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html.entities import html5

import numpy as np

from transformer.data.sources.text_files import named_ranges
from transformer.data.store import Progress, Records, silent
from transformer.runtime.errors import counted
from transformer.runtime.text import has_text
from transformer.runtime.words import words

MOST = 1_000_000  # pairs that are looked through
OF_SAMPLE = 100_000  # of those that are a sample of more
FACTOR = 3.0  # of the usual ratio of lengths
SHORT = 20  # characters of texts whose lengths say nothing
MARGIN = 1.0  # nats per word by which a text is rather of the other side
HEADERS = {
    *("source", "target", "src", "tgt", "trg", "input", "output", "text", "label", "labels", "translation"),
    *("reference", "sentence", "sentence1", "sentence2", "english", "german", "french", "spanish", "italian"),
    *("portuguese", "dutch", "russian", "chinese", "japanese", "korean", "arabic"),
}
_ENTITY = re.compile(r"&((?:[a-zA-Z][a-zA-Z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});)")


def unusual_pairs(
    records: Records,
    is_translated: bool,
    languages: Sequence[str | None] = (),
    progress: Progress = silent,
    total: int | None = None,
) -> str:
    """A line about pairs that repeat another, have HTML entities, look swapped or like a header, differ in
    length, or have an empty side; empty if there are none.

    Args:
      records: pairs, of which the first million count.
      is_translated: whether sources and targets say the same in two languages, so that lengths and sides tell
        something.
      languages: of source and target, for headers.
      progress: shows the progress.
      total: how many pairs these are a sample of. None: they are all.
    """
    number = min(len(records), MOST if total in (None, len(records)) else OF_SAMPLE)
    hashes = np.zeros(number, np.int64)
    lengths = np.zeros((number, 2))
    counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    entities, lacking = 0, list[int]()
    looked = progress("looking for unusual pairs", _pairs(records, number), number)
    for index, (source, target) in enumerate(looked):
        hashes[index] = hash((source, target))
        lengths[index] = len(source), len(target)
        entities += _has_entity(source) or _has_entity(target)
        if not (has_text(source) and has_text(target)):
            lacking.append(index + 1)
        if is_translated:
            for side, text in zip(counts, (source, target), strict=True):
                side.update(words(text.lower()))
    remarks = []
    if repeated := number - len(np.unique(hashes)):
        remarks.append(f"{repeated:,} repeat another")
    if entities:
        remarks.append(f"{entities:,} with HTML entities such as &amp;")
    if is_translated and (swapped := sum(_swapped(_pairs(records, number), counts))):
        remarks.append(f"{swapped:,} with source and target swapped, by their words")
    if is_translated and (uneven := _uneven(lengths)):
        remarks.append(f"{uneven:,} whose lengths differ {FACTOR:g} times more than usual")
    if number and _is_header(next(_pairs(records, 1)), languages):
        remarks.append("the first looks like a header")
    is_sample = total not in (None, len(records))
    among = counted(len(lacking), "pair") if is_sample else named_ranges("pair", lacking)
    left_out = f"an empty side, so training leaves it out: {among}" if lacking else ""
    if is_sample and lacking:
        left_out += f" of a sample of {number:,}"
    if not remarks:
        return left_out
    which = f"a sample of {number:,}" if is_sample else f"the {'first ' * (number < len(records))}{number:,}"
    used = f"unusual among {which} training pairs, and kept: {', '.join(remarks)}"
    return f"{used}; {left_out}" if left_out else used


def _pairs(records: Records, number: int) -> Iterator[tuple[str, str]]:
    return ((record[0], record[1]) for record in itertools.islice(iter(records), number))


def _has_entity(text: str) -> bool:
    return "&" in text and any(name[0] == "#" or name in html5 for name in _ENTITY.findall(text))


def _swapped(pairs: Iterable[tuple[str, str]], counts: tuple[Counter[str], Counter[str]]) -> Iterator[bool]:
    """Whether the source of each pair has rather the words of targets, and the target those of sources. What
    a pair itself adds to the counts is left out."""
    totals = [sum(side.values()) + 1 for side in counts]
    prior = math.log(totals[1] / totals[0])

    def leaning(text: str, side_of_text: int) -> float:
        """Mean log-ratio of P(word | source side) and P(word | target side)."""
        several = words(text.lower())
        less = Counter(several)
        sides = [
            [counts[side][word] - less[word] * (side == side_of_text) + 0.5 for word in several]
            for side in (0, 1)
        ]
        ratios = (math.log(first / second) for first, second in zip(*sides, strict=True))
        return sum(ratios) / len(several) + prior if several else 0.0

    for source, target in pairs:
        yield leaning(source, 0) < -MARGIN and leaning(target, 1) > MARGIN


def _uneven(lengths: np.ndarray) -> int:
    """How many pairs have another ratio of lengths than most."""
    long = lengths[(lengths.max(axis=1) >= SHORT) & (lengths.min(axis=1) > 0)]
    if not len(long):
        return 0
    ratios = np.log(long[:, 1] / long[:, 0])
    return int((np.abs(ratios - np.median(ratios)) > math.log(FACTOR)).sum())


def _is_header(pair: tuple[str, str], languages: Sequence[str | None]) -> bool:
    names = HEADERS.union(language.lower() for language in languages if language)
    return all(text.strip().lower() in names for text in pair)
