"""The Python API: the translation of a sentence depends only on that sentence."""

import dataclasses
import logging
import pickle
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from invented_text import LINES
from reference_search import log_p_of, next_log_p, random_variables
from small_translator import small_translator

from transformer.config.decoding import BeamConfig
from transformer.config.options import Config
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.decoding.service import service as workers
from transformer.decoding.service.lanes import Lane, LaneShape
from transformer.model.transformer import Transformer
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.translator import search_outputs
from transformer.translator.rescoring import rescored
from transformer.translator.search_outputs import WITH_SCORES, programs_of_extras, scored
from transformer.translator.translator import Hypothesis, Translator

SIZE = 300
MODEL = TransformerConfig(vocab_size=SIZE, num_layers=1, d_model=16, d_ff=32, num_heads=2)
DECODING = BeamConfig(beam_size=3, length_penalty=0.0, extra_length=2, rows=4, buckets=(8, 16))
WORDS = ["größe", "日本語", "👩‍👩‍👧", "שלום", "</s>", *(f"w{index}ß語" for index in range(SIZE))]
SENTENCES = ["Bas", "dag", "", "größe", "  rot rot", "  ", "👩", *(line[:10] for line in LINES[:5])]


@pytest.fixture(scope="module")
def subword_tokenizer() -> Tokenizer:
    return train_tokenizer(LINES[:50], "unigram", SIZE)


@pytest.fixture(scope="module")
def word_tokenizer() -> Tokenizer:
    return train_tokenizer(WORDS, "whitespace", SIZE)


def make_translator(tokenizer: Tokenizer, model: TransformerConfig = MODEL) -> Translator:
    config = Config(model=model, decoding=DECODING)
    variables = random_variables(Transformer(model), seed=3)
    return Translator(config, variables, (tokenizer, tokenizer))


@pytest.fixture(scope="module")
def translator(subword_tokenizer: Tokenizer) -> Translator:
    return make_translator(subword_tokenizer)


@pytest.fixture(scope="module")
def word_translator(word_tokenizer: Tokenizer) -> Translator:
    return make_translator(word_tokenizer)


def plain(found: list[list[Hypothesis]]) -> list[list[tuple[str, tuple[str, ...], float]]]:
    return [[(h.text, h.tokens, round(h.score, 3)) for h in hypotheses] for hypotheses in found]


def test_every_line_gets_its_own_translation(translator: Translator) -> None:
    texts = translator.translate(SENTENCES)
    found = translator.search(SENTENCES)
    assert len(texts) == len(found) == len(SENTENCES)
    assert texts == [hypotheses[0].text for hypotheses in found]
    assert len(set(texts)) >= 6
    for source, hypotheses in zip(SENTENCES, found, strict=True):
        if not source.strip():
            assert hypotheses == [Hypothesis("", (), 0.0, 0.0)]
            continue
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == 3
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            assert len(hypothesis.tokens) <= len(translator.subwords(source)) + 2
            hypothesis.text.encode()
    assert translator.translate([]) == []
    assert translator.translate(["", " "]) == ["", ""]


def test_a_sentence_is_translated_alike_in_any_company(translator: Translator) -> None:
    expected = plain(translator.search(SENTENCES))
    for index, sentence in enumerate(SENTENCES):
        assert plain(translator.search([sentence])) == [expected[index]]
    order = np.random.default_rng(0).permutation(len(SENTENCES))
    moved = plain(translator.search([SENTENCES[index] for index in order]))
    assert moved == [expected[index] for index in order]
    assert plain(list(translator.stream(iter(SENTENCES)))) == expected
    assert list(translator.stream([])) == []


def test_threads_share_a_translator(translator: Translator) -> None:
    parts = [SENTENCES[start:] + SENTENCES[:start] for start in range(8)]
    expected = [plain(translator.search(part)) for part in parts]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda part: plain(translator.search(part)), parts)) == expected


def test_text_that_was_cut_beforehand_is_judged_cut(word_tokenizer: Tokenizer) -> None:
    judge = make_translator(word_tokenizer)
    hypothesis = Hypothesis("größew1ß", ("größe@@", "w1ß"), 0.0, 0.0)
    assert judge.as_trained(hypothesis) == "größe@@ w1ß"
    (judged,) = next(iter(rescored(["w2ß语"], [[hypothesis]], judge)))
    (log_p,) = judge.score(["w2ß语"], ["größe@@ w1ß"])
    assert judged.score == pytest.approx(float(log_p), rel=1e-5)  # length_penalty is 0
    assert judged.log_probability == 0.0  # of the model that found it


def test_extras_have_a_program_for_each_bucket_also_of_outputs_that_overflow(
    word_translator: Translator, monkeypatch: Any
) -> None:
    shapes = [LaneShape(8, 2, (1,)), LaneShape(16, 70, (1,), 8)]
    settings = dataclasses.replace(word_translator.config.decoding, buckets=(4, 8, 12, 16))
    assert len(programs_of_extras(word_translator, shapes, settings, WITH_SCORES)) == 4
    monkeypatch.setattr(workers, "lane_shapes", lambda key, rows: shapes)
    options = {"buckets": (4, 8, 12, 16), "extra_length": 54}
    sources, read = ["Bas", "dag", "größe"], []
    monkeypatch.setattr(
        search_outputs, "scored", lambda *arrays: read.append(arrays[3]["source"].shape[1]) or scored(*arrays)
    )
    found = word_translator.search(sources, token_scores=True, **options)
    assert max(len(several[0].ids) for several in found) > 2
    assert read == [12] * len(sources)
    for several in found:
        for hypothesis in several:
            assert sum(hypothesis.token_log_probabilities) == pytest.approx(hypothesis.log_probability, 1e-4)


def test_an_idle_search_gives_its_memory_back(word_tokenizer: Tokenizer, monkeypatch: Any) -> None:
    lanes, held = weakref.WeakSet[Lane](), list[int]()

    class Watched(Lane):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            lanes.add(self)
            held.append(len(lanes))

    monkeypatch.setattr(workers, "IDLE", 0.0)
    monkeypatch.setattr(workers, "Lane", Watched)
    monkeypatch.setattr(workers, "release_memory", lambda cycles: held.append(len(lanes)))
    small = make_translator(word_tokenizer)
    for sentences in ["w1ß w2ß"], SENTENCES:
        small.translate(sentences)
        for thread in threading.enumerate():
            if thread.name.startswith("search-"):
                thread.join()
        assert max(held) > 0
        assert held.pop() == 0  # what release_memory finds: no lane, so none of its arrays
        held.clear()


@pytest.mark.thorough
def test_after_warming_up_nothing_is_compiled(word_tokenizer: Tokenizer, compiled: list[str]) -> None:
    warm = make_translator(word_tokenizer)
    warm.warm_up(beam_size=2, extra_length=3, alignments=True, token_scores=True)
    for compile_scores in warm.score_programs():
        compile_scores()
    compiled.clear()
    lines = [" ".join(WORDS[:count]) for count in range(12)] * 9  # of mixed lengths
    assert len(list(warm.stream(lines, beam_size=2, extra_length=3))) == len(lines)
    warm.translate("w1ß", beam_size=2, extra_length=3)
    everything = warm.search(lines[:12], beam_size=2, extra_length=3, alignments=True, token_scores=True)
    assert len(everything) == len(warm.score(lines[:12], lines[:12])) == 12
    assert compiled == []
    jax.jit(lambda x: x * 3 + 1)(np.ones(7, np.float32)).block_until_ready()  # the listener works
    assert compiled


@pytest.mark.slow
def test_seeds_and_temperatures_share_a_program(word_tokenizer: Tokenizer, compiled: list[str]) -> None:
    translator = make_translator(word_tokenizer)
    translator.warm_up(method="sample")
    compiled.clear()
    found = {
        translator.search(["w1ß w2ß"], method="sample", seed=seed, temperature=1 + seed / 9)[0][0].ids
        for seed in range(9)
    }
    assert len(found) > 2
    assert compiled == []


def test_n_best(translator: Translator) -> None:
    everything = plain(translator.search(SENTENCES))
    for count in (1, 2, 3):
        found = plain(translator.search(SENTENCES, n_best=count))
        assert found == [hypotheses[:count] for hypotheses in everything]


def test_scores_are_those_of_teacher_forcing(word_translator: Translator) -> None:
    tokenizer = word_translator.tokenizers[1]
    sources = ["größe", "👩‍👩‍👧 日本語 w7ß語", "w5ß語 w6ß語 w7ß語 w8ß語 w9ß語", "</s> שלום"]
    found = word_translator.search(sources)
    pairs = [
        (source, hypothesis)
        for source, hypotheses in zip(sources, found, strict=True)
        for hypothesis in hypotheses
        if "<unk>" not in hypothesis.tokens
    ]
    assert len(pairs) >= 8
    scores = word_translator.score(
        [source for source, _ in pairs], [hypothesis.text for _, hypothesis in pairs]
    )
    expected = [hypothesis.score for _, hypothesis in pairs]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)

    eos = tokenizer.special.eos
    model = Transformer(MODEL)
    for source, hypothesis in pairs:
        assert hypothesis.text == " ".join(hypothesis.tokens)
        assert set(hypothesis.tokens) <= set(WORDS)
        ids = np.array([*tokenizer.encode(source), eos], np.int32)
        padded = np.pad(ids, (0, 8 - len(ids)), constant_values=tokenizer.special.pad)
        tokens = (*tokenizer.encode(hypothesis.text), eos)
        log_p = log_p_of(tokens, next_log_p(model, word_translator.variables, padded))
        assert hypothesis.score == pytest.approx(log_p, abs=1e-3)

    assert word_translator.score([], []).shape == (0,)
    with pytest.raises(UserError, match="not 2 sources and 1 target"):
        word_translator.score(["größe", "größe"], ["größe"])


def test_alignments_name_every_token_and_subword(translator: Translator) -> None:
    found = translator.search(SENTENCES, n_best=2, alignments=True)
    for source, hypotheses in zip(SENTENCES, found, strict=True):
        for hypothesis in hypotheses:
            if not source.strip():
                assert hypothesis.alignment is None
                continue
            assert hypothesis.alignment is not None
            size = (len(hypothesis.tokens) + 1, len(translator.subwords(source)) + 1)
            assert hypothesis.alignment.shape == size
            np.testing.assert_allclose(hypothesis.alignment.sum(axis=1), 1, rtol=1e-5)
    assert plain(found) == plain(translator.search(SENTENCES, n_best=2))


def test_a_longer_source_is_cut_and_its_line_named(
    word_translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    words = WORDS[:20]
    whole, kept = " ".join(words), " ".join(words[:15])
    with caplog.at_level(logging.WARNING, "transformer"):
        cut, uncut = word_translator.search([whole, kept], first_line=41)
        assert [record.getMessage() for record in caplog.records] == [
            "line 41: truncated from 20 to 15 subwords"
        ]
        assert plain([cut]) == plain([uncut])
        caplog.clear()
        list(word_translator.stream(["größe", "", "größe", whole]))
        assert ["line 4:" in record.getMessage() for record in caplog.records] == [True]
        caplog.clear()
        word_translator.search([whole] * 9)
        assert [record.getMessage() for record in caplog.records][3:] == [
            "6 more lines, up to line 9, were truncated"
        ]
        caplog.clear()
        word_translator.score([whole] * 2, ["größe"] * 2, lines=[7, 7])  # as in rescoring several hypotheses
        assert len(caplog.records) == 1


def test_what_a_program_may_give_and_is_told(word_translator: Translator, tmp_path: Path) -> None:
    sentence = "größe größe"
    (expected,) = word_translator.translate([sentence])
    assert word_translator.translate(sentence) == expected
    assert word_translator.translate(sentence for _ in range(2)) == [expected] * 2
    assert word_translator.translate(np.array([sentence])) == [expected]
    assert word_translator.translate({sentence: 1}.keys()) == [expected]
    with pytest.raises(UserError, match="sources must be sentences, not int"):
        word_translator.translate(given for given in (sentence, 3))  # type: ignore[misc]
    with pytest.raises(UserError, match="search option 'beamsize' does not exist: did you mean beam_size?"):
        word_translator.translate(sentence, beamsize=3)
    with pytest.raises(UserError, match="search option 'zzz' does not exist; there are method, length"):
        word_translator.translate(sentence, zzz=3)
    with pytest.raises(UserError, match="cannot be pickled.*Translator.load there"):
        pickle.dumps(word_translator)
    config = word_translator.config
    run = Run.create(tmp_path / "run", config, word_translator.task)
    run.checkpoints.store_model(3, word_translator.variables)
    said = repr(Translator.load(run.path, "last"))
    about = rf"{run.path}, checkpoint last, en to de, transformer, [\d,]+ parameters"
    assert re.fullmatch(f"<Translator: {about}>", said)


def breaks_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages about line breaks."""
    messages = (record.getMessage() for record in caplog.records)
    return [message for message in messages if "line breaks" in message]


def test_line_breaks_are_no_part_of_a_sentence(
    word_translator: Translator, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes("größe w1ß\r\nw2ß\nw7ß".encode())
    with caplog.at_level(logging.WARNING, "transformer"), open(tmp_path / "lines", newline="") as lines:
        found = plain(list(word_translator.stream(lines)))
        assert not breaks_in(caplog)
        assert found == plain(word_translator.search(["größe w1ß", "w2ß", "w7ß"]))
        inside = plain(word_translator.search(["größe\r\nw1ß\n", "w2ß"]))
    assert inside == found[:2]
    assert breaks_in(caplog) == ["line 1: its line breaks are read as spaces"]
    assert word_translator.subwords("größe\ngröße\n") == ["größe", "größe"]


@pytest.mark.slow
def test_learned_positions_reach_no_further_than_their_table(
    word_tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    table = 6
    model = dataclasses.replace(MODEL, positions="learned", max_positions=table)
    config = Config(
        model=model,
        data=dataclasses.replace(Config().data, max_length=table),
        decoding=dataclasses.replace(DECODING, extra_length=30),
    )
    variables = random_variables(Transformer(model), seed=0)
    learned = Translator(config, variables, (word_tokenizer, word_tokenizer))
    sources = [" ".join(WORDS[:count]) for count in (5, 12, 1)]
    with caplog.at_level(logging.WARNING, "transformer"):
        found = learned.search(sources)
    assert [record.getMessage() for record in caplog.records] == ["line 2: truncated from 12 to 5 subwords"]
    assert plain([found[0]]) == plain([found[1]])
    lengths = {len(h.tokens) + 1 for hypotheses in found for h in hypotheses}
    assert max(lengths) == table  # so they would have been longer


def test_options_stand_in_for_those_of_the_run(translator: Translator) -> None:
    short = ["Bas", "dag"]
    beam, greedy = translator.search(short), translator.search(short, method="greedy")
    assert [len(hypotheses) for hypotheses in beam] == [3, 3]
    assert [len(hypotheses) for hypotheses in greedy] == [1, 1]
    assert translator.config.decoding == DECODING
    assert plain(translator.search(short)) == plain(beam)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 0},
        {"n_best": 4},
        {"n_best": 0},
        {"n_best": 2, "method": "greedy"},
        {"method": "sample", "temperature": 0.0},
        {"method": "sample", "top_p": 0.0},
        {"method": "sample", "top_p": 1.5},
        {"method": "sample", "top_k": -1},
        {"method": "sample", "beam_size": 3},
        {"temperature": 0.5},
        {"method": "greedy", "stop": "full"},
        {"groups": 2},
        {"min_length": 9, "max_length": 9},
        {"repetition_penalty": 0.0},
        {"forbidden": ("dag", " ")},
        {"max_length": 0},
        {"extra_length": -1},
        {"rows": 0},
        {"buckets": ()},
        {"buckets": (16, 8)},
        {"method": "magic"},
        {"length_penalty": float("nan")},
        {"beam_size": "4"},
        {"beam_size": True},
        {"beam_size": None},
        {"method": ["beam"]},
        {"stop": 3},
        {"penalty": "none"},
        {"length_penalty": "1"},
        {"max_length": 3.0},
        {"noise": "x"},
        {"seed": 1.5},
        {"forbidden": "dag"},
        {"forbidden": ["dag" * 100]},
        {"suppress": [True]},
        {"buckets": 8},
    ],
)
def test_nonsense_is_refused(translator: Translator, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--|^method must be"):
        translator.search(["Bas"], **options)


@pytest.mark.slow
def test_a_sample_belongs_to_its_line(translator: Translator) -> None:
    drawing = {"method": "sample", "temperature": 1.2, "buckets": (16,)}
    lines = ["Bas dag"] * 6
    found = plain(translator.search(lines, **drawing))
    assert len({tuple(hypotheses) for hypotheses in found}) == 6
    assert plain(translator.search(lines[:2], first_line=4, **drawing)) == found[3:5]
    assert plain(list(translator.stream(lines, **drawing))) == found
    assert plain(translator.search(["", *lines[:2]], first_line=2, **drawing))[1:] == found[2:4]
    assert plain(translator.search(lines, seed=1, **drawing)) != found


def test_variables_and_tokenizers_of_another_model_are_refused():
    """A lookup beyond the table of embeddings would read its last row in silence."""
    whole = small_translator()
    config, params, tokenizers = whole.config, whole.variables["params"], whole.tokenizers
    first = next(iter(params))
    for wrong, message in (
        ({name: part for name, part in params.items() if name != first}, f"{first}/.* is None in variables"),
        ({**params, "more": np.zeros(3)}, r"more is \(3,\) in variables, not None"),
        (jax.tree.map(lambda leaf: leaf[:1], params), r"is \(1,.* in variables, not \("),
        ({"params": params}, "is None in variables"),
        (None, "params must be a dictionary, not None"),
        ([], r"params must be a dictionary, not \[\]"),
    ):
        with pytest.raises(UserError, match=message):
            Translator(config, {"params": wrong}, tokenizers)
    more = train_tokenizer([f"word{number}" for number in range(99)], "whitespace", 200)
    with pytest.raises(UserError, match=r"tokenizers have .*103.* ids but the config expects"):
        Translator(config, whole.variables, (more, more))
