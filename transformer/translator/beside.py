"""What is searched beside a model: a language model of its outputs (shallow fusion, Gulcehre et al. 2015), or
names that they are expected to have (biasing, Zhao et al. 2019)."""

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from transformer.config.ranges import shown
from transformer.data.sequences import Example, Fields
from transformer.data.sources.text_files import one_line, read_lines
from transformer.data.tokenizers.lossless import SPACE
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.beside import ensemble as together
from transformer.decoding.beside import ngram
from transformer.decoding.beside.arpa import END, START, UNKNOWN, read_arpa
from transformer.decoding.beside.ensemble import WithLanguageModel
from transformer.decoding.beside.ngram import ShallowFusion, Trie
from transformer.decoding.hooks import SearchHook
from transformer.decoding.searches.search import unchanged
from transformer.decoding.steering.names import SIZES, Bias, NameAutomaton, Tokens
from transformer.model.parameters import Variables
from transformer.runs.run import Run, bytes_of
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import brief, display_path
from transformer.runtime.hosts import on_local_devices
from transformer.runtime.text import has_text, without_formatting
from transformer.systems.parameters import as_computed, declared_parameters
from transformer.systems.system import System, described
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.task import Task
from transformer.tasks.text import TextTask
from transformer.tasks.texts.steering import letters_of, spellings

SHARE = 0.5  # of the words of a language model that must be tokens
LARGEST = 100.0
SHOWN = 3  # names that a warning lists
Names = Path | str | Sequence[str] | Mapping[str, float | int]
"""The path of a file, names, or the weight of each."""

log = logging.getLogger("transformer")


@dataclass(frozen=True, eq=False)
class Beside:
    """What is searched beside a model, and how much it counts."""

    option: str
    """The option of decode.py that names it, for messages."""
    weight: float
    fields: Fields
    """What the search reads of each input."""
    of_weight: Callable[[float], Example]
    """The arrays of one input, given the weight."""
    identity: bytes
    """A hash of all but the weight."""
    hooks: tuple[SearchHook, ...] = ()
    """Of the search."""
    longest: int | None = None
    """The length of texts for which it has positions. None: any."""
    network: tuple[nn.Module, Variables] | None = None
    """A model that predicts each token too. None: hooks do all of it."""

    @property
    def example(self) -> Example:
        """The arrays of one input."""
        return self.of_weight(self.weight)

    def searched(self, model: nn.Module, variables: Variables) -> tuple[nn.Module, Variables]:
        """The model that is searched, and its variables."""
        if self.network is None:
            return model, variables
        return WithLanguageModel(model, self.network[0]), together.together(variables, self.network[1])


def read_language_model(path: Path, weight: float | int, system: System, task: DecodingTask) -> Beside:
    """The language model of a file in ARPA form, or of a run directory of language-model.

    Args:
      path: of the file, whose words are tokens of the outputs; or of the run, whose vocabulary is theirs.
      weight: of its log-probabilities, beside those of the model.
      system: of the model.
      task: of the model.

    Raises:
      UserError: it is no such model, or has other tokens than the outputs; the weight is negative; the model
        does not write text token by token.
    """
    weight = checked_weight(weight)
    tokenizer = output_tokenizer(system, task, f"--lm {path}")
    return (_network if os.path.isdir(path) else _n_grams)(path, weight, tokenizer, system)


def _n_grams(path: Path, weight: float, tokenizer: Tokenizer, system: System) -> Beside:
    grams = read_arpa(path)
    names = token_names(tokenizer)
    trie = Trie(grams, names, tokenizer.special.eos)
    words = len({word for (word,) in grams.orders[0]} - {START, END, UNKNOWN})
    if trie.known < SHARE * words or words == 0:
        raise UserError(
            f"--lm {path}: {trie.known:,} of its {words:,} words are tokens of this run; make one of "
            "them with transformer ngram"
        )
    hook = ShallowFusion(trie, _silent(tokenizer, trie))
    return Beside("--lm", weight, ngram.FIELDS, ngram.example, hook.identity, (hook,))


def _network(path: Path, weight: float, tokenizer: Tokenizer, system: System) -> Beside:
    run = Run(path)
    of_text = run.task.text_tokenizer if isinstance(run.task, TextTask) else None
    if of_text is None:
        raise UserError(
            f"--lm {path}: this is a run of {run.config.system}; give one of language-model, or an "
            "n-gram model in ARPA form"
        )
    search: Any = system.search
    if tokenizer.has_codes or tokenizer.start or search.named is not unchanged:
        raise UserError(
            f"--lm {path}: outputs of this model have codes of languages or copied words, which a "
            "trained language model does not know; use an n-gram model (transformer ngram)"
        )
    if of_text.content() != tokenizer.content():
        raise UserError(
            f"--lm {path}: it has another vocabulary than the outputs of this run; train one with "
            "--data.source-tokenizer and the vocabulary in this run's directory"
        )
    declared = declared_parameters(run.system, run.config)
    variables: Variables = as_computed(run.variables("best"), run.config.model.compute_dtype, declared)
    variables = on_local_devices(variables)
    model = run.system.model(run.config.model)
    digest = hashlib.blake2b(repr(model).encode(), digest_size=16)
    for leaf in jax.tree.leaves(variables):
        digest.update(bytes_of(leaf))
    return Beside(
        "--lm",
        weight,
        together.FIELDS,
        lambda weight: {together.WEIGHT: weight},
        digest.digest(),
        longest=run.config.model.longest,
        network=(model, variables),
    )


def checked_weight(weight: float | int, option: str = "--lm-weight", example: str = "0.3") -> float:
    """A weight of a language model, or of another option. Raises UserError if it is not one."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 <= weight <= LARGEST:
        raise UserError(
            f"{option} {shown(weight)}: must be a number from 0 to {LARGEST:g}, such as {example}"
        )
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
    if not system.stepwise:
        raise UserError(
            f"{option}: it needs a model that writes token by token, and "
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


def names_beside(names: Names, weight: float | int, system: System, task: Task) -> Beside:
    """The names of a list or of a file. Those that the vocabulary cannot spell are left out, with a warning.

    Args:
      names: a file has one on each line, and after a tab its own weight, by which the other is multiplied.
      weight: what a token of a name counts, in nats.
      system: of the model.
      task: of the model.

    Raises:
      UserError: the file cannot be read, there are no such names or too many, a weight is none, or the model
        does not write text token by token.
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
    hook = Bias(size, starts, ends, silent)
    digest = hashlib.blake2b(hook.identity, digest_size=16)
    for array in (automaton.first, automaton.tokens, automaton.gain, automaton.leave):
        digest.update(array.tobytes())
    example = functools.partial(hook.example, automaton)
    return Beside("--bias", weight, hook.fields, example, digest.digest(), (hook,))


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
