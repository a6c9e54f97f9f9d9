"""`decode.py RUN --stream` for models that hear: words are written while the sound arrives."""

import json
import os
import sys
import time
from collections.abc import Iterator

import numpy as np

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.input import check_files
from transformer.cli.writer import OF_LONG, refuse, use_beside
from transformer.config.recordings import SOUND, is_recording
from transformer.data.features.waveforms import audio_blocks
from transformer.data.remote import fetched
from transformer.runtime.console import ProgressReporter, SteadyConsole
from transformer.runtime.errors import UserError
from transformer.runtime.extras import check_libraries
from transformer.systems.speech.api import Transcriber
from transformer.systems.speech.live import speed_of
from transformer.systems.speech.requested import start_of

WITHOUT = ("output", "n_best", "resume", "reference", "times", "timestamps", "alignments", *OF_LONG)
"""Options that a transcript cannot have while it grows."""
BYTES = 2
"""Of a sample."""


def transcribe_arriving(arguments: DecodeArguments) -> None:
    """Writes what is said to standard output, word by word, or as JSON one object for each step.

    Raises:
      UserError: an option is wrong, or the sound cannot be read.
    """
    refuse(arguments, WITHOUT, "--stream writes one transcript while it grows")
    if arguments.format not in ("text", "json"):
        raise UserError(f"--format {arguments.format}: --stream writes text or json")
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
        texts = transcriber.live(
            sound,
            step=arguments.stream_step,
            language=arguments.language,
            task=arguments.task,
            **vars(arguments.decoding),
        )
    except UserError as error:
        raise UserError(f"--stream-{error}" if str(error).startswith("step") else str(error)) from error
    began, heard = time.monotonic(), 0.0
    for text in texts:
        heard = text.seconds
        if arguments.format == "json":
            sys.stdout.write(json.dumps(text._asdict(), ensure_ascii=False) + "\n")
        else:
            sys.stdout.write(text.final)
        sys.stdout.flush()
    if arguments.format == "text":
        print(flush=True)
    if arguments.input:
        watch = ProgressReporter(SteadyConsole(stderr=True, highlight=False, soft_wrap=True))
        watch.message(speed_of(heard, time.monotonic() - began))


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
    rest, samples = b"", 0  # the end of a block, less than a sample
    while read := os.read(descriptor, 2**16):
        rest += read
        if not samples and SOUND.match(rest):
            raise UserError(
                "standard input is an audio file, and --stream reads raw sound: name the file with --input"
            )
        block = np.frombuffer(rest, "<i2", len(rest) // BYTES)
        samples += len(block)
        yield block
        rest = rest[block.nbytes :]
    if not samples:
        raise UserError(
            "no sound arrived on standard input: does the program before it record? Or name a recording with "
            "--input"
        )
