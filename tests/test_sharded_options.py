"""The networks of pretrained models train and search alike on one device and on a mesh.

Tolerances: float32 sums in another order differ by about 1e-7 of their terms, and a gradient is a sum of a
few of them.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from options_on_a_mesh import NAMES
from run_command import on_devices

QUICK = "pretrained/t5-1.1"  # relative positions, gates, RMSNorm; the others are slow tests


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [[QUICK], pytest.param([name for name in NAMES if name != QUICK], marks=pytest.mark.slow)],
    ids=["quick", "others"],
)
def test_networks_of_pretrained_models_are_sharded(names: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, Path(__file__).parent / "options_on_a_mesh.py", *names],
        env=on_devices(4),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert list(found) == names
    for name, differences in found.items():
        assert differences["loss"] < 1e-6, name
        assert differences["parameters"] < 1e-6, name
        assert differences["change"] > 0.01, name  # equal parameters that did not change would prove nothing
        assert differences.get("lists") == differences.get("expected"), name
