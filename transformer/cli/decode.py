"""`decode.py`: lines in, translations or a page out."""

from transformer.cli.decode_arguments import parse_decode, short_options
from transformer.cli.guard import run_command
from transformer.runtime.commands import program


def decode_main() -> int:
    """`decode.py RUN [options]`."""
    return run_command(program("decode"), _decode)


def _decode(command_line: list[str]) -> None:
    with short_options():
        arguments = parse_decode(command_line)

        from transformer.runtime.hosts import join

        join(**vars(arguments.hosts))
        if arguments.explore:
            from transformer.cli.page import write_page

            write_page(arguments)
        else:
            from transformer.cli.decode_lines import decode_lines

            decode_lines(arguments)
