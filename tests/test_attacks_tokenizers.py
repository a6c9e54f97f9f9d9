"""Tokenizers of strangers: what would fill the memory is refused, a panic of the library is one message."""

import base64
import bisect
import functools
import io
import json
import random
import re
import unicodedata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from transformer import SpecialIds, UserError
from transformer.data.tokenizers import hub
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.lossless import WholeWords, opened
from transformer.data.tokenizers.trained import load_tokenizer, train_tokenizer
from transformer.interop.folders.pieces import read_sentencepiece
from transformer.runtime.machine import library

pytest.importorskip("tokenizers")
THOUSAND = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
EVERYWHERE = {"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 100}
BERT = {
    "type": "BertNormalizer",
    "clean_text": False,
    "handle_chinese_chars": True,
    "strip_accents": False,
    "lowercase": False,
}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
DELIMITED = {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "", "cleanup": False}
EVERY_CHARACTER = {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": False}


def content(**parts: Any) -> str:
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **dict.fromkeys(PARTS), **parts})


def tokenizer(**parts: Any) -> HubTokenizer:
    return HubTokenizer(content(**parts), 6, SpecialIds())


PARTS = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")


def charsmap(longest: int) -> str:
    """A map of SentencePiece whose longest replacement has so many characters."""
    return base64.b64encode((0).to_bytes(4, "little") + b"x\0" + b"y" * longest + b"\0").decode()


def nested(steps: list[dict[str, Any]], times: int, name: str = "normalizers") -> dict[str, Any]:
    """A sequence of so many sequences."""
    return {"type": "Sequence", name: [{"type": "Sequence", name: steps}] * times}


def template(copies: int) -> dict[str, Any]:
    """A post-processor that repeats a text."""
    one, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [one] * copies,
        "pair": [one, other],
        "special_tokens": {},
    }


def replaced(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": THOUSAND},
        {"normalizer": {"type": "Sequence", "normalizers": [THOUSAND] * 2}},
        {"normalizer": {"type": "Sequence", "normalizers": [THOUSAND] * 3}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Sequence", "normalizers": [THOUSAND]}, {"type": "NFKC"}],
            }
        },
        {"normalizer": EVERYWHERE},
        {"normalizer": nested([EVERYWHERE] * 50, 2)},
        {"normalizer": nested([EVERYWHERE] * 2, 50)},
        {"normalizer": nested([BERT] * 5, 2)},
        {"pre_tokenizer": nested([METASPACE, EVERY_CHARACTER] * 5, 2, "pretokenizers")},
        {"decoder": nested([{"type": "BPEDecoder", "suffix": ""}] * 5, 2, "decoders")},
        {"decoder": nested([DELIMITED] * 5, 2, "decoders")},
        {"post_processor": nested([nested([template(2)] * 50, 1, "processors")], 2, "processors")},
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "a" * 100}},
        {"normalizer": {"type": "Prepend", "prepend": "a" * 200}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(101)}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 20}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
                ]
                * 20,
            }
        },
        {"decoder": {"type": "Sequence", "decoders": [THOUSAND] * 3}},
        {"post_processor": {"type": "Sequence", "processors": [template(60), template(2)]}},
        {"normalizer": nested([replaced("a", "\ufdfa"), {"type": "NFKD"}, replaced("\u0644", "a")], 2)},
        {"normalizer": nested([replaced("i", "\u0130"), {"type": "Lowercase"}], 7)},
        {
            "normalizer": nested(
                [{"type": "NFKD"}, {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 9}], 1
            )
        },
        {"normalizer": {"type": "NFC", "normalizers": [THOUSAND]}},
        {"normalizer": THOUSAND | {"type": "BertNormalizer"}},
        {"decoder": {"type": "Sequence", "normalizers": [], "decoders": [THOUSAND]}},
        {"decoder": nested([{"type": "WordPiece", "prefix": "##", "cleanup": False}], 7, "decoders")},
        {"post_processor": {"type": "Sequence", "processors": [template(60), template(2) | {"type": "x"}]}},
    ],
)
def test_what_makes_texts_long_is_refused(parts: dict[str, Any]) -> None:
    message = r"makes a text (up to|over) [\d,]+ times as long; it may 100 times"
    with pytest.raises(UserError, match=message):
        tokenizer(**parts)


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
def test_a_step_of_an_unknown_type_is_refused(part: str) -> None:
    """The library reads some as what their fields fit."""
    with pytest.raises(UserError, match=r"not a tokenizer.json: a step of the unknown type \"x\""):
        tokenizer(**{part: METASPACE | {"type": "x", "prepend": "a"}})


def test_every_step_of_the_library_has_its_factor() -> None:
    """None is exceeded by a letter of Unicode, whatever the options."""
    tokenizers = library("tokenizers")
    modules = tokenizers.normalizers, tokenizers.pre_tokenizers, tokenizers.decoders
    ends = "Normalizer", "PreTokenizer", "Decoder", "DecodeStream"
    names = {name for module in modules for name in dir(module) if name[:1].isupper() and not name.isupper()}
    acronyms = {"NFC", "NFD", "NFKC", "NFKD", "CTC"}
    assert hub._FORMS.keys() | hub._ADDED.keys() >= (names | acronyms) - {*ends}
    letters = [
        *map(chr, range(0x3400)),
        "\u4e00",
        *map(chr, range(0xF900, 0xFFFE)),
        *map(chr, range(0x1D000, 0x1F300)),
    ]
    most = {name: 0 for name in hub._FORMS}
    for letter in letters:
        whole = full(letter)
        assert len(whole) <= 18
        for name in most:
            written = getattr(tokenizers.normalizers, name)().normalize_str(letter)
            most[name] = max(most[name], len(written))
            assert len(full(written)) <= len(whole)
    assert most == hub._FORMS
    bert, byte_level = tokenizers.normalizers.BertNormalizer(), tokenizers.pre_tokenizers.ByteLevel()
    assert max(len(bert.normalize_str(letter)) for letter in letters) == 1 + hub._ADDED["BertNormalizer"]
    assert max(len(byte_level.pre_tokenize_str(x)[0][0]) for x in letters) == 1 + hub._ADDED["ByteLevel"]


def full(text: str) -> str:
    """The lower case of a text in NFKD, which no form of Unicode lengthens."""
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).lower())


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "post_processor", "decoder"])
@pytest.mark.parametrize(
    "value",
    [[1], {"a": 1}, 1, "x", {"type": "Sequence", "normalizers": 1}, {"type": "Replace", "pattern": [1]}],
)
def test_values_of_a_wrong_type_are_named_without_words_of_python(part: str, value: Any) -> None:
    with pytest.raises(UserError, match=r"^not a tokenizer\.json") as refusal:
        tokenizer(**{part: value})
    for word in "' object", "attribute", "NoneType", "'int'", "indices", "iterable":
        assert word not in str(refusal.value)


def test_merges_without_their_prefix() -> None:
    """The library takes as many bytes off as the prefix has, which ends the process within a character."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "a": 4, "é": 5}
    model = {"type": "BPE", "vocab": vocabulary, "continuing_subword_prefix": "x"}
    for merge in "a é", ["a", "é"]:
        with pytest.raises(UserError, match="a merge continues a word without continuing_subword_prefix"):
            tokenizer(model=model | {"merges": [merge]})
    whole = {**vocabulary, "xb": 6, "ab": 7}
    read = HubTokenizer(content(model=model | {"vocab": whole, "merges": ["a xb"]}), 8, SpecialIds())
    assert read.encode("ab") == [7]


@pytest.mark.parametrize("index", [6, 10**9, 2**31])
def test_ids_with_a_gap_have_rows_too(index: int) -> None:
    """However few words there are; the last row would stand for those without one."""
    model = {"type": "WordLevel", "vocab": {"<unk>": 3, "a": 4, "b": index}, "unk_token": "<unk>"}
    with pytest.raises(UserError, match=f"its vocabulary has the id {index}, and the model has 6 rows"):
        tokenizer(model=model)


def test_a_template_without_end() -> None:
    with pytest.raises(UserError, match="a post-processor of 20000 pieces"):
        tokenizer(post_processor=template(20_000))


def test_a_sequence_without_end() -> None:
    """Also one of sequences."""
    for steps, times in ([{"type": "NFC"}] * 1000, 1), ([{"type": "NFC"}] * 100, 10):
        for part, name in ("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"):
            with pytest.raises(UserError, match="a sequence of 1000 steps"):
                tokenizer(**{part: nested(steps, times, name)})


def test_what_published_tokenizers_do_is_read() -> None:
    t5 = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    forms = [{"type": kind} for kind in ("NFKD", "NFKC", "Lowercase", "StripAccents")]
    sequence = {"type": "Sequence", "normalizers": [*forms, t5, {"type": "Prepend", "prepend": "▁"}]}
    assert tokenizer(normalizer=sequence).encode("a") == [3]
    assert tokenizer().encode("a") == [4]
    assert tokenizer(normalizer=BERT).encode("a") == [4]
    eighteen = {"type": "Replace", "pattern": {"String": "x"}, "content": "a" * 18}  # as NFKD of U+FDFA
    words = nested([{"type": "WhitespaceSplit"}, METASPACE], 1, "pretokenizers")
    like_nllb = tokenizer(
        normalizer=nested([eighteen, t5], 1), pre_tokenizer=words, post_processor=template(1)
    )
    assert like_nllb.encode("b") == [3]


@pytest.mark.parametrize(
    ("expression", "shortest"),
    [
        (" {2,}", 2),
        ("a+ b{3,}", 5),
        (r"\A▁$", 1),
        (r"\s+", 1),
        *(
            (x, 0)
            for x in (
                "",
                "a*",
                "a?",
                "a{0,}",
                "a|",
                "a+?",
                "a{1}{0}",
                "(a)",
                ".",
                "[a]",
                r"\b",
                r"\z",
                "a{,3}",
                "(?#",
            )
        ),
    ],
)
def test_the_least_that_an_expression_fits(expression: str, shortest: int) -> None:
    """None that may fit fewer is taken for a plain one."""
    assert hub._shortest(expression) == shortest


def test_orders_of_published_normalizers() -> None:
    """As converters of `transformers` write them, with the map that SentencePiece has for NFKC."""
    precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmap(18)}
    spaces, tab, first = (
        {"type": "Replace", "pattern": {"Regex": expression}, "content": written}
        for expression, written in ((" {2,}", "▁"), ("[\n\r\t]", " "), (r"\A▁", "▁▁"))
    )
    forms = {name: {"type": name} for name in ("NFC", "NFKC", "Lowercase")}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    for steps, last in (
        ([precompiled, strip, spaces], METASPACE),
        ([precompiled, spaces, first], METASPACE),
        ([tab, forms["NFKC"], strip, spaces], METASPACE),
        ([forms["Lowercase"], strip, precompiled, spaces], METASPACE),
        ([forms["NFC"], spaces, forms["Lowercase"]], byte_level),
    ):
        assert hub._growth(*steps, last) <= 100


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("normalizer", 7, "normalizer is 7, not an object or null"),
        (
            "normalizer.normalizers.0.pattern.String",
            [5],
            r"0\].pattern.String is \[5\], not a text",
        ),
        ("pre_tokenizer.split", 1, "pre_tokenizer.split is 1, not true or false"),
        ("post_processor.special_tokens.<x>.ids.0", "y", r"<x>.ids\[0\] is \"y\", not a whole number"),
        ("post_processor.pair.0.SpecialToken.id", 1, "SpecialToken.id is 1, not a text"),
        ("added_tokens.0.id", "4", r"added_tokens\[0\].id is \"4\", not a whole number"),
        ("added_tokens.0.special", 1, r"added_tokens\[0\].special is 1, not true or false"),
        ("model.vocab.a", "4", 'model.vocab.a is "4", not a whole number'),
        ("model.vocab", [5], r"model.vocab\[0\] is 5, not a list"),
        ("model.unk_token", 3, "model.unk_token is 3, not a text or null"),
        ("model.merges.0.1", 3, r"model.merges\[0\]\[1\] is 3, not a text"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(path: str, value: Any, message: str) -> None:
    flags = {name: False for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    parts = json.loads(
        content(
            normalizer={"type": "Sequence", "normalizers": [THOUSAND | {"content": "a"}]},
            pre_tokenizer=METASPACE,
            post_processor=template(1)
            | {
                "pair": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, *template(1)["pair"]],
                "special_tokens": {"<x>": {"id": "<x>", "ids": [4], "tokens": ["<x>"]}},
            },
            added_tokens=[flags | {"id": 4, "content": "a"}],
        )
    )
    parts["model"] = {"type": "BPE", "vocab": parts["model"]["vocab"] | {"ab": 6}, "merges": [["a", "b"]]}
    HubTokenizer(json.dumps(parts), 7, SpecialIds())
    *names, last = [int(name) if name.isdecimal() else name for name in path.split(".")]
    functools.reduce(lambda owner, name: owner[name], names, parts)[last] = value
    with pytest.raises(UserError, match=f"^not a tokenizer.json: .*{message}"):
        HubTokenizer(json.dumps(parts), 7, SpecialIds())


def test_a_saved_vocabulary_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    saved = json.loads(tokenizer().content())
    for wrong, message in (
        ({"model": content(normalizer=7)}, "normalizer is 7, not an object or null"),
        ({"special": {"pad": "x"}}, "special.pad 'x': must be a whole number"),
        ({"size": "x"}, "one of its values has a wrong type"),
        ({"start": [-1]}, "start has -1, not an id below 6"),
    ):
        (tmp_path / "source.model").write_text(json.dumps(saved | wrong))
        with pytest.raises(UserError, match=f"source.model: neither a .* nor a saved vocabulary .*{message}"):
            load_tokenizer(tmp_path / "source.model")


@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "merges": [], "unk_token": "<x>"},
        {"type": "BPE", "merges": [], "unk_token": "<x>", "byte_fallback": True},
        {"type": "WordLevel", "unk_token": "<x>"},
        {
            "type": "WordPiece",
            "unk_token": "<x>",
            "max_input_chars_per_word": 9,
            "continuing_subword_prefix": "",
        },
        {"type": "Unigram", "unk_id": None},
    ],
)
def test_what_has_no_id_for_what_is_unknown(model: dict[str, Any]) -> None:
    """It is not only refused when a text has something that is unknown."""
    vocabulary = json.loads(content())["model"]["vocab"]
    listed = [[word, 0.0] for word in vocabulary] if model["type"] == "Unigram" else vocabulary
    with pytest.raises(UserError, match=r"can read texts with \(.*(not found|Missing|missing)"):
        tokenizer(model=model | {"vocab": listed})


def test_a_tokenizer_with_dropout_reads_a_text_in_one_way() -> None:
    vocabulary = json.loads(content())["model"]["vocab"] | {"ab": 6}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]], "dropout": 0.5}
    assert HubTokenizer(content(model=model), 7, SpecialIds()).encode_all(["ab"] * 20) == [[6]] * 20


@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "WordLevel"])
@pytest.mark.parametrize("name", ["continuing_subword_prefix", "end_of_word_suffix", "unk_token"])
def test_what_is_written_for_each_character(name: str, kind: str) -> None:
    model = {"type": kind, "vocab": {"<unk>": 3}, "merges": [], "unk_token": "<unk>", name: "x" * 51}
    with pytest.raises(UserError, match=f"model.{name} has over 50 characters"):
        tokenizer(model=model)


@pytest.mark.parametrize("name", ["continuing_subword_prefix", "end_of_word_suffix"])
def test_bytes_of_what_is_written_for_each_character(name: str) -> None:
    """With byte_fallback each is an id."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    vocabulary |= {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>", "byte_fallback": True}
    letters = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    splits = letters if name == "end_of_word_suffix" else None

    def read(mark: str, **parts: Any) -> HubTokenizer:
        marked = content(model=model | {name: mark}, pre_tokenizer=splits, **parts)
        return HubTokenizer(marked, len(vocabulary), SpecialIds())

    for mark, bytes_of_mark in ("##", 2), ("\U0001f600" * 24, 96):
        for letter, size in ("x", 1), ("\U0001f601", 4):
            most = 10 * (size + bytes_of_mark)
            assert most - bytes_of_mark <= len(read(mark).encode(letter * 10)) <= most
    with pytest.raises(UserError, match="makes a text up to 104 times as long"):
        read("\U0001f600" * 25)
    with pytest.raises(UserError, match="makes a text up to 192 times as long"):
        read("</w>", normalizer={"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 23})


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_bytes_of_characters_that_a_vocabulary_lacks(kind: str) -> None:
    """With byte_fallback each is an id, four of a character."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    model: dict[str, Any] = {"type": kind, "byte_fallback": True}
    if kind == "BPE":
        model |= {"vocab": {word: i for i, word in enumerate(words)}, "merges": [], "unk_token": "<unk>"}
    else:
        model |= {"vocab": [[word, -1.0] for word in words], "unk_id": 3}

    def read(content_of_a: str) -> HubTokenizer:
        parts = {"model": model, "normalizer": replaced("a", content_of_a)}
        return HubTokenizer(content(**parts), len(words), SpecialIds())

    assert len(read("\U0001f600" * 25).encode("a" * 10)) == 1000
    with pytest.raises(UserError, match="makes a text up to 104 times as long"):
        read("\U0001f600" * 26)


def added(text: str, **flags: bool) -> dict[str, Any]:
    """An added token, of id 6."""
    names = "single_word", "lstrip", "rstrip", "normalized", "special"
    return dict.fromkeys(names, False) | {"id": 6, "content": text} | flags


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
@pytest.mark.parametrize("text", [" ", "  ", "\t\n", "\u3000", "z"])
def test_added_tokens_that_take_all_of_a_run_of_spaces_at_each_of_them(text: str, flag: str) -> None:
    """Also after the normalizer."""
    normalizer = replaced("z", " ")

    def read(**flags: bool) -> HubTokenizer:
        parts = {"normalizer": normalizer, "added_tokens": [added(text, **flags)]}
        return HubTokenizer(content(**parts), 7, SpecialIds())

    with pytest.raises(UserError, match=r"the added token .* is blank .*: set lstrip and rstrip to false"):
        read(**{flag: True}, normalized=True)
    if text == "z":
        assert read(**{flag: True}).encode("z " if flag == "rstrip" else " z") == [6]
    else:
        assert set(read(normalized=True).encode(text * 3)) == {6}


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "special"])
def test_added_tokens_of_which_the_normalizer_leaves_nothing(flag: str) -> None:
    """They would be found between all characters."""
    for normalizer in replaced("z", ""), {"type": "Strip", "strip_left": True, "strip_right": True}:
        token = added("z" if normalizer["type"] == "Replace" else " ", **{flag: True}, normalized=True)
        with pytest.raises(UserError, match="the added token .* is normalized to nothing"):
            HubTokenizer(content(normalizer=normalizer, added_tokens=[token]), 7, SpecialIds())


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_an_added_token_that_takes_spaces_beside_it(flag: str) -> None:
    """As <mask> of mBART; a run of spaces belongs to one."""
    read = HubTokenizer(content(added_tokens=[added("<mask>", **{flag: True})]), 7, SpecialIds())
    ids = read.encode("a" + " " * 999 + "<mask>" + " " * 999 + "a")
    assert len(ids) == 3
    assert ids[1] == 6


@pytest.mark.parametrize("is_normalized", [False, True])
def test_added_tokens_that_fill_the_memory(is_normalized: bool) -> None:
    """The library makes a trie of all of them, after its normalizer."""
    flags = {name: False for name in ("single_word", "lstrip", "rstrip", "special")}
    flags |= {"normalized": is_normalized}
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "ab" * 25}
    length = 20 if is_normalized else 1000
    tokens = [flags | {"id": 6 + i, "content": f"a{i:03}" + "c" * (length - 4)} for i in range(1000)]
    parts = {"normalizer": longer if is_normalized else None}
    HubTokenizer(content(added_tokens=tokens[: 390 if is_normalized else 1000], **parts), 1006, SpecialIds())
    more = flags | {"id": 1006, "content": "d"}
    with pytest.raises(UserError, match="added_tokens have over 1,000,000 characters together"):
        HubTokenizer(content(added_tokens=[*tokens, more], **parts), 1007, SpecialIds())


@pytest.mark.parametrize("levels", [60, 300])
def test_steps_that_are_nested_deeply(levels: int) -> None:
    """As JSON with two levels for each."""
    steps: dict[str, Any] = {"type": "NFC"}
    for _ in range(levels):
        steps = {"type": "Sequence", "normalizers": [steps]}
    with pytest.raises(UserError, match="not a tokenizer.json: nested more than 100 deep"):
        tokenizer(normalizer=steps)
    for _ in range(levels - 48):
        steps = steps["normalizers"][0]
    assert tokenizer(normalizer=steps).encode("a") == [4]


@pytest.mark.parametrize("seed", range(20))
def test_whole_words_are_found_as_by_an_expression(seed: int) -> None:
    """The leftmost, and of those the longest."""
    rng = random.Random(seed)
    words = {"".join(rng.choices("ab-^]", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 30))}
    longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    for length in range(60):
        text = "".join(rng.choices("ab-^]c", k=length))
        assert WholeWords(words).split(text) == re.split(f"({longest_first})", text)


def test_many_whole_words_cost_one_search_at_each_character(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["a" * 96 + f"{number:04}" for number in range(5000)]
    search = Mock(wraps=bisect.bisect)
    monkeypatch.setattr("bisect.bisect", search)
    assert WholeWords(words).split("a" * 1000 + words[7]) == ["a" * 1000, words[7], ""]
    assert search.call_count <= 1100


def test_a_panic_of_any_call_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes to Python as an exception that is no Exception, whether text is read or written."""
    message = "not a tokenizer.json that `tokenizers` can read texts with"
    strip = {"type": "Strip", "content": "a", "start": 0, "stop": 5}
    added = {name: False for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    for more in ([], [added | {"id": 5, "content": "b"}]):
        with pytest.raises(UserError, match=message):
            tokenizer(decoder=strip, added_tokens=more).decode([4, 4])
    panicking = Mock(encode=Mock(side_effect=BaseException("panic")), get_added_tokens_decoder=dict)
    monkeypatch.setattr(library("tokenizers"), "Tokenizer", Mock(from_str=lambda model: panicking))
    with pytest.raises(UserError, match=message):
        HubTokenizer.around(content(post_processor=template(7)))


def test_a_panic_is_one_message() -> None:
    split = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    stuck = tokenizer(pre_tokenizer=split)
    assert stuck.encode("a") == [4]
    for call in (stuck.encode, stuck.knows, stuck.spelled):
        with pytest.raises(UserError, match="not a tokenizer.json that `tokenizers` can read texts with"):
            call("a" * 40 + "b")


def test_words_that_are_read_without_end() -> None:
    """Time grows as the cube of a word's length."""
    model = {"type": "WordPiece", "vocab": {"<unk>": 3, "a": 4}, "unk_token": "<unk>"}
    model |= {"continuing_subword_prefix": "##"}
    assert tokenizer(model=model | {"max_input_chars_per_word": 100}).encode("a") == [4]
    for longest in 201, 10**15:
        with pytest.raises(UserError, match="max_input_chars_per_word is over 200"):
            tokenizer(model=model | {"max_input_chars_per_word": longest})


def test_pieces_of_unigram_that_are_looked_up_without_end() -> None:
    """Time grows as the cube of their length."""
    listed = [["<unk>", 0.0], *([letter, -1.0] for letter in "abcd")]
    for longest in 200, 201:
        model = {"type": "Unigram", "unk_id": 0, "vocab": [*listed, ["e" * longest, -1.0]]}
        if longest == 200:
            assert tokenizer(model=model).encode("e" * 200) == [5]
        else:
            with pytest.raises(UserError, match="a piece of model.vocab has over 200 characters"):
                tokenizer(model=model)


def test_pieces_of_unigram_whose_trie_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a node for each byte with which pieces begin in another way."""
    rng = random.Random(0)
    same = ["a" * length for length in range(1, 201)]
    unlike = ["".join(chr(rng.randrange(0x20000, 0x2A000)) for _ in range(9)) for _ in range(20)]
    assert hub._nodes(same) == sum(range(1, 201))  # few: at most so many
    monkeypatch.setattr(hub, "MOST_NODES", 600)
    assert hub._nodes(same) == 200
    assert hub._nodes([*same, "aab", "é", "è", "é"]) == 200 + 1 + 3
    for pieces, number in (same, 200), (unlike, 20):
        model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], *([x, -1.0] for x in pieces)]}
        if pieces is same:
            read = HubTokenizer(content(model=model), 1 + number, SpecialIds())
            assert read.encode("a" * 200) == [number]
        else:
            with pytest.raises(UserError, match="a trie of model.vocab has over 600 nodes"):
                HubTokenizer(content(model=model), 1 + number, SpecialIds())


@pytest.mark.parametrize("size", [4, 2**32 - 1])
def test_a_map_whose_trie_is_cut(size: int) -> None:
    """The library would set memory aside for what the map says, and end the process."""
    cut = base64.b64encode(size.to_bytes(4, "little") + b"abc").decode()
    with pytest.raises(UserError, match="its map of characters has 7 bytes, and a trie of"):
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": cut})


def test_pieces_and_starts_that_fill_the_memory(tmp_path: Path) -> None:
    """A model may write a piece at each step, and each text may begin with many ids."""
    model = {"type": "WordLevel", "vocab": {"<unk>": 3, "a": 4, "b" * 2_001: 5}, "unk_token": "<unk>"}
    with pytest.raises(UserError, match="a piece of its vocabulary has 2,001 characters"):
        tokenizer(model=model)
    with pytest.raises(UserError, match="1,001 ids begin every text"):
        HubTokenizer(content(), 6, SpecialIds(), [4] * 1001)
    words = [*"abcd", "e" * 10_001]
    for kind in "word", "whitespace", "open-word", "pieces", "marian":
        saved = {"kind": kind, "words": words, "special": {}, "model": ""}
        for more, message in (
            ({}, "has 10,001 char"),
            ({"words": words[:4], "start": [0] * 1001}, "1,001 ids"),
        ):
            if kind != "marian" or not more:  # which has no start
                (tmp_path / "source.model").write_text(json.dumps(saved | more))
                with pytest.raises(UserError, match=message):
                    load_tokenizer(tmp_path / "source.model")
    saved = {"kind": "pieces", "words": [*"abcd"], "special": {}, "model": ""}
    for apart, message in (
        (["x"] * 5001, "5,001 words of it are"),
        (["x"], '"x" is whole anywhere'),
        (["x" * 101], "a word of 101 characters is whole anywhere"),
    ):
        (tmp_path / "source.model").write_text(json.dumps(saved | {"apart": apart}))
        with pytest.raises(UserError, match=message):
            load_tokenizer(tmp_path / "source.model")
    for kind in "word", "whitespace", "character", "byte":
        for start in (-1, 7, 2**40, 1.5, True):
            saved = {"kind": kind, "words": [*"abc"], "special": {}, "start": [start]}
            (tmp_path / "source.model").write_text(json.dumps(saved))
            with pytest.raises(UserError, match="start has .*, not an id below 7"):
                load_tokenizer(tmp_path / "source.model")
    assert train_tokenizer(["a " + "b" * 10_001], "word", 10).encode("a b")[1:] != []


@pytest.mark.parametrize("piece_type", [1, 3, 4])
def test_pieces_of_sentencepiece_that_fill_the_memory(piece_type: int, tmp_path: Path) -> None:
    described = sentencepiece_model_pb2.ModelProto()
    described.pieces.add(piece="<unk>", type=2)
    described.pieces.add(piece="a", type=1)
    described.pieces.add(piece="x" * 2_001, type=piece_type)
    (tmp_path / "source.model").write_bytes(described.SerializeToString())
    for read in load_tokenizer, read_sentencepiece:
        with pytest.raises(UserError, match="source.model: .*a piece of its vocabulary has 2,001 characters"):
            read(tmp_path / "source.model")


def test_what_sentencepiece_writes_for_what_is_unknown() -> None:
    described = sentencepiece_model_pb2.ModelProto()
    described.pieces.add(piece="<unk>", type=2)
    described.pieces.add(piece="a", type=1)
    described.trainer_spec.unk_surface = "x" * 2_001
    with pytest.raises(UserError, match="a piece of its vocabulary has 2,001 characters"):
        opened(described.SerializeToString())


def with_rule(path: Path, rule: str, written: str, text: str = "red cat", **options: Any) -> bytes:
    """A model of SentencePiece, as its own trainer makes it of a text, that writes another for each "a"."""
    rules = path / "rules.tsv"
    rules.write_text(f"61\t{' '.join(f'{ord(character):X}' for character in written)}\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([text] * 9),
        model_writer=model,
        model_type="char",
        hard_vocab_limit=False,
        minloglevel=2,
        **{rule: str(rules)},
        **options,
    )
    return model.getvalue()


@pytest.mark.parametrize("rule", ["normalization_rule_tsv", "denormalization_rule_tsv"])
@pytest.mark.parametrize("longest", [18, 1000])
def test_maps_of_sentencepiece(longest: int, rule: str, tmp_path: Path) -> None:
    """For what is read and for what is written."""
    model = with_rule(tmp_path, rule, "b" * longest, vocab_size=20)
    if longest < 100:
        processor, _ = opened(model)
        written = processor.Decode(processor.Encode("a")) if rule[0] == "d" else processor.Normalize("a")
        assert written.endswith("b" * longest)
        return
    with pytest.raises(UserError, match="makes a text up to 1,000 times as long"):
        opened(model)


@pytest.mark.parametrize("longest", [25, 26])
def test_maps_of_sentencepiece_with_byte_fallback(longest: int, tmp_path: Path) -> None:
    """Each byte of what is read is an id, and none of what is written."""
    options: dict[str, Any] = {
        "text": "red",
        "vocab_size": 300,
        "byte_fallback": True,
        "add_dummy_prefix": False,
    }
    opened(with_rule(tmp_path, "denormalization_rule_tsv", "\U0001f600" * longest, **options))
    model = with_rule(tmp_path, "normalization_rule_tsv", "\U0001f600" * longest, **options)
    if longest == 25:
        assert len(opened(model)[0].Encode("aa")) == 200
        return
    with pytest.raises(UserError, match="makes a text up to 104 times as long"):
        opened(model)
