"""The page that a server has."""

from collections.abc import Sequence

from transformer.serve.service import Service


def page_of_services(services: Sequence[Service]) -> str:
    """A form for the endpoints of runs."""
    return "<!doctype html><title>transformer</title>"
