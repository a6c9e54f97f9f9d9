"""Outputs to be scored: their texts, or their ids."""

import operator
import reprlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer.runtime.errors import UserError
from transformer.tasks.text_to_text import TextToText

Target = Sequence[int] | Int[np.ndarray, " t"]
"""The ids of an output."""


def ids_of_targets(
    task: TextToText,
    targets: Sequence[str | Target],
    lines: Sequence[int],
    *,
    longest: int,
    most: int,
    copies: bool,
) -> list[list[int]]:
    """The ids of targets.

    Args:
      task: of the model.
      targets: a text, which is truncated, or ids, which are taken as they are.
      lines: the number of each, for messages.
      longest: tokens of a text.
      most: tokens that the model can read.
      copies: whether ids outside the vocabulary are those of words that are copied.

    Raises:
      UserError: ids are not those of an output.
    """
    size = task.config.model.output_size
    special = task.config.model.search_ids
    numbered = [(line, text) for line, text in zip(lines, targets, strict=True) if isinstance(text, str)]
    texts = [text for _, text in numbered]
    text_lines = [line for line, _ in numbered]
    tokenizer = task.tokenizers[1]
    encoded = iter(task.ids(texts, tokenizer, min(longest, most), text_lines, "the target of "))

    def checked(line: int, target: Target) -> list[int]:
        try:
            if not isinstance(target, Sequence | np.ndarray) or isinstance(target, bytes):
                raise TypeError
            ids = [operator.index(index) for index in target]
            if any(isinstance(index, bool | np.bool_) for index in target):
                raise TypeError
        except TypeError as error:
            raise UserError(
                f"line {line}: the target {reprlib.repr(target)} must be a text or a list of ids"
            ) from error
        if ids[-1:] != [special.eos] or {*special.never_predicted, special.eos} & set(ids[:-1]):
            raise UserError(
                f"line {line}: the target must be ids of tokens, then <eos>, which is {special.eos} (as "
                f"Hypothesis.ids is), and not {reprlib.repr(ids)}"
            )
        if outside := [i for i in ids if i < 0 or (i >= size and not copies)]:
            raise UserError(f"line {line}: the id {outside[0]}: the vocabulary has {size:,} ids, from 0")
        if len(ids) > most:
            raise UserError(f"line {line}: {len(ids):,} ids, and a target may have {most:,}")
        return ids

    pairs = zip(lines, targets, strict=True)
    return [next(encoded) if isinstance(target, str) else checked(line, target) for line, target in pairs]
