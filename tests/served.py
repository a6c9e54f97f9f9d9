"""Servers of tests: in this process, with a client that asks them."""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from small_translator import small_translator

from transformer.decoding.service.lanes import Preparation
from transformer.serve.app import server_app
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
