"""Beam search here, in CTranslate2 and in Hugging Face: the same weights, sentences and search options.

The model is trained here and exported with `export_marian`. All programs divide by |Y|^alpha and stop when
the number of complete hypotheses is the beam size, as CTranslate2 does.
"""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Contestant, script

BEAM, ALPHA, LONGEST = 4, 1.0, 100
WRITTEN = ("ours.txt", "ours-int8.txt", "theirs.txt")  # by whole processes
Said = list[list[str]]
"""The subwords of the best translation of every sentence."""


def model(folder: Path, run_dir: Path | None, steps: int, quick: bool = False) -> Path:
    """A run with a 6+6-layer network of width 512: the given one, or one trained on the built-in corpus just
    long enough to end its sentences. With `quick`, a small network after two updates."""
    from transformer import PRESETS, BeamConfig, TransformerConfig, train

    if run_dir:
        return run_dir
    preset = PRESETS["quickstart"]
    every = max(1, steps // 4)
    config = replace(
        preset,
        model=TransformerConfig(norm_epsilon=1e-5),
        data=replace(preset.data, vocab_size=2000, batch_tokens=1024),
        optimizer=replace(preset.optimizer, schedule="inverse_sqrt", peak=5e-4, warmup_steps=200),
        training=replace(preset.training, steps=steps, evaluate_every=every, label_smoothing=0.1),
        decoding=BeamConfig(extra_length=10),
    )
    if quick:
        small = replace(config.model, num_layers=1, d_model=32, d_ff=64, num_heads=2)
        config = replace(config, model=small, training=replace(config.training, steps=2, evaluate_every=2))
    return train(config, folder / ("quick" if quick else f"built-in-{steps}"))


def newest(run_dir: Path) -> float:
    """The time at which its last checkpoint was written."""
    return max(path.stat().st_mtime for path in (run_dir / "checkpoints").iterdir())


def exported(folder: Path, run_dir: Path) -> tuple[Path, Path]:
    """The model in the formats of Hugging Face and CTranslate2."""
    import ctranslate2

    from transformer.interop.folders import export_marian

    hugging_face, converted = folder / f"{run_dir.name}-marian", folder / f"{run_dir.name}-ctranslate2"
    if not (hugging_face.exists() and hugging_face.stat().st_mtime > newest(run_dir)):
        for old in (hugging_face, converted):
            shutil.rmtree(old, ignore_errors=True)
        export_marian(run_dir, hugging_face)
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
    converted: Path, hugging_face: Path, sources: list[str], inter: int, intra: int, kind: str
) -> Callable[[], Said]:
    """`translate_batch`, with the batch divided among the workers."""
    import ctranslate2

    pieces = _pieces(hugging_face, sources)
    translator = ctranslate2.Translator(
        str(converted), device="cpu", inter_threads=inter, intra_threads=intra, compute_type=kind
    )
    share = -(-len(pieces) // inter)

    def run() -> Said:
        found = translator.translate_batch(
            pieces,
            beam_size=BEAM,
            length_penalty=ALPHA,
            max_decoding_length=LONGEST,
            max_batch_size=share if inter > 1 else 0,
        )
        return [result.hypotheses[0] for result in found]

    return run


def hugging_face_generate(
    hugging_face: Path, sources: list[str], device: str = "cpu", dtype: str = "float32"
) -> Callable[[], Said]:
    """`generate`, all sentences in one batch."""
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    tokenizer = MarianTokenizer.from_pretrained(hugging_face)
    network = MarianMTModel.from_pretrained(hugging_face, dtype=getattr(torch, dtype)).eval().to(device)
    inputs = tokenizer(sources, return_tensors="pt", padding=True).to(device)
    options = {"num_beams": BEAM, "length_penalty": ALPHA, "early_stopping": True, "max_length": LONGEST + 1}

    def run() -> Said:
        with torch.no_grad():
            found = network.generate(**inputs, **options)
        special = set(tokenizer.all_special_tokens) - {"<unk>"}
        return [
            [piece for piece in tokenizer.convert_ids_to_tokens(row) if piece not in special] for row in found
        ]

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


def contestants_on_gpu(run_dir: Path, folder: Path, sources: list[str]) -> list[Contestant]:
    """Ours and Hugging Face, in float32 and in bfloat16, with all sentences in one batch."""
    hugging_face, _ = exported(folder, run_dir)
    rows, found = len(sources), []
    for dtype in ("bfloat16", "float32"):
        here = {"run_dir": run_dir, "sources": sources, "dtype": dtype, "rows": rows}
        there = {"hugging_face": hugging_face, "sources": sources, "dtype": dtype, "device": "cuda"}
        found.append(Contestant(f"transformer {dtype}", ours, here))
        found.append(Contestant(f"Hugging Face {dtype}", hugging_face_generate, there))
    return found


def bytes_needed(run_dir: Path, sources: list[str], said: Said) -> float:
    """The bytes that a beam search has to read at least, in bfloat16: at each step the weights of decoder and
    output once, and for each beam the keys and values of its tokens so far and of its source."""
    import jax

    from transformer import Run
    from transformer.systems.registry import model_shapes

    run = Run(run_dir)
    c = run.config.model
    shapes = model_shapes(run.config)["params"]
    decoder = {name: shape for name, shape in shapes.items() if not name.startswith("encoder_")}
    weights = sum(shape.size for shape in jax.tree.leaves(decoder))
    steps = 1 + max(map(len, said))
    words = sum(1 + len(run.task.tokenizers[0].encode(source)) for source in sources)
    kept = 2 * c.decoder_depth * c.d_model
    cache = kept * sum(BEAM * len(said) * step + words for step in range(steps))
    return 2.0 * (steps * weights + cache)


def agreement(one: Said, other: Said) -> float:
    """The share of sentences with identical translations, subword by subword."""
    return sum(ours == theirs for ours, theirs in zip(one, other, strict=True)) / max(len(one), 1)


def whole_process(run_dir: Path, folder: Path, sources: list[str]) -> dict[str, list[str]]:
    """The command lines that translate a file from start to end: ours, and CTranslate2's in Python."""
    hugging_face, converted = exported(folder, run_dir)
    text = folder / "sources.txt"
    text.write_text("".join(line + "\n" for line in sources), encoding="utf-8")
    rule = ["--penalty", "power", "--length-penalty", str(ALPHA), "--stop", "full", "--beam-size", str(BEAM)]
    rule += ["--max-length", str(LONGEST), "--extra-length", str(LONGEST)]
    decode = script("decode.py", run_dir, "--input", text, *rule, "--output")
    ours, rounded, theirs = (str(folder / name) for name in WRITTEN)
    job = json.dumps([str(converted), str(hugging_face), str(text), theirs])
    return {
        "decode.py": [*decode, ours],
        "decode.py --int8": [*decode, rounded, "--int8"],
        "CTranslate2": [sys.executable, "-m", "benchmarks.ctranslate2_file", job],
    }
