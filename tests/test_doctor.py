"""`transformer doctor`: on this machine, and on others that are described by files."""

import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from run_command import ROOT, on_devices

from transformer.commands import doctor, installation
from transformer.commands.doctor import doctor_main
from transformer.commands.trial import disagreements, failures
from transformer.runtime import machine
from transformer.runtime.machine import PURPOSES

VERSIONS = {"Python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2"}
GIB = 2**30


@pytest.fixture
def untried(monkeypatch):
    """Without the test of the devices."""
    monkeypatch.setattr(doctor, "_tried", lambda: ([], "", ""))


def doctor_apart(*options: str, **environment: str) -> subprocess.CompletedProcess:
    """The command in a process of its own, which prints the modules that it has imported at its end."""
    program = (
        "import atexit, sys; from transformer.commands.main import main\n"
        "atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr))\n"
        "sys.exit(main())"
    )
    words = [sys.executable, "-c", program, "doctor", *options]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.thorough
def test_this_machine_works():
    done = doctor_apart("--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, [])
    assert "'tyro'" in done.stderr
    assert not {name for name in ("jax", "numpy", "flax") if f"'{name}'" in done.stderr}
    assert report["ok"]
    assert report["versions"]["jax"] == metadata.version("jax")
    assert report["machine"]["cores"] >= 0.1
    assert report["machine"]["memory"] > report["machine"]["free memory"] > 0
    assert report["folders"]["compiled programs"]["writable"]
    (result,) = report["tests"]
    assert 0 < result["losses"][1] < result["losses"][0]
    assert all(row[-1] in (0, 2) or len(row) == 4 for row in result["tokens"])


@pytest.mark.slow
def test_two_devices_agree_and_work_together():
    done = doctor_apart(**on_devices(2))
    assert done.returncode == 0, done.stdout
    assert "  1      loss" in done.stdout
    assert "  all    loss" in done.stdout
    assert "  agree  yes" in done.stdout
    assert done.stdout.endswith("Everything works.\n")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"JAX_PLATFORMS": "abacus"}, "JAX cannot start: Unable to initialize backend 'abacus'"),
        ({"XLA_FLAGS": "--xla_abacus"}, "before JAX named a device: correct XLA_FLAGS"),
    ],
)
def test_a_jax_that_cannot_start_is_one_sentence(environment, sentence):
    done = doctor_apart(**environment)
    assert done.returncode == 1
    assert "\n1 problem:\n" in done.stdout
    assert sentence in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr


def test_nothing_is_installed():
    """Python finds the package, and none of what it requires."""
    words = [sys.executable, "-S", "-m", "transformer", "doctor", "--format", "json"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(words, cwd=ROOT, env=bare, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem == "packaging is missing, and perhaps more: install the package again (pip install .)"


def test_a_test_that_hangs_or_fails(monkeypatch, call):
    with monkeypatch.context() as impatient:
        impatient.setattr(doctor, "PATIENCE", 0.01)
        status, out, err = call(doctor_main)
    assert (status, err) == (1, "")
    assert "the test of the devices did not end in 0.01 s before JAX named a device: try JAX_PLATFORMS" in out
    found = [
        {"devices": [{"id": 0, "platform": "gpu", "kind": "X", "memory": GIB}]},
        {"device": 0, "error": "no"},
    ]
    monkeypatch.setattr(doctor, "_tried", lambda: (found, "", "was ended by signal 11"))
    status, out, err = call(doctor_main)
    assert (status, err) == (1, "")
    assert "  0  gpu, X, 1.0 GiB for programs\n" in out
    assert "  - the test of the devices was ended by signal 11 after 1 device: " in out
    assert "  - the test on device 0 failed (no): " in out


def result(device, *losses, tokens=((1, 2),)):
    return {"device": device, "losses": list(losses), "tokens": list(map(list, tokens)), "seconds": 1.0}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([result(0, 3.0, 2.0), result(1, 3.0, 2.001), result("all", 3.0, 2.0, tokens=())], []),
        ([result(0, 3.0, None)], ["the loss on device 0 is not finite"]),
        ([result(0, 3.0, 3.0)], ["an update on device 0 did not lower the loss"]),
        ([result(0, 3.0, 2.0), result(1, 3.0, 2.2)], ["device 1 and device 0 do not agree"]),
        ([result(0, 3.0, 2.0), result(1, 3.0, 2.0, tokens=[[3, 2]])], ["device 1 and device 0 do not agree"]),
        ([result(0, 3.0, 3.0), result(1, 3.0, 2.0)], ["an update on device 0 did not lower the loss"]),
        ([result(0, 3.0, 2.0), result("all", 3.0, 1.0, tokens=())], ["all devices together and device 0 do"]),
    ],
)
def test_what_devices_compute(results, expected):
    found = [*failures(results), *disagreements(results)]
    assert len(found) == len(expected)
    assert all(sentence.startswith(words) for sentence, words in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"jaxlib": "0.10.1"}, []),  # JAX has patches without one of jaxlib
        ({"jaxlib": "0.9.2"}, ["jax 0.10.2 and jaxlib 0.9.2 do not belong together: pip install 'jax=="]),
        ({"jaxlib": "0.10.3"}, ["jax 0.10.2 and jaxlib 0.10.3 do not belong together"]),
        ({"Python": "3.10.4"}, ["Python 3.10.4 is older than this package supports (>=3.11)"]),
        (
            {"jax-cuda13-plugin": "0.9.0"},
            ["jax-cuda13-plugin 0.9.0 does not belong to jaxlib 0.10.2: pip install 'jax[cuda13]==0.10.2'"],
        ),
    ],
)
def test_versions(changes, expected):
    found = list(installation.problems_of_versions(installation.declared(), {**VERSIONS, **changes}))
    assert len(found) == len(expected)
    assert all(sentence.startswith(words) for sentence, words in zip(found, expected, strict=True))


def test_what_is_missing_of_requirements(monkeypatch):
    here = {"jax": "0.10.2", "soxr": "0.4"}
    monkeypatch.setattr(installation, "installed_version", here.get)
    inner = {"jax": ['plugin; extra == "cuda13"', 'other; extra == "tpu"', "numpy"]}
    monkeypatch.setattr(metadata, "requires", inner.get)
    lines = ["jax>=0.10", "numpy>=2", 'soxr>=0.5; extra == "speech"', 'jax[cuda13]; extra == "cuda"']
    assert list(installation.unmet(lines)) == ["numpy"]
    assert list(installation.unmet(lines, "speech")) == ["soxr >=0.5 (found 0.4)"]
    assert installation.missing_extras(lines) == {"speech": ("soxr >=0.5 (found 0.4)",), "cuda": ("plugin",)}


def test_every_extra_has_a_purpose():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert PURPOSES.keys() == extras.keys() - {"test", "docs", "bench"}


def test_what_was_installed_is_known_without_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr("transformer.__file__", str(tmp_path / "transformer" / "__init__.py"))
    about = installation.declared()
    assert about.python == ">=3.11"
    assert any(line.startswith("jax") for line in about.requirements)


def test_variables_without_secrets(monkeypatch, untried, call):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    monkeypatch.setenv("HF_ENDPOINT", "https://name:word@host/")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("TRANSFORMER_API_KEY", "secret")
    _, out, _ = call(doctor_main, "--format", "json")
    shown = json.loads(out)["environment"]
    assert shown["XLA_FLAGS"] == "--xla_dump_to=x"
    assert shown["HF_ENDPOINT"] == "https://...@host/"
    assert "secret" not in out


def test_folders(monkeypatch, untried, call, tmp_path):
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "program").write_bytes(bytes(3 * 2**20))
    monkeypatch.setenv("TRANSFORMER_CACHE", "/sys/cache")  # where even root cannot write
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    status, out, _ = call(doctor_main, "--format", "json")
    folders, problems = (json.loads(out)[name] for name in ("folders", "problems"))
    assert status == 1
    assert problems == [
        "/sys cannot be written to (prepared text): set TRANSFORMER_CACHE to a folder that you can write to"
    ]
    assert folders["compiled programs"]["size"] == 3 * 2**20
    assert not folders["prepared text"]["exists"]
    monkeypatch.setenv("TRANSFORMER_CACHE", str(tmp_path / "new" / "folder"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("TRANSFORMER_COMPILED", "off")
    monkeypatch.setattr(doctor, "LEAST_DISK", 2**62)
    status, out, _ = call(doctor_main)
    assert status == 1
    assert "compiled programs  off" in out
    assert f"  - {tmp_path} has only " in out
    assert not (tmp_path / "new").exists()


def test_a_user_without_a_home(monkeypatch, untried, call):
    def homeless(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TRANSFORMER_CACHE", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    status, out, _ = call(doctor_main)
    assert status == 1
    assert "this user has no home directory; set TRANSFORMER_CACHE" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("files", "versions", "setting", "expected"),
    [
        (("dev/nvidia0", "dev/nvidiactl"), {}, "", "JAX has no plugin for it: pip install '.[cuda]'"),
        (("dev/nvidia0",), {"jax-cuda13-plugin": "0.10.2"}, "", "update the driver"),
        (("dev/nvidia0",), {}, "cpu", None),
        (("dev/nvidiactl",), {}, "", None),
        (("dev/accel0",), {}, "", "JAX has no library for it: pip install '.[tpu]'"),
        (
            ("dev/vfio/0", "sys/bus/pci/devices/0/vendor"),
            {"libtpu": "0.0.30"},
            "",
            "does another process hold",
        ),
    ],
)
def test_accelerators_that_jax_does_not_use(monkeypatch, tmp_path, files, versions, setting, expected):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("0x1ae0\n")
    monkeypatch.setenv("JAX_PLATFORMS", setting)
    for name in ("nvidia_gpus", "tpus"):
        found = getattr(machine, name)(tmp_path)
        monkeypatch.setattr(machine, name, lambda found=found: found)
    problems = list(doctor._unused("cpu", versions))
    assert [expected in problem for problem in problems] == [True] * (expected is not None)
    assert list(doctor._unused("gpu", versions)) == []


PROC = {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n"}
V2 = {**PROC, "proc/self/cgroup": "0::/job/step\n"}
V1 = {**PROC, "proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n"}
GROUP = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (PROC, (8, 6)),
        ({**V2, f"{GROUP}/job/memory.max": "max", f"{GROUP}/job/memory.current": "0"}, (8, 6)),
        (
            {**V2, f"{GROUP}/job/memory.max": f"{4 * GIB}", f"{GROUP}/job/memory.current": f"{3 * GIB}"},
            (4, 1),
        ),
        (
            {
                **V1,
                f"{GROUP}/memory/job/memory.limit_in_bytes": f"{2 * GIB}",
                f"{GROUP}/memory/job/memory.usage_in_bytes": f"{3 * GIB}",
                f"{GROUP}/memory/memory.limit_in_bytes": f"{2**63 - 4096}",
                f"{GROUP}/memory/memory.usage_in_bytes": "7",
            },
            (2, 0),
        ),
    ],
)
def test_memory(tmp_path, files, expected):
    write(tmp_path, files)
    assert machine.memory(tmp_path) == tuple(size * GIB for size in expected)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (PROC, 8),
        ({**V2, f"{GROUP}/job/cpu.max": "max 100000", f"{GROUP}/cpu.max": "150000 100000"}, 1.5),
        (
            {
                **V1,
                f"{GROUP}/cpu/job/cpu.cfs_quota_us": "50000",
                f"{GROUP}/cpu/job/cpu.cfs_period_us": "100000",
                f"{GROUP}/cpu/cpu.cfs_quota_us": "-1",
            },
            0.5,
        ),
    ],
)
def test_cores(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    write(tmp_path, files)
    assert machine.cores(tmp_path) == expected


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("setting", "environment", "version", "again"),
    [
        ("always [madvise] never", {}, "glibc 2.36", True),
        ("[always] madvise never", {}, "glibc 2.36", False),
        ("always [madvise] never", {"GLIBC_TUNABLES": "glibc.malloc.check=1"}, "glibc 2.36", False),
        ("always [madvise] never", {}, "glibc 2.31", False),
        ("always [madvise] never", {}, None, False),
        (None, {}, "glibc 2.36", False),
    ],
)
def test_training_asks_for_large_pages_once(monkeypatch, tmp_path, setting, environment, version, again):
    file = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    if setting:
        file.parent.mkdir(parents=True)
        file.write_text(f"{setting}\n")
    called = []
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(os, "confstr", lambda _: version)
    monkeypatch.setattr(os, "execve", lambda *words: called.append(words))
    for caller in (["python", "-m", "pytest"], ["python", "-c", "run()", "train.py"]):
        monkeypatch.setattr(sys, "orig_argv", caller)
        machine.use_large_pages(tmp_path)
        assert not called  # another program called it
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--help"])
    machine.use_large_pages(tmp_path)
    expected = (
        sys.executable,
        [sys.executable, "train.py", "--help"],
        {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    )
    assert called == ([expected] if again else [])
