"""What a memory costs in training, and what it saves in evaluation.

`python -m benchmarks.speed.segments` times an update of the preset `shakespeare-xl` for segments and memories
of several lengths, with as many tokens in a batch, and takes its memory from the compiler. Then it times the
evaluation of a token that depends on a long context: read in segments of 64 tokens with a memory as long as
the context, or in a window of the context that moves on by one token and is computed anew (Dai et al. 2019,
section 4.7). The networks are untrained.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.progress import track

from benchmarks.command import drawing_options, run
from benchmarks.measure import keep, machine
from benchmarks.plotting import picture
from benchmarks.programs import Program, compiled, medians
from transformer import PRESETS, Config
from transformer.config.records import StreamConfig
from transformer.systems.language_model.model import LanguageModel, Past
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.registry import find_system
from transformer.training.schedule import make_optimizer
from transformer.training.step import configured_step, init_state

SEGMENTS, MEMORIES, CONTEXTS = (32, 64, 128, 256), (0, 64, 128, 256, 512), (64, 128, 256, 512, 1024, 2048)
TOKENS, VOCABULARY, READ = 1024, 69, 64
Point = dict[str, Any]


def config_of(segment: int, memory: int, small: bool) -> Config:
    """The preset with another segment and memory."""
    base = PRESETS["shakespeare-xl"]
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32} if small else {}
    assert isinstance(base.data, StreamConfig)
    options: dict[str, Any] = {"vocab_size": VOCABULARY, "memory": memory, **sizes}
    return replace(
        base,
        model=replace(base.model, **options),
        data=replace(base.data, max_length=segment, batch_tokens=max(TOKENS, segment)),
    )


def update(segment: int, memory: int, small: bool) -> Program:
    """An update on random tokens."""
    config = config_of(segment, memory, small)
    system = find_system(config.system)
    model, optimizer = system.model(config.model), make_optimizer(config)
    carry, rows = system.carry(config, False), TOKENS // segment
    state = init_state(model, optimizer, 0, system.task.example(config), carry=carry)
    ids = jax.random.randint(jax.random.key(0), (rows, segment), 4, VOCABULARY)
    ones = jnp.ones(ids.shape)
    batch = {"source": ids, "target": ids, "characters": ones, "words": ones}
    objective = system.objective(config, lambda path: None)
    step = configured_step(config.training, model, objective, optimizer, lambda params: params)
    return compiled(step, state, batch)


def reading(context: int, memory: int, tokens: int, small: bool) -> Program:
    """A pass over so many tokens with a memory."""
    config = config_of(context, memory, small).model
    assert isinstance(config, LanguageModelConfig)
    model = LanguageModel(config)
    ids = jnp.full((1, tokens), 5, jnp.int32)
    past = Past.empty(config, 1, memory)
    past = replace(past, documents=jnp.ones_like(past.documents))
    variables = jax.jit(model.init)(jax.random.key(0), ids, ids)
    return compiled(lambda v, i, p: model.apply(v, i, p, method="advance"), variables, ids, past)


def updates(rounds: int, small: bool) -> list[Point]:
    """Seconds and bytes of an update."""
    sizes = [
        (s, m) for s in (SEGMENTS[:2] if small else SEGMENTS) for m in (MEMORIES[:2] if small else MEMORIES)
    ]
    made = [update(segment, memory, small) for segment, memory in track(sizes, "compiling updates")]
    times = medians(made, rounds, "updates")
    return [
        {"segment": segment, "memory": memory, "seconds": seconds, "bytes": program.bytes}
        for (segment, memory), program, seconds in zip(sizes, made, times, strict=True)
    ]


def evaluations(rounds: int, small: bool) -> list[Point]:
    """Seconds of a token in evaluation, with a memory and with a window that is computed anew."""
    contexts, found = CONTEXTS[:2] if small else CONTEXTS, []
    for context in contexts:
        programs = [reading(READ, context, READ, small), reading(context, 0, context, small)]
        memory, window = medians(programs, rounds, f"context {context}")
        found.append({"context": context, "memory": memory / READ, "window": window})
    return found


def tables(results: dict[str, Any]) -> str:
    """Markdown."""
    updates, evaluations = results["updates"], results["evaluations"]
    memories = sorted({point["memory"] for point in updates})
    lines = [
        "| segment, memory: | " + " | ".join(map(str, memories)) + " |",
        "|---" * (len(memories) + 1) + "|",
    ]
    for segment in sorted({point["segment"] for point in updates}):
        row = [point for point in updates if point["segment"] == segment]
        each = [f"{point['seconds']:.3f} s, {point['bytes'] / 1e6:.0f} MB" for point in row]
        lines.append(f"| {segment} | {' | '.join(each)} |")
    lines += ["", "| context | with a memory | window computed anew | factor |", "|---|---|---|---|"]
    for point in evaluations:
        factor = point["window"] / point["memory"]
        times = f"{point['memory'] * 1e3:.3f} ms | {point['window'] * 1e3:.2f} ms"
        lines.append(f"| {point['context']} | {times} | {factor:.0f} |")
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """An update against the memory, and a token in evaluation against the context."""
    with picture(path, columns=2, size=(10, 4)) as (_, [left, right]):
        for segment in sorted({point["segment"] for point in results["updates"]}):
            row = [point for point in results["updates"] if point["segment"] == segment]
            memories, seconds = zip(*[(point["memory"], point["seconds"]) for point in row], strict=True)
            left.plot(memories, seconds, marker="o", markersize=3, label=f"segment {segment}")
        left.set(xlabel="memory", ylabel=f"seconds of an update of {TOKENS:,} tokens", ylim=(0, None))
        contexts = [point["context"] for point in results["evaluations"]]
        for name, label in (("memory", "segments with a memory"), ("window", "a window computed anew")):
            values = [point[name] for point in results["evaluations"]]
            right.loglog(contexts, values, marker="o", markersize=3, label=label)
        right.set(xlabel="context in tokens", ylabel="seconds of a token in evaluation")
        for axis in (left, right):
            axis.grid(alpha=0.3)
            axis.legend()


def main(arguments: list[str] | None = None) -> None:
    """Measures, draws and prints the tables."""
    given = drawing_options(__spec__.name, __doc__, 9, arguments)
    rounds = 2 if given.quick else given.repeats
    results = {
        "about": machine(),
        "updates": updates(rounds, given.quick),
        "evaluations": evaluations(rounds, given.quick),
    }
    print(f"{tables(results)}\n{keep(given.output, results, lambda path: plot(results, path))}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
