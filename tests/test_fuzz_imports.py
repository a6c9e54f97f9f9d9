"""Any folder of a pretrained model is imported completely, or refused in one message, in every family.

`TRANSFORMER_FUZZ=3000 pytest tests/test_fuzz_imports.py` tries 3,000 cases of each, and by default a few.
"""

import contextlib
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import marian_network
import pytest
from fuzzing import CHANCE, VALUES, contents, damage, fuzz
from hypothesis import given
from safetensors.numpy import load_file, save_file
from tiers import mostly_slow

from transformer import UserError
from transformer.interop.pretrained import import_model

DATA = Path(__file__).parent / "data"
FOLDERS = {path.name: path for path in DATA.glob("marian*")} | {
    path.name: path for path in (*(DATA / "pretrained").iterdir(), DATA / "whisper")
}
FOLDERS |= {
    f"{kind}, {path.name}": path
    for kind in ("bert", "torch", "ctranslate2")
    for path in (DATA / kind).iterdir()
}
OWN = ("marian's own, npz", "marian's own, bin", "marian's own, intgemm8")
"""Files that Marian writes itself."""
ONE_OF_A_KIND = ["bart", "t5", "marian", "bert, one-layer", "torch, pre", "whisper", OWN[2]]


def copied(name: str, model: Path) -> tuple[str | None, ...]:
    """Makes the folder of a family; returns the languages of the import."""
    if name in OWN:
        model.mkdir()
        options = marian_network.description(40)
        arrays = marian_network.random_arrays(options)
        shutil.copy(DATA / "marian" / "source.spm", model / "vocab.spm")
        decoder = {"models": ["model.bin"], "vocabs": ["vocab.spm"] * 2, "beam-size": 2}
        (model / "decoder.yml").write_text(marian_network.as_yaml(decoder))
        if name.endswith("npz"):
            marian_network.write_npz(model / "model.npz", arrays, options)
        else:
            marian_network.write_bin(model / "model.bin", arrays, options, integers="int" in name)
        return ()
    shutil.copytree(FOLDERS[name], model)
    golden = json.loads((model / "golden.json").read_text())
    languages = golden.get("languages", ()) if isinstance(golden, dict) else ()
    (model / "golden.json").unlink()
    return ("en",) if name == "whisper" else tuple(languages)


@pytest.mark.by_default("marian")
@pytest.mark.parametrize("name", mostly_slow([*sorted(FOLDERS), *OWN], ONE_OF_A_KIND))
@fuzz
@given(chance=CHANCE, values=VALUES)
def test_a_model_to_import_with_anything_in_it(
    tmp_path_factory: pytest.TempPathFactory, name: str, chance: Random, values: list[Any]
) -> None:
    """It is imported completely (a fifth is read back) or refused, and nothing is written outside the run."""
    folder = tmp_path_factory.mktemp("import")
    model, outside = folder / "model", folder / "outside"
    languages = copied(name, model)
    outside.mkdir()
    described = sorted(model.glob("*.json"))
    if (model / "model.safetensors").exists() and chance.random() < 0.3:
        in_parts(model)
    if not described or chance.random() < 0.5:
        damage(chance, values, model, outside)
    else:
        change_a_value(chance, values, chance.choice(described))
    before = contents(folder)
    with contextlib.suppress(UserError):
        run = import_model(model, folder / "run", *languages)
        assert chance.random() < 0.8 or run.variables("last")
    new = {name for name in contents(folder).keys() - before.keys()}
    assert all(name.startswith(str(folder / "run")) for name in new)
    assert {name: content for name, content in contents(folder).items() if name not in new} == before
    shutil.rmtree(folder)


@pytest.mark.parametrize("value", [[1], {"a": 1}, "x", None])
def test_a_wrong_type_in_a_config_is_named_without_words_of_python(tmp_path: Path, value: Any) -> None:
    copied("bart", tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"activation_dropout": value}))
    with pytest.raises(UserError, match=r"config\.json: ") as refusal:
        import_model(tmp_path / "model", tmp_path / "run")
    assert not any(word in str(refusal.value) for word in ("argument", "NoneType", "convert"))
    assert "activation_dropout" in str(refusal.value)


def in_parts(model: Path) -> None:
    """The tensors in two files and their index."""
    tensors = load_file(model / "model.safetensors")
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: x for name, x in tensors.items() if files[name] == file}, model / file)
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def change_a_value(chance: Random, values: list[Any], file: Path) -> None:
    """Puts something else in any place of a JSON file."""
    about = json.loads(file.read_text())
    inner = about
    while isinstance(inner, dict | list) and inner:
        key = chance.choice(sorted(inner)) if isinstance(inner, dict) else chance.randrange(len(inner))
        if chance.random() < 0.4 or not isinstance(inner[key], dict | list):
            inner[key] = values.pop()
            break
        inner = inner[key]
    file.write_text(json.dumps(about))
