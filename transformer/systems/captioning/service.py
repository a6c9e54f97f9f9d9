"""What runs that see do for clients: captions of pictures."""

import io
from typing import Any, ClassVar

from transformer.runtime.files import Json
from transformer.serve.services.messages import Asked, Endpoint, extras_of
from transformer.serve.services.service import Service
from transformer.systems.captioning.api import Captioner
from transformer.translator.search_outputs import Extras


class Captions(Service):
    """What a picture shows."""

    search = Endpoint(
        "/caption",
        "What a picture shows: the body is a PNG file.",
        Asked,
        {},
        hears=True,
        media="image/png",
        extras=("alignments",),
    )
    loads: ClassVar = Captioner
    decoder: Captioner

    def record(self, picture: bytes, asked: Any) -> tuple[Any, Json]:
        """The pixels of a picture."""
        return self.decoder.task.seen(io.BytesIO(picture)), {"extras": Extras(**extras_of(asked))}

    @property
    def has_alignments(self) -> bool:
        """Whether its outputs attend to parts of the picture."""
        return self.decoder.system.alignment is not None

    @property
    def prepared(self) -> Json:
        """What may be asked of every output."""
        return {"extras": Extras(alignments=self.has_alignments)}


SERVICE = Captions
