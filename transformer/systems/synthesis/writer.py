"""A recording of each line of text."""

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.input import lines_of
from transformer.cli.writer import Numbered, Writer, Written, page_of_files
from transformer.data.signals.audio import RATE
from transformer.data.signals.waveforms import comment_of, write_audio
from transformer.data.sources.recordings import Recording
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.runtime.files import is_device, prefixed_errors
from transformer.runtime.text import has_text
from transformer.systems.synthesis.api import Synthesizer, pronounced
from transformer.systems.synthesis.task import Utterance
from transformer.translator.translator import Translator

SILENCE = RATE // 10
"""Samples for a line that says nothing: a file without any is not read by every program."""
log = logging.getLogger("transformer")


class Utterances(Writer):
    """Recordings beside the output, which is a manifest: a line is a file name, a tab and the text. Only
    recordings of the same job are replaced, which their comments tell."""

    does = "writes one recording for each text"
    can = frozenset({"pronunciation", "page"})
    loads: ClassVar = Synthesizer
    libraries: ClassVar = ("speaking with", ("soundfile",))
    page = staticmethod(page_of_files)

    @classmethod
    def check_input(cls, arguments: DecodeArguments) -> None:
        if arguments.pronunciation:  # which writes what is spoken
            return
        task: Any = Run(arguments.run_dir).task
        longest = arguments.decoding.buckets[-1]
        for number, line in enumerate(lines_of(arguments), 1):
            if has_text(line):
                task.input_examples([task.record(line)], longest, [number])

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Synthesizer:
        """The trained model."""
        arguments = self.arguments
        if not arguments.output:
            raise UserError(
                "--output FILE is missing: recordings are written beside it, and it lists them, such as "
                "--output spoken/list.tsv"
            )
        if is_device(arguments.output):
            raise UserError(f"--output {arguments.output} must be a file: recordings are written beside it")
        self.manifest = Path(os.path.realpath(arguments.output))
        if re.search("[\t\n\ud800-\udfff]", self.manifest.stem):
            raise UserError(
                f"--output {arguments.output}: recordings are named after it, and it lists them: choose a "
                "name in UTF-8, without tabs and ends of lines"
            )
        self.voice = cast(Synthesizer, super().load(run_dir, checkpoint, int8))
        if arguments.pronunciation:
            self.voice.pronunciation = Translator.load(arguments.pronunciation)
        return self.voice

    @property
    def job(self) -> list[str]:
        first = self.voice.pronunciation
        return [*super().job, first.fingerprint() if first else ""]

    def claim(self, job: str, total: int | None) -> None:
        self.comment = f"synthetic speech {hashlib.blake2b(job.encode(), digest_size=8).hexdigest()}"
        self.is_known = bool(job)
        for name in sorted(os.listdir(self.manifest.parent)):
            match = self._pattern.fullmatch(name)
            if match and (total is None or int(match[1]) <= total):
                self._check(self.manifest.with_name(name))

    def _check(self, path: Path) -> None:
        """Raises UserError if a recording would replace a file that is not of this job."""
        if not os.path.lexists(path):
            return
        if not self.is_known:
            raise UserError(
                f"{path} is there already, and input from a pipe cannot be compared with that of an earlier "
                "job: give --input FILE, or name another --output"
            )
        if comment_of(path) != self.comment:
            raise UserError(
                f"{path} is there already, and not of this job: remove it, or name another --output"
            )

    def _path(self, number: int) -> Path:
        return self.manifest.with_name(f"{self.manifest.stem}-{number:04}.wav")

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.manifest.stem) + r"-(\d{4,})\.wav", re.ASCII)

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        for answer in self.decoder.answers(self._spoken(lines), self.decoder.settings(1, self.options), 1):
            if answer is None:
                yield None
                continue
            number, text, (utterance,) = answer
            path = self._path(number)
            self._write(path, number, utterance)
            yield f"{path.name}\t{text}\n", ""

    def _spoken(self, lines: Iterable[Numbered]) -> Iterator[tuple[int, str, Recording] | None]:
        """What is to be spoken for each line, as the run of --pronunciation translates it."""
        first, written_for = self.voice.pronunciation, self.voice.task.written_for
        if first is None:
            yield from (numbered and (*numbered, written_for(numbered[1], "")) for numbered in lines)
            return
        requests = (numbered and (*numbered, first.task.record(numbered[1])) for numbered in lines)
        for answer in first.answers(requests, first.settings(1, {}), 1):
            if answer is None:
                yield None
                continue
            number, line, outputs = answer
            with prefixed_errors(f"line {number}: "):
                spoken = written_for(pronounced(outputs[0], line), line)
            yield number, line, spoken

    def _write(self, path: Path, number: int, utterance: Utterance) -> None:
        self._check(path)
        if not len(utterance.features):
            log.warning("line %d is empty: %.1f s of silence is written", number, SILENCE / RATE)
        elif not utterance.stopped:
            log.warning("line %d: truncated after %.2f s; see --max-length", number, utterance.seconds)
        with prefixed_errors(f"line {number}: "):
            wave = utterance.wave
        write_audio(path, wave if len(wave) else np.zeros(SILENCE, np.float32), comment=self.comment)


WRITER = Utterances
