"""JAX's persistent compilation cache with entries that are complete or absent.

JAX writes an entry under its final name. A process that is killed while it writes, or a full disk, leaves a
part of it, which every later process reads, warns about, and never replaces.
"""

import contextlib
import logging
import secrets

from jax._src import compilation_cache
from jax._src.lru_cache import LRUCache

log = logging.getLogger("transformer")
PROGRAM, LAST_USE = "-cache", "-atime"  # how JAX's names end; the second only where the cache has a limit


class WholeEntries(LRUCache):
    """A cache that writes an entry under another name first, and removes a damaged one when it meets it.

    The files are JAX's own, so other programs can share the folder.
    """

    _warned = False

    def get(self, key: str) -> bytes | None:
        """The entry, or None if there is none or it is damaged."""
        entry = super().get(key)
        if entry is None:
            return None
        try:
            compilation_cache.decompress_executable(entry)
        except Exception as error:  # of one of several libraries
            log.debug("a damaged compiled program is removed: %s: %s", key, error)
            self._remove(key)
            return None
        return entry

    def put(self, key: str, value: bytes) -> None:
        """Adds an entry, unless it exists. A folder that takes none, such as one on a full disk, costs
        time, not the work."""
        if (self.path / f"{key}{PROGRAM}").exists():
            return
        unfinished = f"{key}-{secrets.token_hex(4)}"
        try:
            super().put(unfinished, value)
            for suffix in (LAST_USE, PROGRAM):
                if (written := self.path / f"{unfinished}{suffix}").exists():
                    written.replace(self.path / f"{key}{suffix}")
        except BaseException as error:
            self._remove(unfinished)
            if not isinstance(error, OSError):
                raise
            if not self._warned:
                log.warning("%s: compiled programs are not cached: %s", self.path, error.strerror or error)
            self._warned = True

    def _remove(self, key: str) -> None:
        for suffix in (LAST_USE, PROGRAM):
            with contextlib.suppress(OSError):
                (self.path / f"{key}{suffix}").unlink()


def use_whole_entries() -> None:
    """Makes JAX's cache one of `WholeEntries`, in this process."""
    if compilation_cache.LRUCache is not WholeEntries:
        compilation_cache.LRUCache = WholeEntries  # type: ignore[misc]  # the name that JAX looks up
        compilation_cache.reset_cache()  # JAX makes it anew on its next use
