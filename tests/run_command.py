"""Commands of the repository in separate processes, and what they leave in a folder."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def command(*words: object, shell: str = "", **options: object) -> subprocess.CompletedProcess:
    """A command of the repository in a separate process; `shell` follows it on a command line of bash."""
    quoted = " ".join(f"'{word}'" for word in (sys.executable, *words))
    return subprocess.run(
        ["bash", "-c", f"{quoted} {shell}"], cwd=ROOT, text=True, capture_output=True, timeout=240, **options
    )


def on_devices(count: int) -> dict[str, str]:
    """The environment of a process that has so many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {**os.environ, "XLA_FLAGS": flags}


def contents(path: Path) -> dict[str, bytes]:
    """The files in a folder, or the file itself, by name."""
    files = path.rglob("*") if path.is_dir() else [path]
    return {str(file): file.read_bytes() for file in files if file.is_file()}
