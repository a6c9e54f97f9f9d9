"""The contract of tasks whose outputs are texts: they can be steered, spelled and compared."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from transformer.config import DecodingConfig
from transformer.data.corpus import Record
from transformer.data.features.shortlist import Shortlist
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.sequences import Example, Fields
from transformer.data.trees import Tree
from transformer.decoding.hooks import SearchHook
from transformer.runtime.errors import UserError
from transformer.tasks.hypotheses import by_consensus
from transformer.tasks.outputs import DecodingTask, Output
from transformer.tasks.task import Task


@dataclass(frozen=True)
class Steering:
    """A hook of a search, and what it reads of each record."""

    name: str
    """Of what is asked for, such as "prefix"."""
    hook: SearchHook
    fields: Fields
    examples: Sequence[Example]
    min_lengths: list[int]
    """The fewest tokens of each output, without <eos>."""
    by_beam: bool = False
    """Whether only a beam search can do it."""


class TextTask(DecodingTask):
    """A task whose outputs are sequences of tokens that spell a text: `Hypothesis` objects, or others that
    have a text, tokens, a score and a log_probability."""

    writer: ClassVar[str] = "transformer.cli.texts"
    """That of `Lines`."""
    needs_steps: ClassVar[str] = ""
    """The option because of which outputs are written token by token, each steered; empty: there is none."""
    shortlist: Shortlist | None = None
    """Which target tokens a source may need, if this is known."""

    @property
    def output_tokenizer(self) -> Tokenizer | None:
        """What outputs are made of, for a language model of them. None: they are no texts of their own."""
        return None

    @property
    def text_tokenizer(self) -> Tokenizer | None:
        """What running text is made of, if the model predicts each token of it from those before it, so that
        it can take part in the search of others. None: it does not."""
        return None

    def forced_ids(self, record: Record) -> tuple[int, ...]:
        """Ids that every output for a record begins with. A search does not count their probability."""
        return ()

    @abstractmethod
    def spell(self, ids: Sequence[int]) -> str:
        """The text of output ids."""

    def tree_of(self, text: str) -> Tree | None:
        """The tree that an output spells, of which there are pictures; None: it is none."""
        return None

    @abstractmethod
    def pieces(self, ids: Sequence[int], record: Record) -> list[str]:
        """What each output id of a record is written as, such as its subword."""

    @abstractmethod
    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """The sequences of output ids that spell a phrase; empty if the output cannot have it."""

    def steering(self, records: Sequence[Record], lines: Sequence[int]) -> list[Steering]:
        """What is asked of the outputs of these records, such as how they begin.

        Args:
          records: what is decoded.
          lines: their numbers, for messages.
        """
        return []

    def check_search(self, settings: DecodingConfig) -> None:
        """Accepts all of them."""

    def consensus(self, outputs: list[Output]) -> list[Output]:
        """The different outputs by expected chrF, which becomes their score (minimum Bayes risk)."""
        return by_consensus(outputs)


def text_task(task: Task, option: str) -> TextTask:
    """The task, of which an option asks that its outputs are texts.

    Raises:
      UserError: they are not.
    """
    if not isinstance(task, TextTask):
        raise UserError(f"{option}: {task.config.system} writes no words; leave it out")
    return task


def spelling(task: Task) -> Callable[[Sequence[int]], str]:
    """The text of output ids, for rewards of text. It raises UserError if outputs have none."""
    return lambda ids: text_task(task, "--reward.reward").spell(ids)
