"""The words of the built-in corpus, as tables.

Each word has exactly one translation, so the German of a sentence is a function of its English. The tables
have only what a dictionary lists (plurals, principal parts); the grammar derives the rest.
"""


def _table(text: str, columns: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    return [row + [""] * (columns - len(row)) for row in rows]


# kind, more classes | prepositions of place | english [plural] article singular plural ("-": none), ...
# "weak" takes -n in every case but the nominative (n-declension); "mass" is not counted;
# "public" has no possessive ("my man" would be a husband); "young" limits the age.
NOUNS = _table(
    """
person public | | man men der Mann Männer, woman women die Frau Frauen
person young | | child children das Kind Kinder
person young public weak | | boy der Junge Jungen
person young public | | girl das Mädchen Mädchen
person | | friend der Freund Freunde, teacher der Lehrer Lehrer, doctor die Ärztin Ärztinnen
person public weak | | student der Student Studenten
person weak | | neighbour der Nachbar Nachbarn
person | | guest der Gast Gäste
person kin | | mother die Mutter -, father der Vater -, sister die Schwester Schwestern
person kin | | brother der Bruder Brüder, daughter die Tochter Töchter, aunt die Tante Tanten
animal | | dog der Hund Hunde, cat die Katze Katzen, horse das Pferd Pferde, bird der Vogel Vögel
food | | apple der Apfel Äpfel, egg das Ei Eier, cake der Kuchen Kuchen, soup die Suppe Suppen
food | | potato potatoes die Kartoffel Kartoffeln
food mass | | bread das Brot -, cheese der Käse -
drink mass | | milk die Milch -, water das Wasser -, coffee der Kaffee -
text | | book das Buch Bücher, letter der Brief Briefe, newspaper die Zeitung Zeitungen
text | | story stories die Geschichte Geschichten
thing | | key der Schlüssel Schlüssel, lamp die Lampe Lampen, radio das Radio Radios
thing | | picture das Bild Bilder
thing surface | in neben | bag die Tasche Taschen, box boxes die Kiste Kisten
thing | | ball der Ball Bälle, present das Geschenk Geschenke, flower die Blume Blumen
garment | | coat der Mantel Mäntel, shirt das Hemd Hemden, jacket die Jacke Jacken
furniture surface | auf unter neben | table der Tisch Tische, chair der Stuhl Stühle, bed das Bett Betten
part | | door die Tür Türen, window das Fenster Fenster
vehicle | | car das Auto Autos, bicycle das Fahrrad Fahrräder
vehicle public | | train der Zug Züge
room place inside open | in | garden der Garten Gärten
room place inside | in | kitchen die Küche Küchen, room das Zimmer Zimmer, office das Büro Büros
building place inside | in vor hinter neben | house das Haus Häuser, school die Schule Schulen
building place inside public | in vor hinter | museum das Museum Museen, hotel das Hotel Hotels
building place public | an vor hinter | station der Bahnhof Bahnhöfe
area place inside open public | in | park der Park Parks, city cities die Stadt Städte
area place inside open public | in | village das Dorf Dörfer, forest der Wald Wälder
""",
    3,
)

# english [comparative] | german [comparative [stem for endings]] | kinds of noun that it can modify
ADJECTIVES = _table(
    """
old older | alt älter | person animal text thing garment furniture part vehicle room building area
young younger | jung jünger | person animal
big bigger | groß größer | animal thing furniture part vehicle room building area
small smaller | klein kleiner | animal thing furniture part vehicle room building area
new newer | neu neuer | text thing garment furniture part vehicle
beautiful | schön schöner | garment animal room building area thing
good better | gut besser | text food
red | rot | garment vehicle furniture thing part
blue | blau | garment vehicle furniture thing part
black | schwarz | garment vehicle furniture thing animal
white | weiß | garment vehicle furniture thing animal part
expensive | teuer teurer teur | garment vehicle furniture thing
cheap cheaper | billig billiger | garment vehicle furniture
friendly friendlier | freundlich freundlicher | person
tired | müde müder | person animal
happy happier | glücklich glücklicher | person
sick | krank | person animal
strong stronger | stark stärker | person animal
clever cleverer | klug klüger | person animal
famous | berühmt berühmter | text room building area
heavy heavier | schwer schwerer | thing furniture
long longer | lang länger | text
interesting | interessant interessanter | text room building area
fresh fresher | frisch frischer | food drink
warm warmer | warm wärmer | food drink
cold colder | kalt kälter | food drink
quiet quieter | ruhig ruhiger | room building area
dirty dirtier | schmutzig schmutziger | garment vehicle
""",
    3,
)

PASSING = {"tired", "happy", "sick", "warm", "cold", "quiet", "dirty"}  # temporary states
PLEASANT = {
    "good",
    "fresh",
    "friendly",
    "beautiful",
    "interesting",
    "famous",
    "clever",
    "happy",
    "new",
}  # never with "too"

# english[, past] | german [third person, participle ("ist+" where the auxiliary is sein)]
#   | subjects | complements | adjuncts, and a key of TENSES where the verb lacks some tenses
# A separable prefix ends in "-". A complement is "[preposition/preposition/]case:nouns", a choice
# of PHRASES (joined by "+"), or one of RULES: a part that the sentence type adds.
RULES = {"that", "infinitive", "price", "predicate"}
VERBS = _table(
    """
read, read | lesen liest gelesen | person | acc:text | place slowly quickly
write, wrote | schreiben schreibt geschrieben | person | acc:letter,book,story | slowly quickly
buy, bought | kaufen | person | acc:food,drink,book,newspaper,thing,garment,car,bicycle | for
sell, sold | verkaufen | person | acc:animal,furniture,car,bicycle,house,picture | simple
find, found | finden findet gefunden | person | acc:animal,text,thing,garment | simple place
look for | suchen | person | acc:person,animal,text,thing,garment | place
see, saw | sehen sieht gesehen | person | acc:person,animal,vehicle,building | simple place
eat, ate | essen isst gegessen | person | acc:food | place slowly quickly
drink, drank | trinken trinkt getrunken | person | acc:drink | place slowly quickly
need | brauchen | person | acc:thing,garment,furniture,car,bicycle,book | state
open | öffnen öffnet geöffnet | person | acc:part,box,letter,present | slowly carefully
close | zu-machen | person | acc:part,box,bag | slowly carefully
repair | reparieren | person | acc:car,bicycle,lamp,radio,furniture,part | for carefully
visit | besuchen | person | acc:person,museum,city,village,school | with
invite | ein-laden lädt eingeladen | person | acc:person |
call | an-rufen ruft angerufen | person | acc:person |
fetch | ab-holen | person | acc:person,letter,present,bicycle |
turn on | ein-schalten | person | acc:lamp,radio | place
carry | tragen trägt getragen | person | acc:thing,furniture | slowly carefully for
meet, met | treffen trifft getroffen | person | acc:person | place
have, had | haben | person | acc:animal,sister,brother,car,bicycle,garment,house,garden | state
help | helfen hilft geholfen | person | dat:person | place
thank | danken | person | dat:person |
follow | folgen folgt ist+gefolgt | person,animal | dat:person,animal | slowly quickly
belong to | gehören gehört gehört | animal,text,thing,garment,car,bicycle | dat:person | state
give, gave | geben gibt gegeben | person | dat:person acc:food,text,thing |
show | zeigen | person | dat:person acc:animal,text,thing,garment,car,bicycle,place |
send, sent | schicken | person | dat:person acc:text,picture,present,flower |
bring, brought | bringen bringt gebracht | person | dat:person acc:food,drink,text,thing |
sleep, slept | schlafen schläft geschlafen | person,animal | | place well
work | arbeiten | person | | place with slowly well
play | spielen | person,animal | | place with
laugh | lachen | person | | loudly with
dance | tanzen | person | | place with well
swim, swam | schwimmen schwimmt ist+geschwommen | person,animal | | slowly quickly well
wait | warten | person | for/auf/acc:person,train | place
think, thought | denken denkt gedacht | person | of/an/acc:person | simple
speak, spoke | sprechen spricht gesprochen | person | with/mit/dat:person | loudly place
get up, got up | auf-stehen steht ist+aufgestanden | person | | slowly quickly
arrive | an-kommen kommt ist+angekommen | person,train | | event
fall asleep, fell asleep | ein-schlafen schläft ist+eingeschlafen | person,animal | | quickly place
come back, came back | zurück-kommen kommt ist+zurückgekommen | person | | with from
go, went | gehen geht ist+gegangen | person | into+towards | with
run, ran | laufen läuft ist+gelaufen | person,animal | into+through+out | quickly
place | legen | person | acc:text,thing,garment onto | carefully
live | wohnen | person | home | with state
lie, lay | liegen liegt gelegen | text,thing,garment | lying | state
stay | bleiben bleibt ist+geblieben | person | place | with simple
rain | regnen regnet geregnet | it | | weather
say, said | sagen | person | that | state
know, knew | wissen weiß gewusst | person | that | state
believe | glauben | person | that | state
hope | hoffen | person | that infinitive | state
try | versuchen | person | infinitive |
forget, forgot | vergessen vergisst vergessen | person | infinitive | state
cost, cost | kosten | thing,garment,furniture,car,bicycle | price | timeless
be, was | sein ist ist+gewesen | any | predicate | event
""",
    5,
)

# english/german/case:nouns; "*": a preposition of place that the noun determines
PHRASES = {
    "with": "with/mit/dat:person",
    "for": "for/für/acc:person",
    "place": "*/*/dat:place",
    "home": "*/*/dat:house,hotel,city,village,forest",
    "lying": "*/*/dat:surface,kitchen,garden,room,office",
    "onto": "*/*/acc:surface",
    "into": "into/in/acc:inside",
    "towards": "to/zu/dat:building",
    "through": "through/durch/acc:open",
    "out": "out of/aus/dat:house,school,museum,hotel,kitchen,forest",
    "from": "from/von/dat:building",
}
PLACE_PREPOSITIONS = {
    "in": "in",
    "an": "at",
    "auf": "on",
    "unter": "under",
    "vor": "in front of",
    "hinter": "behind",
    "neben": "next to",
}
CONTRACTIONS = {
    "in dem": "im",
    "an dem": "am",
    "von dem": "vom",
    "zu dem": "zum",
    "zu der": "zur",
    "in das": "ins",
}

MANNERS = {
    "slowly": "langsam",
    "quickly": "schnell",
    "carefully": "vorsichtig",
    "loudly": "laut",
    "well": "gut",
}
FREQUENCIES = (("often", "oft"), ("always", "immer"), ("never", "nie"), ("sometimes", "manchmal"))
NAMES = ("Anna", "Maria", "Julia", "Clara", "Peter", "Paul", "Martin", "Simon")
POSSESSIVES = {"my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}

# Agreement, in both languages: 0 "I", 1 "you" (always the informal singular), 2 third person
# singular, 3 plural. The last column prevents "I help me" and "we help me".
PRONOUNS = (
    ("I", "me", {"nom": "ich", "acc": "mich", "dat": "mir"}, 0, "speaker"),
    ("you", "you", {"nom": "du", "acc": "dich", "dat": "dir"}, 1, "hearer"),
    ("he", "him", {"nom": "er", "acc": "ihn", "dat": "ihm"}, 2),
    ("she", "her", {"nom": "sie", "acc": "sie", "dat": "ihr"}, 2),
    ("we", "us", {"nom": "wir", "acc": "uns", "dat": "uns"}, 3, "speaker"),
    ("they", "them", {"nom": "sie", "acc": "sie", "dat": "ihnen"}, 3),
)

ENGLISH_BE = {"present": ("am", "are", "is", "are"), "past": ("was", "were", "was", "were")}
PRESENT = {
    "haben": ("habe", "hast", "hat", "haben"),
    "sein": ("bin", "bist", "ist", "sind"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
}
# Spoken German uses the simple past of these verbs, and the perfect of all others.
PRETERITE = {
    "haben": ("hatte", "hattest", "hatte", "hatten"),
    "sein": ("war", "warst", "war", "waren"),
    "wissen": ("wusste", "wusstest", "wusste", "wussten"),
}
# German modals (and the future) of English auxiliaries, and of English verbs with "to": the form
# after "do", and the inflected form.
AUXILIARIES = {
    "will": ("werde", "wirst", "wird", "werden"),
    "can": ("kann", "kannst", "kann", "können"),
    "may": ("darf", "darfst", "darf", "dürfen"),
    "should": ("sollte", "solltest", "sollte", "sollten"),
    "could": ("konnte", "konntest", "konnte", "konnten"),
}
SEMI_MODALS = {
    "have to": ("have to", "has to", ("muss", "musst", "muss", "müssen")),
    "had to": ("have to", "had to", ("musste", "musstest", "musste", "mussten")),
    "want to": ("want to", "wants to", ("will", "willst", "will", "wollen")),
    "wanted to": ("want to", "wanted to", ("wollte", "wolltest", "wollte", "wollten")),
}
# The tenses a verb can have, by key; more likely ones are repeated. If there are none, those of "now".
_ALL_TENSES = {
    "now": (*3 * ["present"], "progressive"),
    "later": ("will", "can", "may", "have to", "want to", "should"),
    "past": (*4 * ["past"], "could", "had to", "wanted to"),
}
TENSES: dict[str, dict[str, tuple[str, ...]]] = {
    "": _ALL_TENSES,
    "simple": {**_ALL_TENSES, "now": ("present",)},
    "state": {"now": ("present",), "past": ("past",)},
    "event": {"now": ("present",), "later": ("will",), "past": ("past",)},
    "weather": {"now": ("progressive",), "later": ("will",), "past": ("past",)},
    "timeless": {"now": ("present",)},
}

# english | german | the times that it fits
TIMES = _table(
    """
today | heute | now later
now | jetzt | now
every day | jeden Tag | now
every week | jede Woche | now
tomorrow | morgen | later
next week | nächste Woche | later
this evening | heute Abend | now later
yesterday | gestern | past
last week | letzte Woche | past
last year | letztes Jahr | past
in the morning | am Morgen | now later past
in the evening | am Abend | now later past
""",
    3,
)
# "Half past seven" is "halb acht": the last column is added to the hour in German.
CLOCK = (
    ("{} o'clock", "{} Uhr", 0),
    ("{} o'clock", "{} Uhr", 0),
    ("half past {}", "halb {}", 1),
    ("a quarter past {}", "Viertel nach {}", 0),
    ("a quarter to {}", "Viertel vor {}", 0),
)
WEEKDAYS = (
    ("Monday", "Montag"),
    ("Tuesday", "Dienstag"),
    ("Wednesday", "Mittwoch"),
    ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"),
    ("Saturday", "Samstag"),
    ("Sunday", "Sonntag"),
)
MONTHS = (
    ("January", "Januar", 31),
    ("February", "Februar", 28),
    ("March", "März", 31),
    ("April", "April", 30),
    ("May", "Mai", 31),
    ("June", "Juni", 30),
    ("July", "Juli", 31),
    ("August", "August", 31),
    ("September", "September", 30),
    ("October", "Oktober", 31),
    ("November", "November", 30),
    ("December", "Dezember", 31),
)
UNITS = (("days", "Tagen"), ("weeks", "Wochen"), ("months", "Monaten"), ("years", "Jahren"))

ENGLISH_SMALL, ENGLISH_TENS, GERMAN_SMALL, GERMAN_TENS = map(
    str.split,
    (
        "zero one two three four five six seven eight nine ten eleven twelve "
        "thirteen fourteen fifteen sixteen seventeen eighteen nineteen",
        "- - twenty thirty forty fifty sixty seventy eighty ninety",
        "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf "
        "dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn",
        "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    ),
)
ENGLISH_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
    "twenty": "twentieth",
    "thirty": "thirtieth",
}
GERMAN_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}

# english, german, time of the subordinate clause, time of the main clause
CONJUNCTIONS = (
    ("because", "weil", "now", "now"),
    ("because", "weil", "past", "past"),
    ("because", "weil", "past", "now"),
    ("because", "weil", "now", "later"),
    ("although", "obwohl", "now", "now"),
    ("although", "obwohl", "past", "past"),
    ("if", "wenn", "now", "now"),
    ("if", "wenn", "now", "later"),
    ("when", "als", "past", "past"),
    ("before", "bevor", "past", "past"),
)
