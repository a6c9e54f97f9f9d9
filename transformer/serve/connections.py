"""Connections of a server: how many there may be, and the time for the head of a request. A client that
connects and sends nothing, or a line of a head now and then, takes no room from the others."""

import asyncio
import logging
import resource
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

log = logging.getLogger("transformer")

HEAD = 10.0
"""Seconds in which the head of a request must arrive."""
OTHER_FILES = 128
"""Files that a server has open besides its connections."""
PIECE = 16 * 1024
"""Bytes that are read of a connection before others have their turn: a body may be many short chunks, each of
which takes time."""
LOGGED = 60.0
"""Seconds between two lines of the log about closed connections."""


MOST_UNREAD = 1024 * 1024
"""Bytes that a client may leave unread while it sends more, such as answers to its pings."""


class SocketConnection(AutoWebSocketsProtocol):  # type: ignore[misc, valid-type]
    """A WebSocket whose client is left if it sends and does not read: memory would fill with answers."""

    def data_received(self, data: bytes) -> None:
        """Reads a part of a message."""
        if self.transport.get_write_buffer_size() > MOST_UNREAD:
            self.transport.abort()
            return
        super().data_received(data)


class Connection(H11Protocol):
    """A connection that is closed if the head of a request takes too long. If there are as many as there may
    be (`limit_concurrency` of the server's config), the one that has waited longest without a request gives
    way to a new one."""

    _head: asyncio.TimerHandle | None = None
    _logged = -LOGGED
    """When the log last had a line about closed connections; of the class, since it is about all of them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for a request, after making room."""
        self._since = self.loop.time()
        if len(self.connections) >= cast(int, self.limit_concurrency) - 1:
            idle = [one for one in self.connections if isinstance(one, Connection) and one.is_idle]
            if idle:
                min(idle, key=lambda one: one._since).give_way()
        transport.max_size = PIECE  # type: ignore[attr-defined]
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request."""
        if self.is_idle and self._head is None:
            self._wait_for_head()
        super().data_received(data)
        if not self.is_idle or self.transport.get_protocol() is not self:  # a WebSocket from here on
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def give_way(self) -> None:
        """Closes the connection, since another one needs the room."""
        if self.loop.time() - Connection._logged >= LOGGED:
            Connection._logged = self.loop.time()
            log.warning(
                "%d connections are open, as many as may: idle ones are closed (--limits.connections)",
                len(self.connections),
            )
        self.connections.discard(self)  # closing takes another turn of the loop
        self.transport.abort()

    def _wait_for_head(self) -> None:
        self._since = self.loop.time()
        self._head = self.loop.call_later(HEAD, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def room_for(connections: int) -> int:
    """How many connections there can be. Raises the limit of open files as far as the system allows.

    Args:
      connections: how many are needed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            room = max(soft - OTHER_FILES, soft // 2)
            log.warning(
                "--limits.connections %d: the system allows %d open files, which is room for %d connections",
                *(connections, soft, room),
            )
            return room
    return connections
