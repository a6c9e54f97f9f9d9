"""Beam search here, in CTranslate2 and in Hugging Face: the same weights, sentences and search options.

`python -m benchmarks.speed.decoding [batch] [sentence] [file] [start]`, on a CPU: 48 sentences at once, one
sentence, a file of 1,000 by whole processes, and the time to start. The model is trained here and exported
with `export_model`. All programs divide by |Y|^alpha and stop when the number of complete hypotheses is the
beam size, as CTranslate2 does.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import inspect
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.command import positive, run
from benchmarks.measure import Contestant, script, side_by_side
from benchmarks.speed.peers import Row, Section, compare, processes, rows_of
from transformer.runtime.files import write_whole

if TYPE_CHECKING:
    from transformer import Config

BEAM, ALPHA, LONGEST = 4, 1.0, 100
AGREE = 0.9  # of the sentences; the others may differ because float32 sums have another order
WRITTEN = ("ours.txt", "ours-int8.txt", "theirs.txt")  # by whole processes
QUICK: dict[str, Any] = {"num_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 2}
"""Sizes of a network to test that a benchmark runs."""
Said = list[list[str]]
"""The subwords of the best translation of every sentence."""


def model(
    folder: Path, run_dir: Path | None, steps: int, quick: bool = False, vocab_size: int | None = None
) -> Path:
    """A run with a 6+6-layer network of width 512: the given one, or one trained on the built-in corpus just
    long enough to end its sentences. With `quick`, a small network after two updates. The corpus has words
    for a vocabulary of 2,000; up to `vocab_size`, subwords that never occur are added."""
    from transformer import PRESETS, BeamConfig, OptimizerConfig, TransformerConfig, train

    if run_dir:
        return run_dir
    preset = PRESETS["quickstart"]
    every = max(1, steps // 4)
    config = replace(
        preset,
        model=TransformerConfig(norm_epsilon=1e-5),
        data=replace(preset.data, vocab_size=2000, batch_tokens=1024),
        optimizer=OptimizerConfig(schedule="inverse_sqrt", peak=5e-4, warmup_steps=200),
        training=replace(preset.training, steps=steps, evaluate_every=every, label_smoothing=0.1),
        decoding=BeamConfig(extra_length=10),
    )
    if quick:
        small = replace(config.model, **QUICK)
        config = replace(config, model=small, training=replace(config.training, steps=2, evaluate_every=2))
    name = "quick" if quick else f"built-in-{steps}"
    if vocab_size:
        tokenizer, name = folder / f"{vocab_size}.spm", f"{name}-{vocab_size}"
        write_whole(tokenizer, enlarged(config, vocab_size))
        config = replace(config, data=replace(config.data, source_tokenizer=tokenizer))
    return train(config, folder / name)


def enlarged(config: "Config", vocab_size: int) -> bytes:
    """The SentencePiece model of a config, with subwords that never occur."""
    from sentencepiece import sentencepiece_model_pb2

    from transformer.data.sources.corpora import open_corpus
    from transformer.data.tokenizers.lossless import train_sentencepiece

    data = config.data
    lines = (text for pair in open_corpus(data).splits["train"] for text in pair)
    content = train_sentencepiece(lines, data.tokenizer, data.vocab_size, config.model.special)
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    for number in range(len(model.pieces), vocab_size):
        model.pieces.add(piece=f"<never {number}>", score=-1e4, type=model.SentencePiece.UNUSED)
    model.trainer_spec.vocab_size = vocab_size
    return model.SerializeToString()


def newest(run_dir: Path) -> float:
    """The time at which its last checkpoint was written."""
    return max(path.stat().st_mtime for path in (run_dir / "checkpoints").iterdir())


def exported(folder: Path, run_dir: Path, convert: bool = True) -> tuple[Path, Path]:
    """The folders of the model in the formats of Hugging Face and, to `convert`, of CTranslate2."""
    from transformer.interop.pretrained import export_model

    hugging_face, converted = folder / f"{run_dir.name}-marian", folder / f"{run_dir.name}-ctranslate2"
    if not (hugging_face.exists() and hugging_face.stat().st_mtime > newest(run_dir)):
        for old in (hugging_face, converted):
            shutil.rmtree(old, ignore_errors=True)
        export_model(run_dir, hugging_face)
    if convert and not converted.exists():
        import ctranslate2

        ctranslate2.converters.TransformersConverter(str(hugging_face)).convert(str(converted))
    return hugging_face, converted


def ours(
    run_dir: Path, sources: list[str], dtype: str = "float32", int8: bool = False, **options: Any
) -> Callable[[], Said]:
    """`Translator.search`."""
    import jax

    from transformer import Translator

    loaded = Translator.load(run_dir, int8=int8)
    variables = jax.tree.map(
        lambda x: x.astype(dtype) if x.ndim > 1 and x.dtype == "float32" else x, loaded.variables
    )
    config = replace(loaded.config, model=replace(loaded.config.model, dtype=dtype))
    translator = Translator(config, variables, loaded.tokenizers)
    rule = {"penalty": "power", "length_penalty": ALPHA, "stop": "full", "max_length": LONGEST}
    rule |= {"beam_size": BEAM, "extra_length": LONGEST, **options}
    return lambda: [list(several[0].tokens) for several in translator.search(sources, n_best=1, **rule)]


def ctranslate(
    converted: Path,
    hugging_face: Path,
    sources: list[str],
    inter: int,
    intra: int,
    kind: str,
    device: str = "cpu",
    batch: int | None = None,
) -> Callable[[], Said]:
    """`translate_batch`: so many sentences at once, or the whole batch divided among the workers."""
    import ctranslate2

    if device == "cuda":
        load_cublas()
    pieces = _pieces(hugging_face, sources)
    translator = ctranslate2.Translator(
        str(converted), device=device, inter_threads=inter, intra_threads=intra, compute_type=kind
    )
    share = batch or (-(-len(pieces) // inter) if inter > 1 else 0)

    def run() -> Said:
        found = translator.translate_batch(
            pieces,
            beam_size=BEAM,
            length_penalty=ALPHA,
            max_decoding_length=LONGEST,
            max_batch_size=share,
        )
        return [result.hypotheses[0] for result in found]

    return run


def load_cublas() -> None:
    """Loads CUDA 12's cuBLAS, which CTranslate2 opens by this name, from the system or from its package.

    Raises:
      OSError: it is in neither.
    """
    name = "libcublas.so.12"
    try:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        with contextlib.suppress(ModuleNotFoundError):
            package = importlib.util.find_spec("nvidia.cublas")
            for folder in (package and package.submodule_search_locations) or ():
                if (library := Path(folder) / "lib" / name).exists():
                    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
                    return
        raise


def hugging_face_generate(
    hugging_face: Path,
    sources: list[str],
    device: str = "cpu",
    dtype: str = "float32",
    batch: int | None = None,
) -> Callable[[], Said]:
    """`generate`: so many sentences of similar length at once, or all in one batch."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(hugging_face)
    network = MarianMTModel.from_pretrained(hugging_face, dtype=getattr(torch, dtype)).eval().to(device)
    size = batch or len(sources)
    lengths = [len(ids) for ids in tokenizer(sources)["input_ids"]]
    order = sorted(range(len(sources)), key=lengths.__getitem__)
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    inputs = [
        tokenizer([sources[index] for index in chunk], return_tensors="pt", padding=True).to(device)
        for chunk in chunks
    ]
    options = {"num_beams": BEAM, "length_penalty": ALPHA, "early_stopping": True, "max_length": LONGEST + 1}
    special = set(tokenizer.all_special_tokens) - {"<unk>"}

    def run() -> Said:
        outputs: Said = [[]] * len(sources)
        for chunk, each in zip(chunks, inputs, strict=True):
            with torch.no_grad():
                rows = network.generate(**each, **options).tolist()
            for index, row in zip(chunk, rows, strict=True):
                pieces = tokenizer.convert_ids_to_tokens(row)
                outputs[index] = [piece for piece in pieces if piece not in special]
        return outputs

    return run


def _pieces(hugging_face: Path, sources: list[str]) -> Said:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(hugging_face / "source.spm"))
    return [[*processor.encode(source, out_type=str), "</s>"] for source in sources]


def contestants(run_dir: Path, folder: Path, sources: list[str]) -> list[Contestant]:
    """Ours and CTranslate2 in float32 and int8 (CTranslate2 using two cores in both ways), Hugging Face."""
    hugging_face, converted = exported(folder, run_dir)
    here = {"run_dir": run_dir, "sources": sources}
    there = {"converted": converted, "hugging_face": hugging_face, "sources": sources}
    return [
        Contestant("transformer", ours, here),
        Contestant("transformer int8", ours, {**here, "int8": True}),
        *(
            Contestant(f"CTranslate2 {kind}, {inter} x {intra}", ctranslate, options)
            for kind in ("float32", "int8")
            for inter, intra in ((1, 2), (2, 1))
            for options in [{**there, "inter": inter, "intra": intra, "kind": kind}]
        ),
        Contestant("Hugging Face", hugging_face_generate, {"hugging_face": hugging_face, "sources": sources}),
    ]


def contestants_in_batches(
    run_dir: Path, folder: Path, sources: list[str], batch: int, device: str, without: Sequence[str] = ()
) -> list[Contestant]:
    """Ours in bfloat16, CTranslate2 and Hugging Face in float16 (on a CPU in float32).

    Args:
      run_dir: the model.
      folder: for the exported models.
      sources: sentences, in any number.
      batch: how many are searched at once.
      device: "cuda" or "cpu".
      without: "ctranslate2", "transformers": programs to leave out.
    """
    half = "float16" if device == "cuda" else "float32"
    here = {"run_dir": run_dir, "sources": sources, "dtype": "bfloat16", "rows": batch}
    found = [Contestant("transformer bfloat16", ours, here)]
    if {"ctranslate2", "transformers"} <= set(without):
        return found
    hugging_face, converted = exported(folder, run_dir, convert="ctranslate2" not in without)
    there = {"hugging_face": hugging_face, "sources": sources, "batch": batch, "device": device}
    if "ctranslate2" not in without:
        threads = {"converted": converted, "inter": 1, "intra": 0, "kind": half}
        found.append(Contestant(f"CTranslate2 {half}", ctranslate, there | threads))
    if "transformers" not in without:
        found.append(Contestant(f"Hugging Face {half}", hugging_face_generate, there | {"dtype": half}))
    return found


def agreement(one: Said, other: Said) -> float:
    """The share of sentences with identical translations, subword by subword."""
    return sum(ours == theirs for ours, theirs in zip(one, other, strict=True)) / max(len(one), 1)


def translate_file(job: str) -> None:
    """Translates a file with CTranslate2 as in its documentation. The source of this function is a whole
    program, so that no other import counts as its time. `job` is JSON."""
    import json
    from pathlib import Path

    import ctranslate2
    import sentencepiece

    *paths, beam, alpha, longest = json.loads(job)
    converted, spm_folder, source, output = map(Path, paths)
    cut = sentencepiece.SentencePieceProcessor(model_file=str(spm_folder / "source.spm"))
    join = sentencepiece.SentencePieceProcessor(model_file=str(spm_folder / "target.spm"))
    lines = source.read_text(encoding="utf-8").splitlines()
    translator = ctranslate2.Translator(str(converted), device="cpu", inter_threads=2, intra_threads=1)
    found = translator.translate_batch(
        [[*pieces, "</s>"] for pieces in cut.encode(lines, out_type=str)],
        beam_size=beam,
        length_penalty=alpha,
        max_decoding_length=longest,
        max_batch_size=32,
    )
    texts = (join.decode_pieces(result.hypotheses[0]) for result in found)
    output.write_text("".join(text + "\n" for text in texts), encoding="utf-8")


def whole_process(run_dir: Path, folder: Path, sources: list[str]) -> dict[str, list[str]]:
    """The command lines that translate a file from start to end: ours, and CTranslate2's in Python."""
    hugging_face, converted = exported(folder, run_dir)
    text = folder / "sources.txt"
    text.write_text("".join(line + "\n" for line in sources), encoding="utf-8")
    rule = ["--penalty", "power", "--length-penalty", str(ALPHA), "--stop", "full", "--beam-size", str(BEAM)]
    rule += ["--max-length", str(LONGEST), "--extra-length", str(LONGEST)]
    decode = script("decode.py", run_dir, "--input", text, *rule, "--output")
    ours, rounded, theirs = (str(folder / name) for name in WRITTEN)
    program = inspect.getsource(translate_file)
    job = json.dumps([str(converted), str(hugging_face), str(text), theirs, BEAM, ALPHA, LONGEST])
    return {
        "decode.py": [*decode, ours],
        "decode.py --int8": [*decode, rounded, "--int8"],
        "CTranslate2": [sys.executable, "-c", f"{program}\ntranslate_file({job!r})"],
    }


def prepared(given: argparse.Namespace, count: int) -> tuple[Path, list[str]]:
    """The run to decode with, and sentences of its test set."""
    from benchmarks.runs import sentences  # imports JAX, which would count as memory of the peers

    given.work.mkdir(parents=True, exist_ok=True)
    run_dir = model(given.work, given.model, given.steps, given.quick)
    return run_dir, sentences(run_dir, count)


def at_once(count: int, name: str, given: argparse.Namespace) -> list[Row]:
    """Beam search over `count` sentences at once."""
    run_dir, sources = prepared(given, count)
    measured = side_by_side(contestants(run_dir, given.work, sources), given.rounds)
    shares = [agreement(measured[0].output, m.output) for m in measured]
    for each, share in zip(measured, shares, strict=True):
        if share < AGREE and "int8" not in each.name:
            print(f"note: {each.name} has only {share:.0%} of the translations in common", file=sys.stderr)
    return rows_of(name, measured, len(sources), "sentences/s", shares)


def whole_file(given: argparse.Namespace) -> list[Row]:
    """1,000 sentences, by whole processes from start to end."""
    run_dir, sources = prepared(given, 1000)
    commands = whole_process(run_dir, given.work, sources)
    rows = processes("file of 1,000, whole process", commands, given.rounds)
    texts = ((given.work / name).read_text(encoding="utf-8").splitlines() for name in WRITTEN)
    ours, *theirs = ([line.split() for line in lines] for lines in texts)
    shares = [1.0, *(agreement(ours, other) for other in theirs)]
    return [replace(row, agreement=share) for row, share in zip(rows, shares, strict=True)]


def start_up(given: argparse.Namespace) -> list[Row]:
    """The time of an import, and from start to the first translation."""
    run_dir, (source,) = prepared(given, 1)
    text = given.work / "sentence.txt"
    text.write_text(source + "\n", encoding="utf-8")
    translation = given.work / "translation.txt"
    commands = {
        "import transformer": [sys.executable, "-c", "import transformer"],
        "decode.py, one sentence": script("decode.py", run_dir, "--input", text, "--output", translation),
    }
    return processes("start-up", commands, given.rounds)


SECTIONS: dict[str, Section] = {
    "batch": partial(at_once, 48, "beam 4, 48 sentences"),
    "sentence": partial(at_once, 1, "beam 4, one sentence"),
    "file": whole_file,
    "start": start_up,
}


def main(arguments: list[str] | None = None) -> None:
    """Measures the chosen sections, prints their tables, writes OUTPUT.json and OUTPUT.png."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/benchmarks"), help="folder for models")
    parser.add_argument(
        "--model", type=Path, help="a run to decode with; default: one that is trained on first use"
    )
    parser.add_argument("--steps", type=positive, default=2000, help="updates of the default model (2000)")
    compare(parser, SECTIONS, arguments, ["torch", "transformers", "ctranslate2"])


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
