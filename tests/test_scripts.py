"""A word is a word in every script: no score, term, mark or flag cuts one at its combining marks."""

import json
import unicodedata

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from transformer import UserError
from transformer.config.model import SpecialIds
from transformer.data.tokenizers.trained import load_tokenizer, train_tokenizer
from transformer.data.tokenizers.words import OpenWordTokenizer
from transformer.documents.document import _undivided
from transformer.documents.passages import ADDRESS, Mark, MarkedText
from transformer.documents.projection import aligned_words, project
from transformer.documents.suspicion import signs_of
from transformer.runtime.words import UNIT, WORD, WORD_OR_SIGN, continues_word, words
from transformer.tasks.metrics.answers import rouge
from transformer.tasks.metrics.error_rates import normalised
from transformer.tasks.text import Hypothesis
from transformer.tasks.texts.glossary import Glossary
from transformer.tasks.texts.steering import TextSteering
from transformer.translator.confidence import Confidence, words_of

# of each script three words, of which the second begins as the first does and is another word
SPACED = {
    "Latin": ("Schöne", "Schönes", "Grüße"),
    "Latin, decomposed": tuple(unicodedata.normalize("NFD", word) for word in ("né", "née", "garçon")),
    "Vietnamese, decomposed": tuple(unicodedata.normalize("NFD", word) for word in ("tiê", "tiếng", "Việt")),
    "Devanagari": ("हिन्द", "हिन्दी", "किताब"),
    "Bengali": ("ভাষ", "ভাষা", "বাংলা"),
    "Tamil": ("தமிழ", "தமிழ்", "மொழி"),
    "Telugu": ("భాష", "భాషలు", "తెలుగు"),
    "Malayalam": ("മലയാള", "മലയാളം", "ഭാഷ"),
    "Sinhala, with a joiner": ("ශ්‍ර", "ශ්‍රී", "ලංකා"),
    "Arabic": ("عَرَب", "عَرَبِيَّة", "لُغَة"),
    "Persian, with a joiner": ("می", "می‌روم", "خانه"),
    "Hebrew": ("שָׁל", "שָׁלוֹם", "עוֹלָם"),
    "Cyrillic, with stress": ("за\u0301мо", "за\u0301мок", "два"),
    "Korean": ("안녕", "안녕하세요", "세계"),
    "Korean, decomposed": tuple(unicodedata.normalize("NFD", word) for word in ("한", "한글", "말")),
    "Ethiopic": ("አማርኛ", "አማርኛን", "ቋንቋ"),
    "Georgian": ("ქართ", "ქართული", "ენა"),
    "German, with a soft hyphen": ("Ver", "Ver\u00adtrag", "neu"),
}
UNSPACED = {
    "Thai": ("ที่", "นี่", "ดี"),
    "Lao": ("ນ້ຳ", "ທີ່", "ນີ້"),
    "Khmer": ("ភា", "សា", "ខ្មែ"),
    "Burmese": ("မြ", "မာ", "န်"),
    "Chinese": ("北", "京", "𠮷"),
    "Japanese, decomposed": ("か\u3099", "タ", "ー"),
    "Japanese, half width": ("ｶﾞ", "ﾀ", "ｰ"),
}
ALL = SPACED | UNSPACED


@pytest.mark.parametrize("script", SPACED)
def test_words_are_those_between_spaces_and_signs(script):
    first, second, third = SPACED[script]
    text = f"{first} {second}, ({third})!"
    assert words(text) == [first, second, third]
    assert [match[0] for match in UNIT.finditer(text)] == [first, second, ",", "(", third, ")", "!"]
    by_unicode = [part for part in regex.split(r"(?V1w)\b", text) if regex.search(r"\w", part)]
    assert words(text) == by_unicode  # UAX #29


@pytest.mark.parametrize("script", UNSPACED)
def test_without_spaces_every_character_counts_with_its_marks(script):
    letters = UNSPACED[script]
    assert words("".join(letters)) == words(" ".join(letters)) == list(letters)


def test_a_shorter_rule_finds_the_same_words_in_latin_text():
    for character in map(chr, range(0x400)):
        for text in (character, f"a{character}b", f" {character}{character}1_"):
            assert words(text) == WORD.findall(text), hex(ord(character))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_units_have_every_visible_character_and_cut_no_letter_from_its_marks(text):
    for pattern in (UNIT, WORD_OR_SIGN):
        spans = [match.span() for match in pattern.finditer(text)]
        covered = {at for start, end in spans for at in range(start, end)}
        missing = [text[at] for at in range(len(text)) if at not in covered]
        assert all(
            letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf", "Mn", "Cn") for letter in missing
        )
        starts = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
        # the vowel am of Thai and Lao is a letter, and may follow a digit
        unusual = regex.search(r"(?V1)\p{GCB=Prepend}|\p{Cf}|[\p{GCB=SpacingMark}&&\p{Lo}]", text)
        assert unusual or all({*span} <= starts for span in spans)


@pytest.mark.parametrize(
    "script", sorted({*ALL} - {"German, with a soft hyphen"})
)  # a to z: rouge-score's words
def test_rouge_compares_whole_words(script):
    first, second, third = ALL[script]
    for kind in ("1", "2", "L"):
        assert rouge([f"{first} {third}"], [f"{first} {third}"], kind).value == pytest.approx(100)
    assert rouge([first], [second], "1").value == 0
    assert rouge([f"{second} {third}"], [f"{first} {third}"], "1").value == pytest.approx(50)


def test_rouge_of_two_words_that_share_their_consonants():
    assert rouge(["का"], ["की"], "1").value == 0


@pytest.mark.parametrize("script", SPACED)
def test_a_glossary_finds_no_term_within_another_word(script):
    first, second, third = SPACED[script]
    glossary = Glossary({first: "x"})
    assert glossary.terms(f"{second} {third}") == ()
    assert glossary.terms(f"{third} {first}, {second}") == ("x",)


@pytest.mark.parametrize("script", UNSPACED)
def test_a_glossary_finds_a_term_in_a_script_without_spaces(script):
    first, second, third = UNSPACED[script]
    assert Glossary({first + second: "x"}).terms(third + first + second + third) == ("x",)
    assert Glossary({second: "x"}).terms(first + third) == ()


def test_a_term_is_no_letter_without_its_mark():
    assert Glossary({"क": "x", "か": "y", "ท": "z"}).terms("की か\u3099 ที่") == ()


def aligned(source, target):
    """Each word of the translation attends to the word at its place."""
    sides = [[f"▁{word}" for word in text.split()] for text in (source, target)]
    return aligned_words(source, target, *sides, np.eye(len(sides[1]) + 1, len(sides[0]) + 1))


@pytest.mark.parametrize("script", SPACED)
def test_a_mark_has_whole_words(script):
    first, second, third = SPACED[script]
    pair = aligned("one two three", f"{first} {second} {third}")
    assert len(pair.target_units) == 3
    content, homeless = project(MarkedText("one two three", (Mark(4, 7, "**", "**"),)), pair)
    assert content.written(str) == f"{first} **{second}** {third}"
    assert not homeless


@pytest.mark.parametrize("script", SPACED)
def test_what_is_copied_is_found_as_a_whole_word(script):
    first, second, third = SPACED[script]
    source, target = f"see {first} now", f"{second} {first} {third}"
    mark = Mark(4, 4 + len(first), literal=f"`{first}`")
    content, _ = project(MarkedText(source, (mark,)), aligned(source, target))
    assert content.written(str) == f"{second} `{first}` {third}"


@pytest.mark.parametrize("script", ALL)
def test_confidence_is_of_words(script):
    first, second, third = ALL[script]
    text = f"{first} {second} {third}."
    assert words_of(text) == [first, second, third, "."]
    tokens = (f"▁{first}", f"▁{second}", f"▁{third}", ".")
    hypothesis = Hypothesis(
        text, tokens, -1.0, -1.0, token_log_probabilities=(-0.1,) * 5, entropies=(0.1,) * 5
    )
    learned = Confidence((0.0,) * 6, (1.0,) * 6, (0.1,) * 6, 0.0)
    assert [one.word for one in learned.of_words(hypothesis)] == [first, second, third, "."]


@pytest.mark.parametrize("script", SPACED)
def test_flags_count_words(script):
    first, second, third = SPACED[script]
    said = f"{first} {second} {third}"
    assert signs_of("one two three", said).repeated == 0
    assert signs_of("one two three", f"{said} {third}").repeated == pytest.approx(1 / 4)


@pytest.mark.parametrize("script", ALL)
def test_a_token_with_marks_continues_the_word_before_it(script):
    for word in ALL[script]:
        assert all(map(continues_word, word[1:])) or script in UNSPACED
        marks = [letter for letter in word if unicodedata.category(letter) in ("Mn", "Mc", "Cf")]
        assert all(map(continues_word, marks))
        assert continues_word(word[0]) == (script in SPACED)


@pytest.mark.parametrize("script", SPACED)
def test_a_steered_word_ends_where_no_letter_follows(script):
    """Of a vocabulary of characters."""
    words = SPACED[script]
    tokenizer = train_tokenizer([" ".join(words)], "character", 60)
    steering = TextSteering(tokenizer, SpecialIds())
    ends = {piece: steering._ends[index] for piece, index in tokenizer.ids_by_piece.items()}
    assert not any(ends[letter] for word in words for letter in word)
    assert ends[" "]


@pytest.mark.parametrize("script", SPACED)
def test_an_apostrophe_within_a_word_stays(script):
    first, _, third = SPACED[script]
    text = f"{first}'{third}"
    assert normalised(f"‹{text}›", "basic") == unicodedata.normalize("NFKC", text).lower()


def test_an_address_has_its_marks():
    assert ADDRESS.search("लिखें: हिन्दी@उदाहरण.भारत।")[0] == "हिन्दी@उदाहरण.भारत"


def test_sentences_without_a_space_between_them_stay_two_in_scripts_without_spaces():
    text = "ดีที่नี่"
    thai, korean = "นี่ดีที่", "안녕하세요"
    for word, count in ((thai, 2), (korean, 1)):
        text = word + word
        spans = [(0, len(word)), (len(word), len(text))]
        assert len(list(_undivided(spans, MarkedText(text)))) == count


OF_WORDS = [
    (kind, script)
    for kind in ("word", "open-word", "jieba")
    for script in ALL
    if kind != "jieba" or not script.startswith(("Chinese", "Japanese"))  # which jieba divides
]


@pytest.mark.parametrize(("kind", "script"), OF_WORDS)
def test_vocabularies_of_words_have_them_with_their_marks(kind, script):
    text = ("" if script in UNSPACED else " ").join(ALL[script])
    tokenizer = train_tokenizer([text], kind, 20)
    ids = tokenizer.encode(text)
    assert tokenizer.pieces(ids) == [*ALL[script]]
    assert tokenizer.decode(ids) == text


@given(st.text(st.sampled_from("ab,-' \n京กำ" + "का\u0301\u200d\ufe0f❤한"), max_size=12))
def test_a_vocabulary_of_words_restores_any_text(text):
    tokenizer = OpenWordTokenizer(["a", ","], SpecialIds()).for_source(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["word", "open-word", "jieba"])
def test_a_saved_vocabulary_divides_text_as_it_did(kind, tmp_path):
    saved = json.loads(train_tokenizer(["हिन्दी, मैं"], kind, 20).content())
    assert saved.pop("rule") == 2
    letters = [*"हिन्दी"]
    saved["words"] = letters
    path = tmp_path / "source.model"
    path.write_text(json.dumps(saved, ensure_ascii=False, indent=0), encoding="utf-8")
    before = load_tokenizer(path)
    assert before.content() == path.read_bytes()
    assert before.pieces(before.encode("हिन्दी")) == letters
    assert before.decode(before.encode("हिन्दी")) == "हिन्दी"
    for rule in 0, 3, "2", None:
        path.write_text(json.dumps(saved | {"rule": rule}), encoding="utf-8")
        with pytest.raises(UserError, match="neither a SentencePiece model nor a saved vocabulary"):
            load_tokenizer(path)
