"""Whether there is text, which characters are no part of a phrase and which a terminal would obey, and what a
word is in any script: the one rule of all."""

import re

import regex

_VISIBLE = re.compile(
    "[^"
    r"\s\x00-\x1f\x7f-\x9f"  # white space and control characters
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # Default_Ignorable_Code_Point of Unicode 17,
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"  # with what it reserves for later versions
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ufff9-\ufffb\u2800"  # marks of interlinear annotations, the blank pattern of braille
    "]"
)
_FORMATTING = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"  # control characters that are no white space
    "\u00ad\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"  # the soft hyphen, marks of direction, ...
    # a zero-width space divides words of Thai, Lao, Burmese and Khmer
    "|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b"
)


def has_text(text: str) -> bool:
    """Whether a text has a visible character.

    Not visible are white space, control characters, and what Unicode says to leave blank: the zero-width
    space, joiners, the byte order mark, the soft hyphen, marks of direction, variation selectors, Hangul
    fillers. The rule is a list and not a lookup of categories, whose members differ between versions of
    Python: a corpus must not. What Unicode has not assigned counts as visible.
    """
    return _VISIBLE.search(text) is not None


def without_invisible(line: str) -> str:
    """The line; nothing if it is invisible. Lines of white space remain, so that corpora which have no other
    lines without text keep their hashes."""
    return "" if is_invisible(line) else line


def without_formatting(phrase: str) -> str:
    """A phrase that a user names, without the invisible characters that come along when text is copied:
    no output would have the phrase with them. Joiners and variation selectors remain, which belong to words
    (Persian, scripts of India) and emoji."""
    return _FORMATTING.sub("", phrase)


def is_invisible(line: str) -> bool:
    """Whether a line has characters besides white space, and none is visible."""
    return bool(line.strip()) and not has_text(line)


def printable(text: object) -> str:
    """Text with control characters escaped, which a terminal would obey."""
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape").decode()
        for character in str(text)
    )


# What a word is, in any script: the one rule of metrics, glossaries, confidence, marks and flags.


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


def words(text: str) -> list[str]:
    """The words of a text, without signs."""
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
    return {at for match in WORD.finditer(text) for at in range(match.start() + 1, match.end())}
