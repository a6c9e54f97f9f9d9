"""Bodies of requests within bounds, however clients send them: JSON, forms, files. No body that is allowed
takes long to read, since all requests of a server wait while one is read."""

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode

from fastapi import HTTPException, Request
from fastapi.routing import APIRoute
from pydantic_core import from_json

from transformer.runtime.errors import counted
from transformer.serve.gate import OPEN
from transformer.serve.refusals import INVALID, App, Message, Receive, Refusal, Send, header, replayed

VALUES = 20_000
"""Values in the lists of a body, at all depths; lists, objects and fields."""
STRUCTURE = b"[", b"{", b'":'
"""What begins a list, an object and the value of a field. Texts have few of them."""
MOST_BITS = 64
NAMES = 100
"""Names in an object of a body."""
FAULTS = {
    "recursion limit": "it is nested too deeply",
    "number out of range": "it has a number with too many digits",
    "hex escape": "it has half of a surrogate pair, or another escape that is no character",
}
"""Of the reader's messages those that say little, and what is said instead."""


class BoundedRoute(APIRoute):
    """A route whose requests have bodies of JSON within bounds."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """The handler, which gets such a request."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Any:
            return await handle(BoundedRequest(request.scope, request.receive))

        return bounded


class BoundedRequest(Request):
    """A request whose body is read by `json_of`."""

    async def json(self) -> Any:
        """The body."""
        return json_of(await self.body())


def json_of(body: bytes, name: str = "the body") -> Any:
    """A body as JSON.

    Args:
      body: of a request.
      name: of the body, for messages.

    Raises:
      HTTPException: it is none, or has more values than may be.
    """
    if sum(map(body.count, STRUCTURE)) > VALUES:
        raise HTTPException(INVALID, f"{name} has more than {VALUES:,} lists, objects and fields: divide it")
    try:
        text = body.decode("utf-8-sig")
        value = from_json(text)
    except UnicodeDecodeError as error:
        raise HTTPException(INVALID, f"{name} is not UTF-8: byte {error.start + 1:,}") from error
    except ValueError as error:
        fault = next((said for part, said in FAULTS.items() if part in str(error)), str(error))
        raise HTTPException(INVALID, f"{name} is not JSON: {fault}") from error
    if text.count(":") > check_size(value, name):  # as many as there are names, unless texts have some
        json.loads(text, object_pairs_hook=_check_repeated, parse_int=str, parse_float=str)
    return value


def _check_repeated(pairs: list[tuple[str, Any]]) -> None:
    """Raises HTTPException if an object has a name twice: readers differ in which of its values they take."""
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            raise HTTPException(INVALID, f"{name}: the body has it twice; send it once")
        names.add(name)


def check_size(value: Any, name: str = "the body") -> int:
    """The number of names in all objects. Raises HTTPException if lists have too many values, or an object
    too many names: what is wrong with each would be noted otherwise. So it does if a number has more than 64
    bits, which takes long to write."""
    values, count, names = [value], 0, 0
    while values:
        inner = values.pop()
        if isinstance(inner, dict):
            if len(inner) > NAMES:
                raise HTTPException(INVALID, f"{name} has {len(inner):,} fields, more than there are")
            names += len(inner)
            values += inner.values()
        elif isinstance(inner, list):
            count += len(inner)
            if count > VALUES:
                raise HTTPException(INVALID, f"{name} has lists of more than {VALUES:,} values: divide them")
            values += inner
        elif isinstance(inner, int) and inner.bit_length() > MOST_BITS:
            raise HTTPException(INVALID, f"{name} has a number of more than {MOST_BITS} bits")
    return names


# Bodies of requests as they are read, however clients send them: JSON also where a client sends a form or
# does not say what it sends, as with curl, and a recording or a picture also where it is a file of a form.


JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
FIELDS = 100
"""Fields that a form, or the query of an address, may have."""
ESCAPES = 100_000
"""Bytes of a form that may be escaped, which take long to read."""
LONGEST_FIELDS = 10_000
"""Characters in all fields beside a file: what they are, such as languages, is short."""
LONGEST_HEAD = 4096
"""Bytes of the lines before the content of a part."""
LONGEST_CHARACTER = 4
"""Bytes of one in UTF-8."""
SEARCHED = 1_000_000
"""Bytes of a form that are searched at once."""
ALL_HEADS = 32_768
"""The most bytes of the heads of all parts of a form together."""
PARAMETER = re.compile(r""";((?:[^;"]|"(?:[^"\\]|\\.)*+"?)*+)""", re.DOTALL)
"""One of a header (RFC 9110, 5.6.6), such as `; name="text"`. It fits at every `;` outside of one, so that
any header is read in one pass."""


class Form(NamedTuple):
    """What a client sends as a form."""

    fields: dict[str, str]
    files: list[bytes]


def form_of(body: bytes, content: str, longest: int | None = None) -> Form | None:
    """A form; None for another body, such as JSON of which the header says that it is a form.

    Args:
      body: of the request.
      content: its Content-Type, or empty.
      longest: characters of all fields beside a file. None: any number.

    Raises:
      Refusal: it has too many or too long fields or one twice, or its header names no boundary between its
        parts.
    """
    if content.lower().startswith(FORM) and body.removeprefix(BOM_UTF8).lstrip()[:1] not in (b"{", b"["):
        if body.count(b"%") > ESCAPES:
            raise Refusal(INVALID, f"the form has more than {ESCAPES:,} escaped bytes: send JSON")
        try:
            fields = parse_qs(body.decode("utf-8", "replace"), True, max_num_fields=FIELDS)
        except ValueError as error:
            raise Refusal(INVALID, f"the form has more than {FIELDS} fields") from error
        if repeated := [name for name, values in fields.items() if len(values) > 1]:
            raise _twice(repeated[0])
        return Form({name: value for name, (value,) in fields.items()}, [])
    return _parts(body, content, longest) if content.lower().startswith(MULTIPART) else None


def _parts(body: bytes, content: str, longest: int | None) -> Form:
    """A form in parts (RFC 7578), such as that of curl -F."""
    boundary = parameters_of(content).get("boundary")
    if not boundary:
        raise Refusal(INVALID, "the form names no boundary of its parts in its Content-Type")
    form = Form({}, [])
    read, size = 0, 0
    for count, part in enumerate(_divided(b"\r\n" + body, b"\r\n--" + boundary.encode("latin-1"))):
        if part.startswith(b"--"):
            break  # the end
        if count >= FIELDS:
            raise Refusal(INVALID, f"the form has more than {FIELDS} fields")
        end = part.find(b"\r\n\r\n", 0, LONGEST_HEAD + len(b"\r\n\r\n"))
        about, value = (part[:end], part[end + 4 :]) if end >= 0 else (part, b"")
        read += len(about)
        if len(about) > LONGEST_HEAD:
            raise Refusal(INVALID, f"a part of the form has a head of more than {LONGEST_HEAD:,} bytes")
        if read > ALL_HEADS:
            raise Refusal(
                INVALID, f"the heads of the form's parts have more than {ALL_HEADS:,} bytes together"
            )
        named: dict[str, str] = {}
        for line in about.decode("utf-8", "replace").splitlines():
            kind, _, text = line.partition(":")
            if kind.strip().lower() == "content-disposition":
                named = parameters_of(text)
        name = named.get("name", "")
        if named.keys() & {"filename", "filename*"}:
            form.files.append(value)
            continue
        size += len(value)
        if longest is not None and size > longest * LONGEST_CHARACTER:
            raise _too_long(longest)
        if name in form.fields:
            raise _twice(name)
        if name:
            form.fields[name] = value.decode("utf-8", "replace")
    if longest is not None and sum(map(len, form.fields.values())) > longest:
        raise _too_long(longest)
    return form


def _divided(text: bytes, separator: bytes) -> Iterator[bytes]:
    """What is after each separator, until the next. It is looked for piece by piece, since other threads
    wait meanwhile."""
    start = 0
    for first in range(0, len(text), SEARCHED):
        last = first + SEARCHED + len(separator) - 1
        at = max(first, start)
        while (at := text.find(separator, at, last)) >= 0:
            if start:
                yield text[start:at]
            at = start = at + len(separator)
    if start:
        yield text[start:]


def _too_long(longest: int) -> Refusal:
    return Refusal(INVALID, f"the fields beside the file have more than {longest:,} characters")


def parameters_of(value: str) -> dict[str, str]:
    """The parameters of a header by their names, such as the boundary of a form, without quotes.

    Args:
      value: of the header.
    """
    parameters: dict[str, str] = {}
    for part in PARAMETER.findall(value):
        name, _, text = part.partition("=")
        text = text.strip()
        if text[:1] == '"':
            text = re.sub(r"\\(.)", r"\1", text[1:].removesuffix('"'))
        parameters.setdefault(name.strip().lower(), text)
    return parameters


def _twice(name: str) -> Refusal:
    return Refusal(INVALID, f"{name}: the form has it twice; send it once")


class ReadBodies:
    """An ASGI application around another one, which gets JSON, or a file and fields in the query of the
    address, where a client sent a form or did not say what it sends.

    Args:
      app: the other one.
      hearing: paths of requests whose bodies are files, such as recordings.
    """

    def __init__(self, app: App, hearing: Collection[str]) -> None:
        self.app, self.hearing = app, hearing

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        headers = dict(scope.get("headers", ()))
        content = header(scope, b"content-type") if scope["type"] == "http" else ""
        hears = scope.get("path") in self.hearing
        query = scope.get("query_string", b"")
        if scope.get("path") in OPEN:  # whatever comes with it
            await self.app(scope, receive, send)
            return
        if scope["type"] == "http" and query.count(b"&") >= FIELDS:
            raise Refusal(INVALID, f"the address has more than {FIELDS} fields")
        is_form = content.lower().startswith(MULTIPART if hears else (FORM, MULTIPART))
        if scope.get("method") != "POST" or not (is_form or (not content and not hears)):
            await self.app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")  # whole: the gate has read it
        if is_form:
            body, fields = await asyncio.to_thread(_of_form, body, content, hears)
            query = b"&".join(filter(None, [query, fields]))
        headers[b"content-type"] = b"application/octet-stream" if hears else JSON.encode()
        headers[b"content-length"] = str(len(body)).encode()
        changed = {"headers": list(headers.items()), "query_string": query}
        await self.app({**scope, **changed}, replayed(body, receive), send)


def _of_form(body: bytes, content: str, hears: bool) -> tuple[bytes, bytes]:
    """What a form is read as: JSON, or with `hears` its file, and its fields as those of an address."""
    form = form_of(body, content, LONGEST_FIELDS if hears else None)
    if form and hears:
        return _only_file(form), urlencode(form.fields).encode()
    return json.dumps(form.fields, ensure_ascii=False).encode() if form else body, b""


def _only_file(form: Form) -> bytes:
    """The file of a form. Raises Refusal if there is none, or more than one."""
    if len(form.files) != 1:
        raise Refusal(
            INVALID,
            f"the form has {counted(len(form.files), 'file')}: send one, in a form or as the whole body",
        )
    return form.files[0]
