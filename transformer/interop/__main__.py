"""`python -m transformer.interop import|export`: models of other programs as a command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from transformer.cli import guarded
from transformer.commands import called, program


@dataclass(frozen=True)
class Import:
    """A Marian (OPUS-MT) model as Hugging Face stores it becomes a run directory."""

    folder: tyro.conf.Positional[Path]
    """With config.json, model.safetensors, vocab.json, source.spm and target.spm."""
    run_dir: tyro.conf.Positional[Path]
    """A new one, for decode.py, Translator.load and train.py --init-from."""


@dataclass(frozen=True)
class Export:
    """A model trained here becomes a folder that Hugging Face's transformers loads as a Marian model."""

    run_dir: tyro.conf.Positional[Path]
    """What training wrote."""
    folder: tyro.conf.Positional[Path]
    """A new one."""
    checkpoint: str = "best"
    """best (by validation BLEU), last, average (of the last ones), or a step."""


Command = (
    Annotated[Import, tyro.conf.subcommand("import")] | Annotated[Export, tyro.conf.subcommand("export")]
)


def main(arguments: list[str]) -> None:
    """Imports or exports.

    Raises:
      UserError: as `import_marian` and `export_marian`.
    """
    given: Import | Export = tyro.cli(
        Command,  # type: ignore[arg-type]
        args=arguments,
        prog=program("import").removesuffix(" import"),
        description="Bring a Marian model in, or a model of ours out.",
    )
    from transformer.interop.folders import CTRANSLATE2, export_marian, ignored_options, import_marian

    if isinstance(given, Import):
        run = import_marian(given.folder, given.run_dir)
        if ignored := ignored_options(given.folder):
            print(f"Ignored, for no search here has them: {', '.join(ignored)}")
        print(f"Written to {run.path}")
        print(f'Try: echo "..." | {called("decode")} {run.path}')
    else:
        folder = export_marian(given.run_dir, given.folder, given.checkpoint)
        print(f"Written to {folder}")
        print(f'Try: transformers.MarianMTModel.from_pretrained("{folder}")')
        if (folder / CTRANSLATE2[0]).exists():
            print("CTranslate2's converter takes the source's vocabulary for both sides. With it, do this:")
            names = " ".join(CTRANSLATE2)
            print(f"  ct2-transformers-converter --model {folder} --output_dir NEW --copy_files {names}")
            print("  rm NEW/shared_vocabulary.json")


def import_main() -> int:
    """`transformer import FOLDER RUN`."""
    return guarded(program("import"), lambda arguments: main(["import", *arguments]))


def export_main() -> int:
    """`transformer export RUN FOLDER`."""
    return guarded(program("export"), lambda arguments: main(["export", *arguments]))


if __name__ == "__main__":
    raise SystemExit(guarded("interop", main))
