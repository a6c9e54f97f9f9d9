"""What a word is, in any script: the one rule of metrics, glossaries, confidence, marks and flags.

Unicode's properties decide (UTS #18, annex C; UAX #29, rule WB4): a word is letters, digits and underscores,
with the combining marks, joiners and soft hyphens after them. In scripts that write no spaces between words,
each character with its marks counts as one.
"""

import re

import regex

_AFTER = r"\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}"  # what belongs to the character before it
_LETTER = rf"[[\w\p{{N}}]--[{_AFTER}]]"
# Chinese and Japanese, and the scripts of South East Asia that have no spaces (line breaking class SA)
_UNSPACED = rf"[{_LETTER}&&[\p{{scx=Han}}\p{{scx=Hiragana}}\p{{scx=Katakana}}\p{{LB=SA}}]]"
_SPACED = rf"[{_LETTER}--{_UNSPACED}]"
_CHARACTER = rf"(?={_UNSPACED})\X[{_AFTER}]*"
_RUN = rf"{_SPACED}[{_SPACED}{_AFTER}]*"
_SIGN = rf"(?=[^\s\p{{Cc}}\p{{Cf}}{_LETTER}])(\X[{_AFTER}]*)"

WORD = regex.compile(rf"{_CHARACTER}|{_RUN}", regex.VERSION1)
"""A word, or a character of a script without spaces."""
WORD_OR_SIGN = regex.compile(rf"{_CHARACTER}|{_RUN}|{_SIGN}", regex.VERSION1)
"""A word, or a single sign such as a comma."""
UNIT = regex.compile(rf"{_CHARACTER}|{_RUN}(?:['’\-]{_RUN})*|{_SIGN}\1*", regex.VERSION1)
"""A word with apostrophes and hyphens inside, or a sign that stands once or several times."""
PIECE = regex.compile(rf"{_CHARACTER}|{_RUN}(?:['’\-]{_RUN})*|\S[{_AFTER}]*|.", regex.VERSION1 | regex.DOTALL)
"""A word with apostrophes and hyphens inside, or any other character with its marks: every text is the
concatenation of its pieces."""
_SPELLED = regex.compile(_SPACED, regex.VERSION1)
_CONTINUES = regex.compile(rf"[{_SPACED}{_AFTER}]", regex.VERSION1)
_UNSPACED_LETTER = regex.compile(_UNSPACED, regex.VERSION1)
_ENDS_UNSPACED = regex.compile(rf"(?:{_UNSPACED}[{_AFTER}]*|[。！？])\Z", regex.VERSION1)
LONGEST_ENDING = 32  # characters of a letter and its marks


_LATIN = re.compile(
    "[\0-\u00ac\u00ae-\u02ff]*"
)  # has no marks, joiners or soft hyphens, nor what is unspaced
_LATIN_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, without signs."""
    if _LATIN.fullmatch(text):  # four times faster
        return _LATIN_WORD.findall(text)
    return WORD.findall(text)


def begins_with_word(text: str) -> bool:
    """Whether a text begins with a word, or with a character of a script without spaces."""
    return WORD.match(text) is not None


def begins_spaced(text: str) -> bool:
    """Whether a text begins with a word of a script that has spaces between words."""
    return _SPELLED.match(text) is not None


def has_only_words(text: str) -> bool:
    """Whether a text has words and nothing else, not even spaces."""
    return bool(text) and "".join(words(text)) == text


def continues_word(character: str) -> bool:
    """Whether a character belongs to the word before it. A letter of a script without spaces does not; a
    mark does in any script."""
    return _CONTINUES.match(character) is not None


def is_unspaced(character: str) -> bool:
    """Whether a character is a letter of a script without spaces between words."""
    return _UNSPACED_LETTER.match(character) is not None


def ends_unspaced(text: str) -> bool:
    """Whether a text ends with a script without spaces, or with a mark of punctuation that has none after
    it."""
    return _ENDS_UNSPACED.search(text[-LONGEST_ENDING:]) is not None


def within_words(text: str) -> set[int]:
    """The positions in a text at which a division would cut a word."""
    return {position for match in WORD.finditer(text) for position in range(match.start() + 1, match.end())}
