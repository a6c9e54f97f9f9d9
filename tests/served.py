"""Servers of tests: in this process, with a client that asks them."""

import contextlib
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from small_translator import small_translator

from transformer.decoding.service.lanes import Preparation
from transformer.serve.app import server_app
from transformer.serve.server import Server, bound, config_of
from transformer.serve.services.limits import ALLOWED, Limits
from transformer.serve.services.service import Service
from transformer.serve.services.translation import Translations


def translations(
    name: str = "small", limits: Limits | None = None, allowed: Any = ALLOWED, **search: Any
) -> Translations:
    """A run that translates between invented languages, with random parameters."""
    return Translations(name, small_translator(), allowed, limits or Limits(), ("xx", "yy"), search)


@contextlib.contextmanager
def asked(
    *services: Service,
    limits: Limits | None = None,
    token: str = "",
    warm: bool = False,
    hosts: Collection[str] | None = None,
) -> Iterator[TestClient]:
    """A client of a server in this process, which is ready. With `warm` all programs are compiled, without
    it when they are needed."""
    with pytest.MonkeyPatch.context() as patch:
        for service in () if warm else services:  # not the class: other clients may be open
            patch.setattr(service, "preparation", lambda: Preparation(()))
        app = server_app(services, limits or Limits(), token, hosts=hosts)
        with TestClient(app, raise_server_exceptions=False) as client:
            while not app.state.readiness.is_complete:
                pass
            yield client


@contextlib.contextmanager
def served(service, limits=None, token=""):
    """The address of a server with connections of its own, which compiles programs when they are needed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Service, "preparation", lambda service: Preparation(()))
        limits = limits or Limits()
        app = server_app([service], limits, token)
        server, listening = Server(config_of(app, limits)), bound("127.0.0.1", 0)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
            listening.close()


def all_of(connection):
    """What arrives until a connection is closed."""
    parts = []
    while part := connection.recv(1000):
        parts.append(part)
    return b"".join(parts)
