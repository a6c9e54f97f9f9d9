"""The bytes that devices send to each other, as read from compiled programs."""

from dataclasses import replace
from typing import Any

import jax
import pytest

from benchmarks.scaling import HARDWARE, Collective, collectives, elsewhere
from benchmarks.training import ON_GPU, initial_params

PROGRAM = """
%body (p: f32[4]) -> f32[4] {
  %a = f32[8,16]{1,0} all-reduce(%p), channel_id=1, replica_groups=[2,8]<=[16], to_apply=%add
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %w = f32[4]{0} while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %g = (bf16[64]{0}, bf16[4]{0}) all-gather-start(%w), replica_groups={{0,8},{1,9}}, dimensions={0}
  %s = f32[10]{0} reduce-scatter(%w), replica_groups=mesh['x'=2,'y'=8] {'y'}, dimensions={0}
  %n = f32[10]{0} all-reduce(%w), replica_groups=[16,1]<=[16], to_apply=%add
}
"""


def test_collectives_are_read_with_their_groups_and_counts() -> None:
    found = {each.kind: each for each in collectives(PROGRAM)}
    assert found["all-reduce"] == Collective("all-reduce", 8, False, 3 * 8 * 16 * 4, 1)
    assert found["all-gather"] == Collective("all-gather", 2, True, 2 * 64, 1)
    assert found["reduce-scatter"] == Collective("reduce-scatter", 8, False, 8 * 10 * 4, 1)
    assert len(found) == 3  # a group of one sends nothing


def test_time_on_the_links() -> None:
    hardware = HARDWARE[0]
    near = Collective("all-reduce", 8, False, 8_000_000, 1)
    assert near.sent == 2 * 7 / 8 * 8e6
    assert near.seconds(hardware) == pytest.approx(near.sent / hardware.near)
    # of 64 devices in 8 nodes only an eighth of the bytes leaves a node
    across = Collective("all-reduce", 64, True, 8_000_000, 1)
    expected = near.sent / hardware.near + 2 * 7 / 8 * 1e6 / hardware.far
    assert across.seconds(hardware) == pytest.approx(expected)


def test_parameters_come_to_the_rows_and_not_the_rows_to_the_parameters() -> None:
    """With fsdp a device sends about as much as the parameters are: each is gathered for the forward pass
    and the backward pass, and its gradient is summed. Activations stay where they are."""
    small: dict[str, Any] = {"num_layers": 1, "d_model": 64, "d_ff": 128, "vocab_size": 128}
    case = replace(ON_GPU["base"], device="cpu", rows=64, time=32, sentences=4, **small)
    found = elsewhere(case, 8, (8, 1))
    size = sum(x.nbytes for x in jax.tree.leaves(initial_params(case)))
    assert sum(Collective(**each).sent for each in found["collectives"]) < 5 * size
    assert found["state"] < 1.5 * 3 * size / 8
