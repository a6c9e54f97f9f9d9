"""Services of runs that read text."""

from typing import Any

from transformer.runtime.errors import UserError, counted
from transformer.serve.limits import Limits
from transformer.serve.messages import several
from transformer.serve.service import Service


class TextService(Service):
    """A run whose records are texts."""

    def items(self, asked: Any) -> list[str]:
        """The texts of a request."""
        return checked(several(asked.text), self.limits)


def checked(texts: list[str], limits: Limits, name: str = "text") -> list[str]:
    """Texts of a request. Raises UserError if they are too many or too long."""
    if not texts:
        raise UserError(f"{name}: the list is empty; send at least one")
    if len(texts) > limits.texts:
        raise UserError(
            f"{name}: {counted(len(texts), 'text')}, and a request may have {limits.texts:,}: divide them"
        )
    for number, text in enumerate(texts, 1):
        if len(text) > limits.characters:
            raise UserError(
                f"{name} {number}: {len(text):,} characters, and it may have {limits.characters:,}: divide it"
            )
    return texts
