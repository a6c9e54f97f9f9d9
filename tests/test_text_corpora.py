"""Built-in corpora of text tasks: what their generators state is recomputed from the text alone."""

import itertools
import re
from collections import Counter

import pytest

from transformer import UserError
from transformer.config.corpus import DataConfig
from transformer.data.built_in import conversations, opinions, reports, stories, topics, treebank
from transformer.data.built_in.lexicon import NAMES
from transformer.data.sources.corpora import BUILT_IN, open_corpus
from transformer.data.trees import linearised, read_tree
from transformer.tasks.metrics.bracketing import bracketing_f1

CORPORA = {
    "reports": reports,
    "stories": stories,
    "conversations": conversations,
    "opinions": opinions,
    "topics": topics,
    "treebank": treebank,
}
SPLITS = ("train", "validation", "test")


def drawn(corpus, split="train", count=400):
    return list(itertools.islice(CORPORA[corpus].records(split), count))


# --- All of them


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_corpus_is_always_the_same(corpus):
    pairs = [list(itertools.islice(CORPORA[corpus].pairs("test", seed), 50)) for seed in (0, 0, 1)]
    assert pairs[0] == pairs[1] != pairs[2]
    assert len({source for source, _ in pairs[0]}) == 50


@pytest.mark.by_default("opinions")
@pytest.mark.parametrize("corpus", CORPORA)
def test_splits_share_no_source(corpus):
    sources = [
        {source for source, _ in itertools.islice(CORPORA[corpus].pairs(split), 2000)} for split in SPLITS
    ]
    for one, other in itertools.combinations(sources, 2):
        assert not one & other
    with pytest.raises(UserError, match=f"no tests split of the corpus {corpus}"):
        next(CORPORA[corpus].records("tests"))


@pytest.mark.by_default("topics")
@pytest.mark.parametrize("corpus", CORPORA)
def test_a_corpus_is_opened_by_its_name(corpus, tmp_path):
    data = DataConfig(dataset=corpus, built_in_size=20, cache_dir=tmp_path)
    opened = open_corpus(data)
    assert opened.name == BUILT_IN[corpus][0]
    assert list(opened.splits["train"]) == list(itertools.islice(CORPORA[corpus].pairs("train"), 20))


@pytest.mark.parametrize("corpus", CORPORA)
def test_most_of_a_corpus_is_not_one_answer(corpus):
    counts = Counter(target for _, target in itertools.islice(CORPORA[corpus].pairs("train"), 2000))
    assert counts.most_common(1)[0][1] < 0.4 * 2000


# --- Reports


def numbers_of(sentences):
    """The number and the name in each sentence that has both; names are words in no list."""
    known = {*["On", "In", "The", "For", "It", "This"], *reports.DAYS}
    facts = {}
    for sentence in sentences:
        names = [word for word in re.findall("[A-Z][a-z]+", sentence) if word not in known]
        if (number := re.search(r"\d+", sentence)) and len(names) == 1:
            facts[names[0]] = int(number[0])
    return facts


def test_summaries_are_what_the_reports_say():
    kinds = Counter()
    for report, summaries in drawn("reports"):
        sentences = report.split(". ")
        assert 5 <= len(sentences) <= 10
        facts = numbers_of(sentences[1:])
        pick = min if "race" in report else max
        name = pick(facts, key=lambda name: facts[name])
        for summary in summaries:
            assert name in summary.split(".")[0]
            assert re.findall(r"\d+", summary) == [str(facts[name])]
        rainy = [s for s in sentences if re.search("it rained|rain fell", s)]
        wet = [next(place for place in facts if place in s) for s in rainy]
        if "weather" in report:
            after = summaries[0].split(". ")[1]
            assert re.findall("[A-Z][a-z]+", after)[1:] == wet
            assert ("dry everywhere" in after) == (not wet)
        kinds[sum(word in report for word in ("race", "market"))] += 1
    assert min(kinds.values()) > 80


def test_names_of_reports_are_in_one_split():
    names = [set() for _ in SPLITS]
    for split, known in zip(SPLITS, names, strict=True):
        for report, _ in drawn("reports", split, 300):
            known |= set(numbers_of(report.split(". ")[1:]))
    for one, other in itertools.combinations(names, 2):
        assert not one & other


# --- Stories


def answer_by_reading(story, question):
    """The answer to a question, by reading the story backwards."""
    sentences = [sentence.split() for sentence in story.rstrip(".").split(". ")]

    def place_of(person, end):
        for words in reversed(sentences[:end]):
            if words[0] == person and words[-1] in stories.PLACES:
                return f"the {words[-1]}"
        return "unknown"

    *_, asked = question.rstrip("?").split()
    if asked in NAMES:
        return place_of(asked, len(sentences))
    for index in range(len(sentences) - 1, -1, -1):
        words = sentences[index]
        if asked not in words:
            continue
        is_put = {"put", "dropped", "left"} & set(words)
        if is_put:
            return place_of(words[0], index) if question.startswith("Where") else "nobody"
        owner = words[-1] if words[-1] in NAMES else words[0]
        return place_of(owner, len(sentences)) if question.startswith("Where") else owner
    return "unknown"


def test_answers_follow_from_the_stories():
    records = drawn("stories", count=3000)
    for story, question, answer in records:
        assert answer_by_reading(story, question) == answer, story
        assert 2 <= story.count(".") <= 8
    unknown = sum(answer == stories.UNKNOWN for *_, answer in records)
    assert 0.1 < unknown / 3000 < 0.2
    record = records[0]
    source, target = next(stories.pairs("train"))
    assert re.fullmatch("<story> (.+) <question> (.+)", source).groups() == record[:2]
    assert target == record.answer


def test_objects_change_hands_where_both_are():
    for story, _, _ in drawn("stories", count=1000):
        place, holder = {}, {}
        for words in (sentence.split() for sentence in story.rstrip(".").split(". ")):
            things = set(words) & set(stories.OBJECTS)
            if not things:
                assert words[-1] != place.get(words[0])
                place[words[0]] = words[-1]
                continue
            (thing,) = things
            if {"gave", "handed"} & set(words):
                assert holder[thing] == words[0]
                assert place[words[0]] == place[words[-1]]
                holder[thing] = words[-1]
            elif {"took", "picked", "grabbed"} & set(words):
                assert thing not in holder
                holder[thing] = words[0]
            else:
                assert holder.pop(thing) == words[0]


# --- Conversations


def test_replies_have_what_was_said_last_about_it_two_turns_before_or_earlier():
    replies = Counter()
    for turns, reply in drawn("conversations", count=1000):
        assert len(turns) % 2 == 1
        (topic,) = [name for name, parts in conversations.TOPICS.items() if turns[-1] in parts[1].split("|")]
        said = []
        for turn in turns[:-1:2]:
            for wording in conversations.TOPICS[topic][0].split("|"):
                pattern = re.escape(wording).replace(r"\{\}", r"(\w+)")
                if match := re.fullmatch(f"(?:No, wait. )?{pattern}", turn):
                    said.append(match[1])
        expected = conversations.TOPICS[topic][2].format(said[-1]) if said else conversations.UNTOLD
        assert reply == expected
        assert all(turn in conversations.ANSWERS for turn in turns[1::2])
        assert not said or said[-1] not in turns[-1] + turns[-2]
        replies[len(said)] += 1
    assert all(replies[count] > 50 for count in (0, 1, 2))


# --- Opinions


def sentiment(text):
    """The sentiment of a sentence by its words, the denials before them, and the clause that counts."""
    text = text.lower().rstrip(".")
    main = re.sub("although [^,]*, |, although .*|.*, but ", "", text)
    signs = set()
    for clause in main.split(" and "):
        words = set(clause.split())
        if "neither" in words:
            continue
        denied = bool(words & {"not", "never", "nobody"})
        for sign, known in ((1, opinions.GOOD), (-1, opinions.BAD)):
            if words & set(known):
                signs.add(-sign if denied else sign)
    assert len(signs) < 2
    return {1: "positive", -1: "negative", 0: "neutral"}[sum(signs)]


def test_sentiments_follow_from_the_words():
    records = drawn("opinions", count=2000)
    assert all(sentiment(text) == label for text, label in records)
    assert min(Counter(label for _, label in records).values()) > 500
    has_both = [text for text, _ in records if any(f" {w}" in text for w in opinions.GOOD)]
    assert any(" not " in text for text in has_both)
    assert sum(", but " in text for text, _ in records) > 100


# --- Topics


def patterns_of(label):
    lists = {"name": NAMES, "town": topics.TOWNS, "season": topics.SEASONS}

    def alternative(match):
        return f"(?:{'|'.join(lists.get(match[1], [match[1]]))})"

    return [re.sub("{(.*?)}", alternative, sentence) for sentence in topics.SENTENCES[label]]


def test_topics_are_those_of_the_sentences():
    patterns = {label: patterns_of(label) for label in topics.LABELS}
    sizes = Counter()
    for text, labels in drawn("topics", count=1000):
        sentences = re.split(r"(?<=\.) ", text)
        matched = {
            label
            for label, some in patterns.items()
            for sentence in sentences
            if any(re.fullmatch(pattern, sentence) for pattern in some)
        }
        assert sorted(matched) == list(labels)
        sizes[len(labels)] += 1
    assert set(sizes) == {1, 2, 3, 4}
    assert min(sizes.values()) > 100


# --- Treebank


def test_leaves_of_trees_are_the_sentences():
    for words, tags, text in drawn("treebank"):
        tree = read_tree(text)
        assert linearised(tree) == text
        assert tuple(tree.words()) == words
        assert re.findall(r"\((\S+) [^\s()]+ \)", text) == list(tags)
        assert len(words) in treebank.WORDS
        assert tree.label in ("S", "SQ")


def labels_of(tree):
    yield tree.label, [child.label for child in tree.children if not isinstance(child, str)]
    for child in tree.children:
        if not isinstance(child, str):
            yield from labels_of(child)


def test_trees_follow_the_grammar_of_the_penn_treebank():
    heads = {"PP": {"IN"}, "VP": {"VB", "VBZ", "VBP", "VBD", "MD", "TO"}, "SBAR": {"IN", "WHNP"}}
    attached = Counter()
    for record in drawn("treebank", count=1000):
        for label, children in labels_of(read_tree(record.tree)):
            assert not children or label not in heads or children[0] in heads[label]
            if label == "S" and children[-1] == "." and "CC" not in children:
                assert children[-2] == "VP"
            if "PP" in children:
                attached[label] += 1
    assert set(attached) == {"NP", "VP"}
    assert min(attached.values()) > 100


def test_a_right_branching_tree_is_no_good_parse():
    """The simplest baseline: every word opens a constituent that ends with the sentence."""
    records = drawn("treebank", count=200)
    guesses = []
    for words, tags, _ in records:
        text = ""
        for word, tag in reversed(list(zip(words[:-1], tags, strict=False))):
            text = f"(VP ({tag} {word}) {text})"
        guesses.append(f"(S {text} (. {words[-1]}))")
    assert 5 < bracketing_f1(guesses, [record.tree for record in records]).value < 60
