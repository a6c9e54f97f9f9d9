"""What is installed of what this package requires, from the metadata of distributions, without importing
them."""

import platform
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

import transformer
from transformer.runtime.errors import counted
from transformer.runtime.invocation import installed_version
from transformer.runtime.machine import PURPOSES

NAME = "transformer-jax"
SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "libtpu")


@dataclass(frozen=True)
class Declared:
    """What this package requires.

    Attributes:
      python: a specifier such as ">=3.11".
      requirements: lines such as `soxr>=0.5; extra == "speech"`.
    """

    python: str
    requirements: list[str]


def declared() -> Declared:
    """What this package requires: of the checkout, if it is one, otherwise of what was installed."""
    project = Path(transformer.__file__).parent.parent / "pyproject.toml"
    if project.is_file():
        package_metadata = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        lines = list(package_metadata["dependencies"])
        for extra, needed in package_metadata["optional-dependencies"].items():
            lines += [_of_extra(line, extra) for line in needed]
        return Declared(package_metadata["requires-python"], lines)
    package_metadata = metadata.metadata(NAME)
    return Declared(package_metadata["Requires-Python"] or "", metadata.requires(NAME) or [])


def _of_extra(line: str, extra: str) -> str:
    """A requirement of an extra, as the metadata of a distribution have it."""
    requirement, _, marker = line.partition(";")
    conditions = [f"({marker.strip()})"] * bool(marker) + [f'extra == "{extra}"']
    return f"{requirement.strip()}; {' and '.join(conditions)}"


def versions() -> dict[str, str | None]:
    """The versions of Python, of this package, of its main dependencies, and of the plugins of JAX that are
    installed. None: not installed."""
    always: dict[str, str | None] = {"Python": platform.python_version(), NAME: installed_version(NAME)}
    always |= {name: installed_version(name) for name in SHOWN}
    return always | {name: installed for name in PLUGINS if (installed := installed_version(name))}


def unmet(lines: list[str], extra: str = "") -> Iterator[str]:
    """What is missing, or too old, of the requirements without an extra, or of those that an extra adds."""
    for line in lines:
        requirement = Requirement(line)
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if always == bool(extra) or not (always or requirement.marker.evaluate({"extra": extra})):  # type: ignore[union-attr]
            continue
        installed = installed_version(requirement.name)
        if installed is None:
            yield requirement.name
        elif not requirement.specifier.contains(installed, prereleases=True):
            yield f"{requirement.name} {requirement.specifier} (found {installed})"
        else:
            for inner in requirement.extras:
                yield from unmet(metadata.requires(requirement.name) or [], inner)


def missing_extras(lines: list[str]) -> dict[str, tuple[str, ...]]:
    """What is missing of each extra that is not complete."""
    unmet_of = {extra: tuple(unmet(lines, extra)) for extra in PURPOSES}
    return {extra: names for extra, names in unmet_of.items() if names}


def problems_of_versions(needs: Declared, installed: dict[str, str | None]) -> Iterator[str]:
    """A sentence for each mistake in what is installed."""
    python = str(installed["Python"])
    if not SpecifierSet(needs.python).contains(python, prereleases=True):
        yield (
            f"Python {python} is older than this package supports ({needs.python}): make an environment with "
            "a newer one and install the package there"
        )
    if missing := list(unmet(needs.requirements)):
        number = counted(len(missing), "requirement")
        yield f"{number} missing or too old: {', '.join(missing)}: pip install ."
    jax, jaxlib = installed["jax"], installed["jaxlib"]
    if jax and jaxlib and not _belong(jax, jaxlib):
        yield (
            f"jax {jax} and jaxlib {jaxlib} do not belong together: pip install 'jax=={jax}' 'jaxlib=={jax}'"
        )
    for name in PLUGINS[:-1]:
        plugin = installed.get(name)
        if plugin and jaxlib and not _belong(jaxlib, plugin):
            cuda = name.removeprefix("jax-").partition("-")[0]
            yield (f"{name} {plugin} does not belong to jaxlib {jaxlib}: pip install 'jax[{cuda}]=={jaxlib}'")


def _belong(newer: str, older: str) -> bool:
    """Whether two libraries of one release work together: the second may be an earlier patch of it."""
    try:
        first, second = Version(newer), Version(older)
    except InvalidVersion:
        return newer == older
    return first.release[:2] == second.release[:2] and second <= first
