"""Where a text may be divided in time and over lines: at spaces, and between the characters of scripts that
write none between words."""

import regex

_CHARACTER = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"
"""Of a script without spaces."""
_WIDE = r"[\u3000-\u303f\uff00-\uff60\uffe0-\uffee--[\p{L}\p{N}]]"
"""Punctuation as wide as such a character."""
_BEFORE = r"[\p{Ps}\p{Pi}\u0e40-\u0e44\u0ec0-\u0ec4]"
"""What is not divided from the character after it: opening brackets and quotation marks, some vowels of Thai
and Lao."""
_AFTER = (
    r"[\p{P}\p{M}\u0e30-\u0e33\u0e45\u0e46\u0eb0-\u0eb3\u0ec6"  # vowels of Thai and Lao
    r"ーゝゞヽヾ々ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶ｡｣､･ｧ-ｯｰﾞﾟ～%％°℃￠--[\p{Ps}\p{Pi}]]"
)
"""What is not divided from the character before it, as no line begins with it (JIS X 4051): punctuation,
marks, small letters of Japanese."""
_UNIT = regex.compile(
    rf"{_BEFORE}*(?!{_AFTER}){_CHARACTER}{_AFTER}*"
    rf"|(?:(?={_WIDE}){_BEFORE})*(?:(?!{_BEFORE}*{_CHARACTER}|{_WIDE})\S)+(?:(?={_WIDE}){_AFTER})*"
    rf"|\S{_AFTER}*",
    regex.V1,
)
_JOINED = regex.compile(rf"{_CHARACTER}|{_WIDE}", regex.V1)


def units(text: str) -> list[str]:
    """The words of a text as spaces divide it; where a script writes none between words, its characters, each
    with the punctuation beside it."""
    words = text.split()
    return [unit for word in words for unit in _UNIT.findall(word)] if _JOINED.search(text) else words


def has_space(before: str, after: str, is_written: bool | None = None) -> bool:
    """Whether a space stands between two units that follow each other in a line: none between two characters
    of scripts without spaces, or their punctuation.

    Args:
      before: the first unit.
      after: the second one.
      is_written: whether the text has one. None: that is not known, and none stands beside such a character.
    """
    count = sum(_JOINED.match(side) is not None for side in (before[-1:], after[:1]))
    return not count if is_written is None else is_written and count < 2
