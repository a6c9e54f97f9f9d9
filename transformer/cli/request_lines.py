"""What a line of decode.py's input has beside a sentence (columns of --tsv, fields of --jsonl), and what it
asks for."""

import functools
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from transformer.cli.decode_arguments import DecodeArguments
from transformer.config.corpus import DataConfig
from transformer.config.decoding import BeamConfig
from transformer.data.sources.context import History
from transformer.data.sources.text_files import one_line
from transformer.decoding.steering.terms import SIZES
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, brief, brief_json, parse_row, prefixed_errors
from transformer.runtime.text import has_text, without_formatting
from transformer.tasks.texts.glossary import Glossary
from transformer.tasks.texts.languages import SIDES
from transformer.tasks.texts.requests import (
    CONTEXT,
    TranslationRequest,
    check_names,
    languages_of,
    own_sentence,
    source_of,
)
from transformer.translator.search_inputs import room_of
from transformer.translator.translator import Translator

COLUMNS = tuple(name for name in TranslationRequest._fields if name != "target")


def request_of(number: int, line: str, arguments: DecodeArguments, data: DataConfig) -> TranslationRequest:
    """What a line asks for, by the options --tsv and --jsonl; without them it is a sentence. Empty values are
    as if they were not there.

    Args:
      number: of the line, for messages.
      line: of the input.
      arguments: the command line.
      data: options of the model, which name its inputs.

    Raises:
      UserError: it has too many columns, or is no object with such fields; the message has its number.
    """
    if arguments.tsv and arguments.jsonl:
        raise UserError("--tsv and --jsonl: lines are either columns or objects; leave one of them out")
    with prefixed_errors(f"line {number}: "):
        if arguments.jsonl:
            targets = data.target if data.has_columns else ()
            request, named = _of_object(line, data.input_names, targets, data.context > 0)
        elif arguments.tsv:
            names = data.input_names if data.input_names != COLUMNS[:1] else ()
            request, named = _of_columns(number, line, names)
        else:
            request, named = TranslationRequest(line), None
        source = request.source if named is None else named
        return request._replace(source=source_of(source, data, arguments.target_length))


def lines_in_context(
    lines: Iterable[tuple[int, str] | None], arguments: DecodeArguments, data: DataConfig
) -> Iterator[tuple[int, str] | None]:
    """Yields numbered lines, whose sources come after those of the lines before, if the model reads context.
    A line without a source begins a new document, as does one in other languages; one with <turn> in its
    source, or with a field `context`, has its own context. Arguments as of `request_of`."""
    history, languages = History(data.context), None
    for numbered in lines:
        if not data.context or numbered is None:
            yield numbered
            continue
        number, line = numbered
        try:
            request = request_of(number, line, arguments, data)
        except UserError:  # is raised where the line is read
            yield numbered
            continue
        source = request.source
        if has_text(source) and languages != languages_of(request):
            history, languages = History(data.context), languages_of(request)
        in_context = history.before(source)
        if has_text(source):
            history.add(source)
        yield number, _with_source(line, in_context, arguments)


def _with_source(line: str, source: str, arguments: DecodeArguments) -> str:
    """A line with another source, unless it has its own context."""
    if arguments.jsonl:
        fields = parse_row(line) if line.strip() else {}
        has_context = fields.get(CONTEXT) is not None
        return line if has_context else json.dumps({**fields, "source": source}, ensure_ascii=False)
    if arguments.tsv:
        return "\t".join([source, *line.split("\t")[1:]])
    return source


Named = dict[str, Any] | None
"""The inputs that a line names. None: it is a text."""


def _of_columns(number: int, line: str, names: Sequence[str]) -> tuple[TranslationRequest, Named]:
    columns = line.split("\t")
    inputs, options = names or COLUMNS[:1], COLUMNS[1:]
    if len(columns) > len(inputs) + len(options):
        reads = " and ".join(names) if names else "a sentence"
        raise UserError(
            f"{len(columns)} columns; --tsv reads {reads}, a prefix and terms, source and target language, "
            "with tabs between them"
        )
    if number == 1 and columns[: len(inputs)] == list(names):
        raise UserError("it names the columns, as in training files: leave it out")
    named = dict(zip(names, columns, strict=False)) if names and any(columns[: len(inputs)]) else None
    columns += [""] * (len(inputs) + len(options) - len(columns))
    prefix, terms, *languages = columns[len(inputs) :]
    source_language, target_language = (language.strip() or None for language in languages)
    listed = tuple(filter(None, map(str.strip, terms.split("|"))))
    source = "" if names else columns[0]
    return TranslationRequest(source, "", prefix, listed, source_language, target_language), named


def _of_object(
    line: str, names: Sequence[str], targets: Sequence[str], has_context: bool
) -> tuple[TranslationRequest, Named]:
    """What an object asks for, and the inputs that it names.

    Args:
      line: the object; an empty line is an empty sentence.
      names: the inputs of the model, which are returned as they are.
      targets: columns of rows for training, which are ignored as all others are.
      has_context: whether the model reads the field `context`.

    Raises:
      UserError: it is no object, or a field is no text, or named almost as an optional one.
    """
    if not line.strip():
        return TranslationRequest(""), None
    try:
        fields = parse_row(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--jsonl reads a JSON object on each line ({error})") from None
    options = [name for name in COLUMNS if name not in names]
    optional = [name for name in options if name != "source"]
    check_names(fields, [*optional, *([CONTEXT] if has_context else [])], (*names, *targets, "source"))
    terms = fields.get("terms") or []
    if not isinstance(terms, list):
        raise UserError("terms must be a list of words and phrases")
    values = {name: fields.get(name) for name in options if name != "terms"}
    texts: Json = {name: "" if value is None else value for name, value in values.items()}
    for name, value in [*texts.items(), *(("terms", term) for term in terms)]:
        if not isinstance(value, str):
            raise UserError(f"{name} must be text, not {brief_json(value)}")
    languages = texts["source_language"] or None, texts["target_language"] or None
    source = one_line(texts.get("source", ""))
    named = None if source else {name: value for name, value in fields.items() if name not in options}
    return TranslationRequest(source, "", texts["prefix"], tuple(terms), *languages), named


# What a line of decode.py's input asks for: a sentence, a prefix, terms of the line and of the glossary.


NAMED = 3  # terms of a line that get a warning each, if they are dropped
log = logging.getLogger("transformer")


class RequestParser:
    """Reads lines by `--tsv`, `--glossary` and `--keep`.

    Args:
      arguments: the command line.
      translator: of the run.

    Raises:
      UserError: the glossary or the regular expression is invalid, or the search cannot do it.
    """

    def __init__(self, arguments: DecodeArguments, translator: Translator) -> None:
        search = arguments.decoding
        self.translator = translator
        self.options = vars(search)
        self._warned = False
        can_require_terms = isinstance(search, BeamConfig) and search.groups == 1
        if (arguments.glossary or arguments.keep) and not can_require_terms:
            option = "glossary" if arguments.glossary else "keep"
            raise UserError(f"--{option}: only --method beam, without --groups, can find terms")
        path = arguments.glossary
        self.glossary = Glossary.read(path, arguments.keep) if path else Glossary({}, arguments.keep)
        self.arguments = arguments
        self.identity = (arguments.tsv, arguments.jsonl, self.glossary.entries, arguments.keep)

    def __call__(self, number: int, line: str) -> TranslationRequest:
        """What a line asks for. Raises UserError as `request_of`, and for an unknown language."""
        if "\t" in line and not (self.arguments.tsv or self.arguments.jsonl or self._warned):
            self._warned = True
            log.warning("line %d: a tab is read as a space; --tsv reads a prefix and terms after it", number)
        request = request_of(number, line, self.arguments, self.translator.task.data)
        with prefixed_errors(f"line {number}: " if any(request[4:]) else ""):
            for side in range(len(SIDES)):
                self.translator.task.start(request, side)
        source = request.source
        line_terms = tuple(filter(has_text, map(without_formatting, request.terms)))
        if not has_text(source) and (has_text(request.prefix) or line_terms):
            log.warning("line %d: an empty sentence stays empty; its prefix and terms do not count", number)
        glossary_terms = tuple(self._glossary_terms(number, request, line_terms))
        return request._replace(terms=line_terms + glossary_terms)

    def _glossary_terms(
        self, number: int, request: TranslationRequest, line_terms: tuple[str, ...]
    ) -> Iterator[str]:
        """The terms of the glossary that a line does not have itself. Those that no search can hold are
        dropped, with a warning."""
        with prefixed_errors(f"line {number}: "):
            terms = self.glossary.terms(own_sentence(request.source, self.translator.task.data))
        glossary_terms = [text for text in terms if text not in line_terms]
        if not glossary_terms:
            return
        size_of = functools.cache(lambda text: len(self.translator.task.text_steering.term(text)))
        settings = self.translator.settings(None, self.options)
        room = room_of(self.translator.task, request._replace(prefix="", terms=()), settings)
        room -= sum(map(size_of, line_terms))
        required = set(line_terms)
        dropped = Counter[str]()
        for text in glossary_terms:
            try:
                if len(required | {text}) > SIZES[-1]:
                    raise UserError(f"the term {brief(text)} is one more than the {SIZES[-1]} of a search")
                if (size := size_of(text)) > room:
                    raise UserError(f"the output has no room for the term {brief(text)} (see --extra-length)")
            except UserError as error:
                dropped[str(error)] += 1
            else:
                room -= size
                required.add(text)
                yield text
        for why, count in itertools.islice(dropped.items(), NAMED):
            log.warning("line %d: %s; it is dropped%s", number, why, f" {count:,} times" * (count > 1))
        if more := sum(dropped.values()) - sum(list(dropped.values())[:NAMED]):
            log.warning("line %d: %s more terms are dropped", number, f"{more:,}")
