"""Which words of synthetic speech a recogniser gets wrong, and how."""

from collections import Counter

from transformer.runtime.files import Json
from transformer.tasks.metrics.error_rates import aligned

KINDS = ("substituted", "deleted", "inserted", "first", "last")


def kinds(heard: list[str], texts: list[str]) -> dict[str, Json]:
    """How many words are taken for others, left out and added, how many of these are the first or last of a
    text, and what is taken for what most often."""
    counts, pairs = Counter[str](), Counter[tuple[str, str]]()
    for words in aligned(heard, texts, "word"):
        for place, (said, understood) in enumerate(words):
            if said == understood:
                continue
            counts["substituted" if said and understood else "deleted" if said else "inserted"] += 1
            counts["first"] += place == 0
            counts["last"] += place == len(words) - 1
            pairs[said, understood] += 1
    confused = [[*pair, count] for pair, count in pairs.most_common(10)]
    return {**{name: counts[name] for name in KINDS}, "confused": confused}


def table_of_kinds(rows: dict[str, Json], words: int) -> str:
    """Markdown: a row for each voice, a column for each kind of error."""
    titles = (*KINDS, "without an end")
    lines = [f"| of {words} words | {' | '.join(titles)} |", "|---" * 7 + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(str(row['wrong'].get(title, '')) for title in titles)} |")
    return "\n".join(lines)
