"""Bodies of requests as they are read, however clients send them: JSON also where a client sends a form or
does not say what it sends, as with curl, and a recording also where it is a file of a form."""

import json
from collections.abc import Collection
from email.message import Message as Header
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode

from transformer.runtime.errors import UserError, counted
from transformer.serve.gate import App, Message, Receive, Send, replayed
from transformer.serve.refusals import refusal_of

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"


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
      UserError: the header names no boundary between the parts of a form.
    """
    if content.startswith(FORM) and body.lstrip()[:1] not in (b"{", b"["):
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
        return Form({name: values[-1] for name, values in fields.items()}, [])
    return _parts(body, content) if content.startswith(MULTIPART) else None


def _parts(body: bytes, content: str) -> Form:
    """A form in parts (RFC 7578), such as that of curl -F."""
    header = Header()
    header["content-type"] = content
    boundary = header.get_boundary()
    if not boundary:
        raise UserError("the form names no boundary of its parts in its Content-Type")
    form = Form({}, [])
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode())[1:]:
        about, _, value = part.partition(b"\r\n\r\n")
        disposition = Header()
        for line in about.decode("utf-8", "replace").splitlines():
            name, _, text = line.partition(":")
            if name.strip().lower() == "content-disposition":
                disposition["content-disposition"] = text.strip()
        name = str(disposition.get_param("name", "", "content-disposition"))
        if disposition.get_filename() is not None:
            form.files.append(value)
        elif name:
            form.fields[name] = value.decode("utf-8", "replace")
    return form


class ReadBodies:
    """An ASGI application around another one, which gets JSON, or a recording and fields in the query of the
    address, where a client sent a form or did not say what it sends.

    Args:
      app: the other one.
      hearing: paths of requests whose bodies are recordings.
    """

    def __init__(self, app: App, hearing: Collection[str]) -> None:
        self.app, self.hearing = app, hearing

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        headers = dict(scope.get("headers", ()))
        content = headers.get(b"content-type", b"").decode("latin-1")
        hears = scope.get("path") in self.hearing
        is_form = content.startswith(MULTIPART if hears else (FORM, MULTIPART))
        if scope.get("method") != "POST" or not (is_form or (not content and not hears)):
            await self.app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")  # whole: the gate has read it
        query = scope.get("query_string", b"")
        try:
            form = form_of(body, content)
            if form and hears:
                body = _only_file(form)
                query = b"&".join(filter(None, [query, urlencode(form.fields).encode()]))
            elif form:
                body = json.dumps(form.fields).encode()
        except UserError as error:
            await refusal_of(error).response(scope, receive, send)
            return
        headers[b"content-type"] = b"application/octet-stream" if hears else JSON.encode()
        headers[b"content-length"] = str(len(body)).encode()
        changed = {"headers": list(headers.items()), "query_string": query}
        await self.app({**scope, **changed}, replayed(body, receive), send)


def _only_file(form: Form) -> bytes:
    """The file of a form. Raises UserError if there is none, or more than one."""
    if len(form.files) != 1:
        raise UserError(
            f"the form has {counted(len(form.files), 'file')}: send one recording, as the only file of a "
            "form or as the whole body"
        )
    return form.files[0]
