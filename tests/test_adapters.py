"""Runs with adapters and frozen parts: their checkpoints, their base, and what reads them."""

import dataclasses
import json
import logging
import shlex
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from small_run import WORDS, changed, interrupted, quiet, same, small_config

from transformer import GreedyConfig, Run, Translator, UserError, train
from transformer.commands.decode import decode_main
from transformer.commands.models import average_main
from transformer.commands.train import train_main
from transformer.config.methods import AdapterConfig
from transformer.config.options import as_options
from transformer.data import remote
from transformer.interop.pretrained import export_model, import_model
from transformer.model.declarations import count
from transformer.runs.run import hash_of, named_bases
from transformer.serve.command import parse_serve, services_of
from transformer.trainer.resolved import resume_command

DATA = Path(__file__).parent / "data"
SENTENCES = ["red cat runs", "blue bird sings sleeps", "dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def config(short_config):
    return changed(short_config, steps=8, evaluate_every=4)


@pytest.fixture(scope="module")
def base(folder, finished):
    return Run(shutil.copytree(finished, folder / "base"))


def adapting(config, base, *, rank=2, **training):
    config = dataclasses.replace(config, adapter=AdapterConfig(rank=rank, scale=4.0))
    return changed(config, init_from=base.path, **training)


@pytest.fixture(scope="module")
def adapter(folder, config, base):
    train(adapting(config, base, ema=0.5), folder / "adapter", watch=quiet())
    return Run(folder / "adapter")


@pytest.fixture(scope="module")
def other(folder, config, base):
    train(adapting(config, base, rank=3, seed=7), folder / "other", watch=quiet())
    return Run(folder / "other")


def in_bfloat16(run, folder):
    """A copy of a run that computes in bfloat16."""
    copy = shutil.copytree(run.path, folder / run.path.name)
    config = json.loads((copy / "config.json").read_text())
    config["model"]["dtype"] = "bfloat16"
    (copy / "config.json").write_text(json.dumps(config))
    return Run(copy)


def leaves(variables):
    return {".".join(path): np.asarray(x) for path, x in flatten_dict(variables).items()}


# --- checkpoints ---


@pytest.mark.slow
def test_a_checkpoint_holds_what_is_trained(adapter, base):
    stored = adapter.checkpoints.path / "checkpoints" / "8" / "model"
    names = json.loads((stored / "_METADATA").read_text())["tree_metadata"]
    assert names
    assert all("'down'" in name or "'up'" in name for name in names)
    settings = adapter.config.adapter
    assert settings.base_step == base.checkpoints.best()
    assert settings.base_hash == hash_of(base.variables("best")["params"])


def test_one_reader_merges_and_the_base_is_as_it_was(adapter, base):
    before, after = leaves(base.variables("best")), leaves(adapter.variables("last"))
    assert before.keys() == after.keys()
    differs = {name for name in before if (before[name] != after[name]).any()}
    adapted = {".".join(("params", *path)) for path, _ in adapter.parametrisation.low_rank}
    assert differs == adapted
    for name in adapted:
        change = after[name] - before[name]
        axes = len(base.shapes["params"]) and change.ndim
        assert axes >= 2


def test_a_change_has_the_rank(adapter, base):
    before, after = base.variables("best")["params"], adapter.variables("last")["params"]
    for (name, *path), axes in adapter.parametrisation.low_rank:
        change = after[name], before[name]
        for part in path:
            change = tuple(tree[part] for tree in change)
        matrix = np.asarray(change[0], np.float64) - np.asarray(change[1], np.float64)
        rows = int(np.prod([matrix.shape[axis] for axis in axes]))
        singular = np.linalg.svd(matrix.reshape(rows, -1), compute_uv=False)
        assert singular[2] < 1e-4 * singular[0]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["adapter", "freeze"])
def test_stop_and_resume_bit_for_bit(what, config, base, tmp_path):
    shutil.copytree(base.path, tmp_path / base.path.name)  # where the tested runs look for it
    config = changed(config, ema=0.9)
    config = (
        adapting(config, base)
        if what == "adapter"
        else changed(config, init_from=base.path, freeze=("encoder", "source_embedding"))
    )
    train(config, tmp_path / "whole", watch=quiet())
    interrupted(tmp_path / "whole", tmp_path / "run")
    train(config, tmp_path / "run", watch=quiet())
    assert same(tmp_path / "whole", tmp_path / "run")
    losses = [
        [record["loss"] for record in Run(tmp_path / name).log.records("training")]
        for name in ("whole", "run")
    ]
    assert losses[0] == losses[1]


@pytest.mark.thorough
@pytest.mark.by_default("False")
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_the_command_that_resumes_needs_no_more_than_paths(adapter, has_checkpoint, tmp_path, call):
    """Options of the run need not be given again; the run that it starts from does, also for an adapter."""
    shutil.copytree(adapter.path, tmp_path / "run")
    if not has_checkpoint:
        shutil.rmtree(tmp_path / "run" / "checkpoints")
        (tmp_path / "run" / "metrics.jsonl").unlink()
    _, *words = shlex.split(resume_command(Run(tmp_path / "run")))
    assert "--training.init-from" in words
    assert call(train_main, *words[1:])[0] == 0
    assert Run(tmp_path / "run").checkpoints.steps() == adapter.checkpoints.steps()
    assert Run(tmp_path / "run").config == adapter.config
    with named_bases(adapter.config.training.init_from):
        assert same(tmp_path / "run", adapter.path)


@pytest.mark.slow
def test_frozen_parts_keep_their_bits_in_a_run(config, base, tmp_path, capsys):
    frozen = changed(config, init_from=base.path, freeze=("encoder", "source_embedding"))
    train(frozen, tmp_path / "run")
    before, after = (
        leaves(run.variables(step)) for run, step in ((base, "best"), (Run(tmp_path / "run"), 8))
    )
    for name, values in before.items():
        is_frozen = name.startswith(("params.encoder", "params.source_embedding"))
        assert (values == after[name]).all() == is_frozen, name
    trained = sum(x.size for name, x in before.items() if "encoder" not in name and "embedding" not in name)
    total = count(base.shapes["params"])
    expected = (
        f"{total:,} parameters of the model, {trained:,} trained ({trained / total:.2%}), optimizer state"
    )
    assert expected in " ".join(capsys.readouterr().out.split())


# --- the base ---


@pytest.mark.thorough
def test_both_may_move_together(adapter, base, tmp_path, monkeypatch):
    for run in (adapter, base):
        shutil.copytree(run.path, tmp_path / run.path.name)
    (tmp_path / "adapter" / "config.json").write_text(
        (adapter.path / "config.json").read_text().replace(str(base.path), "/nowhere/base")
    )
    monkeypatch.chdir(tmp_path)
    expected = leaves(adapter.variables("last"))
    jax.tree.map(np.testing.assert_array_equal, leaves(Run("adapter").variables("last")), expected)
    shutil.move("base", "elsewhere")
    with pytest.raises(UserError, match=r"of another run, base, which is not beside adapter.*/nowhere/base"):
        Run("adapter").variables("last")
    assert Translator.load("elsewhere", adapter="adapter").translate("red") is not None


STRANGE = [
    "webhdfs://127.0.0.1:8990/user/base",
    "gs://bucket/base",
    "file:///base",
    "..",
    "/",
    "x/..",
    "base\0",
]


@pytest.mark.thorough("STORED", "gs://bucket/base", "file:///base", "/", "x/..", "base\\x00")
@pytest.mark.parametrize("stored", ["STORED", *STRANGE])
def test_a_stored_path_or_address_is_not_opened(stored, adapter, base, tmp_path, monkeypatch, capsys):
    """By no door, even if the very base is there; the message names it, and the caller may."""
    asked = []

    def opened(where):
        asked.append(where)
        raise UserError(f"{where} was asked for")

    monkeypatch.setattr(remote, "opened", opened)
    shutil.copytree(adapter.path, tmp_path / "a" / "adapter")
    monkeypatch.chdir(tmp_path / "a")
    path = str(base.path) if stored == "STORED" else stored
    config = json.loads(Path("adapter/config.json").read_text())
    config["training"]["init_from"] = path
    Path("adapter/config.json").write_text(json.dumps(config))
    Path("in").write_text("red\n")
    refused = "changes checkpoint .* of another run, .*not beside adapter.*--base RUN"
    calls = [
        lambda: Run("adapter").variables("last"),
        lambda: Translator.load("adapter", "last"),
        lambda: Translator.load(["adapter", "adapter"], "last"),
        lambda: services_of(parse_serve(["adapter", "--checkpoint", "last"]), {}),
    ]
    for call in calls:
        with pytest.raises(UserError, match=refused):
            call()
    commands = {
        decode_main: ["decode", "adapter", "--checkpoint", "last", "--input", "in", "--output", "out"],
        average_main: ["average", "adapter"],
        train_main: ["train", "--run-dir", "adapter", *shlex.split(as_options(text_of(config)))],
    }
    for main, words in commands.items():
        monkeypatch.setattr("sys.argv", words)
        assert main() == 2
        assert "of another run, " in capsys.readouterr().err
    assert asked == []
    if stored == "STORED":
        for main, words in commands.items():
            option = "--training.init-from" if main is train_main else "--base"
            monkeypatch.setattr("sys.argv", [*words, option, str(base.path)])
            assert main() == 0
        assert Path("out").read_text().count("\n") == 1
        arguments = parse_serve(["adapter", "--checkpoint", "last", "--base", str(base.path)])
        with named_bases(arguments.base):
            assert services_of(arguments, {})


def text_of(config):
    """The paths of the text of a stored config, and of its cache."""
    splits = [name for name in config["data"] if name.startswith(("train", "validation", "test"))]
    return {
        f"data.{name}": Path(config["data"][name]) for name in (*splits, "cache_dir") if config["data"][name]
    }


def test_an_option_that_no_run_needs(base, refused):
    for main in decode_main, average_main:
        assert "holds a whole model; leave it out" in refused(main, base.path, "--base", base.path)


@pytest.mark.slow
def test_another_base_is_refused(adapter, base, tmp_path):
    shutil.copytree(base.path, tmp_path / "base")
    run, best = Run(tmp_path / "base"), base.checkpoints.best()
    variables = jax.tree.map(lambda x: jnp.asarray(x) * 1.001, run.variables("best"))
    shutil.rmtree(run.path / "checkpoints" / str(best))
    run.checkpoints.store_model(best, variables)
    with pytest.raises(UserError, match=r"adapter was trained on another model than this one \(hash"):
        Translator.load(run.path, adapter=adapter.path)
    with pytest.raises(UserError, match="was trained on another model"):
        Translator.load(run.path).adapted(adapter.path)
    with pytest.raises(UserError, match="holds a whole model, not changes of one"):
        Translator.load(base.path, adapter=base.path)


def test_an_adapter_without_a_base_is_refused(adapter, tmp_path):
    shutil.copytree(adapter.path, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["training"]["init_from"] = None
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="an adapter without the run that it changes"):
        Run(tmp_path / "run").variables("last")


def test_adapters_that_change_each_other_are_refused(adapter, tmp_path):
    """Whose base would be looked for without end."""
    for name, other in (("one", "two"), ("two", "three"), ("three", "two"), ("self", "self")):
        shutil.copytree(adapter.path, tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        config["training"]["init_from"] = str(tmp_path / other)
        config["adapter"]["base_step"] = 8
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    for name in ("one", "self"):
        with pytest.raises(UserError, match=f"{name}: adapters that change each other have no base"):
            Run(tmp_path / name).variables("last")


def test_a_base_without_the_checkpoint_is_another(adapter, base, tmp_path):
    shutil.copytree(adapter.path, tmp_path / "adapter")
    shutil.copytree(base.path, tmp_path / "base")
    config = json.loads((tmp_path / "adapter" / "config.json").read_text())
    config["training"]["init_from"] = str(tmp_path / "base")
    (tmp_path / "adapter" / "config.json").write_text(json.dumps(config))
    shutil.rmtree(tmp_path / "base" / "checkpoints" / str(adapter.config.adapter.base_step))
    with pytest.raises(UserError, match="adapter was trained on another model than this one"):
        Run(tmp_path / "adapter").variables("last")


# --- what reads them ---


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_adapters_share_a_base_and_its_programs(adapter, other, base, caplog, dtype, tmp_path):
    if dtype == "bfloat16":  # matrices are held in it, but adapters change those of the checkpoint
        adapter, other, base = (in_bfloat16(run, tmp_path) for run in (adapter, other, base))
    alone = [Translator.load(run.path).translate(SENTENCES) for run in (base, adapter, other)]
    translator = Translator.load(base.path)
    translator.language_model = language_model = object()
    assert translator.adapted(adapter.path).language_model is language_model
    translator.use_language_model(None)
    expected = translator.translate(SENTENCES)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        adapted = [translator.adapted(run.path) for run in (adapter, other)]
        caplog.clear()  # merging is compiled for each rank
        found = [decoder.translate(SENTENCES) for decoder in adapted]
        compiled = [record.message for record in caplog.records if record.message.startswith("Compiling")]
    assert [expected, *found] == alone
    assert not compiled
    shared = translator.variables["params"]["source_embedding"]["table"]
    assert all(decoder.variables["params"]["source_embedding"]["table"] is shared for decoder in adapted)


@pytest.mark.slow
def test_int8_and_ensembles(adapter, other, base):
    integer = Translator.load(adapter.path, int8=True)
    assert integer.translate(SENTENCES) == Translator.load(
        base.path, adapter=adapter.path, int8=True
    ).translate(SENTENCES)
    with pytest.raises(UserError, match="load the model without int8"):
        integer.adapted(other.path)
    ensemble = Translator.load([base.path, adapter.path, other.path])
    assert len(ensemble.translate(SENTENCES)) == len(SENTENCES)
    with pytest.raises(UserError, match="adapter is for one run directory"):
        Translator.load([base.path, base.path], adapter=adapter.path)


@pytest.mark.slow
def test_an_average_is_of_the_merged_parameters(adapter, base, tmp_path, call):
    shutil.copytree(base.path, tmp_path / base.path.name)
    shutil.copytree(adapter.path, tmp_path / "run")
    assert call(average_main, tmp_path / "run", "--steps", 4, 8)[0] == 0
    run = Run(tmp_path / "run")
    each = [leaves(run.variables(step)) for step in (4, 8)]
    average = leaves(run.variables("average"))
    for name, values in average.items():
        np.testing.assert_allclose(values, (each[0][name] + each[1][name]) / 2, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_training_goes_on_from_an_adapter(adapter, base, config, tmp_path):
    """Its merged parameters are where a run begins, and what another adapter changes."""
    for run in (adapter, base):
        shutil.copytree(run.path, tmp_path / run.path.name)
    still = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, peak=0.0))
    expected = leaves(adapter.variables("best"))
    for name, begun in (
        ("whole", changed(still, init_from=adapter.path, steps=1, evaluate_every=1)),
        ("second", adapting(still, adapter, steps=1, evaluate_every=1)),
    ):
        train(begun, tmp_path / name, watch=quiet())
        found = leaves(Run(tmp_path / name).variables("last"))
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.slow
def test_a_merged_model_is_exported(tmp_path):
    """An export of an adapter of an imported model is imported again as the merged parameters."""
    base = import_model(DATA / "pretrained" / "bart", tmp_path / "base")
    small = small_config(tmp_path)
    config = dataclasses.replace(
        adapting(small, base, steps=2, evaluate_every=2),
        model=base.config.model,
        data=dataclasses.replace(small.data, max_length=16, buckets=(16,)),
        decoding=GreedyConfig(buckets=(16,), rows=4, extra_length=4),
    )
    train(config, tmp_path / "adapter", watch=quiet())
    export_model(tmp_path / "adapter", tmp_path / "exported")
    again = import_model(tmp_path / "exported", tmp_path / "again")
    expected = leaves(Run(tmp_path / "adapter").variables("best"))
    jax.tree.map(np.testing.assert_array_equal, leaves(again.variables("best")), expected)


# --- refusals ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": AdapterConfig(rank=2)}, r"--adapter\.rank 2 needs --init-from RUN"),
        ({"freeze": ("encoderr",)}, r"--training\.freeze encoderr: no parameter has such a name"),
        ({"freeze": ("*",)}, r"--training\.freeze: nothing would be left to train"),
        ({"groups": ("foo=1",)}, r"--optimizer\.groups foo: no parameter has such a name"),
        (
            {"groups": ("encoder=1",), "freeze": ("encoder",)},
            r"groups encoder: what has such names is not trained",
        ),
        (
            {"groups": ("source=1",), "adapter": AdapterConfig(rank=2), "init_from": True},
            r"--optimizer\.groups source: what has such names is not trained; leave it out",
        ),
        (
            {"adapter": AdapterConfig(rank=999), "init_from": True},
            r"--adapter\.rank 999: changes of these matrices have a rank of at most \d+; choose",
        ),
        ({"adapter": AdapterConfig(pattern=("*query",))}, r"--adapter\.pattern: it has no effect without"),
        (
            {"adapter": AdapterConfig(rank=2), "freeze": ("encoder",), "init_from": True},
            r"--training\.freeze: with --adapter\.rank everything else is fixed",
        ),
        (
            {"adapter": AdapterConfig(rank=2, pattern=("*norm",)), "init_from": True},
            r"--adapter\.pattern \*norm: no parameter",
        ),
        (
            {"adapter": AdapterConfig(rank=2, base_hash="0" * 32), "init_from": True},
            "was trained on another model than this one",
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_written(changes, message, config, base, tmp_path):
    if "adapter" in changes:
        config = dataclasses.replace(config, adapter=changes["adapter"])
    if "groups" in changes:
        optimizer = dataclasses.replace(config.optimizer, groups=changes["groups"])
        config = dataclasses.replace(config, optimizer=optimizer)
    config = changed(
        config,
        freeze=changes.get("freeze", ()),
        init_from=base.path if "init_from" in changes else None,
    )
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run", watch=quiet())
    assert not (tmp_path / "run").exists()


def test_words_are_there():
    assert set(" ".join(SENTENCES).split()) <= set(WORDS)
