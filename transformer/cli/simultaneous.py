"""`decode.py RUN --stream` for models with --model.wait-k: translates text while it arrives."""

import itertools
import sys
from collections.abc import Iterator

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.input import arriving_words, check_files, lines_of
from transformer.cli.writer import OF_TRANSLATIONS, refuse
from transformer.translator.translator import Translator

LANGUAGES = ("source_language", "target_language")
WITHOUT = (*OF_TRANSLATIONS, "output", "n_best", "resume")
"""Options that a translation cannot have while it grows, besides those of `LANGUAGES`."""


def translate_arriving(arguments: DecodeArguments) -> None:
    """Writes the translation of each line to standard output while its words arrive.

    Raises:
      UserError: an option or the input is wrong, or the model reads whole sentences.
    """
    why = "--stream shows one translation while it grows"
    refuse(arguments, [option for option in WITHOUT if option not in LANGUAGES], why)
    if arguments.format != "text":
        refuse(arguments, ("format",), "--stream shows text")
    check_files(arguments)
    translator = Translator.load(arguments.run_dir, arguments.checkpoint, int8=arguments.int8)
    translator = translator.between(arguments.source_language, arguments.target_language)
    those_of_run = vars(translator.config.decoding)
    every = vars(arguments.decoding).items()
    options = {name: value for name, value in every if value != those_of_run.get(name)}
    translator.waits_for(**options)
    arriving = _words(arguments)
    for first in arriving:
        words = itertools.takewhile(bool, itertools.chain([first], arriving))
        for text in translator.simultaneous(words, **options):
            sys.stdout.write(text)
            sys.stdout.flush()
        for _ in words:  # those after the model has ended its translation
            pass
        print(flush=True)


def _words(arguments: DecodeArguments) -> Iterator[str]:
    """The words of the input, and "" where a line ends."""
    if not arguments.input:
        yield from arriving_words()
        return
    for line in lines_of(arguments):
        yield from line.split()
        yield ""
