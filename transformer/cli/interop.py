"""`python -m transformer import|export`: the import and export commands."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from transformer.cli.guard import run_command
from transformer.cli.parser import parse
from transformer.runtime.commands import command, program
from transformer.runtime.files import check_local


@dataclass(frozen=True)
class Import:
    """Import a Marian (OPUS-MT) model in Hugging Face's format as a run directory."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Folder with config.json, model.safetensors, vocab.json, source.spm and target.spm."""
    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """New run directory, for decode.py, Translator.load and train.py --init-from."""


@dataclass(frozen=True)
class Export:
    """Export a model as a folder that Hugging Face's transformers loads as a Marian model."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """New folder."""
    checkpoint: str = "best"
    """Checkpoint to export: best (by validation BLEU), last, average (of the last ones), or a step."""


def import_command(command_line: list[str]) -> None:
    arguments = parse(Import, command_line, "import")
    check_local(arguments.folder, "the folder")
    from transformer.interop.folders import ignored_options, import_marian

    run = import_marian(arguments.folder, arguments.run_dir)
    for sentence in ignored_options(arguments.folder):
        print(f"Not imported: {sentence}")
    print(f"Written to {run.name}")
    print(f'Try: echo "..." | {command("decode", run.name)}')


def export_command(command_line: list[str]) -> None:
    arguments = parse(Export, command_line, "export")
    check_local(arguments.folder, "the folder")
    from transformer.interop.folders import CTRANSLATE2, export_marian, left_options, unnamed_languages

    folder = export_marian(arguments.run_dir, arguments.folder, arguments.checkpoint)
    for sentence in left_options(arguments.run_dir):
        print(f"Not exported: {sentence}")
    print(f"Written to {folder}")
    if unknown := unnamed_languages(arguments.run_dir):
        print(f"The run does not know its languages: add {' and '.join(unknown)} to tokenizer_config.json")
    print(f"Try: transformers.MarianMTModel.from_pretrained({str(folder)!r})")
    if (folder / CTRANSLATE2[0]).exists():
        print("CTranslate2's converter uses the source vocabulary for both sides. So convert this way:")
        names = " ".join(CTRANSLATE2)
        quoted = shlex.quote(str(folder))
        print(f"  ct2-transformers-converter --model {quoted} --output_dir NEW --copy_files {names}")
        print("  rm NEW/shared_vocabulary.json")


def import_main() -> int:
    """`transformer import FOLDER RUN`."""
    return run_command(program("import"), import_command)


def export_main() -> int:
    """`transformer export RUN FOLDER`."""
    return run_command(program("export"), export_command)
