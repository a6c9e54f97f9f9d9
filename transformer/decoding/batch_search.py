"""Batches of similar length: the search of systems that bring one of their own, instead of lanes."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer.config import DecodingConfig
from transformer.data.sequences import Fields
from transformer.decoding.calls import Inputs
from transformer.decoding.lanes import TOGETHER, batch, enough_memory
from transformer.decoding.queue import Queue, Request


class BatchSearch:
    """Searches batches of requests from a queue.

    Args:
      search: `System.search`, given model and variables.
      options: of the search.
      fields: that decoding reads.
      queue: where requests come from.
      rows: of a batch.
    """

    def __init__(
        self,
        search: Callable[[Inputs, Int[Array, " b"], DecodingConfig], Any],
        options: DecodingConfig,
        fields: Fields,
        queue: Queue,
        rows: int,
    ) -> None:
        self.search = search
        self.options = options
        self.fields = fields
        self.queue = queue
        self.rows = rows
        self.index = 0
        self._taken = list[Request]()

    @property
    def busy(self) -> int:
        """It holds nothing between two turns."""
        return 0

    def prepare(self) -> None:
        """Compiles the program of each bucket, for one row and for a whole batch."""
        for length in self.options.buckets:
            for rows in {1, self.rows}:
                inputs = batch([], self.fields, length, rows)
                jax.block_until_ready(self._results(inputs, np.ones(rows, np.int32), self.options))

    def empty(self) -> list[Request]:
        """The requests of a batch that has failed."""
        return [request for request in self._taken if not request.future.done()]

    def turn(self) -> Iterator[tuple[Request, Any]]:
        """Searches a batch, and yields its requests with their results. A few are searched one by one."""
        few = self.queue.waiting(0) <= self.rows // TOGETHER
        self._taken = self.queue.take(0, 1 if few else self.rows)
        groups: dict[DecodingConfig, list[Request]] = {}
        for request in self._taken:
            groups.setdefault(request.options, []).append(request)
        for options, requests in groups.items():
            rows = 1 if few else self.rows
            longest = max(request.length for request in requests)
            length = next(length for length in self.options.buckets if length >= longest)
            inputs = batch([request.example for request in requests], self.fields, length, rows)
            lines = np.resize([request.line for request in requests], rows).astype(np.int32)
            results = jax.tree.map(np.asarray, self._results(inputs, lines, options))
            for row, request in enumerate(requests):
                yield request, jax.tree.map(lambda x, row=row: x[row], results)

    @enough_memory()
    def _results(self, inputs: Any, lines: np.ndarray, options: DecodingConfig) -> Any:
        return self.search(jax.tree.map(jnp.asarray, inputs), jnp.asarray(lines), options)
