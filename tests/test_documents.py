"""Documents: what is no text stays as it is, what is marked stays marked, nothing is lost."""

import re
from pathlib import Path

import numpy as np
import pytest
import sentencex
from markdown_it import MarkdownIt
from small_run import WORDS
from small_translator import small_translator
from tiers import mostly_slow

from transformer.commands.decode import decode_main
from transformer.documents.document import DocumentTranslator
from transformer.documents.markdown import marked_text, to_markdown
from transformer.documents.passages import MarkedText, with_addresses
from transformer.documents.sentences import MOST_MARKS, clauses, sentences
from transformer.documents.syntax import markdown_parser
from transformer.runtime.errors import UserError
from transformer.tasks.text import Hypothesis

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(page.stem for page in DOCS.glob("*.md"))


class Pretender(DocumentTranslator):
    """Translates by a function of words; a translated word attends to its own word."""

    def __init__(self, order=lambda words: words, spell=str, longest=64):
        real = small_translator()
        self.task, self.system, self.real = real.task, real.system, real
        self.order, self.spell, self.longest = order, spell, longest
        self.sources = []

    def subwords(self, source):
        return [f"▁{word}" for word in source.split()]

    def settings(self, n_best, options):
        return self.real.settings(n_best, {"buckets": (self.longest + 1,), **options})

    def stream(self, records, **options):
        for source in records:
            self.sources.append(source)
            words = source.split()
            order = self.order(list(range(len(words))))
            target = [self.spell(words[index]) for index in order]
            alignment = np.zeros((len(order) + 1, len(words) + 1))
            alignment[range(len(order)), order] = 1
            yield [Hypothesis(" ".join(target), tuple(f"▁{x}" for x in target), -1.0, -1.0, alignment)]


def html(markdown):
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return " ".join(re.sub(r"\s+", " ", parser.render(markdown)).split())


@pytest.mark.by_default("index")
@pytest.mark.parametrize("page", mostly_slow(PAGES, ["documents", "index", "serve", "tagging"]))
def test_a_page_that_is_translated_to_itself_reads_as_before(page):
    """The oracle is the HTML that the parser's own renderer makes of both."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    document = Pretender(longest=10_000).translate_document(text, "markdown")
    assert html(document.text) == html(text)


def tags(markdown):
    """What a document has besides words: tags with their attributes, and code."""
    shown = html(markdown)
    return sorted(re.findall(r"<code.*?</code>|<[^>]*>", shown, re.DOTALL))


@pytest.mark.by_default("index")
@pytest.mark.parametrize("page", mostly_slow(PAGES, ["documents", "index", "serve", "tagging"]))
def test_tags_and_code_survive_another_order_of_words(page):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    document = Pretender(lambda words: words[::-1], longest=10_000).translate_document(text, "markdown")
    assert [len(tags(document.text))] == [len(tags(text))]
    assert tags(document.text) == tags(text)


def test_marks_follow_their_words():
    text = 'A **red house** near [the old *river* bank](http://x.y/a_b "T") has `no_door()` today.'
    document = Pretender(lambda words: words[::-1], str.upper).translate_document(text, "markdown")
    assert document.text == (
        'TODAY. `no_door()` HAS [BANK *RIVER* OLD THE](http://x.y/a_b "T") NEAR **HOUSE RED** A'
    )


MARKDOWN = """---
title: stays
---
# One two #

Three four
five. Six seven
***

- eight  
  nine
  > ten eleven
  > twelve

```
code stays
```

    and this

| a | b |
|---|:-:|
| c \\| d | `e` |

<div>stays</div>

[link]: http://stays

![stays](stays.png)
"""


@pytest.mark.parametrize("text", ["**a word (in brackets)**. Then", "*a (b)*, c", "so **(why?)**! Then"])
def test_a_mark_ends_with_its_own_punctuation(text):
    assert Pretender(longest=99).translate_document(f"{text}\n", "markdown").text == f"{text}\n"


def test_all_text_and_only_text_is_translated():
    document = Pretender(spell=str.upper).translate_document(MARKDOWN, "markdown")
    assert document.text == (
        MARKDOWN.replace("One two", "ONE TWO")
        .replace("Three four\nfive. Six seven", "THREE FOUR FIVE. SIX SEVEN")
        .replace("eight  \n  nine", "EIGHT  \n  NINE")
        .replace("ten eleven\n  > twelve", "TEN ELEVEN TWELVE")
        .replace("| a | b |", "| A | B |")
        .replace("c \\| d", "C \\| D")
    )
    assert [(sentence.line, sentence.source) for sentence in document.sentences][:3] == [
        (4, "One two"),
        (6, "Three four five."),
        (6, "Six seven"),
    ]


TEXT = """A title

  This paragraph is wrapped, and
  goes on here. It ends.

1. First item is long
   enough for two lines
2. See https://a.b/c_d?e=f.
\tThe end
"""


def test_plain_text_keeps_its_form():
    document = Pretender(spell=str.upper).translate_document(TEXT)
    assert document.text == TEXT.upper().replace("HTTPS://A.B/C_D?E=F", "https://a.b/c_d?e=f")
    assert Pretender().translate_document("").text == ""
    assert Pretender().translate_document(" \n\n").text == " \n\n"
    for text in ("A dog runs\r\nthere.\r\n", "\tA dog\n\truns.\n", "- a dog\n\truns\n\tthere\n"):
        assert Pretender(spell=str.upper).translate_document(text).text == text.upper()
    for sign in "\f\v\x1c\x1d\x1e\x85\u2028\u2029":
        text = f"A dog{sign}runs here\nand there.{sign}\n"
        assert Pretender(spell=str.upper).translate_document(text).text == text.upper()


def test_wrapped_lines_stay_as_narrow():
    text = TEXT.replace("https://a.b/c_d?e=f", "them")
    document = Pretender(spell=lambda word: word * 2).translate_document(text)
    assert max(map(len, document.text.splitlines())) <= max(map(len, text.splitlines()))
    assert len(document.text.splitlines()) > len(text.splitlines())


@pytest.mark.parametrize(
    "text", ["2 * 3 * 4", "a_b_", "[x](y)", "# no", "1. no", "- no", "<b>", "&amp;", "`", "\\"]
)
def test_words_that_look_like_markdown_are_read_as_words(text):
    parser = markdown_parser()
    (token,) = parser.parse(to_markdown(plain(text), parser, {}))[1:2]
    assert token.type == "inline"
    assert marked_text(token) == plain(text)


def plain(text):
    from transformer.documents.passages import MarkedText

    return MarkedText(text)


def test_sentences_and_clauses_lose_no_word():
    text = "Dr. Smith came at 5 p.m. yesterday. He left; she stayed, and (as ever) nobody knew why. " * 3
    spans = list(sentences(text, "en"))
    assert " ".join(text[a:b] for a, b in spans).split() == text.split()
    for longest in (1, 3, 8):
        parts = [text[a:b] for a, b in clauses(text, lambda part: len(part.split()), longest)]
        assert max(len(part.split()) for part in parts) <= longest
        assert " ".join(parts).split() == text.split()


QUOTATIONS = ('"{}"', "“{}”", "„{}“", "«{}»", "‘{}’", "「{}」", "({})", "{}", "{}", "{}")


def test_texts_with_many_marks_are_divided_as_others(monkeypatch):
    """The library reads them in windows, and ends no quotation or sentence elsewhere."""
    rng = np.random.default_rng(0)
    phrases = [" ".join(rng.choice(WORDS, rng.integers(1, 9))).capitalize() for _ in range(50)]
    for language in "en", "de", "fr", "ja":
        ends = "。！" if language == "ja" else [". ", "! ", "? ", ", Dr. ", "; "]
        parts = (str(rng.choice(phrases)) + str(rng.choice(list(ends))).rstrip() for _ in range(600))
        text = " ".join(str(rng.choice(QUOTATIONS)).format(part) for part in parts)
        divided = list(sentences(text, language))
        assert len(divided) > 200
        monkeypatch.setattr("transformer.documents.sentences.MOST_MARKS", len(text))
        assert divided == list(sentences(text, language))
        monkeypatch.undo()


def test_runs_of_marks_are_read_in_linear_time(monkeypatch):
    """The library's time grows as the square of quotation marks, and it holds the lock of the interpreter,
    also while it compares each full stop with all abbreviations of Danish."""
    lengths, marks, library = [], [], sentencex.segment

    def segment(code, text):
        lengths.append(len(text))
        marks.append(sum(not (one.isalpha() or one.isspace()) for one in text))
        return library(code, text)

    monkeypatch.setattr(sentencex, "segment", segment)
    for run in "„‘‚「", "‚「", "‟「「‘", "`", "'\"", "«a", "“A. ", 'a. "', "「‚‚)", "a. ", "!?", "A.B.":
        for text in run * (20_000 // len(run)), run * 5_000 + "a. B":
            lengths.clear()
            spans = list(sentences(text, "zh"))
            assert "".join("".join(text[a:b] for a, b in spans).split()) == "".join(text.split())
            assert max(marks, default=0) <= MOST_MARKS
            assert sum(lengths) <= 5 * len(text)


def test_a_sentence_that_is_too_long_is_read_in_parts():
    pretender = Pretender(longest=6)
    text = "One two three, four five; six seven eight nine ten eleven twelve."
    assert pretender.translate_document(text).text == text
    assert pretender.sources[:3] == [
        "One two three, four five;",
        "six seven eight nine",
        "ten eleven twelve.",
    ]


def test_a_model_that_does_not_translate_is_refused():
    pretender = Pretender()
    pretender.task = object()
    with pytest.raises(UserError, match="translates sentences"):
        pretender.translate_document("a")


@pytest.mark.thorough
def test_the_command_translates_a_file(decoder, tmp_path, decode):
    file = tmp_path / "page.md"
    file.write_text(f"# {WORDS[0]} {WORDS[1]}\n\n- {WORDS[2]} `code`\n")
    status, _, errors = decode(decoder, "--document", file, "--output", tmp_path / "out.md")
    assert status == 0
    output = (tmp_path / "out.md").read_text()
    assert output.startswith("# ")
    assert "`code`" in output
    assert "of 2 sentences flagged" in errors


BAD = {
    "latin1.txt": (b"ok\ncaf\xe9\n", "line 2: not UTF-8"),
    "binary.txt": (b"a\0b", "is a binary file"),
    "empty.md": (b" \n", "is empty"),
    "page.HTML": (b"<p>a</p>", "converted, for example with pandoc"),
    "letter.docx": (b"PK\3\4\xff", "give plain text or Markdown"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_without_text_is_refused(name, decoder, tmp_path, refused):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    assert message in refused(
        decode_main, decoder, "--document", tmp_path / name, "--output", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


def test_options_of_lines_are_refused(decoder, tmp_path, refused):
    file = tmp_path / "a.txt"
    file.write_text("a")
    named = "--document", file
    for words, message in [
        ((*named, "--input", file), "--input: it is for lines"),
        ((*named, "--format", "json"), "--format json is for lines"),
        ((*named, "--resume"), "--resume: it is for lines"),
        ((*named, "--output", file), "is the file of --document"),
        ((*named, "--flags", file), "is the file of --document"),
        ((*named, "--output", tmp_path / "new", "--flags", tmp_path / "new"), "is the file of --output"),
        (("--flags", tmp_path / "x"), "--flags is for --document"),
        (("--document", tmp_path / "missing.txt"), "cannot read"),
    ]:
        assert message in refused(decode_main, decoder, *words)


def test_addresses_are_looked_for_in_linear_time():
    """A run of their signs was read again from each of them."""
    text = "a." * 200_000 + " x.y+z@a-b.org, " + "http://x" + "." * 100_000
    assert [mark.literal for mark in with_addresses(MarkedText(text)).marks] == ["x.y+z@a-b.org", "http://x"]
