"""Runs the application until a signal, and then until what was begun is answered."""

import contextlib
import gc
import os
import signal
import socket
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client import start_http_server

from transformer.runtime.errors import UserError
from transformer.serve.app import server_app
from transformer.serve.connections import Connection, SocketConnection, room_for
from transformer.serve.limits import Limits
from transformer.serve.listening import LONGEST_MESSAGE
from transformer.serve.metrics import Metrics
from transformer.serve.origins import hosts_of
from transformer.serve.service import Service

IDLE = 75
"""Seconds for which a connection without requests stays open: longer than clients and proxies usually keep it
themselves, so that none sends a request while it is closed here."""


class Server(uvicorn.Server):
    """A server that ends without an error if it is asked to end. It begins no request then, and answers those
    that it has begun. A second signal ends it at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As that of `uvicorn.Server`, without raising signals again at the end."""
        before: dict[int, Any] = {}
        try:
            for number in (int(signal.SIGTERM), int(signal.SIGINT)):
                before[number] = signal.signal(number, self.handle_exit)
        except ValueError:  # not the main thread, as in tests
            pass
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server, and the process at once if it was asked before."""
        if self.should_exit:
            print("Stopped: what was begun is lost", flush=True)
            os._exit(128 + sig)  # threads may be compiling
        self.should_exit = True


def serve(
    services: Sequence[Service],
    limits: Limits,
    token: str,
    host: str,
    port: int,
    allowed_hosts: Collection[str] = (),
    metrics_port: int | None = None,
) -> None:
    """Serves runs until SIGTERM or SIGINT.

    Args:
      services: of the runs.
      limits: of requests.
      token: that requests must bring; empty: none.
      host: the address to listen at.
      port: 0: any free one.
      allowed_hosts: names of the server that are answered besides those of `hosts_of`.
      metrics_port: serves the metrics without a token too. None: no port does.

    Raises:
      UserError: the address cannot be listened at, or the programs cannot be compiled.
    """
    start = time.monotonic()

    def tell(done: int, count: int) -> None:
        if done < count:
            print(f"{done} of {count} programs are compiled", flush=True)
        else:
            gc.freeze()  # what lives as long as the server: to look through it takes tenths of a second
            print(f"Ready after {time.monotonic() - start:.0f} s: all programs are compiled", flush=True)

    app = server_app(services, limits, token, tell, hosts_of(host, token, allowed_hosts))
    listening = bound(host, port)
    address = listening.getsockname()
    with listening, measured(app.state.metrics, host, metrics_port):
        print(
            f"Serving {', '.join(service.name for service in services)} at http://{host}:{address[1]}",
            flush=True,
        )
        Server(config_of(app, limits)).run([listening])
    if app.state.readiness.error:
        raise UserError(f"the programs could not be compiled: {app.state.readiness.error}")
    print("Stopped: all that was begun is answered", flush=True)


@contextlib.contextmanager
def measured(metrics: Metrics, host: str, port: int | None) -> Iterator[int | None]:
    """Serves metrics at a port of their own, if one is given, and yields it.

    Raises:
      UserError: it cannot be listened at.
    """
    if port is None:
        yield None
        return
    try:
        server, _ = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise UserError(f"--metrics-port {port}: {error.strerror or error}; choose another one") from error
    print(f"Metrics at http://{host}:{server.server_port}/metrics", flush=True)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def config_of(app: FastAPI, limits: Limits) -> uvicorn.Config:
    """How an application is served."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws=SocketConnection,
        loop="asyncio",  # whose transports read as much at once as they are told
        limit_concurrency=room_for(limits.connections) + 1,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        h11_max_incomplete_event_size=64 * 1024,
        ws_max_size=LONGEST_MESSAGE,
        ws_ping_interval=None,  # while sound waits to be heard, nobody reads answers to pings
        server_header=False,
    )


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at an address. Raises UserError if there can be none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
        except BaseException:
            listening.close()
            raise
        return listening
    except OSError as error:
        raise UserError(
            f"--host {host} --port {port}: {error.strerror or error}; choose another one"
        ) from error
