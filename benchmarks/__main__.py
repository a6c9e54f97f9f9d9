"""`python -m benchmarks` lists the commands by group, with a line about each."""

import ast
from pathlib import Path

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


def main() -> None:
    """Prints the list."""
    for group in GROUPS:
        print(about(ast.parse((HERE / group / "__init__.py").read_text(encoding="utf-8"))))
        for name, what in commands(group).items():
            print(f"  {name:<35}{what}")
        print()
    print("Run one with: python -m NAME. Its --help says more.")


if __name__ == "__main__":
    main()
