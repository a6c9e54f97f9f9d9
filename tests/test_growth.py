"""Words and languages that are added to the vocabulary of a model."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from small_run import changed, interrupted, quiet, same, small_config
from tiers import mostly_slow

from transformer import Config, GreedyConfig, Run, SpecialIds, Translator, UserError, train
from transformer.config.methods import AdapterConfig
from transformer.data.tokenizers.trained import (
    first_new,
    load_tokenizer,
    read_words,
    replaced,
    train_tokenizer,
)
from transformer.interop.folders.pieces import read_pieces
from transformer.interop.pretrained import detect, export_model, import_model
from transformer.model.declarations import vocabulary_axes
from transformer.model.parameters import Declared
from transformer.systems.parameters import declared_parameters, model_shapes, with_any_sizes
from transformer.systems.registry import REGISTRY, find_system, options_of
from transformer.trainer.starts import with_added_rows

DATA = Path(__file__).parent / "data"
WORDS = ["Blorb", "caféx", "東京"]
TEXT = ["the cat sat on the mat", "a dog, and (two) cats.", "der Hund schläft  nicht", "x"]
GROWN = ["the Blorb sat", "Blorb, caféx and caféx", "東京 (Blorb) x", "Blorb"]


# --- tokenizers ---


def trained_tokenizers():
    for kind in ("unigram", "bpe", "char", "word", "whitespace"):
        yield kind, train_tokenizer([*TEXT * 40, "Bob lor brc fexaé"] * 3, kind, 292)


def imported_tokenizers():
    for folder in ("bart", "m2m", "mbart", "nllb", "pegasus", "t5"):
        special = SpecialIds(1, 0, 2, 3)
        path = DATA / "tokenizers" / folder
        yield folder, read_pieces(path, detect(path).older).tokenizer(400, special, ())


ALL = {**dict(trained_tokenizers()), **dict(imported_tokenizers())}


@pytest.mark.parametrize("kind", ALL)
def test_old_texts_keep_their_ids_and_new_words_are_one_token(kind, tmp_path):
    old = ALL[kind]
    words = WORDS if kind not in ("word",) else WORDS[:2]
    new = old.grown(words, ())
    first = first_new(old, new)
    assert [new.encode(text) for text in TEXT] == [old.encode(text) for text in TEXT]
    assert [new.decode(old.encode(text)) for text in TEXT] == [old.decode(old.encode(text)) for text in TEXT]
    for index, word in enumerate(words, first):
        assert index in new.encode(f"the {word} sat")
        assert new.stored_pieces([index]) == [word]
    assert new.stored_pieces(range(first)) == old.stored_pieces(range(first))
    new.save(tmp_path / "file")
    again = load_tokenizer(tmp_path / "file", new.special)
    assert [again.encode(text) for text in GROWN] == [new.encode(text) for text in GROWN]


@pytest.mark.parametrize("kind", ALL)
def test_spaces_around_added_words(kind):
    """Text is decoded as it was, as far as the vocabulary spells it otherwise."""
    words = WORDS if kind != "word" else WORDS[:2]
    new = ALL[kind].grown(words, ())
    for word in words:
        text = f"the {word} sat"
        assert new.decode(new.encode(text)).strip() == text
        text = f"{word} {word}"
        assert new.decode(new.encode(text)).strip() == text


def test_merges_do_not_cross_an_added_word():
    """BPE-dropout of a text with added words keeps these whole, and the text."""
    new = ALL["bpe"].grown(WORDS, ())
    added = range(first_new(ALL["bpe"], new), new.vocab_size)
    random = np.random.default_rng(0)
    for text in GROWN:
        best = [index for index in new.encode(text) if index in added]
        for strength in (0.1, 1.0):
            ids = new.sample(text, random, strength)
            assert [index for index in ids if index in added] == best
            assert new.decode(ids) == text
    plain = [ALL["bpe"].sample(text, np.random.default_rng(1), 0.5) for text in TEXT]
    assert [new.sample(text, np.random.default_rng(1), 0.5) for text in TEXT] == plain


def test_what_an_added_id_replaces():
    old = ALL["nllb"].in_language(None, "--source-language")
    new = old.grown(["Hundhund"], ["fao_Latn"])
    word, code = replaced(old, new, first_new(old, new))
    assert word == old.encode("Hundhund")
    assert code == sorted(old.codes.values())
    assert new.codes == {**old.codes, "fao_Latn": first_new(old, new) + 1}
    assert new.in_language("fao_Latn", "").encode("the") == [new.codes["fao_Latn"], *old.encode("the")]


def test_a_language_is_written_as_the_others_are():
    old = ALL["m2m"].in_language(None, "--source-language")
    new = old.grown(["Blorb"], ["fo"])
    assert new.codes["fo"] == new.vocab_size - 1
    assert new.stored_pieces([new.vocab_size - 1]) == ["__fo__"]
    assert new.decode([new.codes["fo"], *new.encode("the Blorb")]) == "the Blorb"


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char", "word", "whitespace"])
def test_vocabularies_made_here_keep_their_codes(kind, tmp_path):
    """With words, and where codes need not come first, with another language."""
    old = train_tokenizer([*TEXT * 40, "Bob lor brc fexaé"] * 3, kind, 294, SpecialIds(), ["en", "de"])
    is_subword = kind in ("unigram", "bpe", "char")
    if not is_subword:
        with pytest.raises(UserError, match="codes come before the words; train one for all languages"):
            old.grown([], ["pt-br"])
    new = old.grown(["Blorb"], ["pt-br"] if is_subword else [])
    new.save(tmp_path / "file")
    for tokenizer in (new, load_tokenizer(tmp_path / "file", new.special)):
        first = first_new(old, tokenizer)
        assert first == old.vocab_size
        assert tokenizer.stored_pieces(range(first)) == old.stored_pieces(range(first))
        assert tokenizer.codes == {**old.codes, **({"pt-br": first + 1} if is_subword else {})}
        assert tokenizer.encode("the Blorb sat").count(first) == 1
        in_german = tokenizer.in_language("de", "--target-language")
        assert in_german.encode("the cat") == [old.codes["de"], *old.encode("the cat")]
    if is_subword:
        assert first + 1 not in new.encode("__pt-br__ pt-br")
        assert new.decode([first + 1, *new.encode("the Blorb")]) == "the Blorb"
        assert replaced(old, new, first)[1] == sorted(old.codes.values())


# --- parameters ---


def test_rows_of_added_words_are_means():
    """As a loop computes them, whichever axis has the vocabulary; all other rows keep their bits."""
    random = np.random.default_rng(2)
    params = {
        "in": {"table": random.normal(size=(7, 4)).astype(np.float32)},
        "out": {"kernel": random.normal(size=(4, 7)).astype(np.float32)},
        "bias": random.normal(size=7).astype(np.float32),
        "other": random.normal(size=(7, 7)).astype(np.float32),
    }
    names = {
        ("in", "table"): ("vocabulary", "model"),
        ("out", "kernel"): ("model", "vocabulary"),
        ("bias",): ("vocabulary",),
        ("other",): ("positions", "model"),
    }
    declared = {path: Declared(None, axes) for path, axes in names.items()}
    pieces = [[0, 3], [1], [2, 2, 5]]
    for first in (5, 7):
        found = flatten_dict(with_added_rows(jax.tree.map(jnp.asarray, params), declared, first, pieces))
        for path, before in flatten_dict(params).items():
            if "vocabulary" not in names[path]:
                np.testing.assert_array_equal(found[path], before)
                continue
            axis = names[path].index("vocabulary")
            after, before = np.moveaxis(np.asarray(found[path]), axis, 0), np.moveaxis(before, axis, 0)
            assert len(after) == max(7, first + 3)
            np.testing.assert_array_equal(after[:first], before[:first])
            for row, ids in zip(after[first:], pieces, strict=False):
                np.testing.assert_allclose(row, sum(before[i] for i in ids) / len(ids), rtol=1e-6)


@pytest.mark.by_default("all-tagging")
@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - {"detection"}))  # it counts classes, not words
@pytest.mark.parametrize("shared", ["all", "none"])
def test_each_axis_of_the_vocabulary_is_declared(name, shared):
    """A parameter has it where its shape changes with the size of the vocabulary."""
    options, system = options_of(name), find_system(name)
    config = with_any_sizes(Config(system=name, model=options.model(), data=options.data()))
    fields = {"vocab_size": 40, "target_vocab_size": None, "output_bias": True, "share_embeddings": shared}
    fields = {field: value for field, value in fields.items() if field not in config.model.NOT_USED}
    try:
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, **fields))
    except UserError as error:
        pytest.skip(str(error))
    larger = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=47))
    before, after = (flatten_dict(model_shapes(system, x)["params"]) for x in (config, larger))
    changes = {
        path: axis
        for path, leaf in before.items()
        for axis, sizes in enumerate(zip(leaf.shape, after[path].shape, strict=True))
        if sizes[0] != sizes[1]
    }
    assert changes
    assert changes == vocabulary_axes(declared_parameters(system, config))


# --- runs ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("growth")
    (folder / "words.txt").write_text("violet\nhums\n")
    return folder


@pytest.fixture(scope="module")
def config(short_config):
    return changed(short_config, steps=8, evaluate_every=4)


@pytest.fixture(scope="module")
def base(folder, finished):
    return Run(shutil.copytree(finished, folder / "base"))


@pytest.fixture(scope="module")
def text(folder):
    """Pairs with the new words."""
    words = ["violet", "hums", "red", "cat", "bird", "runs"]
    random = np.random.default_rng(4)
    lines = [random.choice(words, size=random.integers(2, 6)) for _ in range(120)]
    (folder / "new.in").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / "new.out").write_text("".join(" ".join(line[::-1]) + "\n" for line in lines))
    return {"train_source": folder / "new.in", "train_target": folder / "new.out"}


def growing(config, base, folder, text, adapter=0, **training):
    data = dataclasses.replace(config.data, add_tokens=folder / "words.txt", **text)
    config = dataclasses.replace(config, data=data, adapter=AdapterConfig(rank=adapter))
    return changed(config, init_from=base.path, **training)


def leaves(variables):
    return {".".join(path): np.asarray(x) for path, x in flatten_dict(variables["params"]).items()}


def still(config):
    config = changed(config, steps=1, evaluate_every=1)
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, peak=0.0))


@pytest.mark.slow
def test_before_training_old_words_have_the_logits_that_they_had(folder, config, base, text, tmp_path):
    train(still(growing(config, base, folder, text)), tmp_path / "run", watch=quiet())
    run = Run(tmp_path / "run")
    old, size = base.config.model, base.config.model.vocab_size
    assert run.config.model == dataclasses.replace(old, vocab_size=size + 2)
    assert run.config.data.first_added == size
    before, after = base.variables("best"), run.variables("last")
    for name, values in leaves(before).items():
        np.testing.assert_array_equal(leaves(after)[name][: len(values)], values)
    unk = leaves(before)["source_embedding.table"][3]
    np.testing.assert_array_equal(leaves(after)["source_embedding.table"][size:], [unk, unk])
    source = jnp.array([base.task.tokenizers[0].encode("red cat runs")])
    assert run.task.tokenizers[0].encode("red cat runs") == source[0].tolist()
    logits = [
        np.asarray(of.system.model(of.config.model).apply(variables, source, source))
        for of, variables in ((base, before), (run, after))
    ]
    np.testing.assert_array_equal(logits[1][..., :size], logits[0])


@pytest.mark.slow
def test_it_learns_the_words(folder, config, base, text, tmp_path):
    train(growing(config, base, folder, text, steps=60, evaluate_every=60), tmp_path / "run", watch=quiet())
    run = Run(tmp_path / "run")
    ids = run.task.tokenizers[0].encode("violet bird hums")
    assert max(ids) == run.config.model.vocab_size - 1
    assert run.task.tokenizers[1].decode(ids) == "violet bird hums"
    assert "violet" in Translator.load(tmp_path / "run").translate("violet violet violet")


@pytest.mark.slow
@pytest.mark.parametrize("what", mostly_slow(["all", "frozen", "adapter"], ["adapter"]))
def test_stop_and_resume_without_the_file(what, folder, config, base, text, tmp_path):
    shutil.copy(folder / "words.txt", tmp_path)
    shutil.copytree(base.path, tmp_path / base.path.name)  # where the tested runs look for it
    grown = growing(
        changed(config, ema=0.9),
        base,
        tmp_path,
        text,
        adapter=2 if what == "adapter" else 0,
        freeze=("*",) if what == "frozen" else (),
    )
    train(grown, tmp_path / "whole", watch=quiet())
    (tmp_path / "words.txt").unlink()
    interrupted(tmp_path / "whole", tmp_path / "run")
    train(grown, tmp_path / "run", watch=quiet())
    assert same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["frozen", "adapter"])
def test_only_new_rows_of_a_frozen_table_are_trained(what, folder, config, base, text, tmp_path):
    options = {"adapter": 2} if what == "adapter" else {"freeze": ("*",)}
    shutil.copytree(base.path, tmp_path / base.path.name)  # where the tested runs look for it
    train(growing(config, base, folder, text, **options), tmp_path / "run", watch=quiet())
    run, size = Run(tmp_path / "run"), base.config.model.vocab_size
    before, after = (
        leaves(each)["source_embedding.table"] for each in (base.variables("best"), run.variables("last"))
    )
    np.testing.assert_array_equal(after[:size], before)
    assert (after[size:] != before[3]).any(axis=1).all()
    if what == "frozen":
        return
    alone = Translator.load(run.path)
    both = Translator.load(base.path, adapter=run.path)
    adapted = Translator.load(base.path).adapted(run.path)
    sentences = ["red cat runs", "violet hums"]
    assert alone.translate(sentences) == both.translate(sentences) == adapted.translate(sentences)
    stored = json.loads((run.path / "checkpoints/8/model/_METADATA").read_text())["tree_metadata"]
    assert any("source_embedding" in name for name in stored)
    assert run.config.adapter.base_hash is not None


@pytest.mark.slow
def test_a_grown_model_grows_again(folder, config, base, text, tmp_path):
    train(still(growing(config, base, folder, text)), tmp_path / "first", watch=quiet())
    (tmp_path / "words.txt").write_text("wombat\n")
    parent = Run(tmp_path / "first")
    train(still(growing(config, parent, tmp_path, text)), tmp_path / "second", watch=quiet())
    run = Run(tmp_path / "second")
    assert run.config.data.first_added == parent.config.model.vocab_size
    ids = run.task.tokenizers[0].encode("violet wombat")
    assert ids == [parent.task.tokenizers[0].encode("violet")[0], run.config.model.vocab_size - 1]


# --- imported models ---


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(["nllb", "mbart", "t5", "bart"], ["nllb", "t5"]))
def test_an_export_carries_words_and_languages(name, tmp_path):
    """It is imported again as the same model, with the same ids."""
    base = import_model(DATA / "pretrained" / name, tmp_path / "base")
    small = small_config(tmp_path)
    (tmp_path / "words.txt").write_text("Blorb\ncaféx\n")
    data = {
        "joint_vocabulary": True,
        "max_length": 16,
        "buckets": (16,),
        "add_tokens": tmp_path / "words.txt",
    }
    languages = {}
    if base.task.tokenizers[0].has_codes:
        languages = {
            "source_language": next(iter(base.task.tokenizers[0].codes)),
            "target_language": "fao_Latn",
        }
        data |= {"add_language": ("fao_Latn",), **languages}
    config = dataclasses.replace(
        changed(small, init_from=base.path, steps=2, evaluate_every=2),
        model=base.config.model,
        data=dataclasses.replace(small.data, **data),
        decoding=GreedyConfig(buckets=(16,), rows=4, extra_length=4),
    )
    train(config, tmp_path / "run", watch=quiet())
    run = Run(tmp_path / "run")
    export_model(run.path, tmp_path / "exported")
    again = import_model(tmp_path / "exported", tmp_path / "again", **languages)
    for path, table in leaves(run.variables("best")).items():  # T5 stores queries with another scale
        rtol = 2e-7 if name == "t5" and "query" in path else 0
        np.testing.assert_allclose(leaves(again.variables("best"))[path], table, rtol=rtol, err_msg=path)
    first = run.config.data.first_added
    for text in ("a Blorb reads", "two caféx near the Blorb"):
        ids = run.task.tokenizers[0].encode(text)
        assert first in ids
        assert again.task.tokenizers[0].encode(text) == ids
        assert run.task.tokenizers[0].decode(ids) == text
    if languages:
        before = leaves(base.variables("best"))["source_embedding.table"]
        codes = list(base.task.tokenizers[0].codes.values())
        still_run = train(still(config), tmp_path / "still", watch=quiet())
        rows = leaves(Run(still_run).variables("last"))["source_embedding.table"]
        np.testing.assert_allclose(rows[first + 2], before[codes].mean(0), rtol=1e-6)
        np.testing.assert_array_equal(rows[:first], before[:first])


# --- refusals ---


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"words\.txt: the file cannot be read: No such file"),
        ("", "the file is empty: write one word on each line"),
        ("violet\n\nhums\n", "line 2 is empty: write one word on each line"),
        ("violet\nhums\nviolet\n", "line 3: 'violet' is on line 1 too; remove one"),
        ("blue violet\n", "line 1: 'blue violet' has a space"),
        ("violet\nred\n", "'red' is in the vocabulary already; leave it out"),
        ("violet\n</s>\n", "'</s>' is in the vocabulary already; leave it out"),
        (b"\xff\n", "the file is not text in UTF-8"),
        ("violet\nhu\0ms\n", r"line 2: 'hu\\x00ms' has a control character; remove it"),
        ("hu\x1bms\n", r"line 1: 'hu\\x1bms' has a control character; remove it"),
    ],
)
def test_files_with_mistakes(content, message, config, base, text, tmp_path):
    if content is not None:
        (tmp_path / "words.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        train(growing(config, base, tmp_path, text), tmp_path / "run", watch=quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "language", "message"),
    [
        ("nllb", "eng_Latn", r"--data\.add-language eng_Latn: there is such a language already"),
        ("nllb", "faroese", r"faroese: this is not the code of a language, such as .*eng_Latn"),
        ("m2m", "fao_Latn", "fao_Latn: this is not the code of a language"),
        ("unigram", "fao_Latn", "texts of this model begin with no code of a language; leave it out"),
    ],
)
def test_languages_that_cannot_be_added(kind, language, message):
    old = ALL[kind] if kind == "unigram" else ALL[kind].in_language(None, "--source-language")
    with pytest.raises(UserError, match=message):
        old.grown([], [language])


def test_words_that_cannot_be_added():
    with pytest.raises(UserError, match="'a-東' is no token of a word vocabulary, which divides it"):
        ALL["word"].grown(["a-東"], [])
    characters = train_tokenizer(TEXT, "character", 99)
    with pytest.raises(UserError, match="'Blorb' is no token of a character vocabulary"):
        characters.grown(["Blorb"], [])


def test_options_without_a_model(folder, config, base, text, tmp_path):
    for changes in ({"add_tokens": folder / "words.txt"}, {"add_language": ("fao_Latn",)}):
        data = dataclasses.replace(config.data, **changes)
        with pytest.raises(UserError, match=r"--data\.add-.* needs --init-from RUN"):
            train(dataclasses.replace(config, data=data), tmp_path / "run", watch=quiet())
    grown = growing(config, base, folder, text)
    data = dataclasses.replace(grown.data, first_added=3)
    with pytest.raises(UserError, match=r"--data\.first-added 3: it is decided when a run begins"):
        train(dataclasses.replace(grown, data=data), tmp_path / "run", watch=quiet())
    assert not (tmp_path / "run").exists()


def test_separate_vocabularies_are_refused(folder, config, text, tmp_path):
    base = import_model(DATA / "marian-separate", tmp_path / "base")
    grown = growing(config, base, folder, text)
    data = dataclasses.replace(grown.data, joint_vocabulary=False, max_length=8)
    grown = dataclasses.replace(grown, model=base.config.model, data=data)
    with pytest.raises(UserError, match="this model has a vocabulary for each side"):
        train(grown, tmp_path / "run", watch=quiet())


@pytest.mark.slow
def test_words_of_a_file(tmp_path):
    (tmp_path / "words.txt").write_bytes("\ufeffBlorb\r\ncaféx".encode())
    assert read_words(tmp_path / "words.txt") == ["Blorb", "caféx"]
