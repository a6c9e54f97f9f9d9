"""Which names of the server and which pages are answered. A stranger's page in somebody's browser can reach a
server on that person's machine: by its address, or by a stranger's name that leads there (DNS rebinding). So
a server without a token answers only its own names, and none answers pages of other servers."""

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from transformer.serve.asgi import App, Message, Receive, Send, header
from transformer.serve.refusals import Refusal

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of a machine that only the machine itself reaches."""
FORBIDDEN = 403
OF_OTHERS = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site by which a browser says that a page of another server asks. Another port of the
same machine is the same site."""


class Origins:
    """An ASGI application around another one.

    Args:
      app: the other one.
      hosts: names of the server that are answered, without ports. None: all.
    """

    def __init__(self, app: App, hosts: Collection[str] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] in ("http", "websocket"):
            try:
                self._check(scope)
            except Refusal as refusal:
                if scope["type"] == "http":
                    await refusal.response(scope, receive, send)
                else:  # a handshake that is refused gets 403
                    await receive()
                    await send({"type": "websocket.close", "code": 1008, "reason": refusal.message[:120]})
                return
        await self.app(scope, receive, send)

    def _check(self, scope: Message) -> None:
        """Raises Refusal if a request is not answered."""
        host = header(scope, b"host")
        if self.hosts is not None and name_of(host) not in self.hosts:
            raise Refusal(
                FORBIDDEN,
                f"the server is not called {name_of(host)!r}: start it with --allow-host or with a token",
            )
        origin = header(scope, b"origin")
        if origin and address_of(origin) != host.lower():
            raise Refusal(FORBIDDEN, f"the page is of {origin!r}, and only pages of this server are answered")
        is_opened = scope.get("method") == "GET" and header(scope, b"sec-fetch-mode") == "navigate"
        if not origin and not is_opened and header(scope, b"sec-fetch-site") in OF_OTHERS:
            raise Refusal(
                FORBIDDEN, "the page is of another server, and only pages of this server are answered"
            )


def hosts_of(host: str, token: str, allowed: Collection[str]) -> Collection[str] | None:
    """The names of a server that are answered; None: all.

    Args:
      host: the address that it listens at.
      token: that requests must bring; empty: none.
      allowed: further names. If there are some, no others are answered.
    """
    if allowed or (not token and is_loopback(host)):
        return {*LOOPBACK, *(name.lower() for name in allowed)}
    return None


def is_loopback(host: str) -> bool:
    """Whether only the machine itself reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK


def name_of(host: str) -> str:
    """The name in a Host header, without port and brackets; empty if there is none, or more than a name."""
    if any(sign in host for sign in "@/\\?#"):
        return ""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def address_of(origin: str) -> str:
    """The host and port of an origin; empty if it has none, as `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
