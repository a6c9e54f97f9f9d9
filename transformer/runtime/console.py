"""Console output of training: a progress bar or plain lines, evaluations, samples, a final table."""

import contextlib
import os
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from transformer.runtime.files import Json, discard_further

COLUMNS = 80
NARROW = 80  # columns of a terminal below which the bar is short and the speed is omitted
COMPILING = "compiling ..."
BAR_INTERVAL = 0.1  # seconds between updates of a bar
LINE_INTERVAL = 30.0  # seconds between lines without a terminal
LONGEST_SAMPLE = 300  # characters
MOST_REMEMBERED = 200  # messages before there is somebody to copy them to

Copy = Callable[[float, str], None]
"""Given a time, in seconds since 1970, and the lines that were shown then, without styles."""


class SteadyConsole(Console):
    """A console that becomes quiet when its reader has gone, so that the work continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with contextlib.suppress(OSError):  # a stream of a test or a notebook has no descriptor
            discard_further(self.file)


class ProgressReporter:
    """Writes to a console: a live bar on a terminal, occasional lines otherwise.

    Args:
      console: None: standard output.
      quiet: print nothing (for processes other than the main process, tests and notebooks).
    """

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        # plain lines in notebooks, where every line and every update of a bar would be a separate output
        plain: Json = {}
        if Console().is_jupyter:
            plain = {"force_jupyter": False, "force_terminal": False}
        self.console = console or SteadyConsole(quiet=quiet, highlight=False, soft_wrap=True, **plain)
        self._bar: Progress | None = None
        self._task: Any = None
        self._copy: Copy | None = None
        self._remembered: deque[tuple[float, str]] = deque(maxlen=MOST_REMEMBERED)

    @classmethod
    def beside_output(cls, quiet: bool = False) -> "ProgressReporter":
        """On standard error, for commands whose output may be on standard output."""
        return cls(SteadyConsole(stderr=True, highlight=False, soft_wrap=True, quiet=quiet))

    def forget(self) -> None:
        """Work begins: what was shown before is not part of it."""
        self._remembered.clear()

    @contextlib.contextmanager
    def copied(self, copy: Copy) -> Iterator[None]:
        """Copies what is shown, also if it is quiet: first what was shown since `forget`, then each message
        in this context. Instead of a bar, the copy has a line for each of its reports."""
        while self._remembered:
            copy(*self._remembered.popleft())
        before, self._copy = self._copy, copy
        try:
            yield
        finally:
            self._copy = before

    def _record(self, text: str) -> None:
        if self._copy:
            self._copy(time.time(), text)
        else:
            self._remembered.append((time.time(), text))

    def interject(self, text: str) -> None:
        """Prints a line from a signal handler: past the console, which what the signal interrupts may have
        locked."""
        self._record(text)
        with contextlib.suppress(OSError):  # a stream of a test or a notebook has no descriptor
            if not self.console.quiet:
                os.write(self.console.file.fileno(), f"\n{text}\n".encode())

    def message(self, text: str, *, command: bool = False) -> None:
        """Prints a line, wrapped on a terminal. A command is not wrapped, so that it can be copied."""
        self._record(text)
        if self.console.is_terminal and not command:
            width = min(self.console.width, COLUMNS)
            lines = (
                textwrap.wrap(
                    line,
                    width,
                    subsequent_indent=line[: len(line) - len(line.lstrip())],
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                or [""]
                for line in text.split("\n")
            )
            text = "\n".join(line for wrapped in lines for line in wrapped)
        self.console.print(Text(text))

    def progress(
        self,
        what: str,
        items: Iterable,
        total: float | None,
        amount: Callable[[Any], float] = lambda item: 1,
    ) -> Iterable:
        """Yields the items with a progress bar, or without a terminal a line every 30 seconds. A last line
        has their number and the time. An item may count for another amount than 1."""
        start, count = time.monotonic(), 0.0
        last_line = last_update = start
        with self._make_bar(transient=True) as bar:
            task = bar.add_task(what, total=total, status="")
            for item in items:
                yield item
                count += amount(item)
                now = time.monotonic()
                if now - last_update > BAR_INTERVAL:
                    last_update = now
                    bar.update(task, completed=count)
                    if not self.console.is_terminal and now - last_line > LINE_INTERVAL:
                        last_line = now
                        self.message(f"  {what}: {count:,.0f}" + (f" of {total:,.0f}" if total else ""))
        self.message(f"  {what}: {count:,.0f} in {time.monotonic() - start:.1f} s")

    @contextlib.contextmanager
    def training(self, start: int, total: int) -> Iterator[None]:
        """Shows a progress bar of the steps in this context."""
        with self._make_bar() as self._bar:
            self._task = self._bar.add_task("training", total=total, completed=start, status=COMPILING)
            if self.console.is_terminal:
                self._record(COMPILING)
            else:
                self.message(COMPILING)
            try:
                yield
            finally:
                self._bar.update(self._task, status="")
                self._bar = None

    def advance(self, step: int) -> None:
        """Moves the bar of the steps."""
        if self._bar:
            status = self._bar.tasks[0].fields["status"]
            self._bar.update(self._task, completed=step, status="" if status == COMPILING else status)

    def step(
        self, step: int, total: int, values: dict[str, float], rate: float, unit: str, seconds_left: float
    ) -> None:
        """Shows the progress of the loop, the values of this step by name, and its speed: what it counts,
        such as tokens, per second."""
        text = "  ".join(f"{name} {value:6.3f}" for name, value in values.items())
        status = f"{text}  {rate:7,.0f} {unit}/s"
        if self._bar:
            is_narrow = self.console.is_terminal and self.console.width < NARROW
            self._bar.update(self._task, completed=step, status=text if is_narrow else status)
        minutes, seconds = divmod(round(seconds_left), 60)
        line = f"step {step:>{len(str(total))}}/{total}  {status}  ETA {minutes}:{seconds:02}"
        if self.console.is_terminal:
            self._record(line)
        else:
            self.message(line)

    def evaluation(self, record: Json, samples: list[tuple[str, str, str]]) -> None:
        """Shows scores, and samples of (input, reference, output); some have no reference."""
        best = "  best so far" if record["best"] else ""
        measure = record["measure"]
        score = f"{record[measure['name']]:.{measure.get('digits', 2)}f}"
        scored = f" ({record['scored']})" if "scored" in record else ""
        others = {name: record[name] for name in ("perplexity", "accuracy") if name in record}
        others.pop(measure["name"], None)
        values = "".join(f"{name} {value:.3f}  " for name, value in others.items())
        lines = [
            (
                f"step {record['step']}: validation {values}{measure['title']} "
                f"{score}{scored}{best}  ({record['seconds']:.1f} s)",
                "bold",
            )
        ]
        for source, reference, translation in samples:
            lines.append(("  " + _shortened(source), "dim"))
            lines.append(("  -> " + _shortened(translation), "green" if translation == reference else ""))
            if reference and translation != reference:
                lines.append(("   = " + _shortened(reference), "dim"))
        self._record("\n".join(text for text, _ in lines))
        for text, style in lines:
            self.console.print(Text(text, style=style))

    def result(self, title: str, rows: list[tuple[str, str]]) -> None:
        """Shows the final table."""
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in rows:
            table.add_row(name, Text(value, overflow="fold"))
        widest = max(len(name) for name, _ in rows)
        self._record("\n".join([f"{title}:", *(f"  {name:{widest}}  {value}" for name, value in rows)]))
        self.console.print(table, soft_wrap=False)

    def _make_bar(self, transient: bool = False) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10 if self.console.width < NARROW else 40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            transient=transient,
            disable=not self.console.is_terminal,
            speed_estimate_period=600,  # steps are reported rarely
        )


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SAMPLE else f"{text[:LONGEST_SAMPLE]} ..."
