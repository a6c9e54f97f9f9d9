"""Options of searches: those of all, and those of each method."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from transformer.config.ranges import IDS, LENGTH, LENGTH_PENALTY, NUMBER, RATE, SHARE, SIZE, Range, Section
from transformer.runtime.errors import UserError
from transformer.runtime.text import has_text, without_formatting

PHRASE = 200  # letters of a forbidden phrase, of which all divisions into subwords are forbidden


@dataclass(frozen=True)
class DecodingConfig(Section):
    """Options of every search (section 6.1). Those of a method are in its own type (`METHODS`). A string in
    an annotation is what a run must be able to do for decode.py to have the option (`Writer.abilities`)."""

    SECTION = "decoding"
    METHOD: ClassVar[str] = ""
    """The method that has options of this type. Empty: several do, or that of a system."""

    method: Literal["beam", "greedy", "sample", "mbr"] = "beam"
    """Beam search, greedy search, sampling, or minimum Bayes risk. Each has its own options: see
    decode.py RUN --method METHOD --help-all."""
    length_penalty: Annotated[float, LENGTH_PENALTY] = 0.6
    """alpha of the length penalty, by which log-probabilities are divided. 0: no penalty."""
    penalty: Literal["wu", "power"] = "wu"
    """Length penalty of an output Y. wu: ((5 + |Y|) / 6)^alpha (Wu et al. 2016, Eq. 14); power: |Y|^alpha, as
    Marian and Hugging Face have it. |Y| counts <eos>."""
    extra_length: Annotated[int, LENGTH] = 50
    """Maximum length of a translation relative to its source, in tokens including <eos>."""
    max_length: Annotated[int, SIZE] | None = None
    """Absolute maximum length. None: no limit."""
    min_length: Annotated[int, LENGTH] = 0
    """Minimum length in tokens, without <eos>."""
    repetition_penalty: Annotated[float, Range(0.01, 100, note="1 for none")] = 1.0
    """Factor on the log-probability of tokens that the output has already: more than 1 makes them less likely
    (Keskar et al. 2019)."""
    no_repeat_ngram: Annotated[int, LENGTH] = 0
    """Length of token sequences that do not occur twice in an output. 0: all may."""
    forbidden: tuple[str, ...] = ()
    """Words and phrases that must not occur, in any division into subwords."""
    suppress: tuple[Annotated[int, Range(0, IDS)], ...] = ()
    """Ids of tokens that never occur."""
    suppress_first: tuple[Annotated[int, Range(0, IDS)], ...] = ()
    """Ids of tokens that do not begin an output (after the codes that outputs are forced to begin with)."""
    shortlist: Annotated[bool, "shortlist"] = False
    """Choose only among the translations of the source's tokens, by the lexical shortlist of the run, as
    Marian does: several times less work for a large vocabulary. Scores are relative to these tokens."""
    renormalise: bool = False
    """Divide the probability of forbidden tokens among the others at every step, as CTranslate2 does and
    Hugging Face with renormalize_logits. Otherwise scores are those of the model."""
    ctc_weight: Annotated[Annotated[float, SHARE] | None, "ctc"] = None
    """Speech: weight of CTC in the search, of runs that have it (--model.ctc-weight); that of attention is
    what is left. 0: attention alone; 1: CTC alone. None: that of the training."""
    noise: Annotated[float, Range(0, 100, note="0 for none")] = 0.0
    """Gaussian noise on the decoder's inputs, relative to their size (root mean square): outputs vary, also
    those of a beam search, which ranks them under the noise. 0: none."""
    input_dropout: Annotated[float, RATE] = 0.0
    """Dropout on the decoder's inputs in the search, so that outputs vary: the share of features that are
    zero, below 1."""
    seed: Annotated[int, NUMBER] = 0
    """Seed of samples and of noise, combined with the line number."""
    rows: Annotated[int, SIZE] = 32
    """Sentences searched at once. When one is done, the next takes its place."""
    buckets: tuple[Annotated[int, SIZE], ...] = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    """Lengths to which sources may be padded. Longer ones are truncated to the last, with a warning."""

    coverage_penalty = 0.0
    """That of methods that have none."""
    WITHOUT_STEPS = ""
    """Why a search takes no options about tokens, if it does not choose one after another."""

    @property
    def num_hypotheses(self) -> int:
        """How many outputs a search keeps for each input."""
        return 1

    def __post_init__(self) -> None:
        super().__post_init__()  # also so that it is hashable: programs depend on it
        if type(self) is DecodingConfig or self.METHOD not in ("", self.method):
            class_name = f"{self.method.capitalize()}Config"
            raise UserError(f"--decoding.method {self.method}: its options are a {class_name}")
        if self.max_length is not None and self.min_length >= self.max_length:
            raise UserError(
                f"--decoding.min-length {self.min_length} leaves no room below --decoding.max-length "
                f"{self.max_length}, which counts <eos>"
            )
        object.__setattr__(self, "forbidden", tuple(map(without_formatting, self.forbidden)))
        if any(not has_text(phrase) for phrase in self.forbidden):
            raise UserError("--decoding.forbidden: a phrase is empty; leave it out")
        if (longest := max(map(len, self.forbidden), default=0)) > PHRASE:
            raise UserError(f"--decoding.forbidden: a phrase has {longest:,} letters, and may have {PHRASE}")
        if self.WITHOUT_STEPS and (refused := self.steered + self.noisy):
            option = refused[0].replace("_", "-")
            raise UserError(f"--decoding.{option} {self.WITHOUT_STEPS}: leave it out")
        if list(self.buckets) != sorted(set(self.buckets)) or not self.buckets:
            raise UserError("--decoding.buckets must be ascending positive lengths")
        if self.rows * self.num_hypotheses * self.buckets[-1] > IDS:
            raise UserError(
                f"--decoding.rows {self.rows:,} times {self.num_hypotheses:,} outputs of each "
                "(--decoding.beam-size or --decoding.samples) times the longest of --decoding.buckets, "
                f"{self.buckets[-1]:,}, must be at most {IDS:,}"
            )

    def static(self) -> Self:
        """The options that a compiled program depends on, with the others at their defaults."""
        return replace(self, seed=0)

    def shared(self) -> Self:
        """As `static`, for programs of slots: what they read of each row is at its default."""
        names = ("length_penalty", *(name for name in RULES if name != "renormalise"))
        defaults: dict[str, Any] = {name: getattr(DecodingConfig, name) for name in names}
        return replace(self.static(), **defaults)

    @property
    def noisy(self) -> list[str]:
        """The options in use that put noise on the inputs of a decoder."""
        return [name for name in ("noise", "input_dropout") if getattr(self, name)]

    @property
    def steered(self) -> list[str]:
        """The options in use that need a search of one token after another."""
        return [name for name in RULES if getattr(self, name) != getattr(DecodingConfig, name)]


RULES = (
    *("min_length", "repetition_penalty", "no_repeat_ngram"),
    *("forbidden", "suppress", "suppress_first", "renormalise"),
)
"""The options that forbid tokens, or make them more or less likely."""


@dataclass(frozen=True)
class BeamConfig(DecodingConfig):
    """Beam search."""

    METHOD = "beam"

    beam_size: Annotated[int, SIZE] = 4
    """Number of hypotheses in the beam."""
    stop: Literal["exact", "present", "full"] = "exact"
    """Stopping criterion. exact: no unfinished hypothesis can beat the worst finished one at any length;
    present: none beats it at its current length (Hugging Face's default); full: as many hypotheses are
    finished as the beam has (early_stopping=True there)."""
    coverage_penalty: Annotated[float, Range(0, 100, note="0 for none"), "coverage"] = 0.0
    """beta of the coverage penalty (Wu et al. 2016, Eq. 15): finished hypotheses that pay little attention to
    a source token score less. 0: none."""
    groups: Annotated[int, SIZE] = 1
    """Diverse beam search (Vijayakumar et al. 2018): so many groups, which share the beam. 1: none."""
    diversity: Annotated[float, Range(0, 100)] = 0.5
    """Diverse beam search: what a token loses in log-probability for each earlier group that chose it at the
    same step."""

    @property
    def num_hypotheses(self) -> int:
        return self.beam_size

    def static(self) -> Self:
        return replace(super().static(), coverage_penalty=0.0)  # re-ranks what a search has found

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beam_size % self.groups:
            raise UserError(
                f"--decoding.groups {self.groups} must divide --decoding.beam-size {self.beam_size}"
            )
        if self.groups == 1 and self.diversity != BeamConfig.diversity:
            raise UserError("--decoding.diversity needs --decoding.groups: how groups differ from each other")


def names_of(options_class: type[Any]) -> set[str]:
    """The names of a type's options."""
    return {item.name for item in dataclasses.fields(options_class)}
