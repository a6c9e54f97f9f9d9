"""What options of the command line ask of a recogniser."""

from typing import Any

from transformer.cli.decode_arguments import DecodeArguments
from transformer.config.ranges import seconds
from transformer.data.features.voice import LIBRARY
from transformer.runtime.errors import UserError
from transformer.runtime.extras import check_libraries
from transformer.systems.speech.task import SpeechToText


def start_of(task: SpeechToText, arguments: DecodeArguments) -> tuple[int, ...]:
    """The ids that outputs begin with, as the options ask for it.

    Raises:
      UserError: the model has no such language or task, or no options of Whisper.
    """
    try:
        return task.start(arguments.language, arguments.task, arguments.timestamps)
    except UserError as error:
        raise UserError(f"--{error}") from error


def cut_options(task: SpeechToText, arguments: DecodeArguments) -> dict[str, Any]:
    """The options of `Transcriber.parts` that are not those of the search.

    Raises:
      UserError: the model has no such language or task, or no windows; options do not go together; or a
        library is not installed.
    """
    start_of(task, arguments)
    try:
        if arguments.pause is not None:
            seconds("pause", arguments.pause)
        task.in_windows(arguments.cut, arguments.detector, arguments.windows, arguments.pause)
    except UserError as error:
        raise UserError(f"--{error}") from error
    check_libraries([LIBRARY] * (arguments.detector == "silero"), "--detector silero")
    named = ("language", "task", "timestamps", "cut", "pause", "detector", "windows")
    return {name: getattr(arguments, name) for name in named}
