"""The tokenizers of a corpus: from files, or trained on its text and cached; and words and languages that are
added to one."""

import hashlib
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

from transformer.config.arguments import any_number, whole_number
from transformer.config.corpus import DataConfig
from transformer.config.model import SpecialIds
from transformer.config.ranges import instance, shown
from transformer.data.remote import fetched
from transformer.data.store import Corpus, Progress, silent
from transformer.data.tokenizers import words as chinese  # noqa: F401  # registers itself
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.lossless import VocabularyTooLarge, train_sentencepiece
from transformer.data.tokenizers.pieces import MarianTokenizer, PiecesTokenizer
from transformer.data.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer
from transformer.data.tokenizers.words import KINDS, read_vocabulary
from transformer.runtime.errors import UserError
from transformer.runtime.files import (
    LARGEST_FILE,
    brief_json,
    failing,
    fault_of,
    parse_object,
    read_bytes,
    read_text,
)
from transformer.runtime.text import is_invisible

# Trains and loads tokenizers.


IMPORTED: dict[str, type[PiecesTokenizer] | type[HubTokenizer]] = {
    cls.kind: cls for cls in (PiecesTokenizer, MarianTokenizer, HubTokenizer)
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
    lines = _strings(any_number("texts", texts, "lines"), "texts, line")
    kinds = [*_BY_SENTENCEPIECE, *KINDS]
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"kind {shown(kind)}: choose {' or '.join(kinds)}")
    size = whole_number("vocab_size", vocab_size)
    instance("special", special, SpecialIds)
    languages = tuple(_strings(any_number("languages", languages, "codes"), "languages, code"))
    if len(set(astuple(special))) < 4 or min(astuple(special)) < 0:
        raise UserError(f"{_listed(special)}: a tokenizer needs four different special ids")
    if kind in KINDS:
        return KINDS[kind].train(lines, size, special, languages)
    return SentencePieceTokenizer(train_sentencepiece(lines, kind, size, special, languages))


def _strings(texts: Iterable[Any], name: str) -> Iterator[str]:
    """Yields texts. Raises UserError if one is something else, with this name and its number."""
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(f"{name} {number}: must be a string, not {shown(text)}")
        yield text


def load_tokenizer(path: Path, special: SpecialIds = _STANDARD_IDS) -> Tokenizer:
    """Loads a tokenizer from a file: any SentencePiece model, or a vocabulary saved by this package.

    Raises UserError if the file is missing, is something else, or has other ids than `special`.
    """
    with failing(f"{path}: the tokenizer cannot be read"):
        content = read_bytes(fetched(path, LARGEST_FILE))
    try:
        tokenizer = _read(content)
    except (AttributeError, ValueError, KeyError, TypeError, RuntimeError, UserError) as error:
        is_told = content.startswith(b"{") or isinstance(error, UserError)
        reason = f" ({fault_of(error)})" if is_told else ""
        raise UserError(f"{path}: neither a SentencePiece model nor a saved vocabulary{reason}") from None
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
    is_imported = saved["kind"] in IMPORTED
    tokenizer = IMPORTED[saved["kind"]].read(saved) if is_imported else read_vocabulary(saved)
    for index in saved.get("start", ()):
        if type(index) is not int or not 0 <= index < tokenizer.vocab_size:
            raise UserError(f"start has {brief_json(index)}, not an id below {tokenizer.vocab_size}")
    return tokenizer


def _listed(special: SpecialIds) -> str:
    return ", ".join(f"{name} {index}" for name, index in asdict(special).items())


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
        pairs = corpus.sample or corpus.splits["train"]
        for pair in progress("reading for the vocabulary", pairs, len(pairs)):
            yield from (pair[side] for side in sides if not is_invisible(pair[side]))

    name = "".join("st"[side] for side in sides)
    languages = sorted({language for pair in data.pairs for language in pair})
    languages += sorted(data.tags) if 0 in sides else []
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
    stem = f"{kind}-{vocab_size}-{name}-{recipe}"
    for path in corpus.folder.glob(f"{stem}-*.model"):
        if path.name == _cached_name(stem, path.read_bytes()):  # it is not damaged
            return load_tokenizer(path, special)
    tokenizer = train_tokenizer(texts, kind, vocab_size, special, languages)
    path = corpus.folder / _cached_name(stem, tokenizer.content())
    with failing(f"cannot store the vocabulary in {path}", "; choose another folder with --data.cache-dir"):
        tokenizer.save(path)
    return load_tokenizer(path, special)


def _cached_name(stem: str, content: bytes) -> str:
    return f"{stem}-{zlib.crc32(content):08x}.model"


# Words and languages that are added to a vocabulary.


def read_words(path: Path) -> list[str]:
    """The words of a file, one per line.

    Raises:
      UserError: the file is missing, empty or no text, or a line is empty, has a space or a control
        character, or repeats a word.
    """
    option = f"--data.add-tokens {path}"
    try:
        text = read_text(fetched(path, LARGEST_FILE))
    except OSError as error:
        raise UserError(f"{option}: the file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{option}: the file is not text in UTF-8") from None
    lines: dict[str, int] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        word = line.removesuffix("\r")
        if not text:
            raise UserError(f"{option}: the file is empty: write one word on each line, or leave it out")
        if not word:
            raise UserError(f"{option}, line {number} is empty: write one word on each line")
        if len(word.split()) != 1 or word != word.strip():
            raise UserError(f"{option}, line {number}: {word!r} has a space: write one word on each line")
        if any(unicodedata.category(letter) == "Cc" for letter in word):
            raise UserError(f"{option}, line {number}: {word!r} has a control character; remove it")
        if word in lines:
            raise UserError(f"{option}, line {number}: {word!r} is on line {lines[word]} too; remove one")
        lines[word] = number
    return list(lines)


def first_new(old: Tokenizer, new: Tokenizer) -> int:
    """The first id of a grown vocabulary that the old one has not. In models with more rows than tokens it is
    one of these rows."""
    before, after = (vocabulary.stored_pieces(range(vocabulary.vocab_size)) for vocabulary in (old, new))
    pairs = enumerate(zip(before, after, strict=False))
    return next((index for index, (was, now) in pairs if was != now), len(before))


def replaced(old: Tokenizer, new: Tokenizer, first: int) -> list[list[int]]:
    """For each id that a vocabulary has been grown by, the old ids that it replaces: of a word those that
    spelled it, of the code of a language those of all other codes.

    Args:
      old: the vocabulary before.
      new: the grown one.
      first: the first added id.
    """
    codes = set(new.codes.values())
    pieces = enumerate(new.stored_pieces(range(first, new.vocab_size)), first)
    return [
        sorted(old.codes.values()) if index in codes else _spelling(old, piece)
        for index, piece in pieces
        if piece
    ]


def _spelling(tokenizer: Tokenizer, word: str) -> list[int]:
    ids = tokenizer.encode(word)[len(tokenizer.start) :]
    return [index if index < tokenizer.vocab_size else tokenizer.special.unk for index in ids]
