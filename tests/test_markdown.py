"""Markdown: with a model that copies, a document stays as it is; with another one, its structure does."""

import itertools
import re
import time
import tracemalloc
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import random_markdown
from markdown_it import MarkdownIt
from python_calls import python_calls
from test_documents import Pretender

from transformer.documents import syntax
from transformer.documents.document import check_text
from transformer.documents.markdown import read_markdown
from transformer.documents.projection import aligned_words
from transformer.runtime.errors import UserError
from transformer.runtime.words import words

HTML = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def html(markdown):
    """Without white space that no browser shows: several ones, beside a break, and at the edges of cells."""
    rendered = re.sub(r"[ \n\r\t\f\v\x1c-\x1e\x85\u2028\u2029]+", " ", HTML.render(markdown)).strip()
    rendered = re.sub(r"<br ?/?> ?", "<br />", rendered)
    return re.sub(r"(<t[hd][^>]*>) | (?=</t[hd]>|<br />)", r"\1", rendered)


def copied(text):
    return Pretender(longest=10_000).translate_document(text, "markdown").text


def in_capitals(text):
    """What is written of a document if every letter that is not copied becomes a capital. None: some passage
    cannot be written, and a translation would say so of it."""
    document = read_markdown(text)

    def written(passage):
        content = passage.content
        letters = list(content.text.upper())
        for mark in content.marks:
            if mark.literal is not None:
                letters[mark.start : mark.end] = content.text[mark.start : mark.end]
        return passage.write(replace(content, text="".join(letters)))

    results = list(map(written, document.passages))
    return None if None in results else document.written(results)


KEPT = {
    "badge": "[![build](b.svg)](ci)\n",
    "badge in a heading": "# Name [![build](b.svg)](ci) [![two](c.svg)](d)\n",
    "badge in a line": "A dog [![runs](b.svg)](ci) here.\n",
    "picture between sentences": "A dog. ![x](y) Then. ![a](x)![b](y)\n",
    "picture in bold type": "**![bold](b.svg)** and **A dog. ![x](y)** Then.\n",
    "picture in a tag": "<b>![x](y.png)</b>\n",
    "a line break alone in a tag": "A dog<b>  \n</b>runs.\n",
    "picture in a cell": "| a |\n|---|\n| [![x](y)](z) |\n",
    "wrapped lines": "One two\nthree. Four\n  five\n> six\nseven\n",
    "ends of lines": "# a\r\n\r\n- b  \r\n  c\\\r\n  d\r\rx\n```\r\ncode\r\n```\r\n",
    "footnotes": "One[^1] and two[^b].\n\n[^1]: First note.\n[^b]: Second *note*.\n\n    More.\n",
    "alert": "> [!TIP]\n> Look here.\n> And there.\n",
    "alert with a title": "> [!NOTE] Title\n>\n> Look here.\n",
    "admonition": '!!! note "Look"\n    First line.\n    Second line.\n\n    - item\n',
    "foldable admonition": '???+ note "Look"\n\n    First line.\n',
    "tab": '=== "Linux"\n\n    First line.\n\n=== "Other"\n\n    Second line.\n',
    "formula": "Text.\n\n$$\nx_1 * y_2\n= z\n$$\n\nSo $a_1 * b$ is *it*.\n",
    "definition": "Dog\n:   An animal.\n\n    More.\n",
    "front matter": '+++\ntitle = "Dogs"\n+++\n\nText.\n',
    "front matter of YAML": "\ufeff---\r\ntitle: Dogs\r\n---\r\nText.\r\n",
    "template": "{% if dog %}\nIt runs to {{ a*b*c }}.\n{% endif %}\n",
    "template of two lines": "{% include x\n   y=z %}\nIt runs.\n",
    "container": ":::note\nInside.\n:::\n",
    "tasks": "- [x] one\n- [ ] two\n",
    "attributes": "# Title {#id .cls}\n\nText.\n{: .big }\n\n[TOC]\n\n*[HTML]: Hyper Text\n",
    "emoji": "A :smile: here. It is 10:30:45.\n",
    "bold sentences": "**日本。猫。**\n\n**A dog. A cat.** *B*\n",
    "definition of a link that is none": "\\[r]: /x\n",
    "empty link": "[](x) and ` ` and <b> </b>.\n",
    "reference": "[a b] [c][] [d][a b]\n\n[a b]: x 'y'\n[c]: <z w>\n",
    "number in a numbered list": "1. 1\n2. a 2\n10) x\n",
    "closed heading": "# # a # #\n\na *b*\n===\n",
    "row in a list": "- | a | b\\|c |\n  |---|---|\n  | `x\\|y` d | - |\n",
    "row without edges": "1. a | 1\n   --|--\n   1 | 2\n",
    "tags of several lines": "a <!-- c\nd --> e [x](y 'z\nw') f\n",
    "white space of entities": "&nbsp;A dog&ensp;&#160;\n\n# A&nbsp;\n\n- a `b` &nbsp;\n\n|&#xa0; a|\n|-|\n",
    "white space alone on a line": "&nbsp;  \n[](x) A dog\n",
    "separators": "a\x0cb\x0bc\x1cd\u2028e\x85f\n\ng\n",
    "address with emphasis": "See http://a.b/**c** or https://x.y/a_b*c now.\n",
}


@pytest.mark.parametrize("name", KEPT)
def test_a_model_that_copies_changes_no_byte(name):
    text = KEPT[name]
    document = Pretender(longest=10_000).translate_document(text, "markdown")
    assert document.text == text
    assert "".join(p if isinstance(p, str) else p.write(p.content) for p in read_markdown(text).parts) == text


@pytest.mark.parametrize("name", KEPT)
def test_other_words_leave_the_structure(name):
    assert html(in_capitals(KEPT[name])).lower() == html(KEPT[name]).lower()


def test_text_of_extensions_is_translated_and_their_signs_are_not():
    text = "".join(
        KEPT[name] + "\n"
        for name in (
            "footnotes",
            "alert",
            "admonition",
            "tab",
            "definition",
            "template",
            "container",
            "tasks",
        )
    )
    document = Pretender(spell=lambda word: f"{word}X", longest=10_000).translate_document(text, "markdown")
    assert re.match(r"OneX.*\n\n\[\^1\]: FirstX note.X\n\[\^b\]: SecondX .*\n\n    More.X\n", document.text)
    for line in (
        "> [!TIP]\n> LookX",
        '!!! note "LookX"\n    FirstX',
        '=== "Linux"',
        "\n:   AnX",
        "{% if dog %}\nItX",
    ):
        assert line in document.text
    for line in ("runsX toX {{ a*b*c }}", ":::note\nInside.X\n:::", "- [x] oneX\n- [ ] twoX\n"):
        assert line in document.text
    assert [sentence.source for sentence in document.flagged if "not read" in sentence.flags] == [
        '=== "Linux"',
        '=== "Other"',
    ]


def test_text_after_the_sign_of_an_alert_is_translated():
    for sign in ("[!NOTE]", "[!x]", "[!tip]-"):
        text = f"> {sign} Look *here\n> and* there.\n> Then go.\n"
        upper = f"> {sign} LOOK *HERE\n> AND* THERE. THEN GO.\n"
        assert in_capitals(text) == upper
        assert in_capitals(text.replace("> ", "> > ")) == upper.replace("> ", "> > ")
        assert in_capitals(f"> {sign}  \n> Look.\n") == f"> {sign}  \n> LOOK.\n"
    assert in_capitals("> [!x] a<br>\n> b\n> c\n") == "> [!x] A<br> B C\n"
    assert in_capitals("> [!note]look\n") == "> [!NOTE]LOOK\n"
    assert in_capitals("> [!note](x) look\n") == "> [!NOTE](x) LOOK\n"
    assert in_capitals("> [!NOTE] ![a](b)\n> c\n> d\n") == "> [!NOTE] ![a](b) C D\n"


BRACED = ["{#id .class key=value}", "{ .x -}", "{: toc }", '{ width="3 0" }', "{{ x }}", "{% x y %}", "{# #}"]
SIGNS = ["::: note", ":::", "::: {.a b=c}", "::: a.b ::::", "/// note", "///", '--8<-- "a b"', "[TOC]"]


def test_what_stays_looks_like_a_sign_and_all_else_is_translated_or_flagged():
    for line in (*BRACED, *SIGNS):
        assert read_markdown(f"{line}\n").parts == [f"{line}\n"]
        assert in_capitals(f"Go.\n{line}\n") == f"GO.\n{line}\n"
    for sign in BRACED:
        assert in_capitals(f"# Go {sign}\n") == f"# GO {sign}\n"
    for sentence in ("{It stands in braces.}", "{.net is it}", "{#one two}", "/// It runs.", "-8<- It runs."):
        assert in_capitals(f"{sentence}\n") == f"{sentence.upper()}\n"
    for title in ("/// note | It runs", "::: warning It runs"):
        assert read_markdown(f"Go.\n{title}\n").unread == ((2, title),)
    assert read_markdown("![a dog](x) [b](c 'a dog')\n").passages[0].content.text.strip() == "b"


def documents(seeds):
    for seed in seeds:
        random = Random(seed)
        yield seed, random_markdown.soup(random) if seed % 2 else random_markdown.document(random)


@pytest.mark.parametrize(
    "seeds", [range(80), pytest.param(range(80, 20_080), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_documents_are_copied_byte_for_byte(seeds):
    pretender = Pretender(longest=10_000)
    for seed, text in documents(seeds):
        assert pretender.translate_document(text, "markdown").text == text, seed


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seeds", [range(80), pytest.param(range(80, 20_080), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_documents_in_capitals_render_as_before(seeds):
    unwritten = 0
    for seed in seeds:
        text = random_markdown.document(Random(seed), more=False)
        if (capitals := in_capitals(text)) is None:
            unwritten += 1
        else:
            assert html(capitals).lower().split() == html(text).lower().split(), seed
    assert unwritten <= len(seeds) / 1000


@pytest.mark.parametrize(
    "text",
    [
        "**&nbsp;** red\n",
        "red _&nbsp;_\n",
        "~~<br> &nbsp;~~ red\n",
        "<b>red https://a.b/c[\\* [![i](b.svg)](x) cat](d)</b>\n",
        "a | b\n---|---\n\\* red | dog\n",
    ],
)
def test_what_changes_can_be_written(text):
    assert html(in_capitals(text)).lower() == html(text).lower()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Add $HOME/bin to `$PATH` now.\n", "ADD $HOME/BIN TO `$PATH` NOW.\n"),
        ("Set $HOME to [dog](http://a.b/$x) now.\n", "SET $HOME TO [DOG](http://a.b/$x) NOW.\n"),
        ("The $PATH has <a href='$x'>dog</a> it\n", "THE $PATH HAS <a href='$x'>DOG</a> IT\n"),
        ("At $5, see http://a.b/$x dog\n", "AT $5, SEE http://a.b/$x DOG\n"),
        ("At [a $5](x) or US$ dog\n", "AT [A $5](x) OR US$ DOG\n"),
        ("It $$is `a$$` dog\n", "IT $$IS `a$$` DOG\n"),
        ("So $a_1 * b$ and $c<d$ and $`a`$ is *it*\n", "SO $a_1 * b$ AND $c<d$ AND $`a`$ IS *IT*\n"),
        ("So $\\text{``q''}$ dog\n", "SO $\\text{``q''}$ DOG\n"),
    ],
)
def test_no_formula_ends_in_code_a_link_or_a_tag(text, expected):
    assert in_capitals(text) == expected


def test_a_title_of_the_parser_is_not_called_unread():
    assert read_markdown("!!! note\n\n    A dog.\n").unread == ()


@pytest.mark.parametrize("line_break", random_markdown.BREAKS)
@pytest.mark.parametrize("sign", random_markdown.ESCAPED)
def test_a_sign_before_a_line_break_begins_no_block(sign, line_break):
    lines = sign.replace("  \n", line_break), "dog", "![x](y)"
    for order in itertools.permutations(lines):
        for prefix, following in ("", ""), ("> ", "> "), ("- ", "  "), ("> red\n", ""), ("- > red\n", ""):
            text = prefix + f"{line_break}{following}".join([*order, "red"]) + "\n"
            assert html(in_capitals(text)).lower() == html(text).lower(), text


@pytest.mark.parametrize(
    "text",
    [
        "|dog|red|\n|---|---|\n|dog|red|\n",
        "dog|red\n---|---\ndog|red\n",
        "- |dog&nbsp;|*red*|\n  |-|-|\n",
        "red&nbsp;\n",
        "# red &nbsp;\n",
        "red&nbsp;  \ndog\n",
        "red\n-|:-:\n--|--\nred | dog\n",
        "> red\n7\\. dog  \n8\\) red\n",
        "> red\n> -|:-:\n> --|--\n> red | dog\n",
    ],
)
@pytest.mark.parametrize("sign", ["\\", "|", " | dog"])
def test_a_sign_at_the_end_of_a_translation_is_no_sign_of_markdown(text, sign):
    pretender = Pretender(spell=lambda word: word.replace("red", f"red{sign}").replace("dog", f"dog{sign}"))
    document = pretender.translate_document(text, "markdown")
    if not any("not read" in sentence.flags for sentence in document.sentences):
        written = html(document.text).replace(sign, "")
        assert "".join(written.split()) == "".join(html(text).split())
    assert sign == " | dog" or not document.flagged


@pytest.mark.parametrize("sign", ["*", "-", ">", "#", "1.", "<!--", "```", "***"])
def test_a_first_cell_without_a_sign_before_it_begins_no_block(sign):
    pretender = Pretender(spell=lambda word: f"{sign} RED" if word == "red" else word)
    written = html(pretender.translate_document("> a | b\n> ---|---\n> red | dog\n> red\n", "markdown").text)
    assert written.count("<td>") == 4
    assert written.count(" RED</td>") == 2


def test_a_row_without_signs_at_its_ends_has_no_empty_cell_there():
    text = "red | cat | dog\n---|---|---\n"
    silent = Pretender(order=lambda words: [])
    document = silent.translate_document(text, "markdown")
    assert document.text == text.replace("cat", "")
    assert ["not read" in sentence.flags for sentence in document.sentences] == [True, False, True]
    assert silent.translate_document("| red | cat |\n|---|---|\n", "markdown").text == "|  |  |\n|---|---|\n"


BESIDE = {
    "![x](y) **dog** runs\n": "![x](y) **DOG** RUNS\n",
    ":smile: *dog* [cat](x)\n": ":smile: *DOG* [CAT](x)\n",
    "A cat[^1] runs, $x$ *is* red.\n\n[^1]: dog\n": "A CAT[^1] RUNS, $x$ *IS* RED.\n\n[^1]: DOG\n",
    "| red<br>dog | <br/>**cat**<br> |\n|--|--|\n": "| RED<br>DOG | <br/>**CAT**<br> |\n|--|--|\n",
    "# red [<br>](x) dog\n": "# RED [<br>](x) DOG\n",
    "# red <BR />dog<br><br>cat\n": "# RED <BR />DOG<br><br>CAT\n",
    "> ![x](y)  \n> red  \n> dog\\\n> cat\n": "> ![x](y)\\\n> RED  \n> DOG\\\n> CAT\n",
    "red  \n![x](y)\n": "RED\\\n![x](y)\n",
    "`a`**<!-- c --><br>cat** dog\n": "`a`<!-- c --><br>**CAT** DOG\n",
    "\ufeff# red\n\n    dog\n": "\ufeff# RED\n\n    dog\n",
}


@pytest.mark.parametrize(("text", "expected"), BESIDE.items(), ids=range(len(BESIDE)))
def test_what_has_no_words_stays_where_it_is(text, expected):
    document = Pretender(spell=str.upper).translate_document(text, "markdown")
    assert (document.text, document.flagged) == (expected, [])


@pytest.mark.parametrize("format", ["text", "markdown"])
def test_an_output_of_several_lines_becomes_one(format):
    pretender = Pretender(spell=lambda word: f"{word}\n\n# x")
    assert pretender.translate_document("- red\n", format).text == "- red # x\n"


def test_lines_without_a_translation_end_no_paragraph():
    pretender = Pretender(order=lambda words: words[1:])
    document = pretender.translate_document("> Red.  \n> A cat.  \n> Red.\\\n> A dog.\n", "markdown")
    assert document.text == "> \\\n> cat.\\\n> \\\n> dog.\n"


def test_an_underlined_heading_becomes_no_table():
    pretender = Pretender(spell=lambda word: f"{word}|")
    document = pretender.translate_document("red\n---\n", "markdown")
    assert (document.text, document.sentences[0].flags) == ("red\n---\n", ("not read",))


def test_a_sentence_without_translation_leaves_no_space():
    pretender = Pretender(order=lambda words: words[1:])
    assert pretender.translate_document("- One. Two dogs.\n  ---\n", "markdown").text == "- dogs.\n  ---\n"


def test_deep_blocks_are_read_or_flagged():
    for sign, levels in ((">", 40), (">", 100), ("- ", 25), ("- ", 60)):
        text = f"{sign * levels} word\n"
        document = Pretender(spell=str.upper).translate_document(text, "markdown")
        is_read = (levels < 60 and sign == ">") or levels < 30
        assert document.text == (text.upper() if is_read else text)
        assert [sentence.flags for sentence in document.sentences] == [() if is_read else ("not read",)]


def test_deep_marks_are_flagged():
    for levels in 50, 62, 2_000:
        text = f"{'<b>' * levels}word{'</b>' * levels}\n"
        document = Pretender(spell=str.upper).translate_document(text, "markdown")
        assert document.text == (text.replace("word", "WORD") if levels < 60 else text)
        assert [sentence.flags for sentence in document.sentences] == [() if levels < 60 else ("not read",)]


def test_what_is_copied_beside_letters_takes_no_word():
    copier = Pretender(spell=lambda word: word.replace("runs", "RUNS"))
    document = copier.translate_document("The `dog`s runs.\n", "markdown")
    assert (document.text, document.flagged) == ("The `dog`s RUNS.\n", [])
    document = Pretender(spell=str.upper).translate_document("The `dog`s run.\n", "markdown")
    assert (document.text, document.sentences[0].flags) == ("THE `dog`S RUN.\n", ())
    document = Pretender(spell=lambda word: word[::-1]).translate_document("The `dog`s run.\n", "markdown")
    assert (document.text, document.sentences[0].flags) == ("ehT `dog` sgod .nur\n", ("markup",))


@pytest.mark.parametrize(
    "copied", ["`code`", "`a-b`", "``it's``", "<http://a.b/c>", "http://a.b/c", "<x@y.zz>"]
)
@pytest.mark.parametrize("sign", ["-", "'", "’", "", " "])
def test_what_is_copied_takes_no_other_word(copied, sign):
    """Neither one that is joined to it nor, if the translation does not have it, one that is near."""
    orders = (list, lambda words: words[::-1], lambda words: words[1::2], lambda words: words[:1])
    spellings = (
        str.upper,
        lambda word: word[::-1],
        lambda word: f"{word.upper()}-MODUL",
        lambda word: f"L'{word.title()}",
        lambda word: "OTHER WORDS",
    )
    plain, pretender = copied.strip("`<>"), Pretender()
    for order, spell in itertools.product(orders, spellings):
        pretender.order, pretender.spell = order, spell
        for term in (f"dog{sign}{copied}", f"{copied}{sign}dog", f"dog{sign}{copied}{sign}cat"):
            text = f"A {term} runs red {copied} house\n"
            document = pretender.translate_document(text, "markdown")
            (sentence,) = document.sentences
            replaced = {*words(spell(plain).lower())} - {"modul", "l"} if "-" not in plain else set()
            written = re.sub("[`<>]", "", document.text.lower())
            lost = {*words(sentence.text.lower())} - {*words(written)} - replaced
            assert sentence.flags or not lost, (text, document.text)


def test_words_that_the_model_did_not_read_are_not_aligned():
    """A text of ideographs without sentences may be long."""
    tokens = list("日" * 4_000)
    tracemalloc.start()
    pair = aligned_words("日" * 4_000, "ab", tokens, ["a", "b"], np.eye(3, 9))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pair.weights.shape == (1, 4_000)
    assert peak < 10 * 2**20


def test_signs_that_cannot_stand_between_letters_become_tags():
    """CommonMark closes no emphasis after a sign and before a letter."""
    (passage,) = read_markdown("x **a b** y\n").passages
    (mark,) = passage.content.marks
    text = "太郎（たろう）は"
    content = replace(passage.content, text=text, marks=(replace(mark, start=0, end=7),))
    assert html(passage.write(content)) == "<p><strong>太郎（たろう）</strong>は</p>"


def test_what_has_no_alignment_keeps_its_marks():
    class Unaligned(Pretender):
        def stream(self, records, **options):
            for outputs in super().stream(records, **options):
                yield [replace(output, alignment=None) for output in outputs]

    document = Unaligned(spell=str.upper).translate_document("A [dog](x) has `code`.\n", "markdown")
    assert "](x)" in document.text
    assert "`code`" in document.text
    assert document.sentences[0].flags == ("markup",)


@pytest.mark.parametrize("format", ["text", "markdown"])
def test_what_is_no_text_is_refused(format):
    for text in ("\ud800", "ok \udfff"):
        with pytest.raises(UserError, match="lone surrogate"):
            Pretender().translate_document(text, format)
    for other in (None, 3, b"a"):
        with pytest.raises(UserError, match="document must be text, not"):
            check_text(other)


@pytest.mark.parametrize("passage", ["|a|\n|-|\n", "1. a\n\n", "a\n\n"])
def test_translating_takes_time_in_proportion_to_passages(passage):
    def calls(count):
        return python_calls(lambda: copied(passage * count))

    calls(2)
    assert calls(800) < 4 * calls(200)


def test_reading_a_passage_again_copies_no_footnotes_and_addresses():
    environment = {"references": {}, "footnotes": {"refs": {}, "list": {}}}
    again = syntax.copied(environment)
    environment["references"]["R"], environment["footnotes"]["refs"][":1"] = {"href": "x", "title": ""}, 0
    environment["footnotes"]["list"][0] = {"label": "1", "count": 1}
    assert "R" in again["references"]
    assert ":1" in again["footnotes"]["refs"]
    tokens = syntax.markdown_parser().parse("[^1] [^2] [r]\n\n[^2]: b\n\n[s]: y\n", again)
    types = [token.type for token in tokens[1].children if token.type != "text"]
    assert types == ["footnote_ref", "footnote_ref", "link_open", "link_close"]
    assert environment["references"].keys() == {"R"}
    assert environment["footnotes"]["refs"] == {":1": 0}
    assert environment["footnotes"]["list"].keys() == {0}


def test_each_piece_of_a_paragraph_looks_at_its_own_marks():
    pretender = Pretender(longest=10_000)

    def calls(count):
        document = read_markdown("*a*  \n" * count)
        return python_calls(lambda: list(pretender._pieces(document, 10_000)))

    calls(2)
    assert calls(800) < 5 * calls(200)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sign", ["<b>", "<b>x</b>", "`x` ", "![](x)", "[a](b) ", "*a* ", "http://a.b ", "[", "**a ", "$a$ "]
)
def test_reading_takes_time_in_proportion(sign):
    def seconds(count):
        begin = time.process_time()
        read_markdown(f"word {sign * count}\n")
        return time.process_time() - begin

    seconds(10)
    assert seconds(2_000) < max(12 * seconds(500), 1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("sign", ["{% a ", "{{ a ", "{# a ", "aaaaa", "{.a ", "{a=b "])
def test_what_is_open_is_read_once(sign):
    """A template or the name of an emoji that does not end."""

    def seconds(count):
        begin = time.process_time()
        assert not read_markdown(f":{sign * count}\n").unread
        return time.process_time() - begin

    seconds(10)
    assert seconds(24_000) < max(10 * seconds(6_000), 1.0)
