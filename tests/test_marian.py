"""Imported and exported Marian models are the same network: results equal those of Hugging Face for small
random models (tests/make_marian_golden.py).

Tolerances: the reference's logits are sums of some hundred float32 products of size 1, rounded to five
decimals. Its scores add up log-probabilities of such logits.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply
from safetensors.numpy import load_file, save_file

from transformer.commands.models import export_command, import_command
from transformer.config.corpus import DataConfig
from transformer.config.decoding import BeamConfig
from transformer.config.options import Config
from transformer.config.transformer import EncoderConfig, TransformerConfig
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.interop.architectures.marian import WORD_LISTS as CTRANSLATE2
from transformer.interop.pretrained import export_model, import_model
from transformer.model.transformer import Transformer
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.tasks.texts.translation import Translation
from transformer.translator.translator import Translator

DATA = Path(__file__).parent / "data"
STOP = {False: "present", True: "full", "never": "exact"}


@pytest.fixture(scope="module", params=["marian", "marian-separate", "marian-renormalized"])
def imported(request, tmp_path_factory):
    folder, run_dir = DATA / request.param, tmp_path_factory.mktemp("imported") / "run"
    import_model(folder, run_dir)
    golden = json.loads((folder / "golden.json").read_text())
    return SimpleNamespace(folder=folder, run_dir=run_dir, golden=golden, translator=Translator.load(run_dir))


def logits_of(translator, source, target):
    return np.asarray(apply(translator.model, translator.variables, jnp.asarray(source), jnp.asarray(target)))


@pytest.mark.by_default("marian-renormalized")
def test_logits_are_those_of_the_reference(imported):
    golden = imported.golden
    found = logits_of(imported.translator, golden["source_ids"], golden["target_ids"]).copy()
    if imported.folder.name == "marian-renormalized":  # its <pad> leaves the softmax after the model
        np.testing.assert_array_equal(found[..., -1], -1e4)
        found[..., -1] = 0
    np.testing.assert_allclose(found, golden["logits"], atol=1e-4, rtol=0)
    assert np.std(golden["logits"]) > 1  # equal logits would prove nothing


def test_text_is_cut_and_numbered_as_by_the_reference(imported):
    tokenizer, special = imported.translator.tokenizers[0], imported.translator.model.config.special
    expected = [[index for index in row if index != special.pad] for row in imported.golden["source_ids"]]
    assert [[*tokenizer.encode(text), special.eos] for text in imported.golden["sources"]] == expected


def test_many_texts_are_encoded_as_one_by_one(imported):
    tokenizer = imported.translator.tokenizers[0]
    texts = [*imported.golden["sources"], "", ">>de<< a", ">>de<<"]
    assert tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_all([]) == []


@pytest.mark.by_default("marian-separate")
def test_n_best_is_that_of_the_reference(imported):
    for search in imported.golden["searches"]:  # each with other options
        assert_same_n_best(imported.translator, imported.golden["sources"], search)


def assert_same_n_best(translator, sources, search):
    options, special = search["options"], translator.model.config.special
    beams = options["num_beams"]
    found = translator.search(
        sources,
        beam_size=beams,
        length_penalty=options["length_penalty"],
        penalty="power",
        stop=STOP[options["early_stopping"]],
        max_length=39,
        extra_length=99,
        rows=8,
        buckets=(20,),
    )
    hypotheses = [hypothesis for several in found for hypothesis in several]
    assert len(hypotheses) == len(search["ids"])
    words = translator.tokenizers[1].words
    expected = [tuple(words[i] for i in ids if i not in (special.pad, special.eos)) for ids in search["ids"]]
    assert [hypothesis.tokens for hypothesis in hypotheses] == expected
    np.testing.assert_allclose([h.score for h in hypotheses], search["scores"], atol=1e-4)
    for hypothesis, text in zip(hypotheses, search["texts"], strict=True):
        if "<unk>" not in hypothesis.tokens:  # which the reference omits from its text
            assert hypothesis.text == text


@pytest.mark.by_default("marian-renormalized")
def test_what_was_imported_goes_out_and_comes_back(imported, tmp_path):
    export_model(imported.run_dir, tmp_path / "out")
    import_model(tmp_path / "out", tmp_path / "again")
    golden, again = imported.golden, Translator.load(tmp_path / "again")
    found = logits_of(again, golden["source_ids"], golden["target_ids"])
    np.testing.assert_allclose(found[..., :-1], np.array(golden["logits"])[..., :-1], atol=1e-4)
    np.testing.assert_array_equal(found[..., -1], -1e4)  # <pad>
    before, after = (
        load_file(imported.folder / "model.safetensors"),
        load_file(tmp_path / "out/model.safetensors"),
    )
    assert set(before) <= set(after)
    for name in set(before) - {"final_logits_bias"}:
        np.testing.assert_array_equal(before[name], after[name])
    for name in ("source.spm", "target.spm"):
        assert (tmp_path / "out" / name).read_bytes() == (imported.folder / name).read_bytes()
    for name in {path.name for path in imported.folder.glob("*vocab.json")}:
        assert json.loads((tmp_path / "out" / name).read_text()) == json.loads(
            (imported.folder / name).read_text()
        )


SEARCH = {
    "penalty": "power",
    "length_penalty": 0.8,
    "stop": "present",
    "beam_size": 3,
    "repetition_penalty": 1.5,
    "no_repeat_ngram": 2,
}
TEXT = ["ein kleiner hund rennt über die wiese", "zwei frauen lesen im park", "kinder spielen ball"] * 3


@pytest.fixture(scope="module", params=["joint", "separate"])
def ours(request, tmp_path_factory, tiny, random_variables):
    joint = request.param == "joint"
    tokenizers = tuple(train_tokenizer(TEXT, "bpe", size) for size in (290, 290 if joint else 297))
    sizes = {} if joint else {"target_vocab_size": 297, "share_embeddings": "target"}
    config = tiny(vocab_size=290, norm_epsilon=1e-5, **sizes)
    run_dir = tmp_path_factory.mktemp("ours") / "run"
    whole = Config(
        model=config,
        data=DataConfig(joint_vocabulary=joint),
        decoding=BeamConfig(rows=4, buckets=(20,), suppress=(40,), max_length=19, **SEARCH),
    )
    task = Translation(whole, (tokenizers[0], tokenizers[0] if joint else tokenizers[1]))
    run = Run.create(run_dir, whole, task)
    run.checkpoints.store_model(0, random_variables(Transformer(config)))
    return run_dir


def assert_vocabularies_of_ctranslate2(folder, translator):
    """Its converter takes the target's words from vocab.json, so it needs both lists, without <pad>."""
    files = [folder / name for name in CTRANSLATE2]
    if translator.config.data.joint_vocabulary:
        assert not any(file.exists() for file in files)
        return
    for file, tokenizer in zip(files, translator.tokenizers, strict=True):
        words = json.loads(file.read_text())
        assert len(words) == translator.config.model.vocab_size - 1
        for text in TEXT:
            ids = tokenizer.encode(text)
            assert [words[index] for index in ids] == tokenizer.pieces(ids)


@pytest.mark.slow
def test_a_model_of_ours_goes_out_as_the_same_network(ours, tmp_path):
    """<bos> has its own vector here and none there: it is in the table of positions."""
    export_model(ours, tmp_path / "out")
    import_model(tmp_path / "out", tmp_path / "back")
    before, after = Translator.load(ours), Translator.load(tmp_path / "back")
    assert_vocabularies_of_ctranslate2(tmp_path / "out", after)
    logits = []
    for translator in (before, after):
        special = translator.model.config.special
        sides = [[tokenizer.encode(text) for text in TEXT[:3]] for tokenizer in translator.tokenizers]
        source, target = (
            np.array([[*ids, special.eos, *[special.pad] * 40][:40] for ids in side]) for side in sides
        )
        target = np.concatenate([np.full((3, 1), special.bos), target[:, :-1]], axis=1)
        found = logits_of(translator, source, target)
        kept = [translator.tokenizers[1].encode(word)[-1] for word in ["hund", "park", "im", "ball"]]
        logits.append(found[:, :8][..., [special.eos, special.unk, *kept]])
    np.testing.assert_allclose(logits[0], logits[1], atol=2e-5)
    assert np.std(logits[0]) > 0.5
    np.testing.assert_array_equal(load_file(tmp_path / "out/model.safetensors").get("lm_head.weight", 0), 0)


@pytest.mark.thorough
@pytest.mark.by_default("joint")
def test_an_exported_folder_has_the_search_of_the_run(ours, tmp_path):
    export_model(ours, tmp_path / "out")
    there = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    options = "length_penalty", "num_beams", "early_stopping", "max_length", "no_repeat_ngram_size"
    assert [there[name] for name in options] == [0.8, 3, False, 20, 2]
    assert there.keys().isdisjoint(
        json.loads((tmp_path / "out" / "config.json").read_text()).keys() & options
    )
    import_model(tmp_path / "out", tmp_path / "back")
    before, after = Translator.load(ours), Translator.load(tmp_path / "back")
    search = after.config.decoding
    assert {name: getattr(search, name) for name in SEARCH} == SEARCH
    assert search.max_length == 19
    suppressed = [each.tokenizers[1].pieces(each.config.decoding.suppress) for each in (before, after)]
    assert suppressed[0] == suppressed[1] != []


def test_search_options_of_the_config_count_only_without_a_file_of_their_own(folder, tmp_path):
    edit(folder / "config.json", num_beams=7)
    import_model(folder, tmp_path / "without")
    (folder / "generation_config.json").write_text('{"length_penalty": 0.5}')
    import_model(folder, tmp_path / "with")
    assert [Run(tmp_path / name).config.decoding.beam_size for name in ("without", "with")] == [7, 1]


@pytest.mark.slow
def test_commands(tmp_path, capsys):
    import_command([str(DATA / "marian"), str(tmp_path / "run")])
    export_command([str(tmp_path / "run"), str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert f"Written to {tmp_path / 'run'}" in said
    assert f"Written to {tmp_path / 'out'}" in said
    assert Translator.load(tmp_path / "run").translate(["a dog", ""], max_length=4, buckets=(20,))[1] == ""


def test_the_makers_search_is_the_default(imported):
    meant = replace(BeamConfig(), penalty="power")
    if imported.folder.name == "marian-renormalized":
        meant = replace(meant, beam_size=4, length_penalty=0.5, stop="exact", max_length=39)
    else:  # not given, so it is the default of transformers
        meant = replace(meant, beam_size=1, length_penalty=1.0, stop="present", max_length=511)
    assert imported.translator.config.decoding == meant


def test_options_of_the_search_are_honoured_or_reported(folder, capsys):
    (folder / "generation_config.json").write_text(
        json.dumps(
            {
                "num_beams": 6,
                "early_stopping": True,
                "max_new_tokens": 20,
                "max_length": 512,
                "no_repeat_ngram_size": 3,
                "repetition_penalty": 1.25,
                "encoder_repetition_penalty": 1.5,
                "min_length": 5,
                "suppress_tokens": [7, 9, 900],
                "begin_suppress_tokens": [11],
                "pad_token_id": 59,
                "bad_words_ids": [[59], [58], [8, 9]],
                "do_sample": False,
            }
        )
    )
    import_command([str(folder), str(folder.parent / "run")])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Not imported")]
    assert (
        said
        == [
            "Not imported: bad_words_ids [8, 9]: here only single tokens are suppressed by id.",
            "Not imported: encoder_repetition_penalty 1.5 has no counterpart here.",
        ][::-1]
    )
    config = Run(folder.parent / "run").config.decoding
    assert (config.beam_size, config.stop, config.max_length) == (6, "full", 20)
    assert (config.no_repeat_ngram, config.repetition_penalty, config.min_length) == (3, 1.25, 4)
    assert (config.suppress, config.suppress_first) == ((7, 9, 58), (11,))
    import_command([str(DATA / "marian"), str(folder.parent / "another")])
    assert "Not imported" not in capsys.readouterr().out


# --- bad input ---


def test_a_lost_tokenizer_is_missed(folder):
    run = import_model(folder, folder.parent / "run")
    (run.path / "target.model").unlink()
    with pytest.raises(UserError, match="target.model: the tokenizer cannot be read"):
        Translator.load(run.path)


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(DATA / "marian", tmp_path / "marian"))


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without(name):
    return lambda folder: (folder / name).unlink()


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def tensors_changed(change):
    def apply(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


DAMAGE = {
    "config.json: no such file": without("config.json"),
    "vocab.json: no such file": without("vocab.json"),
    "target.spm cannot be read": without("target.spm"),
    "model.safetensors: no such file; the folder of a model": without("model.safetensors"),
    "is a pickle": pickled,
    "model.safetensors cannot be read": lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 99),
    "not a SentencePiece model": lambda f: (f / "source.spm").write_bytes(b"{}"),
    "config.json cannot be read": lambda f: (f / "config.json").write_text("[" * 9),
    "not a JSON object": lambda f: (f / "vocab.json").write_text("[]"),
    "model_type is 'bert2'": lambda f: edit(f / "config.json", model_type="bert2"),
    "d_model is null, not a whole number": lambda f: edit(f / "config.json", d_model=None),
    "activation_function 'tanh'": lambda f: edit(f / "config.json", activation_function="tanh"),
    "--model.num-layers must be": lambda f: edit(f / "config.json", encoder_layers=10**12),
    "the description means": lambda f: edit(f / "config.json", encoder_ffn_dim=8, decoder_ffn_dim=8),
    "eos_token_id is [0, 1], not an id below 60": lambda f: edit(f / "config.json", eos_token_id=[0, 1]),
    "decoder_start_token_id is None": lambda f: edit(f / "config.json", decoder_start_token_id=None),
    "pad_token_id is 60, not an id": lambda f: edit(f / "config.json", pad_token_id=60),
    "num_beams is 'a', not a whole number": lambda f: edit(f / "config.json", num_beams="a"),
    "early_stopping is 'soon'": lambda f: edit(f / "config.json", early_stopping="soon"),
    "early_stopping is ['x']": lambda f: edit(f / "config.json", early_stopping=["x"]),
    "the id of '</s>' is -5": lambda f: edit(f / "vocab.json", **{"</s>": -5}),
    "have the same id 3": lambda f: edit(f / "vocab.json", again=3),
    "</s> is 2, and 0 in config.json": lambda f: edit(
        f / "vocab.json", **{"</s>": 2, list(json.loads((f / "vocab.json").read_text()))[2]: 0}
    ),
    "has no <unk>": lambda f: edit(f / "vocab.json", **{"<unk>": None}),
    "no tensor model.decoder.layers.0.fc1.weight": tensors_changed(
        lambda x: x.pop("model.decoder.layers.0.fc1.weight")
    ),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_folders_are_refused_whole(folder, message):
    DAMAGE[message](folder)
    with pytest.raises(UserError) as caught:
        import_model(folder, folder.parent / "run")
    assert message in str(caught.value)
    assert "marian" in str(caught.value)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["marian"]


def test_what_marian_cannot_have_is_not_exported(tmp_path, tiny):
    texts = train_tokenizer(TEXT, "bpe", 290)
    words = train_tokenizer(TEXT, "word", 290)
    models = {
        "nearest family, marian, has no --model.norm pre and no --model.positions learned$": (
            tiny(vocab_size=290, norm="pre", positions="learned"),
            texts,
        ),
        "no --model.d-k 3": (tiny(vocab_size=290, d_k=3), texts),
        "no --model.encoder-stack.gated": (
            tiny(vocab_size=290, encoder_stack=EncoderConfig(gated=True)),
            texts,
        ),
        "neither SentencePiece's nor": (tiny(vocab_size=words.vocab_size), words),
    }
    for number, (message, (model, tokenizer)) in enumerate(models.items()):
        config = Config(model=model)
        Run.create(tmp_path / str(number), config, Translation(config, (tokenizer, tokenizer)))
        with pytest.raises(UserError, match=message):
            export_model(tmp_path / str(number), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_not_imported_yet_says_how(folder):
    for use in (lambda: Translator.load(folder), lambda: export_model(folder, folder.parent / "out")):
        with pytest.raises(UserError, match="import it first with .* import .* RUN"):
            use()


def test_nothing_is_overwritten(imported, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(UserError, match="exists"):
        import_model(imported.folder, tmp_path / "there")
    with pytest.raises(UserError, match="exists"):
        export_model(imported.run_dir, tmp_path / "there")


def test_the_config_type_is_the_transformers(imported):
    model = imported.translator.config.model
    assert isinstance(model, TransformerConfig)
    described = json.loads((imported.folder / "config.json").read_text())
    assert (model.num_layers, model.decoder_depth) == (
        described["encoder_layers"],
        described["decoder_layers"],
    )
