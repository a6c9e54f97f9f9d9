"""Options of sentences whose words have labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from transformer.config.ranges import COUNTS, Range
from transformer.config.texts import SentencesConfig
from transformer.runtime.errors import UserError

COLUMNS = 1000


@dataclass(frozen=True)
class TaggedConfig(SentencesConfig):
    """Sentences whose words have labels, from CoNLL files or the built-in corpus."""

    dataset: str = "built-in"
    """Corpus: built-in (the sentences of the built-in treebank, with parts of speech). Ignored if files are
    given."""
    train: Path | None = None
    """Training sentences in a CoNLL file: on each line a word and its label, in columns separated by blanks
    or tabs, and an empty line after each sentence."""
    validation: Path | None = None
    """Validation sentences, a CoNLL file. Default: the last tenth of the training sentences."""
    test: Path | None = None
    """Test sentences, a CoNLL file, for the final evaluation. Default: the validation sentences."""
    word_column: Annotated[int, Range(1, COLUMNS)] | None = None
    """Column of the words in CoNLL files, from 1. None: the first, or the second if the first numbers the
    words; in CoNLL-U files FORM."""
    label_column: Annotated[int, Range(1, COLUMNS)] | None = None
    """Column of the labels in CoNLL files, from 1. None: the last; in CoNLL-U files UPOS, the universal part
    of speech."""
    spans: Literal["auto", "conlleval", "none"] = "auto"
    """Whether labels mark spans, such as B-NP I-NP O. conlleval: spans are scored too, as the program of that
    name counts them; none: they are not; auto: conlleval if all labels are O or begin with B-, I-, E- or S-;
    decided when a run begins."""
    built_in_size: Annotated[int, Range(10, COUNTS)] = 5_000
    """Number of training sentences to generate for the built-in corpus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_feature != SentencesConfig.text_feature:
            raise UserError("--data.text-feature: labels come from CoNLL files; leave it out")
        if self.tokenizer == "jieba":
            raise UserError("--data.tokenizer jieba: words are divided already; use char or word")
        if self.dataset != TaggedConfig.dataset:
            raise UserError(
                f"--data.dataset {self.dataset}: sentences with labels are built-in, or CoNLL files "
                "(--data.train)"
            )
