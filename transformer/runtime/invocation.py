"""How to call a command: `python train.py` in a checkout, otherwise `transformer train`; and its version."""

import shlex
from pathlib import Path


def command_for(name: str) -> str:
    """How to call a command from here, such as `python decode.py` or `transformer decode`."""
    if not Path("transformer/runtime/invocation.py").is_file():
        return f"transformer {name}"
    return f"python {name}.py" if Path(f"{name}.py").is_file() else f"python -m transformer {name}"


def command(name: str, *arguments: str) -> str:
    """A command line to print, quoted for a shell."""
    return shlex.join((*command_for(name).split(), *arguments))


def program(name: str) -> str:
    """The same without the interpreter, for messages and `usage:`."""
    return command_for(name).removeprefix("python -m ").removeprefix("python ")


def version() -> str:
    """The versions of this program and its main dependencies."""
    import platform

    versions = ", ".join(
        f"{name} {version_of(name)}" for name in ("jax", "flax", "optax", "orbax-checkpoint")
    )
    return f"transformer {version_of('transformer-jax')} ({versions}, Python {platform.python_version()})"


def installed_version(distribution: str) -> str | None:
    """The version of a distribution. None: it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # of this one, in a checkout that is only on the path
        return None


def version_of(distribution: str) -> str:
    """The version of a distribution, or that it is not installed."""
    return installed_version(distribution) or "not installed"
