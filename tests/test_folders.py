"""Where a search begins and sources end is what the files of a folder say: results equal those of
`transformers` for folders with other ids (tests/make_folders_golden.py)."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from make_folders_golden import FOLDERS, changed

from transformer.interop import pretrained
from transformer.interop.pretrained import detect, export_model, ignored_options, import_model
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.translator.translator import Translator

DATA = Path(__file__).parent / "data"
GOLDEN = json.loads((DATA / "folders.json").read_text())
SOURCES = ["a dog reads a book", "two children near the park", "men run", "the street", "a ball", "kinder"]
OPTIONS = {"length_penalty": 1.0, "penalty": "power", "stop": "present", "min_length": 6, "max_length": 11}
WHOLE = {"extra_length": 50, "rows": 8, "buckets": (32,)}
SHOWN = ("bart that begins with its bos, forced", "bart whose sources begin with nothing")


def imported(name, folder):
    languages = ("eng_Latn", "deu_Latn") if "nllb" in name else ()
    import_model(changed(name, folder / "folder"), folder / "run", *languages)
    return Translator.load(folder / "run")


@pytest.mark.thorough
@pytest.mark.by_default(*SHOWN)
@pytest.mark.parametrize("name", FOLDERS)
def test_what_a_folder_says_is_what_happens(tmp_path, name):
    golden, translator = GOLDEN[name], imported(name, tmp_path)
    config = translator.model.config
    tokenizer, special = translator.tokenizers[0], config.special
    end = [special.eos] if config.source_end else []
    assert [[*tokenizer.encode(text), *end] for text in SOURCES] == golden["ids"]
    ids = [[*row, *([] if end else [special.eos])] for row in golden["ids"][:2]]
    source = [row + [special.pad] * (max(map(len, ids)) - len(row)) for row in ids]
    target = [[special.bos, 11, 12, 13]] * 2
    logits = translator.model.apply(translator.variables, jnp.asarray(source), jnp.asarray(target))
    np.testing.assert_allclose(logits[..., :16], golden["logits"], atol=2e-4)
    for beams in (1, 3):
        found = translator.search(SOURCES, beam_size=beams, **OPTIONS, **WHOLE)
        for hypotheses, expected in zip(found, golden[f"beams {beams}"], strict=True):
            whole = [index for index in expected[1:] if index != special.pad]
            if special.eos in whole:  # with which the reference pads where no file names a pad
                whole = whole[: whole.index(special.eos) + 1]
            if len(whole) < OPTIONS["max_length"]:  # the reference ends outputs that are cut at no cost
                assert list(hypotheses[0].ids) == whole, beams


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_an_export_says_the_same(tmp_path, name):
    translator = imported(name, tmp_path)
    export_model(tmp_path / "run", tmp_path / "out")
    before, after = (
        json.loads((tmp_path / folder / "config.json").read_text())
        | json.loads((tmp_path / folder / "generation_config.json").read_text())
        for folder in ("folder" if "marian" not in name else "out", "out")
    )
    for option in ("forced_bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id"):
        assert after.get(option) == before.get(option), option
    languages = ("eng_Latn", "deu_Latn") if "nllb" in name else ()
    again = import_model(tmp_path / "out", tmp_path / "again", *languages)
    assert again.config.model == Run(tmp_path / "run").config.model
    for old, new in zip(translator.tokenizers, again.task.tokenizers, strict=True):
        assert (old.start, old.forces_start) == (new.start, new.forces_start)


def refused(tmp_path, origin, message, **files):
    folder = Path(shutil.copytree(DATA / "pretrained" / origin, tmp_path / "folder"))
    for file, options in files.items():
        path = folder / f"{file}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **options}))
    with pytest.raises(UserError, match=message):
        import_model(folder, tmp_path / "run")


def test_padding_that_is_another_token_is_refused(tmp_path):
    refused(tmp_path, "bart", "pad_token_id 2 is also eos_token_id", config={"pad_token_id": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer_class": "MBartTokenizer"}, "MBartTokenizer"),
        ({"legacy_behaviour": True}, "legacy_behaviour"),
    ],
)
def test_texts_that_end_with_a_code_are_refused(tmp_path, options, message):
    refused(tmp_path, "mbart", f"{message}.*whose texts end with the code", tokenizer_config=options)


KINDS = {
    "pretrained/t5-1.1": "t5",
    "pretrained/nllb": "m2m_100",
    "marian": "marian",
    "whisper": "whisper",
    "bert/one-layer": "bert",
    "ctranslate2/plain": "ctranslate2",
    "torch/plain": "torch.nn.Transformer",
}


def test_an_import_asks_once_what_a_folder_is(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(pretrained, "detect", lambda folder: asked.append(folder) or detect(folder))
    assert {name: detect(DATA / name).model_type for name in KINDS} == KINDS
    import_model(DATA / "torch" / "plain", tmp_path / "run")
    assert len(asked) == 1


def test_what_a_whisper_is_forced_to_begin_with_is_no_error(tmp_path):
    """It was refused as a family that is not known, after the import."""
    folder = Path(shutil.copytree(DATA / "whisper", tmp_path / "folder"))
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"forced_bos_token_id": 5}))
    (said,) = ignored_options(folder)
    assert said.startswith("begin_suppress_tokens with forced_bos_token_id")


def test_a_size_that_is_no_number_is_named(tmp_path):
    refused(tmp_path, "bart", "config.json: vocab_size is null, not a whole", config={"vocab_size": None})
