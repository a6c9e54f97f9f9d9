"""Imported models of several families are the same networks: results equal those of `transformers` for small
random models (tests/make_pretrained_golden.py).

Tolerances: the reference's logits are rounded to five decimals; its scores are sums of a few dozen
log-probabilities of such logits.
"""

import asyncio
import json
import re
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.speed import importing
from transformer.commands.models import import_command
from transformer.interop.architectures.bart import M2M_100
from transformer.interop.folders.conversion import stored_shapes
from transformer.interop.folders.family import described_model
from transformer.interop.pretrained import export_model, import_model
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
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


@pytest.mark.by_default("t5-1.1")
def test_text_is_cut_and_numbered_as_by_the_reference(imported):
    tokenizer, special = imported.translator.tokenizers[0], imported.translator.model.config.special
    expected = [[index for index in row if index != special.pad] for row in imported.golden["source_ids"]]
    texts = imported.golden["sources"]
    assert [[*tokenizer.encode(text), special.eos] for text in texts] == expected
    assert tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]


@pytest.mark.by_default("t5-1.1")
def test_logits_are_those_of_the_reference(imported):
    source, target = (jnp.asarray(imported.golden[f"{side}_ids"]) for side in ("source", "target"))
    translator = imported.translator
    logits = translator.model.apply(translator.variables, source, target)
    expected = np.asarray(imported.golden["logits"])
    np.testing.assert_allclose(logits[: len(expected)], expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.2  # equal logits would prove nothing


@pytest.mark.thorough
@pytest.mark.by_default("nllb")
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
            assert [h.text.strip(" ") for h in hypotheses] == [text for text, _ in expected]
            if search["num_beams"] > 1:
                scores = [score for _, score in expected]
                np.testing.assert_allclose([h.score for h in hypotheses], scores, atol=2e-4)


@pytest.mark.by_default("t5")
def test_what_was_imported_is_exported_as_it_was(imported, tmp_path):
    """The same tensors under the same names; transformers and CTranslate2
    read such folders (docs/pretrained/use.md)."""
    export_model(imported.run_dir, tmp_path / "out")
    before, after = (load_file(path / "model.safetensors") for path in (imported.folder, tmp_path / "out"))
    assert set(before) <= set(after)
    for name, expected in before.items():
        found = after[name]
        if "embed_positions" in name:  # longer sinusoids, or learned positions after two unused rows
            found, expected = found[2 : len(expected)], expected[2:]
        exact = "embed_positions" not in name
        np.testing.assert_allclose(found, expected, rtol=0, atol=0 if exact else 1e-6)
    described, generation = (
        [json.loads((path / name).read_text()) for path in (imported.folder, tmp_path / "out")]
        for name in ("config.json", "generation_config.json")
    )
    changed = {name for name, value in described[1].items() if described[0].get(name) != value}
    more = {"normalize_before", "normalize_embedding", "tokenizer_class"}  # for CTranslate2
    left_out = {"encoder_layerdrop", "decoder_layerdrop"}  # layers that training skips
    assert changed <= {"tie_word_embeddings", "max_position_embeddings"} | more | left_out
    assert generation[1]["max_length"] == 20
    same = ("decoder_start_token_id", "forced_bos_token_id", "eos_token_id", "pad_token_id", "bad_words_ids")
    assert [generation[0].get(name) for name in same] == [generation[1].get(name) for name in same]
    import_model(tmp_path / "out", tmp_path / "again", *imported.golden["languages"])
    runs = Run(imported.run_dir), Run(tmp_path / "again")
    assert runs[0].config == runs[1].config
    jax.tree.map(np.testing.assert_array_equal, *(run.variables("last") for run in runs))


def test_a_model_with_a_vocabulary_of_sentencepiece_is_exported_as_it_was(tmp_path):
    """M2M-100, which has no tokenizer.json."""
    folder = Path(shutil.copytree(DATA.parent / "tokenizers" / "m2m", tmp_path / "folder"))
    words = json.loads((folder / "vocab.json").read_text())
    sizes = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    described = {
        **{
            "model_type": "m2m_100",
            "vocab_size": len(words) + 108,
            "d_model": 8,
            "max_position_embeddings": 32,
        },
        **{"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2},
        **sizes,
        **{"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "activation_function": "relu"},
    }
    (folder / "config.json").write_text(json.dumps(described))
    family = M2M_100
    shapes = stored_shapes(family.storage, described, described_model(family, described, (), 3))
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(arrays, folder / "model.safetensors")
    import_model(folder, tmp_path / "run", "en", "fr")
    _, architecture = export_model(tmp_path / "run", tmp_path / "out")
    assert architecture is family
    after = load_file(tmp_path / "out" / "model.safetensors")
    for name, x in arrays.items():
        np.testing.assert_array_equal(after[name], x)
    assert json.loads((tmp_path / "out" / "vocab.json").read_text()) == words
    model = "sentencepiece.bpe.model"
    assert (tmp_path / "out" / model).read_bytes() == (folder / model).read_bytes()
    again = import_model(tmp_path / "out", tmp_path / "again", "en", "fr")
    assert again.config.model == Run(tmp_path / "run").config.model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5-1.1", "nllb"])
def test_a_search_in_int8_agrees_with_scores_in_int8(tmp_path, name):
    golden = json.loads((DATA / name / "golden.json").read_text())
    import_model(DATA / name, tmp_path / "run", *golden["languages"])
    exact, rounded = (Translator.load(tmp_path / "run", int8=int8) for int8 in (False, True))
    found = rounded.search(golden["sources"], n_best=1, max_length=12, rows=8, buckets=(32,))
    ids = [best.ids for (best,) in found]
    scores = rounded.score(golden["sources"], ids)
    np.testing.assert_allclose([best.log_probability for (best,) in found], scores, atol=0.05)
    assert np.abs(scores - exact.score(golden["sources"], ids)).max() > 0


def test_the_command_says_what_it_wrote_and_what_decodes_it(tmp_path, capsys):
    arguments = ["--source-language", "eng_Latn", "--target-language", "deu_Latn"]
    import_command([str(DATA / "nllb"), str(tmp_path / "run"), *arguments])
    assert f"Written to {tmp_path / 'run'}" in capsys.readouterr().out
    run = Translator.load(tmp_path / "run").tokenizers
    assert [tokenizer.pieces(tokenizer.start) for tokenizer in run] == [["eng_Latn"], ["deu_Latn"]]
    assert run[1].decode(run[1].encode("der hund")) == "der hund"


@pytest.mark.parametrize("name", ["t5", "nllb"])
def test_probabilities_that_are_normalised_once_more_are_the_same(name, tmp_path):
    """Without a bias no token is left out before."""
    folder = Path(shutil.copytree(DATA / name, tmp_path / "folder"))
    said = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(said | {"renormalize_logits": True}))
    languages = json.loads((folder / "golden.json").read_text())["languages"]
    runs = [import_model(x, tmp_path / x.parent.name, *languages) for x in (DATA / name, folder)]
    one, other = (jax.tree.leaves(run.variables("last")) for run in runs)
    assert all(map(np.array_equal, one, other))


def test_parts_of_a_large_model_are_read_by_their_index(tmp_path):
    folder = Path(shutil.copytree(DATA / "t5", tmp_path / "folder"))
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(sorted(arrays))}
    for file in set(parts.values()):
        save_file({name: arrays[name] for name in arrays if parts[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    import_model(folder, tmp_path / "parts")
    import_model(DATA / "t5", tmp_path / "whole")
    variables = [Translator.load(tmp_path / name).variables for name in ("parts", "whole")]
    jax.tree.map(np.testing.assert_array_equal, *variables)


def test_tensors_of_16_bits_become_float32(tmp_path):
    folder = Path(shutil.copytree(DATA / "t5", tmp_path / "folder"))
    arrays = load_file(folder / "model.safetensors")
    for dtype in jnp.bfloat16, jnp.float16:
        save_file({name: x.astype(dtype) for name, x in arrays.items()}, folder / "model.safetensors")
        run = import_model(folder, tmp_path / dtype.__name__)
        table = run.variables("last")["params"]["source_embedding"]["table"]
        np.testing.assert_array_equal(table, arrays[SHARED].astype(dtype).astype(np.float32))


@pytest.mark.slow
def test_the_whole_model_is_never_in_memory(tmp_path, capsys):
    """JAX and the largest tensor, of 0.12 GB, several times; not a model of 1.4 GB."""
    sizes = "--layers 12 --d-model 1024 --d-ff 4096 --vocabulary 30000 --part 0.5"
    importing.main([str(tmp_path / "model"), *sizes.split()])
    said = capsys.readouterr().out
    assert float(re.search(r"([\d.]+) GB in parts", said)[1]) > 1.3
    assert float(re.search(r"([\d.]+) GB of memory", said)[1]) < 1


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without(path, name):
    arrays = load_file(path)
    save_file({key: value for key, value in arrays.items() if key != name}, path)


def reshaped(path, name):
    arrays = load_file(path)
    save_file({**arrays, name: np.ascontiguousarray(arrays[name][:-1])}, path)


def test_stored_positions_that_are_no_sinusoids_are_refused(tmp_path):
    folder = Path(shutil.copytree(DATA / "pegasus", tmp_path / "folder"))
    path, name = folder / "model.safetensors", "model.encoder.embed_positions.weight"
    width = load_file(path)["model.encoder.layer_norm.weight"].shape[0]
    save_file({**load_file(path), name: np.ones((64, width), np.float32)}, path)
    with pytest.raises(UserError, match=rf"{folder}: {name} is not made of sinusoids"):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


SHARED = "shared.weight"
TWO_OF_A_NAME = (
    b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}'
)

MISTAKES = {
    "no such file": lambda f: (f / "config.json").unlink(),
    "known are marian, bart, mbart, pegasus, m2m_100, t5, mt5, torch.nn.Transformer, whisper": lambda f: edit(
        f / "config.json", model_type="gpt2"
    ),
    "model_type is 'ctranslate2'; known are": lambda f: edit(f / "config.json", model_type="ctranslate2"),
    "if the class of the tokenizer, TokenizersBackend, has a fast version": lambda f: (
        f / "tokenizer.json"
    ).unlink(),
    "'d_kv'": lambda f: (f / "config.json").write_text(
        json.dumps({k: v for k, v in json.loads((f / "config.json").read_text()).items() if k != "d_kv"})
    ),
    "pad_token_id is 999, not an id below": lambda f: edit(f / "config.json", pad_token_id=999),
    "feed_forward_proj 'gated-tanh': supported are": lambda f: edit(
        f / "config.json", feed_forward_proj="gated-tanh"
    ),
    "tokenizer.json: no such file. Load the tokenizer": lambda f: (f / "tokenizer.json").unlink(),
    "not a tokenizer.json that": lambda f: (f / "tokenizer.json").write_text("{}"),
    "model.safetensors: no such file; the folder": lambda f: (f / "model.safetensors").unlink(),
    "model.safetensors cannot be read": lambda f: (f / "model.safetensors").write_bytes(b"nothing"),
    "model.safetensors cannot be read: a: it is given twice": lambda f: (f / "model.safetensors").write_bytes(
        len(TWO_OF_A_NAME).to_bytes(8, "little") + TWO_OF_A_NAME + bytes(8)
    ),
    "there is no tensor shared.weight": lambda f: without(f / "model.safetensors", SHARED),
    "shared.weight has shape": lambda f: reshaped(f / "model.safetensors", SHARED),
    'config.json: d_model is "x", not a whole number': lambda f: edit(f / "config.json", d_model="x"),
    "config.json: d_model is 16.5, not a whole number": lambda f: edit(f / "config.json", d_model=16.5),
    "config.json: d_ff is null, not a whole number": lambda f: edit(f / "config.json", d_ff=None),
    "--model.decoder-layers must be": lambda f: edit(f / "config.json", num_decoder_layers=0),
    "max_length is -1, not a whole number of at": lambda f: edit(f / "generation_config.json", max_length=-1),
    "forced_bos_token_id 1 is also eos_token_id: every output would be empty": lambda f: edit(
        f / "generation_config.json", forced_bos_token_id=1
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_in_a_folder_are_named(tmp_path, message):
    folder = Path(shutil.copytree(DATA / "t5", tmp_path / "folder"))
    MISTAKES[message](folder)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        import_model(folder, tmp_path / "run")
    assert str(folder) in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize(
    ("name", "tensor"), [("t5", SHARED), ("pegasus", "model.encoder.embed_positions.weight")]
)
def test_tensors_that_are_not_finite_are_refused(tmp_path, name, tensor, value):
    """Also in float32 only, without a warning of NumPy, and in tables that are computed."""
    folder = Path(shutil.copytree(DATA / name, tmp_path / "folder"))
    arrays = load_file(folder / "model.safetensors")
    stored = arrays.get(tensor, np.zeros((64, 16))).astype(np.float64)
    stored[3, 1] = value
    save_file(arrays | {tensor: stored}, folder / "model.safetensors")
    with warnings.catch_warnings(action="error"):
        with pytest.raises(UserError, match=f"tensor {tensor} has a value that is not a finite number"):
            import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_a_start_outputs_begin_with_bos(tmp_path):
    """As in `transformers`, whose search takes `bos_token_id` then."""
    ids = []
    for start in (None, 0):
        folder = Path(shutil.copytree(DATA / "bart", tmp_path / "folder", dirs_exist_ok=True))
        for file in ("config.json", "generation_config.json"):
            edit(folder / file, decoder_start_token_id=start, bos_token_id=0)
        ids.append(import_model(folder, tmp_path / f"{start}").config.model.special)
    assert ids[0] == ids[1]
    assert ids[0].bos == 0


def test_the_file_that_is_wrong_is_named_alone(tmp_path):
    damages = (("tokenizer.json", "{}"), ("tokenizer.json", "["), ("tokenizer_config.json", "["))
    for damaged, content in damages:
        folder = Path(shutil.copytree(DATA / "t5", tmp_path / "folder", dirs_exist_ok=True))
        (folder / damaged).write_text(content)
        with pytest.raises(UserError) as caught:
            import_model(folder, tmp_path / "run")
        assert str(caught.value).startswith(f"{folder / damaged}")
        assert "config.json:" not in str(caught.value).replace("tokenizer_config.json", "")


def test_what_is_no_folder_of_a_model_is_named_with_what_to_do(tmp_path):
    with pytest.raises(UserError, match=rf"is a file: name the folder of the model, {DATA / 't5'}$"):
        import_model(DATA / "t5" / "config.json", tmp_path / "run")
    with pytest.raises(UserError, match=rf"config.json: no such file.*Did you mean {DATA / 'bart'} or"):
        import_model(DATA, tmp_path / "run")
    with pytest.raises(UserError, match="is a pretrained model, not a run directory: import it first with "):
        Run(DATA / "t5")


def test_ctrl_c_while_a_checkpoint_is_read_is_no_damage(tmp_path, monkeypatch):
    """Orbax reads in a loop of asyncio, whose tasks Ctrl-C cancels."""
    run = import_model(DATA / "t5", tmp_path / "run")

    def cancelled(*_, **options):
        try:
            raise asyncio.CancelledError
        except asyncio.CancelledError as error:
            raise ValueError("Encountered error while reading array") from error

    monkeypatch.setattr(ocp.Checkpointer, "restore", cancelled)
    with pytest.raises(KeyboardInterrupt):
        run.variables("last")


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("nllb", ("eng_Latn", "deu_Latm"), "--target-language deu_Latm: .*did you mean deu_Latn"),
        ("t5", ("eng_Latn", None), "texts of this model have no code"),
    ],
)
def test_languages_are_asked_for(tmp_path, name, languages, message):
    with pytest.raises(UserError, match=message):
        import_model(DATA / name, tmp_path / "run", *languages)


def test_a_vocabulary_without_codes_is_named(tmp_path):
    folder = Path(shutil.copytree(DATA / "mbart", tmp_path / "folder"))
    shutil.copy(DATA / "pegasus" / "tokenizer.json", folder)
    for languages in (("en_XX", "de_DE"), ()):
        with pytest.raises(UserError, match="--source-language: the vocabulary has no code of a language"):
            import_model(folder, tmp_path / "run", *languages)


def test_models_whose_texts_end_with_a_code_are_refused(tmp_path):
    folder = Path(shutil.copytree(DATA / "mbart", tmp_path / "folder"))
    edit(folder / "config.json", decoder_start_token_id=5)
    with pytest.raises(UserError, match="such as mBART-25, are not supported"):
        import_model(folder, tmp_path / "run", "en_XX", "de_DE")


@pytest.mark.slow
def test_what_steers_a_search_comes_after_the_code(tmp_path):
    import_model(DATA / "nllb", tmp_path / "run", "eng_Latn", "deu_Latn")
    translator = Translator.load(tmp_path / "run")
    options = {"beam_size": 4, "rows": 8, "buckets": (32,)}
    for prefix in ("ein hund", "ein hu", "hu"):
        ((best, *_),) = translator.search(["a dog"], prefixes=[prefix], **options)
        assert best.tokens[0] == "deu_Latn"
        assert best.text.startswith(prefix)
    for renormalise in (False, True):
        steered = {"terms": [["hund"]], "renormalise": renormalise}
        ((best, *_),) = translator.search(["a dog"], **steered, **options)
        assert best.tokens[0] == "deu_Latn"
        assert "hund" in best.text


@pytest.mark.slow
def test_words_of_bytes_steer_a_search(tmp_path):
    """The pieces of BART's vocabulary have a space of their own, and none at the beginning of a text."""
    import_model(DATA / "bart", tmp_path / "run")
    translator = Translator.load(tmp_path / "run")
    options = {"beam_size": 4, "rows": 8, "buckets": (32,)}
    for prefix in ("ein hund", "ein hu", "hu", "grü"):
        ((best, *_),) = translator.search(["a dog"], prefixes=[prefix], **options)
        assert best.text.startswith(prefix)
    ((best, *_),) = translator.search(["a dog"], terms=[["hund"]], **options)
    assert "hund" in best.text
    task = translator.task
    assert {task.spell(phrase) for phrase in task.phrases("hund")} == {"hund", " hund"}


@pytest.mark.slow
def test_a_part_may_not_be_outside_of_the_folder(tmp_path):
    folder = Path(shutil.copytree(DATA / "t5", tmp_path / "folder"))
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {SHARED: "../outside.safetensors"}})
    )
    with pytest.raises(UserError, match="which is not a file of this folder"):
        import_model(folder, tmp_path / "run")
