"""Options of searches."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from transformer.config.model import ModelConfig
from transformer.config.ranges import COUNTS, IDS, LONGEST, Ranges, check_ranges
from transformer.errors import UserError


@dataclass(frozen=True)
class DecodingConfig:
    """Search options (section 6.1)."""

    method: Literal["beam", "greedy", "sample"] = "beam"
    """Beam search, greedy search, or sampling."""
    beam_size: int = 4
    """Number of hypotheses in the beam; for sampling, number of samples."""
    length_penalty: float = 0.6
    """alpha of the length penalty, by which log-probabilities are divided. 0: no penalty."""
    penalty: Literal["wu", "power"] = "wu"
    """wu: ((5 + |Y|) / 6)^alpha (Wu et al. 2016, Eq. 14); power: |Y|^alpha, as Marian and Hugging
    Face have it. |Y| counts <eos>."""
    stop: Literal["exact", "present", "full"] = "exact"
    """Stopping criterion. exact: no unfinished hypothesis can beat the worst finished one at any length;
    present: none beats it at its current length (Hugging Face's default); full: there are beam_size
    finished hypotheses (early_stopping=True there)."""
    extra_length: int = 50
    """Maximum length of a translation relative to its source, in tokens including <eos>."""
    max_length: int | None = None
    """Absolute maximum length. None: no limit."""
    temperature: float = 1.0
    """sample: softmax temperature; lower values give more likely, higher ones more diverse translations."""
    top_k: int = 0
    """sample: restrict to the k most likely tokens. 0: all."""
    top_p: float = 1.0
    """sample: restrict to the most likely tokens with this total probability."""
    seed: int = 0
    """sample: seed, combined with the line number."""
    rows: int = 32
    """Sentences searched at once. When one is done, the next takes its place."""
    buckets: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    """Lengths to which sources may be padded. Longer ones are truncated to the last, with a warning."""

    _RANGES: ClassVar[Ranges] = {
        **dict.fromkeys(("beam_size", "rows", "max_length", "buckets"), (1, LONGEST)),
        **dict.fromkeys(("extra_length", "top_k"), (0, LONGEST)),
        "seed": (0, COUNTS),
    }

    def __post_init__(self) -> None:
        check_ranges("decoding", self, self._RANGES)
        if self.method not in ("beam", "greedy", "sample"):
            raise UserError(f"--decoding.method {self.method}: choose beam, greedy or sample")
        if not abs(self.length_penalty) <= 10:
            raise UserError("--decoding.length-penalty must be from -10 to 10; 0 for no penalty")
        if not 1e-3 <= self.temperature <= 1e3:
            raise UserError(
                "--decoding.temperature must be positive, from 0.001 to 1000; for none, use method greedy"
            )
        if not 1e-6 <= self.top_p <= 1:
            raise UserError("--decoding.top-p must be in (0, 1], and no less than 0.000001")
        if list(self.buckets) != sorted(set(self.buckets)) or not self.buckets:
            raise UserError("--decoding.buckets must be ascending positive lengths")
        if self.rows * self.beam_size * self.buckets[-1] > IDS:
            raise UserError(
                f"--decoding.rows {self.rows:,} times --decoding.beam-size {self.beam_size:,} times the "
                f"longest of --decoding.buckets, {self.buckets[-1]:,}, must be at most {IDS:,}"
            )

    def static(self) -> Self:
        """The options that a compiled program depends on, with the others (seed, temperature) at their
        defaults."""
        return replace(self, seed=0, temperature=1.0)


def check_beam(decoding: DecodingConfig, model: ModelConfig) -> None:
    """Raises UserError if the vocabulary is too small for the beam size."""
    if decoding.method == "beam" and 2 * decoding.beam_size > model.output_size:
        raise UserError(
            f"--decoding.beam-size {decoding.beam_size} is more than half the vocabulary of "
            f"{model.output_size}"
        )
