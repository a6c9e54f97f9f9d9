"""Systems from outside the package: the contracts hold for each of them, in every layout.

The toy systems of `toys` train on one device, on eight replicas and on a mesh; stop and resume,
also elsewhere; accumulate gradients; evaluate, decode and report. In the default tier one of them does so in
two layouts; in the slow tier all of them in all layouts.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from run_command import on_devices
from tiers import mostly_slow
from toy_runs import LAYOUTS, is_resumed
from toys import QUICK, TOYS, TRAINED, register_toys
from toys.forbidden import FORBIDDEN

from transformer import Decoder, Run, Translator, UserError
from transformer.cli.decode_arguments import parse_decode
from transformer.commands.decode_lines import decode_lines
from transformer.runs.report import REPORT
from transformer.systems.registry import REGISTRY, find_system

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where some toys were trained on one device and on replicas."""
    folder = tmp_path_factory.mktemp("toys")
    for layout in ("one", "replicas"):
        trained_on(folder, layout, "quick")
    return folder


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all were trained in every layout."""
    folder = tmp_path_factory.mktemp("everywhere")
    for layout in LAYOUTS:
        trained_on(folder, layout, "all")
    return folder


def trained_on(folder: Path, layout: str, which: str) -> None:
    """Trains the toys in a layout, and resumes those of one device there."""
    devices, *_ = LAYOUTS[layout]
    ran = subprocess.run(
        [sys.executable, TESTS / "toy_runs.py", folder, layout, "" if layout == "one" else "one", which],
        env=on_devices(devices),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == {"devices": devices}


def arrays(folder: Path, name: str, kind: str) -> dict[str, np.ndarray]:
    return dict(np.load(folder / name / f"{kind}.npz"))


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    """The toys are known to this file only: others run over the registry."""
    register_toys()
    yield
    for name in TOYS:
        del REGISTRY[name]


every_toy = pytest.mark.parametrize("name", mostly_slow(tuple(TOYS), QUICK))


@pytest.fixture
def trained(name: str, request: pytest.FixtureRequest) -> Path:
    """The run of a toy on one device."""
    return request.getfixturevalue("folder" if name in QUICK else "everywhere") / name / "one-whole"


def check_same(folder: Path, name: str, kind: str) -> None:
    """Asserts that a run has the results of one device."""
    expected, found = arrays(folder, name, "one-whole"), arrays(folder, name, kind)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, atol=2e-5, rtol=1e-4, err_msg=key)


def check_resumed(folder: Path, layout: str, name: str) -> None:
    """Asserts that a resumed run has the bits of an uninterrupted one."""
    whole, resumed = (arrays(folder, name, f"{layout}-{kind}") for kind in ("whole", "resumed"))
    for key, value in whole.items():
        assert (resumed[key] == value).all(), key


def check_losses(folder: Path, name: str) -> None:
    """Asserts that a run has learned: a later loss is lower than the first. (The last one need not be, where
    each batch has masks of its own.)"""
    losses = arrays(folder, name, "one-whole")["losses"]
    assert np.isfinite(losses).all()
    assert losses[1:].min() < losses[0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("kind", ["replicas-whole", "one-accumulated"])
def test_layouts_and_slices_give_the_same_results(folder: Path, name: str, kind: str) -> None:
    check_same(folder, name, kind)


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
def test_resumed_runs_equal_uninterrupted_ones_bit_for_bit(folder: Path, name: str) -> None:
    for layout in ("one", "replicas"):
        if is_resumed(name, layout):
            check_resumed(folder, layout, name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
def test_runs_resume_on_another_number_of_devices(folder: Path, name: str) -> None:
    check_same(folder, name, "replicas-moved")


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_all_of_this_holds_for_every_one_in_every_layout(everywhere: Path, name: str) -> None:
    for kind in ("one-accumulated", "replicas-whole", "replicas-moved", "mesh-whole", "mesh-moved"):
        check_same(everywhere, name, kind)
    for layout in LAYOUTS:
        if is_resumed(name, layout):
            check_resumed(everywhere, layout, name)
    check_losses(everywhere, name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", QUICK)
def test_losses_fall(folder: Path, name: str) -> None:
    check_losses(folder, name)


@pytest.mark.thorough
@every_toy
def test_evaluations_and_reports_have_the_tasks_scores(trained: Path, name: str) -> None:
    run = Run(trained)
    measure = TOYS[name].task.criterion
    evaluations = run.log.records("evaluation")
    assert [record["step"] for record in evaluations] == [2, 4]
    assert all(np.isfinite(record[measure.name]) for record in evaluations)
    best = (max if measure.higher_is_better else min)(record[measure.name] for record in evaluations)
    assert next(r for r in evaluations if r["step"] == run.checkpoints.best())[measure.name] == best
    results = json.loads((run.path / "results.json").read_text())
    assert results["split"] == "test"
    assert results["sentences"] == len(run.task.open_corpus(run.config).splits["test"])
    assert results[measure.name]["title"] == measure.title
    page = (run.path / REPORT).read_text()
    assert f"validation {measure.title}" in page
    assert f"test {measure.title}" in page


@pytest.mark.thorough
def test_statistics_are_those_of_activations_and_of_gradients(folder: Path) -> None:
    found = arrays(folder, "toy-tracked", "one-whole")
    squares = found["['statistics']['tracked']['squares']"]
    gradient = found["['gradient_statistics']['tracked']['gradient']"]
    assert (squares > 0).all()
    assert not np.allclose(squares, 1)
    assert (gradient > 0).all()


LINES = {
    "toy-frames": "0.1 0.2 0.3",
    "toy-memory": "1 1 2 3 5 8",
    "toy-waves": "3 7",
    "toy-images": "0 0 0 1 1 1 0 0 0",
}


@pytest.mark.thorough
@every_toy
def test_trained_systems_decode(trained: Path, name: str) -> None:
    decoder = Decoder.load(trained)
    record = decoder.task.record(LINES.get(name, "red green blue"))
    (first, *_), (again, *_) = decoder.decode([record, record])
    line = decoder.task.line(first)
    assert decoder.task.line(again) == line
    if name in LINES:
        with pytest.raises(UserError, match=f"does not translate: {name}"):
            Translator.load(trained)
    else:
        assert Translator.load(trained).translate("red green blue") == line
    if name == "toy-waves":
        assert first.shape == (10, 2)


@pytest.mark.thorough
@every_toy
def test_the_command_decodes_lines(trained: Path, name: str, tmp_path: Path) -> None:
    lines = tmp_path / "in"
    line = LINES.get(name, "red green blue")
    lines.write_text(f"{line}\n" * 3)
    decode_lines(parse_decode([str(trained), "--input", str(lines), "--output", str(tmp_path / "out")]))
    decoder = Decoder.load(trained)
    ((output, *_),) = decoder.decode([decoder.task.record(line)])
    assert (tmp_path / "out").read_text() == f"{decoder.task.line(output)}\n" * 3
    if name in LINES:
        refused = [["--reference", str(lines)], ["--rescore", str(trained)]]
        if name != "toy-frames":
            refused += [["--format", "json"], ["--n-best", "2"]]
        for option in refused:
            with pytest.raises(UserError, match="does not translate|writes text"):
                decode_lines(parse_decode([str(trained), "--input", str(lines), *option]))


@pytest.mark.slow
def test_texts_of_any_task_are_written_with_scores_and_alignments(everywhere: Path, tmp_path: Path) -> None:
    """Token scores add up to those of the search, also with two inputs, of which one is no sequence."""
    run_dir, lines, out = everywhere / "toy-frames" / "one-whole", tmp_path / "in", tmp_path / "out"
    lines.write_text("0.1 0.2 0.3\n1 2\n")
    options = ["--beam-size", "3", "--method", "beam", "--n-best", "2", "--format", "json"]
    command = [str(run_dir), "--input", str(lines), "--output", str(out), *options]
    decode_lines(parse_decode([*command, "--alignments", "--token-scores"]))
    about = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(each["line"], each["input"]) for each in about] == [(1, "0.1 0.2 0.3"), (2, "1 2")]
    for each, frames in zip(about, (3, 2), strict=True):
        assert len(each["hypotheses"]) == 2
        for hypothesis in each["hypotheses"]:
            assert hypothesis["text"] == " ".join(hypothesis["tokens"])
            total = sum(hypothesis["token_log_probabilities"])
            assert total == pytest.approx(hypothesis["log_probability"], abs=1e-3)
            weights = np.array(hypothesis["alignment"])
            assert weights.shape == (len(hypothesis["token_log_probabilities"]), frames)
            np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-3)


@pytest.mark.slow
def test_a_hook_forbids_a_token(everywhere: Path) -> None:
    translator = Translator.load(everywhere / "toy-forbidden" / "one-whole")
    sources = ["red green blue", "cat dog bird runs"] * 9
    for options in ({"method": "beam"}, {"method": "greedy"}, {"method": "sample", "temperature": 10.0}):
        found = translator.search(sources, **options)
        tokens = [token for several in found for hypothesis in several for token in hypothesis.ids]
        assert len(tokens) >= len(sources)
        assert FORBIDDEN not in tokens
    assert len(set(tokens)) > 5
    translator.system = find_system("transformer")  # the same model without the hook
    translator._services.clear()
    found = translator.search(["red green blue"] * 9, method="sample", temperature=10.0)
    assert any(FORBIDDEN in hypothesis.ids for several in found for hypothesis in several)
