"""What was said in each recording that the input lists."""

import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from transformer.cli.decode_arguments import is_recording, lines_of
from transformer.cli.page import page_of_sounds
from transformer.cli.writer import Numbered, Writer, Written
from transformer.data.sources.corpora import read_lines
from transformer.data.sources.recordings import Recording
from transformer.errors import UserError
from transformer.extras import check_libraries
from transformer.files import readable
from transformer.systems.speech.api import Transcriber, Transcript
from transformer.text import has_text, without_invisible
from transformer.translator.search_outputs import Extras

log = logging.getLogger("transformer")


class Transcriptions(Writer):
    """Texts, with scores, or as JSON. A line is a file name, and after a tab the text if it is known, which
    is empty if nothing is said."""

    does = "hears recordings"
    uses = ("reference", "alignments", "times")
    page = staticmethod(page_of_sounds)

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Transcriber:
        """The trained model, and the texts to compare with."""
        given = self.given
        for option in ("alignments", "times"):
            if getattr(given, option) and given.format != "json":
                raise UserError(f"--{option} needs --format json: the text formats do not have them")
        self.n_best = given.n_best or 1
        self.each = 1 if given.format == "json" else self.n_best
        self.references = self._references()
        self.judged = self.references is not None
        check_libraries(("soundfile", "soxr", *["jiwer"] * self.judged), f"hearing with {run_dir}")
        self.transcriber = Transcriber.load(run_dir, checkpoint, int8=int8)
        return self.transcriber

    def _references(self) -> list[str] | None:
        """The texts of --reference, or of the manifest if all lines have one."""
        if self.given.reference:
            return [*self._texts(self.given.reference)]
        if not self.given.input or is_recording(self.given.input):
            return None
        columns = [line.partition("\t") for line in lines_of(self.given)]
        if missing := sum(not tab for _, tab, _ in columns):
            if missing < len(columns):
                log.warning(
                    "no error rates: %d of %d lines of %s have no text",
                    missing,
                    len(columns),
                    self.given.input,
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

    @property
    def job(self) -> list[str]:
        return [*super().job, repr((self.given.alignments, self.given.times))]

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        waiting, extras = deque[tuple[int, str]](), Extras(self.given.alignments, times=self.given.times)

        def records() -> Iterator[tuple[int, Recording] | None]:
            for given in lines:
                if given is None:
                    yield None
                    continue
                waiting.append(given)
                yield given[0], self._recording(*given)

        settings = self.transcriber.settings(self.n_best, self.options)
        for transcripts in self.transcriber.outputs(records(), settings, self.n_best, extras):
            yield transcripts and (self._text(*waiting.popleft(), transcripts), transcripts[0].text)

    def _recording(self, number: int, line: str) -> Recording:
        place = self.given.input or Path("standard input")
        return self.transcriber.task.listed(line, place, number)

    def _text(self, number: int, line: str, transcripts: list[Transcript]) -> str:
        if self.given.format == "json":
            return json.dumps(self._fields(number, line, transcripts), ensure_ascii=False) + "\n"
        return self.lines(transcripts)

    def _fields(self, number: int, line: str, transcripts: list[Transcript]) -> dict[str, object]:
        hypotheses = []
        for transcript in transcripts:
            fields: dict[str, object] = {
                "text": transcript.text,
                "tokens": transcript.tokens,
                "score": transcript.score,
                "log_probability": transcript.log_probability,
            }
            if self.given.times:
                fields["words"] = [
                    {"word": word.text, "start": word.start, "end": word.end} for word in transcript.words
                ]
            if transcript.alignment is not None:
                fields["alignment"] = [[round(float(x), 4) for x in row] for row in transcript.alignment]
            hypotheses.append(fields)
        whole = self.given.input and is_recording(self.given.input)
        name, tab, text = (line, "", "") if whole else line.partition("\t")
        about = {"line": number, "recording": readable(name)}
        return about | ({"text": text} if tab else {}) | {"hypotheses": hypotheses}

    def scores(self, outputs: Sequence[str]) -> list[str]:
        if not self.references:
            return []
        if len(self.references) != len(outputs):
            raise UserError(f"{len(outputs)} recordings, but {len(self.references)} texts to compare with")
        rates = self.transcriber.task.error_rates().values()
        return [rate(outputs, self.references).detail for rate in rates]


WRITER = Transcriptions
