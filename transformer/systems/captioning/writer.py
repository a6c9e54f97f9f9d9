"""A caption of each picture that the input lists."""

from pathlib import Path

from transformer.cli.texts import Texts
from transformer.cli.writer import check_pictures, page_of_pictures
from transformer.data.signals.pixels import LIBRARY
from transformer.data.sources.pictures import AnnotatedPicture
from transformer.runtime.files import Json, readable
from transformer.runtime.machine import check_libraries
from transformer.systems.captioning.api import Captioner


class Captions(Texts):
    """Captions, with scores, or as JSON. A line is the name of a PNG file."""

    does = "describes pictures"
    can = Texts.can | {"page"}
    page = staticmethod(page_of_pictures)
    check_input = staticmethod(check_pictures)

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Captioner:
        """The trained model."""
        check_libraries((LIBRARY,), f"reading pictures for {run_dir}")
        self.captioner = Captioner.load(run_dir, checkpoint, int8=int8)
        return self.captioner

    def record(self, number: int, line: str) -> AnnotatedPicture:
        manifest = self.arguments.input or Path("standard input")
        return self.captioner.task.listed(line, manifest, number)

    def input_fields(self, line: str) -> Json:
        return {"picture": readable(line)}


WRITER = Captions
