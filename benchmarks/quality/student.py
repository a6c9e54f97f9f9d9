"""A student here against its teacher, here and in CTranslate2: sentences per second, and BLEU.

`python -m benchmarks.quality.student TEACHER STUDENT --source FILE --reference FILE`. Both search as their
runs say; CTranslate2 searches with the teacher's beam size and length penalty, in batches of 32 on two
threads. Each program has its own process and translates the whole file in turns with the others, from text to
text.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.command import needs, new_file, positive, run
from benchmarks.measure import Contestant, Measurement, machine, save, side_by_side
from benchmarks.speed.rows import exported
from transformer import Translator, UserError
from transformer.data.sources.text_files import read_lines
from transformer.tasks.metrics.scores import bleu_metric

TOGETHER = 32  # sentences of a batch of CTranslate2
LONGEST = 100  # tokens of its translations
PEER = "teacher, CTranslate2"


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


def contestants(teacher: Path, student: Path, converted: Path, sources: list[str]) -> list[Contestant]:
    """The student and the teacher here, and the teacher in CTranslate2, each in float32 and in int8."""
    runs = {"student": student, "teacher": teacher}
    here = [
        Contestant(name + " int8" * int8, ours, {"folder": run_dir, "sources": sources, "int8": bool(int8)})
        for name, run_dir in runs.items()
        for int8 in range(2)
    ]
    there = [
        Contestant(
            PEER + " int8" * (kind == "int8"),
            theirs,
            {"folder": converted, "teacher": teacher, "sources": sources, "kind": kind},
        )
        for kind in ("float32", "int8")
    ]
    return here + there


def compared(measured: list[Measurement], references: list[str], tokenizer: str) -> list[dict[str, Any]]:
    """BLEU of each program, and how many times as fast it is as CTranslate2's teacher with weights of its
    type."""
    metric, medians = bleu_metric(tokenizer), {each.name: each.median for each in measured}
    return [
        {
            "name": each.name,
            "seconds": each.seconds,
            "sentences_per_second": len(references) / each.median,
            "cpu": each.cpu_median,
            "times_as_fast": medians[PEER + " int8" * each.name.endswith("int8")] / each.median,
            "bleu": metric.corpus_score(each.output, [references]).score,
        }
        for each in measured
    ]


def main(arguments: list[str] | None = None) -> None:
    """Prints a table, writes OUTPUT."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("teacher", type=Path, help="run directory")
    parser.add_argument("student", type=Path, help="run directory")
    parser.add_argument("--source", type=Path, required=True, help="sentences to translate")
    parser.add_argument("--reference", type=Path, required=True, help="their translations")
    parser.add_argument("--output", type=new_file, default=Path("student.json"))
    parser.add_argument("--rounds", type=positive, default=7, help="timed translations of each program (7)")
    given = parser.parse_args(arguments)
    needs("ctranslate2")
    sources, references = list(read_lines(given.source)), list(read_lines(given.reference))
    if len(sources) != len(references):
        raise UserError(
            f"{given.source} has {len(sources):,} lines, but {given.reference} has {len(references):,}"
        )
    teacher = Translator.load(given.teacher)
    with tempfile.TemporaryDirectory() as folder:
        exported(teacher, Path(folder))
        programs = contestants(given.teacher, given.student, Path(folder), sources)
        measured = side_by_side(programs, given.rounds)
    rows = compared(measured, references, teacher.config.training.bleu_tokenize)
    table = Table("program", "sentences/s", "CPU s", "x CTranslate2", "BLEU", title="whole file")
    for row in rows:
        speed = f"{row['sentences_per_second']:.1f}", f"{row['cpu']:.2f}", f"{row['times_as_fast']:.2f}"
        table.add_row(row["name"], *speed, f"{row['bleu']:.2f}")
    Console(width=90).print(table)
    save(str(given.output), {"about": machine(), "rows": rows})
    print(f"{machine()}\nwritten to {given.output}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
