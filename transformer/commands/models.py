"""Commands on trained models: average checkpoints, distill, import and export, and report."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from transformer.cli.command_line import options_in, with_method
from transformer.cli.decode_arguments import run_defaults, short_options
from transformer.cli.guard import named_command
from transformer.cli.output_file import check_replaced
from transformer.cli.parser import parse, parsed_command
from transformer.config.corpus import DataConfig
from transformer.config.decoding import DecodingConfig
from transformer.config.names import SEARCH
from transformer.config.options import text_data, without_locations
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import check_local, display_path, writing
from transformer.runtime.invocation import command, program
from transformer.runtime.text import printable


@dataclass(frozen=True)
class AverageArguments:
    """Average checkpoints (section 6.1) into the checkpoint "average" of their run."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    last: int | None = None
    """Number of newest checkpoints to average. Default: --training.keep-last of the run."""
    steps: tuple[int, ...] = ()
    """Steps of the checkpoints to average instead."""
    base: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """The run that an adapter changes, if it is not beside it."""


@parsed_command(AverageArguments, "average")
def average_main(arguments: AverageArguments) -> None:
    """`python -m transformer average RUN [--last K | --steps ...]`."""
    if arguments.last is not None and (arguments.last < 1 or arguments.steps):
        raise UserError("--last must be at least 1, and excludes --steps")

    from transformer.runs.run import Run, with_base

    run = Run(arguments.run_dir)
    if arguments.last is not None and arguments.last > len(run.checkpoints.steps()):
        available = counted(len(run.checkpoints.steps()), "checkpoint")
        raise UserError(f"--last {arguments.last}: {run.name} has {available}")
    last = arguments.last or run.config.training.keep_last
    steps = list(arguments.steps) or run.checkpoints.steps()[-last:]
    with with_base(arguments.base, arguments.run_dir):
        checkpoint = run.checkpoints.store_average(run.averaged(steps), steps)
    print(f"Averaged steps {', '.join(map(str, steps))} into {run.name}/{checkpoint.name}")
    if run.system.search:
        print("Try:", command("decode", run.name, "--checkpoint", "average"))


@dataclass(frozen=True)
class DistillArguments:
    """Translate a run's training text into a new corpus."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory of the teacher."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Folder for the new corpus."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")]
    data: DataConfig
    """The training text, if it came from files: paths stored in a run directory are not opened by default."""
    checkpoint: str = "best"
    """Checkpoint to translate with: best (by validation BLEU), last, average (of the last ones), or a
    step."""


@named_command("distill")
def distill_main(command_line: list[str]) -> None:
    """`python -m transformer distill RUN FOLDER [options]`."""
    with short_options():
        arguments = _distill_arguments(command_line)

        from transformer.translator.distill import distill

        check_local(arguments.folder, "the folder")
        distill(arguments.run_dir, arguments.folder, arguments.checkpoint, arguments.decoding, arguments.data)


def _distill_arguments(command_line: list[str]) -> DistillArguments:
    defaults = run_defaults(command_line)
    return parse(
        DistillArguments,
        command_line,
        "distill",
        names=SEARCH,
        default=DistillArguments(
            tyro.MISSING_NONPROP,
            tyro.MISSING_NONPROP,
            with_method(defaults.decoding, options_in(command_line), "--"),
            without_locations(text_data(defaults)),
        ),
        about=(
            "Translate the text that a model was trained on into a new corpus, for students that learn "
            "the teacher's translations instead of the originals. If interrupted, the same command continues."
        ),
    )


@dataclass(frozen=True)
class Import:
    """Import a pretrained model as a run directory: Marian (OPUS-MT), BART, mBART-50, NLLB, Pegasus, T5, mT5,
    BERT or Whisper in Hugging Face's format, Whisper or a Transformer in CTranslate2's, torch.nn.Transformer,
    Marian's own files (Firefox Translations)."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Folder with config.json, model.safetensors and tokenizer.json (Marian: vocab.json, source.spm and
    target.spm); or with Marian's .npz or .bin, or CTranslate2's model.bin, and vocabularies. If there is no
    such folder: a name on Hugging Face's hub, such as facebook/nllb-200-distilled-600M."""
    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """New run directory, for decode.py, Translator.load and train.py --init-from."""
    source_language: str | None = None
    """Code of the source language, such as eng_Latn, for a model of many languages: the default of decode.py.
    Without it, the languages are chosen with each request."""
    target_language: str | None = None
    """Code of the target language."""
    task: Literal["transcribe", "translate"] | None = None
    """Whisper: write what is said in its language (default), or translate it to English."""
    revision: str | None = None
    """Of a name on the hub: a branch, tag or commit. Default: the main branch. Its commit is written into the
    run."""


@dataclass(frozen=True)
class Export:
    """Export a model as a folder for Hugging Face's transformers, an imported model as the family it came
    from and one that was trained here as a Marian model; or for Marian itself."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """New folder."""
    checkpoint: str = "best"
    """Checkpoint to export: best (by validation BLEU), last, average (of the last ones), or a step."""
    to: Literal["huggingface", "marian-npz", "stablehlo"] = "huggingface"
    """Format. huggingface: that of transformers; marian-npz: Marian's own model.npz; stablehlo: programs for
    jax.export, which run without this package."""
    rows: int | None = None
    """stablehlo: sentences that a program takes at once. Default: 1."""
    length: int | None = None
    """stablehlo: maximum tokens of a source and of an output. Default: 128."""
    base: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """The run that an adapter changes, if it is not beside it."""


def import_command(command_line: list[str]) -> None:
    arguments = parse(Import, command_line, "import")
    check_local(arguments.folder, "the folder")
    from transformer.interop.folders.folder import located
    from transformer.interop.folders.unused import listed
    from transformer.interop.pretrained import ignored_options, import_model
    from transformer.tasks.media.recordings import Recordings

    languages = arguments.source_language, arguments.target_language
    run = import_model(arguments.folder, arguments.run_dir, *languages, arguments.task, arguments.revision)
    folder, origin = located(str(arguments.folder), arguments.revision)
    for sentence in ignored_options(folder):
        print(f"Not imported: {printable(sentence, but='')}")
    if run.kept:
        print(f"Not used here, and written again by an export: {listed(run.kept)}")
    print(f"Written to {run.name}" + origin.removeprefix("imported"))
    if isinstance(run.task, Recordings):
        print("Try:", command("decode", run.name, "--input", "RECORDING.wav"))
    elif run.system.search is None:
        print("Try:", command("train", "--init-encoder-from", run.name, "--data.train-tsv", "FILE"))
    else:
        chosen = []
        tokenizers = zip(("source", "target"), getattr(run.task, "tokenizers", ()), strict=False)
        for number, (side, tokenizer) in enumerate(tokenizers):
            if tokenizer.has_codes and not tokenizer.start:
                chosen += [f"--{side}-language", [*tokenizer.codes, "CODE", "CODE"][number]]
        print(printable(f'Try: echo "..." | {command("decode", run.name, *chosen)}', but=""))


def export_command(command_line: list[str]) -> None:
    arguments = parse(Export, command_line, "export")
    check_local(arguments.folder, "the folder")
    from transformer.runs.run import with_base

    with with_base(arguments.base, arguments.run_dir):
        _export(arguments)


def _export(arguments: Export) -> None:
    """Writes the folder, and says what was not exported."""
    sizes = {name: value for name in ("rows", "length") if (value := getattr(arguments, name)) is not None}
    if arguments.to == "stablehlo":
        from transformer.interop.stablehlo import export_stablehlo

        folder = export_stablehlo(arguments.run_dir, arguments.folder, arguments.checkpoint, **sizes)
        print(f"Written to {folder}: encoder.bin, decoder.bin, their parameters, and the vocabulary")
        print("Try the program of docs/pretrained/export.md")
        return
    if sizes:
        raise UserError(f"--{next(iter(sizes))} is for --to stablehlo; leave it out")
    if arguments.to == "marian-npz":
        from transformer.interop.architectures.marian_files import DECODER, export_marian_files

        folder = export_marian_files(arguments.run_dir, arguments.folder, arguments.checkpoint)
        print(f"Written to {folder}")
        print(f"Try: marian-decoder -c {shlex.quote(str(folder / DECODER))}")
        return
    from transformer.interop.architectures.marian import WORD_LISTS
    from transformer.interop.folders.folder import LANGUAGES
    from transformer.interop.pretrained import export_model, left_options

    folder, family = export_model(arguments.run_dir, arguments.folder, arguments.checkpoint)
    for sentence in left_options(arguments.run_dir):
        print(f"Not exported: {printable(sentence, but='')}")
    print(f"Written to {folder}, a {family.model_type} model")
    options = json.loads((folder / "tokenizer_config.json").read_text())
    if unknown := [name for name in LANGUAGES if family.model_type == "marian" and name not in options]:
        print(f"The run does not know its languages: add {' and '.join(unknown)} to tokenizer_config.json")
    print(f"Try: transformers.{family.model_class}.from_pretrained({str(folder)!r})")
    if (folder / WORD_LISTS[0]).exists():
        print("CTranslate2's converter uses the source vocabulary for both sides. So convert this way:")
        names = " ".join(WORD_LISTS)
        quoted = shlex.quote(str(folder))
        print(f"  ct2-transformers-converter --model {quoted} --output_dir NEW --copy_files {names}")
        print("  rm NEW/shared_vocabulary.json")


import_main, export_main = named_command("import")(import_command), named_command("export")(export_command)


@dataclass(frozen=True)
class ReportArguments:
    """Write the page of a run anew (RUN/report.html), or compare several runs on one page."""

    run_dirs: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        tyro.conf.arg(metavar="RUN [RUN ...]", help_behavior_hint="(required)"),
    ]
    """Run directories."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None
    """The page that compares several. Default: comparison.html."""


@parsed_command(ReportArguments, "report")
def report_main(arguments: ReportArguments) -> None:
    """`python -m transformer report RUN ... [--output PAGE]`."""
    from transformer.runs.report import write_comparison, write_report

    if not arguments.run_dirs:
        raise UserError(f"no run directory: {program('report')} RUN [RUN ...]")
    if len(arguments.run_dirs) == 1 and arguments.output:
        raise UserError("--output is for several runs: the page of one is RUN/report.html")
    page = arguments.output or Path("comparison.html")
    check_local(page, "--output")
    if len(arguments.run_dirs) > 1:
        check_replaced("--output", page, [])
    if len(arguments.run_dirs) == 1:
        with writing(arguments.run_dirs[0]):
            page = write_report(arguments.run_dirs[0])
    else:
        with writing(f"--output {page}"):
            write_comparison(arguments.run_dirs, page)
    print(f"Written to {display_path(page)}")
