"""Texts of several sentences and lines are read whole; what is read in part says so, at every door."""

import contextlib
import json
import time
import zipfile
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import numpy as np
import pytest
from served import asked, translations
from small_run import WORDS
from small_translator import small_translator, stored

from transformer import Decoder, Generator, Synthesizer, Tagger, Transcriber, Translator, UserError
from transformer.commands.decode import decode_main
from transformer.data.sources.context import TURN, shortened
from transformer.decoding.service.queue import Answer, Together
from transformer.documents import suspicion
from transformer.serve.services.limits import Limits
from transformer.systems.registry import REGISTRY
from transformer.tasks.media.timing import units
from transformer.translator import translator as translator_module

STORED = Path(__file__).parent / "data" / "older_runs"
SENTENCE = "Red green blue."
LONG = " ".join(WORDS * 4)
TEXTS = [
    "Red green. Cat dog!",
    "Red green blue.\n\n  Cat dog.\r\nBird? Cat.\n",
    "\n7.\nRed",
    f"{SENTENCE} {LONG}; {LONG}. {SENTENCE}",
]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return small_translator()


def by_hand(translator: Translator, text: str) -> str:
    """The translation of each line as of a document."""
    lines = text.splitlines(keepends=True)
    return "".join(translator.translate_document(line).text for line in lines)


@pytest.fixture
def without_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sentence is searched a second time, and none has an address that is copied."""
    monkeypatch.setattr(suspicion.Limits, "flags", lambda *_: ())


@pytest.mark.usefixtures("without_flags")
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_translated_as_the_sentences_of_a_document(translator, text):
    (best,) = translator.submit(text, n_best=1, alignments=True, token_scores=True).result()
    assert best.text == by_hand(translator, text)
    assert not best.truncated
    assert len(best.alignment) == len(best.ids) == len(best.tokens) + 1
    assert len(best.token_log_probabilities) == len(best.entropies) == len(best.ids)
    assert sum(best.token_log_probabilities) == pytest.approx(best.log_probability, abs=1e-4)
    np.testing.assert_allclose(best.alignment.sum(1), 1, atol=1e-5)


def test_a_sentence_is_translated_as_before(translator):
    for sentence in SENTENCE, "cat", "", "7.":
        assert translator.submit(sentence, n_best=2).result() == translator.search([sentence], n_best=2)[0]
    whole = translator.submit(TEXTS[0], divide=False, n_best=2).result()
    assert whole == translator.search([TEXTS[0]], n_best=2)[0]


WHITE = ["", " ", "\t", "\u00a0", "\r\n", "\n\n \n", "\u2028", "\x1c", " " * 5000]
"""Texts without a sentence."""


@pytest.mark.by_default("transformer")
@pytest.mark.parametrize(
    "system", ["transformer", "copying", "fast-autoregressive", "nonautoregressive", "recurrent"]
)
def test_white_space_is_answered(system):
    translator = small_translator(system)
    for text in WHITE:
        for divide in None, True, False:
            outputs = translator.submit(text, divide=divide).result(timeout=60)
            assert [output.text for output in outputs] == [""], repr(text)
        assert translator.translate(text) == ""


@pytest.mark.by_default("language-model", "tagging", "synthesis")
@pytest.mark.parametrize("name", ["language-model", "tagging", "synthesis", "nonautoregressive-synthesis"])
def test_white_space_is_answered_by_other_systems(name, tmp_path):
    decoder = Decoder.load(run_of(name, tmp_path))
    for text in " ", "\r\n", "\u00a0":
        with contextlib.suppress(UserError):  # of a character that the text of its training lacks
            assert decoder.submit(decoder.task.record(text)).result(timeout=60)


def test_a_server_answers_white_space():
    with asked(translations()) as client:
        for text in [*WHITE, [*WHITE], ["red", " "]]:
            answer = client.post("/translate", json={"text": text, "alignments": True}).json()
            count = len(text) if isinstance(text, list) else 1
            assert len(answer["outputs"]) == count, repr(text)
            assert answer["outputs"][-1]["hypotheses"][0]["text"] == ""
            other = client.post("/translate", json={"q": text, "source": "xx", "target": "yy"}).json()
            assert other["translatedText"] == ("" if count == 1 else ANY)
            events = client.post("/translate", json={"text": text, "stream": True}).text
            assert events.count("event: output") == count
            assert "event: done" in events


def cpu_seconds(work) -> float:
    """Of the fastest of three."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times)


HOSTILE = [" ", "\u00a0", "\t", "\n", ". ", ", ", " (", "(", " -", "(a) - ", "1. ", "。", "中(", "「"]
HOSTILE += ["a@b.c. ", "http://a.b ", "a@b.c/"]
"""What texts of strangers repeat."""


@pytest.mark.parametrize("sign", HOSTILE)
def test_a_text_is_divided_in_time_that_grows_as_its_length(translator, sign, monkeypatch):
    """Eight times the length takes 8 times as long; if each sign were compared with all, 64 times."""
    monkeypatch.setattr(translator, "_size", lambda text: len(text) // 4)
    texts = [f"中{(sign * size)[:size]}b." for size in (2_000, 16_000)]
    for work in partial(translator.divided, longest=16), units:
        short, long = (cpu_seconds(partial(work, text)) for text in texts)
        assert long < 24 * short + 0.002, (sign, work)


def test_context_is_shortened_without_reading_it_for_each_turn():
    """The oldest turns go; the rest is read as often as a search by halves needs."""
    turns = [str(number) for number in range(1000)]
    for longest, expected in (0, turns[-1:]), (1, turns[-1:]), (7, turns[-7:]), (1000, turns), (2000, turns):
        size = Mock(side_effect=lambda text: len(text.split(TURN)))
        assert shortened(TURN.join(turns), size, longest) == TURN.join(expected)
        assert size.call_count <= 11
    assert shortened("red", len, 1) == "red"


def test_a_prefix_and_terms_are_of_one_sentence(translator):
    found = translator.submit(TEXTS[0], prefix="cat ", n_best=1).result()
    assert found == translator.search([TEXTS[0]], prefixes=["cat "], n_best=1)[0]


def test_an_instruction_or_a_code_is_for_all_sentences(translator, monkeypatch):
    """Texts of T5 may begin with an instruction, and those of OPUS-MT with the code of a language."""
    assert not translator.reads_instructions
    text = ">>deu<< Red green. Cat dog!"
    assert translator.sentences_of(text) == [">>deu<< Red green.", ">>deu<< Cat dog!"]
    asks = {"text": TEXTS[0], "alignments": True}
    service = translations()
    with asked(service) as client:
        divided = client.post("/translate", json=asks).json()
        for kind in "hub", "pieces", "byte":
            for one in translator, service.decoder:
                for tokenizer in one.tokenizers:
                    monkeypatch.setattr(tokenizer, "kind", kind)
            assert translator.reads_instructions
            assert translator.sentences_of(TEXTS[0]) == [TEXTS[0]]
            whole = translator.submit(TEXTS[0], n_best=2).result()
            assert whole == translator.search([TEXTS[0]], n_best=2)[0]
            assert len(translator.sentences_of(TEXTS[0], divide=True)) == 2
            assert client.post("/translate", json={**asks, "divide": True}).json() == divided
            assert client.post("/translate", json=asks).json() != divided
        monkeypatch.setattr(translator.tokenizers[1], "kind", "unigram")  # the encoder is BERT's
        assert not translator.reads_instructions


def test_a_code_is_for_all_sentences_of_a_document(translator, monkeypatch):
    read, stream = [], translator.stream
    monkeypatch.setattr(
        translator, "stream", lambda records, **options: stream(read.extend(records) or read, **options)
    )
    monkeypatch.setattr(translator, "_retried", lambda *_: {})
    for text in "Red green. Cat dog!\n\n7\n\nBlue.\n", "summarize: Red green. Cat dog!\n\n7\n\nBlue.\n":
        sentences = [text.partition(" Cat")[0], "Cat dog!", "", "Blue."]
        for code in ">>deu<< ", "":
            read.clear()
            document = translator.translate_document(code + text)
            assert read == [sentence and code + sentence for sentence in sentences]
            assert [sentence.source for sentence in document.sentences[1:]] == ["Cat dog!", "7", "Blue."]


def test_the_nth_translation_has_the_nth_of_each_sentence(translator):
    one, other = translator.search(["Red green.", "Cat dog!"], n_best=3)
    for index, hypothesis in enumerate(translator.submit(TEXTS[0], n_best=3).result()):
        assert hypothesis.text == f"{one[index].text} {other[index].text}"
        assert hypothesis.score == pytest.approx(one[index].score + other[index].score)
        assert hypothesis.tokens == (*one[index].tokens, "</s>", *other[index].tokens)


@pytest.mark.thorough
def test_an_unfinished_text_is_seen_as_it_grows(translator):
    seen = []
    found = translator.submit(TEXTS[1], partial=lambda output: seen.append(output.text), min_length=5)
    found.result()
    assert seen
    assert all("\n\n  " in text and text.endswith("\n") for text in seen)


def test_the_work_of_showing_a_text_grows_as_its_length(translator, monkeypatch):
    joins, grown = [], []
    join, outputs = translator_module.joined, translator.task.outputs
    monkeypatch.setattr(
        translator_module, "joined", lambda text, parts: joins.append(len(parts)) or join(text, parts)
    )
    monkeypatch.setattr(translator.task, "outputs", lambda *given: grown.append(1) or outputs(*given))
    for count in 2, 160:
        joins.clear()
        grown.clear()
        translator.submit("Red green.\n" * count, partial=lambda output: None, min_length=5).result()
        assert len(joins) > 1
        assert sum(joins) <= 8 * len(grown) + 2 * count


def test_a_text_takes_the_room_of_one_request(translator):
    translator.queue_limit = 1
    try:
        assert translator.submit(TEXTS[3]).result()
    finally:
        translator.queue_limit = None


def test_a_future_of_several_ends_with_the_first_that_fails_or_is_cancelled():
    def several() -> tuple[list[Answer], Together]:
        parts = [Answer() for _ in range(3)]
        return parts, Together(parts, sum)

    parts, together = several()
    for part, value in zip(parts, (1, 2, 4), strict=True):
        assert not together.done()
        part.set_result(value)
    assert together.result() == 7
    parts, together = several()
    parts[0].set_result(1)
    parts[2].set_exception(UserError("no"))
    assert parts[1].cancelled()
    with pytest.raises(UserError, match="no"):
        together.result()
    parts, together = several()
    parts[1].cancel()
    assert together.cancelled()
    assert parts[0].cancelled()
    parts, together = several()
    together.cancel()
    assert all(part.cancelled() for part in parts)
    with pytest.raises(CancelledError):
        together.result()
    parts = [Answer.of(1), Answer.of(2)]
    with pytest.raises(ZeroDivisionError):
        Together(parts, lambda values: values[0] / 0).result()


@pytest.mark.usefixtures("without_flags")
def test_a_server_translates_the_whole_text_in_both_shapes(translator):
    service = translations()
    with asked(service) as client:
        answer = client.post("/translate", json={"text": TEXTS, "alignments": True}).json()
        assert "outputs" in answer, answer
        other = client.post("/translate", json={"q": TEXTS, "source": "xx", "target": "yy"}).json()
        expected = [by_hand(translator, text) for text in TEXTS]
        assert [output["hypotheses"][0]["text"] for output in answer["outputs"]] == expected
        assert other == {"translatedText": expected}
        for output in answer["outputs"]:
            (best,) = output["hypotheses"]
            rows = best["alignment"]
            assert [len(rows), len(rows[0])] == [len(best["tokens"]) + 1, len(output["source_tokens"]) + 1]
            assert "truncated" not in best


@pytest.mark.thorough
def test_a_server_bounds_the_sentences_of_a_request(monkeypatch):
    """Of all texts together, before any is submitted."""
    service, submitted = translations(limits=Limits(sentences=5)), []
    submit = service.decoder.submit
    monkeypatch.setattr(
        service.decoder,
        "submit",
        lambda text, **options: [submitted.append(text), submit(text, **options)][1],
    )
    with asked(service, limits=service.limits) as client:
        for texts in ["a\n" * 3, "a\n" * 3], "a\n" * 6, ["a"] * 6, "\n" * 6:
            answer = client.post("/translate", json={"text": texts})
            assert answer.status_code == 422
            assert answer.json()["error"] == "text: more than 5 sentences and lines in a request: divide them"
            other = client.post("/translate", json={"q": texts, "source": "xx", "target": "yy"})
            assert other.status_code == 422
            assert other.json()["error"] == "q: more than 5 sentences and lines in a request: divide them"
        assert not submitted
        assert client.post("/translate", json={"text": ["7\n" * 3, "7\n" * 2]}).status_code == 200


def test_a_server_says_what_it_has_not_read_whole():
    service = translations()
    with asked(service) as client:
        one = client.post("/translate", json={"text": [LONG, "cat"], "divide": False}).json()
        assert [output["hypotheses"][0].get("truncated") for output in one["outputs"]] == [True, None]
        pair = {"text": [LONG, "cat", "cat"], "target": ["cat", LONG, "cat"]}
        scores = client.post("/score", json=pair).json()["scores"]
        assert [score.get("truncated") for score in scores] == [True, True, None]


@pytest.mark.thorough
def test_a_sentence_that_cannot_be_divided_is_told():
    translator = small_translator(tokenizer=("byte", 20))
    assert translator.submit(f"{SENTENCE} {'x' * 30}").result()[0].truncated
    document = translator.translate_document(f"{'x' * 30} is it.")
    assert "truncated" in document.sentences[0].flags
    service = translations()
    service.decoder = translator
    with asked(service) as client:
        asks = {"q": ["y" * 30, "x"], "source": "xx", "target": "yy"}
        assert client.post("/translate", json=asks).json()["truncated"] == [True, False]
        asks["q"] = "y" * 30
        assert client.post("/translate", json=asks).json()["truncated"] is True


def test_decode_writes_it_into_json(call, tmp_path, translator):
    run = stored(translator, tmp_path / "run")
    (tmp_path / "input").write_text(f"cat\n{LONG}\n", encoding="utf-8")
    given = [run, "--input", tmp_path / "input", "--format", "json"]
    status, out, err = call(decode_main, *given)
    assert status == 0, err
    first, second = map(json.loads, out.splitlines())
    assert "truncated" not in first["hypotheses"][0]
    assert all(hypothesis["truncated"] is True for hypothesis in second["hypotheses"])
    status, out, err = call(decode_main, *given, "--choices", "cat", "dog")
    assert status == 0, err
    assert [json.loads(line).get("truncated") for line in out.splitlines()] == [None, True]


def test_an_address_divides_no_sentence(translator):
    assert translator.sentences_of("Red https://a.b/c.D cat. Dog.") == ["Red https://a.b/c.D cat.", "Dog."]


def run_of(name: str, folder: Path) -> Path:
    with zipfile.ZipFile(STORED / f"{name}.zip") as archive:
        members = [member for member in archive.namelist() if member.startswith(f"{name}/run/")]
        archive.extractall(folder, members)
    return folder / name / "run"


def known(tokenizer: Any) -> str:
    """A text of a vocabulary."""
    texts = (tokenizer.decode([index]) for index in range(4, tokenizer.num_ids))
    return next(text for text in texts if text.strip() and tokenizer.knows(text))


@pytest.mark.thorough
@pytest.mark.by_default("language-model", "speech", "tagging", "synthesis")
@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - {"masked-lm"}))
def test_every_system_reads_all_of_an_input_or_says_so(name, tmp_path):
    """A text output says that it is of a part; others refuse what they cannot read. Pictures are scaled."""
    path = run_of(name, tmp_path)
    words = "7 and 49, " * 200
    if name in ("captioning", "detection"):
        pytest.skip("pictures of any size are scaled to that of the model")
    if name == "language-model":
        generator = Generator.load(path)
        outputs = [found for (found,) in generator.decode([words, "7"], n_best=1, extra_length=4)]
    elif name == "speech":
        transcriber = Transcriber.load(path)
        noise = np.random.default_rng(0).normal(0, 0.1, 16_000 * 9).astype(np.float32)
        outputs = [found for (found,) in transcriber.search([noise, noise[:9000]], n_best=1)]
    elif name == "tagging" or "synthesis" in name:
        decoder = Tagger.load(path) if name == "tagging" else Decoder.load(path)
        with pytest.raises(UserError, match="divide"):
            decoder.decode([decoder.task.record(" ".join([known(decoder.task.tokenizer)] * 200))])
        return
    else:
        translator = Translator.load(path)
        outputs = [found for (found, *_) in translator.search([" ".join(WORDS * 90), WORDS[0]], n_best=1)]
    assert [output.truncated for output in outputs] == [True, False]
    assert [output.to_json().get("truncated") for output in outputs] == [True, None]
    assert outputs[0].to_dict()["truncated"] is True


def test_a_voice_does_not_speak_a_part_of_a_text(tmp_path):
    voice = Synthesizer.load(run_of("synthesis", tmp_path))
    voice.pronunciation = small_translator()
    with pytest.raises(UserError, match="longer than the model of its pronunciation reads: divide it"):
        voice.utterances([LONG])


@pytest.mark.parametrize("begin", ["whole", "part"])
def test_a_text_of_many_sentences_is_cancelled_once(begin: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each part that is cancelled tells the whole, which cancels the others: not once more for each."""
    cancelled = []

    class Counted(Answer):
        def cancel(self) -> bool:
            cancelled.append(self)
            return super().cancel()

    parts = [Counted() for _ in range(2000)]
    whole = Together(parts, list)
    (whole if begin == "whole" else parts[7]).cancel()
    assert whole.cancelled()
    assert all(part.cancelled() for part in parts)
    assert len(cancelled) <= len(parts) + 1
    assert caplog.records == []
