"""What a server accepts: limits, which options requests may have, and the texts of a request."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from transformer.config.decoding import names_of
from transformer.config.ranges import LARGEST, LONGEST, SIZE, Range, Section
from transformer.config.searches import METHODS
from transformer.runtime.errors import UserError, counted, nearest

ALLOWED = (
    *("length_penalty", "extra_length", "max_length", "min_length", "no_repeat_ngram"),
    *("temperature", "top_p", "seed"),
)
"""The options of requests unless the command line names others: the same programs serve all values."""
OF_RECORDS = ("prefix", "terms")
"""What may be asked of each text besides, if it is allowed: fields of a `TranslationRequest`."""
NEVER = ("rows", "buckets", "shortlist")
"""Options that decide about memory, or read files."""


@dataclass(frozen=True)
class Limits(Section):
    """Limits of requests. What is beyond them is refused at once."""

    SECTION = "limits"

    body: Annotated[int, Range(1, 100 * LARGEST)] = 1_000_000
    """Bytes in the body of a request, except for recordings."""
    recording: Annotated[int, Range(1, 100 * LARGEST)] = 25_000_000
    """Bytes of a recording."""
    bodies: Annotated[int, Range(1, 100 * LARGEST)] = 1_000_000_000
    """Bytes of the bodies of all requests at the same time: those that arrive and those that are answered."""
    texts: Annotated[int, SIZE] = 64
    """Texts in a request."""
    characters: Annotated[int, Range(1, LARGEST)] = 5_000
    """Characters in a text, and in all strings of an option."""
    sentences: Annotated[int, Range(1, LARGEST)] = 5_000
    """Sentences and lines in all texts of a request."""
    queue: Annotated[int, Range(1, LARGEST)] = 512
    """Texts of a run that wait or are searched at the same time."""
    requests: Annotated[int, Range(1, LARGEST)] = 256
    """Requests that are answered at the same time."""
    connections: Annotated[int, Range(2, LARGEST)] = 1024
    """Connections that are open at the same time. Beyond it, the one that is idle longest is closed."""
    seconds: Annotated[float, Range(0.001, LONGEST)] = 60.0
    """Time for a request, from its first byte to the last one of its answer."""

    listeners: Annotated[int, SIZE] = 8
    """Clients whose sound is heard while it arrives, at the same time."""
    listening: Annotated[float, Range(1, LARGEST)] = 3600.0
    """Seconds of sound of such a client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (most := max(self.body, self.recording)) > self.bodies:
            raise UserError(
                f"--limits.bodies {self.bodies:,} is less than a body may have, {most:,}: raise it"
            )
        if self.texts > self.queue:
            raise UserError(
                f"--limits.texts {self.texts:,} is more than --limits.queue {self.queue:,}: the queue must "
                "have room for a request"
            )


def check_allowed(names: Iterable[str]) -> None:
    """Raises UserError if one of the names is no option that requests can have."""
    known = {*OF_RECORDS}.union(*map(names_of, METHODS.values())) - {*NEVER}
    for name in names:
        if name not in known:
            meant = nearest(name, known) or f"; there are {', '.join(sorted(known))}"
            raise UserError(f"--allow {name}: no such option of requests{meant}")


# The texts of a request, one or a list of them.


def texts_of(text: Any, limits: Limits, name: str = "text") -> list[Any]:
    """The texts of a field.

    Args:
      text: the field: a text, or a list of them; a text may be an object of named ones.
      limits: of requests.
      name: of the field, for messages.

    Raises:
      UserError: they are none, too many or too long.
    """
    texts = text if isinstance(text, list) else [text]
    if not texts:
        raise UserError(f"{name}: the list is empty; send at least one")
    if len(texts) > limits.texts:
        raise UserError(
            f"{name}: {counted(len(texts), 'text')}, and a request may have {limits.texts:,}: divide them"
        )
    for number, one in enumerate(texts, 1):
        if (size := size_of(one)) > limits.characters:
            raise UserError(
                f"{name} {number}: {size:,} characters, and it may have {limits.characters:,}: divide it"
            )
    return texts


def size_of(text: Any, size: Callable[[str], int] = len) -> int:
    """The characters of a text, of all texts in an object or of a list of words; or another size of each."""
    if isinstance(text, dict | list):
        return sum(size_of(one, size) for one in (text.values() if isinstance(text, dict) else text))
    return size(str(text))
