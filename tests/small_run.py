"""A very small text and a config that trains on it in seconds: target lines are sources reversed."""

import dataclasses
import shutil
from pathlib import Path
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from reference_search import random_variables

from transformer import BeamConfig, Config, DataConfig, OptimizerConfig, Run, Transformer, TransformerConfig
from transformer.config.training import TrainingConfig
from transformer.data.tokenizers.trained import train_tokenizer
from transformer.runtime.console import ProgressReporter
from transformer.tasks.texts.translation import Translation
from transformer.trainer import train as train_module
from transformer.training.step import TrainState

WORDS = ["red", "green", "blue", "cat", "dog", "bird", "runs", "sings", "sleeps"]
ORDINARY = {"steps": 12, "evaluate_every": 4, "log_every": 2, "evaluate_sentences": 8, "keep_last": 2}


def write_text(folder: Path, split: str, count: int) -> dict[str, Path]:
    random = np.random.default_rng(len(split))
    lines = [" ".join(random.choice(WORDS, size=random.integers(2, 6))) for _ in range(count)]
    files = {f"{split}_source": folder / f"{split}.in", f"{split}_target": folder / f"{split}.out"}
    for path, turn in zip(files.values(), (1, -1), strict=True):
        path.write_text("".join(" ".join(line.split()[::turn]) + "\n" for line in lines))
    return files


def untrained(run_dir: Path) -> Path:
    """A run of German with two checkpoints of random parameters, which it creates."""
    lines = ["ein Haus am See", "das Haus ist rot", "der See ist tief", "ein roter Hund"]
    tokenizer = train_tokenizer(lines, "bpe", 300)
    model = TransformerConfig(tokenizer.vocab_size, num_layers=1, d_model=16, d_ff=32, num_heads=2)
    config = Config(
        model=model,
        data=DataConfig(max_length=16, batch_tokens=64),
        decoding=BeamConfig(beam_size=2, rows=8, buckets=(8, 16), extra_length=3),
    )
    run = Run.create(run_dir, config, Translation(config, (tokenizer, tokenizer)), "corpus")
    for step, score in ((1, 20.0), (2, 10.0)):
        ids = jnp.ones((1, 2), jnp.int32)
        params = Transformer(model).init(jax.random.key(step), ids, ids)["params"]
        run.checkpoints.save(TrainState(jnp.asarray(step), params, {}, {}, None), {"bleu": score})
    run.checkpoints.finish_saving()
    return run.path


def drawn_run(config: Config, run_dir: Path) -> Run:
    """The run of a training whose parameters are drawn instead of learned: nothing is compiled. It has no
    evaluations and no report."""

    class Drawn:
        step = 0

        def __init__(self, config, system, objective, run, *others):
            self.run, model = run, system.model(config.model)
            shapes = jax.eval_shape(model.init, jax.random.key(0), *run.task.example(config))
            self.variables = random_variables(model, 0, {"params": shapes["params"]})

        def train(self):
            self.run.checkpoints.store_model(1, self.variables)

        def test(self):
            return 1, None

        def report(self, *tested):
            pass

    with patch.object(train_module, "Loop", Drawn):
        return Run(train_module.train(config, run_dir, watch=quiet()))


def small_config(folder: Path) -> Config:
    """The config, its text written into the folder."""
    files = {}
    for split, count in (("train", 200), ("validation", 12), ("test", 12)):
        files |= write_text(folder, split, count)
    return Config(
        model=TransformerConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2, dropout=0.1),
        data=DataConfig(
            **files,
            cache_dir=folder / "cache",
            tokenizer="whitespace",
            max_length=8,
            buckets=(8,),
            batch_tokens=256,
        ),
        optimizer=OptimizerConfig(schedule="inverse_sqrt", peak=1e-2, warmup_steps=4),
        training=TrainingConfig(**ORDINARY),
        decoding=BeamConfig(beam_size=2, buckets=(8,), rows=16, extra_length=4),
    )


def changed(config: Config, **training) -> Config:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **training))


def quiet() -> ProgressReporter:
    return ProgressReporter(quiet=True)


def interrupted(run_dir: Path, copy: Path) -> Path:
    """A copy of a finished run as if it had been killed before its last checkpoint."""
    shutil.copytree(run_dir, copy)
    shutil.rmtree(copy / "checkpoints" / str(Run(copy).checkpoints.steps()[-1]))
    return copy


def parameters(path: Path, checkpoint="last"):
    run = Run(path)
    return jax.tree.leaves(run.variables(checkpoint))


def same(path: Path, other: Path) -> bool:
    pairs = zip(parameters(path), parameters(other), strict=True)
    return all((np.asarray(a) == np.asarray(b)).all() for a, b in pairs)
