"""N-gram language models in ARPA form: estimated from text, written, and read.

A model has for some n-grams the logarithm of the probability of the last word given those before it, and the
weight of backing off from them (both to base 10). A word w after a context c has

    log p(w | c) = the logarithm stored for c w, if there is one;
                   else backoff(c) + log p(w | c without its first word)

where backoff(c) is 0 if c is not stored.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformer.data.sources.text_files import read_lines
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import brief, write_output

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
"""What each sentence begins and ends with, and all words that a model does not know."""
MOST_NGRAMS = 2_000_000
"""The maximum number of n-grams of a file, each of which takes some 400 bytes while it is read."""
LONGEST = 9
"""The highest order of n-grams that is read."""
NEVER = -99.0
"""The logarithm of no probability."""
_COLUMNS = re.compile(r"[ \t]+")  # a no-break space may be part of a word
Gram = tuple[str, ...]
Smoothing = Literal["kneser-ney", "witten-bell"]


@dataclass(frozen=True)
class NGrams:
    """An n-gram model with back-off."""

    orders: Sequence[dict[Gram, tuple[float, float]]]
    """The n-grams of each order 1, 2, ..., each with its logarithm and the weight of backing off."""

    def log10_p(self, word: str, context: Sequence[str]) -> float:
        """The logarithm of the probability of a word, by the definition: for tests and single words.

        Args:
          word: one without an entry counts as <unk>, and so do those of the context.
          context: the words before it, from <s>.
        """
        known = self.orders[0]
        word, *before = (part if (part,) in known else UNKNOWN for part in (word, *context))
        gram = (*before[max(0, len(before) - len(self.orders) + 1) :], word)
        total = 0.0
        while gram not in self.orders[len(gram) - 1]:
            if len(gram) == 1:
                return total + min(log_p for log_p, _ in known.values() if log_p > NEVER)
            *context, _ = gram
            total += self.orders[len(context) - 1].get(tuple(context), (0.0, 0.0))[1]
            gram = gram[1:]
        return total + self.orders[len(gram) - 1][gram][0]

    def write(self, path: Path) -> None:
        """Writes a file in ARPA form. Raises OSError."""
        lines = ["\\data\\", *(f"ngram {n}={len(grams)}" for n, grams in enumerate(self.orders, 1)), ""]
        for n, grams in enumerate(self.orders, 1):
            lines.append(f"\\{n}-grams:")
            for gram, (log_p, backoff) in sorted(grams.items()):
                weight = f"\t{backoff:.6f}" if n < len(self.orders) else ""
                lines.append(f"{log_p:.6f}\t{' '.join(gram)}{weight}")
            lines.append("")
        write_output(path, "\n".join([*lines, "\\end\\", ""]))


def read_arpa(path: Path) -> NGrams:
    """The model of a file in ARPA form.

    Raises:
      UserError: it cannot be read, is no such file, or has too many n-grams (the message names the line).
    """
    lines = enumerate(read_lines(path), 1)
    sizes = _sizes(lines, path)
    orders: list[dict[Gram, tuple[float, float]]] = []
    for n, size in enumerate(sizes, 1):
        grams: dict[Gram, tuple[float, float]] = {}
        number, line = next(((i, text) for i, text in lines if text.strip()), (0, ""))
        if not number:
            raise UserError(f"{path} ends before its line \\{n}-grams: it is incomplete")
        if line.strip() != f"\\{n}-grams:":
            raise UserError(f"{path}, line {number}: must be \\{n}-grams:, and is {brief(line)}")
        for number, line in lines:
            if not line.strip():
                break
            gram, values = _entry(line, n, f"{path}, line {number}")
            if gram in grams:
                raise UserError(f"{path}, line {number}: {' '.join(gram)} is there already; keep one of them")
            if n > 1 and gram[:-1] not in orders[-1]:
                before = " ".join(gram[:-1])
                raise UserError(f"{path}, line {number}: {before} is missing among the {n - 1}-grams; add it")
            grams[gram] = values
            if len(grams) > size:
                raise UserError(f"{path}, line {number}: more than the {size:,} {n}-grams of its head")
        if len(grams) < size:
            raise UserError(
                f"{path} has {len(grams):,} {n}-grams, and its head says {size:,}: it is incomplete"
            )
        orders.append(grams)
    return NGrams(orders)


def _sizes(lines: Iterator[tuple[int, str]], path: Path) -> list[int]:
    """How many n-grams of each order the head says there are."""
    if not any(line.strip() == "\\data\\" for _, line in lines):
        raise UserError(f"{path} has no line \\data\\: it is no n-gram model in ARPA form")
    sizes: list[int] = []
    for number, line in lines:
        if not line.strip():
            break
        name, _, size = line.partition("=")
        digits = size.strip()
        is_number = digits.isdecimal() and len(digits) <= len(str(MOST_NGRAMS))
        if name.split() != ["ngram", str(len(sizes) + 1)] or not is_number:
            raise UserError(f"{path}, line {number}: must be such as ngram 1=5000, and is {brief(line)}")
        sizes.append(int(digits))
    if not 1 <= len(sizes) <= LONGEST or sum(sizes) > MOST_NGRAMS or not sizes[0]:
        raise UserError(
            f"{path}: has {counted(sum(sizes), 'n-gram')} of {counted(len(sizes), 'order')}, and must have "
            f"up to {MOST_NGRAMS:,} of 1 to {LONGEST}; prune it"
        )
    return sizes


def _entry(line: str, n: int, where: str) -> tuple[Gram, tuple[float, float]]:
    """The n-gram of a line, its logarithm and its weight."""
    first, *words = _COLUMNS.split(line.strip(" \t\r"))
    try:
        if len(words) not in (n, n + 1):
            raise ValueError
        log_p = max(float(first), NEVER)
        backoff = max(float(words[n]), NEVER) if len(words) > n else 0.0
        if not (log_p <= 0 and math.isfinite(backoff)):
            raise ValueError
    except ValueError as error:
        raise UserError(
            f"{where}: must be a logarithm, which is not positive, {counted(n, 'word')}, and perhaps a weight"
        ) from error
    return tuple(words[:n]), (log_p, backoff)


def estimated(
    sentences: Iterable[Sequence[str]], order: int, size: int, smoothing: Smoothing = "kneser-ney"
) -> NGrams:
    """A model of sentences, interpolated with lower orders, down to the probability 1 / size of any word.

    Args:
      sentences: their words.
      order: the longest n-grams.
      size: how many words there are, </s> and those that are not in the text included.
      smoothing: "kneser-ney": a discount D = n1 / (n1 + 2 n2) for each order, and below the highest one the
        number of different words before an n-gram in place of its count (Chen and Goodman 1998, section 3;
        Kneser and Ney 1995). "witten-bell": the number of different words after a context decides how much
        lower orders count (Witten and Bell 1991).
    """
    raw = [Counter[Gram]() for _ in range(order)]
    for sentence in sentences:
        words = (START, *sentence, END)
        for n, counts in enumerate(raw, 1):
            counts.update(words[start : start + n] for start in range(n == 1, len(words) - n + 1))
    orders: list[dict[Gram, tuple[float, float]]] = []
    weights: dict[Gram, float] = {}
    lower: dict[Gram, float] = {(): 1.0 / size}
    for n, counts in enumerate(raw, 1):
        is_discounted = smoothing == "kneser-ney"
        used = _continuations(counts, raw[n]) if is_discounted and n < order else counts
        discount = _discount(used.values()) if is_discounted else 0.0
        totals, types = Counter[Gram](), Counter[Gram]()
        for gram, count in used.items():
            totals[gram[:-1]] += count
            types[gram[:-1]] += 1
        for context, total in totals.items():
            kinds = types[context]
            weights[context] = discount * kinds / total if is_discounted else kinds / (total + kinds)
        higher: dict[Gram, float] = {}
        for gram, count in used.items():
            context = gram[:-1]
            total = totals[context] if is_discounted else totals[context] + types[context]
            higher[gram] = (count - discount) / total + weights[context] * lower[gram[1:]]
        if n == 1:
            higher.setdefault((UNKNOWN,), weights[()] / size)
        lower = higher
        orders.append({gram: (math.log10(p), 0.0) for gram, p in higher.items()})
    orders[0][START,] = NEVER, 0.0
    for context, weight in weights.items():
        if context:
            log_p, _ = orders[len(context) - 1][context]
            orders[len(context) - 1][context] = log_p, math.log10(weight)
    return NGrams(orders)


def _continuations(counts: Counter[Gram], longer: Counter[Gram]) -> Counter[Gram]:
    """How many different words stand before each n-gram; of one that begins a sentence its count."""
    before: defaultdict[Gram, int] = defaultdict(int)
    for gram in longer:
        before[gram[1:]] += 1
    return Counter({gram: count if gram[0] == START else before[gram] for gram, count in counts.items()})


def _discount(counts: Iterable[int]) -> float:
    """What is taken from each count, by how many of them are 1 and 2."""
    of_counts = Counter(counts)
    once, twice = of_counts[1], of_counts[2]
    return once / (once + 2 * twice) if once and twice else 0.5
