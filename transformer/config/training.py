"""Options of training: optimizer, length, evaluations, checkpoints and devices."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from transformer.config.ranges import COUNT, COUNTS, NOT_NEGATIVE, NUMBER, POSITIVE, RATE, Range, Section
from transformer.runtime.errors import UserError

BleuTokenizer = Literal["13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200"]
ErrorRate = Literal["words", "characters"]
TextNormalisation = Literal["none", "basic", "english"]
Schedule = Literal["paper", "inverse_sqrt", "cosine", "stable", "constant", "exponential", "plateau"]


@dataclass(frozen=True)
class OptimizerConfig(Section):
    """Adam and its learning rate (section 5.3)."""

    SECTION = "optimizer"

    algorithm: Literal["adam", "adafactor", "muon"] = "adam"
    """Optimizer. adam: as in the paper; adafactor: keeps a number for each row and column of a matrix in
    place of two for each element (Shazeer and Stern 2018), for big models on small memories (no betas, no
    epsilon); muon: orthogonal updates of matrices (Jordan et al. 2024), and Adam for the rest."""
    schedule: Schedule = "paper"
    """Learning-rate schedule. paper: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), times scale.
    The others warm up linearly to peak over warmup_steps, then decay as step^-0.5 or a cosine, stay constant
    (stable: until the last updates, see --optimizer.cooldown), or are multiplied by --optimizer.decay: each
    epoch (exponential), or after evaluations without a better score (plateau)."""
    scale: Annotated[float, NOT_NEGATIVE] = 1.0
    """Factor on the learning rate of schedule paper."""
    peak: Annotated[float, NOT_NEGATIVE] = 1e-3
    """Peak learning rate of every schedule but paper."""
    warmup_steps: Annotated[int, COUNT] = 4000
    """Number of updates of learning-rate warmup."""
    cooldown: Annotated[float, Range(0, 1, above=True)] = 0.2
    """Share of all updates, the last ones, over which the learning rate of schedule stable falls to 0. Before
    them a run does not depend on its length, so copies of it can end after several."""
    decay: Annotated[float, Range(0, 1, above=True)] = 0.9
    """Factor on the learning rate of the schedules exponential and plateau each time that it falls."""
    decay_steps: Annotated[int, COUNT] | None = None
    """Number of updates after which the schedule exponential falls. None: those of an epoch, which the run
    stores."""
    decay_patience: Annotated[int, COUNT] = 2
    """Number of evaluations without a better score, or an equal one with a lower validation loss, after which
    the schedule plateau falls."""
    beta1: Annotated[float, RATE] = 0.9
    """Adam's decay rate of the first moment (section 5.3)."""
    beta2: Annotated[float, RATE] = 0.98
    """Adam's decay rate of the second moment."""
    epsilon: Annotated[float, POSITIVE] = 1e-9
    """Adam's epsilon."""
    matrix_scale: Annotated[float, POSITIVE] = 1.0
    """Muon: factor on the learning rate of matrices. That of the rest is as with adam."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.0
    """Decoupled weight decay, of matrices only (Loshchilov and Hutter 2019)."""
    clip_norm: Annotated[float, Range(0, above=True, note="leave it out for no clipping")] | None = None
    """Clip gradients to this global norm. None: no clipping."""
    groups: tuple[str, ...] = ()
    """Factors of the learning rate for parts of the model, such as `encoder=0.1 decoder=1`, by names of
    parameters as in --training.freeze. The last one that fits a parameter counts; others have 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for group in self.groups:
            name, _, factor = group.rpartition("=")
            try:
                is_valid = bool(name) and not set(" =") & set(name) and 0 < float(factor) < math.inf
            except ValueError:
                is_valid = False
            if not is_valid:
                raise UserError(
                    f"--optimizer.groups {group}: give NAME=FACTOR, each without spaces, such as "
                    "encoder=0.1 decoder=1; factors are positive (to fix parameters, name them in "
                    "--training.freeze)"
                )

    @property
    def factors(self) -> list[tuple[str, float]]:
        """The names of the groups, and their factors."""
        pairs = (group.rpartition("=") for group in self.groups)
        return [(name, float(factor)) for name, _, factor in pairs]

    def in_steps(self, steps_per_epoch: int) -> "OptimizerConfig":
        """The options with the number of updates after which the rate falls, if that is an epoch."""
        if self.schedule != "exponential" or self.decay_steps is not None:
            return self
        return replace(self, decay_steps=steps_per_epoch)


@dataclass(frozen=True)
class TrainingConfig(Section):
    """Training length, evaluations and checkpoints."""

    SECTION = "training"

    steps: Annotated[int, COUNT] = 100_000
    """Total number of updates."""
    epochs: float | None = None
    """Length of training as a number of passes over the training examples, such as 10 or 0.5, instead of
    --training.steps. The run stores the number of updates that this is with its batches."""
    init_from: Path | None = None
    """A run (or an imported model) to initialise from, with its best checkpoint and its vocabulary. A model
    that extends the other one, such as a non-autoregressive decoder, initialises only its additional
    parameters randomly. Short: `--init-from RUN`."""
    init_encoder_from: Path | None = None
    """A run whose encoder the model starts from, with its vocabulary as that of the source (Rothe et al.
    2020): a masked language model, BERT or another model with an encoder of this kind. The decoder is
    initialised randomly. Short: `--init-encoder-from RUN`."""
    freeze: tuple[str, ...] = ()
    """Names of parameters that stay as they are, such as `encoder` or `*embedding`, where * stands for
    anything: what begins with one of these names is not trained."""
    accumulate: Annotated[int, COUNT] = 1
    """Gradient accumulation: slices per update. Same result, less memory."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which replicas add their gradients. bfloat16: half the traffic, sums rounded to 8 bits. With
    --mesh.fsdp or --mesh.tensor it is always that of the computation, --model.dtype."""
    label_smoothing: Annotated[float, RATE] = 0.1
    """epsilon_ls: label smoothing, distributed over the other K-1 classes (section 5.4)."""
    ema: Annotated[float, RATE] = 0.0
    """Decay of an exponential moving average of the parameters, used for evaluation. 0: none."""
    seed: Annotated[int, NUMBER] = 0
    """Seed of the initial parameters and of dropout."""
    log_every: Annotated[int, COUNT] = 50
    """Updates between log lines."""
    evaluate_every: Annotated[int, COUNT] = 1000
    """Updates between evaluations. Each evaluation also saves a checkpoint."""
    evaluate_sentences: Annotated[int, COUNT] = 500
    """Number of validation sentences, the first ones, that each evaluation decodes for its score, such as
    BLEU. The validation loss uses all."""
    bleu_tokenize: BleuTokenizer | None = None
    """sacreBLEU's tokenizer. None: that of the target language (zh, ja-mecab, ko-mecab, or char for others
    without spaces, else 13a); char if the references hardly contain spaces. "none" is for text that is
    already tokenised; flores101 and flores200 (spBLEU) are downloaded."""
    error_rate: ErrorRate | None = None
    """Speech recognition: what decides which checkpoint is best; both are measured. None: characters if the
    texts are in a language without spaces, else words."""
    text_normalisation: TextNormalisation = "none"
    """Speech recognition: how texts are normalised before errors are counted. none: not at all; basic: lower
    case, no punctuation; english: as Whisper does it for English, also numbers in digits, contractions in
    full and American spelling."""
    patience: Annotated[int, COUNT] | None = None
    """Stop after this many evaluations without a better score, or an equal one with a lower validation loss.
    Scores that are noise, such as BLEU below 1, count as equal. None: train to the end."""
    dropout_by: Literal["auto", "option"] = "option"
    """What decides the dropout of the model. option: --model.dropout; auto, in presets for built-in corpora:
    the number of training pairs, if they are your own text and --model.dropout is not given; decided when a
    run begins."""
    minutes: Annotated[float, Range(0, COUNTS, above=True)] | None = None
    """Minutes after which this command stops, with its state saved: a few less than the time limit of a job.
    The command that it prints continues, for as many minutes again. None: no limit."""
    save_minutes: Annotated[float, Range(0, COUNTS, above=True)] | None = None
    """Minutes after which the state is saved again between evaluations. Such a checkpoint is kept until the
    next one, and changes no result. None: only evaluations save."""
    keep_last: Annotated[int, COUNT] = 5
    """Number of recent evaluated checkpoints to keep, in addition to the best one."""
    samples: Annotated[int, NUMBER] = 3
    """Number of sample translations to print at each evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init_from and self.init_encoder_from:
            raise UserError(
                "--init-from and --init-encoder-from both say what the encoder starts from: leave one out"
            )
        if self.epochs is not None and not 0 < self.epochs <= COUNTS:
            raise UserError(f"--training.epochs {self.epochs:g}: must be positive, and at most {COUNTS:,}")

    def in_steps(self, steps_per_epoch: int) -> "TrainingConfig":
        """The options with the number of updates that the epochs are, if they are given.

        Raises:
          UserError: these are too many.
        """
        if self.epochs is None:
            return self
        steps = max(1, round(self.epochs * steps_per_epoch))
        if steps > COUNTS:
            raise UserError(f"--training.epochs {self.epochs:g}: {steps:,} updates; at most {COUNTS:,}")
        return replace(self, steps=steps, epochs=None)

    def check_in_steps(self) -> None:
        """Raises UserError if the number of updates is not known."""
        if self.epochs is not None:
            raise UserError(
                f"--training.epochs {self.epochs:g}: how many updates that are follows from the batches of "
                "the corpus, which is not read here: give --training.steps"
            )
