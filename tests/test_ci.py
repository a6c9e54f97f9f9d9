"""What `.ci/run` calls: warnings that are errors, ids of tests that are always the same, and tiers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WARNINGS = """
import warnings
import pytest

@pytest.mark.parametrize("kind", [UserWarning, DeprecationWarning, FutureWarning, ResourceWarning])
def test_that_warns(kind):
    warnings.warn("a name is old", kind)

@pytest.mark.parametrize(("message", "kind"), [
    ("Exception ignored in: None", pytest.PytestUnraisableExceptionWarning),
    ("Exception ignored in: <coroutine object _read_array at 0x7f>", pytest.PytestUnraisableExceptionWarning),
    ("Do not use the `random` module inside strategies", UserWarning),
])
def test_of_other_libraries(message, kind):
    warnings.warn(message, kind)
"""


def run(*command: object, folder: Path, options: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command of a checkout, with this Python as the first one on the path, and options of pytest."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {
        **os.environ,
        "PATH": path,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "xdist.plugin",
    }
    settings["PYTEST_ADDOPTS"] = options
    for name in [name for name in settings if name.startswith("PYTEST_XDIST")]:
        del settings[name]
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True)


def outcomes(printed: str) -> dict[str, int]:
    """`3 failed, 2 passed in 0.1s` as numbers."""
    words = printed.strip().splitlines()[-1].partition(" in ")[0].replace(",", "").split()
    return {kind: int(number) for number, kind in zip(words[::2], words[1::2], strict=True)}


TIERS = """
import pytest
from tiers import mostly_slow

def test_ordinary(): pass

@pytest.mark.thorough
def test_long(): pass

@pytest.mark.slow
def test_longer(): pass

@pytest.mark.thorough
@pytest.mark.parametrize("case", mostly_slow(["a", "b"], ["a"]))
def test_long_or_longer(case): pass

@pytest.mark.by_default("a", "b")
@pytest.mark.thorough("b")
@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_of_all_tiers(case): pass
"""


def test_each_test_is_in_one_tier(tmp_path: Path) -> None:
    tests = str(ROOT / "tests")
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {tests!r})\nfrom tiers import pytest_collection_modifyitems\n"
    )
    (tmp_path / "test_tiers.py").write_text(TIERS)
    command = "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "--collect-only", tmp_path
    found = {}
    for tier in ("default", "thorough", "slow"):
        shown = run(*command, *(() if tier == "default" else ("-m", tier)), folder=tmp_path)
        found[tier] = [line.partition("::test_")[2] for line in shown.stdout.splitlines() if "::" in line]
    assert found == {
        "default": ["ordinary", "of_all_tiers[a]"],
        "thorough": ["long", "long_or_longer[a]", "of_all_tiers[b]"],
        "slow": ["longer", "long_or_longer[b]", "of_all_tiers[c]"],
    }


def test_the_thorough_tests_follow_the_command_of_the_quick_start() -> None:
    *_, default, thorough = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert default == '.ci/strict bash -euc "$tests"'
    assert thorough.startswith('.ci/strict bash -euc "$tests -m thorough"')


@pytest.mark.by_default("0")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_warnings_are_errors_only_for_maintainers(tmp_path: Path, workers: str) -> None:
    """With the options of this project. Python itself hides one kind."""
    (tmp_path / "test_warnings.py").write_text(WARNINGS)
    command = "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "-n", workers, tmp_path
    shown = run(*command, folder=tmp_path)
    assert outcomes(shown.stdout) == {"passed": 7, "warnings": 6}, shown.stdout + shown.stderr
    strict = run(ROOT / ".ci/strict", *command, folder=tmp_path)
    assert outcomes(strict.stdout) == {"failed": 5, "passed": 2}, strict.stdout + strict.stderr


VALUES = {
    "time": "int(time.time())",
    "archive": "gzip.compress(b'text')",
    "set": "*{'one', 'two', 'three', 'four', 'five', 'six', 'seven'}",
    "folder": "__file__",
    "home": "os.path.expanduser('~')",
    "user": "getpass.getuser()",
    "zone": "time.strftime('%H', time.localtime(0))",
    "encoding": "locale.getpreferredencoding()",
}


@pytest.mark.slow
@pytest.mark.parametrize("values", [{"number": "1"}, VALUES], ids=["fixed", "changing"])
def test_ids_that_change_are_found(tmp_path: Path, values: dict[str, str]) -> None:
    named = "import getpass, gzip, locale, os, time\nimport pytest\n"
    for name, value in values.items():
        named += f"@pytest.mark.parametrize('value', [{value}])\ndef test_{name}(value):\n    pass\n"
    (tmp_path / "test_something.py").write_text(named)
    checked = run(ROOT / ".ci/collect", tmp_path, folder=tmp_path)
    changing = [name for name in values if f"> test_something.py::test_{name}[" in checked.stdout]
    assert changing == list(values) * (values is VALUES), checked.stdout + checked.stderr
    assert checked.returncode == bool(changing)


@pytest.mark.slow
def test_a_collection_that_fails_is_shown(tmp_path: Path) -> None:
    (tmp_path / "test_something.py").write_text("import nothing_of_this_name")
    checked = run(ROOT / ".ci/collect", tmp_path, folder=tmp_path)
    assert checked.returncode == 1
    assert "nothing_of_this_name" in checked.stdout


@pytest.mark.thorough
def test_a_test_without_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text(
        "def test_before(): pass\ndef test_without_end():\n    while True: pass\ndef test_after(): pass\n"
    )
    command = "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", "-n", "1", tmp_path
    shown = run(ROOT / ".ci/strict", *command, folder=tmp_path, options="-o faulthandler_timeout=1")
    assert outcomes(shown.stdout) == {"failed": 1, "passed": 1}, shown.stdout + shown.stderr
    assert "crashed while running" in shown.stdout
    assert "test_without_end" in shown.stderr
