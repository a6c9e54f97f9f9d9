"""The built-in grammar: German by the book, distinct and reproducible pairs, lasting splits."""

import itertools
import random
import re

import pytest

from transformer.errors import UserError
from transformer.grammar import inflection, lexicon, pairs, sentence_pair, sentences, split_of
from transformer.grammar.clauses import Clause, in_english, in_german
from transformer.grammar.inflection import Noun, conjugate, determiner, number
from transformer.grammar.phrases import Phrase

NUMBERS = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    6: ("six", "sechs"),
    7: ("seven", "sieben"),
    11: ("eleven", "elf"),
    12: ("twelve", "zwölf"),
    16: ("sixteen", "sechzehn"),
    17: ("seventeen", "siebzehn"),
    20: ("twenty", "zwanzig"),
    21: ("twenty-one", "einundzwanzig"),
    30: ("thirty", "dreißig"),
    42: ("forty-two", "zweiundvierzig"),
    66: ("sixty-six", "sechsundsechzig"),
    77: ("seventy-seven", "siebenundsiebzig"),
    99: ("ninety-nine", "neunundneunzig"),
    100: ("one hundred", "einhundert"),
    101: ("one hundred and one", "einhunderteins"),
    342: ("three hundred and forty-two", "dreihundertzweiundvierzig"),
    1000: ("one thousand", "eintausend"),
    1005: ("one thousand and five", "eintausendfünf"),
    1984: (
        "one thousand nine hundred and eighty-four",
        "eintausendneunhundertvierundachtzig",
    ),
    2026: ("two thousand and twenty-six", "zweitausendsechsundzwanzig"),
    9300: ("nine thousand three hundred", "neuntausenddreihundert"),
}


@pytest.mark.parametrize("n", NUMBERS)
def test_numbers(n: int):
    assert number(n) == NUMBERS[n]


def test_ordinals_and_years():
    stems = [inflection.ordinal(n) for n in (1, 2, 3, 7, 8, 12, 19, 20, 21, 23, 30)]
    assert " ".join(english for english, _ in stems) == (
        "first second third seventh eighth twelfth nineteenth twentieth twenty-first twenty-third thirtieth"
    )
    assert " ".join(german for _, german in stems) == (
        "erst zweit dritt siebt acht zwölft neunzehnt zwanzigst einundzwanzigst dreiundzwanzigst dreißigst"
    )
    assert inflection.year(1984) == ("nineteen eighty-four", "neunzehnhundertvierundachtzig")
    assert inflection.year(2000) == ("two thousand", "zweitausend")
    assert inflection.year(2005) == ("two thousand and five", "zweitausendfünf")


# "der alte Mann", "das alte Haus", "die alte Frau", "die alten ..." in every case.
DECLENSIONS = {
    "d": {
        "nom": "der alte | das alte | die alte | die alten",
        "acc": "den alten | das alte | die alte | die alten",
        "dat": "dem alten | dem alten | der alten | den alten",
        "gen": "des alten | des alten | der alten | der alten",
    },
    "dies": {
        "nom": "dieser alte | dieses alte | diese alte | diese alten",
        "acc": "diesen alten | dieses alte | diese alte | diese alten",
        "dat": "diesem alten | diesem alten | dieser alten | diesen alten",
        "gen": "dieses alten | dieses alten | dieser alten | dieser alten",
    },
    "kein": {
        "nom": "kein alter | kein altes | keine alte | keine alten",
        "acc": "keinen alten | kein altes | keine alte | keine alten",
        "dat": "keinem alten | keinem alten | keiner alten | keinen alten",
        "gen": "keines alten | keines alten | keiner alten | keiner alten",
    },
    "unser": {
        "nom": "unser alter | unser altes | unsere alte | unsere alten",
        "acc": "unseren alten | unser altes | unsere alte | unsere alten",
        "dat": "unserem alten | unserem alten | unserer alten | unseren alten",
    },
    "": {
        "nom": " alter |  altes |  alte |  alte",
        "acc": " alten |  altes |  alte |  alte",
        "dat": " altem |  altem |  alter |  alten",
    },
    "Annas": {
        "nom": "Annas alter | Annas altes | Annas alte | Annas alte",
        "dat": "Annas altem | Annas altem | Annas alter | Annas alten",
    },
}


@pytest.mark.parametrize("stem", DECLENSIONS)
def test_articles_and_adjectives_in_every_case(stem: str):
    for case, expected in DECLENSIONS[stem].items():
        forms = (determiner(stem, case, gender) for gender in "mnfp")
        assert [f"{word} alt{ending}" for word, ending in forms] == expected.split(" | ")


def test_plural_determiners_leave_the_ending_to_the_adjective():
    assert [determiner("viel", case, "p") for case in ("nom", "acc", "dat")] == [
        ("viele", "e"),
        ("viele", "e"),
        ("vielen", "en"),
    ]
    assert determiner("sieben", "dat", "p") == ("sieben", "en")


def test_relative_pronouns():
    forms = {
        case: [inflection.relative_pronoun(case, gender) for gender in "mnfp"]
        for case in ("nom", "acc", "dat")
    }
    assert forms == {
        "nom": ["der", "das", "die", "die"],
        "acc": ["den", "das", "die", "die"],
        "dat": ["dem", "dem", "der", "denen"],
    }


def noun(english: str) -> Noun:
    return next(noun for noun in inflection.ALL_NOUNS if noun.english == english)


@pytest.mark.parametrize(
    ("english", "forms"),
    [
        ("boy", "Junge Jungen Jungen Jungen Jungen"),
        ("student", "Student Studenten Studenten Studenten Studenten"),
        ("neighbour", "Nachbar Nachbarn Nachbarn Nachbarn Nachbarn"),
        ("child", "Kind Kind Kind Kindes Kindern"),
        ("man", "Mann Mann Mann Mannes Männern"),
        ("teacher", "Lehrer Lehrer Lehrer Lehrers Lehrern"),
        ("sister", "Schwester Schwester Schwester Schwester Schwestern"),
        ("car", "Auto Auto Auto Autos Autos"),
        ("garden", "Garten Garten Garten Gartens Gärten"),
    ],
)
def test_nouns_decline(english: str, forms: str):
    singular = [noun(english).inflect(case, False)[1] for case in ("nom", "acc", "dat", "gen")]
    assert [*singular, noun(english).inflect("dat", True)[1]] == forms.split()


MARIA = Phrase("Maria", "Maria")


def clause(verb: str, tense: str, *, negated: bool = False) -> Clause:
    """A clause about Maria without objects."""
    form = conjugate(inflection.VERBS[verb], tense, MARIA.agreement)
    return Clause(MARIA, form, negated, "", [], [], [], inflection.NOTHING)


def test_german_word_order():
    """The finite verb second, first or last; prefix, participle and infinitive close the clause."""
    tenses = ("present", "past", "will", "to")
    now, past, will, to = (clause("get up", tense) for tense in tenses)
    assert in_german(now) == "Maria steht auf"
    assert in_german(now, "heute") == "heute steht Maria auf"
    assert in_german(now, verb="first") == "steht Maria auf"
    assert in_german(now, "dass", verb="last") == "dass Maria aufsteht"
    assert in_german(past, "gestern") == "gestern ist Maria aufgestanden"
    assert in_german(past, "weil", verb="last") == "weil Maria aufgestanden ist"
    assert in_german(will) == "Maria wird aufstehen"
    assert in_german(will, "wenn", verb="last") == "wenn Maria aufstehen wird"
    silent = to._replace(subject=Phrase("", ""))
    assert in_german(silent, verb="last") == "aufzustehen"
    assert in_english(silent) == "to get up"


def test_german_middle_field():
    reading = clause("read", "past", negated=True)._replace(
        rest=["the book"], before=["das Buch"], time=("yesterday", "gestern"), after=["nicht"]
    )
    assert in_german(reading) == "Maria hat das Buch gestern nicht gelesen"
    assert in_english(reading) == "Maria did not read the book yesterday"
    assert in_english(reading._replace(negated=False), question=True) == ("did Maria read the book yesterday")


def test_english_verbs_say_do_only_where_needed():
    assert in_english(clause("try", "present")) == "Maria tries"
    assert in_english(clause("try", "present", negated=True)) == "Maria does not try"
    assert in_english(clause("try", "present"), question=True) == "does Maria try"
    assert in_english(clause("carry", "past")) == "Maria carried"
    assert in_english(clause("run", "progressive")) == "Maria is running"
    assert in_english(clause("come back", "progressive")) == "Maria is coming back"
    assert in_english(clause("go", "can", negated=True)) == "Maria cannot go"
    assert in_english(clause("be", "past"), question=True) == "was Maria"
    assert in_english(clause("go", "have to", negated=True)) == "Maria does not have to go"


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("read", "lese liest liest lesen"),
        ("find", "finde findest findet finden"),
        ("work", "arbeite arbeitest arbeitet arbeiten"),
        ("dance", "tanze tanzt tanzt tanzen"),
        ("eat", "esse isst isst essen"),
        ("invite", "lade lädst lädt laden"),
        ("be", "bin bist ist sind"),
        ("have", "habe hast hat haben"),
        ("know", "weiß weißt weiß wissen"),
        ("open", "öffne öffnest öffnet öffnen"),
    ],
)
def test_german_present(verb: str, forms: str):
    conjugated = (conjugate(inflection.VERBS[verb], "present", person) for person in range(4))
    assert [form.finite for form in conjugated] == forms.split()


@pytest.mark.parametrize(
    ("verb", "perfect"),
    [
        ("buy", "hat gekauft"),
        ("sell", "hat verkauft"),
        ("visit", "hat besucht"),
        ("repair", "hat repariert"),
        ("fetch", "hat abgeholt"),
        ("close", "hat zugemacht"),
        ("work", "hat gearbeitet"),
        ("turn on", "hat eingeschaltet"),
        ("go", "ist gegangen"),
        ("follow", "ist gefolgt"),
        ("fall asleep", "ist eingeschlafen"),
        ("try", "hat versucht"),
    ],
)
def test_german_perfect(verb: str, perfect: str):
    form = conjugate(inflection.VERBS[verb], "past", 2)
    assert f"{form.finite} {form.final}" == perfect


@pytest.fixture(scope="module")
def sample() -> list[tuple[str, str]]:
    rng = random.Random("sample")
    return [sentence_pair(rng) for _ in range(200_000)]


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
    for english, german in sample[:50_000]:
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
