"""What searches return, as JSON."""

import json

import numpy as np
from small_translator import small_translator

from transformer import Hypothesis
from transformer.tasks.language_modelling import Generated
from transformer.tasks.text_to_speech import Utterance
from transformer.tasks.timing import Word
from transformer.translator.generator import ScoredText
from transformer.translator.transcriber import Transcript


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
