"""The vocabularies of a translation: stored ones, their sizes, and the languages that their texts are in."""

from dataclasses import replace
from pathlib import Path

from transformer.config import Config, DataConfig, text_data
from transformer.data.features.tokenizer import Tokenizer
from transformer.data.features.tokenizers import load_tokenizer
from transformer.data.features.trained import Tokenizers
from transformer.runtime.errors import UserError

SIDES = ("source", "target")


def stored_tokenizer(path: Path, config: Config, size: int) -> Tokenizer:
    """The tokenizer in a file.

    Raises:
      UserError: it has another number of ids than `size`, which the config expects.
    """
    tokenizer = load_tokenizer(path, config.model.special)
    if tokenizer.vocab_size != size:
        raise UserError(
            f"{path} has {tokenizer.vocab_size:,} ids but config.json expects {size:,}: they do not belong "
            "together"
        )
    return tokenizer


def in_languages(tokenizers: Tokenizers, data: DataConfig) -> Tokenizers:
    """Tokenizers for the languages that options name, where texts begin with codes.

    Raises:
      UserError: there is no code of such a language, or of one of the directions.
    """
    if not tokenizers:
        return tokenizers
    for side, (tokenizer, languages) in enumerate(
        zip(tokenizers, zip(*data.pairs, strict=True), strict=False)
    ):
        if not tokenizer.has_codes:
            raise UserError(
                f"--data.directions: texts of the given {SIDES[side]} vocabulary begin with no code of a "
                "language; leave out one of them"
            )
        for language in languages:
            tokenizer.in_language(language, "--data.directions, language")
    if not tokenizers[0].has_codes:
        return tokenizers
    named = zip(SIDES, tokenizers, data.named_languages, strict=True)
    source, target = (
        tokenizer if language is None else tokenizer.in_language(language, f"--data.{side}-language")
        for side, tokenizer, language in named
    )
    return source, target


def with_vocabulary(config: Config, tokenizers: Tokenizers) -> Config:
    """The config, with the sizes of the vocabularies.

    Raises:
      UserError: it has another size.
    """
    source, target = (tokenizer.vocab_size for tokenizer in tokenizers)
    model = config.model
    if model.vocab_size and model.vocab_size != source:
        raise UserError(
            f"--model.vocab-size {model.vocab_size} but the tokenizer has {source} ids: leave it out"
        )
    separate = None if text_data(config).joint_vocabulary else target
    return replace(config, model=replace(model, vocab_size=source, target_vocab_size=separate))
