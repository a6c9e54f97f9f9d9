"""A language model of the output beside a model, in its search (shallow fusion, Gulcehre et al. 2015)."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transformer.data.features.ngrams import END, START, UNKNOWN, read_arpa
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.vocabulary import SPACE
from transformer.decoding.ngram import ShallowFusion, Trie
from transformer.decoding.search import AutoregressiveSearch
from transformer.runtime.errors import UserError
from transformer.systems.system import System, described
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.task import Task
from transformer.tasks.text import TextTask

SHARE = 0.5  # of the words of a language model that must be tokens
LARGEST = 100.0


@dataclass(frozen=True)
class LanguageModel:
    """A language model in a search, and how much it counts."""

    hook: ShallowFusion
    weight: float

    @classmethod
    def read(cls, path: Path, weight: float | int, system: System, task: DecodingTask) -> "LanguageModel":
        """The n-gram model of a file in ARPA form.

        Args:
          path: of the file.
          weight: of its log-probabilities, beside those of the model.
          system: of the model.
          task: of the model.

        Raises:
          UserError: the file is no such model, or not one of the tokens of this task; the weight is negative;
            the model does not write text token by token.
        """
        weight = checked_weight(weight)
        tokenizer = output_tokenizer(system, task, f"--lm {path}")
        grams = read_arpa(path)
        names = token_names(tokenizer)
        trie = Trie(grams, names, tokenizer.special.eos)
        words = len({word for (word,) in grams.orders[0]} - {START, END, UNKNOWN})
        if trie.known < SHARE * words or words == 0:
            raise UserError(
                f"--lm {path}: {trie.known:,} of its {words:,} words are tokens of this run; make one of "
                "them with transformer ngram"
            )
        return cls(ShallowFusion(trie, _silent(tokenizer, trie)), weight)


def checked_weight(weight: float | int) -> float:
    """A weight of a language model. Raises UserError if it is not one."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 <= weight <= LARGEST:
        raise UserError(f"--lm-weight {weight}: must be a number from 0 to {LARGEST:g}, such as 0.3")
    return float(weight)


def output_tokenizer(system: System, task: Task, option: str, remedy: str = "leave it out") -> Tokenizer:
    """The tokenizer of the outputs of a model that writes them token by token.

    Args:
      system: of the model.
      task: of the model.
      option: what needs it, at the beginning of messages.
      remedy: what to do otherwise.

    Raises:
      UserError: it does not, or its outputs are no texts of their own.
    """
    name = task.config.system
    if not isinstance(task, TextTask):
        raise UserError(f"{option}: {name} writes no words; {remedy}")
    if not isinstance(system.search, AutoregressiveSearch):
        raise UserError(
            f"{option}: a language model needs a model that writes token by token, and "
            f"{described(task.config)} predicts all tokens at once; {remedy}"
        )
    if task.output_tokenizer is None:
        raise UserError(f"{option}: {name} writes no sentences of its own; {remedy}")
    return task.output_tokenizer


def token_names(tokenizer: Tokenizer) -> list[str]:
    """The words by which an n-gram model knows tokens, by id: their pieces, with a mark for each space. Those
    that no output has have the name ""."""
    special = tokenizer.special
    names = dict.fromkeys((special.pad, special.bos, *tokenizer.codes.values()), "")
    names |= {special.unk: UNKNOWN, special.eos: END}
    seen = {"", START, END, UNKNOWN}
    for index, piece in enumerate(tokenizer.stored_pieces(range(tokenizer.vocab_size))):
        if index not in names:
            name = "".join(SPACE if letter in " \t\n\v\f\r" else letter for letter in piece)
            names[index] = f"{name}<{index}>" if name in seen else name
            seen.add(names[index])
    return [names[index] for index in range(tokenizer.vocab_size)]


def named_tokens(tokenizer: Tokenizer, names: list[str], text: str) -> list[str]:
    """The words by which an n-gram model knows the tokens of a text; <unk> for those that have none."""
    ids = tokenizer.encode(text)[len(tokenizer.start) :]
    return [names[index] if index < len(names) else UNKNOWN for index in ids]


def _silent(tokenizer: Tokenizer, trie: Trie) -> np.ndarray:
    """The tokens that spell nothing and that the language model does not have, such as codes of languages."""
    silent = trie.missing[:-1].copy()
    for index in np.flatnonzero(silent).tolist():
        silent[index] = index != tokenizer.special.eos and not tokenizer.decode([index])
    return silent
