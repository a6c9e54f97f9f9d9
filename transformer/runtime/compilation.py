"""A persistent cache of compiled programs, so that only the first process compiles."""

import contextlib
import hashlib
import logging
import os
import platform
from pathlib import Path

from transformer.runtime.errors import UserError
from transformer.runtime.files import cache_root

log = logging.getLogger("transformer")
WORTH_KEEPING = 0.2  # minimum compile time in seconds


def keep_programs() -> Path | None:
    """Turns on JAX's persistent compilation cache for this process, in `programs_folder`. The folder can be
    deleted at any time.

    Returns:
      The folder, or None if nothing is cached.
    """
    import jax

    with contextlib.suppress(ImportError):  # another version of JAX may not have what this wraps
        from transformer.runtime.program_store import use_whole_entries

        use_whole_entries()
    jax_folder: str | None = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if jax_folder:
        return Path(jax_folder)
    try:
        folder = programs_folder()
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    except UserError:  # no home directory
        return None
    except OSError as error:  # a read-only home costs time, not the work
        if setting := os.environ.get("TRANSFORMER_COMPILED"):
            log.warning("TRANSFORMER_COMPILED=%s: programs are not cached: %s", setting, error.strerror)
        return None
    if folder:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
    return folder


def programs_folder() -> Path | None:
    """The folder of compiled programs, which need not exist: $TRANSFORMER_COMPILED, or by default `compiled/`
    beside the prepared corpora. A folder that JAX uses by itself ($JAX_COMPILATION_CACHE_DIR) takes
    precedence. None: caching is turned off ("off").

    Raises:
      UserError: this user has no home directory.
    """
    if jax_folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(jax_folder)
    setting = os.environ.get("TRANSFORMER_COMPILED")
    if setting == "off":
        return None
    # machines may share a home directory, and a program compiled for one may crash on another
    return (cache_root(Path(setting)) if setting else cache_root(None) / "compiled") / processor()


def processor() -> str:
    """A name for the instruction sets of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        features = platform.processor()
    digest = hashlib.blake2b(features.encode(), digest_size=4).hexdigest()
    return f"{platform.machine() or 'unknown'}-{digest}"
