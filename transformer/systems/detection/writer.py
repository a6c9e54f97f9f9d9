"""The objects of each picture that the input lists."""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from transformer.cli.decode_arguments import DecodeArguments
from transformer.cli.writer import Numbered, Writer, Written, check_pictures, page_of_pictures
from transformer.data.signals.pixels import LIBRARY
from transformer.data.sources.pictures import AnnotatedPicture
from transformer.runtime.files import readable
from transformer.runtime.machine import check_libraries
from transformer.systems.detection.api import Detector


class Objects(Writer):
    """The objects of pictures in a line each, or as JSON."""

    does = "finds objects in pictures"
    formats = ("text", "json")
    can = frozenset({"page"})
    page = staticmethod(page_of_pictures)
    check_input = staticmethod(check_pictures)

    def load(self, run_dir: Path, checkpoint: str, int8: bool) -> Detector:
        """The trained model."""
        check_libraries((LIBRARY,), f"reading pictures for {run_dir}")
        self.detector = Detector.load(run_dir, checkpoint, int8=int8)
        return self.detector

    def of(self, lines: Iterable[Numbered]) -> Iterator[Written | None]:
        waiting = deque[tuple[int, str]]()

        def records() -> Iterator[tuple[int, AnnotatedPicture] | None]:
            for numbered in lines:
                if numbered:
                    waiting.append(numbered)
                yield numbered and (numbered[0], self.record(*numbered))

        task, settings = self.detector.task, self.detector.settings(1, self.options)
        for outputs in self.detector.outputs(records(), settings, 1):
            if outputs is None:
                yield None
                continue
            number, name = waiting.popleft()
            (best,) = outputs
            if self.arguments.format != "json":
                yield f"{task.line(best)}\n", ""
                continue
            about = {"line": number, "picture": readable(name)}
            about["objects"] = [item.to_dict() for item in best.objects]
            yield json.dumps(about, ensure_ascii=False) + "\n", ""

    def record(self, number: int, line: str) -> AnnotatedPicture:
        return self.detector.task.listed(line, manifest_of(self.arguments), number)


def manifest_of(arguments: DecodeArguments) -> Path:
    """The file whose folder names of pictures are relative to."""
    return arguments.input or Path("standard input")


WRITER = Objects
