"""Console output of training: a progress bar or plain lines, evaluations, samples, a final table."""

import contextlib
import math
import os
import re
import shutil
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from transformer.runtime.files import Json, discard_further
from transformer.runtime.text import printable

NARROW = 80  # columns of a terminal below which the bar is short and the speed is omitted
COMPILING = "compiling ..."
BAR_INTERVAL = 0.1  # seconds between updates of a bar
LINE_INTERVAL = 30.0  # seconds between lines without a terminal
OF_TEXTS = "\n\t\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}\u200c\u200d"
"""Spaces and joiners, which a terminal does not obey."""
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


class TimeLeft(ProgressColumn):
    """The time until the end that a task was given, never zero: the bar goes when the work is done."""

    def render(self, task: Task) -> Text:
        """Such as 1:35, or >1:35 if that is the least."""
        if task.fields["end"] is None:
            return Text("")
        return Text(f"ETA {_clock(task.fields['end'] - time.monotonic(), task.fields['is_least'])}")


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
        self._within: Callable[[str], None] | None = None
        self._copy: Copy | None = None
        self._remembered: deque[tuple[float, str]] = deque(maxlen=MOST_REMEMBERED)
        self._values = self._speed = ""  # of the last step that was shown
        self._last_update = self._last_line = time.monotonic()

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
        self._show(text, wraps=not command)

    def _show(self, text: str, style: str = "", hanging: int = 0, wraps: bool = True) -> None:
        """Prints a line, on a terminal wrapped between words."""
        self._last_line = time.monotonic()
        if self.console.is_terminal and wraps:
            text = wrapped(text, self.console.width, hanging)
        self.console.print(Text(printable(text, but=OF_TEXTS), style=style))

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
            self._within = lambda text: bar.update(task, status=escape(printable(text)))
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
        self._within = None
        self.message(f"  {what}: {count:,.0f} in {time.monotonic() - start:.1f} s")

    def within(self, text: str) -> None:
        """Shows beside the bar of `progress` how far the work on its next item is. Any thread may."""
        if self._within:
            self._within(text)

    @contextlib.contextmanager
    def training(self, start: int, total: int, what: str = "training") -> Iterator[None]:
        """Shows a progress bar of the steps in this context. At its end the last values stay."""
        self._values = self._speed = ""
        with self._make_bar(TimeLeft()) as self._bar:
            self._task = self._bar.add_task(
                what, total=total, completed=start, status="", end=None, is_least=False
            )
            try:
                yield
            finally:
                self._bar.update(self._task, status=self._status(""), end=None)
                self._bar = None

    def compiling(self) -> None:
        """The first step is compiled."""
        self._update(status=COMPILING)
        self._line(COMPILING)

    def _line(self, text: str) -> None:
        """A line where no bar shows the same; the copy has it anyway."""
        if self.console.is_terminal:
            self._record(text)
        else:
            self.message(text)

    def advance(self, step: int, seconds_left: float, is_least: bool = False) -> None:
        """Moves the bar of the steps, and tells the time until the end of all work; `is_least` if there is
        work of which it is not known how long it takes."""
        self._update(seconds_left, is_least, completed=step, status=self._status(""))

    def phase(self, what: str, count: int, total: int, seconds_left: float, is_least: bool = False) -> None:
        """What is done between steps: such as "evaluating", and how much of it is done. Without a terminal
        it is a line if there was none for 30 seconds."""
        now = time.monotonic()
        is_first_or_last = count in (0, total)
        if not is_first_or_last and now - self._last_update < BAR_INTERVAL:
            return
        self._last_update = now
        text = f"{what} {count:,} of {total:,}" if total else what
        self._update(seconds_left, is_least, status=self._status(text))
        if not self.console.is_terminal and now - self._last_line > LINE_INTERVAL:
            self.message(f"  {text}  ETA {_clock(seconds_left, is_least)}")

    def _status(self, what: str) -> str:
        """The last values, and what is done, or the speed where there is room."""
        if self.console.is_terminal and self.console.width < NARROW:
            return what or self._values
        return "  ".join(filter(None, (self._values, what or self._speed)))

    def _update(self, seconds_left: float | None = None, is_least: bool = False, **shown: Any) -> None:
        """Changes what the bar of the steps shows, if there is one, and the time until the end. None: not
        that."""
        if seconds_left is not None:
            end = time.monotonic() + seconds_left if math.isfinite(seconds_left) else None
            shown |= {"end": end, "is_least": is_least}
        if self._bar:
            self._bar.update(self._task, **shown)

    def step(
        self,
        step: int,
        total: int,
        values: dict[str, float],
        rate: float,
        unit: str,
        seconds_left: float,
        is_least: bool = False,
    ) -> None:
        """Shows the progress of the loop, the values of this step by name, and its speed: what it counts,
        such as tokens, per second."""
        self._values = "  ".join(f"{name} {value:6.3f}" for name, value in values.items())
        self._speed = f"{rate:7,.0f} {unit}/s"
        self.advance(step, seconds_left, is_least)
        status = f"{self._values}  {self._speed}"
        self._line(f"step {step:>{len(str(total))}}/{total}  {status}  ETA {_clock(seconds_left, is_least)}")

    def evaluation(self, record: Json, samples: list[tuple[str, str, str]]) -> None:
        """Shows scores, and samples of (input, reference, output); some have no reference."""
        best = "  best so far" if record["best"] else ""
        measure = record["measure"]
        score = f"{record[measure['name']]:.{measure.get('digits', 2)}f}"
        scored = f" ({record['scored']})" if "scored" in record else ""
        further_scores = {name: record[name] for name in ("perplexity", "accuracy") if name in record}
        further_scores.pop(measure["name"], None)
        values = "".join(f"{name} {value:.3f}  " for name, value in further_scores.items())
        lines = [
            (
                f"step {record['step']}: validation {values}{measure['title']} "
                f"{score}{scored}{best}  ({record['seconds']:.1f} s)",
                "bold",
                2,
            )
        ]
        for source, reference, translation in samples:
            lines.append(("  " + _shortened(source), "dim", 2))
            lines.append(("  -> " + _shortened(translation), "green" if translation == reference else "", 3))
            if reference and translation != reference:
                lines.append(("   = " + _shortened(reference), "dim", 2))
        self._record("\n".join(text for text, *_ in lines))
        for line in lines:
            self._show(*line)

    def result(self, title: str, rows: list[tuple[str, str]]) -> None:
        """Shows the final table."""
        table = Table(title=title, show_header=False, title_justify="left")
        widest = max(len(name) for name, _ in rows)
        for name, value in rows:
            lines = _divided(printable(value, but=OF_TEXTS), self.console.width - widest - 7)
            table.add_row(name, Text(lines, overflow="fold"))
        self._record("\n".join([f"{title}:", *(f"  {name:{widest}}  {value}" for name, value in rows)]))
        self.console.print(table, soft_wrap=False)

    def _make_bar(self, *time_left: ProgressColumn, transient: bool = False) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10 if self.console.width < NARROW else 40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            *(time_left or (TextColumn("ETA"), TimeRemainingColumn())),
            console=self.console,
            transient=transient,
            disable=not self.console.is_terminal,
            speed_estimate_period=600,  # steps are reported rarely
        )


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SAMPLE else f"{text[:LONGEST_SAMPLE]} ..."


def _clock(seconds: float, is_least: bool) -> str:
    """A time that is left, at least a second: 1:35, 2:01:35, or >1:35 if more may be needed."""
    if not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(max(1, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
    return ">" * is_least + text


def _divided(value: str, width: int) -> str:
    """A value in lines for a column: a word that is wider, as a signature or a path, ends after | or /."""
    lines = list[str]()
    for line in wrapped(value, width).split("\n"):
        lines.append("")
        for part in re.findall(r"[^|/]+[|/]?|[|/]", line):
            if len(lines[-1]) + len(part) > width:
                lines.append("")
            lines[-1] += part
    return "\n".join(filter(None, lines))


# How wide a terminal is, and the one rule by which lines are wrapped.

# a command is one word, so that it can be copied
_WORDS = re.compile(r"(?<!\s)(\s*)((?<=e with: )\S.*|\S+)")


def terminal_width() -> int:
    """Columns of the terminal, or 80 without one."""
    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int, hanging: int = 0) -> str:
    """A text in lines of at most so many columns, divided between words alone: a word that is longer stays
    whole, so that a path can be copied, and so does the command after "Resume with: ". Lines that follow are
    indented as the first one is.

    Args:
      text: one or more lines.
      width: of the terminal, in columns.
      hanging: columns by which lines that follow are indented further.
    """
    lines = list[str]()
    for whole in text.split("\n"):
        following = whole[: len(whole) - len(whole.lstrip())] + " " * hanging
        line = ""
        for gap, word in _WORDS.findall(whole):
            if line and columns_of(line) + len(gap) + columns_of(word) > width:
                lines.append(line)
                line = following + word
            else:
                line += gap + word
        lines.append(line)
    return "\n".join(lines)


def columns_of(text: str) -> int:
    """How wide a terminal shows a text: letters of East Asia take two columns, marks above others none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.category(letter) in ("Mn", "Me") for letter in text)
