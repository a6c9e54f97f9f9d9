"""A language model of the output beside a model, in its search (shallow fusion, Gulcehre et al. 2015)."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from transformer.config.ranges import shown
from transformer.data.tokenizers.lossless import SPACE
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.beside import ensemble as together
from transformer.decoding.beside import ngram
from transformer.decoding.beside.arpa import END, START, UNKNOWN, read_arpa
from transformer.decoding.beside.ensemble import WithLanguageModel
from transformer.decoding.beside.ngram import ShallowFusion, Trie
from transformer.decoding.hooks import SearchHook
from transformer.decoding.searches.search import unchanged
from transformer.model.parameters import Variables
from transformer.runs.run import Run, bytes_of
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import on_local_devices
from transformer.systems.parameters import as_computed, declared_parameters
from transformer.systems.system import System, described
from transformer.tasks.outputs import DecodingTask
from transformer.tasks.task import Task
from transformer.tasks.text import TextTask

SHARE = 0.5  # of the words of a language model that must be tokens
LARGEST = 100.0


@dataclass(frozen=True)
class LanguageModel:
    """An n-gram language model in a search, and how much it counts."""

    hook: ShallowFusion
    weight: float

    option = "--lm"
    fields = ngram.FIELDS
    """What the search reads of each input."""
    longest = None
    """The length of texts for which it has positions. None: any."""

    @property
    def hooks(self) -> tuple[SearchHook, ...]:
        """Of the search."""
        return (self.hook,)

    @property
    def identity(self) -> bytes:
        """A hash of the model."""
        return self.hook.identity

    @property
    def example(self) -> Mapping[str, Any]:
        """The arrays of one input."""
        return ngram.example(self.weight)

    def beside(self, model: nn.Module, variables: Variables) -> tuple[nn.Module, Variables]:
        """The model that is searched, and its variables."""
        return model, variables

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


@dataclass(frozen=True, eq=False)
class TrainedLanguageModel:
    """A trained language model in a search, and how much it counts."""

    model: nn.Module
    variables: Variables
    identity: bytes
    """A hash of both."""
    longest: int | None
    """The length of texts for which it has positions. None: any."""
    weight: float

    option = "--lm"
    hooks: tuple[SearchHook, ...] = ()
    fields = together.FIELDS
    """What the search reads of each input."""

    @property
    def example(self) -> Mapping[str, Any]:
        """The arrays of one input."""
        return {together.WEIGHT: self.weight}

    def beside(self, model: nn.Module, variables: Variables) -> tuple[nn.Module, Variables]:
        """The model that is searched, and its variables."""
        return WithLanguageModel(model, self.model), together.together(variables, self.variables)

    @classmethod
    def read(cls, path: Path, weight: float | int, system: System, task: Task) -> "TrainedLanguageModel":
        """A run of language-model, whose vocabulary is that of the outputs.

        Args:
          path: of the run directory.
          weight: of its log-probabilities, beside those of the model.
          system: of the model.
          task: of the model.

        Raises:
          UserError: it is another run, or has another vocabulary; the weight is negative; the model does not
            write text token by token.
        """
        weight = checked_weight(weight)
        tokenizer = output_tokenizer(system, task, f"--lm {path}")
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
        return cls(model, variables, digest.digest(), run.config.model.longest, weight)


AnyLanguageModel = LanguageModel | TrainedLanguageModel


def read_language_model(
    path: Path, weight: float | int, system: System, task: DecodingTask
) -> AnyLanguageModel:
    """The language model of a file in ARPA form, or of a run directory. Raises UserError as they do."""
    model_class: Any = TrainedLanguageModel if os.path.isdir(path) else LanguageModel
    model: AnyLanguageModel = model_class.read(path, weight, system, task)
    return model


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
