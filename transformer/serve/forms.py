"""Bodies of requests as they are read, however clients send them: JSON also where a client sends a form or
does not say what it sends, as with curl, and a recording or a picture also where it is a file of a form."""

import json
from codecs import BOM_UTF8
from collections.abc import Collection
from email.message import Message as Header
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode

from transformer.runtime.errors import counted, shortened
from transformer.serve.asgi import App, Message, Receive, Send, header, replayed
from transformer.serve.refusals import INVALID, Refusal

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
FIELDS = 100
"""Fields that a form may have."""


class Form(NamedTuple):
    """What a client sends as a form."""

    fields: dict[str, str]
    files: list[bytes]


def form_of(body: bytes, content: str) -> Form | None:
    """A form; None for another body, such as JSON of which the header says that it is a form.

    Args:
      body: of the request.
      content: its Content-Type, or empty.

    Raises:
      Refusal: it has too many fields or one twice, or its header names no boundary between its parts.
    """
    if content.startswith(FORM) and body.removeprefix(BOM_UTF8).lstrip()[:1] not in (b"{", b"["):
        try:
            fields = parse_qs(body.decode("utf-8", "replace"), True, max_num_fields=FIELDS)
        except ValueError as error:
            raise Refusal(INVALID, f"the form has more than {FIELDS} fields") from error
        if repeated := [name for name, values in fields.items() if len(values) > 1]:
            raise _twice(repeated[0])
        return Form({name: value for name, (value,) in fields.items()}, [])
    return _parts(body, content) if content.startswith(MULTIPART) else None


def _parts(body: bytes, content: str) -> Form:
    """A form in parts (RFC 7578), such as that of curl -F."""
    header = Header()
    header["content-type"] = content
    boundary = header.get_boundary()
    if not boundary:
        raise Refusal(INVALID, "the form names no boundary of its parts in its Content-Type")
    form = Form({}, [])
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), FIELDS + 2)[1:]
    if len(parts) > FIELDS + 1:
        raise Refusal(INVALID, f"the form has more than {FIELDS} fields")
    for part in parts:
        about, _, value = part.partition(b"\r\n\r\n")
        disposition = Header()
        for line in about.decode("utf-8", "replace").splitlines():
            name, _, text = line.partition(":")
            if name.strip().lower() == "content-disposition":
                disposition["content-disposition"] = text.strip()
        name = str(disposition.get_param("name", "", "content-disposition"))
        if disposition.get_filename() is not None:
            form.files.append(value)
        elif name in form.fields:
            raise _twice(name)
        elif name:
            form.fields[name] = value.decode("utf-8", "replace")
    return form


def _twice(name: str) -> Refusal:
    return Refusal(INVALID, shortened(f"{name}: the form has it twice; send it once"))


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
        is_form = content.startswith(MULTIPART if hears else (FORM, MULTIPART))
        if scope.get("method") != "POST" or not (is_form or (not content and not hears)):
            await self.app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")  # whole: the gate has read it
        query = scope.get("query_string", b"")
        form = form_of(body, content)
        if form and hears:
            body = _only_file(form)
            query = b"&".join(filter(None, [query, urlencode(form.fields).encode()]))
        elif form:
            body = json.dumps(form.fields).encode()
        headers[b"content-type"] = b"application/octet-stream" if hears else JSON.encode()
        headers[b"content-length"] = str(len(body)).encode()
        changed = {"headers": list(headers.items()), "query_string": query}
        await self.app({**scope, **changed}, replayed(body, receive), send)


def _only_file(form: Form) -> bytes:
    """The file of a form. Raises Refusal if there is none, or more than one."""
    if len(form.files) != 1:
        raise Refusal(
            INVALID,
            f"the form has {counted(len(form.files), 'file')}: send one, in a form or as the whole body",
        )
    return form.files[0]
