"""`decode.py RUN --document FILE`: a document in, its translation out, and what is suspicious about it."""

import json
from pathlib import Path

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.input import check_files, read_files
from transformer.cli.output_file import Output, check_output
from transformer.cli.writer import OF_FUSION, OF_JSON, refuse, writer_of
from transformer.data.remote import fetched
from transformer.data.sources.text_files import whole_text
from transformer.runtime.console import ProgressReporter, SteadyConsole
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import brief, read_bytes
from transformer.translator.documents.document import (
    TranslatedDocument,
    TranslatedSentence,
    check_translates,
)
from transformer.translator.translator import Translator

MARKDOWN = (".md", ".markdown")
"""Names of Markdown files end so."""
OTHERS = (".doc", ".docx", ".odt", ".rtf", ".pdf", ".epub", ".tex", ".htm", ".html", ".xml", ".srt", ".vtt")
"""Names of documents that are neither Markdown nor plain text end so."""
SHOWN = 10  # flagged sentences that are shown
FOR_LINES = (
    *("input", "tsv", "jsonl", "glossary", "keep", "reference", "bleu_tokenize", "history", "target_length"),
    *(*OF_FUSION, "choices", "temperature_of_choices", "rescore", "rescore_weights", "n_best", *OF_JSON),
    *("until", "stream", "explore", "resume"),
)
"""Options that a document has no use for."""


def translate_file(arguments: DecodeArguments) -> None:
    """Translates a document.

    Raises:
      UserError: an option or the file is wrong, or the run does not translate.
    """
    assert arguments.document
    writer_of(arguments.run_dir).refuse_unused(arguments)
    refuse(arguments, FOR_LINES, "it is for lines, and --document translates a document")
    if arguments.format != "text":
        raise UserError(f"--format {arguments.format} is for lines; leave it out (--flags writes JSON)")
    check_files(arguments)
    if arguments.flags:
        outputs = [("--output", arguments.output)] if arguments.output else []
        check_output("--flags", arguments.flags, [*read_files(arguments), *outputs])
    text = read_document(arguments.document)
    runs = arguments.run_dir if not arguments.ensemble else [arguments.run_dir, *arguments.ensemble]
    loaded = Translator.load(
        runs,
        arguments.checkpoint,
        int8=arguments.int8,
        weights=arguments.weights or None,
        mean=arguments.mean,
    )
    check_translates(loaded.task)
    translator = loaded.between(arguments.source_language, arguments.target_language)
    watch = ProgressReporter(SteadyConsole(stderr=True, highlight=False, soft_wrap=True))
    with Output(arguments.output) as file:
        document = translator.translate_document(
            text,
            format_of(arguments.document),
            progress=lambda items, total: watch.progress("sentences", items, total),
            **vars(arguments.decoding),
        )
        file.write(document.text)
    if arguments.flags:
        with Output(arguments.flags, "--flags") as file:
            file.writelines(
                json.dumps(sentence.to_dict(), ensure_ascii=False) + "\n" for sentence in document.flagged
            )
    for line in report(document):
        watch.message(line)


def format_of(path: Path) -> str:
    """The format of a document, by the end of its name."""
    return "markdown" if path.suffix.lower() in MARKDOWN else "text"


def read_document(path: Path) -> str:
    """The text of a document.

    Raises:
      UserError: it cannot be read, is no text, or has none.
    """
    if path.suffix.lower() in OTHERS:
        raise UserError(
            f"--document {path}: give plain text or Markdown, into which other documents can be converted, "
            "for example with pandoc"
        )
    try:
        text = whole_text(read_bytes(fetched(path)), f"--document {path}")
    except OSError as error:
        raise UserError(f"cannot read --document {path}: {error.strerror}") from error
    if "\0" in text:
        raise UserError(f"--document {path} is a binary file: give plain text or Markdown")
    if not text.strip():
        raise UserError(f"--document {path} is empty: there is nothing to translate")
    return text


def report(document: TranslatedDocument) -> list[str]:
    """What is suspicious about a translated document, on a line each."""
    flagged = document.flagged
    lines = [f"{len(flagged):,} of {counted(len(document.sentences), 'sentence')} flagged"]
    lines += map(_shown, flagged[:SHOWN])
    if len(flagged) > SHOWN:
        lines.append(f"  and {len(flagged) - SHOWN:,} more: --flags FILE lists all")
    return lines


def _shown(sentence: TranslatedSentence) -> str:
    flags = ", ".join(sentence.flags)
    return f"  line {sentence.line:,}: {flags}: {brief(sentence.source)} -> {brief(sentence.text)}"
