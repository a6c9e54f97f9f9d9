"""Models of CTranslate2 are imported as the same networks, with the same search
(tests/make_ctranslate2_golden.py)."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from transformer.interop.pretrained import import_model
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.translator.translator import Translator

DATA = Path(__file__).parent / "data" / "ctranslate2"
SEARCH = {"beam_size": 4, "max_length": 20, "extra_length": 50, "buckets": (32,), "rows": 4}
WEIGHTS = os.environ.get("TRANSFORMER_WEIGHTS")


def joined(words):
    return " ".join(words)


@pytest.fixture(scope="module", params=["plain", "post"])
def imported(request, tmp_path_factory):
    folder, run_dir = DATA / request.param, tmp_path_factory.mktemp("imported") / "run"
    golden = json.loads((folder / "golden.json").read_text())
    import_model(folder, run_dir)
    return SimpleNamespace(folder=folder, golden=golden, translator=Translator.load(run_dir))


@pytest.mark.by_default("plain")
def test_n_best_is_that_of_ctranslate2(imported):
    found = imported.translator.search([joined(item["source"]) for item in imported.golden], **SEARCH)
    for outputs, item in zip(found, imported.golden, strict=True):
        assert [output.text for output in outputs] == list(map(joined, item["hypotheses"]))
        np.testing.assert_allclose([output.score for output in outputs], item["scores"], atol=1e-5)


@pytest.mark.thorough
def test_scores_are_those_of_ctranslate2(imported):
    sources, targets = ([joined(item[side]) for item in imported.golden] for side in ("source", "target"))
    expected = [sum(item["log_probabilities"]) for item in imported.golden]
    np.testing.assert_allclose(imported.translator.score(sources, targets), expected, atol=2e-5)


def copied(name, tmp_path):
    return Path(shutil.copytree(DATA / name, tmp_path / "folder"))


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.slow
def test_the_unknown_word_may_be_left_out_of_the_list_and_lists_may_be_plain(tmp_path):
    """As older versions wrote them, and with a byte order mark, as some editors do."""
    folder = copied("plain", tmp_path)
    (folder / "config.json").unlink()
    for side in ("source", "target"):
        path = folder / f"{side}_vocabulary.json"
        words = json.loads(path.read_text())
        assert words.pop() == "<unk>"
        path.with_suffix(".txt").write_text("\ufeff" + "\n".join(words) + "\n", encoding="utf-8")
        path.unlink()
    import_model(folder, tmp_path / "run")
    import_model(DATA / "plain", tmp_path / "as it was")
    here, there = (Translator.load(tmp_path / name) for name in ("run", "as it was"))
    for mine, original in zip(here.tokenizers, there.tokenizers, strict=True):
        assert mine.content() == original.content()
    np.testing.assert_array_equal(here.score(["a b"], ["A"]), there.score(["a b"], ["A"]))


@pytest.mark.slow
def test_what_a_source_does_not_end_with_changes_nothing(tmp_path):
    """The </s> that every source here has is not attended to."""
    run = import_model(DATA / "plain", tmp_path / "run")
    assert not run.config.model.source_end
    edit(copied("plain", tmp_path) / "config.json", add_source_eos=True)
    assert import_model(tmp_path / "folder", tmp_path / "with").config.model.source_end
    scores = [Translator.load(tmp_path / name).score(["a b"], ["A"]) for name in ("run", "with")]
    assert abs(scores[0] - scores[1]) > 1e-3


def replaced(folder, old, new):
    path = folder / "model.bin"
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


GAMMA = b"encoder/layer_norm/gamma\0\1" + (16).to_bytes(4, "little")
"""Name, rank and shape of a variable, before the number of its type: 0 are real numbers, 3 whole ones."""
MISTAKES = {
    "decoder_start_token is '</s>'": lambda f: edit(f / "config.json", decoder_start_token="</s>"),
    "there is no source_vocabulary.txt and no source_vocabulary.json": lambda f: (
        f / "source_vocabulary.json"
    ).unlink(),
    "it is not a list of words": lambda f: (f / "source_vocabulary.json").write_text('{"a": 1}'),
    "a word is in it twice": lambda f: (f / "source_vocabulary.json").write_text('["a", "a"]'),
    "the vocabulary has no </s>": lambda f: (f / "source_vocabulary.json").write_text('["<s>"]'),
    "has shape [12, 16]; the description means [4, 16]": lambda f: (f / "source_vocabulary.json").write_text(
        '["<s>", "</s>", "<unk>", "a"]'
    ),
    "it holds a TransformerXpec": lambda f: replaced(f, b"TransformerSpec", b"TransformerXpec"),
    "encoder/num_hexds is not supported": lambda f: replaced(f, b"encoder/num_heads", b"encoder/num_hexds"),
    "encoder/layer_norm/gamma has whole numbers and no scale": lambda f: replaced(
        f, GAMMA + b"\0", GAMMA + b"\3"
    ),
    "encoder/layer_norm/gamme is not supported": lambda f: replaced(
        f, b"encoder/layer_norm/gamma", b"encoder/layer_norm/gamme"
    ),
    "encoder/embeddings/weight and encoder/embeddings_0/weight are the same": lambda f: replaced(
        f, b"\x19\0encoder/layer_norm/gamma", b"\x1a\0encoder/embeddings/weight"
    ),
    "config.json cannot be read: layer_norm_epsilon: it is given twice": lambda f: (
        f / "config.json"
    ).write_text('{"layer_norm_epsilon": 1e-5, "layer_norm_epsilon": 1e-6}'),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_in_a_folder_are_named(tmp_path, message):
    folder = copied("plain", tmp_path)
    MISTAKES[message](folder)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        import_model(folder, tmp_path / "run")
    assert str(folder) in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_as_any_other(tmp_path):
    run = import_model(DATA / "post", tmp_path / "run")
    assert run.config.model.share_embeddings == "all"
    assert Run(tmp_path / "run").variables("last")
    with pytest.raises(UserError, match="texts of this model have no code"):
        import_model(DATA / "post", tmp_path / "other", "de")


@pytest.mark.skipif(not WEIGHTS, reason="TRANSFORMER_WEIGHTS names no folder of real models")
def test_a_real_model_is_that_of_ctranslate2(tmp_path):
    """Arabic to Latin letters, with what CTranslate2 4.8.5 says in float32."""
    for name, score in (("aren-transliteration", -0.15167277), ("aren-transliteration-i8", None)):
        (model,) = Path(WEIGHTS).rglob(f"{name}/model.bin")
        import_model(model.parent, tmp_path / name)
        ((best, *_),) = Translator.load(tmp_path / name).search(["آ ت ز م و ن"], **SEARCH)
        assert best.text == "a t z m o n"
        if score:
            assert best.score == pytest.approx(score, abs=1e-5)
