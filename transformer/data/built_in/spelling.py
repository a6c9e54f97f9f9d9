"""A built-in corpus in which source and target advance together: digits, read one by one and spelled letter
by letter.

    4 0 7        f o u r z e r o s e v e n

Every digit is some letters, and nothing else in the output says which digit they belong to. So a model has to
know where it is in the source, above all if a digit is repeated: 5 5 5 is f i v e f i v e f i v e.
"""

import random
from collections.abc import Iterator, Sequence

from transformer.data.built_in.dialogue import SHARES, split_of
from transformer.runtime.errors import UserError

VERSION = 1
"""Of what this generates: whoever changes that raises it (`corpora.BuiltIn`)."""
Pair = tuple[str, str]
LENGTHS = range(1, 9)  # digits of a line
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def spelled(digits: Sequence[int]) -> Pair:
    """A line of digits, and the letters of their names."""
    return " ".join(map(str, digits)), " ".join("".join(NAMES[digit] for digit in digits))


def pairs(split: str, seed: int = 0, lengths: Sequence[int] = LENGTHS) -> Iterator[Pair]:
    """Yields digits and letters endlessly, the same for the same arguments. Lines are repeated, since there
    are few short ones.

    Args:
      split: "train", "validation" or "test". A hash of the digits decides in which split a line is.
      seed: of the random numbers.
      lengths: the numbers of digits to choose from.

    Raises:
      UserError: there is no such split.
    """
    if split not in SHARES:
        raise UserError(f"no {split} split of the corpus spelling: there are {', '.join(SHARES)}")
    chance = random.Random(f"spelling {split} {seed}")
    while True:
        digits = [chance.randint(0, 9) for _ in range(chance.choice(lengths))]
        source, target = spelled(digits)
        if split_of(source) == split:
            yield source, target
