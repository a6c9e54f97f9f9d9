"""Whisper is the same network on the same features as that of `transformers`: a small random model
(tests/make_whisper_golden.py). The real one is compared with CTranslate2 where it is
(docs/pretrained/equality.md)."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from invented_sound import SOUNDS, sound
from safetensors.numpy import load_file

from transformer.commands.models import import_command
from transformer.interop.pretrained import export_model, import_model
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.systems.speech.api import Transcriber

DATA = Path(__file__).parent / "data" / "whisper"
GREEDY = {"beam_size": 1, "stop": "present", "rows": 2}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whisper") / "run"
    import_model(DATA, run_dir, "en")
    golden = json.loads((DATA / "golden.json").read_text())
    waves = [sound(number) for number in range(SOUNDS)]
    return SimpleNamespace(run_dir=run_dir, transcriber=Transcriber.load(run_dir), golden=golden, waves=waves)


def features(imported):
    task = imported.transcriber.task
    return np.stack([task.frames(imported.transcriber.heard(wave)) for wave in imported.waves])


def test_features_are_those_of_the_reference(imported):
    expected = np.asarray(imported.golden["features"]).transpose(0, 2, 1)
    found = features(imported)
    assert found.shape == (SOUNDS, 3000, 80)
    np.testing.assert_allclose(found[:, ::120], expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.2


def test_logits_are_those_of_the_reference(imported):
    transcriber = imported.transcriber
    targets = jnp.asarray(imported.golden["target_ids"])[:1]
    logits = transcriber.model.apply(transcriber.variables, jnp.asarray(features(imported)[:1]), targets)
    expected = np.asarray(imported.golden["logits"])
    np.testing.assert_allclose(logits[..., : expected.shape[-1]], expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.2


@pytest.mark.thorough
def test_greedy_outputs_are_those_of_the_reference(imported):
    """Of several languages and tasks, with and without times; the reference has its own rules for these."""
    starts = {}
    for search in imported.golden["searches"]:
        asked = {name: search[name] for name in ("language", "task")}
        timed = search["return_timestamps"]
        results = imported.transcriber.search(imported.waves, timestamps=timed, **asked, **GREEDY)
        for (best, *_), expected in zip(results, search["ids"], strict=True):
            start = 2 if timed else 3
            assert list(best.ids[start:-1]) == expected[: len(best.ids) - start - 1]
            assert len(best.ids) > 25
            starts[asked["language"], timed] = best.ids[:start]
    pieces = {key: imported.transcriber.task.tokenizer.pieces(ids) for key, ids in starts.items()}
    assert pieces["de", False] == ["<|de|>", "<|translate|>", "<|notimestamps|>"]
    assert pieces["en", True] == ["<|en|>", "<|transcribe|>"]


@pytest.mark.slow
def test_times_are_in_pairs_and_never_decrease(imported):
    for best in (several[0] for several in imported.transcriber.search(imported.waves, timestamps=True)):
        times = [time for segment in best.segments for time in (segment.start, segment.end)]
        assert times == sorted(times)
        assert times
        assert times[0] <= 1


def test_the_command_says_what_decodes_it(tmp_path, capsys):
    options = ["--source-language", "de", "--task", "translate"]
    import_command([str(DATA), str(tmp_path / "run"), *options])
    assert "decode" in (said := capsys.readouterr().out)
    assert "--input RECORDING.wav" in said
    transcriber = Transcriber.load(tmp_path / "run")
    assert transcriber.task.tokenizer.pieces(transcriber.task.start())[:2] == ["<|de|>", "<|translate|>"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "give --source-language, such as en"),
        (("eng",), "'eng': this model does not know it"),
        (("en", "de"), "--target-language: Whisper translates to English only"),
        (("en", None, "sing"), "task 'sing'"),
    ],
)
def test_mistakes_at_import_are_named(tmp_path, arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        import_model(DATA, tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "fx"}, "'fx': this model does not know it"),
        ({"task": "sing"}, "task 'sing'"),
    ],
)
def test_mistakes_in_a_call_are_named(imported, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        imported.transcriber.transcribe(imported.waves, **options)


def test_what_is_exported_is_what_was_imported(imported, tmp_path):
    """The same tensors bit by bit, the same tokenizer, and the search options that change outputs."""
    folder, family = export_model(imported.run_dir, tmp_path / "exported")
    assert family.model_type == "whisper"
    tensors, originals = (load_file(path / "model.safetensors") for path in (folder, DATA))
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, originals[name], err_msg=name)
    assert originals.keys() - tensors.keys() <= {"proj_out.weight"}
    for file in ("config.json", "generation_config.json", "preprocessor_config.json"):
        written, original = (json.loads((path / file).read_text()) for path in (folder, DATA))
        if file == "generation_config.json":  # one beam has no penalty
            assert written.pop("max_length") >= original.pop("max_length")
        different = {name for name in written if name in original and written[name] != original[name]}
        assert not different, file
    import_model(folder, tmp_path / "again", "en")
    again = Transcriber.load(tmp_path / "again")
    assert again.config.model == imported.transcriber.config.model
    assert again.config.decoding == imported.transcriber.config.decoding
    assert again.task.tokenizer.content() == imported.transcriber.task.tokenizer.content()


def test_what_whisper_lacks_is_not_exported(imported, tmp_path):
    run = Run(imported.run_dir)
    model = replace(run.config.model, activation="relu", norm="post")
    config = replace(run.config, model=model)
    task = imported.transcriber.task
    other = Run.create(tmp_path / "other", config, task, variables=run.variables("last"))
    with pytest.raises(UserError, match="Whisper has no --model.norm post"):
        export_model(other.path, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_damaged_folders_are_refused(tmp_path):
    folder = Path(shutil.copytree(DATA, tmp_path / "folder"))
    about = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps(about | {"hop_length": 100}))
    with pytest.raises(UserError, match="hop_length is 100; only 160 is supported"):
        import_model(folder, tmp_path / "run", "en")
    (folder / "preprocessor_config.json").unlink()
    described = json.loads((folder / "config.json").read_text())
    for name in ("max_source_positions", "num_mel_bins"):
        (folder / "config.json").write_text(json.dumps(described | {name: None}))
        with pytest.raises(UserError, match=r"config\.json: "):
            import_model(folder, tmp_path / "run", "en")
    (folder / "model.bin").write_bytes(b"\6\0\0\0" + b"\xff" * 40)
    with pytest.raises(UserError, match="model.bin"):
        import_model(folder, tmp_path / "run", "en")
    assert not (tmp_path / "run").exists()


WEIGHTS = Path(os.environ.get("TRANSFORMER_WEIGHTS", "nowhere")) / "whisper-base"


@pytest.mark.slow
@pytest.mark.skipif(not WEIGHTS.exists(), reason="TRANSFORMER_WEIGHTS has no whisper-base")
def test_a_real_model_hears_silence(tmp_path):
    import_model(WEIGHTS, tmp_path / "run", "en")
    transcriber = Transcriber.load(tmp_path / "run")
    ((best, *_),) = transcriber.search([np.zeros(16_000, np.float32)], **GREEDY)
    assert np.isfinite(best.score)
