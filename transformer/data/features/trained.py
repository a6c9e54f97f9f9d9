"""The tokenizers of a corpus: from files, or trained on its text and cached."""

import hashlib
from collections.abc import Iterator

from transformer.config import DataConfig, SpecialIds
from transformer.data.corpus import Corpus, Progress, silent
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.tokenizers import load_tokenizer, train_tokenizer
from transformer.errors import UserError

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
        given = data.source_tokenizer or data.target_tokenizer
        both = load_tokenizer(given, special) if given else _trained(corpus, data, special, (0, 1), progress)
        return both, both
    source, target = (
        load_tokenizer(given, special) if given else _trained(corpus, data, special, (side,), progress)
        for side, given in enumerate((data.source_tokenizer, data.target_tokenizer))
    )
    return source, target


def _trained(
    corpus: Corpus, data: DataConfig, special: SpecialIds, sides: tuple[int, ...], progress: Progress
) -> Tokenizer:
    languages = "".join("st"[side] for side in sides)
    recipe = hashlib.blake2b(repr(special).encode(), digest_size=4).hexdigest()
    kept = corpus.folder / f"{data.tokenizer}-{data.vocab_size}-{languages}-{recipe}.model"
    if not kept.exists():
        pairs = corpus.splits["train"]

        def texts() -> Iterator[str]:
            for pair in progress("vocabulary", pairs, len(pairs)):
                yield from (pair[side] for side in sides)

        tokenizer = train_tokenizer(texts(), data.tokenizer, data.vocab_size, special)
        try:
            tokenizer.save(kept)
        except OSError as error:
            raise UserError(
                f"cannot store the vocabulary in {kept}: {error.strerror}; choose another folder with "
                "--data.cache-dir"
            ) from error
    return load_tokenizer(kept, special)
