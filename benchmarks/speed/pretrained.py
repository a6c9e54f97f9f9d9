"""Pretrained models on accelerators: memory and time of fine-tuning and of a search, from the compilers.

`python -m benchmarks.speed.pretrained` runs the compiler of `train.py --plan` for each model and machine.
Nothing runs on these machines: all times are estimates (`transformer.plan.costs`). Each compilation
takes minutes; OUTPUT keeps what is done, and the same command continues.

Shapes are those of the published config.json. Fine-tuning is in bfloat16 with layers that are computed again
in the backward pass (--model.remat), on 4,096 target tokens a device in sentences of --length (Whisper: 8
recordings of 30 s), of all parameters or of adapters (--adapter.rank); a search has 4 beams for 32 sentences
(Whisper: 4 recordings).
"""

import argparse
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.command import new_file, run
from transformer.config.corpus import DataConfig
from transformer.config.decoding import BeamConfig
from transformer.config.methods import AdapterConfig
from transformer.config.model import SpecialIds
from transformer.config.options import Config, MeshConfig
from transformer.config.records import RecordingsConfig
from transformer.config.transformer import TransformerConfig
from transformer.interop.architectures.bart import BART, M2M_100
from transformer.interop.architectures.t5 import T5
from transformer.interop.architectures.whisper import WHISPER
from transformer.interop.folders.family import Family
from transformer.runtime.files import Json
from transformer.systems.speech.options import SpeechConfig

RANK = 16  # of adapters
KINDS = {"step": "an update", "adapter": f"an update, rank {RANK}", "search": "a step of the search"}
MACHINES = ("v5e:1x1", "v5p:1x1x1", "h100:1")
SPECIAL = SpecialIds(pad=1, bos=0, eos=2, unk=3)


@dataclass(frozen=True)
class Work:
    """The size of an update and of a search."""

    length: int = 128
    """Of a sentence, and of an output."""
    tokens: int = 4096
    """Target tokens of an update."""
    sentences: int = 32
    """Of a search."""
    recordings: int = 4
    """Of a search; an update has twice as many."""
    frames: int = 3000
    """Of a recording."""
    text: int = 448
    """Tokens of the text of a recording, in an update."""


WORK, LITTLE = Work(), Work(8, 32, 2, 1, 40, 10)


def _stacks(layers: int, d_model: int, d_ff: int, heads: int, **more: Any) -> Json:
    """The options that the families around BART share."""
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", layers), ("ffn_dim", d_ff), ("attention_heads", heads))
    }
    return {"d_model": d_model, **sides, **more}


def _nllb(layers: int, d_model: int, d_ff: int) -> tuple[Family[Any], Json]:
    more = {"vocab_size": 256_206, "activation_function": "relu", "scale_embedding": True}
    return M2M_100, _stacks(layers, d_model, d_ff, 16, **more)


def _whisper(layers: int, d_model: int, heads: int, bands: int, vocab_size: int) -> tuple[Family[Any], Json]:
    positions = {"max_source_positions": WORK.frames // 2, "max_target_positions": WORK.text}
    more = {"vocab_size": vocab_size, "activation_function": "gelu", "num_mel_bins": bands, **positions}
    return WHISPER, _stacks(layers, d_model, 4 * d_model, heads, **more)


SHAPES = {
    "T5-base": (
        T5,
        {
            **{"num_layers": 12, "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12},
            "vocab_size": 32_128,
        },
    ),
    "BART-large": (
        BART,
        _stacks(
            *(12, 1024, 4096, 16),
            vocab_size=50_265,
            activation_function="gelu",
            max_position_embeddings=1024,
        ),
    ),
    "NLLB-600M": _nllb(12, 1024, 4096),
    "NLLB-1.3B": _nllb(24, 1024, 8192),
    "NLLB-3.3B": _nllb(24, 2048, 8192),
    "Whisper-small": _whisper(12, 768, 12, 80, 51_865),
    "Whisper-large-v3": _whisper(32, 1280, 20, 128, 51_866),
}


SMALL = {
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 16,
    "vocab_size": 100,
    "num_mel_bins": 8,
    "max_source_positions": LITTLE.frames // 2,
    "max_target_positions": LITTLE.text,
}
"""Sizes to test that a benchmark runs; others are by the ends of their names."""
SMALL_ENDS = {"layers": 1, "heads": 2, "ffn_dim": 64}


def shape_of(name: str, quick: bool = False) -> tuple[Family[Any], Json]:
    """The family of a model and its config.json; `quick`: with small sizes."""
    family, described = SHAPES[name]
    if not quick:
        return family, described
    ends = {key: size for key in described for end, size in SMALL_ENDS.items() if key.endswith(end)}
    return family, described | ends | {key: size for key, size in SMALL.items() if key in described}


def config_of(name: str, devices: int, quick: bool = False, length: int = WORK.length) -> Config:
    """Fine-tuning of a model, sharded over all devices; `quick`: a small one, on little data."""
    family, described = shape_of(name, quick)
    work = LITTLE if quick else replace(WORK, length=length, tokens=max(length, WORK.tokens))
    options = family.options(described, ())
    computed: dict[str, Any] = {"dtype": "bfloat16", "remat": True, "special": SPECIAL}
    computed["vocab_size"] = described["vocab_size"]
    search = BeamConfig(beam_size=4, rows=work.sentences, buckets=(work.length,))
    mesh = MeshConfig(fsdp=devices)
    if family is WHISPER:
        data = RecordingsConfig(
            bands=described["num_mel_bins"],
            normalisation="peak",
            padded_length=work.frames,
            max_length=work.frames,
            buckets=(work.frames,),
            batch_tokens=2 * work.recordings * work.frames * devices,
            max_text=work.text,
        )
        heard = replace(search, rows=work.recordings, buckets=(work.frames,))
        return Config("speech", SpeechConfig(**options, **computed), data, decoding=heard, mesh=mesh)
    text = DataConfig(
        batching="packed",
        max_length=work.length,
        batch_tokens=work.tokens * devices,
        vocab_size=described["vocab_size"],
    )
    return Config("transformer", TransformerConfig(**options, **computed), text, decoding=search, mesh=mesh)


def adapted(config: Config) -> Config:
    """The same with adapters instead of all parameters."""
    training = replace(config.training, init_from=Path("model"))
    return replace(config, adapter=AdapterConfig(rank=RANK), training=training)


def row(name: str, place: str, what: str, minutes: float, length: int) -> dict[str, Any]:
    """What the compiler says of an update ("step"), of one that trains adapters, or of a step of the
    search."""
    from transformer.plan.machines import machine
    from transformer.plan.plan import Limits, compiled
    from transformer.runtime.errors import UserError

    where = machine(place)
    config = config_of(name, where.count, length=length)
    if what == "adapter":
        config = adapted(config)
    try:
        program = "search" if what == "search" else "step"
        found = compiled(program, config, where, Limits(minutes=minutes))
    except UserError as error:
        found = {"failed": str(error)}
    return {"model": name, "machine": place, "what": what, "length": length, "found": found}


def cells(found: dict[str, Any]) -> str:
    """A line of the table."""
    said = found["found"]
    kind = KINDS[found["what"]]
    start = f"| {found['model']} | {found['machine']} | {kind}, {found['length']} tokens "
    if "failed" in said:
        return f"{start}| {said['failed']} | |"
    memory = f"{said['memory']['total'] / 1e9:.1f} GB" + ("" if said.get("fits", True) else ", too much")
    seconds = said.get("seconds", {})
    if "fastest" in seconds:
        return f"{start}| {memory} | {seconds['fastest'] * 1e3:.3g} to {seconds['slowest'] * 1e3:.3g} ms |"
    return (
        f"{start}| {memory} | {seconds['computation'] * 1e3:.1f} ms |"
        if seconds
        else f"{start}| {memory} | |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Compiles what is missing, prints the table, writes OUTPUT."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--output", type=new_file, default=Path("pretrained.json"))
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=tuple(SHAPES))
    parser.add_argument("--machines", nargs="+", default=MACHINES, help="as for train.py --plan")
    parser.add_argument("--what", nargs="+", choices=KINDS, default=tuple(KINDS))
    parser.add_argument("--length", type=int, default=WORK.length, help="of a sentence, in tokens")
    parser.add_argument("--minutes", type=float, default=60.0, help="the longest that a compilation may take")
    given = parser.parse_args(arguments)

    from benchmarks.measure import machine as here
    from benchmarks.measure import save
    from transformer.plan.machines import machine

    for place in given.machines:
        machine(place)
    done = json.loads(given.output.read_text())["rows"] if given.output.exists() else []
    known = {(found["model"], found["machine"], found["what"], found["length"]) for found in done}
    for combination in itertools.product(given.models, given.machines, given.what):
        if (*combination, given.length) not in known:
            done.append(row(*combination, given.minutes, given.length))
            save(str(given.output), {"about": here(), "rows": done})
            print(cells(done[-1]), flush=True)
    print("| model | machine | | memory | time |\n|---|---|---|---|---|")
    for found in done:
        print(cells(found))
    print(f"written to {given.output}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
