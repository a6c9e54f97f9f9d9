"""What runs that see do for clients: captions of pictures."""

import io
from typing import Any, ClassVar

from transformer.runtime.files import Json
from transformer.serve.services.messages import Asked, Endpoint
from transformer.serve.services.service import Service
from transformer.systems.captioning.api import Captioner


class Captions(Service):
    """What a picture shows."""

    search = Endpoint(
        "/caption",
        "What a picture shows: the body is a PNG file.",
        Asked,
        {},
        hears=True,
        media="image/png",
    )
    loads: ClassVar = Captioner
    decoder: Captioner

    def record(self, picture: bytes, asked: Any) -> tuple[Any, Json]:
        """The pixels of a picture."""
        return self.decoder.task.seen(io.BytesIO(picture)), {}


SERVICE = Captions
