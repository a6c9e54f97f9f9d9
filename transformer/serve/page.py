"""The page that a server has: a form for what its runs can do."""

from collections.abc import Sequence

from transformer.serve.service import Service
from transformer.translator.explorer.page_files import PageFiles, page_of

FORM = PageFiles(
    "transformer",
    "form.html",
    scripts=("form.js", "microphone.js"),
    shared=("marked.js",),
    styles=("form.css",),
    package="transformer.serve",
    sources="connect-src 'self';",
)


def page_of_services(services: Sequence[Service]) -> str:
    """A form for the endpoints of runs."""
    return page_of([service.about() for service in services], FORM)
