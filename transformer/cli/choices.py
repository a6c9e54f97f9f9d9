"""The most probable of some labels for each line, instead of a search: `--choices`."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.request_parser import RequestParser
from transformer.cli.writer import OF_JSON, Numbered, Written, in_groups, refuse
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.runtime.text import has_text
from transformer.tasks.requests import TranslationRequest
from transformer.translator.rescoring import TOGETHER
from transformer.translator.translator import Translator

TRAINED = "trained"
"""The value of --choices for the labels of the training text."""
NOT_WITH_CHOICES = (*OF_JSON, "glossary", "keep", "rescore")
log = logging.getLogger("transformer")


class Choices:
    """Writes labels by `--choices` and `--temperature-of-choices`.

    Args:
      arguments: the command line.
      translator: of the run.
      request_parser: reads a line.
      about: what JSON says about a source.

    Raises:
      UserError: the labels are invalid, or other options do not go with them.
    """

    def __init__(
        self,
        arguments: DecodeArguments,
        translator: Translator,
        request_parser: RequestParser,
        about: Callable[[str], Json],
    ) -> None:
        refuse(arguments, NOT_WITH_CHOICES, "--choices writes labels and how probable they are")
        if (arguments.n_best or 1) > 1:
            raise UserError("--n-best: --choices writes one label; --format json has all of them")
        self.format = arguments.format
        self.labels = () if arguments.choices == (TRAINED,) else arguments.choices
        self.temperature = arguments.temperature_of_choices
        self.translator = translator
        self.request_parser = request_parser
        self.about = about
        if unknown := translator.check_choices(self.labels, self.temperature):
            log.warning("--choices: the training text has no label %s", ", ".join(unknown))

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        """The most probable label of each line, or the probabilities of all of them.

        Raises:
          UserError: a line asks for what only a search can do.
        """
        for group in in_groups(lines, TOGETHER):
            requests = [(number, self._request(number, line)) for number, line in group]
            texts = [request.source for _, request in requests if has_text(request.source)]
            probabilities = iter(
                self.translator.choices(texts, self.labels, temperature=self.temperature) if texts else []
            )
            for number, request in requests:
                of_labels = next(probabilities) if has_text(request.source) else {}
                label, probability = next(iter(of_labels.items()), ("", 0.0))
                about = {"line": number, **self.about(request.source), "choices": of_labels}
                if self.translator.truncates(request.source):
                    about["truncated"] = True
                forms = {
                    "text": label,
                    "scores": f"{probability:.4f}\t{label}",
                    "json": json.dumps(about, ensure_ascii=False),
                }
                yield f"{forms[self.format]}\n", label
            if not group:
                yield None

    def _request(self, number: int, line: str) -> TranslationRequest:
        request = self.request_parser(number, line)
        for steering in ("prefix", "terms"):
            if getattr(request, steering):
                raise UserError(f"line {number}: {steering}: --choices searches no text; leave it out")
        return request
