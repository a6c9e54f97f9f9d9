"""What a line of decode.py's input has beside a sentence: columns of --tsv, or fields of --jsonl."""

from transformer.cli.decode_arguments import DecodeArguments
from transformer.data.sources.text_files import one_line
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief, parse_object
from transformer.tasks.requests import TranslationRequest

COLUMNS = ("source", "prefix", "terms", "source_language", "target_language")


def request_of(number: int, line: str, arguments: DecodeArguments) -> TranslationRequest:
    """What a line asks for, by the options --tsv and --jsonl; without them it is a sentence. Empty values are
    as if they were not there.

    Raises:
      UserError: it has too many columns, or is no object with such fields; the message has its number.
    """
    if arguments.tsv and arguments.jsonl:
        raise UserError("--tsv and --jsonl: lines are either columns or objects; leave one of them out")
    if arguments.jsonl:
        return _of_object(number, line)
    if arguments.tsv:
        return _of_columns(number, line)
    return TranslationRequest(line)


def _of_columns(number: int, line: str) -> TranslationRequest:
    columns = line.split("\t")
    if len(columns) > len(COLUMNS):
        raise UserError(
            f"line {number}: {len(columns)} columns; --tsv reads a sentence, a prefix and terms, source and "
            "target language, with tabs between them"
        )
    source, prefix, terms, *languages = columns + [""] * (len(COLUMNS) - len(columns))
    source_language, target_language = (language.strip() or None for language in languages)
    listed = tuple(filter(None, map(str.strip, terms.split("|"))))
    return TranslationRequest(source, "", prefix, listed, source_language, target_language)


def _of_object(number: int, line: str) -> TranslationRequest:
    if not line.strip():
        return TranslationRequest("")
    try:
        fields = parse_object(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"line {number}: --jsonl reads a JSON object on each line ({error})") from None
    if unknown := sorted(fields.keys() - set(COLUMNS)):
        names = ", ".join(COLUMNS)
        raise UserError(f"line {number}: --jsonl has no field {brief(unknown[0])}; it reads {names}")
    terms = fields.get("terms") or []
    texts = {name: fields.get(name) or "" for name in COLUMNS if name != "terms"}
    for name, value in [*texts.items(), *(("terms", term) for term in terms if isinstance(terms, list))]:
        if not isinstance(value, str):
            raise UserError(f"line {number}: {name} must be text, not {brief(repr(value))}")
    if not isinstance(terms, list):
        raise UserError(f"line {number}: terms must be a list of words and phrases")
    languages = texts["source_language"] or None, texts["target_language"] or None
    return TranslationRequest(one_line(texts["source"]), "", texts["prefix"], tuple(terms), *languages)
