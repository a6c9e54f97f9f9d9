"""A release: what the archives hold, and that version, changelog, citation, image and pages agree."""

import ast
import gzip
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mkdocs_hooks
from transformer.cli.command_line import TrainLine
from transformer.cli.decode_arguments import parse_decode
from transformer.commands.decode_files import FilesArguments
from transformer.commands.train import _initial_arguments

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
NAME = f"transformer_jax-{VERSION}"
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # of Keep a Changelog
NOT_RELEASED = {".pre-commit-config.yaml"}
EPOCH = 1_800_000_000


def tracked() -> set[str]:
    """The files in git, and new ones beside them."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: what belongs in the archives is what git has")

    def listed(*options: str) -> set[str]:
        command = ["git", "-C", str(ROOT), "ls-files", "-z", *options]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        return {name for name in found if name and (ROOT / name).is_file()}

    known = listed("--cached")
    folders = {name.partition("/")[0] for name in known if "/" in name}
    new = listed("--others", "--exclude-standard")
    return known | {name for name in new if "/" in name and name.partition("/")[0] in folders}


def built(checkout: Path, folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of a checkout, by hatchling itself: nothing is downloaded."""
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(checkout)).build(directory=str(folder), versions=["standard"])
    (sdist,) = SdistBuilder(str(checkout)).build(directory=str(folder))
    return Path(wheel), Path(sdist)


def test_the_archives_hold_what_belongs_there(tmp_path: Path) -> None:
    expected = tracked()
    wheel, sdist = built(ROOT, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        info = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
        package = {name for name in expected if name.startswith("transformer/")}
        assert set(archive.namelist()) == package | {f"{NAME}.dist-info/{name}" for name in info}
    with tarfile.open(sdist) as archive:
        names = {member.name.removeprefix(f"{NAME}/") for member in archive}
    assert names == expected - NOT_RELEASED | {"PKG-INFO"}


@pytest.mark.slow  # copies the checkout twice
def test_two_builds_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From copies whose files have other times and permissions."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    archives = []
    for number, (mode, time) in enumerate([(0o644, 1_000_000_000), (0o600, 1_500_000_000)]):
        copy = tmp_path / str(number)
        for name in sorted(tracked(), reverse=bool(number)):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
            (copy / name).chmod(mode)
            os.utime(copy / name, (time, time))
        command = [sys.executable, "-m", "build", "--no-isolation", str(copy)]
        subprocess.run(command, check=True, capture_output=True)
        archives.append({path.name: path.read_bytes() for path in (copy / "dist").iterdir()})
    assert archives[0].keys() == {f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"}
    assert archives[0] == archives[1]
    with tarfile.open(copy / "dist" / f"{NAME}.tar.gz") as archive:
        assert {member.mtime for member in archive} == {EPOCH}
    with gzip.open(copy / "dist" / f"{NAME}.tar.gz") as stream:
        stream.read(1)
        assert stream.mtime == EPOCH


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *released = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert first == "[Unreleased]"
    heading = re.compile(r"\[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d\d-\d\d)")
    versions = [match.groups() for line in released if (match := heading.fullmatch(line))]
    assert len(versions) == len(released)
    assert versions[0][0] == VERSION
    assert all(date != "unreleased" for _, date in versions[1:])
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= KINDS
    for page in re.findall(r"\]\((?!https:)([^)#]+)", text):
        assert (ROOT / page).is_file(), page


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format requires
    assert citation["version"] == VERSION
    assert citation["license"] == PROJECT["license"]
    assert citation.get("repository-code") == PROJECT.get("urls", {}).get("Repository")


def test_addresses_of_the_site_come_from_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = 'Repository = "https://code.example/us/it"\nDocumentation = "https://it.example/"'
    (tmp_path / "pyproject.toml").write_text(f"[project]\n[project.urls]\n{urls}\n")
    site = SimpleNamespace(repo_url=None, repo_name=None, edit_uri=None, site_url=None)
    monkeypatch.setattr(mkdocs_hooks, "PYPROJECT", tmp_path / "pyproject.toml")
    assert vars(mkdocs_hooks.on_config(site)) == {
        "repo_url": "https://code.example/us/it",
        "repo_name": "us/it",
        "edit_uri": "edit/main/docs/",
        "site_url": "https://it.example/",
    }
    assert not re.search(r"^(repo_url|site_url|edit_uri)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_pythons_that_are_claimed_are_those_that_were_tested() -> None:
    """The classifiers, and the table that `.ci/matrix` made."""
    prefix = "Programming Language :: Python :: 3."
    claimed = {int(line.removeprefix(prefix)) for line in PROJECT["classifiers"] if line.startswith(prefix)}
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| 3\.(\d+)\.\d+ \|.*\| (\d+ passed[^|]*) \|", page, re.MULTILINE)
    assert {int(minor) for minor, _ in rows} == claimed
    assert not any("failed" in result for _, result in rows)
    assert min(claimed) == int(PROJECT["requires-python"].removeprefix(">=3."))


def table_of(script: str) -> Any:
    """The constant TESTS of a script in `.ci`."""
    body = ast.parse((ROOT / ".ci" / script).read_text(encoding="utf-8")).body
    constants = {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}
    return ast.literal_eval(constants["TESTS"])


def test_the_quick_tests_of_the_matrix_are_there() -> None:
    for file, _, function in (name.partition("::") for name in table_of("matrix")):
        assert f"def {function}" in (ROOT / file).read_text(encoding="utf-8")


def test_the_modules_of_mutation_testing_and_their_tests_are_there() -> None:
    for module, names in table_of("mutants").items():
        assert (ROOT / "transformer" / f"{module}.py").is_file()
        assert all((ROOT / "tests" / f"test_{name}.py").is_file() for name in names.split())


OLD_PIP = """#!{python}
import json, pathlib, sys
is_new = pathlib.Path(sys.argv[0] + ".new")
metadata = {{"name": "A.b", "version": "1", **({{"license_expression": "MIT"}} if is_new.exists() else {{}})}}
if "--upgrade" in sys.argv:
    is_new.touch()
else:
    report = pathlib.Path(sys.argv[sys.argv.index("--report") + 1])
    report.write_text(json.dumps({{"install": [{{"metadata": metadata}}]}}))
"""
"""Of Python 3.11 and 3.12: it does not report the expression of a licence before it is upgraded."""


def test_licences_are_reported_whatever_pip_comes_with_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(folder: str, with_pip: bool) -> None:
        pip = Path(folder) / "bin" / "pip"
        pip.parent.mkdir()
        pip.write_text(OLD_PIP.format(python=sys.executable))
        pip.chmod(0o755)

    monkeypatch.setattr("venv.create", create)
    functions = runpy.run_path(str(ROOT / ".ci" / "resolved.py"))
    (package,) = functions["resolved"]("serve")
    assert functions["pinned"](package) == "a-b==1"
    assert package["license_expression"] == "MIT"


def test_a_package_may_name_no_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    licence = runpy.run_path(str(ROOT / ".ci" / "audit"))["licence"]
    for blank in None, "", " ", "\n ":
        assert licence({"license": blank, "license_expression": blank}) == "none named"
    assert licence({"license": "\n MIT\nPermission is"}) == "MIT"


CONSTRAINTS = "deploy/constraints.txt"


def test_the_image_is_made_of_what_is_there() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    copied = {name for kind, rest in instructions if kind == "COPY" for name in rest.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    assert {
        "pyproject.toml",
        PROJECT["readme"],
        *PROJECT["license-files"],
        "transformer",
        CONSTRAINTS,
    } == copied
    ignore = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    assert {line[1:] for line in ignore.splitlines() if line.startswith("!")} == copied
    values = dict(rest.split("=", 1) for kind, rest in instructions if kind == "ARG")
    extras = PROJECT["optional-dependencies"]
    assert {*values["EXTRAS"].split(","), "cuda", "tpu"} <= extras.keys()
    assert f"3.{values['PYTHON'].removeprefix('3.')}" in {
        line.split(" :: ")[-1] for line in PROJECT["classifiers"]
    }
    pinned = dict(line.split("==") for line in (ROOT / CONSTRAINTS).read_text().splitlines()[1:])
    needed = [
        *PROJECT["dependencies"],
        *(one for name in values["EXTRAS"].split(",") for one in extras[name]),
    ]
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])
    assert {"jax-cuda13-plugin", "libtpu"} <= pinned.keys()
    entry = next(rest for kind, rest in instructions if kind == "ENTRYPOINT")
    assert entry.split('"')[1] in PROJECT["scripts"]


@pytest.mark.skipif(not shutil.which("hadolint"), reason="hadolint is not here")
def test_the_image_passes_its_linter() -> None:
    found = subprocess.run(["hadolint", str(ROOT / "deploy" / "Dockerfile")], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


JOBS = ROOT / "deploy" / "jobs"
FIELDS = {
    "JobSet": {"failurePolicy", "replicatedJobs"},
    "RayJob": {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "rayClusterSpec"},
}
"""What is required of each kind, or what happens when a machine is lost depends on it."""


def strings_in(value: Any) -> list[str]:
    """All texts in a YAML document."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in strings_in(part)]


@pytest.mark.parametrize("path", sorted(JOBS.iterdir()), ids=lambda path: path.name)
def test_commands_of_examples_are_understood(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By our own parsers; numbers stand for what a job puts in."""
    text = path.read_text(encoding="utf-8")
    scripts = [text]
    if path.suffix == ".yaml":
        documents = list(yaml.safe_load_all(text))
        scripts = [script for document in documents for script in strings_in(document)]
        for document in documents:
            assert document.get("spec", {}).keys() == FIELDS.get(document.get("kind"), set())
    scripts = [script.replace("\\\n", " ") for script in scripts if "transformer " in script]
    for script in scripts:
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0, script
    monkeypatch.setattr("transformer.commands.train._is_run", lambda path: False)
    monkeypatch.setattr("transformer.cli.decode_arguments.has", lambda *path: False)
    commands = re.findall(r"transformer (train|decode-files) (.*)", "\n".join(scripts))
    assert commands
    for name, rest in commands:
        rest = rest.replace("$SKYPILOT_NUM_NODES", "2")
        words = [re.sub(r"\$\(.*?\)|\$\w+", "1", word) for word in shlex.split(rest)]
        if name == "train":
            _initial_arguments(TrainLine.of(words))
        else:
            parse_decode(words, (), FilesArguments, name)


@pytest.mark.parametrize(
    ("script", "status", "again"),
    [
        ("slurm.sh", 143, True),
        ("slurm.sh", 0, True),  # its minutes were over
        ("slurm.sh", 2, False),
        ("slurm-decode.sh", 143, True),
        ("slurm-decode.sh", 0, False),
        ("slurm-decode.sh", 2, False),
    ],
)
def test_jobs_of_slurm_that_are_not_done_start_again(
    script: str, status: int, again: bool, tmp_path: Path
) -> None:
    for name, line in ("srun", f"exit {status}"), ("scontrol", f'echo "$@" > {tmp_path}/requeued'):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
    }
    assert subprocess.run(["bash", JOBS / script], env=environment).returncode == status
    assert (tmp_path / "requeued").exists() == again
