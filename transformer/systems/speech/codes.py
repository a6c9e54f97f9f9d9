"""The tokens that an output of Whisper begins with: its language, its task, and whether it has times
(Radford et al. 2022, Figure 1)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.runtime.errors import UserError, nearest

TASKS = ("transcribe", "translate")
UNTIMED = "<|notimestamps|>"
PREVIOUS = "<|startofprev|>"
SILENT = ("<|nospeech|>", "<|nocaptions|>")
"""The token of a recording in which nobody speaks has had two names."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True)
class Codes:
    """The ids of these tokens."""

    languages: dict[str, int]
    """By their code, such as en."""
    tasks: dict[str, int]
    """transcribe: in the language of the recording; translate: to English."""
    untimed: int
    """Of the token that says that there are no times. The ids after it are times."""
    previous: int | None = None
    """Of the token before the text of earlier recordings."""
    silent: int | None = None
    """Of the token that says that nobody speaks."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Codes | None":
        """Those of a vocabulary, if it has them."""
        added = tokenizer.added if isinstance(tokenizer, HubTokenizer) else {}
        if UNTIMED not in added:
            return None
        matches = ((_LANGUAGE.fullmatch(name), index) for name, index in added.items())
        languages = {match[1]: index for match, index in matches if match}
        tasks = {name: added[f"<|{name}|>"] for name in TASKS if f"<|{name}|>" in added}
        silent = next((added[name] for name in SILENT if name in added), None)
        return cls(languages, tasks, added[UNTIMED], added.get(PREVIOUS), silent)

    @property
    def first_time(self) -> int:
        """The id of the time 0."""
        return self.untimed + 1

    def opening(
        self,
        usual: Sequence[int],
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
    ) -> tuple[int, ...]:
        """The tokens that an output begins with.

        Args:
          usual: those of the run; empty: of no model yet.
          language: its code. None: the usual one.
          task: transcribe or translate. None: the usual one.
          timestamps: whether the output has times.

        Raises:
          UserError: there is no such language or task.
        """
        ids = [index for index in usual if index != self.untimed]
        for position, (name, value, known) in enumerate(
            (("language", language, self.languages), ("task", task, self.tasks))
        ):
            if value is None:
                continue
            if len(ids) <= position:
                raise UserError(f"{name} {value!r}: this model is for English only; leave it out")
            if value not in known:
                some = nearest(str(value), known) or f"; there are {', '.join(list(known)[:5])} and others"
                raise UserError(f"{name} {value!r}: this model does not know it{some}")
            ids[position] = known[value]
        return tuple(ids) if timestamps else (*ids, self.untimed)
