"""Bodies of requests as JSON, within bounds: no body that is allowed takes long to read, since all requests
of a server wait while one is read."""

import json
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException, Request
from fastapi.routing import APIRoute
from pydantic_core import from_json

from transformer.runtime.errors import shortened
from transformer.serve.refusals import INVALID

VALUES = 20_000
"""Values in the lists of a body, at all depths; lists, objects and fields."""
STRUCTURE = b"[", b"{", b'":'
"""What begins a list, an object and the value of a field. Texts have few of them."""
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
            raise HTTPException(INVALID, shortened(f"{name}: the body has it twice; send it once"))
        names.add(name)


def check_size(value: Any, name: str = "the body") -> int:
    """The number of names in all objects. Raises HTTPException if lists have too many values, or an object
    too many names: what is wrong with each would be noted otherwise."""
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
    return names
