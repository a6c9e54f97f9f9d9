"""What was said in each recording that the input lists."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer.cli.input import is_recording, lines_of
from transformer.cli.texts import Texts
from transformer.cli.writer import page_of_sounds
from transformer.data.sources.corpora import read_lines
from transformer.data.sources.recordings import Recording
from transformer.runtime.errors import UserError, counted
from transformer.runtime.extras import check_libraries
from transformer.runtime.files import Json, readable
from transformer.runtime.text import has_text, without_invisible
from transformer.systems.speech.api import Transcriber, Transcript

log = logging.getLogger("transformer")


class Transcriptions(Texts):
    """Texts, with scores, or as JSON. A line is a file name, and after a tab the text if it is known, which
    is empty if nothing is said."""

    does = "hears recordings"
    uses = ("reference", "alignments", "times")
    page = staticmethod(page_of_sounds)

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Transcriber:
        """The trained model, and the texts to compare with."""
        self.references = self._references()
        self.is_scored = self.references is not None
        check_libraries(("soundfile", "soxr", *["jiwer"] * self.is_scored), f"hearing with {run_dir}")
        self.transcriber = Transcriber.load(run_dir, checkpoint, int8=int8)
        return self.transcriber

    def _references(self) -> list[str] | None:
        """The texts of --reference, or of the manifest if all lines have one."""
        if self.arguments.reference:
            return [*self._texts(self.arguments.reference)]
        if not self.arguments.input or is_recording(self.arguments.input):
            return None
        columns = [line.partition("\t") for line in lines_of(self.arguments)]
        if missing := sum(not tab for _, tab, _ in columns):
            if missing < len(columns):
                log.warning(
                    "no error rates: no text in %d of %s of %s",
                    missing,
                    counted(len(columns), "line"),
                    self.arguments.input,
                )
            return None
        return [text.strip() if has_text(text) else "" for _, _, text in columns] or None

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
        return self.transcriber.task.listed(line, self.arguments.input or Path("standard input"), number)

    def input_fields(self, line: str) -> Json:
        whole = self.arguments.input and is_recording(self.arguments.input)
        name, tab, text = (line, "", "") if whole else line.partition("\t")
        return {"recording": readable(name)} | ({"text": text} if tab else {})

    def output_fields(self, output: Transcript) -> Json:
        fields = super().output_fields(output)
        if self.arguments.times:
            fields["words"] = [
                {"word": word.text, "start": word.start, "end": word.end} for word in output.words
            ]
        return fields

    def scores(self, outputs: Sequence[str]) -> list[str]:
        if not self.references:
            return []
        if len(self.references) != len(outputs):
            texts = counted(len(self.references), "text")
            raise UserError(f"{counted(len(outputs), 'recording')}, but {texts} to compare with")
        rates = self.transcriber.task.error_rates().values()
        return [rate(outputs, self.references).detail for rate in rates]


WRITER = Transcriptions
