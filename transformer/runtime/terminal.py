"""How wide a terminal is, and the one rule by which lines are wrapped."""

import re
import unicodedata

# a command is one word, so that it can be copied
_WORDS = re.compile(r"(\s*)((?<=e with: )\S.*|\S+)")


def terminal_width() -> int:
    """Columns of the terminal, or 80 without one."""
    import shutil  # slow to import

    return shutil.get_terminal_size().columns


def wrapped(text: str, width: int, hanging: int = 0) -> str:
    """A text in lines of at most so many columns, divided between words alone: a word that is longer stays
    whole, so that a path can be copied, and so does the command after "Resume with: ". Lines that follow are
    indented as the first one is.

    Args:
      text: one or more lines.
      width: of the terminal, in columns.
      hanging: columns by which lines that follow are indented further.
    """
    lines = list[str]()
    for whole in text.split("\n"):
        following = whole[: len(whole) - len(whole.lstrip())] + " " * hanging
        line = ""
        for gap, word in _WORDS.findall(whole):
            if line and columns_of(line) + len(gap) + columns_of(word) > width:
                lines.append(line)
                line = following + word
            else:
                line += gap + word
        lines.append(line)
    return "\n".join(lines)


def columns_of(text: str) -> int:
    """How wide a terminal shows a text: letters of East Asia take two columns, marks above others none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.category(letter) in ("Mn", "Me") for letter in text)
