"""Trains and loads tokenizers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from transformer.config import SpecialIds
from transformer.config.ranges import any_number, shown, whole_number
from transformer.data.features import chinese  # noqa: F401  # registers itself
from transformer.data.features.characters import KINDS
from transformer.data.features.hub import HubTokenizer
from transformer.data.features.marian import MarianTokenizer
from transformer.data.features.pieces import PiecesTokenizer
from transformer.data.features.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.data.features.vocabulary import train_sentencepiece
from transformer.data.features.words import read_vocabulary
from transformer.data.remote import fetched
from transformer.runtime.errors import UserError
from transformer.runtime.files import LARGEST_FILE, parse_object, read_bytes

IMPORTED: dict[str, type[PiecesTokenizer] | type[HubTokenizer]] = {
    kind.kind: kind for kind in (PiecesTokenizer, MarianTokenizer, HubTokenizer)
}
"""The tokenizers of imported models, by what a saved one is called."""
_STANDARD_IDS = SpecialIds()
_BY_SENTENCEPIECE = ("unigram", "bpe", "char")
"""The kinds that SentencePiece trains."""


def train_tokenizer(
    texts: Iterable[str],
    kind: str,
    vocab_size: int,
    special: SpecialIds = _STANDARD_IDS,
    languages: Sequence[str] = (),
) -> Tokenizer:
    """Trains a vocabulary of `vocab_size` ids (of characters and words: at most that many) on lines, with a
    code for each of the languages.

    Unigram: Kudo 2018; bpe: Sennrich et al. 2016; both by SentencePiece (Kudo and Richardson 2018), with byte
    fallback for rare characters. The same lines give the same vocabulary. Raises UserError for an empty
    corpus, text that is not Unicode, an unknown kind, and an impossible size.
    """
    lines = _strings(any_number("texts", texts, "lines"))
    kinds = [*_BY_SENTENCEPIECE, *KINDS]
    if kind not in kinds:
        raise UserError(f"kind {shown(kind)}: choose {' or '.join(kinds)}")
    size = whole_number("vocab_size", vocab_size)
    if len(set(astuple(special))) < 4 or min(astuple(special)) < 0:
        raise UserError(f"{_listed(special)}: a tokenizer needs four different special ids")
    if kind in KINDS:
        return KINDS[kind].train(lines, size, special, languages)
    return SentencePieceTokenizer(train_sentencepiece(lines, kind, size, special, languages))


def _strings(lines: Iterable[Any]) -> Iterator[str]:
    """Yields lines. Raises UserError if one is something else."""
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise UserError(f"texts, line {number}: must be a string, not {shown(line)}")
        yield line


def load_tokenizer(path: Path, special: SpecialIds = _STANDARD_IDS) -> Tokenizer:
    """Loads a tokenizer from a file: any SentencePiece model, or a vocabulary saved by this package.

    Raises UserError if the file is missing, is something else, or has other ids than `special`.
    """
    try:
        content = read_bytes(fetched(path, LARGEST_FILE))
    except OSError as error:
        raise UserError(f"{path}: the tokenizer cannot be read: {error.strerror}") from None
    try:
        tokenizer = _read(content)
    except (AttributeError, ValueError, KeyError, TypeError, RuntimeError, UserError):
        raise UserError(f"{path}: neither a SentencePiece model nor a saved vocabulary") from None
    if tokenizer.special != special:
        raise UserError(
            f"{path}: its special ids are {_listed(tokenizer.special)} (-1: none), but must be "
            f"{_listed(special)}: train a tokenizer here, or elsewhere with these ids"
        )
    return tokenizer


def _read(content: bytes) -> Tokenizer:
    if not content.startswith(b"{"):
        return SentencePieceTokenizer(content)
    saved = parse_object(content.decode())
    if saved["kind"] in IMPORTED:
        return IMPORTED[saved["kind"]].read(saved)
    return read_vocabulary(saved)


def _listed(special: SpecialIds) -> str:
    return ", ".join(f"{name} {index}" for name, index in asdict(special).items())
