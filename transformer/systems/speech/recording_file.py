"""`decode.py RUN --input talk.wav`: a recording of any length in, also while it arrives; its text, subtitles
or JSON out."""

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.input import check_files, check_streams, digest_of
from transformer.cli.output_file import LongOutput, Output, resumable, resumable_output
from transformer.cli.writer import use_beside
from transformer.config.arguments import seconds
from transformer.config.records import SOUND, is_recording
from transformer.config.training import TextNormalisation
from transformer.data.remote import fetched
from transformer.data.signals.pauses import LIBRARY
from transformer.data.signals.waveforms import audio_blocks, seconds_of
from transformer.data.sources.text_files import read_lines
from transformer.runs.run import Run
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import json_line, parse_object, prefixed_errors
from transformer.runtime.machine import check_libraries
from transformer.systems.speech.api import Transcriber
from transformer.systems.speech.long import LiveText, speed_of
from transformer.systems.speech.task import SpeechToText
from transformer.systems.speech.transcripts import (
    SUBTITLES,
    SpokenPart,
    srt,
    subtitles_of,
    vtt,
    with_requested,
)
from transformer.tasks.metrics.error_rates import ErrorsOf, libraries_of
from transformer.tasks.metrics.scores import SENTENCES

# What options of the command line ask of a recogniser.


def start_of(task: SpeechToText, arguments: DecodeArguments) -> tuple[int, ...]:
    """The ids that outputs begin with, as the options ask for it.

    Raises:
      UserError: the model has no such language or task, or no options of Whisper.
    """
    with prefixed_errors("--"):
        return task.start(arguments.language, arguments.task, arguments.timestamps)


def cut_options(task: SpeechToText, arguments: DecodeArguments) -> dict[str, Any]:
    """The options of `Transcriber.parts` that are not those of the search.

    Raises:
      UserError: the model has no such language or task, or no windows; options do not go together; or a
        library is not installed.
    """
    start_of(task, arguments)
    with prefixed_errors("--"):
        if arguments.pause is not None:
            seconds("pause", arguments.pause)
        task.in_windows(arguments.cut, arguments.detector, arguments.windows, arguments.pause)
    check_libraries([LIBRARY] * (arguments.detector == "silero"), "--detector silero")
    named = ("language", "task", "timestamps", "cut", "pause", "detector", "windows")
    return {name: getattr(arguments, name) for name in named}


# The error rates of what decode.py writes, as its options ask for them.


def check_normalisation(normalisation: TextNormalisation | None, has_references: bool) -> None:
    """Raises UserError if texts are to be normalised, and none are compared."""
    if normalisation and not has_references:
        raise UserError(
            "--text-normalisation: there are no texts to compare with; give --reference, or a list with texts"
        )


def rates_of(task: SpeechToText, normalisation: TextNormalisation | None, count: int) -> list[ErrorsOf]:
    """The error rates of a task, that which decides first.

    Args:
      task: of the run.
      normalisation: of the texts. None: that of the run.
      count: of the references. One has no sentence error rate, which could only be 0 or 100 %.

    Raises:
      UserError: a library that they need is not installed.
    """
    how = normalisation or task.config.training.text_normalisation
    check_libraries(("jiwer", *libraries_of(how)), "error rates")
    rates = task.error_rates(how).items()
    return [rate for measure, rate in rates if count > 1 or measure != SENTENCES]


def lines_of_speakers(
    rate: ErrorsOf, outputs: Sequence[str], references: Sequence[str], speakers: Sequence[str]
) -> list[str]:
    """An error rate for each speaker, where some are known: a line each, the worst first."""
    if not any(speakers):
        return []
    scores = []
    for name in dict.fromkeys(speakers):
        is_theirs = [speaker == name for speaker in speakers]
        heard, said = (list(itertools.compress(side, is_theirs)) for side in (outputs, references))
        scores.append((name or "unknown speaker", rate(heard, said)))
    return [f"{name}: {score.detail}" for name, score in sorted(scores, key=lambda item: -item[1].value)]


# `decode.py RUN --stream` for models that hear: words are written while the sound arrives.


BYTES = 2
"""Bytes of a sample of raw sound."""


def transcribe_arriving(arguments: DecodeArguments) -> None:
    """Writes what is said to standard output, word by word, or as JSON one object for each step.

    Raises:
      UserError: an option is wrong, or the sound cannot be read.
    """
    if arguments.input and not is_recording(arguments.input):
        raise UserError(f"--input {arguments.input}: --stream reads one recording, or standard input")
    if arguments.input:
        check_libraries(("soundfile", "soxr"), f"hearing with {arguments.run_dir}")
    check_files(arguments)
    transcriber = Transcriber.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
    use_beside(transcriber, arguments)
    start_of(transcriber.task, arguments)
    sound = audio_blocks(fetched(arguments.input)) if arguments.input else _raw()
    try:
        texts: Iterable[LiveText] = transcriber.live(
            sound,
            step=arguments.stream_step,
            language=arguments.language,
            task=arguments.task,
            **vars(arguments.decoding),
        )
    except UserError as error:
        raise UserError(f"--stream-{error}" if str(error).startswith("step") else str(error)) from error
    began, heard = time.monotonic(), 0.0
    output, watch = sys.stdout, ProgressReporter.beside_output()
    total = seconds_of(fetched(arguments.input)) if arguments.input else math.inf
    if not output.isatty():  # no bar among the words
        known_total = total if total < math.inf else None
        texts = watch.progress("seconds of sound", texts, known_total, _Increase(lambda text: text.seconds))
    for text in texts:
        heard = text.seconds
        output.write(json_line(text._asdict()) if arguments.format == "json" else text.final)
        output.flush()
    if arguments.format == "text":
        print(flush=True)
    if arguments.input:
        watch.message(speed_of(heard, time.monotonic() - began))


class _Increase:
    """By how much a number of an item exceeds that of the item before it, which is 0 before the first."""

    def __init__(self, number: Callable[[Any], float]) -> None:
        self._number = number
        self.before = 0.0

    def __call__(self, item: Any) -> float:
        increase = self._number(item) - self.before
        self.before += increase
        return increase


def _raw() -> Iterator[np.ndarray]:
    """The samples of standard input as they arrive."""
    if sys.stdin is None:
        raise UserError("standard input is closed: name a recording with --input")
    descriptor = sys.stdin.fileno()
    if os.isatty(descriptor):
        raise UserError(
            "standard input is a terminal: pipe raw sound, 16,000 samples a second of 16 bits, as that of "
            "`arecord -f S16_LE -r 16000 -t raw`, or name a recording with --input"
        )
    unread, samples = b"", 0  # the end of a block, less than a sample
    while received := os.read(descriptor, 2**16):
        unread += received
        if not samples and SOUND.match(unread):
            raise UserError(
                "standard input is an audio file, and --stream reads raw sound: name the file with --input"
            )
        block = np.frombuffer(unread, "<i2", len(unread) // BYTES)
        samples += len(block)
        yield block
        unread = unread[block.nbytes :]
    if not samples:
        raise UserError(
            "no sound arrived on standard input: does the program before it record? Or name a recording with "
            "--input"
        )


def is_whole(arguments: DecodeArguments) -> bool:
    """Whether the input is a recording that is divided: longer than the model hears, or for subtitles.

    Raises:
      UserError: subtitles are asked for, and it is no recording.
    """
    path = arguments.input
    if path is None or not is_recording(path):
        if arguments.format in SUBTITLES:
            raise UserError(f"--format {arguments.format} is for one recording: name it with --input")
        return False
    check_libraries(("soundfile", "soxr"), f"hearing with {arguments.run_dir}")
    task: Any = Run(arguments.run_dir).task
    return (
        arguments.format in SUBTITLES or task.hears(arguments.decoding) < seconds_of(fetched(path)) < math.inf
    )


def transcribe_file(arguments: DecodeArguments) -> None:
    """Transcribes a recording.

    Raises:
      UserError: an option is wrong, the recording cannot be read, or it changed meanwhile.
    """
    assert arguments.input
    check_streams(arguments)
    if len(arguments.reference) > 1:
        raise UserError("--reference: a recording has one reference; give one file")
    if jax.process_count() > 1:
        raise UserError("a long recording is transcribed by one process")
    how = arguments.text_normalisation
    check_normalisation(how, bool(arguments.reference))
    transcriber = Transcriber.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
    for option in ("lm_weight", "bias_weight"):
        if len(getattr(arguments, option)) > 1:
            name = option.replace("_", "-")
            raise UserError(
                f"--{name}: a long recording has one; to compare several, name a list with --input"
            )
    use_beside(transcriber, arguments)
    rates = rates_of(transcriber.task, how, 1) if arguments.reference else []
    options = _options(arguments, transcriber)
    watch = ProgressReporter.beside_output()
    total = seconds_of(fetched(arguments.input))
    digest = digest_of(arguments.input)
    output = _output(arguments, repr([transcriber.fingerprint(), options, digest]))
    texts, start, began = list[str](), 0.0, time.monotonic()
    new_seconds = _Increase(lambda part: part.end)

    def watched(parts: Iterable[SpokenPart]) -> Iterator[SpokenPart]:
        seconds_left = total - start if total < math.inf else None
        for part in watch.progress("seconds of sound", parts, seconds_left, new_seconds):
            texts.append(part.transcript.text)
            yield part

    with resumable(output, watch, "part"), output as file:
        done = output.results(_part)
        if done:
            watch.message(f"  continuing after {done[-1].end:,.1f} s of sound")
            texts += [part.transcript.text for part in done]
            start = new_seconds.before = done[-1].end
        parts = watched(transcriber.parts(arguments.input, after=done, **options))
        is_long = isinstance(output, LongOutput)
        for text in (json_line(part.stored()) for part in parts) if is_long else _written(parts, arguments):
            file.write(text)
            file.flush()  # for whoever reads along, and for --resume after a kill
        if digest_of(arguments.input) != digest:
            output.discard()
            raise UserError(f"{arguments.input} changed while it was read: run the same command again")
    where = f", written to {arguments.output}" if arguments.output else ""
    length = total if total < math.inf else new_seconds.before  # of the recording, which may end in silence
    speed = speed_of(length - start, time.monotonic() - began)
    watch.message(f"{counted(len(texts), 'part')}, {speed}{where}")
    for path in arguments.reference:
        reference = " ".join(filter(None, map(str.strip, read_lines(path))))
        for rate in rates:
            watch.message(rate([" ".join(filter(None, texts))], [reference]).detail)


def _options(arguments: DecodeArguments, transcriber: Transcriber) -> dict[str, Any]:
    """Those of `Transcriber.parts`. Subtitles have times, as exact as the model has them.

    Raises:
      UserError: the model has no such language or task, or no options of Whisper.
    """
    has_titles = arguments.format in SUBTITLES
    timestamps = arguments.timestamps or (has_titles and transcriber.task.codes is not None)
    aligns = (transcriber.has_ctc or transcriber.system.alignment is not None) and not timestamps
    options = cut_options(transcriber.task, arguments) | {"timestamps": timestamps}
    return {**options, "times": arguments.times or (has_titles and aligns), **vars(arguments.decoding)}


def _output(arguments: DecodeArguments, job: str) -> Output:
    """A file is written at the end, from an object for each part that a process has found so far."""

    def convert(lines: Iterable[str]) -> Iterator[str]:
        return _written(map(_part, lines), arguments)

    return resumable_output(
        arguments.output,
        job,
        resume=arguments.resume,
        needs="--output",
        again=bool(arguments.reference),
        convert=convert,
        mark=repr([job, arguments.format]),
    )


def _part(line: str) -> SpokenPart:
    return SpokenPart.of_json(parse_object(line))


def _written(parts: Iterable[SpokenPart], arguments: DecodeArguments) -> Iterator[str]:
    """What is written of parts, as they are found."""
    match arguments.format:
        case "text":
            return _as_text(parts)
        case "json":
            lists = arguments.times, arguments.timestamps
            return (json_line(with_requested(part.to_json(), *lists)) for part in parts)
    write = {"srt": srt, "vtt": vtt}[arguments.format]
    return write(subtitle for part in parts for subtitle in subtitles_of(part))


def _as_text(parts: Iterable[SpokenPart]) -> Iterator[str]:
    transcripts = (part.transcript for part in parts)
    pieces = (piece for transcript in transcripts for piece in transcript.segments or (transcript,))
    texts = (" ".join(piece.text.split()) for piece in pieces)
    return (f"{text}\n" for text in texts if text)
