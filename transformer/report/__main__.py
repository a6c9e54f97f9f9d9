"""`python -m transformer.report RUN ...`: pages as a command."""

from transformer.cli.report import report_main

if __name__ == "__main__":
    raise SystemExit(report_main())
