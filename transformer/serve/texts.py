"""The texts of a request, one or a list of them."""

from typing import Any

from transformer.runtime.errors import UserError, counted
from transformer.serve.limits import Limits


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
        if (size := _size(one)) > limits.characters:
            raise UserError(
                f"{name} {number}: {size:,} characters, and it may have {limits.characters:,}: divide it"
            )
    return texts


def _size(text: Any) -> int:
    """The characters of a text, of all texts in an object or of a list of words."""
    if isinstance(text, dict):
        return sum(map(_size, text.values()))
    return sum(map(_size, text)) if isinstance(text, list) else len(str(text))
