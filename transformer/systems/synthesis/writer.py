"""A recording of each line of text."""

import hashlib
import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer.cli.output_file import is_device
from transformer.cli.page import page_of_sounds
from transformer.cli.writer import Numbered, Writer, Written
from transformer.data.features.audio import RATE
from transformer.data.features.waveforms import comment_of, write_audio
from transformer.errors import UserError
from transformer.extras import check_libraries
from transformer.systems.synthesis.api import Synthesizer
from transformer.systems.synthesis.task import Utterance
from transformer.translator.translator import Translator

SILENCE = RATE // 10
"""Samples for a line that says nothing: a file without any is not read by every program."""
log = logging.getLogger("transformer")


class Utterances(Writer):
    """Recordings beside the output, which is a manifest: a line is a file name, a tab and the text. Only
    recordings of the same job are replaced, which their comments tell."""

    does = "writes one recording for each text"
    uses = ("pronunciation",)
    page = staticmethod(page_of_sounds)

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Synthesizer:
        """The trained model."""
        given = self.given
        if not given.output:
            raise UserError(
                "--output FILE is missing: recordings are written beside it, and it lists them, such as "
                "--output spoken/list.tsv"
            )
        if is_device(given.output):
            raise UserError(f"--output {given.output} must be a file: recordings are written beside it")
        self.place = Path(os.path.realpath(given.output))
        check_libraries(("soundfile",), f"speaking with {run_dir}")
        self.voice = Synthesizer.load(run_dir, checkpoint, int8=int8)
        if given.pronunciation:
            self.voice.pronunciation = Translator.load(given.pronunciation)
        return self.voice

    @property
    def job(self) -> list[str]:
        first = self.voice.pronunciation
        return [*super().job, first.fingerprint() if first else ""]

    def claim(self, job: str, total: int | None) -> None:
        self.comment = f"synthetic speech {hashlib.blake2b(job.encode(), digest_size=8).hexdigest()}"
        self.is_known = bool(job)
        for name in sorted(os.listdir(self.place.parent)):
            match = self._pattern.fullmatch(name)
            if match and (total is None or int(match[1]) <= total):
                self._check(self.place.with_name(name))

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
        return self.place.with_name(f"{self.place.stem}-{number:04}.wav")

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.place.stem) + r"-(\d{4,})\.wav", re.ASCII)

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        task, waiting = self.decoder.task, deque[tuple[int, str]]()

        def remembered() -> Iterator[Numbered]:
            for given in lines:
                if given:
                    waiting.append(given)
                yield given

        pronounced = self._pronounced(remembered())
        records = (given and (given[0], task.written_for(*given[1])) for given in pronounced)
        for found in self.decoder.outputs(records, self.decoder.settings(1, self.options), 1):
            if found is None:
                yield None
                continue
            number, text = waiting.popleft()
            path = self._path(number)
            self._write(path, number, found[0])
            yield f"{path.name}\t{text}\n", ""

    def _pronounced(self, lines: Iterable[Numbered]) -> Iterator[tuple[int, tuple[str, str]] | None]:
        """What is to be spoken, as the run of --pronunciation translates it, and the line."""
        first, waiting = self.voice.pronunciation, deque[tuple[int, str]]()
        if first is None:
            yield from (given and (given[0], (given[1], "")) for given in lines)
            return

        def records() -> Iterator[tuple[int, Any] | None]:
            for given in lines:
                if given:
                    waiting.append(given)
                yield given and (given[0], first.task.record(given[1]))

        for found in first.outputs(records(), first.settings(1, {}), 1):
            if found is None:
                yield None
                continue
            number, line = waiting.popleft()
            yield number, (found[0].text, line)

    def _write(self, path: Path, number: int, said: Utterance) -> None:
        self._check(path)
        if not len(said.features):
            log.warning("line %d is empty: %.1f s of silence are written", number, SILENCE / RATE)
        elif not said.stopped:
            log.warning("line %d: cut after %.2f s; see --max-length", number, said.seconds)
        try:
            wave = said.wave
        except UserError as error:
            raise UserError(f"line {number}: {error}") from error
        write_audio(path, wave if len(wave) else np.zeros(SILENCE, np.float32), comment=self.comment)


WRITER = Utterances
