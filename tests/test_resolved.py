"""A config is resolved once, and the checks are all that its three lists say."""

import ast
import inspect
from dataclasses import replace

import pytest

from transformer import PRESETS, UserError
from transformer.config.methods import ScheduledConfig
from transformer.plan.compiler import program_costs
from transformer.runs.config_json import to_json
from transformer.trainer import checks


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


def test_a_plan_refuses_what_training_would() -> None:
    config = replace(PRESETS["language-model"], scheduled=ScheduledConfig(share=0.5))
    with pytest.raises(UserError, match="language-model has its own objective"):
        program_costs({"what": "step", "machine": "cpu:1", "config": to_json(config)})
