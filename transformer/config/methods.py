"""Options of training methods: additions to the objective of a system. Each is off unless its weight, rate or
share is above 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from transformer.config.decoding import DecodingConfig
from transformer.config.ranges import COUNT, DEEPEST, LARGEST, NUMBER, POSITIVE, SHARE, Option, Range, Section
from transformer.config.training import Schedule
from transformer.runtime.errors import UserError

HEAVIEST = 1000  # weights of losses that are added


@dataclass(frozen=True)
class GuidanceConfig(Section):
    """Guided attention: attention to the source should follow the diagonal (Tachibana et al. 2018, section
    4)."""

    SECTION = "guidance"

    weight: Annotated[float, Range(0, HEAVIEST)] = 0.0
    """Weight of the guidance loss. 0: none."""
    width: Annotated[float, POSITIVE] = 0.2
    """g: how far from the diagonal attention may be, as a share of the sentence."""
    layers: tuple[Annotated[int, Range(1, DEEPEST)], ...] = ()
    """Decoder layers to guide, from 1. None given: all."""
    heads: tuple[Annotated[int, Range(1, LARGEST)], ...] = ()
    """Heads to guide in each guided layer, from 1. None given: all."""


@dataclass(frozen=True)
class RDropConfig(Section):
    """R-Drop: two passes with other dropout masks should predict the same (Liang et al. 2021)."""

    SECTION = "rdrop"

    weight: Annotated[float, Range(0, HEAVIEST)] = 0.0
    """alpha: weight of the divergence between the two predictions, such as 3. 0: none."""


@dataclass(frozen=True)
class ScheduledConfig(Section):
    """Scheduled sampling: the decoder reads some of its own predictions instead of the target's tokens
    (Bengio et al. 2015)."""

    SECTION = "scheduled"

    share: Annotated[float, SHARE] = 0.0
    """Share of target tokens to replace by predictions in the end. 0: none."""
    decay: Literal["linear", "exponential", "inverse-sigmoid"] = "linear"
    """How the share of the target's tokens falls with the updates (Bengio et al. 2015, section 2.4)."""
    updates: Annotated[int, COUNT] = 1000
    """Updates until the share is reached (decay linear), or the constant of the decay: the updates after
    which the target's share has fallen to 1/e (exponential), or k (inverse-sigmoid)."""
    predictions: Literal["passes", "steps"] = "passes"
    """Which predictions replace tokens. passes: those of an earlier pass over the whole target (Mihaylova and
    Martins 2019); steps: those of the step before, which recurrent decoders compute one after another anyway
    (Bengio et al. 2015)."""
    tokens: Literal["argmax", "sample", "mixture"] = "argmax"
    """What replaces a token: the most probable one, a sampled one, or the mean embedding of the most probable
    ones, by their probabilities."""
    top_k: Annotated[int, COUNT] = 5
    """Number of tokens in the mean embedding of --scheduled.tokens mixture."""
    passes: Annotated[int, Range(1, 100)] = 1
    """Passes whose predictions are read, one after the other (Duckworth et al. 2019)."""
    gradient: Literal["last", "all"] = "last"
    """Whether the gradient of --scheduled.tokens mixture goes through the last pass only, or through all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predictions == "steps" and (self.tokens == "mixture" or self.passes > 1):
            option = "tokens mixture" if self.tokens == "mixture" else f"passes {self.passes}"
            raise UserError(f"--scheduled.{option}: it is for --scheduled.predictions passes")
        if self.gradient == "all" and self.tokens != "mixture":
            raise UserError(
                f"--scheduled.gradient all needs --scheduled.tokens mixture: {self.tokens} has no gradient"
            )


@dataclass(frozen=True)
class RewardConfig(Section):
    """Training on a score of the model's own outputs, mixed with cross-entropy."""

    SECTION = "reward"

    share: Annotated[float, SHARE] = 0.0
    """Weight of the loss of the reward; cross-entropy has the rest. 0: none."""
    loss: Literal["risk", "reinforce"] = "risk"
    """Loss of the reward. risk: the expected cost over the candidates of a sentence, by their renormalised
    probabilities (Shen et al. 2016); reinforce: the gradient of the expected reward, by samples (Ranzato et
    al. 2016)."""
    candidates: Literal["sample", "beam"] = "sample"
    """Candidates of minimum risk: sampled outputs, or those of beam search."""
    samples: Annotated[int, Range(1, 1000)] = 4
    """Number of candidates of each sentence."""
    reward: Literal["gleu", "bleu", "text-bleu", "text-chrf"] = "gleu"
    """Score to maximise. gleu (Wu et al. 2016), bleu: of n-grams of subwords, computed on the accelerator;
    text-bleu, text-chrf: sacreBLEU's scores of sentences of text, computed by the host."""
    baseline: Literal["mean", "greedy", "none"] = "mean"
    """What REINFORCE compares rewards with. mean: the mean reward of the sentence's other samples; greedy:
    the reward of greedy search (Rennie et al. 2017)."""
    sharpness: Annotated[float, POSITIVE] = 0.1
    """Minimum risk: the exponent of probabilities before they are renormalised, alpha of Shen et al. 2016.
    (Their 0.005 is for risk alone: the gradient grows with it, and beside cross-entropy it is too small.)"""
    anneal: Annotated[int, NUMBER] = 0
    """Updates over which the weight of the reward rises from 0 to --reward.share (Ranzato et al. 2016). 0:
    none."""
    extra_length: Annotated[int, COUNT] = 10
    """Number of tokens that a candidate may have more than the source."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples == 1 and (self.loss == "risk" or self.baseline == "mean") and self.share:
            raise UserError("--reward.samples 1: nothing to compare a candidate with; give at least 2")
        if self.loss == "reinforce" and self.candidates == "beam":
            raise UserError("--reward.candidates beam: REINFORCE needs samples; use --reward.loss risk")


@dataclass(frozen=True)
class AdapterConfig(Section):
    """Low-rank changes of a model that stays as it is (LoRA, Hu et al. 2022). Needs --init-from."""

    SECTION = "adapter"

    rank: Annotated[int, Range(0, LARGEST)] = 0
    """Rank r of the change of each matrix, such as 8. Everything else is fixed. 0: none."""
    scale: Annotated[float, POSITIVE] = 2.0
    """Factor of the changes: alpha / r of the paper."""
    pattern: tuple[str, ...] = ()
    """Names of matrices to change, such as `*attention.query`, where * stands for anything. None given: every
    matrix of the layers, which leaves out the embeddings."""
    base_step: Annotated[int, NUMBER] | None = None
    """Checkpoint of the run of --init-from that is changed. A run sets it when it begins, to the best one."""
    base_hash: str | None = None
    """Hash of the parameters of that checkpoint. A run sets it when it begins, and refuses any others."""


ONLY_WITH = {
    ("adapter", "rank"): ("scale", "pattern", "base_step", "base_hash"),
    ("guidance", "weight"): ("layers", "heads", "width"),
    ("scheduled", "share"): ("decay", "updates", "predictions", "tokens", "passes"),
    ("scheduled", "tokens", "mixture"): ("top_k", "gradient"),
    ("reward", "share"): ("loss", "candidates", "samples", "reward", "anneal", "extra_length"),
    ("reward", "loss", "risk"): ("candidates", "sharpness"),
    ("reward", "loss", "reinforce"): ("baseline",),
}
"""(part of the config, option): what is read only if that option is not 0; with further values, if it has
one of them."""
CHOSEN = {
    ("optimizer", "schedule", "paper"): ("scale",),
    ("optimizer", "schedule", "stable"): ("cooldown",),
    ("optimizer", "schedule", "exponential"): ("decay_steps",),
    ("optimizer", "schedule", "plateau"): ("decay_patience",),
    ("optimizer", "schedule", "exponential", "plateau"): ("decay",),
    ("optimizer", "schedule", *get_args(Schedule)[1:]): ("peak",),
    ("optimizer", "algorithm", "muon"): ("matrix_scale",),
    ("optimizer", "algorithm", "adam", "muon"): ("beta1", "beta2", "epsilon"),
    ("model", "positions", "learned"): ("max_positions",),
    ("model", "positions", "buckets"): ("position_buckets", "bucket_distance"),
    ("model", "positions", "sinusoidal", "sinusoidal-halves"): ("first_position",),
    ("model", "cross_mechanism", "location"): ("location_filters", "location_width"),
    ("model", "cross_mechanism", "monotonic"): ("monotonic_scale", "monotonic_noise", "monotonic_offset"),
}
"""The same of options that presets and runs have though nothing reads them: refused only if a command line
changes them."""

SCORING = ("bleu_tokenize", "error_rate", "text_normalisation")
"""Options of training that only the scores of some tasks read."""


def check_idle(
    now: Mapping[str, Option],
    before: Mapping[str, Option],
    only_with: Mapping[tuple[str, ...], Sequence[str]] = ONLY_WITH,
) -> None:
    """Raises UserError if an option has been changed that is not read.

    Args:
      now: all options, by dotted name.
      before: what they were.
      only_with: as `ONLY_WITH`.
    """
    for (part, switch, *needed), idle in only_with.items():
        parts = (part, f"{part}.encoder_stack")
        values = {now.get(f"{name}.{switch}") for name in parts}
        if not values.isdisjoint(needed) if needed else any(values):
            continue
        required = f"--{part}.{switch.replace('_', '-')}"
        required += f" {' or '.join(needed)}" if needed else ", which is 0"
        for option in (f"{name}.{item}" for name in parts for item in idle):
            if now.get(option) != before.get(option, now.get(option)):
                option = option.replace("_", "-")
                raise UserError(f"--{option}: it has no effect without {required}; leave it out")


def check_idle_search(decoding: DecodingConfig, start: DecodingConfig) -> None:
    """Raises UserError if an option of a search that a command line has changed is not read.

    Args:
      decoding: all options.
      start: what they were.
    """
    draws = decoding.method not in ("beam", "greedy") or decoding.noisy
    ranks = decoding.method != "mbr" or getattr(decoding, "candidates", "") == "beam"
    for name, is_read, why in (
        ("seed", draws, "nothing is drawn in this search"),
        ("length_penalty", ranks, "method mbr compares the samples with each other"),
        ("penalty", ranks and decoding.length_penalty, "there is no length penalty"),
    ):
        if not is_read and getattr(decoding, name) != getattr(start, name):
            raise UserError(f"--decoding.{name.replace('_', '-')}: {why}; leave it out")
