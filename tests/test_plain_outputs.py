"""What searches return: values that are equal if their fields are, and JSON."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from small_translator import small_translator

from transformer import Hypothesis
from transformer.documents.document import TranslatedDocument
from transformer.explorer import Attention
from transformer.systems.language_model.api import ScoredText
from transformer.systems.language_model.task import Generated
from transformer.systems.speech.transcripts import Transcript
from transformer.systems.synthesis.task import Utterance
from transformer.tasks.media.timing import Word
from transformer.tasks.outputs import Plain


def test_of_a_search() -> None:
    found = small_translator().search(["red cat", ""], alignments=True, token_scores=True)
    values = json.loads(json.dumps(found, default=Hypothesis.to_dict))
    for several, read in zip(found, values, strict=True):
        for each, one in zip(several, read, strict=True):
            assert one == json.loads(json.dumps(each.to_dict()))
            assert (one["text"], one["ids"], one["score"]) == (each.text, list(each.ids), each.score)
            assert one["perplexity"] == each.perplexity
            if each.alignment is None:
                assert "alignment" not in one
            else:
                np.testing.assert_array_equal(np.array(one["alignment"], np.float32), each.alignment)


def wave() -> Any:
    return np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("kind", "fields", "array"),
    [
        (Hypothesis, {"text": "a", "tokens": ("a",), "score": -1.0, "log_probability": -2.0}, "alignment"),
        (Transcript, {"text": "a", "tokens": ("a",), "score": -1.0, "log_probability": -2.0}, "alignment"),
        (Utterance, {"text": "a"}, "features"),
        (
            Attention,
            {**dict.fromkeys(("source", "target", "given"), ("a",)), "encoder": wave(), "cross": 0},
            "decoder",
        ),
        (Generated, {"text": "a", "tokens": ("a",), "score": -1.0, "log_probability": -2.0}, None),
        (Word, {"text": "a", "start": 0.0, "end": 1.0}, None),
        (ScoredText, {"tokens": ("a",), "log_probabilities": (-1.0,), "characters": 2}, None),
    ],
)
def test_outputs_are_equal_if_their_fields_are(kind: Any, fields: Any, array: str | None) -> None:
    def made(**other: Any) -> Any:
        return kind(**fields | ({array: wave()} if array else {}) | other)

    one, same = made(), made()
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same}) == 1
    first = next(iter(fields))
    assert one != made(**{first: "b"})
    assert one != tuple(one.fields().values())
    if array:
        for other in (wave() + 1, wave().T, wave()[:1], None):
            assert one != made(**{array: other})
            assert made(**{array: other}) != one


def test_every_output_is_compared_so() -> None:
    kinds = {Plain}
    while more := {kind for each in kinds for kind in each.__subclasses__()} - kinds:
        kinds |= more
    assert {
        Hypothesis,
        Transcript,
        Utterance,
        Word,
        ScoredText,
        Generated,
        Attention,
        TranslatedDocument,
    } <= kinds
    for kind in kinds - {Plain}:
        assert dataclasses.is_dataclass(kind)
        assert (kind.__eq__, kind.__hash__) == (Plain.__eq__, Plain.__hash__)  # eq=False


def test_results_of_searches_are_values() -> None:
    translator = small_translator()
    first, second = (translator.search(["red cat", "dog"], alignments=True) for _ in range(2))
    assert first[0][0].alignment is not None
    assert first == second
    assert first[0] != first[1]
    assert first[0][1] in second[0]
    assert len({each for several in (*first, *second) for each in several}) == sum(map(len, first))


def test_of_every_output() -> None:
    outputs = [
        Generated("a", ("a",), np.float32(-1.0).item(), -np.inf, (4, 2)),
        Transcript("a b", ("a", "b"), -1.0, -2.0, words=(Word("a", 0.0, 0.5), Word("b", 0.5, 1.0))),
        Utterance("a", np.ones((3, 2), np.float32)),
        ScoredText(("a",), (-1.0, -2.0), 2),
    ]
    generated, heard, spoken, scored = (
        json.loads(json.dumps(each.to_dict(), allow_nan=False)) for each in outputs
    )
    assert generated["log_probability"] is None  # JSON has no infinity
    assert heard["words"][1] == {"text": "b", "start": 0.5, "end": 1.0}
    assert spoken == {"text": "a", "features": [[1.0, 1.0]] * 3, "stopped": True, "seconds": 0.03}
    assert scored["log_probability"] == -3.0
