"""What pip would install of the package, without installing it."""

import json
import subprocess
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def resolved(extras: str) -> list[dict[str, Any]]:
    """The metadata of all packages, by their names.

    Args:
      extras: of the package, separated by commas.

    Raises:
      SystemExit: pip found no versions that go together.
    """
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        install = [Path(folder) / "bin" / "pip", "install", "--quiet"]
        subprocess.run([*install, "--upgrade", "pip"])  # one that comes with Python may report no licences
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--report", report]
        if subprocess.run([*install, *options, f"{CHECKOUT}[{extras}]"]).returncode:
            raise SystemExit("the versions could not be found out: see above")
        packages = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    return sorted((each for each in packages if each["name"] != PROJECT["name"]), key=pinned)


def pinned(package: dict[str, Any]) -> str:
    """A requirement of exactly this version."""
    return f"{package['name'].lower().replace('_', '-').replace('.', '-')}=={package['version']}"
