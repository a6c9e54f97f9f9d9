"""How many broken translations are flagged, and how many whole ones.

`python -m benchmarks.studies.suspicion RUN SOURCES --reference FILE` translates the lines of a file. The
first half of them gives the limits (`Translator.usual_limits`). Of the others, translations are broken on
purpose: truncated to their first half, a part of three words said three times, the source copied, and each
exchanged for that of another line. Prints the share of each that is flagged by the defaults and by the
model's limits, and, with references, the share of these that is flagged.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.command import positive, run
from benchmarks.measure import machine
from transformer import Translator, UserError
from transformer.data.sources.text_files import read_lines
from transformer.documents.projection import aligned_words
from transformer.documents.suspicion import Limits, signs_of
from transformer.explorer.attention import forced_attention


def halved(output: str, source: str) -> str:
    """Its first half, as if the rest was dropped."""
    words = output.split()
    return " ".join(words[: -(-len(words) // 2)])


def looped(output: str, source: str) -> str:
    """Its middle three words are said three times."""
    words = output.split()
    start = max(0, len(words) // 2 - 1)
    return " ".join([*words[: start + 3], *(words[start : start + 3] * 2), *words[start + 3 :]])


BREAKS: dict[str, Callable[[str, str], str]] = {
    "whole": lambda output, source: output,
    "truncated to the first half": halved,
    "three words repeated": looped,
    "source copied": lambda output, source: source,
}


def flagged(translator: Translator, sources: list[str], outputs: list[str], limits: Limits) -> float:
    """The percentage of outputs with a flag. Attention is that of the model with teacher forcing."""
    count, scores = 0, translator.score(sources, outputs)
    for source, output, log_p in zip(sources, outputs, scores, strict=True):
        (example,) = translator.task.examples([(source, output)], truncate=True)
        attention = forced_attention(translator, example)
        pair = None
        if attention is not None:
            tokens = translator.tokenizers[1].pieces(example["target"][:-1])
            pair = aligned_words(source, output, translator.subwords(source), tokens, attention)
        unsure = float(-log_p) / len(example["target"])
        count += bool(limits.flags(signs_of(source, output, pair, unsure)))
    return 100 * count / len(outputs)


def main(arguments: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("sources", type=Path, help="text to translate, a sentence a line")
    parser.add_argument("--reference", type=Path, help="its translations by people")
    parser.add_argument("--lines", type=positive, default=500, help="of the text that are read (500)")
    given = parser.parse_args(arguments)
    lines = list(read_lines(given.sources))[: given.lines]
    if len(lines) < 4:
        raise UserError(f"{given.sources}: give at least 4 lines")
    half = len(lines) // 2
    translator = Translator.load(given.run)
    limits = {"defaults": Limits(), "of the model": translator.usual_limits(lines[:half])}
    sources = lines[half:]
    outputs = translator.translate(sources)
    broken = {name: list(map(change, outputs, sources)) for name, change in BREAKS.items()}
    order = np.roll(np.arange(len(outputs)), 1)
    broken["of another line"] = [outputs[index] for index in order]
    if given.reference:
        broken["references"] = list(read_lines(given.reference))[half : len(lines)]
    print(f"limits: {limits}\n\n| translations | {' | '.join(limits)} |\n|---" + "|---" * len(limits) + "|")
    for name, texts in broken.items():
        shares = [flagged(translator, sources, texts, values) for values in limits.values()]
        print(f"| {name} | " + " | ".join(f"{share:.1f}" for share in shares) + " |", flush=True)
    print(machine())


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
