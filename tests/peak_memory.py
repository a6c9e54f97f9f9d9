"""The most memory that a process has held, for tests of files that claim too much.

`getrusage` would not do: after an exec it still counts what the parent held, and it never falls.
"""

from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory() -> int:
    """MiB that this process has held at most, since it began or since `forget_peak_memory`."""
    return int(_STATUS.read_text().split("VmHWM:")[1].split()[0]) // 1024


def forget_peak_memory() -> None:
    """From now on `peak_memory` counts anew (`man 5 proc`)."""
    _CLEAR.write_text("5")
