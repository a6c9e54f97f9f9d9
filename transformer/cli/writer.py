"""What decode.py writes for each line of input, and what it scores.

A task names the module of its writer (`Lines.writer`), which has a class `WRITER`.
"""

import dataclasses
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from transformer.cli.decode_arguments import OPTIONS, DecodeArguments, Way, annotated
from transformer.cli.input import input_lines, lines_of
from transformer.data.remote import has
from transformer.data.signals.pixels import LIBRARY
from transformer.data.store import Record
from transformer.decoding.searches.shortlist import FILE as SHORTLIST
from transformer.runs.run import Run
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, json_line, parse_object, prefixed_errors, readable
from transformer.runtime.machine import check_libraries
from transformer.runtime.text import has_text
from transformer.tasks.outputs import Lines
from transformer.translator.confidence import FILE as CONFIDENCE
from transformer.translator.decoder import Decoder
from transformer.translator.search_outputs import NO_EXTRAS, Extras, check_extras, identity

if TYPE_CHECKING:
    from transformer.explorer.explorer import Explorer

T = TypeVar("T")
Numbered = tuple[int, str] | None
"""A line's number and the line; None where no other has arrived."""
Written = tuple[str, str]
"""The text to write for a line of input, and the output as scores read it."""


def _refuse(number: int, error: UserError) -> None:
    raise error


class Writer:
    """Outputs of any task, one line for each line of input.

    Args:
      arguments: the command line.

    Raises:
      UserError: the run is missing or damaged, or an option is wrong for its task.
    """

    does = "does not translate: it writes one line for each line"
    """What a run of its task does, to say why an option is refused."""
    can: ClassVar[Set[str]] = frozenset()
    """What its task can do: of the abilities to which options of `DecodeArguments` apply."""
    instead: ClassVar[Mapping[str, str]] = {}
    """Where options of other tasks are to be had."""
    formats: ClassVar[tuple[str, ...]] = ("text",)
    """The values of --format that it has; those besides text are for texts with scores."""
    loads: ClassVar[type[Decoder[Any]]] = Decoder
    """The type of its decoder."""
    libraries: ClassVar[tuple[str, Sequence[str]]] = ("", ())
    """What reading or writing needs them for, and their names."""
    within: Callable[[str], None] = staticmethod(lambda text: None)
    """Shows how far the work on a line is, which takes long (`ProgressReporter.within`)."""
    wrong: Callable[[int, UserError], None] = staticmethod(_refuse)
    """Is told of a line that names no record, with its number. If it does not raise the error, the line is
    left out."""
    input_key = ""
    """Of the line in a JSON object. Empty: it is not there."""
    outputs_key = ""
    """Of the list of outputs in a JSON object. Empty: the object has the fields of the only output."""
    extras = NO_EXTRAS
    """What is asked of each output besides."""
    is_scored = False
    """Whether the outputs are compared with references."""

    def __init__(self, arguments: DecodeArguments) -> None:
        self.arguments, self.options = arguments, vars(arguments.decoding)
        self.n_best = arguments.n_best or 1
        self.lines_per_input = 1 if arguments.format == "json" else self.n_best
        """Lines of output for a line of input."""
        self.decoder = self.load(arguments.run_dir, arguments.checkpoint, arguments.int8)
        self.decoder.settings(arguments.n_best, self.options)  # refuses invalid options
        use_beside(self.decoder, arguments)

    @classmethod
    def abilities(cls, run: Run) -> set[str]:
        """What a run of its task can do: `can`, as far as its model and its files have the parts."""
        system = run.system
        can = {
            "alignments": system.alignment is not None,
            "scores": system.scores is not None,
            "choices": system.scores is not None,
            "confidence": has(run.path, CONFIDENCE),
            "shortlist": has(run.path, SHORTLIST),
            "ctc": bool(run.config.model.ctc_weight),
            "coverage": system.alignment is not None,
        }
        return {ability for ability in cls.can if can.get(ability, True)}

    @classmethod
    def way(cls, arguments: DecodeArguments) -> Way:
        """What the options make of the input, if it is neither a document nor for a page."""
        return Way.LINES

    @classmethod
    def checked_way(cls, arguments: DecodeArguments) -> Way:
        """What the options make of the input.

        Raises:
          UserError: an option is given that its task, or this way, has no use for.
        """
        options = {name: option for name, option in OPTIONS.items() if is_given(arguments, name)}
        for name, option in options.items():
            if option.to and option.to not in cls.can:
                why = cls.instead.get(name, f"{arguments.run_dir} {cls.does}")
                raise UserError(_refusal(arguments, name, f"{{}}: {why}; leave it out"))
        way = Way.DOCUMENT if arguments.document else Way.PAGE
        if not (arguments.document or arguments.explore):
            way = cls.way(arguments)
        for name, option in options.items():
            if option.needs and not is_given(arguments, option.needs):
                raise UserError(_refusal(arguments, name, option.why))
        for name, option in options.items():
            if option.ways is not None and way not in option.ways:
                raise UserError(_refusal(arguments, name, way.refusal))
        if arguments.format not in cls.formats:
            raise UserError(f"--format {arguments.format}: {arguments.run_dir} {cls.does}; leave it out")
        if arguments.format not in way.formats:
            raise UserError(way.other_format.format(arguments.format))
        if cls.formats == ("text",) and arguments.n_best not in (None, 1):
            raise UserError(f"--n-best {arguments.n_best}: {arguments.run_dir} {cls.does}; leave it out")
        for name, option in options.items():
            if option.formats and arguments.format not in option.formats:
                needs = f"{{}} needs --format {' or '.join(option.formats)}: other formats have nothing of it"
                raise UserError(_refusal(arguments, name, needs))
        return way

    @classmethod
    def write_file(cls, arguments: DecodeArguments, way: Way) -> bool:
        """Writes what becomes of the whole input, if it is not one of lines. Returns whether it was.

        Raises:
          UserError: an option or the input is wrong.
        """
        return False

    @classmethod
    def check_input(cls, arguments: DecodeArguments) -> None:
        """Checks the lines of --input before the model is loaded, as far as that is fast, so that a long job
        does not fail late.

        Raises:
          UserError: one is wrong; the message has its number.
        """

    @classmethod
    def page(cls, arguments: DecodeArguments) -> "tuple[Explorer, str]":
        """The page of --explore, and what is on it.

        Raises:
          UserError: there is none for its task, or nothing to explore.
        """
        raise UserError(f"--explore: {arguments.run_dir} {cls.does}; leave it out")

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Decoder[Any]:
        """The trained model."""
        purpose, names = self.libraries
        check_libraries(names, f"{purpose} {run_dir}")
        return self.loads.load(run_dir, checkpoint, int8=int8)

    @property
    def job(self) -> list[str]:
        """What determines the outputs, besides the input."""
        arguments = self.arguments
        return [repr([self.decoder.fingerprint(), arguments.n_best, arguments.format, arguments.decoding])]

    def claim(self, job: str, total: int | None) -> None:
        """Prepares to write files beside the output.

        Args:
          job: identifies input, model and options. Empty: the input can be read only once.
          total: number of lines, if it is known.

        Raises:
          UserError: one of them exists, and is not of this job.
        """

    def in_order(self, lines: Iterable[Numbered]) -> Iterable[Numbered]:
        """All lines of the input, each with what its output needs of those before it."""
        return lines

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        """The outputs for numbered lines, in order; None where no other line has arrived."""
        settings = self.decoder.settings(self.n_best, self.options)
        for answer in self.decoder.answers(self._records(lines), settings, self.n_best, self.extras):
            yield answer and (self.text(*answer), self.scored(answer[2]))

    def _records(self, lines: Iterable[Numbered]) -> Iterator[tuple[int, str, Record] | None]:
        """Each line with its number and its record, without those that are `wrong`."""
        for numbered in lines:
            try:
                yield numbered and (*numbered, self.record(*numbered))
            except UserError as error:
                assert numbered
                self.wrong(numbered[0], error)

    def scored(self, outputs: Sequence[Any]) -> str:
        """The best output as scores read it; empty if the outputs are not scored."""
        return ""

    def text(self, number: int, item: Any, outputs: Sequence[Any]) -> str:
        """What is written for a line.

        Args:
          number: of the line.
          item: the line, or what was read of it.
          outputs: of its record, best first.
        """
        if self.arguments.format != "json":
            return self.lines(outputs)
        written = [self.output_fields(output) for output in outputs]
        fields = {self.outputs_key: written} if self.outputs_key else written[0]
        return json_line({"line": number, **self.input_fields(item), **fields})

    def input_fields(self, item: Any) -> Json:
        """The input, in a JSON object."""
        return {self.input_key: item} if self.input_key else {}

    def output_fields(self, output: Any) -> Json:
        """An output, in a JSON object."""
        fields: Json = output.to_json()
        return fields

    @property
    def input_file(self) -> Path:
        """The file whose folder names of files are relative to."""
        return self.arguments.input or Path("standard input")

    def record(self, number: int, line: str) -> Record:
        """The record that a line names.

        Raises:
          UserError: it names none; the message has the number of the line.
        """
        with prefixed_errors(f"line {number}: "):
            return self.decoder.task.record(line)

    def lines(self, outputs: Sequence[Any]) -> str:
        """The best outputs of an input, each on a line, with its score if asked for. There are always as
        many: the only output for an empty input is repeated."""
        padded = [*outputs[: self.n_best], *[outputs[-1]] * (self.n_best - len(outputs))]
        texts = [self.decoder.task.line(output) for output in padded]
        if self.arguments.format == "scores":
            texts = [f"{output.score:.4f}\t{text}" for output, text in zip(padded, texts, strict=True)]
        return "".join(f"{text}\n" for text in texts)

    def read(self, line: str) -> str:
        """The output in a line that was written before, as scores read it."""
        if self.arguments.format == "json":
            return self.read_object(parse_object(line))
        return line.partition("\t")[2] if self.arguments.format == "scores" else line

    def read_object(self, answer: Json) -> str:
        """The output in a JSON object; empty if the outputs are not scored."""
        return ""

    def scores(self, outputs: Sequence[str]) -> list[str]:
        """A line for each score."""
        return []


def writer_of(run_dir: Path) -> type[Writer]:
    """The writer of the task of a run.

    Raises:
      UserError: it is not for the command line.
    """
    run = Run(run_dir)
    task = run.system.task
    if not issubclass(task, Lines):
        raise UserError(f"{run_dir}: system {run.config.system} has no outputs that decode.py can write")
    return writer_class(task.writer)


def writer_class(name: str) -> type[Writer]:
    """The writer that `Lines.writer` names."""
    writer: type[Writer] = pkgutil.resolve_name(name if ":" in name else f"{name}:WRITER")
    return writer


def unused(run_dir: Path) -> set[str]:
    """The options of decode.py that a run has no use for.

    Raises:
      UserError: it is not for the command line.
    """
    writer, run = writer_of(run_dir), Run(run_dir)
    abilities = writer.abilities(run)
    of_search = annotated(type(run.config.decoding), str)
    needed = {name: option.to for name, option in OPTIONS.items() if option.to} | of_search
    options = {name for name, ability in needed.items() if ability not in abilities}
    return options | {"n_best", "format"} if writer.formats == ("text",) else options


def use_beside(decoder: Decoder[Any], arguments: DecodeArguments) -> None:
    """Adds the language model and the names of the options, with the first of their weights.

    Raises:
      UserError: what is asked for cannot be used (`Decoder.use_language_model`, `Decoder.use_names`).
    """
    if arguments.lm is not None:
        decoder.use_language_model(arguments.lm, *arguments.lm_weight[:1])
    if arguments.bias is not None:
        decoder.use_names(arguments.bias, *arguments.bias_weight[:1])


def _refusal(arguments: DecodeArguments, name: str, message: str) -> str:
    """A message about an option that is given; of an ensemble, about its second run."""
    if name == "ensemble":
        if message == Way.PAGE.refusal:
            return "--explore shows one model: leave out the other runs"
        return message.format(arguments.ensemble[0]).replace("leave it out", "name one run")
    return message.format(f"--{name.replace('_', '-')}")


def is_given(arguments: DecodeArguments, option: str) -> bool:
    """Whether an option has another value than its default."""
    value = getattr(arguments, option)
    default = getattr(type(arguments), option, type(value)())  # sections are no attributes of the class
    return bool(value != default)


class PictureWriter(Writer):
    """Outputs for pictures. A line is the name of a PNG file."""

    can = frozenset({"page"})
    libraries: ClassVar = ("reading pictures for", (LIBRARY,))

    @classmethod
    def check_input(cls, arguments: DecodeArguments) -> None:
        from transformer.tasks.media.pictures import check_listed

        assert arguments.input
        for number, line in enumerate(lines_of(arguments), 1):
            check_listed(line, arguments.input, number)

    @classmethod
    def page(cls, arguments: DecodeArguments) -> "tuple[Explorer, str]":
        purpose, names = cls.libraries
        check_libraries(names, f"{purpose} {arguments.run_dir}")
        return page_of_files(arguments)

    def record(self, number: int, line: str) -> Record:
        return self.decoder.task.listed(line, self.input_file, number)

    def input_fields(self, item: str) -> Json:
        return {"picture": readable(item)}


def page_of_files(
    arguments: DecodeArguments, changed: Callable[[Any, Any], Any] = lambda task, record: record
) -> "tuple[Explorer, str]":
    """The page of a task whose records are pictures or recordings, and what is on it.

    Args:
      arguments: the command line.
      changed: gives what is searched for a record of a task: as the options ask for it.
    """
    from transformer.explorer.explorer import explore_pictures, explore_sounds
    from transformer.tasks.media.pictures import Pictures

    decoder: Decoder[Any] = Decoder.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
    explore = explore_pictures if isinstance(decoder.task, Pictures) else explore_sounds
    manifest = arguments.input or Path("standard input")
    lines, which = explored(arguments, enumerate(input_lines(arguments), start=1), has_text)
    task = decoder.task
    records = [changed(task, task.listed(line, manifest, number)) for number, line in lines.items()]
    page = explore(decoder, records, n_best=arguments.n_best, lines=tuple(lines), **vars(arguments.decoding))
    return page, f"{counted(page.hypotheses, 'output')} of {which}"


def explored(
    arguments: DecodeArguments, lines: Iterable[tuple[int, T]], has_content: Callable[[T], bool]
) -> tuple[dict[int, T], str]:
    """The lines that --explore shows, by their numbers, and which they are: "the first 5 of 200 lines",
    "lines 7 and 120 of 200".

    Args:
      arguments: the command line.
      lines: those of the input with their numbers. They are read as far as is needed.
      has_content: whether there is something to explore in a line.

    Raises:
      UserError: there is no such line, or nothing in it.
    """
    from transformer.explorer.explorer import MOST_SENTENCES, SENTENCES

    chosen, shown = sorted(set(arguments.explore_lines)), dict[int, T]()
    if len(chosen) > MOST_SENTENCES or (chosen and chosen[0] < 1):
        raise UserError(
            f"--explore-lines {' '.join(map(str, arguments.explore_lines[:3]))} ...: name at most "
            f"{MOST_SENTENCES} lines, counted from 1"
        )
    for number, line in lines:
        if has_content(line) and (not chosen or number in chosen):
            shown[number] = line
        if number >= chosen[-1] if chosen else len(shown) == SENTENCES:
            break
    if missing := [number for number in chosen if number not in shown]:
        raise UserError(f"--explore-lines {missing[0]}: the input has no such line, or nothing is in it")
    if not shown:
        raise UserError("nothing to explore: the input has no line with text")
    total = sum(1 for _ in lines_of(arguments)) if arguments.input else None
    of_all = "" if total is None else f" of {total:,}"
    if chosen:
        *earlier, last = map(str, chosen)
        which = f"line{'s' * bool(earlier)} {' and '.join(filter(None, (', '.join(earlier), last)))}{of_all}"
    elif total == len(shown):
        which = f"all {counted(len(shown), 'line')}"
    elif max(shown) == len(shown) and of_all:
        which = f"the first {len(shown)}{of_all} lines"
    else:  # without empty ones
        which = f"the first {counted(len(shown), 'line')} with text{of_all}"
    return shown, which


WRITER = Writer


def in_groups(items: Iterable[T | None], size: int) -> Iterator[list[T]]:
    """Yields lists of `size`; shorter before a None, for which an empty list follows."""
    group: list[T] = []
    for item in items:
        if item is not None:
            group.append(item)
        if group and (item is None or len(group) == size):
            yield group
            group = []
        if item is None:
            yield []
    if group:
        yield group


class Texts(Writer):
    """Outputs as text, with scores, or as JSON, for any task whose outputs are texts. Systems with more to
    write extend it."""

    does = "writes text"
    can: ClassVar[Set[str]] = frozenset({"fusion", "alignments", "scores", "confidence"})
    formats: ClassVar[tuple[str, ...]] = ("text", "scores", "json")
    input_key, outputs_key = "input", "hypotheses"

    def __init__(self, arguments: DecodeArguments) -> None:
        self.extras = Extras(
            **{item.name: getattr(arguments, item.name) for item in dataclasses.fields(Extras)}
        )
        super().__init__(arguments)
        check_extras(self.decoder, self.extras)

    @property
    def job(self) -> list[str]:
        return [*super().job, repr(self.extras), *identity(self.decoder, self.extras)]

    def scored(self, outputs: Sequence[Any]) -> str:
        return str(outputs[0].text)

    def read_object(self, answer: Json) -> str:
        return str(answer[self.outputs_key][0]["text"])
