"""Vocabularies of Chinese words, which jieba segments."""

import functools
import itertools
import re
import warnings
from typing import Any

from transformer.data.features.words import CHARACTER, KINDS, WordTokenizer
from transformer.runtime.extras import library

_IS_CHARACTER = re.compile(f"[{CHARACTER}]")


class JiebaTokenizer(WordTokenizer):
    """Words as of `WordTokenizer`, but sequences of Chinese characters are segmented into words by jieba,
    with its dictionary and, for unknown words, its hidden Markov model.

    Raises:
      UserError: jieba is not installed.
    """

    kind = "jieba"

    @classmethod
    def pieces_of(cls, text: str, rule: int = 0) -> list[str]:
        pieces: list[str] = []
        for is_chinese, group in itertools.groupby(super().pieces_of(text, rule), _is_character):
            several = list(group)
            pieces += _segmenter().lcut("".join(several)) if is_chinese else several
        return pieces


def _is_character(piece: str) -> bool:
    return _IS_CHARACTER.fullmatch(piece) is not None


@functools.cache
def _segmenter() -> Any:
    """jieba's default segmenter. Its cache in the folder of temporary files is neither read nor written,
    since anyone can put a file there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of patterns that newer versions of Python warn of
        jieba = library("jieba")
    segmenter = jieba.Tokenizer()
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return segmenter


KINDS[JiebaTokenizer.kind] = JiebaTokenizer
