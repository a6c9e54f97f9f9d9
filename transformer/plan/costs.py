"""Estimates how long a compiled program takes.

Every instruction is charged: with the compiler's own cycles where it gives them, otherwise with the larger of
FLOPs / peak and bytes / bandwidth. Transfers between devices take their bytes by the ring algorithm over the
bandwidth of the links. Copies that a TPU makes in the background, between its large memory and that on the
chip, take their bytes over the bandwidth of the memory. Both overlap with the rest not at all, or fully. All
of that is an estimate.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from transformer.plan.machines import Chip
from transformer.plan.program import KINDS, SIZES, Collective, Instruction, Program, arrays_of, sizes_of

FREE = {
    *("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "while", "conditional", "call"),
    *("after-all", "partition-id", "replica-id", "opt-barrier", "iota"),
    *("copy-done", "slice-done", "async-done"),
}
"""They only name what others compute, or wait for it."""
NO_WORK = ("ConcatBitcast", "AllocateBuffer")  # calls that only name memory


@dataclass(frozen=True)
class Cost:
    """An instruction, and the seconds that all its executions take."""

    instruction: Instruction
    times: float
    seconds: float
    estimated: bool
    """Whether the compiler gives no cycles for it, so that the seconds come from FLOPs and bytes."""


@dataclass(frozen=True)
class Estimate:
    """The time of a program."""

    costs: list[Cost]
    collectives: list[Collective]
    communication: float
    """Seconds of transfers between devices."""
    copying: float
    """Seconds of background copies between a TPU's memories."""

    @property
    def computation(self) -> float:
        """Seconds of all else."""
        return sum(cost.seconds for cost in self.costs)

    @property
    def fastest(self) -> float:
        """Seconds if transfers and copies overlap fully with computation."""
        return max(self.computation, self.communication, self.copying)

    @property
    def slowest(self) -> float:
        """Seconds if nothing overlaps."""
        return self.computation + self.communication + self.copying

    @property
    def estimated(self) -> float:
        """The share of the computation that is not the compiler's own figure."""
        if not self.computation:
            return 0.0
        return sum(cost.seconds for cost in self.costs if cost.estimated) / self.computation


def estimate(program: Program, chip: Chip) -> Estimate:
    """The time of a program on a chip. Loops whose length depends on data count as one turn."""
    costs = []
    copied = 0.0
    for computation, instruction, times in program.running():
        if instruction.operation in ("copy-start", "slice-start"):
            moved = arrays_of(instruction.shape)[1]  # the source (for a copy, the result) stands first
            copied += times * SIZES[moved[0]] * math.prod(moved[1])
        elif _works(instruction):
            costs.append(Cost(instruction, times, *_seconds(program, computation, instruction, times, chip)))
    transfers = program.collectives(chip.near_devices)
    talk = sum(transfer.seconds(chip.near, chip.far, chip.near_devices) for transfer in transfers)
    return Estimate(costs, transfers, talk, copied / chip.bandwidth)


def _works(instruction: Instruction) -> bool:
    """Whether it takes time, other than a transfer between devices."""
    transfer = instruction.operation.removesuffix("-start").removesuffix("-done") in KINDS
    named = instruction.operation == "custom-call" and any(
        f'"{target}"' in instruction.rest for target in NO_WORK
    )
    return instruction.operation not in FREE and not transfer and not named


def _seconds(
    program: Program, computation: str, instruction: Instruction, times: float, chip: Chip
) -> tuple[float, bool]:
    """The seconds of all executions of an instruction, and whether they come from FLOPs and bytes."""
    if instruction.cycles is not None:
        return times * instruction.cycles / chip.clock, False
    around = program.computations[computation]
    flops, moved = flops_of(program, around, instruction), _moved(program, around, instruction)
    return times * max(flops / chip.peak, moved / chip.bandwidth), True


def flops_of(program: Program, around: Mapping[str, Instruction], instruction: Instruction) -> float:
    """The operations of the matrix products in an instruction, or in a fusion."""
    if instruction.operation == "fusion":
        inside = program.fused(instruction)
        return sum(flops_of(program, inside, one) for one in inside.values())
    if instruction.operation == "dot":
        left = arrays_of(around[instruction.operands[0]].shape)[0][1]
        summed = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest)
        axes = [int(axis) for axis in summed[1].split(",") if axis] if summed else []
        return 2 * _elements(instruction.shape) * math.prod(left[axis] for axis in axes)
    if instruction.operation == "convolution":
        kernel = arrays_of(around[instruction.operands[1]].shape)[0][1]
        labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.rest)
        out = kernel[labels[1].index("o")] if labels else 1
        return 2 * _elements(instruction.shape) * math.prod(kernel) / out
    if instruction.operation == "custom-call":
        return _flops_of_call(around, instruction)
    return 0.0


def _flops_of_call(around: Mapping[str, Instruction], instruction: Instruction) -> float:
    """The operations of a library's or a kernel's call."""
    target = (re.search(r'custom_call_target="([^"]+)"', instruction.rest) or ("", ""))[1]
    shapes = [arrays_of(around[name].shape) for name in instruction.operands if name in around]
    if "gemm" in target or "matmul" in target:
        summed = re.search(r'"lhs_contracting_dimensions":\["?(\d+)', instruction.rest)
        left = shapes[0][0][1]
        return 2 * math.prod(arrays_of(instruction.shape)[0][1]) * left[int(summed[1]) if summed else -1]
    if "fmha" in target:  # cuDNN: query, keys, values as [batch, heads, time, width]; products of all pairs
        query, keys = (shapes[n][0][1] for n in (0, 1))
        pairs = math.prod(query[:2]) * query[2] * keys[2] * query[3]
        return 2 * pairs * (5 if "Backward" in target else 2)
    if figure := re.search(r'"?flops"?:\s*"?(\d+)', instruction.rest):  # a Pallas kernel's own estimate
        return float(figure[1])
    return 0.0


def _elements(shape: str) -> int:
    return sum(math.prod(axes) for _, axes in arrays_of(shape))


def _moved(program: Program, around: Mapping[str, Instruction], instruction: Instruction) -> float:
    """The bytes that an instruction reads and writes. Of an array that is only sliced, the slice counts; of
    one that is updated in place, the update."""
    if instruction.operation in ("dynamic-slice", "gather", "slice"):
        return 2.0 * instruction.bytes
    if instruction.operation in ("dynamic-update-slice", "scatter"):
        update = around[instruction.operands[-1 if instruction.operation == "scatter" else 1]]
        return 3.0 * update.bytes
    read = [around[name].bytes for name in instruction.operands if name in around]
    written = instruction.bytes
    if instruction.operation == "fusion" and (inside := program.fused(instruction)):
        parameters = {
            int(re.match(r"\d+", one.rest)[0]): one  # type: ignore[index]
            for one in inside.values()
            if one.operation == "parameter"
        }
        for index, parameter in parameters.items():
            users = [one for one in inside.values() if parameter.name in one.operands]
            if users and all(_slices(one, parameter.name) for one in users) and index < len(read):
                read[index] = sum(_part(inside, one) for one in users)
        root = next((one for one in inside.values() if one.root), None)
        if root and root.operation == "dynamic-update-slice":
            written = _part(inside, root)
    return float(sum(read) + written)


def _slices(user: Instruction, array: str) -> bool:
    """Whether an instruction touches only a part of this operand."""
    first = bool(user.operands) and user.operands[0] == array
    return user.operation in ("dynamic-slice", "gather", "slice", "dynamic-update-slice") and first


def _part(inside: Mapping[str, Instruction], user: Instruction) -> int:
    """The bytes of the part."""
    if user.operation == "dynamic-update-slice":
        return sizes_of(inside[user.operands[1]].shape)
    return user.bytes
