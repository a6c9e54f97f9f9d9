"""Reads the text of a compiled program (its instructions, how often each runs, its collectives), and
estimates how long it takes.

Every instruction is charged: with the compiler's own cycles where it gives them, otherwise with the larger of
FLOPs / peak and bytes / bandwidth. Transfers between devices take their bytes by the ring algorithm over the
bandwidth of the links. Copies that a TPU makes in the background, between its large memory and that on the
chip, take their bytes over the bandwidth of the memory. Both overlap with the rest not at all, or fully. All
of that is an estimate.
"""

import copy
import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from transformer.plan.machines import Chip

SIZES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("bf16", "f16", "s16", "u16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
"""Bytes of an element. Half bytes count as nothing: no program here has many."""
ARRAY = re.compile(r"\b([a-z]+[0-9]*\w*)\[([\d,]*)\]")
INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
UNKNOWN = 2**40  # cycles: a larger number stands for none
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True)
class Instruction:
    """A line of the program: `name = shape operation(rest`."""

    name: str
    shape: str
    operation: str
    rest: str
    root: bool = False
    """Whether its computation returns it."""

    @property
    def bytes(self) -> int:
        """Size of the result, in bytes."""
        return sizes_of(self.shape)

    @functools.cached_property
    def operands(self) -> list[str]:
        """The names of its operands."""
        depth = 1
        end = len(self.rest)
        for index, character in enumerate(self.rest):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if not depth:
                end = index
                break
        return re.findall(r"%([\w.\-]+)", self.rest[:end])

    def named(self, key: str) -> list[str]:
        """The computations that it names as `key=%name` or `key={%name, %other}`."""
        if listing := re.search(rf"\b{key}=\{{(.*?)\}}", self.rest):
            return [name.strip().lstrip("%") for name in listing[1].split(",") if name.strip()]
        match = re.search(rf"\b{key}=%?([\w.\-]+)", self.rest)
        return [match[1]] if match else []

    @property
    def cycles(self) -> int | None:
        """The compiler's own estimate, if it gives one."""
        match = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
        cycles = int(match[1]) if match else UNKNOWN
        return cycles if cycles < UNKNOWN else None

    @property
    def source(self) -> str:
        """What it computes, as JAX names it."""
        match = re.search(r'op_name="([^"]*)"', self.rest)
        return match[1] if match else ""


def arrays_of(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """The arrays of a shape such as `(f32[512,16]{1,0}, bf16[8])`: their types and axes."""
    return [
        (dtype, tuple(map(int, filter(None, axes.split(",")))))
        for dtype, axes in ARRAY.findall(shape)
        if dtype in SIZES
    ]


def sizes_of(shape: str) -> int:
    """The bytes of a shape."""
    return sum(SIZES[dtype] * math.prod(axes) for dtype, axes in arrays_of(shape))


class Program:
    """A compiled program.

    Args:
      text: as `jax.stages.Compiled.as_text` returns it.
    """

    def __init__(self, text: str) -> None:
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        current = dict[str, Instruction]()
        for line in text.splitlines():
            start = re.match(r"(ENTRY )?%?([\w.\-]+) ", line) if line.endswith("{") else None
            if start and not line.startswith(" "):
                current = self.computations[start[2]] = {}
                self.entry = start[2] if start[1] else self.entry
            elif match := INSTRUCTION.match(line):
                root, name, shape, operation, rest = match.groups()
                current[name] = Instruction(name, shape, operation, rest, bool(root))
        header = text[:20_000]
        count = re.search(r"num_partitions=(\d+)", header) or re.search(r"replica_count=(\d+)", header)
        self.devices = int(count[1]) if count else 1
        self.times = self._times(self.entry)

    def _times(self, start: str) -> dict[str, float]:
        """How often each computation runs that is a sequence of instructions, not those inside fusions, when
        this one runs once. Loops whose length depends on data run once."""
        times: dict[str, float] = {}

        def walk(name: str, count: float) -> None:
            times[name] = times.get(name, 0) + count
            for instruction in self.computations.get(name, {}).values():
                trips = self.trips(instruction) or 1 if instruction.operation == "while" else 1
                inner = [*instruction.named("body"), *instruction.named("condition")]
                if instruction.operation == "conditional":
                    inner += instruction.named("branch_computations")
                    inner += [*instruction.named("true_computation"), *instruction.named("false_computation")]
                if instruction.operation == "call" or instruction.operation.endswith("-start"):
                    inner += [*instruction.named("to_apply"), *instruction.named("calls")]
                for computation in inner:
                    if computation in self.computations:
                        walk(computation, count * trips)

        walk(start, 1.0)
        return times

    def step(self) -> "Program":
        """One turn of the first loop whose length depends on data, as a program: the step of a search."""
        for instruction in self.computations[self.entry].values():
            if instruction.operation == "while" and self.trips(instruction) is None:
                turn = copy.copy(self)
                turn.entry = instruction.named("body")[0]
                turn.times = self._times(turn.entry)
                return turn
        return self

    def trips(self, loop: Instruction) -> int | None:
        """How often a loop runs; None if that depends on data. A TPU's text does not state it, but the
        condition compares the counter with a constant."""
        if stated := re.search(r'known_trip_count":\s*\{"n":"(\d+)"', loop.rest):
            return int(stated[1])
        condition = self.computations[loop.named("condition")[0]]
        roots = [instruction for instruction in condition.values() if instruction.root]
        for compare in roots:
            if compare.operation != "compare" or "direction=LT" not in compare.rest:
                continue
            for name in compare.operands:
                if name in condition and condition[name].operation == "constant":
                    number = re.match(r"(-?\d+)", condition[name].rest)
                    return max(1, int(number[1])) if number else None
        return None

    def running(self) -> Iterator[tuple[str, Instruction, float]]:
        """Every instruction that runs on its own: its computation, itself, and how often."""
        for name, count in self.times.items():
            for instruction in self.computations[name].values():
                yield name, instruction, count

    def fused(self, instruction: Instruction) -> dict[str, Instruction]:
        """The instructions inside a fusion."""
        called = instruction.named("calls")
        return self.computations.get(called[0], {}) if called else {}

    # Communication

    def collectives(self, near: int | None = None) -> list["Collective"]:
        """The transfers between devices.

        Args:
          near: how many devices the near links join. None: all.
        """
        totals: dict[tuple[str, int, bool, int], tuple[float, float]] = {}
        seen: set[tuple[str, str]] = set()
        for computation, instruction, times in self._communicating():
            operation = instruction.operation.removesuffix("-start")
            channel = re.search(r"channel_id=(\d+)", instruction.rest)
            if channel and computation not in self.times:
                # a TPU's text repeats one transfer in the fusions that are its parts
                if (channel[1], operation) in seen:
                    continue
                seen.add((channel[1], operation))
            groups = groups_of(instruction.rest) or [list(range(self.devices))]
            size = len(groups[0])
            if size == 1:
                continue
            across = near is not None and any(
                device // near != group[0] // near for group in groups for device in group
            )
            shapes = [self.computations[computation][name].shape for name in instruction.operands]
            whole = sum(map(sizes_of, shapes)) * (size if operation == "all-gather" else 1)
            if operation == "all-reduce":
                if not instruction.operation.endswith("-start"):  # whose shape also has the operands
                    whole = max(whole, instruction.bytes)  # a TPU may add bfloat16 operands in float32
                if "all-reduce-scatter" in computation:
                    operation = "reduce-scatter"  # every device keeps only its part of the sum
            bits = (
                8 * SIZES[max(arrays_of(instruction.shape), key=lambda x: math.prod(x[1]) * SIZES[x[0]])[0]]
            )
            before = totals.get((operation, size, across, bits), (0.0, 0.0))
            totals[operation, size, across, bits] = before[0] + whole * times, before[1] + times
        for key, sent, times in self._between_slices():
            before = totals.get(key, (0.0, 0.0))
            totals[key] = before[0] + sent * times, before[1] + times
        return [Collective(*key, *value) for key, value in sorted(totals.items())]

    def _between_slices(self) -> Iterator[tuple[tuple[str, int, bool, int], float, float]]:
        """Transfers between slices of TPUs, which their text has as `send`: kind, slices, that they reach
        beyond the near links, and the width of the numbers in bits; bytes on each device; and how often."""
        for _, instruction, times in self.running():
            match = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.rest)
            target = re.search(r'_xla_megascale_target="\{([\d,:]+)\}', instruction.rest)
            if instruction.operation != "send" or not match or not target:
                continue
            ends = (list(map(int, span.split(":"))) for span in target[1].split(","))
            slices = sum(span[-1] - span[0] + 1 for span in ends)
            (width, axes), *_ = arrays_of(instruction.shape)
            sent = SIZES[width] * math.prod(axes) * (slices if match[1] == "ALL_GATHER" else 1)
            name = {"ONE_TO_ONE": "collective-permute"}.get(match[1], match[1].lower().replace("_", "-"))
            yield (name, slices, True, 8 * SIZES[width]), sent, times

    def _communicating(self) -> Iterator[tuple[str, Instruction, float]]:
        """All collectives, also those inside fusions: the computation of each, itself, and how often."""
        for computation, instruction, times in self.running():
            calls = instruction.named("calls")
            if calls and instruction.operation == "fusion":
                for inside in self.fused(instruction).values():
                    if inside.operation in KINDS:
                        yield calls[0], inside, times
            elif not calls and instruction.operation.removesuffix("-start") in KINDS:
                yield computation, instruction, times


@dataclass(frozen=True)
class Collective:
    """One kind of transfer: `size` bytes on each device (of the larger side), in `times` instructions."""

    kind: str
    group: int
    across: bool
    """Whether its groups reach beyond the near links."""
    bits: int
    """Width of the numbers that are sent, in bits."""
    size: float
    times: float

    @property
    def sent(self) -> float:
        """Bytes that each device sends, by the ring algorithm."""
        share = (self.group - 1) / self.group
        return {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share) * self.size

    def seconds(self, near: float, far: float, node: int | None) -> float:
        """Duration in seconds. Groups of several whole nodes are hierarchical: one part of each goes far.

        Args:
          near: bytes/s within a node.
          far: bytes/s beyond.
          node: devices of a node.
        """
        if not self.across or node is None:
            return self.sent / near
        if self.group % node or self.kind == "collective-permute":
            return self.sent / far
        inside = Collective(self.kind, node, False, self.bits, self.size, self.times)
        beyond = Collective(self.kind, self.group // node, False, self.bits, self.size / node, self.times)
        return inside.sent / near + beyond.sent / far


def groups_of(operands: str) -> list[list[int]] | None:
    """The groups of devices that communicate."""
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", operands):
        shape = [int(size) for size in iota[3].split(",")]
        order = [int(axis) for axis in iota[4].split(",")] if iota[4] else range(len(shape))
        devices = np.arange(math.prod(shape)).reshape(shape).transpose(order)
        return devices.reshape(int(iota[1]), int(iota[2])).tolist()  # type: ignore[no-any-return]
    if mesh := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", operands):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        shape = [int(size) for size in axes.values()]
        taking_part = re.findall(r"'(\w+)'(?!:)", mesh[2])
        if len(taking_part) != mesh[2].count("'") // 2:
            raise RuntimeError(f"groups along a part of an axis are not supported: {mesh[0]}")
        dimensions = [list(axes).index(name) for name in taking_part]
        devices = np.moveaxis(
            np.arange(math.prod(shape)).reshape(shape), dimensions, range(-len(dimensions), 0)
        )
        size = math.prod(shape[dimension] for dimension in dimensions)
        return devices.reshape(-1, size).tolist()  # type: ignore[no-any-return]
    if listed := re.search(r"replica_groups=\{(\{.*?\})\}", operands):
        return [
            [int(device) for device in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])
        ]
    if pairs := re.search(r"source_target_pairs=\{(\{.*?\})\}", operands):
        return [[int(device) for device in pair.split(",")] for pair in re.findall(r"\{([\d,]+)\}", pairs[1])]
    return None


FREE = {
    *("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "while", "conditional", "call"),
    *("after-all", "partition-id", "replica-id", "opt-barrier", "iota"),
    *("copy-done", "slice-done", "async-done"),
}
"""Operations without a cost: they name what others compute, or wait for it."""
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
        return sum(flops_of(program, inside, inner) for inner in inside.values())
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
    sizes = [around[name].bytes for name in instruction.operands if name in around]
    written = instruction.bytes
    if instruction.operation == "fusion" and (inside := program.fused(instruction)):
        parameters = {
            int(re.match(r"\d+", inner.rest)[0]): inner  # type: ignore[index]
            for inner in inside.values()
            if inner.operation == "parameter"
        }
        for index, parameter in parameters.items():
            users = [inner for inner in inside.values() if parameter.name in inner.operands]
            if users and all(_slices(inner, parameter.name) for inner in users) and index < len(sizes):
                sizes[index] = sum(_part(inside, inner) for inner in users)
        root = next((inner for inner in inside.values() if inner.root), None)
        if root and root.operation == "dynamic-update-slice":
            written = _part(inside, root)
    return float(sum(sizes) + written)


def _slices(user: Instruction, array: str) -> bool:
    """Whether an instruction touches only a part of this operand."""
    first = bool(user.operands) and user.operands[0] == array
    return user.operation in ("dynamic-slice", "gather", "slice", "dynamic-update-slice") and first


def _part(inside: Mapping[str, Instruction], user: Instruction) -> int:
    """The bytes of the part that an instruction touches."""
    if user.operation == "dynamic-update-slice":
        return sizes_of(inside[user.operands[1]].shape)
    return user.bytes
