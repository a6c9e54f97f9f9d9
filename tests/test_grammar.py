"""The built-in grammar: German forms as in a reference grammar."""

import pytest

from transformer.data.built_in import inflection
from transformer.data.built_in.clauses import Clause, in_english, in_german
from transformer.data.built_in.inflection import Noun, conjugate, determiner, number
from transformer.data.built_in.phrases import Phrase

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
