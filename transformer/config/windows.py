"""Options of recordings that a model hears window by window."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transformer.config.ranges import LONGEST, SHARE, Range, Section
from transformer.runtime.errors import UserError

Cut = Literal["pauses", "windows"]
"""How a long recording is divided."""
Detector = Literal["energy", "silero"]
"""What tells speech from silence."""


@dataclass(frozen=True)
class WindowsConfig(Section):
    """Whisper's windows of 30 seconds (Radford et al. 2022, section 4.5). The defaults are those of its
    publisher."""

    SECTION = "windows"

    previous_text: bool = True
    """Let each window continue the text of those before it, unless that was sampled at a temperature above
    0.5. Names and style then stay the same, but a repeated phrase may last for several windows."""
    temperatures: tuple[Annotated[float, Range(0, 1000)], ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Temperatures at which a window is decoded, one after another, until its text is good enough by the
    next two options. 0: by the search of the other options."""
    samples: Annotated[int, Range(1, LONGEST)] = 5
    """Samples at each temperature above 0, of which the most probable one counts."""
    compression_ratio: Annotated[float, Range(0)] | None = 2.4
    """Decode a window at the next temperature if its text is compressed (by zlib) to less than its size over
    this number: it repeats itself. None: never."""
    log_probability: Annotated[float, Range(most=0)] | None = -1.0
    """Decode a window at the next temperature if its mean log-probability of a token, in nats, is lower.
    None: never."""
    no_speech: Annotated[float, SHARE] | None = 0.6
    """Leave a window without text if the probability that nobody speaks is higher, and the mean
    log-probability is not above --windows.log-probability. None: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperatures:
            raise UserError("--windows.temperatures: give at least one; 0 is the search of the other options")
