"""Parses the command line of a command. The help has the docstring of every option in whole paragraphs."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from transformer.cli.guard import named_command, printable_help
from transformer.config.names import Here, hint
from transformer.config.options import flatten
from transformer.config.ranges import LONGEST, check_ranges, ranges_of
from transformer.runtime.errors import UserError
from transformer.runtime.invocation import program

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T")


def parsed_command(arguments_class: type[T], name: str) -> Callable[[Callable[[T], None]], Callable[[], int]]:
    """As `named_command`, of a function of the arguments: the command line is parsed as this dataclass."""

    def framed(function: Callable[[T], None]) -> Callable[[], int]:
        return named_command(name)(
            functools.wraps(function)(lambda words: function(parse(arguments_class, words, name)))
        )

    return framed


def parse(
    arguments_class: type[T],
    arguments: list[str],
    command: str,
    *,
    default: T | None = None,
    about: str = "",
    names: Mapping[str, Here] = MappingProxyType({}),
    hidden: Container[str] = (),
) -> T:
    """The arguments of a command.

    Args:
      arguments_class: the dataclass of its arguments; their docstrings are the help.
      arguments: the command line, without the program.
      command: its name in `COMMANDS`, and what follows it in the line of usage.
      default: the values of arguments that are not given. None: those of the dataclass.
      about: what the command does. Empty: the docstring of the dataclass.
      names: of options in other toolkits, which get a hint.
      hidden: fields of `arguments_class` that the help leaves out.

    Raises:
      UserError: an option has a name of another toolkit, or is out of its range.
    """
    options = {name.removeprefix("config.") for name in flatten(cast(Any, default))} if default else set()
    for word in arguments:
        if here := hint(word, names, options):
            raise UserError(f"{word.partition('=')[0]}: there is no such option; {here}")
    name, _, rest = command.partition(" ")
    registry = ConstructorRegistry()
    registry.struct_rule(functools.partial(_options, hidden=hidden))
    with printable_help():
        parsed: Any = tyro.cli(
            arguments_class,
            args=arguments,
            default=default,
            prog=" ".join(filter(None, (program(name), rest))),
            description=about or paragraphs(arguments_class.__doc__ or ""),
            registry=registry,
        )
    if ranges_of(cast(Any, arguments_class)):
        check_ranges("", parsed)
    return cast(T, parsed)


def _options(info: StructTypeInfo, hidden: Container[str]) -> StructConstructorSpec | None:
    """The fields of a dataclass with their values. (tyro alone joins a line to the one before only if it
    begins with a letter, and keeps the indentation of the others.)"""
    if not dataclasses.is_dataclass(info.type):
        return None
    hints = get_type_hints(info.type, include_extras=True)
    fields = []
    for item in dataclasses.fields(info.type):
        name, value = item.name, _value(info, item)
        shown = [tyro.conf.Suppress] if name in hidden else _shown(info.type, name, value)
        fields.append(
            StructFieldSpec(
                name=name,
                type=cast(Any, Annotated[(hints[name], *shown)]) if shown else hints[name],
                default=value,
                helptext=functools.partial(help_of, info.type, name, value),
            )
        )
    return StructConstructorSpec(instantiate=info.type, fields=tuple(fields))


def _value(info: StructTypeInfo, item: "dataclasses.Field[Any]") -> Any:
    """The value of a field if the command line does not give it."""
    if dataclasses.is_dataclass(info.default):
        return getattr(info.default, item.name)
    if info.default is tyro.MISSING:
        return tyro.MISSING
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return tyro.MISSING_NONPROP if item.default is dataclasses.MISSING else item.default


def _shown(options_class: "type[DataclassInstance]", name: str, value: Any) -> list[Any]:
    """How the help shows the value of a field, where it is not "(default: VALUE)"."""
    if "Default: " in texts(options_class).get(name, "") and value in (None, ()):
        return [tyro.conf.arg(help_behavior_hint="")]
    return [tyro.conf.arg(help_behavior_hint="(default: none)")] if value in ("", ()) else []


def help_of(options_class: "type[DataclassInstance]", name: str, value: Any) -> str | None:
    """The text of a field; of a section without one, the docstring of its options."""
    text = texts(options_class).get(name)
    if text is None and dataclasses.is_dataclass(value):
        return paragraphs(value.__doc__ or "")
    limits = ranges_of(options_class).get(name)
    if text and limits and limits.most < LONGEST:
        first, *more = text.split("\n\n")
        return "\n\n".join([f"{first} {limits.bounds.capitalize()}.", *more])
    return text


@functools.cache
def texts(options_class: type) -> dict[str, str]:
    """The docstrings of the fields of a dataclass or a named tuple, in paragraphs. A field that a subclass
    repeats without one has that of the class below."""
    docstrings = {}
    for base in reversed(options_class.__mro__):
        if not (dataclasses.is_dataclass(base) or "_fields" in vars(base)):
            continue
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # defined where there is no file
            continue
        assert isinstance(definition, ast.ClassDef)
        for statement, after in itertools.pairwise(definition.body):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docstrings[name] = paragraphs(text)
    if like := getattr(options_class, "IN_THE_ENCODER", None):
        for item in dataclasses.fields(options_class):
            text = texts(like)[item.name].partition(" None: ")[0]
            docstrings[item.name] = f"In the encoder: {text[0].lower()}{text[1:]}"
    return docstrings


def paragraphs(text: str) -> str:
    """A docstring without indentation, each paragraph on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))
