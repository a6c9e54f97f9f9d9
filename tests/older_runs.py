"""A small run of every system, stopped after an update, and what the version that made it went on to compute.

`python tests/older_runs.py FOLDER [SYSTEM ...]` makes `FOLDER/SYSTEM.zip` with the version that is checked
out, for `tests/data/older_runs`; `test_older_runs.py` resumes them. Programs are not optimised, as in tests.
"""

import dataclasses
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import conftest  # noqa: F401  # the environment of tests
import jax
import numpy as np
from small_run import changed, quiet, small_config
from toy_runs import PICTURES, RECORDINGS, pictures_config, sentences_config, tagged_config, text_config

from transformer import Config, Run, train
from transformer.runtime.compilation import processor
from transformer.systems.registry import REGISTRY, options_of

STOPPED, STEPS = 40, 60
SIZES = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.1}
OF_THE_MACHINE = ("second", "speed", "time", "wait", "memory", "elapsed")
"""What the names of measured times and sizes contain."""

ENDED = ("lock", "report.html", "results.json")
"""What a run has only later, or anew."""


def config_of(name: str, folder: Path) -> Config:
    """A config that trains in seconds, on a corpus in the folder."""
    if name in RECORDINGS:
        config = RECORDINGS[name](folder / "corpus", "one")
    elif name in PICTURES:
        config = pictures_config(name, folder / "corpus", "one")
    elif name == "language-model":
        config = text_config(folder / "corpus", "one")
    elif name == "masked-lm":
        config = sentences_config(folder / "corpus", "one")
    elif name == "tagging":
        config = tagged_config(folder / "corpus", "one")
    else:
        config, types = small_config(folder / "corpus"), options_of(name)
        known = {item.name for item in dataclasses.fields(types.model)}
        model = types.model(**{option: value for option, value in SIZES.items() if option in known})
        shared = {item.name for item in dataclasses.fields(types.decoding)} - {"beam_size", "method"}
        search = {key: value for key, value in vars(config.decoding).items() if key in shared}
        tokenizer = "open-word" if name == "copying" else "whitespace"
        data = dataclasses.replace(config.data, tokenizer=tokenizer)
        config = dataclasses.replace(
            config, system=name, model=model, data=data, decoding=types.decoding(**search)
        )
    smoothing = 0.0 if name == "copying" else config.training.label_smoothing
    return changed(config, steps=STEPS, evaluate_every=20, log_every=5, label_smoothing=smoothing)


def computed(run_dir: Path) -> dict[str, Any]:
    """What a finished run has computed: its log, the scores of its test, and sums of its parameters."""
    run = Run(run_dir)
    variables = run.variables("last")
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    results = json.loads((run_dir / "results.json").read_text())
    return {
        "training": [without_times(record) for record in run.log.records("training")],
        "evaluation": [without_times(record) for record in run.log.records("evaluation")],
        "results": {name: found["value"] for name, found in results.items() if isinstance(found, dict)},
        "parameters": {jax.tree_util.keystr(path): sums(np.asarray(leaf)) for path, leaf in leaves},
    }


def machine() -> list[str]:
    """What rounding depends on: the version of the compiler, its options, and the processor."""
    flags = sorted(os.environ.get("XLA_FLAGS", "").split())
    return [jax.__version__, *flags, os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS", ""), processor()]


def sums(leaf: np.ndarray) -> list[float]:
    """The sum of an array, and of its magnitudes."""
    values = leaf.astype(np.float64)
    return [float(values.sum()), float(np.abs(values).sum())]


def without_times(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record that do not depend on the machine."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, int | float) and not any(part in name for part in OF_THE_MACHINE)
    }


def make(name: str) -> None:
    """Trains the run of a system in the current folder, and stores it as it was after `STOPPED` updates."""
    place, stored = Path(name), Path(f"{name}.zip")
    (place / "corpus").mkdir(parents=True)
    config = config_of(name, place)
    if getattr(config.model, "teacher", None):
        model = dataclasses.replace(config.model, teacher=Path("synthesis", "run"))
        config = dataclasses.replace(config, model=model)
    train(config, place / "run", watch=quiet())
    (place / "expected.json").write_text(
        json.dumps({"made_by": machine()} | computed(place / "run"), indent=1) + "\n"
    )
    for checkpoint in place.glob("run/checkpoints/[0-9]*"):
        if checkpoint.name != str(STOPPED):  # a student's teacher is as it is stored
            shutil.rmtree(checkpoint)
    files = [place / "expected.json", *place.glob("corpus/*.*"), *place.glob("corpus/text")]
    files += [path for path in place.glob("run/*") if path.name not in ENDED]
    files += place.glob("run/checkpoints/**/*")
    with zipfile.ZipFile(stored, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(filter(Path.is_file, files)):
            archive.write(path)


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    for system in sys.argv[2:] or REGISTRY:
        make(system)
