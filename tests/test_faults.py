"""A training that is killed again and again, at any moment, ends with the same bits as one that never was."""

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from small_run import small_config

from transformer import Run
from transformer.config_json import to_json
from transformer.decoding.translator import model_shapes
from transformer.training.train import train
from transformer.training.watch import Watch

KILLS = 50
TRAIN = """
import sys
from transformer.config_json import from_json
from transformer.training.train import train
train(from_json(open(sys.argv[1]).read()), sys.argv[2])
"""


@pytest.mark.slow
def test_killed_at_fifty_random_moments(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    small = small_config(tmp_path / "text")
    # a checkpoint at every other step: many of the moments fall into the writing of one
    often = replace(small.training, steps=400, evaluate_every=2, log_every=1, evaluate_sentences=1)
    config = replace(small, training=often)
    begun = time.monotonic()
    train(config, tmp_path / "whole", watch=Watch(quiet=True))
    lasted = time.monotonic() - begun

    (tmp_path / "config.json").write_text(to_json(config))
    command = [sys.executable, "-c", TRAIN, str(tmp_path / "config.json"), str(tmp_path / "killed")]
    moments, kills, reached = random.Random(0), 0, [0]
    while True:
        with open(tmp_path / "log", "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ})
        try:
            # the first seconds are the start; then somewhere in what one process would do of the rest
            process.wait(4 + moments.random() * max(4.0, 2 * lasted / KILLS) if kills < KILLS else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            folder = tmp_path / "killed" / "checkpoints"
            steps = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
            reached.append(max(steps, default=0))
            assert reached[-1] >= reached[-2], "a checkpoint was lost"
            continue
        assert process.returncode == 0, (tmp_path / "log").read_text()
        break
    print(f"killed {kills} times, at checkpoints {reached}")
    assert kills >= 10  # where the machine is quick it is done before the fiftieth
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    shapes = model_shapes(whole.config)
    for ours, theirs in zip(
        *(jax.tree.leaves(run.variables(400, shapes)) for run in (whole, killed)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
