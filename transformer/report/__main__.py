"""`python -m transformer.report RUN`: the page of a run, written anew."""

from transformer.cli.guard import guarded
from transformer.commands import program
from transformer.errors import UserError
from transformer.report.page import write_report


def command(arguments: list[str]) -> None:
    """Writes it and says where.

    Raises:
      UserError: as `write_report`; it cannot be written; there is not exactly one argument.
    """
    usage = f"usage: {program('report')} RUN (writes RUN/report.html anew)"
    if arguments in (["--help"], ["-h"]):
        print(usage)
        return
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise UserError(usage)
    try:
        page = write_report(arguments[0])
    except OSError as error:
        raise UserError(f"cannot write to {arguments[0]}: {error.strerror}") from error
    print(f"Written to {page}")


def report_main() -> int:
    """`transformer report RUN`."""
    return guarded(program("report"), command)


if __name__ == "__main__":
    raise SystemExit(report_main())
