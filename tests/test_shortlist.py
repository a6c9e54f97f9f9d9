"""Searches among the candidates of a lexical shortlist, against slow searches of the whole vocabulary without
all other tokens."""

import struct
from collections import Counter

import numpy as np
import pytest
from reference_search import next_log_p, slow_search
from small_translator import small_translator, stored

from transformer import Translator
from transformer.commands.tables import shortlist_main
from transformer.data.sequences import length_in_search, lengths_in_search
from transformer.decoding.scores import wu_penalty
from transformer.decoding.searches.shortlist import FILE, Shortlist, always, counted_table, field
from transformer.runtime.errors import UserError

SENTENCES = ["red cat runs", "dog", "green bird sings blue dog", "cat cat sleeps", "blue"]


def table(size, best=4, first=6, seed=0):
    """A random table, which lists each source id's translations in order."""
    rng = np.random.default_rng(seed)
    lists = [np.sort(rng.choice(size, rng.integers(2, best + 1), replace=False)) for _ in range(size)]
    ends = np.cumsum([0, *map(len, lists)])
    return Shortlist(first, best, ends, np.concatenate(lists).astype(np.int32))


@pytest.fixture(scope="module")
def translator():
    translator = small_translator()
    translator.task.shortlist = table(translator.config.model.vocab_size)
    return translator


def candidates(translator, sentence):
    special = translator.config.model.special
    ids = [*translator.tokenizers[0].encode(sentence), special.eos]
    return ids, set(translator.task.shortlist.candidates(ids, always(special)))


def test_candidates_are_the_first_ids_and_the_translations_of_each_token(translator):
    listed = translator.task.shortlist
    for sentence in SENTENCES:
        ids, found = candidates(translator, sentence)
        expected = set(range(listed.first))
        for index in ids:
            expected |= set(listed.ids[listed.ends[index] : listed.ends[index + 1]].tolist())
        assert found == expected
    assert listed.candidates([5], (3, 1))[:2] == [3, 1]
    assert len(set(listed.candidates([5], (3, 1)))) == len(listed.candidates([5], (3, 1)))


@pytest.mark.by_default("3")
@pytest.mark.parametrize("beams", [1, 3])
def test_it_finds_what_a_slow_search_of_the_candidates_finds(translator, beams):
    special = translator.config.model.special
    options = {"method": "beam", "beam_size": beams} if beams > 1 else {"method": "greedy"}
    together = translator.search(SENTENCES, shortlist=True, **options)
    for sentence, hypotheses in zip(SENTENCES, together, strict=True):
        ids, allowed = candidates(translator, sentence)
        ask = next_log_p(translator.model, translator.variables, np.array([ids], np.int32)[:1])
        out = [index for index in range(translator.config.model.vocab_size) if index not in allowed]

        def restricted(prefixes, ask=ask, out=out):
            log_p = ask(prefixes)
            log_p[:, out] = -np.inf
            return log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True)

        limit = len(ids) + 3
        expected = slow_search(restricted, special, beams, wu_penalty(0.6), limit)
        found = [(hypothesis.score, tuple(hypothesis.ids)) for hypothesis in hypotheses]
        assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
        np.testing.assert_allclose([score for score, _ in found], [score for score, _ in expected], atol=1e-4)
        (alone,) = translator.search([sentence], shortlist=True, **options)
        assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in hypotheses]


@pytest.mark.slow
def test_with_all_tokens_it_is_the_search_without_it(translator):
    whole = small_translator()
    size = whole.config.model.vocab_size
    whole.task.shortlist = Shortlist(size, 1, np.zeros(size + 1, np.int64), np.zeros(0, np.int32))
    for options in ({"method": "greedy"}, {"method": "beam"}, {"method": "sample", "noise": 0.1}):
        expected = whole.search(SENTENCES, **options)
        found = whole.search(SENTENCES, shortlist=True, **options)
        if options["method"] != "sample":  # which draws by the order of the tokens
            assert [[x.ids for x in row] for row in found] == [[x.ids for x in row] for row in expected]
        assert [len(row) for row in found] == [len(row) for row in expected]


@pytest.mark.slow
def test_it_goes_with_int8_alignments_and_token_scores(translator, tmp_path):
    run = stored(translator, tmp_path / "run")
    assert (run / FILE).exists()
    loaded = Translator.load(run, int8=True)
    (hypotheses,) = loaded.search(["red cat"], shortlist=True, alignments=True, token_scores=True)
    allowed = candidates(translator, "red cat")[1]
    for hypothesis in hypotheses:
        assert set(hypothesis.ids) <= allowed
        assert hypothesis.alignment.shape == (len(hypothesis.ids), 3)


def test_what_it_does_not_go_with_is_refused(translator):
    with pytest.raises(UserError, match="does not go with prefixes"):
        translator.search(["red"], prefixes=["cat"], shortlist=True)
    with pytest.raises(UserError, match="does not go with prefixes"):
        translator.translate(["red"], min_length=2, shortlist=True)
    with pytest.raises(UserError, match="this run has no lexical shortlist"):
        small_translator().translate(["red"], shortlist=True)
    recurrent = small_translator("recurrent")
    recurrent.task.shortlist = translator.task.shortlist
    with pytest.raises(UserError, match="for one model of system transformer"):
        recurrent.translate(["red"], shortlist=True)
    together = Translator.together([translator, translator])
    together.task.shortlist = translator.task.shortlist
    with pytest.raises(UserError, match="leave it out for others and for ensembles"):
        together.translate(["red"], shortlist=True)


def test_files_are_read_as_they_were_written(tmp_path):
    original = table(30)
    original.write(tmp_path / FILE)
    read = Shortlist.read(tmp_path / FILE, 30)
    assert (read.first, read.best) == (original.first, original.best)
    np.testing.assert_array_equal(read.ends, original.ends)
    np.testing.assert_array_equal(read.ids, original.ids)


def test_damaged_files_and_those_of_other_vocabularies_are_refused(tmp_path):
    path = tmp_path / FILE
    table(30).write(path)
    content = path.read_bytes()
    with pytest.raises(UserError, match="for another vocabulary: the target has 20"):
        Shortlist.read(path, 20)
    rng = np.random.default_rng(0)
    for trial in range(60):
        damaged = bytearray(content)
        if trial % 2:
            damaged = damaged[: rng.integers(len(content))]
        else:
            damaged[rng.integers(len(content))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="is no lexical shortlist|is damaged|cannot be read|for another"):
            Shortlist.read(path, 30)
    path.write_bytes(content[:32] + struct.pack("<QQ", 2**60, 2**60) + content[48:])
    with pytest.raises(UserError, match="is truncated"):
        Shortlist.read(path, 30)


@pytest.mark.parametrize("number", [2, 5000])
def test_a_translation_that_is_listed_again(tmp_path, number):
    """Their number would become the size of arrays."""
    ends = np.array([0, 3, 3 + number, 4 + number], np.int64)
    ids = np.concatenate([[2, 5, 9], np.full(number, 5), [5]]).astype(np.int32)
    Shortlist(0, 10, ends, ids).write(tmp_path / FILE)
    with pytest.raises(UserError, match="is damaged: source id 1 has the translation 5 twice"):
        Shortlist.read(tmp_path / FILE, 13)


def test_translations_may_have_any_order(tmp_path):
    Shortlist(0, 10, np.array([0, 3, 5]), np.array([9, 2, 5, 7, 2], np.int32)).write(tmp_path / FILE)
    assert Shortlist.read(tmp_path / FILE, 13).candidates([0], (1,)) == [1, 2, 5, 9]


def test_no_search_has_more_candidates_than_the_vocabulary(translator):
    size = translator.config.model.vocab_size
    whole = Shortlist(0, size, np.arange(size + 1) * size, np.tile(np.arange(size, dtype=np.int32), size))
    fields = {"shortlist": field(*whole.room, 128, size)}
    assert {lengths_in_search(fields, bucket)["shortlist"] for bucket in (8, 128)} == {size + 4}
    ids = whole.candidates([5, 6, 7], (0, 1, 2, 3))
    assert length_in_search({"shortlist": ids}, fields) == 1
    fewer = {"shortlist": field(3, 10, 128, 1000)}
    assert lengths_in_search(fewer, 128)["shortlist"] == 3 * 128 + 14


def model_1(pairs, iterations):
    """IBM model 1 by loops: t(target | source)."""
    probability = {(s, t): 1.0 for source, target in pairs for s in source for t in target}
    for _ in range(iterations):
        counts, totals = Counter(), Counter()
        for source, target in pairs:
            for t in target:
                total = sum(probability[s, t] for s in source)
                for s in source:
                    counts[s, t] += probability[s, t] / total
                    totals[s] += probability[s, t] / total
        probability = {(s, t): counts[s, t] / totals[s] for s, t in probability}
    return probability


def test_the_table_of_a_corpus_has_the_most_probable_translations():
    rng = np.random.default_rng(1)
    eos, size = 2, 24
    pairs = []
    for _ in range(40):
        source = rng.integers(4, size, rng.integers(1, 6)).tolist()
        noise = rng.integers(4, size, rng.integers(0, 2)).tolist()
        pairs.append((source, [(index * 5) % 20 + 4 for index in source] + noise))
    made = counted_table(pairs, (size, size), eos, best=3, frequent=4, iterations=4)
    expected = model_1(pairs, 4)
    for source in range(size):
        found = made.ids[made.ends[source] : made.ends[source + 1]].tolist()
        if source == eos:
            numbers = Counter(t for _, target in pairs for t in target)
            assert sorted((numbers[t] for t in found), reverse=True) == [
                number for _, number in numbers.most_common(4)
            ]
            continue
        ranked = sorted((p for (s, _), p in expected.items() if s == source), reverse=True)[:3]
        np.testing.assert_allclose(sorted((expected[source, t] for t in found), reverse=True), ranked)


@pytest.mark.thorough
def test_the_command_makes_it(tmp_path, call, refused):
    run = stored(small_translator(), tmp_path / "run")
    (tmp_path / "in").write_text("red cat\ndog runs\nred dog\n")
    (tmp_path / "out").write_text("blue bird\ngreen sings\nblue green\n")
    arguments = [run, "--source", tmp_path / "in", "--target", tmp_path / "out", "--best", 1, "--frequent", 1]
    status, out, _ = call(shortlist_main, *arguments)
    assert status == 0
    assert "translations, from 3 pairs" in out
    translator = Translator.load(run)
    words = [translator.tokenizers[1].encode(word)[0] for word in ("blue", "bird")]
    assert set(words) <= candidates(translator, "red cat")[1]
    assert translator.translate(["red cat"], shortlist=True)
    (tmp_path / "out").write_text("blue bird\n")
    assert "must translate line i" in refused(shortlist_main, *arguments)
