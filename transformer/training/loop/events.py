"""TensorBoard event files, written synchronously.

tensorboardX's `SummaryWriter` writes in a thread. If a full disk ends that thread, its callers wait forever.
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
      folder: for the file; created if missing.

    Raises:
      OSError: it cannot be written. All methods raise this too.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordWriter(str(folder / name))
        self._write(file_version="brain.Event:2")

    def _write(self, **content: Any) -> None:
        self._file.write(Event(wall_time=time.time(), **content).SerializeToString())

    def add(self, step: int, values: dict[str, float]) -> None:
        """Writes the values of a step, by name."""
        for name, value in values.items():
            self._write(step=step, summary=scalar(name, value))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
