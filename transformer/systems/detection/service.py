"""What runs that see do for clients: the objects of pictures."""

import io
from typing import Any, ClassVar

from transformer.runtime.files import Json
from transformer.serve.services.messages import Asked, Endpoint
from transformer.serve.services.service import Service
from transformer.systems.detection.api import Detector


class Objects(Service):
    """The objects of a picture."""

    search = Endpoint(
        "/detect",
        "The objects of a picture: the body is a PNG file.",
        Asked,
        {},
        hears=True,
        media="image/png",
        several=False,
    )
    loads: ClassVar = Detector
    decoder: Detector

    def record(self, picture: bytes, asked: Any) -> tuple[Any, Json]:
        """The pixels of a picture."""
        return self.decoder.task.seen(io.BytesIO(picture)), {}


SERVICE = Objects
