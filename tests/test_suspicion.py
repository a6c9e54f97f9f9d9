"""Suspicious translations: truncated, repeated, copied and unread text is flagged, and searched again."""

import shutil

import numpy as np
import pytest
from small_run import WORDS
from small_translator import small_translator
from test_shortlist import table

from transformer import Translator
from transformer.commands.calibrate import calibrate_main
from transformer.documents.document import DocumentTranslator
from transformer.documents.projection import aligned_words
from transformer.documents.suspicion import Limits, Signs, signs_of
from transformer.runtime.errors import UserError
from transformer.tasks.text import Hypothesis

SOURCE = "the small dog sees the old man in the garden"
GOOD = "der kleine Hund sieht den alten Mann im Garten"


@pytest.mark.parametrize(
    ("output", "flags"),
    [
        (GOOD, ()),
        ("der kleine Hund", ("short",)),
        ("", ("short",)),
        (f"{GOOD} im Garten im Garten im Garten", ("repeated",)),
        ("der der der der der der der der der", ("repeated",)),
        (SOURCE, ("copied",)),
    ],
)
def test_what_is_wrong_with_it_is_named(output, flags):
    assert Limits().flags(signs_of(SOURCE, output)) == flags


@pytest.mark.parametrize("size", [1, 2, 8, 9, 10, 20, 50])
def test_repeats_of_any_length_are_flagged(size):
    words = [f"word{index}" for index in range(size)]
    source, once = " ".join(f"x{index}" for index in range(size)), " ".join(words)
    twice = " ".join([*words, "and", *words, *words])
    assert signs_of(source, once).repeated == 0
    assert signs_of(source, twice).repeated == pytest.approx(size / (3 * size + 1))
    assert Limits().flags(signs_of(source, twice)) == ("repeated",)


def test_what_the_source_repeats_may_be_repeated():
    signs = signs_of("no no no no no", "nein nein nein nein nein")
    assert signs.repeated == 0


def test_names_and_short_sentences_are_no_copies():
    assert signs_of("Barack Obama met Angela Merkel", "Barack Obama traf Angela Merkel").copied == 0
    assert signs_of("Okay.", "Okay.").copied == 0


def aligned(columns):
    """Each output word attends to one source word."""
    source, target = SOURCE.split(), [f"w{index}" for index in range(len(columns))]
    attention = np.zeros((len(target) + 1, len(source) + 1))
    attention[range(len(target)), columns] = 1
    tokens = [f"▁{word}" for word in source], [f"▁{word}" for word in target]
    return aligned_words(SOURCE, " ".join(target), *tokens, attention)


def test_unread_words_are_those_without_attention():
    """By counting: 10 source words, of which some get attention."""
    assert signs_of(SOURCE, "x", aligned(range(10))).unread == 0
    assert signs_of(SOURCE, "x", aligned([0, 1, 2, 2, 2])).unread == pytest.approx(0.7)


def test_limits_are_quantiles_of_usual_translations():
    random = np.random.default_rng(0)
    usual = [Signs(*row) for row in random.random((2000, 5)) * 4]
    limits = Limits.calibrated(usual, 0.01)
    for name in ("short", "repeated", "copied", "unread", "unsure"):
        above = sum(getattr(signs, name) > getattr(limits, name) for signs in usual)
        assert above == pytest.approx(20, abs=1)
    assert Limits.calibrated([Signs(0, 0, 0, 0, 0)]) == Limits(0.85, 0.1, 0.3, 0.25, 1.25)


class Stutterer(DocumentTranslator):
    """Repeats a word without end, unless repeated n-grams are forbidden."""

    def __init__(self, recovers):
        real = small_translator()
        self.task, self.system, self.real = real.task, real.system, real
        self.recovers, self.calls = recovers, []

    def settings(self, n_best, options):
        return self.real.settings(n_best, options)

    def subwords(self, source):
        return [f"▁{word}" for word in source.split()]

    def stream(self, records, *, n_best, alignments, **options):
        for source in records:
            self.calls.append((source, n_best, options.get("no_repeat_ngram")))
            bad, good = f"{WORDS[0]} " * 9, source.upper()
            texts = [bad, good] if self.recovers and "no_repeat_ngram" in options else [bad]
            yield [Hypothesis(text.strip(), (), -1.0, -1.0) for text in texts]


@pytest.mark.parametrize("recovers", [True, False])
def test_what_is_suspicious_is_searched_again(recovers):
    translator = Stutterer(recovers)
    document = translator.translate_document("The small dog sees him.\n")
    (sentence,) = document.sentences
    assert [call[2] for call in translator.calls] == [None, 4]
    assert translator.calls[1][1] == small_translator().settings(None, {}).num_hypotheses
    assert sentence.retried == recovers
    assert sentence.flags == (() if recovers else ("repeated",))
    assert document.flagged == ([] if recovers else [sentence])


def test_limits_of_a_model_are_those_of_its_translations():
    """Every translation of a validation text is within them."""
    translator = small_translator()
    sources = [f"{first} {second}" for first in WORDS[:3] for second in WORDS[3:6]]
    limits = translator.usual_limits(sources, extra_length=4)
    for source in sources:
        (output,) = translator.search([source], extra_length=4, n_best=1)
        assert limits.flags(signs_of(source, output[0].text)) == ()
    with pytest.raises(UserError, match="give sentences of a validation text"):
        translator.usual_limits([])
    for share, message in (("x", "share must be a number .*, not 'x'"), (2, "share 2: must be from 0 to 1")):
        with pytest.raises(UserError, match=message):
            translator.usual_limits(sources, share)


@pytest.mark.slow
def test_the_command_stores_limits_that_documents_use(finished, tmp_path, call):
    run = shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "text").write_text("".join(f"{word} {word}\n\n" for word in WORDS[:4]))
    status, out, _ = call(calibrate_main, run, "--input", tmp_path / "text")
    assert status == 0
    assert "limits of 4 translations" in out
    limits = Limits.read(run)
    assert limits != Limits()
    assert Translator.load(run).limits == limits


@pytest.mark.parametrize("value", ['"x"', "true", "[1]"])
def test_limits_that_are_no_numbers(value, tmp_path):
    (tmp_path / "limits.json").write_text(f'{{"short": {value}}}')
    with pytest.raises(
        UserError, match=r"limits.json is damaged: limits must be numbers; delete it, and make it again"
    ):
        Limits.read(tmp_path)
    (tmp_path / "limits.json").write_text('{"brief": 1}')
    with pytest.raises(
        UserError, match="is damaged: limits are short, repeated, copied, unread, unsure; delete"
    ):
        Limits.read(tmp_path)


ALWAYS = Limits(0, -1, -1, -1, -1)
"""With these every sentence is suspicious."""


@pytest.mark.thorough
@pytest.mark.by_default("beam-nonautoregressive")
@pytest.mark.parametrize(
    "system", ["transformer", "copying", "recurrent", "nonautoregressive", "fast-autoregressive"]
)
@pytest.mark.parametrize("method", ["beam", "greedy"])
def test_a_second_search_asks_for_what_the_system_has(system, method):
    """A search without rules, or with a shortlist, has none against repetition."""
    translator = small_translator(system)
    translator.limits = ALWAYS
    options = {} if system == "nonautoregressive" else {"method": method}
    document = translator.translate_document(f"{WORDS[0]} {WORDS[1]}\n", **options)
    assert document.flagged == list(document.sentences)


@pytest.mark.slow
def test_a_second_search_with_a_shortlist_has_no_rule():
    translator = small_translator()
    translator.limits = ALWAYS
    translator.task.shortlist = table(translator.config.model.vocab_size)
    document = translator.translate_document(f"{WORDS[0]} {WORDS[1]}\n", shortlist=True)
    assert document.flagged == list(document.sentences)


def test_a_long_sentence_is_judged_in_linear_time():
    """One of 100,000 words took minutes."""
    words = [chr(0x4E00 + index % 5000) for index in range(100_000)]
    assert signs_of("", "".join([*words, *words[-99:]])).repeated == 99 / 100_099
