"""Event files, which TensorBoard shows.

They are written here and now. tensorboardX's `SummaryWriter` writes in a thread: where that has died of a
full disk, whoever has something to write waits for ever.
"""

import os
import socket
import time
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar


class Events:
    """One event file.

    Args:
      folder: where; made if need be.

    Raises:
      OSError: it cannot be written, as from all methods.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordWriter(str(folder / name))
        self._write(file_version="brain.Event:2")

    def _write(self, **content: Any) -> None:
        self._file.write(Event(wall_time=time.time(), **content).SerializeToString())

    def add(self, step: int, values: dict[str, float]) -> None:
        """The values of a step, by name."""
        for name, value in values.items():
            self._write(step=step, summary=scalar(name, value))
        self._file.flush()

    def close(self) -> None:
        """Nothing can be added any more."""
        self._file.close()
