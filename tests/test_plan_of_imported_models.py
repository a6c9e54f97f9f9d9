"""`train.py --init-from RUN --plan MACHINE` for imported models of every family: the network that is planned
has the parameters that were imported."""

import json
from pathlib import Path

import pytest
from flax.traverse_util import flatten_dict
from tiers import mostly_slow

from transformer.commands.train import train_main
from transformer.interop.pretrained import import_model
from transformer.runs.run import Run
from transformer.training.parametrisation import chosen

DATA = Path(__file__).parent / "data"
FAMILIES = sorted(path.name for path in (DATA / "pretrained").iterdir())
TOKENS, FRAMES, BANDS = 256, 6000, 80


@pytest.mark.slow
@pytest.mark.parametrize("family", mostly_slow([*FAMILIES, "marian", "whisper"], ["t5"]))
def test_the_imported_network_is_planned(family, tmp_path, call):
    """A step holds the parameters and the two moments of Adam of those that are trained, in float32, and a
    batch."""
    folder = DATA / "pretrained" / family if family in FAMILIES else DATA / family
    languages = ("en",)
    if family != "whisper":
        languages = json.loads((folder / "golden.json").read_text()).get("languages", ())
    import_model(folder, tmp_path / "run", *languages)
    run = Run(tmp_path / "run")
    params = flatten_dict(run.variables("best")["params"])
    fixed = chosen("fixed", run.config.model.fixed, params)
    state = 4 * sum(x.size * (1 if path in fixed else 3) for path, x in params.items())

    heard = family == "whisper"
    text = ["--data.train"] if heard else ["--data.train-source", "--data.train-target"]
    options = [word for option in text for word in (option, tmp_path / "text")]
    options += ["--data.batch-tokens", FRAMES if heard else TOKENS]
    (tmp_path / "text").write_text("a.wav\ta word\n" if heard else "a word\n")
    report = tmp_path / "plan.json"
    words = ["--init-from", tmp_path / "run", *options, "--plan", "cpu:1", "--plan-json", report]
    status, _, errors = call(train_main, *words)
    assert status == 0, errors
    found = json.loads(report.read_text())
    batch = found["step"]["memory"]["state and batch"] - state
    frames = 4 * FRAMES * BANDS if heard else 0
    assert frames < batch <= frames + 4 * 8 * TOKENS  # at most eight integers for each token
    assert found["search"]["memory"]["total"] > state / 3
