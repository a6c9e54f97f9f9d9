"""A config is resolved once, and the checks are all that its three lists say."""

import ast
import inspect

from transformer.training.loop import checks


def test_every_check_of_training_is_in_one_list() -> None:
    """A check that is written and not listed would never run."""
    module = ast.parse(inspect.getsource(checks))
    written = {
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    }
    listed = [*checks.OF_CONFIG, *checks.OF_MACHINE, *checks.OF_CORPUS]
    assert written <= {check.__name__ for check in listed}
    assert len(set(listed)) == len(listed)
