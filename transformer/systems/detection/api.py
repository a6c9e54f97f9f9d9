"""The Python API for detection, a decoder whose records are pictures, and what decode.py writes of it."""

from collections.abc import Sequence
from typing import Any, ClassVar

from transformer.cli.writer import PictureWriter
from transformer.config.arguments import any_number
from transformer.config.ranges import Option
from transformer.systems.detection.system import DetectedObject, Detection
from transformer.tasks.media.pictures import Seen, is_picture
from transformer.translator.decoder import Decoder


class Detector(Decoder[Detection]):
    """A trained model that finds objects. Threads may share it. See `Decoder` for batches and programs."""

    reads, does = Detection, "find objects"

    def detect(self, pictures: Seen | Sequence[Seen], **options: Option) -> Any:
        """The objects of a picture (a list of `DetectedObject`), or of each of several (a list of lists), the
        most probable first.

        Args:
          pictures: files or arrays; one or a list.
          options: any field of `DetectionDecodingConfig`, such as threshold, instead of the run's value.

        Raises:
          UserError: a picture cannot be read, or an option is invalid.
        """
        is_one = is_picture(pictures)
        sources: Any = [pictures] if is_one else any_number("pictures", pictures, "pictures")
        records = (self.task.seen(source) for source in sources)
        objects: list[list[DetectedObject]] = [
            [*best.objects] for (best,) in self.stream(records, n_best=1, **options)
        ]
        return objects[0] if is_one else objects


class Objects(PictureWriter):
    """The objects of pictures in a line each, or as JSON."""

    does = "finds objects in pictures"
    formats = ("text", "json")
    loads: ClassVar = Detector


WRITER = Objects
