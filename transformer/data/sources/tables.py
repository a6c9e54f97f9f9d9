"""Text in tables with named columns: JSON lines, columns between tabs, and what other programs write."""

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config.corpus import DataConfig, TextTaskName, text_suffix
from transformer.data.remote import fetched
from transformer.data.sources.context import TURN
from transformer.data.sources.exchange import TRANSLATION, Rows, arrow_rows, parquet_rows, xml_rows
from transformer.data.sources.text_files import bad_line, one_line, readable_lines, refuse_bad_lines
from transformer.data.store import Progress, TextRecord
from transformer.data.trees import linearised, read_tree, simplified, tree_texts
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import atomic_open, brief, brief_json, cache_root, parse_row, unreadable
from transformer.runtime.text import without_invisible

SEPARATOR = ", "
"""Between the labels of a set."""
TARGET_LENGTH = "target-length"
"""An input that needs no column: the number of words of the target. (Fan et al. 2018 tell a model the
length of a summary, in bins.)"""
SOURCE, TARGET = "source", "target"
NAME_LANGUAGES = "give --data.source-language and --data.target-language, or --data.inputs and --data.target"


def check_no_tables(
    data: object,
    reads: str = "plain text",
    instead: str = "write the text into a separate file, such as with jq -r .text",
    suffixes: Sequence[str] = (".jsonl", ".tsv"),
) -> None:
    """Raises UserError if a file of a system that reads no named columns is named as a table.

    Args:
      data: options with the files of the splits.
      reads: what the system reads, for the message.
      instead: what to do, for the message.
      suffixes: of names of tables.
    """
    for split in "train", "validation", "test":
        path = getattr(data, split, None)
        if path and text_suffix(path).lower() in suffixes:
            raise UserError(f"--data.{split} {path}: this system reads {reads}, not rows; {instead}")


def joined(texts: Mapping[str, str], inputs: Sequence[str], group: str = "") -> str:
    """The text that a model reads of named inputs: each after its name if there are several, as Raffel et al.
    (2020, appendix D) write them; before them, if there are groups, the one of the row."""
    several = " ".join(f"{name}: {texts[name]}" for name in inputs)
    text = several if len(inputs) > 1 else texts[inputs[0]]
    return f"{group}: {text}" if group else text


def read_table(path: Path, data: DataConfig, further: set[str] | None = None) -> Iterator[TextRecord]:
    """Yields the rows of a file.

    Args:
      path: ends with .jsonl, .tsv, .parquet, .arrow, .tmx or .xml; with trees, also .mrg: a file of a
        treebank.
      data: names the columns.
      further: gets the columns of further references that a row has.

    Raises:
      UserError: as `read_lines`; a row lacks a column or has something else than text there (the message
        names the line).
    """
    names = [name for name in (*data.input_names, *data.target) if name != TARGET_LENGTH]
    names = names if data.names_columns else [*names, *filter(None, data.named_languages)]
    readers: dict[str, Callable[[Path], Rows]] = {
        ".jsonl": _objects,
        ".tsv": _rows,
        ".parquet": functools.partial(parquet_rows, columns=names),
        ".arrow": functools.partial(arrow_rows, columns=names),
        ".tmx": functools.partial(_units, data=data),
        ".xml": xml_rows,
    }
    if data.task == "trees":
        readers[".mrg"] = functools.partial(_sentences, data=data)
    read = readers.get(text_suffix(path))
    if not read:
        *endings, last = readers
        raise UserError(f"{path}: its name must end with {', '.join(endings)} or {last}")
    for number, row in read(path):
        row = _of_languages(row, data)
        if further is not None:
            further.update(name for name in data.target[1:] if row.get(name))
        try:
            record = record_of(row, data)
        except UserError as error:
            separated = " (columns have tabs between them)" if read is _rows and len(row) == 1 else ""
            languages = f"; {NAME_LANGUAGES}" if SOURCE not in row and not data.names_columns else ""
            bad_line(path, number, *_parted(f"{error}{separated}{languages}"))
        else:
            yield record


def _of_languages(row: Mapping[str, Any], data: DataConfig) -> Mapping[str, Any]:
    """A row whose columns are languages, perhaps within a column `translation`: those of the options are also
    its source and target."""
    if isinstance(translation := row.get(TRANSLATION), Mapping):
        row = {name: value for name, value in row.items() if name != TRANSLATION} | {**translation}
    if data.names_columns or SOURCE in row:
        return row
    sides = zip((SOURCE, TARGET), data.named_languages, strict=True)
    columns = {side: _column(row, code) for side, code in sides if code}
    return {**row, **{side: row[column] for side, column in columns.items() if column is not None}}


def _column(row: Mapping[str, Any], code: str) -> str | None:
    """The column of a language: en, or else such as en-GB."""
    names = (name for name in row if re.split("[-_]", name.lower())[0] == code.lower())
    return code if code in row else next(names, None)


def _units(path: Path, data: DataConfig) -> Rows:
    """The units of a translation memory. One without a language that is read has no text, so that training
    leaves it out. Raises UserError if no unit has all of them."""
    needed = {name for name in (*data.input_names, data.target[0]) if name != TARGET_LENGTH}
    languages, is_usable = dict[str, None](), False
    for number, row in xml_rows(path):
        named = _of_languages(row, data)
        is_whole = named.keys() >= needed
        is_usable |= is_whole
        languages |= dict.fromkeys(row)
        yield number, named if is_whole else dict.fromkeys(needed, "")
    if not is_usable:
        languages_read = needed if data.names_columns else filter(None, data.named_languages)
        texts = " and ".join(sorted(languages_read)) or "known languages"
        existing = brief(", ".join(languages)) if languages else "no texts"
        raise UserError(f"{path}: no unit has texts in {texts}; there are {existing}: {NAME_LANGUAGES}")


def as_text(path: Path, data: DataConfig, progress: Progress) -> tuple[Path, Path]:
    """Writes the sources of a table into the lines of one file, and its targets into those of another, once.

    Args:
      path: of the table.
      data: names the columns, and the folder.
      progress: shows the progress.

    Raises:
      UserError: as `read_table`; it has no row; the files cannot be written.
    """
    key = (data.task, data.inputs, data.target[0], data.group, data.named_languages, data.drop_bad)
    file = fetched(path)
    try:
        status = file.stat()
        digest = hashlib.blake2b(
            repr((file.resolve(), status.st_size, status.st_mtime_ns, key)).encode(), digest_size=8
        )
        folder = cache_root(data.cache_dir) / "tables" / digest.hexdigest()
        names = folder / SOURCE, folder / TARGET
        if names[0].exists() and not data.drop_bad:  # else the lines that are left out are said again
            return names
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_open(names[0]) as sources, atomic_open(names[1]) as targets:
            for record in progress("reading, train", read_table(path, data), None):
                sources.write(f"{record.source}\n".encode())
                targets.write(f"{record.target}\n".encode())
            refuse_bad_lines()
            if not sources.tell():
                raise UserError(f"{path} is empty: there is no training text in it")
    except OSError as error:
        raise UserError(f"cannot prepare {path}: {unreadable(error)}; see --data.cache-dir") from error
    return names


def _parted(message: str) -> tuple[str, str]:
    """What a message shares with those about other rows, and what it says of its own."""
    for mark in (", not ", ": "):
        if mark in message:
            problem, _, detail = message.partition(mark)
            return problem, f"{mark}{detail}"
    return message, ""


def record_of(row: Mapping[str, Any], data: DataConfig) -> TextRecord:
    """The record of a row.

    Raises:
      UserError: a column is missing, or has something else than text.
    """
    first, *further = data.target
    check_inputs({TARGET_LENGTH: "", **row}, data)
    if first not in row:
        raise _missing(row, first)
    group = _text(row, data.group) if data.group else ""
    if data.group and not group:
        raise UserError(f"{data.group} is empty: it must say what is asked (--data.group)")
    target, *references = _targets(row, first, data.task)
    row = {TARGET_LENGTH: len(target.split()), **row}
    texts = {name: input_text(row, name, data.task) for name in data.inputs}
    if data.task == "trees" and len(texts) == 1:
        (sentence,) = texts.values()
        if sentence.split() != (words := list(read_tree(target).words())):
            raise UserError(
                f"the words of {first} are not those of {data.inputs[0]}: {brief(' '.join(words))}"
            )
    for name in further:
        references += _targets(row, name, data.task) if row.get(name) else []
    return TextRecord(joined(texts, data.inputs, group), target, tuple(references), group)


def check_inputs(row: Mapping[str, Any], data: DataConfig) -> None:
    """Raises UserError if a row lacks an input: in training and in every search, with the same sentence."""
    for name in data.input_names:
        if name not in row:
            how = " (--target-length 12)" if name == TARGET_LENGTH else ""
            columns = " and ".join(read for read in data.input_names if read != TARGET_LENGTH or how)
            raise UserError(f"{_missing(row, name)}; this model reads {columns}{how}")


def _missing(row: Mapping[str, Any], name: str) -> UserError:
    columns = [str(column) for column in row if column != TARGET_LENGTH]
    only = brief(", ".join(columns)) if columns else "an empty row"
    return UserError(f"{name} is missing: there is only {only}")


def input_text(row: Mapping[str, Any], name: str, task: TextTaskName) -> str:
    """The text of an input; of a list, its turns or, for a parser, its words.

    Raises:
      UserError: it is missing, or something else than text.
    """
    return (" " if task == "trees" else TURN).join(_texts(row, name))


def _targets(row: Mapping[str, Any], name: str, task: TextTaskName) -> list[str]:
    """The text or the texts of a column."""
    texts = _texts(row, name)
    if task == "label-sets":
        comma = SEPARATOR.strip()
        if isinstance(row.get(name), list | tuple) and (apart := [x for x in texts if comma in x]):
            raise UserError(f"{name}: the label {brief(apart[0])} has a comma, which is between labels")
        return [SEPARATOR.join(texts)]
    if not texts:
        raise UserError(f"{name} is an empty list: give at least one text")
    if task == "labels" and not all(texts):
        raise UserError(f"{name} is empty: a text needs a label")
    if task == "trees":
        try:
            return [linearised(read_tree(text)) for text in texts]
        except ValueError as error:
            raise UserError(f"{name} is no tree, such as (S (NP (DT the) (NN dog))): {error}") from None
    return texts


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    """The text of a column, or the texts of a list there."""
    values = row.get(name)
    if not isinstance(values, list | tuple):
        return [_text(row, name)]
    return [_text({name: value}, name) for value in values]


def _text(row: Mapping[str, Any], name: str) -> str:
    """The text of a column in one line; a number as it is written."""
    value = row[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise UserError(f"{name} must be text, not {brief_json(value)}")
    return without_invisible(one_line(value))


def _sentences(path: Path, data: DataConfig) -> Rows:
    """The words and the simplified trees of a file of a treebank. Sentences of traces only are left out."""
    if len(data.inputs) > 1:
        raise UserError(f"{path}: a file of a treebank has one input, its words; leave out --data.inputs")
    for number, text in tree_texts(readable_lines(path)):
        try:
            tree = read_tree(text)
        except ValueError as error:
            bad_line(path, number, str(error))
            continue
        if simple := simplified(tree):
            yield number, {data.inputs[0]: list(simple.words()), data.target[0]: str(simple)}


def _objects(path: Path) -> Rows:
    """The objects of JSON lines. Empty lines are left out."""
    for number, line in readable_lines(path):
        if not line.strip():
            continue
        try:
            row = parse_row(line)
        except (ValueError, RecursionError) as error:
            bad_line(path, number, "each line must be a JSON object", f" ({error})")
        else:
            yield number, row


def _rows(path: Path) -> Rows:
    """The rows of a table whose first line names the columns."""
    names: list[str] = []
    for number, line in readable_lines(path):
        columns = line.split("\t")
        if not names:
            names = columns
            if len(set(names)) < len(names):
                raise UserError(f"{path}, line 1: two columns have the same name")
        elif len(columns) != len(names):
            bad_line(path, number, f"{counted(len(columns), 'column')}, but line 1 names {len(names)}")
        else:
            yield number, dict(zip(names, columns, strict=True))
