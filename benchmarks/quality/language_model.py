"""Language models with and without memory, on equal parameters and updates.

`python -m benchmarks.quality.language_model WORK --text FILE` trains the preset `shakespeare` (the sizes of
nanoGPT's recipe for a CPU) with each position scheme and memory on the characters of a text, of which the
last tenth is held out. It measures bits per character of the held-out text with memories of several lengths,
and the loss of random blocks of a segment, as nanoGPT does. It writes a table and draws learning curves, and
bits against the memory. Everything is in WORK: if interrupted, the same command continues.
"""

import argparse
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.command import needs, positive, run, work_folder
from benchmarks.measure import keep, machine
from benchmarks.plotting import picture
from benchmarks.runs import once
from transformer import PRESETS, Config, Generator, Run, train
from transformer.config.records import StreamConfig
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.systems.language_model.model import Past
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.parameters import model_shapes
from transformer.systems.registry import find_system
from transformer.training.step import EvalState, make_eval_step

MEMORIES = (0, 64, 128, 256, 512)  # of evaluation
BLOCKS = 240  # random blocks of a segment, as nanoGPT's estimate: 20 batches of 12
PUBLISHED = 1.88  # nats, nanoGPT's recipe for a CPU (its README)
MODELS: dict[str, dict[str, Any]] = {
    "learned": {"positions": "learned"},
    "sinusoidal": {"positions": "sinusoidal"},
    "relative": {"positions": "relative"},
    "rotary": {"positions": "rotary"},
    "ALiBi": {"positions": "alibi"},
    "relative, memory": {"positions": "relative", "memory": 64},
    "rotary, memory": {"positions": "rotary", "memory": 64},
    "ALiBi, memory": {"positions": "alibi", "memory": 64},
}
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # Student's t for so many seeds


@dataclass(frozen=True)
class Plan:
    """What to compare."""

    work: Path
    text: Path
    updates: int | None

    def path(self, name: str, seed: int) -> Path:
        """The run directory of a model."""
        return self.work / f"{name.replace(', ', '-')}-{seed}"

    def config(self, name: str, seed: int) -> Config:
        """The config of a run."""
        base = PRESETS["shakespeare"]
        assert isinstance(base.data, StreamConfig)
        steps = self.updates or base.training.steps
        return replace(
            base,
            model=replace(base.model, **MODELS[name]),
            data=replace(base.data, train=self.text),
            training=replace(base.training, seed=seed, steps=steps, evaluate_every=max(1, steps // 16)),
        )

    def build(self, name: str, seed: int) -> Json:
        """Trains and measures a run, unless it is there."""
        path = self.path(name, seed)

        def trained() -> Json:
            train(self.config(name, seed), path)
            return measured(Run(path))

        return once(path.with_suffix(".json"), trained)


def measured(run: Run) -> Json:
    """Bits per character of the held-out text by the memory, the loss of random blocks, the number of
    parameters and the learning curve."""
    model = run.config.model
    assert isinstance(model, LanguageModelConfig)
    memories = MEMORIES if model.is_relative else (0,)
    curve = [(each["step"], each["bits_per_character"]) for each in run.log.records("evaluation")]
    return {
        "parameters": sum(x.size for x in jax.tree.leaves(run.shapes["params"])),
        "bits": {str(memory): bits(run, memory) for memory in memories},
        "block": loss_of_blocks(run),
        "curve": curve,
    }


def bits(run: Run, memory: int) -> float:
    """Bits per character of the held-out text, read by segments with a memory."""
    config = replace(run.config, model=replace(run.config.model, evaluation_memory=memory))  # type: ignore[call-arg]
    system, task = find_system(config.system), type(run.task).load(config, run.path)
    variables = run.checkpoints.variables("best", model_shapes(system, config))
    objective = system.objective(config, lambda path: None)
    step = jax.jit(make_eval_step(system.model(config.model), objective))
    records = task.open_corpus(config).splits["validation"]
    carry, total, characters = system.carry(config, True), 0.0, 0.0
    for batch in task.fixed_batches(records, 0, 1):
        after, sums = step(EvalState(variables, carry), batch)
        carry = after.carry
        total, characters = total + float(sums["bits"][0]), characters + float(sums["bits"][1])
    return total / characters


def loss_of_blocks(run: Run) -> float:
    """The mean loss in nats of random blocks of a segment from the held-out text, which begin anywhere."""
    generator = Generator.load(run.path)
    config, task = run.config, generator.task
    (text,) = list(task.open_corpus(config).splits["validation"])
    ids, size = np.array(task.tokenizer.encode(text)), config.data.max_length
    starts = np.random.default_rng(0).integers(len(ids) - size, size=BLOCKS)
    source = np.stack([ids[start : start + size] for start in starts])
    target = np.stack([ids[start + 1 : start + size + 1] for start in starts])

    @jax.jit
    def nll(source: jax.Array, target: jax.Array) -> jax.Array:
        model: Any = generator.model
        past = Past.empty(model.config, BLOCKS, 0)
        hidden, _ = model.apply(generator.variables, source, past, method="advance")
        log_p = jax.nn.log_softmax(model.apply(generator.variables, hidden, method="output"))
        return -jnp.take_along_axis(log_p, target[..., None], axis=-1).mean()

    return float(nll(jnp.asarray(source), jnp.asarray(target)))


def interval(values: list[float]) -> str:
    """The mean, and half of its 95 % interval over seeds."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    half = T95.get(len(values), 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.3f} ± {half:.3f}"


def table(found: dict[str, list[Json]]) -> str:
    """Markdown: a row for each model."""
    lines = ["| positions | parameters | " + " | ".join(map(str, MEMORIES)) + " | random blocks, nats |"]
    lines.append("|---" * (len(MEMORIES) + 3) + "|")
    for name, runs in found.items():
        each = [
            interval([run["bits"][str(memory)] for run in runs]) if str(memory) in runs[0]["bits"] else ""
            for memory in MEMORIES
        ]
        blocks = interval([run["block"] for run in runs])
        lines.append(f"| {name} | {runs[0]['parameters']:,} | {' | '.join(each)} | {blocks} |")
    return "\n".join(lines)


def plot(found: dict[str, list[Json]], path: Path) -> None:
    """Learning curves, and bits against the memory."""
    with picture(path, columns=2, size=(10, 4)) as (_, [curves, memories]):
        for name, runs in found.items():
            steps = [step for step, _ in runs[0]["curve"]]
            means = np.mean([[value for _, value in run["curve"]] for run in runs], axis=0)
            curves.plot(steps, means, label=name)
            lengths = [memory for memory in MEMORIES if str(memory) in runs[0]["bits"]]
            points = [statistics.mean(run["bits"][str(memory)] for run in runs) for memory in lengths]
            memories.plot(lengths, points, marker="o", markersize=3, label=name)
        curves.set(xlabel="update", ylabel="bits per character, held-out text")
        curves.set_ylim(top=min(4.0, curves.get_ylim()[1]))
        memories.set(xlabel="memory in evaluation", ylabel="bits per character, held-out text")
        for axis in (curves, memories):
            axis.grid(alpha=0.3)
        curves.legend()


def main(arguments: list[str] | None = None) -> None:
    """Trains and measures what is missing, prints the table and writes WORK/language_model.json and .png."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs, table and picture")
    parser.add_argument("--text", type=Path, required=True, help="text file, such as tiny Shakespeare")
    parser.add_argument("--seeds", type=positive, default=3, help="trainings of each model (3)")
    parser.add_argument("--updates", type=positive, help="of each training (those of the preset)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {', '.join(MODELS)}")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.only or ()) - set(MODELS)):
        raise UserError(f"--only {unknown[0]!r}: there is no such model; there are {', '.join(MODELS)}")
    needs("matplotlib")
    given.work.mkdir(parents=True, exist_ok=True)
    plan = Plan(given.work, given.text, given.updates)
    found: dict[str, list[Json]] = {name: [] for name in MODELS if not given.only or name in given.only}
    for seed in range(given.seeds):
        for name, runs in found.items():
            runs.append(plan.build(name, seed))
    results = {"about": machine(), "runs": found}
    written = keep(given.work / "language_model", results, lambda path: plot(found, path))
    print(f"{table(found)}\nnanoGPT's README has {PUBLISHED} nats for random blocks\n{written}")


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
