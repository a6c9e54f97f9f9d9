"""`decode.py`: lines in, translations or a page out."""

from collections.abc import Collection
from pathlib import Path

from transformer.cli.decode_arguments import HELP, parse_decode, positional, short_options
from transformer.cli.guard import named_command
from transformer.data.remote import has


@named_command("decode")
def decode_main(command_line: list[str]) -> None:
    """`decode.py RUN [options]`."""
    with short_options():
        arguments = parse_decode(command_line, unused_options(command_line))

        from transformer.runtime.hosts import join

        join(**vars(arguments.hosts))
        from transformer.runs.run import with_base

        with with_base(arguments.base, arguments.run_dir, *arguments.ensemble, *arguments.rescore):
            from transformer.commands.decode_lines import decode_lines, translate_file, write_page

            if arguments.document:
                translate_file(arguments)
            elif arguments.explore:
                write_page(arguments)
            else:
                decode_lines(arguments)


def unused_options(command_line: list[str]) -> Collection[str]:
    """The options that the help of a run leaves out, since it has no use for them."""
    run_dir = next(positional(command_line), None)
    if HELP.isdisjoint(command_line) or run_dir is None or not has(run_dir, "config.json"):
        return ()
    from transformer.cli.writer import unused  # imports the models

    return unused(Path(run_dir))
