"""One or several references for an output."""

from collections.abc import Sequence
from itertools import zip_longest

from transformer.runtime.errors import UserError

References = Sequence[str | Sequence[str]]
"""For each output a reference, or a list of them; lists may differ in length."""


def all_of(reference: str | Sequence[str]) -> Sequence[str]:
    """The references of one output, as a list."""
    return [reference] if isinstance(reference, str) else reference


def in_streams(references: References) -> list[list[str | None]]:
    """The first reference of each output, then the second of each, and so on, as sacreBLEU takes them. None
    where an output has fewer.

    Raises:
      UserError: an output has no reference.
    """
    lists = [all_of(reference) for reference in references]
    for number, texts in enumerate(lists, 1):
        if not texts:
            raise UserError(f"output {number:,} has no reference: give at least one for each")
    return [list(stream) for stream in zip_longest(*lists)] or [[]]
