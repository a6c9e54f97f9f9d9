"""The texts of a request, one or a list of them."""

from transformer.runtime.errors import UserError, counted
from transformer.serve.limits import Limits


def texts_of(text: str | list[str], limits: Limits, name: str = "text") -> list[str]:
    """The texts of a field.

    Args:
      text: the field: a text, or a list of them.
      limits: of requests.
      name: of the field, for messages.

    Raises:
      UserError: they are none, too many or too long.
    """
    texts = [text] if isinstance(text, str) else text
    if not texts:
        raise UserError(f"{name}: the list is empty; send at least one")
    if len(texts) > limits.texts:
        raise UserError(
            f"{name}: {counted(len(texts), 'text')}, and a request may have {limits.texts:,}: divide them"
        )
    for number, one in enumerate(texts, 1):
        if len(one) > limits.characters:
            raise UserError(
                f"{name} {number}: {len(one):,} characters, and it may have {limits.characters:,}: divide it"
            )
    return texts
