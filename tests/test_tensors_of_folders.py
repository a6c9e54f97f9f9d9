"""Every tensor of a folder becomes a part of the model, or is known to be harmless, or is named; and what
stands for other numbers than it has is refused. In every family."""

import json
import re
import shutil
from pathlib import Path

import jax
import marian_network
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiers import mostly_slow

from transformer.interop.folders import folder as reading
from transformer.interop.folders.unused import observed
from transformer.interop.pretrained import import_model
from transformer.runs.run import Run
from transformer.runtime.errors import UserError

DATA = Path(__file__).parent / "data"
FOLDERS = {
    **{
        path.name: path
        for path in (*(DATA / "pretrained").iterdir(), *DATA.glob("marian*"), DATA / "whisper")
    },
    **{f"{kind} {path.name}": path for kind in ("bert", "torch") for path in (DATA / kind).iterdir()},
}
ONE_OF_A_KIND = ["bart", "t5"]
NUMBERED = re.compile(r"(.*\b(?:layers?|block)\.)(\d+)(\..*)")
WEIGHTS = "model.safetensors"
TIED = {  # names of the matrix of words that a folder may have, and that mean the same
    "bart": ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
    "mbart": ("model.shared.weight", "lm_head.weight"),
    "pegasus": ("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    "nllb": ("model.shared.weight", "lm_head.weight"),
    "marian": ("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    "marian-separate": ("model.decoder.embed_tokens.weight", "lm_head.weight"),
    "t5": ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    "t5-1.1": ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    "whisper": ("model.decoder.embed_tokens.weight", "proj_out.weight"),
    "bert one-layer": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
}
HARMLESS = {
    "bart": ("model.encoder.version", "model.decoder.version"),
    "nllb": ("model.encoder.embed_positions.weights",),
    "whisper": ("model.decoder.layers.0.encoder_attn.k_proj.bias",),
    "t5": ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    "bert one-layer": (
        *("bert.embeddings.position_ids", "bert.pooler.dense.weight", "cls.seq_relationship.bias"),
    ),
}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"


def copied(name, tmp_path):
    """A copy of the folder of a family, and the tensors in it."""
    folder = Path(shutil.copytree(FOLDERS[name], tmp_path / "folder", dirs_exist_ok=True))
    return folder, load_file(folder / WEIGHTS)


def imported(name, folder, run_dir):
    about = json.loads((FOLDERS[name] / "golden.json").read_text())
    languages = about.get("languages", ()) if isinstance(about, dict) else ()
    return import_model(folder, run_dir, *(("en",) if name == "whisper" else languages))


def params(run):
    return run.variables("last")["params"]


@pytest.mark.parametrize("name", mostly_slow(sorted(FOLDERS), ONE_OF_A_KIND))
def test_a_tensor_that_is_no_part_of_the_model_is_named(tmp_path, caplog, name):
    """A layer more than the config has, and a head for another task."""
    folder, tensors = copied(name, tmp_path)
    last = max(int(match[2]) for tensor in tensors if (match := NUMBERED.fullmatch(tensor)))
    layer = {
        f"{match[1]}{last + 1}{match[3]}": x
        for tensor, x in tensors.items()
        if (match := NUMBERED.fullmatch(tensor)) and int(match[2]) == last
    }
    one = np.ones((2, 2), np.float32)
    for more in (layer, {"classification_head.dense.weight": one}, {"\x1b[2J\nx": one}):
        save_file(tensors | more, folder / WEIGHTS)
        caplog.clear()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        imported(name, folder, tmp_path / "run")
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert f"Not imported: {min(more)}".encode("unicode_escape").decode() in record.getMessage()
        assert len(more) < 4 or f"and {len(more) - 3} more tensor" in record.getMessage()


def test_an_array_of_marian_that_is_no_part_of_the_model_is_named(tmp_path, caplog):
    options = marian_network.description(40)
    arrays = marian_network.random_arrays(options)
    shutil.copy(DATA / "marian" / "source.spm", tmp_path / "vocab.spm")
    more = {
        "encoder_l9_self_Wq": arrays["encoder_l1_self_Wq"],
        "Wemb_QuantMultA": np.ones((1, 1), np.float32),
    }
    marian_network.write_npz(tmp_path / "model.npz", arrays | more, options)
    import_model(tmp_path, tmp_path / "run")
    (record,) = caplog.records
    assert "Not imported: encoder_l9_self_Wq:" in record.getMessage()


@pytest.mark.parametrize("name", mostly_slow(sorted(HARMLESS), ["t5"]))
def test_what_no_output_depends_on_is_not_mentioned(tmp_path, caplog, name):
    folder, tensors = copied(name, tmp_path)
    some = next(iter(tensors.values()))
    save_file(tensors | {more: np.ones_like(some, np.int64) for more in HARMLESS[name]}, folder / WEIGHTS)
    imported(name, folder, tmp_path / "run")
    assert not caplog.records


@pytest.mark.parametrize("name", mostly_slow(sorted(TIED), ["t5-1.1"]))
def test_a_matrix_under_several_names_is_one_and_different_ones_are_refused(tmp_path, caplog, name):
    """Whichever of its names a folder keeps, and whether it repeats the matrix."""
    folder, tensors = copied(name, tmp_path)
    first = next(tensor for tensor in TIED[name] if tensor in tensors)
    rest = {tensor: x for tensor, x in tensors.items() if tensor != first}
    expected = params(imported(name, folder, tmp_path / "run"))
    for number, kept in enumerate((*((other,) for other in TIED[name]), TIED[name])):
        save_file(rest | dict.fromkeys(kept, tensors[first]), folder / WEIGHTS)
        jax.tree.map(
            np.testing.assert_array_equal, params(imported(name, folder, tmp_path / f"{number}")), expected
        )
    assert not caplog.records
    for other in TIED[name]:
        if other == first:
            continue
        save_file(tensors | {other: tensors[first] + 1}, folder / WEIGHTS)
        with pytest.raises(
            UserError, match=re.escape("differ, and the described model has one for both")
        ) as caught:
            imported(name, folder, tmp_path / "other")
        assert first in str(caught.value)
        assert other in str(caught.value)
        assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_t5_that_repeats_the_table_is_the_table(tmp_path, tied):
    folder, tensors = copied("t5", tmp_path)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"tie_word_embeddings": tied}))
    kinds = {}
    for name, head in {"same": tensors["shared.weight"], "own": tensors["shared.weight"] + 1}.items():
        save_file(tensors | {"lm_head.weight": head}, folder / WEIGHTS)
        kinds[name] = imported("t5", folder, tmp_path / name).config.model.share_embeddings
    assert kinds == {"same": "all", "own": "inputs"}


@pytest.mark.parametrize(
    "name", mostly_slow(["bart", "mbart", "pegasus", "nllb", "marian", "whisper"], ["bart"])
)
def test_the_network_without_its_head_is_the_same(tmp_path, caplog, name):
    """Such as facebook/bart-base, whose folder holds a BartModel."""
    folder, tensors = copied(name, tmp_path)
    expected = params(imported(name, folder, tmp_path / "with"))
    save_file({tensor.removeprefix("model."): x for tensor, x in tensors.items()}, folder / WEIGHTS)
    jax.tree.map(
        np.testing.assert_array_equal, params(imported(name, folder, tmp_path / "without")), expected
    )
    assert not caplog.records


# Index


def in_parts(folder, tensors, change):
    """The tensors in two files, and an index that is changed."""
    (folder / WEIGHTS).unlink(missing_ok=True)
    parts = {
        name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(sorted(tensors))
    }
    for file in set(parts.values()):
        save_file({name: x for name, x in tensors.items() if parts[name] == file}, folder / file)
    change(parts)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))


FIRST, SECOND = (
    "decoder.block.0.layer.0.SelfAttention.k.weight",
    "decoder.block.0.layer.0.SelfAttention.o.weight",
)
DISAGREEMENTS = {
    f"has the tensor {FIRST}, which model.safetensors.index.json does not name": lambda parts: parts.pop(
        FIRST
    ),
    f"has the tensor {FIRST}, which model.safetensors.index.json says is in": lambda parts: parts.update(
        {FIRST: parts[SECOND]}
    ),
    "has no tensor more.weight, which model.safetensors.index.json says": lambda parts: parts.update(
        {"more.weight": parts[FIRST]}
    ),
    "no such file": lambda parts: parts.update({FIRST: "model-00003-of-00003.safetensors"}),
}


@pytest.mark.parametrize("message", DISAGREEMENTS)
def test_an_index_that_says_something_else_than_its_files_is_refused(tmp_path, message):
    folder, tensors = copied("t5", tmp_path)
    in_parts(folder, tensors, DISAGREEMENTS[message])
    with pytest.raises(UserError, match=re.escape(message)):
        imported("t5", folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_beside_the_index_is_named(tmp_path, caplog):
    folder, tensors = copied("t5", tmp_path)
    in_parts(folder, tensors, lambda parts: None)
    save_file({"more.weight": np.ones(3)}, folder / "model-00003-of-00003.safetensors")
    imported("t5", folder, tmp_path / "run")
    (record,) = caplog.records
    assert (
        "model-00003-of-00003.safetensors: model.safetensors.index.json, which does not"
        in record.getMessage()
    )


def test_an_index_beside_a_whole_file_is_named(tmp_path, caplog):
    """As in `transformers`, the whole file counts; an index that names it is checked."""
    folder, tensors = copied("t5", tmp_path)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {FIRST: "other-00001-of-00001.safetensors"}}))
    imported("t5", folder, tmp_path / "run")
    (record,) = caplog.records
    assert f"Not imported: {index}: model.safetensors counts" in record.getMessage()
    index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, WEIGHTS)}))
    caplog.clear()
    imported("t5", folder, tmp_path / "whole")
    assert not caplog.records
    index.write_text(json.dumps({"weight_map": {FIRST: WEIGHTS}}))
    with pytest.raises(UserError, match=re.escape(f"which {index.name} does not name")):
        imported("t5", folder, tmp_path / "part")


# Numbers that stand for others

QUANTISED = {
    "bitsandbytes, 8 bits": ".SCB",
    "bitsandbytes, 4 bits": ".weight.absmax",
    "GPTQ": ".g_idx",
    "AWQ": ".qzeros",
    "compressed-tensors": ".weight_packed",
    "quanto": ".weight._data",
    "EETQ": ".weight_scales",
    "float8": ".weight_scale_inv",
}
CONFIGS = {
    "bitsandbytes, 8 bits": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "bitsandbytes, 4 bits": {"load_in_4bit": True, "load_in_8bit": False},
    "GPTQ": {"quant_method": "gptq", "bits": 4},
    "AWQ": {"quant_method": "awq", "bits": 4},
    "float8": {"quant_method": "fp8"},
    "torchao": {"quant_method": "torchao"},
}


@pytest.mark.parametrize("method", QUANTISED)
def test_quantised_weights_are_refused_by_what_their_tensors_are_called(tmp_path, method):
    folder, tensors = copied("t5", tmp_path)
    name = FIRST.removesuffix(".weight")
    tensors[FIRST] = tensors[FIRST].astype(np.int8)
    save_file(tensors | {name + QUANTISED[method]: np.ones(3, np.float32)}, folder / WEIGHTS)
    with pytest.raises(
        UserError, match=re.escape(f"{folder}: its weights are quantised ({method})")
    ) as caught:
        imported("t5", folder, tmp_path / "run")
    assert ("dequantize()" in str(caught.value)) == ("bitsandbytes" in method)


@pytest.mark.parametrize("name", mostly_slow(sorted(FOLDERS), ONE_OF_A_KIND))
def test_quantised_weights_are_refused_by_what_the_config_says(tmp_path, name):
    folder, _ = copied(name, tmp_path)
    about = json.loads((folder / "config.json").read_text())
    for method, config in CONFIGS.items():
        (folder / "config.json").write_text(json.dumps(about | {"quantization_config": config}))
        with pytest.raises(UserError, match=re.escape(f"its weights are quantised ({method})")):
            imported(name, folder, tmp_path / "run")


@pytest.mark.parametrize("name", mostly_slow(sorted(FOLDERS), ONE_OF_A_KIND))
def test_whole_numbers_are_no_weights(tmp_path, name):
    """In any tensor, of any type; nor are the eight bits of a float8."""
    folder, tensors = copied(name, tmp_path)
    changed = next(
        tensor for tensor in sorted(tensors) if NUMBERED.fullmatch(tensor) and tensors[tensor].ndim == 2
    )
    kinds = {
        "I8": np.int8,
        "U8": np.uint8,
        "I16": np.int16,
        "I32": np.int32,
        "I64": np.int64,
        "BOOL": np.bool_,
    }
    for kind, dtype in kinds.items():
        save_file(tensors | {changed: tensors[changed].astype(dtype)}, folder / WEIGHTS)
        with pytest.raises(UserError, match=re.escape(f"tensor {changed} is of type {kind}")):
            imported(name, folder, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        write_float8(folder / WEIGHTS, tensors, changed, dtype)
        with pytest.raises(UserError, match=r"quantised \(float8\)"):
            imported(name, folder, tmp_path / "run")


def write_float8(path, tensors, changed, dtype):
    """safetensors of NumPy writes no float8, so that it is written as bytes of another name."""
    save_file(tensors | {changed: tensors[changed].astype(dtype).view(np.uint8)}, path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header[changed]["dtype"] = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}[np.dtype(dtype).name]
    written = json.dumps(header).encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + content[8 + size :])


@pytest.mark.parametrize("name", mostly_slow(sorted(FOLDERS), ONE_OF_A_KIND))
def test_a_pointer_of_git_lfs_is_not_the_file(tmp_path, name):
    """Whichever file it stands for; those of other programs may be pointers."""
    folder, _ = copied(name, tmp_path)
    (folder / "pytorch_model.bin").write_bytes(POINTER)
    for other in ("golden.json", "directions.json"):
        (folder / other).unlink(missing_ok=True)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        path.write_bytes(POINTER)
        if path.name != "pytorch_model.bin":
            with pytest.raises(UserError, match=re.escape(f"{path} is a pointer of Git LFS")):
                imported(name, folder, tmp_path / "run")
            path.write_bytes(content)
    run = imported(name, folder, tmp_path / "run")
    assert Run(run.path).config == run.config


# Values of another type

OTHERWISE = {"eos_token_id", "model_type"}
"""Fields whose list is refused elsewhere: an end among several, and what says the family."""


@pytest.mark.parametrize("name", mostly_slow(sorted(FOLDERS), ONE_OF_A_KIND))
def test_a_field_of_another_type_is_refused_by_name(tmp_path, monkeypatch, name):
    """Every field that the import asks for, whether the folder has it or not."""
    folder, _ = copied(name, tmp_path)
    read = {}

    def noted(path, content):
        seen = observed(path, content)
        read[path] = seen._seen
        return seen

    monkeypatch.setattr(reading, "observed", noted)
    for file in ("generation_config.json", "tokenizer_config.json"):
        if not (folder / file).exists():
            (folder / file).write_text(
                "{}" if file.startswith("tok") else (folder / "config.json").read_text()
            )
    imported(name, folder, tmp_path / "run")
    fields = [(path, key) for path, keys in read.items() if "config" in path.name for key in sorted({*keys})]
    assert len(fields) > 20
    silent = []
    for path, key in fields:
        before = path.read_text()
        path.write_text(json.dumps(json.loads(before) | {key: [[{}]]}))
        try:
            imported(name, folder, tmp_path / key)
        except UserError as error:
            assert key in str(error) or "suppressed" in str(error)  # noqa: PT017
        else:
            silent.append(key)
        path.write_text(before)
    assert {*silent} <= OTHERWISE


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("config.json", "quantization_config", [1]),
        ("config.json", "quantization_config", "gptq"),
        ("config.json", "tie_word_embeddings", "false"),
        ("config.json", "dropout_rate", "0.1"),
        ("config.json", "num_layers", True),
        ("config.json", "num_layers", 2.0),
        ("generation_config.json", "do_sample", "true"),
        ("generation_config.json", "renormalize_logits", 1),
        ("tokenizer_config.json", "unk_token", 3),
    ],
)
def test_a_value_that_looks_like_another_is_refused(tmp_path, file, field, value):
    folder, _ = copied("t5", tmp_path)
    about = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(about | {field: value}))
    with pytest.raises(UserError, match=re.escape(f"{folder / file}: {field} is {json.dumps(value)}, not ")):
        imported("t5", folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_header_is_read_once(tmp_path, monkeypatch, kind):
    """However many tensors are read: one with many names costs no time for each of them."""
    shapes = {"a": (2, 3), "b": (0, 3), "c": ()}
    arrays = {name: np.full(shape, 1.5, kind) for name, shape in shapes.items()}
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    tensors = reading.tensors(tmp_path)
    monkeypatch.setattr(reading, "safe_open", None)
    assert {name: tensors.shape(name) for name in tensors.names} == shapes
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors(name), array.astype(np.float32))


def test_a_header_that_is_too_long_is_refused(tmp_path):
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write((32 << 20).to_bytes(8, "little"))
        file.truncate(33 << 20)
    with pytest.raises(UserError, match="model.safetensors cannot be read: a header of 33,554,432 bytes"):
        reading.tensors(tmp_path)
