"""The codes of languages that begin the texts of pretrained models."""

import re
from collections.abc import Mapping

CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}|__[a-z]{2,3}__")
"""Such as eng_Latn, en_XX or __en__."""
MADE_HERE = re.compile(r"__([\w-]+)__")
"""Such as __pt-br__, in vocabularies that are trained here."""


def codes(added: Mapping[str, int]) -> dict[str, int]:
    """The id of each language among the pieces that a vocabulary has beside those of text, such as eng_Latn.
    Underscores around it are left out: of __en__ it is en."""
    return {piece.strip("_"): index for piece, index in added.items() if CODE.fullmatch(piece)}
