"""The tokenizers of a corpus: from files, or trained on its text and cached."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from transformer.config import DataConfig, SpecialIds
from transformer.data.corpus import Corpus, Progress, silent
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.tokenizers import load_tokenizer, train_tokenizer
from transformer.data.features.vocabulary import VocabularyTooLarge
from transformer.runtime.errors import UserError
from transformer.runtime.text import is_invisible

Tokenizers = tuple[Tokenizer, Tokenizer]
"""Of source and target, the same object if the vocabulary is joint."""


def corpus_tokenizers(
    corpus: Corpus, data: DataConfig, special: SpecialIds, progress: Progress = silent
) -> Tokenizers:
    """The tokenizers of source and target (the same one if the vocabulary is joint): from the files in the
    config, or trained on the training text on first use and cached.

    Raises:
      UserError: a file is not a tokenizer, or the vocabulary is too large for the text.
    """
    if data.joint_vocabulary:
        path = data.source_tokenizer or data.target_tokenizer
        both = load_tokenizer(path, special) if path else _trained(corpus, data, special, (0, 1), progress)
        return both, both.as_target() if both.one_language else both
    tokenizers, refusals = list[Tokenizer](), list[VocabularyTooLarge]()
    for side, path in enumerate((data.source_tokenizer, data.target_tokenizer)):
        try:
            tokenizers.append(
                load_tokenizer(path, special) if path else _trained(corpus, data, special, (side,), progress)
            )
        except VocabularyTooLarge as error:
            refusals.append(error)
    if refusals:
        least = min(refusals, key=lambda error: error.largest)
        _check_for_both(corpus, data, special, least, progress)
        raise least
    source, target = tokenizers
    return source, target


def _check_for_both(
    corpus: Corpus, data: DataConfig, special: SpecialIds, least: VocabularyTooLarge, progress: Progress
) -> None:
    """Raises UserError if the size that one side yields at most is too small for the other."""
    for side, path in enumerate((data.source_tokenizer, data.target_tokenizer)):
        if not path and least.largest:
            try:
                _trained(corpus, replace(data, vocab_size=least.largest), special, (side,), progress)
            except UserError as error:
                raise UserError(
                    f"{least}. But no size works for both sides ({error}): take one vocabulary for them "
                    "(--data.joint-vocabulary), or --data.tokenizer char"
                ) from error


def _trained(
    corpus: Corpus, data: DataConfig, special: SpecialIds, sides: tuple[int, ...], progress: Progress
) -> Tokenizer:
    def texts() -> Iterator[str]:
        pairs = corpus.splits["train"]
        for pair in progress("reading for the vocabulary", pairs, len(pairs)):
            yield from (pair[side] for side in sides if not is_invisible(pair[side]))

    name = "".join("st"[side] for side in sides)
    languages = sorted({language for pair in data.pairs for language in pair})
    return trained(corpus, texts(), data.tokenizer, data.vocab_size, special, name, languages)


def trained(
    corpus: Corpus,
    texts: Iterable[str],
    kind: str,
    vocab_size: int,
    special: SpecialIds,
    name: str,
    languages: Sequence[str] = (),
) -> Tokenizer:
    """A tokenizer trained on texts of a corpus on first use, with a code for each of the languages, and
    cached in the corpus's folder.

    Raises:
      UserError: the vocabulary is too large for the text, or cannot be stored.
    """
    made_with = repr((special, *languages) if languages else special)
    recipe = hashlib.blake2b(made_with.encode(), digest_size=4).hexdigest()
    path = corpus.folder / f"{kind}-{vocab_size}-{name}-{recipe}.model"
    if not path.exists():
        tokenizer = train_tokenizer(texts, kind, vocab_size, special, languages)
        try:
            tokenizer.save(path)
        except OSError as error:
            raise UserError(
                f"cannot store the vocabulary in {path}: {error.strerror}; choose another folder with "
                "--data.cache-dir"
            ) from error
    return load_tokenizer(path, special)
