"""The accelerators that `--plan` knows, with the figures of their data sheets."""

import math
import os
import re
from dataclasses import dataclass, replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformer.runtime.errors import UserError, nearest


@dataclass(frozen=True)
class Chip:
    """One device."""

    name: str
    platform: str
    """"tpu" or "gpu", as JAX names it."""
    peak: float
    """FLOP/s of matrix products in bfloat16."""
    bandwidth: float
    """Bytes/s of its memory."""
    memory: int
    """Bytes that programs can use. 0: no limit."""
    near: float
    """Bytes/s that it sends over all links to the devices of its host or slice."""
    far: float
    """Bytes/s that it sends beyond them."""
    clock: float = math.nan
    """Hz of the cycles that its compiler estimates."""
    near_devices: int | None = None
    """How many devices the near links join. None: all."""
    example: str = ""
    """A topology of such devices, as an example in messages."""


GIB = 2**30
CUDA = "'jax[cuda13-local]' nvidia-cuda-nvcc nvidia-nvvm nvidia-cudnn-cu13"
CHIPS = {
    chip.name: chip
    for chip in (
        # links: 1,600, 4,800, 3,584 and 2,400 Gb/s a chip; between slices 25, 50 and 100 Gb/s a chip (no
        # figure is published of v4, which has two devices a chip)
        Chip("v5e", "tpu", 197e12, 819e9, int(15.75 * GIB), 200e9, 3.125e9, 1.5e9, example="2x4"),
        Chip("v5p", "tpu", 459e12, 2765e9, int(95.74 * GIB), 600e9, 6.25e9, 1.75e9, example="2x2x2"),
        Chip("v6e", "tpu", 918e12, 1640e9, int(31.25 * GIB), 448e9, 12.5e9, 1.75e9, example="2x4"),
        Chip("v4", "tpu", 137.5e12, 614e9, int(15.48 * GIB), 150e9, math.nan, 1.05e9, example="2x2x2"),
        # devices that this machine's CPU simulates: what they need and send, but no times
        Chip("cpu", "cpu", math.nan, math.nan, 0, math.nan, math.nan, example="8"),
        # NVLink 4: 900 GB/s in both directions together; one 400 Gb/s InfiniBand port a GPU
        Chip("h100", "gpu", 989e12, 3352e9, 80 * 10**9, 450e9, 50e9, near_devices=8, example="8"),
        Chip("h200", "gpu", 989e12, 4800e9, 141 * 10**9, 450e9, 50e9, near_devices=8, example="8"),
    )
}


MOST = {"cpu": 1024, "gpu": 16_384}  # devices; a CPU simulates each with threads


@dataclass(frozen=True)
class Machine:
    """Devices of one kind, and how they are arranged."""

    chip: Chip
    shape: str
    slices: int = 1
    """How many such arrangements there are, with the network of a data centre between them."""

    def __str__(self) -> str:
        return f"{f'{self.slices}x' if self.slices > 1 else ''}{self.chip.name}:{self.shape}"

    @property
    def environment(self) -> dict[str, str]:
        """What must be set before JAX starts."""
        if self.chip.platform != "cpu":
            return {}
        return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={self.count}"}

    @property
    def libraries(self) -> dict[str, str]:
        """What must be set when the process of the compiler starts: a GPU's loads cuDNN by its name, and pip
        puts it where no loader looks."""
        if self.chip.platform != "gpu" or not (folders := _cudnn_folders()):
            return {}
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [*folders, os.environ.get("LD_LIBRARY_PATH")]))
        }

    def remedy(self, reason: str) -> str:
        """What to do if the compiler fails for a reason; empty if that is not known."""
        if self.chip.platform != "gpu" or "cudnn" not in reason.lower():
            return ""
        return (
            "It calls cuDNN: pip install '.[plan]', or nvidia-cudnn-cu13; one that is elsewhere needs its "
            "folder in LD_LIBRARY_PATH"
        )

    @property
    def count(self) -> int:
        """The number of chips (for v4: half that of devices)."""
        return self.slices * math.prod(map(int, self.shape.split("x")))

    def devices(self) -> list[Any]:
        """Its devices, as its compiler describes them.

        Raises:
          UserError: the compiler is not installed, or knows no such arrangement.
        """
        import jax
        from jax.experimental import topologies

        if self.chip.platform == "cpu":
            return jax.devices("cpu")
        if self.chip.platform == "gpu":
            hosts = max(1, self.count // 8)
            topology: dict[str, Any] = {
                "platform": "cuda",
                "topology_name": self.chip.name,
                "topology": f"1x{hosts}x{self.count // hosts}",
                "target_config": resources.files(__package__).joinpath(f"{self.chip.name}.txtpb").read_text(),
            }
        else:
            topology = {"platform": "tpu", "topology_name": f"{self.chip.name}:{self.shape}"}
            topology |= {"num_slices": self.slices} if self.slices > 1 else {}
        try:
            return list(topologies.get_topology_desc(**topology).devices)
        except (RuntimeError, NotImplementedError, ImportError) as error:
            if self.chip.platform == "tpu" and not find_spec("libtpu"):
                raise UserError(
                    f"--plan {self}: the compiler is missing: pip install '.[plan]', or 'jax[tpu]'"
                ) from None
            cuda = any(find_spec(f"jax_cuda{n}_plugin") for n in (12, 13))
            if self.chip.platform == "gpu" and not cuda:
                raise UserError(
                    f"--plan {self}: the compiler is missing: pip install '.[plan]', or {CUDA}"
                ) from None
            reason = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ")
            if isinstance(error, jax.errors.JaxRuntimeError):
                example = f"{self.chip.name}:{self.chip.example}"
                raise UserError(
                    f"--plan {self}: there is no such slice; there is {example}, for example (the compiler "
                    f"says: {reason})"
                ) from None
            raise UserError(f"--plan {self}: its compiler does not start: {reason}") from None


def _cudnn_folders() -> list[str]:
    """Where pip has put cuDNN's library."""
    try:
        package = find_spec("nvidia.cudnn")
    except ModuleNotFoundError:  # nothing of NVIDIA's
        return []
    folders = package.submodule_search_locations or [] if package else []
    return [str(folder) for folder in (Path(path) / "lib" for path in folders) if folder.is_dir()]


def machine(text: str) -> Machine:
    """The machine of `--plan`, such as `v5e:2x4`, `2xv5e:4x4` (two slices) or `h100:8`.

    Raises:
      UserError: it is none.
    """
    name, _, shape = text.lower().partition(":")
    slices_match = re.fullmatch("([1-9][0-9]{0,2})x(.*)", name)
    slices, name = (int(slices_match[1]), slices_match[2]) if slices_match else (1, name)
    if name not in CHIPS:
        examples = ", ".join(f"{chip.name}:{chip.example}" for chip in CHIPS.values())
        similar = nearest(name, CHIPS)
        raise UserError(
            f"--plan {text}: no accelerator {name!r}{similar or '.'} Give one with its shape: {examples}"
        )
    chip = CHIPS[name]
    if slices > 1 and math.isnan(chip.far):
        raise UserError(f"--plan {text}: only v5e, v5p and v6e have several slices here")
    if chip.platform != "tpu":
        if slices > 1:
            raise UserError(f"--plan {text}: give the number of all GPUs, as in {name}:{8 * slices}")
        if not re.fullmatch("[1-9][0-9]{0,4}", shape) or (int(shape) > 8 and int(shape) % 8):
            raise UserError(f"--plan {text}: give the number of devices: 1 to 8, or a multiple of 8")
        if int(shape) > MOST[chip.platform]:
            raise UserError(f"--plan {text}: at most {MOST[chip.platform]} devices")
    elif not re.fullmatch("[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}", shape):
        raise UserError(
            f"--plan {text}: give the arrangement of the chips of a slice, as in {name}:{chip.example}"
        )
    if slices > 1:
        chip = replace(chip, near_devices=math.prod(map(int, shape.split("x"))))
    return Machine(chip, shape, slices)
