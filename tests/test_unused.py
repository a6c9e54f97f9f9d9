"""What a folder says and an import does not use is listed once, kept in the run, and exported again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transformer.commands.models import import_command
from transformer.interop.architectures.whisper import MULTILINGUAL
from transformer.interop.folders.unused import observed, observing, unused
from transformer.interop.pretrained import export_model, import_model
from transformer.runs.run import Run
from transformer.runtime.errors import UserError

DATA = Path(__file__).parent / "data"


def edited(folder, **files):
    for file, options in files.items():
        path = folder / f"{file}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **options}))
    return folder


HOSTILE = "\x1b]0;evil\x07\nWritten to \u202eelsewhere"


def test_what_is_read_is_noted_also_of_a_copy(tmp_path):
    content = {"read": 1, "asked": 2, "replaced": 3, "left": 4, "default": 5, "dtype": "float32"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    with observing():
        found = observed(path, content)
        copy = {"default": 0} | found | {"replaced": 6}
        assert (copy["read"], copy.get("asked"), copy["replaced"], copy["default"]) == (1, 2, 6, 5)
        assert "absent" not in copy
        assert unused(tmp_path) == {"config.json": {"replaced": 3, "left": 4}}
    assert observed(path, content) is content


def test_what_an_import_does_not_use_is_listed_and_exported(tmp_path, capsys):
    folder = Path(shutil.copytree(DATA / "whisper", tmp_path / "folder"))
    edited(
        folder,
        config={"scale_embedding": True, "task_specific_params": {"a": [1]}},
        generation_config={"alignment_heads": [[1, 0], [1, 1]]},
        preprocessor_config={"chunk_length": 30, "n_samples": 480_000},
        normalizer={"colour": "color", HOSTILE: 1},
    )
    import_command([str(folder), str(tmp_path / "run"), "--source-language", "en"])
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Not used here")]
    for name in ("scale_embedding", "task_specific_params", "alignment_heads", "chunk_length", "colour"):
        assert f" {name}" in said
    assert r" \x1b]0;evil\x07\nWritten to \u202eelsewhere" in said
    assert not Run(tmp_path / "run").config.model.scale_embedding
    export_model(tmp_path / "run", tmp_path / "out")
    for path in folder.glob("*config.json"):
        before, after = (json.loads(x.read_text()) for x in (path, tmp_path / "out" / path.name))
        left_out = {"dtype", "transformers_version", "_from_model_config"}
        assert {name: after.get(name) for name in before.keys() - left_out} == {
            name: before[name] for name in before.keys() - left_out
        }
    assert json.loads((tmp_path / "out" / "normalizer.json").read_text()) == {"colour": "color", HOSTILE: 1}


def test_a_damaged_list_of_what_was_kept_is_named(tmp_path):
    run = import_model(DATA / "pretrained" / "t5", tmp_path / "run")
    (run.path / "imported.json").write_text('{"config.json": 3}')
    with pytest.raises(UserError, match=r"imported.json is damaged"):
        Run(run.path).kept  # noqa: B018


@pytest.mark.parametrize("size", [MULTILINGUAL - 1, MULTILINGUAL])
def test_the_size_of_its_vocabulary_says_how_many_languages_a_whisper_hears(tmp_path, size):
    """If nothing else does: CTranslate2 writes the ids of languages for English-only models too."""
    folder = Path(shutil.copytree(DATA / "whisper", tmp_path / "folder"))
    edited(folder, config={"vocab_size": size}, generation_config={"is_multilingual": None})
    tensors = load_file(folder / "model.safetensors")
    name = "model.decoder.embed_tokens.weight"
    tensors[name] = np.pad(tensors[name], [(0, size - len(tensors[name])), (0, 0)])
    save_file(tensors, folder / "model.safetensors")
    if size == MULTILINGUAL:
        with pytest.raises(UserError, match="this model hears many languages: give --source-language"):
            import_model(folder, tmp_path / "run")
        return
    run = import_model(folder, tmp_path / "run")
    assert run.task.tokenizer.pieces(run.task.tokenizer.start) == ["<|notimestamps|>"]
    with pytest.raises(UserError, match="this model is for English only"):
        import_model(folder, tmp_path / "other", "de")
