"""Limits of options."""

from typing import Any

from transformer.errors import UserError

LARGEST = 10_000_000  # limit of any size: a larger value is a mistake and would exhaust the memory
DEEPEST = 1_000  # layers: each of them is traced
LONGEST = 100_000  # tokens in a sentence
COUNTS = 2**31 - 1  # limit of counts and seeds
IDS = 10 * LARGEST  # limit of ids in a batch: 400 MB

Option = Any
"""A value of an option."""
Ranges = dict[str, tuple[int, int]]
"""Minimum and maximum of fields; for a tuple, of each item."""


def check_ranges(section: str, config: object, ranges: Ranges) -> None:
    """Raises UserError if a field of a config's section is outside its range. None is always valid."""
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not least <= number <= most:
                raise UserError(
                    f"--{section}.{name.replace('_', '-')} must be at least {least:,} and at most {most:,}"
                )
