"""Prepares a corpus for training: tokenizers, token lengths, batches."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from transformer.config import DataConfig, SpecialIds
from transformer.data.batching import Batcher, Tokenizers, make_plan, token_lengths
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.tokenizers import load_tokenizer, train_tokenizer
from transformer.data.plans import Lengths
from transformer.data.sources.corpora import Corpus
from transformer.errors import UserError

Progress = Callable[[str, Iterable, int | None], Iterable]
"""(label, items, total) -> the same items, with progress shown."""


def silent(what: str, items: Iterable, total: int | None) -> Iterable:
    """No progress shown."""
    return items


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


@dataclass(frozen=True)
class TrainingData:
    """What the training loop needs."""

    corpus: Corpus
    tokenizers: Tokenizers
    batcher: Batcher
    lengths: Lengths


def prepare(
    corpus: Corpus,
    tokenizers: Tokenizers,
    data: DataConfig,
    *,
    host: int = 0,
    hosts: int = 1,
    progress: Progress = silent,
) -> TrainingData:
    """Counts the tokens (once per corpus and tokenizer) and plans the batches."""
    pairs = corpus.splits["train"]
    content = b"".join(tokenizer.content() for tokenizer in tokenizers)
    name = f"lengths-{hashlib.blake2b(content, digest_size=8).hexdigest()}.npy"
    lengths = token_lengths(
        pairs, tokenizers, corpus.folder / name, lambda items, total: progress("token lengths", items, total)
    )
    plan = make_plan(
        pairs,
        tokenizers,
        lengths,
        data,
        lambda items, total: progress("sampled segmentations", items, total),
    )
    return TrainingData(corpus, tokenizers, Batcher(pairs, tokenizers, plan, data, host, hosts), lengths)
