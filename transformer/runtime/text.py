"""Whether there is text: the one rule of corpora, vocabularies, decoding, scores and pages; and which
characters are no part of a phrase, and which a terminal would obey."""

import re

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


def printable(text: object, but: str = "\n\t") -> str:
    """Text with control characters escaped, which a terminal would obey, but for these. A name has none."""
    return "".join(
        character
        if character.isprintable() or character in but
        else character.encode("unicode_escape").decode()
        for character in str(text)
    )
