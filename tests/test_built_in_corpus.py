"""The built-in grammar makes well-formed, distinct and reproducible pairs, and stable splits."""

import itertools
import random
import re

import pytest

from transformer.data.built_in import inflection, lexicon, pairs, sentence_pair, sentences, split_of
from transformer.data.built_in.inflection import number
from transformer.runtime.errors import UserError


@pytest.fixture(scope="module")
def sample() -> list[tuple[str, str]]:
    rng = random.Random("sample")
    return [sentence_pair(rng) for _ in range(50_000)]


def test_german_is_a_function_of_english(sample: list[tuple[str, str]]):
    translations: dict[str, str] = {}
    for english, german in sample:
        assert translations.setdefault(english, german) == german, english


def test_most_sentences_are_distinct(sample: list[tuple[str, str]]):
    assert len(set(sample)) > 0.95 * len(sample)


def test_sentences_are_well_formed_and_of_moderate_length(sample: list[tuple[str, str]]):
    for english, german in sample:
        for sentence, most in ((english, sentences.MAX_ENGLISH_WORDS), (german, sentences.MAX_GERMAN_WORDS)):
            assert len(sentence.split(" ")) <= most
            assert re.fullmatch(r"[A-ZÄÖÜ][\w'-]*(,? [\w'-]+)+[.?]", sentence), sentence
        assert english[-1] == german[-1]
    lengths = [english.count(" ") + 1 for english, _ in sample]
    assert 8 <= sum(lengths) / len(lengths) <= 9.5


def test_agreement_errors_that_a_reader_would_see(sample: list[tuple[str, str]]):
    wrong_english = re.compile(r"\b([Aa] [aeiou]|[Aa]n [^aeiou]|I (is|are)|can not)\b")
    wrong_person = re.compile(r"\b([Hh]e|[Ss]he|[Ii]t) (are|do|have)\b")
    # Articles not contracted; "nicht" for "kein"; a weak noun or dative plural without its -n.
    wrong_german = re.compile(
        r"\b([Ii]n dem|[Aa]n dem|von dem|zu de[rm]|in das|nicht eine[nmr]?|"
        r"(den|dem|des) (Junge|Student|Nachbar)|mit den \w+(er|e))\b"
    )
    for english, german in sample:
        assert not wrong_english.search(english), english
        assert english.endswith("?") or not wrong_person.search(english), english
        # "..., in dem sie wohnt": a relative pronoun is not contracted.
        assert not wrong_german.search(german.replace(", in dem ", "")), german
        for clause in re.split(",| und ", german):
            assert not re.search(r"\b[kK]ein[em]?\w? .*\bnicht\b", clause), german


CONSTRUCTIONS = {
    "verb second after a fronted time": r"^(Gestern|Heute|Morgen) (\w+st|ist|hat|wird|kann) .*\.$",
    "verb last after weil": r"\bweil [^,]* (hat|ist|kann|muss|will)[.,]",
    "verb last after dass": r", dass [^,]*(t|en)\.$",
    "wenn": r"\b[Ww]enn ",
    "obwohl": r"\b[Oo]bwohl ",
    "als": r"(^Als|, als) ",
    "modal verb with a final infinitive": r"^\w+ (kann|muss|will) [^,]*en\.$",
    "perfect with haben": r"^\w+ hat [^,]* ge\w+[tn]\.$",
    "perfect with sein": r"^\w+ ist [^,]* (gegangen|gelaufen|geblieben|gefolgt)\.$",
    "separable verb, apart": r" (auf|an|ein|ab|zu|zurück)\.$",
    "separable verb, together": r"\b(dass|ob|weil) .* (aufsteht|einschläft|abholt|zumacht)\.$",
    "separable participle": r" (aufgestanden|abgeholt|zugemacht|eingeschaltet|angerufen)\.$",
    "infinitive with zu": r", [^,]*zu \w+en\.$",
    "separable infinitive with zu": r" (aufzustehen|abzuholen|zuzumachen|anzurufen)\.$",
    "nicht": r" nicht ",
    "kein": r" keine?n? ",
    "nicht before a place": r" nicht im ",
    "relative clause, nominative": r"^(Der|Die|Das) [^,]+, (der|die|das) ",
    "relative clause, accusative": r", den (ich|du|er|sie|wir) ",
    "relative clause, dative": r", (dem|der|denen) (ich|du|er|sie|wir) [^,]*(helf|hilf|folg|dank)",
    "relative clause with a preposition": r", (auf|mit|an|in|vor) (den|die|das|dem|der|denen) ",
    "plural in the dative": r" (den|vielen) \w+n ",
    "genitive": r" (des|meiner|seines) ",
    "genitive of a name": r"\b(Annas|Pauls|Marias) ",
    "n-declension": r" den (Jungen|Studenten|Nachbarn) ",
    "strong adjective": r" (kaltes|frisches|warmes) Wasser",
    "mixed": r"\bein \w+er \w+ ",
    "yes/no question": r"^(Hat|Ist|Kann|Liest|Kauft) .*\?$",
    "wh-question": r"^(Wer|Was|Wen|Wem|Wo|Wohin|Wann|Warum) .*\?$",
    "question with a preposition": r"^(Mit|Auf|An) (wem|wen) .*\?$",
    "welch": r"^Welche",
    "how many": r"^Wie viele ",
    "how old": r"^Wie alt ",
    "personal pronouns": r" (mich|dich|ihm|ihr|uns|ihnen) ",
    "possessives": r"\b(meinem|deinen|seine|ihrer|unser) ",
    "place, dative": r" (im|in der|am|vor dem|hinter dem|neben der) ",
    "direction, accusative": r" (ins|in den|in die|auf den|unter das|neben die) ",
    "fixed dative": r" (mit|von|zu|aus|zum|zur|vom) ",
    "fixed accusative": r" (für|durch) ",
    "numbers": r"\w+und(zwanzig|dreißig|vierzig) (Euro|Jahre)",
    "hundreds": r"hundert\w+ Euro",
    "dates": r"\b[Aa]m \w+ten (Mai|Juni|Juli)",
    "years": r"\b[Ii]m Jahr neunzehnhundert",
    "clock times": r"\b[Uu]m (halb|Viertel|\w+ Uhr)",
    "weekdays": r"\b[Aa]m Montag",
    "vor ... Jahren": r"\b[Vv]or \w+ Jahren",
    "comparison": r"\w+er als ",
    "as ... as": r" so \w+ wie ",
    "future": r" wird [^,]*en\.$",
    "progressive": r" gerade ",
    "coordination": r", aber ",
}


def test_every_construction_occurs_often(sample: list[tuple[str, str]]):
    german = "\n".join(german for _, german in sample[:5000])
    missing = [
        name for name, pattern in CONSTRUCTIONS.items() if not re.search(pattern, german, re.MULTILINE)
    ]
    assert not missing


def test_every_word_is_used(sample: list[tuple[str, str]]):
    used = set(re.findall(r"[\w'-]+", " ".join(english for english, _ in sample).lower()))
    nouns = {noun.english for noun in inflection.ALL_NOUNS}
    verbs = {verb.english.split()[0] for verb in inflection.VERBS.values()}
    adjectives = {adjective.english for adjective in inflection.ALL_ADJECTIVES}
    numbers = {number(n)[0] for n in range(2, 100)}
    names = {name.lower() for name in lexicon.NAMES}
    assert nouns | verbs | adjectives | numbers | names <= used


GOLDEN = [
    ("The box lies in the kitchen.", "Die Kiste liegt in der Küche."),
    ("Do twelve tired boys drink the milk slowly?", "Trinken zwölf müde Jungen die Milch langsam?"),
    ("A child says that we invite eleven men now.", "Ein Kind sagt, dass wir jetzt elf Männer einladen."),
    (
        "Their mother sends us a new newspaper that the girl looks for behind the hotel.",
        "Ihre Mutter schickt uns eine neue Zeitung, die das Mädchen hinter dem Hotel sucht.",
    ),
    ("Whom did the mother call seventeen days ago?", "Wen hat die Mutter vor siebzehn Tagen angerufen?"),
    (
        "This box costs six thousand eight hundred and fifty-four euros.",
        "Diese Kiste kostet sechstausendachthundertvierundfünfzig Euro.",
    ),
    ("In the city there were sixteen happy men.", "In der Stadt gab es sechzehn glückliche Männer."),
    (
        "When you had to buy the blue lamp, their aunt did not repair his big windows.",
        "Als du die blaue Lampe kaufen musstest, hat ihre Tante seine großen Fenster nicht repariert.",
    ),
    (
        "On the nineteenth of April nineteen seventy-nine Peter wanted to find thirty coats.",
        "Am neunzehnten April neunzehnhundertneunundsiebzig wollte Peter dreißig Mäntel finden.",
    ),
    ("Did he often come back with you?", "Ist er oft mit dir zurückgekommen?"),
    ("Our brothers hope to fetch Simon.", "Unsere Brüder hoffen, Simon abzuholen."),
    ("The child's newspaper lay in the garden.", "Die Zeitung des Kindes hat im Garten gelegen."),
    (
        "Because the old guests did not carry your radios, they had to write the new story.",
        "Weil die alten Gäste deine Radios nicht getragen haben, mussten sie die neue Geschichte schreiben.",
    ),
    (
        "Their happy doctors need the girl's box.",
        "Ihre glücklichen Ärztinnen brauchen die Kiste des Mädchens.",
    ),
]
SPLITS = {
    "The box lies in the kitchen.": "train",
    "Do twelve tired boys drink the milk slowly?": "train",
    "What did they write?": "validation",
    "Their children hoped to swim well.": "validation",
    "Simon ate the soup.": "test",
    "You repaired this chair at one o'clock.": "test",
}


def test_splits_are_four_percent_and_disjoint(sample: list[tuple[str, str]]):
    splits = [split_of(english) for english in {english for english, _ in sample}]
    for split in ("validation", "test"):
        assert 0.038 < splits.count(split) / len(splits) < 0.042
    assert set(splits) == {"train", "validation", "test"}
    drawn = {
        split: {pair[0] for pair in itertools.islice(pairs(3, split), 500)}
        for split in ("train", "validation", "test")
    }
    assert all(split_of(english) == split for split in drawn for english in drawn[split])
    assert all(len(sentences) == 500 for sentences in drawn.values())


def test_a_sentence_never_changes_its_split():
    assert [split_of(sentence) for sentence in SPLITS] == list(SPLITS.values())


def test_a_seed_gives_the_same_pairs_for_ever():
    """Golden pairs: they also fail if set or dict order, or the platform, ever matters."""
    assert list(itertools.islice(pairs(0, "train"), len(GOLDEN))) == GOLDEN
    again = list(itertools.islice(pairs(1, "train"), len(GOLDEN)))
    assert again != GOLDEN
    assert again == list(itertools.islice(pairs(1, "train"), len(GOLDEN)))


def test_an_unknown_split_is_an_error():
    with pytest.raises(UserError, match='no split "dev"'):
        next(pairs(0, "dev"))


@pytest.mark.slow  # about a minute
def test_a_million_distinct_pairs():
    sources = {source for source, _ in itertools.islice(pairs(0, "train"), 1_000_000)}
    assert len(sources) == 1_000_000
