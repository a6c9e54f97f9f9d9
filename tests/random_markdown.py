"""Random documents of CommonMark, and of what GitHub and MkDocs add to it."""

from random import Random

WORDS = ["dog", "cat", "house", "red", "7", "big.", "It", "runs,", "(so)", "end!", "日本。", "猫", "é", "x"]
SIGNS = [
    *"*_`[]()<>!#~\\|$:{}^&-+=\"'",
    "**",
    "__",
    "~~",
    "](",
    "![",
    "``",
    "\\*",
    "&amp;",
    "&copy;",
    "&nbsp;",
    "</b>",
]

ESCAPED = [
    "\\#",
    "\\##",
    "\\-",
    "\\+",
    "1\\.",
    "1\\)",
    "\\***",
    "\\---",
    "\\===",
    "\\- - -",
    "a | b  \n\\--|--",
    "\\>",
]
"""What would begin or end a block without its backslash, if it is alone on a line."""
BREAKS = ["  \n", "   \n", "\\\n", " \\\n"]


def inline(random: Random, depth: int = 0) -> str:
    """Text of a paragraph with marks."""
    return "".join(
        _piece(random, depth) + random.choice(["", " ", " ", " "]) for _ in range(random.randint(1, 5))
    )


def _piece(random: Random, depth: int) -> str:
    word = random.choice(WORDS)
    if depth > 2 or random.random() < 0.5:
        return " ".join(random.choices(WORDS, k=random.randint(1, 4)))
    inner = inline(random, depth + 1).strip()
    return random.choice(
        [
            f"**{inner}**",
            f"*{inner}*",
            f"_{inner}_",
            f"__{inner}__",
            f"~~{inner}~~",
            f"***{inner}***",
            f"`{word} x`",
            "` `",
            f"`` `{word} ``",
            f"[{inner}](a_b.md)",
            f"[{inner}](<c d> 'Ti \"t')",
            f"[{inner}][r]",
            "[r]",
            "[r][]",
            "[](x)",
            f"![{word}](x.png)",
            f"![{word}](x.png)![b](y)",
            f"[![{word}](b.svg)](ci)",
            f"![{word}][r]",
            "<https://a.b/c>",
            "https://a.b/c_d*e",
            f"<b>{inner}</b>",
            f"<i class='x'>{inner}</i>",
            "<br>",
            "<b> </b>",
            "<!-- c -->",
            "<b>",
            "  \n",
            "\\\n",
            "\n",
            random.choice(SIGNS),
            f"\\[{word}]",
            f"{word}*{word}*",
            f"{word}**{word}**{word}",
        ]
    )


def extra(random: Random) -> str:
    """Something that CommonMark does not know."""
    return random.choice(["[^1]", "$x_1 * y$", "{{ a*b*c }}", ":smile:", "{.cls}", "$5 and $6", "{% if x %}"])


def block(random: Random, depth: int = 0, more: bool = True) -> str:
    """A block."""
    text = inline(random)
    if more and random.random() < 0.2:
        text += extra(random)
    kinds = ["paragraph"] * 4 + [
        "signs",
        "heading",
        "underlined",
        "rule",
        "fence",
        "code",
        "html",
        "table",
        "refs",
    ]
    if depth < 3:
        kinds += ["quote", "list", "ordered", "quote", "list"]
        kinds += [
            "alert",
            "tasks",
            "admonition",
            "tab",
            "container",
            "template",
            "math",
            "terms",
            "note",
        ] * more
    lines = block(random, depth + 1, more).split("\n") if depth < 3 else ["end"]
    match random.choice(kinds):
        case "heading":
            return (
                f"{'#' * random.randint(1, 6)} {text.replace(chr(10), ' ')}{random.choice(['', ' #', ' ##'])}"
            )
        case "signs":
            lines = [random.choice([*ESCAPED, text.strip(), "![x](y)"]) for _ in range(3)]
            return "".join(line + random.choice(BREAKS) for line in lines) + random.choice(WORDS)
        case "underlined":
            return f"{text.strip()}\n{random.choice(['===', '---'])}"
        case "rule":
            return random.choice(["***", "---", "_ _ _"])
        case "fence":
            return random.choice(["```py\nx = *1*\n\n# no\n```", "~~~\n[a](b)\n~~~"])
        case "code":
            return "    a *b* c"
        case "html":
            return random.choice(
                [
                    "<div>stay *put*</div>",
                    "<!-- a\n\nb -->",
                    "<p>\nstay\n</p>",
                    "<details>\n\nhi *x*\n\n</details>",
                ]
            )
        case "table":
            cells = [
                text.replace("\n", " ").replace("|", "\\|") for text in (inline(random) for _ in range(4))
            ]
            edge = random.choice(["|", ""])
            return "\n".join(
                [
                    f"{edge} {cells[0] or 'a'} | {cells[1]} {edge}",
                    "|:--|---|",
                    f"{edge} {cells[2]} | {cells[3]} {edge}",
                    "| a |",
                ]
            )
        case "refs":
            return '[r]: /x "T"\n[s]: <a b>'
        case "quote":
            return "\n".join(f"> {line}" for line in lines)
        case "list":
            mark = random.choice("-+*")
            return "\n".join(
                f"{mark if not number else ' '} {line}" for number, line in enumerate(lines)
            ) + random.choice(
                ["", f"\n{mark} {random.choice(WORDS)} one", f"\n\n{mark} {random.choice(WORDS)} two"]
            )
        case "ordered":
            return (
                "\n".join(f"{'1.' if not number else '  '} {line}" for number, line in enumerate(lines))
                + "\n2. 2"
            )
        case "alert":
            return "\n".join(["> [!NOTE]", *(f"> {line}" for line in lines)])
        case "tasks":
            return f"- [x] {text.strip()}\n- [ ] two"
        case "admonition":
            return "\n".join(['!!! note "Look *here*"', *(f"    {line}" for line in lines)])
        case "tab":
            return "\n".join(['=== "Tab"', "", *(f"    {line}" for line in lines)])
        case "container":
            return "\n".join([":::note", *lines, ":::"])
        case "template":
            return "\n".join(["{% if dog %}", *lines, "{% endif %}"])
        case "math":
            return "$$\nx_1 * y_2\n= z\n$$"
        case "terms":
            return f"Dog *a*\n:   {text.strip()}\n:   x"
        case "note":
            return f"[^1]: {text.strip()}"
        case _:
            return text


def document(random: Random, more: bool = True) -> str:
    """A document of some blocks, with any ends of lines."""
    blocks = [block(random, 0, more) for _ in range(random.randint(1, 4))]
    text = "".join(part + random.choice(["\n\n", "\n\n", "\n"]) for part in blocks)
    text += random.choice(["", '[r]: /x "T"\n', "[^1]: Note *one*.\n" if more else ""])
    return text.replace("\n", random.choice(["\n", "\n", "\r\n", "\r"]))


def soup(random: Random) -> str:
    """Signs and words in any order."""
    signs = [
        *SIGNS,
        *WORDS,
        " ",
        " ",
        " ",
        "\n",
        "\n",
        "\n\n",
        "    ",
        "> ",
        "- ",
        "1. ",
        "# ",
        "```",
        "[^1]",
        "[^1]: ",
        "$$",
    ]
    signs += [
        "!!! note",
        "{%",
        "%}",
        ":::",
        "| a | b |\n|---|---|\n",
        "\t",
        "[r]: /x\n",
        "<div>",
        "<b>",
        "===",
        "\r\n",
        "\x0c",
    ]
    return "".join(random.choices(signs, k=random.randint(1, 30)))
