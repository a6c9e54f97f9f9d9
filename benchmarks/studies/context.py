"""What previous sentences add to translation: BLEU, and the pronouns that need them.

`python -m benchmarks.studies.context WORK` trains preset `pronouns` with 0 to 3 sentences of context
(`--data.context`) and several seeds. Each run translates 1,000 sentences of the test set. A pronoun, or a
word that agrees with a noun that is not said, counts as right if the output has it and none of the other
genders. In the contrastive test the model chooses: log P of the reference is to be higher than of each
reference with another gender (Müller et al. 2018). Differences from the run without context of the same seed
have p-values: of BLEU by a paired bootstrap test (Koehn 2004), of pronouns by a sign test. Everything is in
WORK: if interrupted, the same command continues.
"""

import argparse
import itertools
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from scipy.stats import binomtest

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.runs import once
from benchmarks.studies.bootstrap import compare
from transformer import PRESETS, Config, Translator, train
from transformer.config.options import text_data
from transformer.data.built_in import pronouns
from transformer.data.built_in.pronouns import GENDERS, things
from transformer.data.sources.held_out import HELD_OUT
from transformer.runtime.files import Json

CONTEXTS = (0, 1, 2, 3)
SEEDS = 3
FAR = 3
"""Sentences from a noun to its pronoun that are counted together with more."""


@dataclass(frozen=True)
class Line:
    """A sentence of the test set."""

    source: str
    """Empty at the end of a passage."""
    target: str
    others: tuple[str, ...]
    distance: int
    """Sentences back to the noun that decides; 0 if none does."""


def lines_of_test(count: int) -> list[Line]:
    """The first sentences of the test set, with the ends of passages."""
    nouns = {noun.english for gender in GENDERS for noun in things(gender)}
    lines: list[Line] = []
    for passage in pronouns.records("test"):
        since = 0
        for sentence in passage:
            since = 0 if nouns & set(words_of(sentence.source)) else since + 1
            lines.append(Line(*sentence, since if sentence.others else 0))
            count -= 1
            if not count:
                return lines
        lines.append(Line("", "", (), 0))
    raise AssertionError("passages do not end")


def words_of(text: str) -> list[str]:
    """The words of a sentence in small letters."""
    return text.lower().rstrip(".?").split()


def is_right(output: str, line: Line) -> bool:
    """Whether an output has the words of the right gender, and none of another."""
    every = [set(words_of(text)) for text in (line.target, *line.others)]
    agreeing = set.union(*every) - set.intersection(*every)
    return set(words_of(output)) & agreeing == every[0] & agreeing


def chosen(translator: Translator, lines: list[Line], sources: list[str]) -> list[bool]:
    """Whether the reference of each line is more probable than with another gender."""
    pairs = [
        (source, target)
        for source, line in zip(sources, lines, strict=True)
        for target in (line.target, *line.others)
    ]
    scores = iter(translator.score(*zip(*pairs, strict=True)).tolist())
    several = [list(itertools.islice(scores, 1 + len(line.others))) for line in lines]
    return [max(one) == one[0] for one in several]


def config_of(context: int, seed: int, updates: int | None) -> Config:
    """The preset with that many sentences of context."""
    base = PRESETS["pronouns"]
    steps = updates or base.training.steps
    every = min(base.training.evaluate_every, steps)
    return replace(
        base,
        data=replace(text_data(base), context=context, seed=seed),
        training=replace(base.training, steps=steps, evaluate_every=every, seed=seed, keep_last=1),
    )


def measured(path: Path, config: Config, lines: list[Line]) -> Json:
    """Trains a run and measures it."""
    train(config, path)
    translator = Translator.load(path)
    read = translator.in_context(line.source for line in lines)
    pairs = [(source, line) for source, line in zip(read, lines, strict=True) if line.source]
    outputs = translator.translate([source for source, _ in pairs])
    dependent = [index for index, (_, line) in enumerate(pairs) if line.others]
    sources = [pairs[index][0] for index in dependent]
    several = [pairs[index][1] for index in dependent]
    found: Json = {
        "outputs": outputs,
        "right": [is_right(outputs[index], pairs[index][1]) for index in dependent],
        "chosen": chosen(translator, several, sources),
        "distance": [min(line.distance, FAR) for line in several],
    }
    jax.clear_caches()  # Linux limits the memory maps of a process, of which each program has some
    return found


def p_of(before: list[bool], after: list[bool]) -> float:
    """The p-value of a sign test of pairs of which one is right."""
    better = sum(b > a for a, b in zip(before, after, strict=True))
    worse = sum(b < a for a, b in zip(before, after, strict=True))
    return float(binomtest(better, better + worse).pvalue) if better + worse else 1.0


def row_of(found: Json, first: Json, path: Path) -> Json:
    """What the table has of a run, compared with the one without context."""
    compared = compare(path, first["outputs"], found["outputs"])
    by_distance = {
        f"{distance}": share(
            [x for x, d in zip(found["right"], found["distance"], strict=True) if d == distance]
        )
        for distance in range(1, FAR + 1)
    }
    return {
        "bleu": compared.bleu,
        "p of bleu": compared.p,
        "right": share(found["right"]),
        "p of right": p_of(first["right"], found["right"]),
        "chosen": share(found["chosen"]),
        **by_distance,
    }


def share(values: list[bool]) -> float:
    """The percentage that is true."""
    return 100 * statistics.fmean(values) if values else 0.0


def table(rows: dict[int, list[Json]]) -> str:
    """Markdown: means over the seeds, the deviation of the seeds, and the largest p-value."""
    titles = {"bleu": "BLEU", "right": "pronouns", "chosen": "contrastive"}
    near = {f"{distance}": f"noun {distance} before" for distance in range(1, FAR)}
    far = {f"{FAR}": f"{FAR} or more"}
    columns = titles | near | far
    lines = [f"| context | {' | '.join(columns.values())} | p |", "|---" * (len(columns) + 2) + "|"]
    for context, several in rows.items():
        cells = [str(context)]
        for name in columns:
            values = [row[name] for row in several]
            spread = f" ± {statistics.stdev(values):.1f}" if name in titles and len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.1f}{spread}")
        worst = max(max(row["p of bleu"], row["p of right"]) for row in several)
        cells.append("" if not context else f"{worst:.3f}" if worst >= 0.001 else "< 0.001")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, and prints and writes the table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs and the table")
    parser.add_argument("--contexts", nargs="+", type=positive, default=list(CONTEXTS[1:]), help="besides 0")
    parser.add_argument("--seeds", type=positive, default=SEEDS, help=f"trainings of each ({SEEDS})")
    parser.add_argument("--updates", type=positive, help="of each training (those of the preset)")
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    lines = lines_of_test(HELD_OUT)
    rows: dict[int, list[Json]] = {context: [] for context in (0, *given.contexts)}
    for seed in range(given.seeds):
        found: dict[int, Json] = {}
        for context in rows:
            path = given.work / f"context-{context}-seed-{seed}"
            config = config_of(context, seed, given.updates)

            def make(path: Path = path, config: Config = config) -> Json:
                return measured(path, config, lines)

            found[context] = once(path.with_suffix(".json"), make)
            rows[context].append(row_of(found[context], found[0], path))
    report(given.work / "context", {"about": machine(), "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
