"""What was said in each recording that the input lists."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer.cli.decode_arguments import DecodeArguments, Way
from transformer.cli.input import lines_of
from transformer.cli.writer import Texts, page_of_files
from transformer.config.records import RecordingsConfig, is_recording
from transformer.data.sources.recordings import Recording, listed_columns
from transformer.data.sources.source import joined_path, listed
from transformer.data.sources.text_files import read_lines
from transformer.runs.run import Run
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json, readable
from transformer.runtime.machine import check_libraries
from transformer.runtime.text import has_text, without_invisible
from transformer.systems.speech.api import Transcriber, with_rules
from transformer.systems.speech.long import LongRecording
from transformer.systems.speech.recording_file import (
    check_normalisation,
    cut_options,
    is_whole,
    lines_of_speakers,
    rates_of,
    start_of,
    transcribe_arriving,
    transcribe_file,
)
from transformer.systems.speech.task import SpeechToText
from transformer.systems.speech.transcripts import SUBTITLES, Transcript, with_requested

if TYPE_CHECKING:
    from transformer.explorer.explorer import Explorer

log = logging.getLogger("transformer")


class Transcriptions(Texts):
    """Texts, with scores, or as JSON. A line is a file name, and after a tab the text if it is known, which
    is empty if nothing is said."""

    does = "hears recordings"
    can = frozenset({"speech", "whisper", "references", "alignments", "stream", "fusion", "page", "ctc"})
    formats: ClassVar = (*Texts.formats, *SUBTITLES)
    instead: ClassVar = {
        "source_language": "the language of recordings is --language",
        "target_language": "Whisper translates to English only, with --task translate",
    }

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Transcriber:
        """The trained model, and the texts to compare with."""
        self.references = self._references()
        self.is_scored = self.references is not None
        check_normalisation(self.arguments.text_normalisation, self.is_scored)
        check_libraries(("soundfile", "soxr", *["jiwer"] * self.is_scored), f"hearing with {run_dir}")
        self.transcriber = Transcriber.load(run_dir, checkpoint, int8=int8)
        how = self.arguments.text_normalisation
        references = self.references or ()
        self.rates = rates_of(self.transcriber.task, how, len(references)) if self.is_scored else []
        self.start = start_of(self.transcriber.task, self.arguments)
        self.cut_options = cut_options(self.transcriber.task, self.arguments)
        names = ("cut", "detector", "windows", "pause")
        self.rules = self.transcriber.rules(
            self.arguments.decoding, **{name: self.cut_options[name] for name in names}
        )
        return self.transcriber

    @classmethod
    def abilities(cls, run: Run) -> set[str]:
        """The abilities of a run, without those of Whisper if it is another model."""
        data = run.config.data
        assert isinstance(data, RecordingsConfig)
        return super().abilities(run) - ({"whisper"} if not data.padded_length else set())

    @classmethod
    def way(cls, arguments: DecodeArguments) -> Way:
        """Sound that arrives, a long recording, or lines."""
        if arguments.stream:
            return Way.SOUND
        return Way.RECORDING if is_whole(arguments) else Way.LINES

    @classmethod
    def write_file(cls, arguments: DecodeArguments, way: Way) -> bool:
        """Sound that arrives, or a long recording."""
        if way is Way.SOUND:
            transcribe_arriving(arguments)
        elif way is Way.RECORDING:
            transcribe_file(arguments)
        return way is not Way.LINES

    @classmethod
    def check_input(cls, arguments: DecodeArguments) -> None:
        assert arguments.input
        if not is_recording(arguments.input):
            for number, line in enumerate(lines_of(arguments), 1):
                listed_columns(line, arguments.input, number)

    @classmethod
    def page(cls, arguments: DecodeArguments) -> "tuple[Explorer, str]":
        def started(task: SpeechToText, record: Recording) -> Recording:
            return replace(record, start=start_of(task, arguments))

        return page_of_files(arguments, started)

    @property
    def job(self) -> list[str]:
        return [*super().job, repr([self.start, self.cut_options])]

    def _references(self) -> list[str] | None:
        """The texts of --reference, or of the manifest if all lines have one."""
        if len(self.arguments.reference) > 1:
            raise UserError("--reference: a recording has one reference; give one file")
        is_list = self.arguments.input is not None and not is_recording(self.arguments.input)
        columns = [line.split("\t") for line in lines_of(self.arguments)] if is_list else []
        self.speakers = ["".join(fields[2:]).strip() for fields in columns]
        for path in self.arguments.reference:
            return [*self._texts(path)]
        if not is_list:
            return None
        if missing := sum(len(fields) < 2 for fields in columns):
            if missing < len(columns):
                log.warning(
                    "no error rates: no text in %d of %s of %s",
                    missing,
                    counted(len(columns), "line"),
                    self.arguments.input,
                )
            return None
        return [text.strip() if has_text(text) else "" for _, text, *_ in columns] or None

    def _texts(self, path: Path) -> Iterator[str]:
        """The lines of a file of references. Raises UserError if one has a tab."""
        for number, line in enumerate(read_lines(path), 1):
            if "\t" in line:
                raise UserError(
                    f"--reference {path}, line {number}: must be a text without a tab; leave --reference out "
                    "to compare with the texts of --input"
                )
            yield without_invisible(line)

    def record(self, number: int, line: str) -> Recording:
        manifest = self.input_file
        name = line.partition("\t")[0]
        path = joined_path(manifest, name, f"{manifest}, line {number}")
        if manifest.name != line and self.transcriber.is_long(path):
            source = listed(name, manifest, number, "recording")
            return LongRecording.of(
                source, self.cut_options, lambda seconds: self.within(f"{name}: {seconds:,.0f} s of sound")
            )
        record = replace(self.transcriber.task.listed(line, manifest, number), start=self.start)
        return with_rules(record, self.rules)

    def input_fields(self, item: str) -> Json:
        whole = self.arguments.input and is_recording(self.arguments.input)
        name, *columns = [item] if whole else item.split("\t")
        return {"recording": readable(name)} | dict(zip(("text", "speaker"), columns, strict=False))

    def output_fields(self, output: Transcript) -> Json:
        return with_requested(super().output_fields(output), self.arguments.times, self.arguments.timestamps)

    def scores(self, outputs: Sequence[str]) -> list[str]:
        if not self.references:
            return []
        if len(self.references) != len(outputs):
            texts = counted(len(self.references), "text")
            raise UserError(f"{counted(len(outputs), 'recording')}, but {texts} to compare with")
        totals = [rate(outputs, self.references).detail for rate in self.rates]
        return totals + lines_of_speakers(self.rates[0], outputs, self.references, self.speakers)


WRITER = Transcriptions
