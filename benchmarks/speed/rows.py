"""Few rows and many: an untrained base model here and in CTranslate2, with the same weights and sentences.

`python -m benchmarks.speed.rows` searches one sentence and a batch of 64. Nothing is trained or exported by
way of another format: CTranslate2 gets the arrays themselves. Every search runs to its length limit, since
<eos> is as unlikely as any word.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.command import needs, new_file, positive, run
from benchmarks.measure import Contestant, Measurement, machine, save, side_by_side
from benchmarks.speed.decoding import ALPHA, BEAM, QUICK, Said, agreement
from transformer import BeamConfig, Config, TransformerConfig, Translator
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.model.positions import sinusoids
from transformer.systems.parameters import declared_parameters, in_int8
from transformer.systems.registry import find_system

WORDS, LONGEST = 20, 28  # of a source sentence and of an output
SIZE = 32_000  # of the vocabulary


def translator(changes: dict[str, Any], size: int = SIZE) -> Translator:
    """A translator with random parameters. Its words are numbers."""
    tokenizer = train_tokenizer([str(word) for word in range(size - 4)], "whitespace", size)
    network = TransformerConfig(vocab_size=tokenizer.vocab_size, norm_epsilon=1e-5, **changes)
    rule = BeamConfig(beam_size=BEAM, penalty="power", length_penalty=ALPHA, stop="full", max_length=LONGEST)
    config = Config(model=network, decoding=replace(rule, extra_length=LONGEST))
    ids = np.ones((1, 2), np.int32)
    variables = jax.jit(find_system(config.system).model(network).init)(jax.random.key(0), ids, ids)
    return Translator(config, variables, (tokenizer, tokenizer))


def sentences(count: int, size: int = SIZE) -> list[str]:
    """Sentences of random words."""
    drawn = np.random.default_rng(0).integers(size - 4, size=(count, WORDS))
    return [" ".join(map(str, words)) for words in drawn]


def ours(count: int, int8: bool, changes: dict[str, Any], size: int) -> Callable[[], Said]:
    """`Translator.search`."""
    from transformer.runtime.compilation import keep_programs

    keep_programs()
    made = translator(changes, size)
    if int8:
        summed = {path: each.summed for path, each in declared_parameters(made.system, made.config).items()}
        made = Translator(made.config, in_int8(made.variables, summed), made.tokenizers)
    sources = sentences(count, size)
    return lambda: [list(several[0].tokens) for several in made.search(sources, n_best=1)]


def theirs(count: int, folder: Path, kind: str, size: int) -> Callable[[], Said]:
    """`translate_batch` with two threads for each product. It ends at the limit without <eos>, which is the
    last token here."""
    import ctranslate2

    loaded = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=2, compute_type=kind)
    pieces = [[*source.split(), "</s>"] for source in sentences(count, size)]
    search = partial(loaded.translate_batch, pieces, beam_size=BEAM, length_penalty=ALPHA)
    return lambda: [found.hypotheses[0][: LONGEST - 1] for found in search(max_decoding_length=LONGEST)]


def exported(made: Translator, folder: Path) -> None:
    """Writes the model for CTranslate2."""
    from ctranslate2.specs import TransformerSpec

    params, config = made.variables["params"], made.config.model
    spec = TransformerSpec.from_config(config.num_layers, config.num_heads, pre_norm=False)
    table, width = np.asarray(params["source_embedding"]["table"]), config.d_model

    def linear(to: Any, *kernels: Any, bias: Any = None) -> None:
        to.weight = np.concatenate([np.asarray(x) for x in kernels], axis=1).T.copy()
        to.bias = np.zeros(len(to.weight), np.float32) if bias is None else np.asarray(bias)

    def norm(to: Any, own: Any) -> None:
        to.gamma, to.beta = (np.asarray(own["norm"]["norm"][name]) for name in ("scale", "bias"))

    def attention(to: Any, own: Any, groups: tuple[tuple[str, ...], ...]) -> None:
        for part, names in zip(to.linear, groups, strict=False):
            linear(part, *(own[name].reshape(width, -1) for name in names))
        linear(to.linear[-1], own["out"].reshape(-1, width))

    for stack in ("encoder", "decoder"):
        side = getattr(spec, stack)
        embedding = side.embeddings[0] if stack == "encoder" else side.embeddings
        embedding.weight, side.scale_embeddings = table, True
        side.position_encodings.encodings = np.asarray(sinusoids(jax.numpy.arange(256), width))
        for index, layer in enumerate(side.layer):
            own = params[f"{stack}_{index}"]
            attention(layer.self_attention, own["self_attention"], (("query", "key", "value"),))
            norm(layer.self_attention.layer_norm, own["self_residual"])
            if stack == "decoder":
                attention(layer.attention, own["cross_attention"], (("query",), ("key", "value")))
                norm(layer.attention.layer_norm, own["cross_residual"])
            for part, name in ((layer.ffn.linear_0, "inner"), (layer.ffn.linear_1, "outer")):
                affine = own["feed_forward"][name]
                linear(part, affine["kernel"], bias=affine["bias"])
            norm(layer.ffn.layer_norm, own["feed_forward_residual"])
    linear(spec.decoder.projection, table.T)
    words = made.tokenizers[1].pieces(range(len(table)))
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token = "<s>"
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


def measure(count: int, folder: Path, rounds: int, changes: dict[str, Any], size: int) -> list[Measurement]:
    """Ours and theirs in turns, in float32 and int8."""
    some = {"count": count, "size": size}
    contestants = [
        Contestant(f"{name} {kind}", make, {**some, **options})
        for kind in ("float32", "int8")
        for name, make, options in (
            ("ours", ours, {"int8": kind == "int8", "changes": changes}),
            ("CTranslate2", theirs, {"folder": folder, "kind": kind}),
        )
    ]
    return side_by_side(contestants, rounds)


def main(arguments: list[str] | None = None) -> None:
    """Prints a table for each number of sentences, writes OUTPUT."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--output", type=new_file, default=Path("rows.json"))
    parser.add_argument("--sentences", type=positive, nargs="+", default=[1, 64], help="in a search")
    parser.add_argument("--rounds", type=positive, default=9, help="timed searches of each program")
    parser.add_argument("--quick", action="store_true", help="a small model, to test that it runs")
    given = parser.parse_args(arguments)
    needs("ctranslate2")
    changes, size = (QUICK, 100) if given.quick else ({}, SIZE)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        exported(translator(changes, size), Path(folder))
        for count in given.sentences:
            found = measure(count, Path(folder), given.rounds, changes, size)
            table = Table("program", "median s", "CPU s", "x CTranslate2", "identical", title=f"{count}")
            for index, each in enumerate(found):
                ratio = each.median / found[index | 1].median
                same = agreement(found[0].output, each.output)
                row = {"sentences": count, "name": each.name, "seconds": each.seconds, "cpu": each.cpu_median}
                rows.append({**row, "ratio": ratio, "identical": same})
                seconds = f"{each.median:.3f}", f"{each.cpu_median:.3f}"
                table.add_row(each.name, *seconds, f"{ratio:.2f}", f"{same:.0%}")
            Console(width=90).print(table)
            save(str(given.output), {"about": machine(), "rows": rows})
    print(f"{machine()}\nwritten to {given.output}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
