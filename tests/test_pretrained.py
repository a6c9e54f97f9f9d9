"""Imported models of several families are the same networks: results equal those of `transformers` for small
random models (tests/make_pretrained_golden.py).

Tolerances: the reference's logits are rounded to five decimals; its scores are sums of a few dozen
log-probabilities of such logits.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.interop.pretrained import import_model
from transformer.translator.translator import Translator

DATA = Path(__file__).parent / "data" / "pretrained"
FAMILIES = sorted(path.name for path in DATA.iterdir())
STOP = {False: "present", True: "full", "never": "exact"}


@pytest.fixture(scope="module", params=FAMILIES)
def imported(request, tmp_path_factory):
    folder, run_dir = DATA / request.param, tmp_path_factory.mktemp("imported") / "run"
    golden = json.loads((folder / "golden.json").read_text())
    import_model(folder, run_dir, *golden["languages"])
    return SimpleNamespace(folder=folder, run_dir=run_dir, golden=golden, translator=Translator.load(run_dir))


def test_text_is_cut_and_numbered_as_by_the_reference(imported):
    tokenizer, special = imported.translator.tokenizers[0], imported.translator.model.config.special
    expected = [[index for index in row if index != special.pad] for row in imported.golden["source_ids"]]
    texts = imported.golden["sources"]
    assert [[*tokenizer.encode(text), special.eos] for text in texts] == expected
    assert tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]


def test_logits_are_those_of_the_reference(imported):
    source, target = (jnp.asarray(imported.golden[f"{side}_ids"]) for side in ("source", "target"))
    translator = imported.translator
    logits = translator.model.apply(translator.variables, source, target)
    expected = np.asarray(imported.golden["logits"])
    np.testing.assert_allclose(logits[: len(expected)], expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.2  # equal logits would prove nothing


def test_n_best_is_that_of_the_reference(imported):
    for search in imported.golden["searches"]:
        results = imported.translator.search(
            imported.golden["sources"],
            beam_size=search["num_beams"],
            length_penalty=search.get("length_penalty", 1.0),
            penalty="power",
            stop=STOP[search.get("early_stopping", False)],
            no_repeat_ngram=search.get("no_repeat_ngram_size", 0),
            min_length=search.get("min_length", 1) - 1,
            max_length=19,
            extra_length=50,
            rows=8,
            buckets=(32,),
        )
        for hypotheses, expected in zip(results, search["n_best"], strict=True):
            if expected is None:  # one was cut at the limit, where the reference adds </s> at no cost
                continue
            assert [h.text for h in hypotheses] == [text for text, _ in expected]
            if search["num_beams"] > 1:
                scores = [score for _, score in expected]
                np.testing.assert_allclose([h.score for h in hypotheses], scores, atol=2e-4)
