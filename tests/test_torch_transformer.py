"""Models of torch.nn.Transformer are imported as the same networks (tests/make_torch_golden.py)."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transformer.interop.pretrained import import_model
from transformer.runtime.errors import UserError
from transformer.translator.translator import Translator

DATA = Path(__file__).parent / "data" / "torch"
GREEDY = {"beam_size": 1, "rows": 8, "buckets": (32,), "max_length": 13, "extra_length": 50}


@pytest.fixture(scope="module", params=["plain", "post", "pre"])
def imported(request, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("imported") / "run"
    folder = DATA / request.param
    import_model(folder, run_dir)
    golden = json.loads((folder / "golden.json").read_text())
    return SimpleNamespace(golden=golden, translator=Translator.load(run_dir))


@pytest.mark.by_default("post")
def test_logits_are_those_of_torch(imported):
    source, target = (jnp.asarray(imported.golden[f"{side}_ids"]) for side in ("source", "target"))
    translator = imported.translator
    logits = translator.model.apply(translator.variables, source, target)
    expected = np.asarray(imported.golden["logits"])
    assert expected.std() > 0.2  # equal logits would prove nothing
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.thorough
@pytest.mark.by_default("post")
def test_greedy_output_is_that_of_torch(imported):
    texts = imported.translator.translate(imported.golden["sources"], **GREEDY)
    assert [" ".join(text.split()[:12]) for text in texts] == imported.golden["greedy"]


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def renamed(folder, change):
    path = folder / "model.safetensors"
    save_file({change(name): array for name, array in load_file(path).items()}, path)


def copied(tmp_path):
    return Path(shutil.copytree(DATA / "post", tmp_path / "folder"))


@pytest.mark.slow
def test_other_names_of_tensors_are_given_in_the_config(tmp_path):
    folder = copied(tmp_path)
    renamed(folder, lambda name: name.replace("generator.", "head.").replace("transformer.", "net.core."))
    edit(folder / "config.json", tensors={"output": "head.", "transformer": "net.core."})
    runs = tmp_path / "run", tmp_path / "as it was"
    import_model(folder, runs[0])
    import_model(DATA / "post", runs[1])
    texts, expected = (Translator.load(run).translate(["ein hund läuft"], **GREEDY) for run in runs)
    assert texts == expected


def test_parts_of_a_joined_matrix_have_their_shape_checked(tmp_path):
    folder = copied(tmp_path)
    path = folder / "model.safetensors"
    name = "transformer.decoder.layers.0.multihead_attn.in_proj_weight"
    save_file({key: x[:-1] if key == name else x for key, x in load_file(path).items()}, path)
    with pytest.raises(UserError, match=re.escape(f"{name} has shape [47, 16]; the desc")):
        import_model(folder, tmp_path / "run")


def with_positions(folder, table, name="positional_encoding.pos_embedding"):
    path = folder / "model.safetensors"
    save_file({**load_file(path), name: table.astype(np.float32)}, path)


MISTAKES = {
    "activation 'tanh': supported are relu, gelu": lambda f: edit(f / "config.json", activation="tanh"),
    "tensors has 'head'; known are": lambda f: edit(f / "config.json", tensors={"head": "a."}),
    "'nhead'": lambda f: (f / "config.json").write_text(
        json.dumps({k: v for k, v in json.loads((f / "config.json").read_text()).items() if k != "nhead"})
    ),
    "unk_token_id is None": lambda f: edit(f / "config.json", unk_token_id=None),
    "there is no source_vocabulary.txt": lambda f: (f / "source_vocabulary.txt").unlink(),
    "has 2 lines, and the model has": lambda f: (f / "source_vocabulary.txt").write_text("a\nb\n"),
    "there is no tensor generator.weight": lambda f: renamed(f, lambda n: n.replace("generator", "head")),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_in_a_folder_are_named(tmp_path, message):
    folder = copied(tmp_path)
    MISTAKES[message](folder)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        import_model(folder, tmp_path / "run")
    assert str(folder) in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.by_default("positional_encoding.pos_embedding")
@pytest.mark.parametrize("name", ["positional_encoding.pos_embedding", "encoding.pe"])
def test_learned_positions_are_refused(tmp_path, name):
    """Under each name that config.json may give; sinusoids as in PyTorch's tutorial are accepted."""
    folder = copied(tmp_path)
    if name == "encoding.pe":
        edit(folder / "config.json", tensors={"positions": name})
    with_positions(folder, np.ones((4, 1, 16)), name)
    with pytest.raises(UserError, match=rf"{folder}: {name} is not made of sinusoids"):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    angles = np.arange(5000)[:, None] * np.exp(-np.arange(0, 16, 2) * np.log(10000) / 16)
    table = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(5000, 1, 16)
    with_positions(folder, table, name)
    import_model(folder, tmp_path / "run")
