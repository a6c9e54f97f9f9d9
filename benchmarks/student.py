"""A student here against its teacher, here and in CTranslate2: sentences per second, and BLEU.

`python -m benchmarks.student TEACHER STUDENT --source FILE --reference FILE`. Both search as their runs say;
CTranslate2 searches with the teacher's beam size and length penalty, in batches of 32 on two threads. Each
program has its own process and translates the whole file in turns with the others, from text to text.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.command import needs, new_file, positive, run
from benchmarks.measure import Contestant, machine, save, side_by_side
from benchmarks.rows import exported
from transformer import Translator
from transformer.data.sources.corpora import read_lines
from transformer.evaluation.scores import bleu_metric

TOGETHER = 32  # sentences of a batch of CTranslate2
LONGEST = 100  # tokens of its translations


def ours(folder: Path, sources: list[str], int8: bool) -> Callable[[], list[str]]:
    """`Translator.translate`."""
    translator = Translator.load(folder, int8=int8)
    return lambda: translator.translate(sources)


def theirs(folder: Path, teacher: Path, sources: list[str], kind: str) -> Callable[[], list[str]]:
    """`translate_batch`, with SentencePiece before and after it."""
    import ctranslate2
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(teacher / "source.model"))
    loaded = ctranslate2.Translator(str(folder), inter_threads=2, intra_threads=1, compute_type=kind)
    search: dict[str, Any] = searched_as(teacher)

    def translate() -> list[str]:
        inputs = [[*words, "</s>"] for words in pieces.encode(sources, out_type=str)]
        found = loaded.translate_batch(inputs, max_batch_size=TOGETHER, max_decoding_length=LONGEST, **search)
        return [pieces.decode_pieces(result.hypotheses[0]) for result in found]

    return translate


def searched_as(teacher: Path) -> dict[str, Any]:
    """The options of CTranslate2 for a run's search."""
    options = vars(Translator.load(teacher).config.decoding)
    return {"beam_size": options.get("beam_size", 1), "length_penalty": options["length_penalty"]}


def main(arguments: list[str] | None = None) -> None:
    """Prints a table, writes OUTPUT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.student", description=__doc__)
    parser.add_argument("teacher", type=Path, help="run directory")
    parser.add_argument("student", type=Path, help="run directory")
    parser.add_argument("--source", type=Path, required=True, help="sentences to translate")
    parser.add_argument("--reference", type=Path, required=True, help="their translations")
    parser.add_argument("--output", type=new_file, default=Path("student.json"))
    parser.add_argument("--rounds", type=positive, default=7, help="timed translations of each program (7)")
    given = parser.parse_args(arguments)
    needs("ctranslate2")
    sources, references = list(read_lines(given.source)), list(read_lines(given.reference))
    metric = bleu_metric(Translator.load(given.teacher).config.training.bleu_tokenize)
    with tempfile.TemporaryDirectory() as folder:
        exported(Translator.load(given.teacher), Path(folder))
        contestants = [
            Contestant(
                f"{name}{' int8' if int8 else ''}", ours, {**run_dir, "sources": sources, "int8": int8}
            )
            for name, run_dir in (
                ("student", {"folder": given.student}),
                ("teacher", {"folder": given.teacher}),
            )
            for int8 in (False, True)
        ]
        common = {"folder": Path(folder), "teacher": given.teacher, "sources": sources}
        contestants += [
            Contestant(
                f"teacher, CTranslate2{' int8' if kind == 'int8' else ''}", theirs, {**common, "kind": kind}
            )
            for kind in ("float32", "int8")
        ]
        found = side_by_side(contestants, given.rounds)
    peer = {kind: found[4 + index] for index, kind in enumerate(("float32", "int8"))}
    table, rows = Table("program", "sentences/s", "CPU s", "x CTranslate2", "BLEU", title="whole file"), []
    for each in found:
        score = metric.corpus_score(each.output, [references]).score
        against = peer["int8" if "int8" in each.name else "float32"].median
        row = {"name": each.name, "seconds": each.seconds, "cpu": each.cpu_median, "bleu": score}
        rows.append({**row, "times_as_fast": against / each.median})
        speed = f"{len(sources) / each.median:.1f}", f"{each.cpu_median:.2f}", f"{against / each.median:.2f}"
        table.add_row(each.name, *speed, f"{score:.2f}")
    Console(width=90).print(table)
    save(str(given.output), {"about": machine(), "rows": rows})
    print(f"{machine()}\nwritten to {given.output}")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks.student", main))
