"""Whether a server is ready: the programs of all runs are compiled."""

import logging
from collections.abc import Callable, Sequence

from transformer.serve.refusals import UNAVAILABLE, later
from transformer.serve.service import Service

log = logging.getLogger("transformer")
WAIT = 5  # seconds after which a client may ask again


class Readiness:
    """Whether all programs are compiled.

    Args:
      services: of the runs.
      progress: is called with the number of compiled programs, and that of all, after each.

    Attributes:
      is_ready: whether they are.
      error: why they could not be.
    """

    def __init__(self, services: Sequence[Service], progress: Callable[[int, int], None]) -> None:
        self._services, self._progress = services, progress
        self._is_stopped = False
        self.is_ready = False
        self.error: Exception | None = None

    def warm_up(self) -> None:
        """Compiles them."""
        try:
            several = [prepare for service in self._services for prepare in service.preparations()]
            for done, prepare in enumerate(several, 1):
                if self._is_stopped:
                    return
                prepare()
                if done < len(several):
                    self._progress(done, len(several))
            self.is_ready = True
            self._progress(len(several), len(several))
        except Exception as error:
            self.error = error
            log.exception("the programs could not be compiled")

    def stop(self) -> None:
        """Ends `warm_up` at the next opportunity."""
        self._is_stopped = True

    async def check(self) -> None:
        """Raises Refusal if they are not compiled."""
        if self.error:
            raise later(UNAVAILABLE, "the models could not be prepared: the server's log says why", WAIT)
        if not self.is_ready:
            raise later(UNAVAILABLE, "the models are being prepared: try again later", WAIT)
