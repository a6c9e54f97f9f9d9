"""Names that outputs are expected to have: biasing in the search (Zhao et al. 2019)."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer.data.sequences import Example, Fields
from transformer.data.sources.text_files import one_line, read_lines
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.hooks import SearchHook
from transformer.decoding.steering.names import SIZES, Bias, NameAutomaton, Tokens
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import brief, display_path
from transformer.runtime.text import has_text, without_formatting
from transformer.systems.system import System
from transformer.tasks.task import Task
from transformer.tasks.texts.steering import letters_of, spellings
from transformer.translator.fusion import checked_weight, output_tokenizer

SHOWN = 3  # names that a warning lists
Names = Path | str | Sequence[str] | Mapping[str, float | int]
"""The path of a file, names, or the weight of each."""

log = logging.getLogger("transformer")


@dataclass(frozen=True)
class Biasing:
    """Names in a search, and how much they count."""

    hook: Bias
    names: NameAutomaton
    weight: float

    @classmethod
    def of(cls, names: Names, weight: float | int, system: System, task: Task) -> "Biasing":
        """The names of a list or of a file. Those that the vocabulary cannot spell are left out, with a
        warning.

        Args:
          names: a file has one on each line, and after a tab its own weight, by which the other one is
            multiplied.
          weight: what a token of a name counts, in nats.
          system: of the model.
          task: of the model.

        Raises:
          UserError: the file cannot be read, there are no such names or too many, a weight is none, or the
            model does not write text token by token.
        """
        weight = checked_weight(weight, "--bias-weight", "0.5")
        where = f"--bias {names}" if isinstance(names, Path | str) else "--bias"
        tokenizer = output_tokenizer(system, task, where)
        spelled = _spelled(_weights(names), tokenizer, where)
        starts, ends, silent = letters_of(tokenizer)
        try:
            automaton = NameAutomaton(spelled, starts, ends, max_arcs=SIZES[-1])
        except OverflowError:
            raise UserError(
                f"{where}: a search has room for names of {SIZES[-1]:,} tokens together, and these have "
                "more; give fewer"
            ) from None
        size = next(size for size in SIZES if size >= len(automaton.tokens))
        return cls(Bias(size, starts, ends, silent), automaton, weight)

    option = "--bias"

    @property
    def hooks(self) -> tuple[SearchHook, ...]:
        """Of the search."""
        return (self.hook,)

    @property
    def fields(self) -> Fields:
        """What the search reads of each input."""
        return self.hook.fields

    @property
    def example(self) -> Example:
        """The arrays of one input."""
        return self.hook.example(self.names, self.weight)

    def fingerprint(self) -> str:
        """A hash of what it changes."""
        digest = hashlib.blake2b(repr((self.hook.identity, self.weight)).encode(), digest_size=16)
        for array in (self.names.first, self.names.tokens, self.names.gain, self.names.leave):
            digest.update(array.tobytes())
        return digest.hexdigest()


def _weights(names: Names) -> dict[str, float]:
    """Names with their own weights. Raises UserError for what is none."""
    if isinstance(names, Path | str):
        return _of_file(Path(names))
    if not isinstance(names, Mapping | Sequence) or not all(isinstance(name, str) for name in names):
        raise UserError("--bias: must be the path of a file, a list of names, or a dictionary of weights")
    weights = names if isinstance(names, Mapping) else dict.fromkeys(names, 1.0)
    return {
        _name(name, "--bias"): checked_weight(weight, f"--bias: the weight of {brief(name)}", "1")
        for name, weight in weights.items()
    }


def _of_file(path: Path) -> dict[str, float]:
    weights: dict[str, float] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not has_text(line):
            continue
        where = f"--bias {display_path(path)}, line {number}"
        name, _, weight = line.partition("\t")
        try:
            name_weight = float(weight) if weight.strip() else 1.0
        except ValueError:
            raise UserError(
                f"{where}: {brief(weight)} is no weight; write a name, a tab and a number"
            ) from None
        weights[_name(name, where)] = checked_weight(name_weight, f"{where}: the weight", "1")
    return weights


def _name(text: str, where: str) -> str:
    name = one_line(without_formatting(text)).strip()
    if not has_text(name):
        raise UserError(f"{where}: a name is empty; leave it out")
    return name


def _spelled(weights: Mapping[str, float], tokenizer: Tokenizer, where: str) -> dict[Tokens, float]:
    """The tokens of names, each with its weight. Raises UserError if there are none or too many."""
    spelled: dict[Tokens, float] = {}
    missing = []
    for name, weight in weights.items():
        several = spellings(tokenizer, name)
        missing += [] if several else [name]
        if weight:
            spelled |= {ids: max(weight, spelled.get(ids, 0.0)) for ids in several}
    if missing:
        some = ", ".join(map(brief, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
        text = f"the vocabulary cannot spell {counted(len(missing), 'name')} ({some})"
        if len(missing) == len(weights):
            raise UserError(f"{where}: {text}; give others")
        log.warning("%s: %s, left out", where, text)
    if not spelled:
        raise UserError(f"{where}: there are no names; write one on each line")
    return spelled
