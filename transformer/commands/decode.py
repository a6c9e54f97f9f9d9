"""`decode.py`: lines in, translations or a page out."""

from collections.abc import Collection
from pathlib import Path

from transformer.cli.decode_arguments import HELP, DecodeArguments, parse_decode, positional, short_options
from transformer.cli.guard import run_command
from transformer.data.remote import has
from transformer.runtime.errors import program


def decode_main() -> int:
    """`decode.py RUN [options]`."""
    return run_command(program("decode"), _decode)


def _decode(command_line: list[str]) -> None:
    with short_options():
        arguments = parse_decode(command_line, _unused(command_line))

        from transformer.runtime.hosts import join

        join(**vars(arguments.hosts))
        from transformer.runs.run import Run, check_base_option, named_bases

        runs = (arguments.run_dir, *arguments.ensemble, *arguments.rescore)
        check_base_option(arguments.base, [Run(run) for run in runs] if arguments.base else [])
        with named_bases(arguments.base):
            _decode_with(arguments)


def _decode_with(arguments: DecodeArguments) -> None:
    """A document, a page, or lines."""
    if arguments.document:
        from transformer.commands.decode_lines import translate_file

        translate_file(arguments)
    elif arguments.explore:
        from transformer.commands.decode_lines import write_page

        write_page(arguments)
    else:
        from transformer.commands.decode_lines import decode_lines

        decode_lines(arguments)


def _unused(command_line: list[str]) -> Collection[str]:
    """The options that the help of a run leaves out, since it has no use for them."""
    run_dir = next(positional(command_line), None)
    if HELP.isdisjoint(command_line) or run_dir is None or not has(run_dir, "config.json"):
        return ()
    from transformer.cli.writer import unused  # imports the models

    return unused(Path(run_dir))
