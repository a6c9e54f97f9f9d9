"""`python -m benchmarks` lists the commands by group, with a line about each."""

import ast
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import run
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief

HERE = Path(__file__).parent
GROUPS = ("speed", "quality", "studies")


def commands(group: str) -> dict[str, str]:
    """The modules of a group that have a `main`, and the first line of each one's docstring. (None is
    imported: some need libraries that may be missing.)"""
    found = {}
    for path in sorted((HERE / group).glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(each, ast.FunctionDef) and each.name == "main" for each in module.body):
            found[f"benchmarks.{group}.{path.stem}"] = about(module)
    return found


def about(module: ast.Module) -> str:
    """The first line of its docstring."""
    return (ast.get_docstring(module) or "").partition("\n")[0]


def main(arguments: Sequence[str] = ()) -> None:
    """Prints the list.

    Raises:
      UserError: a command is named, which is a module of its own.
    """
    if words := [word for word in arguments if word not in ("-h", "--help")]:
        known = {name.removeprefix("benchmarks."): name for group in GROUPS for name in commands(group)}
        by_last = {name.rpartition(".")[2]: name for name in known}
        name = by_last.get(words[0], words[0].removeprefix("benchmarks."))
        how = f"run it with python -m {known[name]}" if name in known else "python -m benchmarks lists all"
        raise UserError(f"{brief(words[0])}: there is no such argument; {how}")
    for group in GROUPS:
        print(about(ast.parse((HERE / group / "__init__.py").read_text(encoding="utf-8"))))
        for name, what in commands(group).items():
            print(f"  {name:<35}{what}")
        print()
    print("Run one with: python -m NAME. Its --help says more.")


if __name__ == "__main__":
    raise SystemExit(run("benchmarks", main))
