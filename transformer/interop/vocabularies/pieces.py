"""Writes the files of vocabularies that SentencePiece segments, as the families had them before
tokenizer.json; `files` reads them."""

import json
from collections.abc import Iterator

from transformer.data.features.codes import CODE
from transformer.data.features.pieces import PiecesTokenizer
from transformer.data.features.vocabulary import opened
from transformer.interop.vocabularies.files import BPE, FAIRSEQ, LANGUAGES, SPIECE, VOCABULARY
from transformer.runtime.files import Json

Written = tuple[dict[str, bytes], Json]
"""The content of files, and the options of tokenizer_config.json besides special words."""


def written_pieces(tokenizer: PiecesTokenizer) -> Written | None:
    """The files of a vocabulary. None: no family has its words in this order."""
    words = list(tokenizer.words)
    while words and words[-1] is None:  # rows without a word
        words.pop()
    return next(_layouts(tokenizer.model, words, opened(tokenizer.model)[1]), None)


def _layouts(model: bytes, words: list[str | None], pieces: list[str]) -> Iterator[Written]:
    """The layouts that a vocabulary has."""
    count = len(pieces)
    if words[:count] == pieces:
        sentinels = len(words) - count
        if words[count:] == [f"<extra_id_{number}>" for number in reversed(range(sentinels))]:
            yield {SPIECE: model}, {"tokenizer_class": "T5Tokenizer", "extra_ids": sentinels}
    if words[:2] == pieces[:2] and words[2:4] == ["<mask_1>", "<mask_2>"]:
        offset = len(words) - count
        if words[offset + 2 :] == pieces[2:]:
            yield {SPIECE: model}, {"tokenizer_class": "PegasusTokenizer", "offset": offset}
    begins = [*FAIRSEQ, *pieces[3:]]
    codes = [word for word in words[len(begins) : -1] if word and CODE.fullmatch(word)]
    if words == [*begins, *codes, "<mask>"]:
        kind = "NllbTokenizer" if codes and len(codes[0]) > len("en_XX") else "MBart50Tokenizer"
        yield {BPE: model}, {"tokenizer_class": kind, "additional_special_tokens": codes}
    for name, languages in LANGUAGES.items():
        named = [f"__{language}__" for language in languages]
        rest = words[: -len(named)]
        if words[-len(named) :] == named and None not in rest:
            ids = {word: index for index, word in enumerate(rest)}
            content = json.dumps(ids, ensure_ascii=False, indent=1).encode()
            about = {"tokenizer_class": "M2M100Tokenizer", "language_codes": name}
            yield {BPE: model, VOCABULARY: content}, about
