"""The configuration of a run, as frozen dataclasses. The command line is generated from them, the run
directory stores them, and presets are named instances (see `transformer.config.presets`).
"""

import dataclasses
import math
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from transformer.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST = 10_000_000  # limit of any size: a larger value is a mistake and would exhaust the memory
DEEPEST = 1_000  # layers: each of them is traced
LONGEST = 100_000  # tokens in a sentence
COUNTS = 2**31 - 1  # limit of counts and seeds
IDS = 10 * LARGEST  # limit of ids in a batch: 400 MB

Option = Any
"""A value of an option."""
Ranges = dict[str, tuple[int, int]]
"""Minimum and maximum of fields; for a tuple, of each item."""


def check_ranges(section: str, config: object, ranges: Ranges) -> None:
    """Raises UserError if a field of a config's section is outside its range. None is always valid."""
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not least <= number <= most:
                raise UserError(
                    f"--{section}.{name.replace('_', '-')} must be at least {least:,} and at most {most:,}"
                )


@dataclass(frozen=True)
class SpecialIds:
    """The four ids that are not text. Imported models bring others."""

    pad: int = 0
    """<pad>, which pads rows. It is never generated."""
    bos: int = 1
    """<s>, the first decoder input."""
    eos: int = 2
    """</s>, the end of every sentence."""
    unk: int = 3
    """<unk>, which replaces out-of-vocabulary tokens."""


@dataclass(frozen=True)
class ModelConfig:
    """Options of every network. `TransformerConfig` and the configs of other systems extend it."""

    vocab_size: int = 0
    """Rows of the (source) embedding. 0: the size of the vocabulary."""
    num_layers: int = 6
    """N, in the encoder and in the decoder."""
    d_model: int = 512
    """Width of the embeddings and of every layer's output."""
    dropout: float = 0.1
    """P_drop, applied to the output of every sublayer and to embedding + position (section 5.4)."""
    share_embeddings: Literal["all", "target", "none"] = "all"
    """Tied embeddings. all: source, target and pre-softmax (section 3.4); target: target and
    pre-softmax only; none: three matrices."""
    target_vocab_size: int | None = None
    """Rows of the target embedding, if vocabularies are separate. None: vocab_size."""
    output_bias: bool = False
    """Add a bias to the logits (not in the paper; imported models have one)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products. Softmax, norms, loss and parameters are always float32."""
    special: SpecialIds = SpecialIds()
    """Ids of the special tokens."""

    _RANGES: ClassVar[Ranges] = {
        "vocab_size": (0, LARGEST),
        "num_layers": (1, DEEPEST),
        "d_model": (1, LARGEST),
        "target_vocab_size": (1, LARGEST),
    }
    _RATES: ClassVar[tuple[str, ...]] = ("dropout",)
    ADAPTABLE: ClassVar[tuple[str, ...]] = ("dropout", "dtype")
    """Options without parameters, which may differ from those of the run to initialise from."""

    def __post_init__(self) -> None:
        check_ranges("model", self, self._RANGES)
        check_ranges("model.special", self.special, dict.fromkeys(asdict(self.special), (0, LARGEST)))
        for name in self._RATES:
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"--model.{name.replace('_', '-')} must be in [0, 1)")
        if self.share_embeddings == "all" and self.target_vocab_size not in (None, self.vocab_size):
            raise UserError(
                "separate vocabularies cannot share one matrix: use --model.share-embeddings target"
            )

    @property
    def output_size(self) -> int:
        """Size of the target vocabulary, resolved."""
        return self.target_vocab_size or self.vocab_size

    @property
    def decoder_depth(self) -> int:
        """Number of decoder layers."""
        return self.num_layers

    @property
    def longest(self) -> int | None:
        """Maximum sentence length. None: no limit."""
        return None


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The network (Vaswani et al. 2017, section 3). Defaults are the paper's base model."""

    decoder_layers: int | None = None
    """Number of decoder layers. A decoder shallower than the encoder is faster at similar quality (Kasai
    et al. 2021). None: num_layers."""
    d_ff: int = 2048
    """Inner width of the feed-forward networks (section 3.3)."""
    num_heads: int = 8
    """h, the number of attention heads (section 3.2.2)."""
    d_k: int | None = None
    """Width of a query and a key in one head. None: d_model / num_heads."""
    d_v: int | None = None
    """Width of a value in one head. None: d_model / num_heads."""
    attention_dropout: float = 0.0
    """Dropout on the attention weights (not in the paper)."""
    activation_dropout: float = 0.0
    """Dropout after the activation of the feed-forward networks (not in the paper)."""
    norm: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual sum (post, as in the paper) or before each sublayer (pre)."""
    norm_epsilon: float = 1e-6
    """Epsilon of layer normalisation."""
    activation: Literal["relu", "gelu", "swish"] = "relu"
    """Activation of the feed-forward networks; relu in the paper."""
    attention_bias: bool = False
    """Add biases to the attention projections (not in the paper; imported models have them)."""
    positions: Literal["sinusoidal", "learned", "rotary", "alibi"] = "sinusoidal"
    """Position scheme. sinusoidal, learned: added to the embeddings (section 3.5); rotary: queries and keys
    are rotated (Su et al. 2021); alibi: scores decrease with the distance (Press et al. 2022)."""
    max_positions: int = 1024
    """Rows of the learned position table. Sinusoids have no limit."""
    window: int | None = None
    """Restricted self-attention (section 4): maximum distance to attend to. None: unrestricted."""
    mechanism: Literal["dot-product"] = "dot-product"
    """Attention mechanism. dot-product: softmax(Q K^T / sqrt(d_k)) V (Eq. 1)."""
    attention: Literal["auto", "einsum", "fused"] = "auto"
    """Kernel that computes it. fused: jax.nn.dot_product_attention; auto: fused if cuDNN supports it."""
    remat: bool = False
    """Rematerialisation: recompute layers in the backward pass. Less memory, about a third more time."""

    _RANGES: ClassVar[Ranges] = {
        **ModelConfig._RANGES,
        **dict.fromkeys(("d_ff", "num_heads", "d_k", "d_v", "max_positions"), (1, LARGEST)),
        "decoder_layers": (1, DEEPEST),
        "window": (0, LARGEST),
    }
    _RATES = (*ModelConfig._RATES, "attention_dropout", "activation_dropout")
    ADAPTABLE = (*ModelConfig.ADAPTABLE, "attention_dropout", "activation_dropout", "attention", "remat")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.norm_epsilon <= 1:
            raise UserError("--model.norm-epsilon must be above 0 and at most 1")
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise UserError(
                f"--model.d-model {self.d_model} is not divisible by --model.num-heads "
                f"{self.num_heads}: change one of them, or give --model.d-k and --model.d-v"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError("--model.d-model must be even: sinusoids come in pairs")
        if self.positions == "rotary" and self.key_width % 2:
            raise UserError("--model.d-k must be even: rotary positions rotate pairs")

    @property
    def decoder_depth(self) -> int:
        return self.decoder_layers or self.num_layers

    @property
    def key_width(self) -> int:
        """d_k, resolved."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v, resolved."""
        return self.d_v or self.d_model // self.num_heads

    @property
    def longest(self) -> int | None:
        return self.max_positions if self.positions == "learned" else None


@dataclass(frozen=True)
class CorpusConfig:
    """Options of every corpus and its batches. `DataConfig` extends it for text."""

    cache_dir: Path | None = None
    """Folder for prepared corpora. None: $TRANSFORMER_CACHE, or ~/.cache/transformer-jax."""
    max_length: int = 128
    """Training examples with a longer side than this are dropped; for text in tokens, including <eos>."""
    batch_tokens: int = 25_000
    """Global batch size in tokens: rows times padded length, for source and target each."""
    batching: Literal["buckets", "packed"] = "buckets"
    """buckets: examples of similar length; packed: several examples per row, separated by masks."""
    buckets: tuple[int, ...] = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)
    """Padded lengths, ascending, up to max_length. Each is one compiled program."""
    seed: int = 0
    """Seed of the data order and of subword sampling."""

    _RANGES: ClassVar[Ranges] = {
        "max_length": (2, LONGEST),  # one subword and <eos>
        "batch_tokens": (1, IDS),
        "buckets": (1, LONGEST),
        "seed": (0, COUNTS),
    }

    def __post_init__(self) -> None:
        check_ranges("data", self, self._RANGES)
        if list(self.buckets) != sorted(set(self.buckets)) or not self.buckets:
            raise UserError("--data.buckets must be ascending positive lengths")
        if self.batch_tokens < self.lengths[-1]:
            raise UserError(
                f"--data.batch-tokens {self.batch_tokens} cannot hold one sentence of --data.max-length "
                f"{self.max_length} (padded: {self.lengths[-1]}): raise the one or lower the other"
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        """The padded lengths in use, shortest first; the last one holds max_length."""
        shorter = tuple(length for length in self.buckets if length < self.max_length)
        return (*shorter, self.max_length)


@dataclass(frozen=True)
class DataConfig(CorpusConfig):
    """Text corpus, vocabulary and batches."""

    dataset: str = "built-in"
    """built-in (English-German), dialogue-en or dialogue-zh (greetings and answers with names), or a
    TFDS translation dataset such as wmt14_translate/de-en. Ignored if text files are given."""
    source_language: str = "en"
    """Source language, for TFDS datasets and file names."""
    target_language: str = "de"
    """Target language."""
    train_source: Path | None = None
    """Training text, one sentence per line. Line i of train_target is the translation of line i."""
    train_target: Path | None = None
    """The translations of train_source."""
    validation_source: Path | None = None
    """Validation text. Default: a held-out part of the training text."""
    validation_target: Path | None = None
    """Its translations."""
    test_source: Path | None = None
    """Test text, for the final evaluation. Default: the validation text."""
    test_target: Path | None = None
    """Its translations."""
    train_tsv: Path | None = None
    """Instead of two files: one file with tab-separated source and target."""
    validation_tsv: Path | None = None
    """The same for validation."""
    test_tsv: Path | None = None
    """The same for the test."""
    built_in_size: int = 200_000
    """Number of training pairs to generate for a built-in corpus."""
    tokenizer: Literal["unigram", "bpe", "char", "whitespace", "word", "open-word"] = "unigram"
    """whitespace: for text that is already split into subwords; `@@ ` markers are removed from the output.
    word: whole words, and single characters of Chinese and Japanese. open-word: the same, and
    out-of-vocabulary words can be copied (pointer models only)."""
    vocab_size: int = 16_000
    """Size of the vocabulary to train (for char and word: an upper bound)."""
    joint_vocabulary: bool = True
    """Use one vocabulary for both languages. False requires --model.share-embeddings target or none."""
    source_tokenizer: Path | None = None
    """Tokenizer file to use instead of training one (with a joint vocabulary: for both languages)."""
    target_tokenizer: Path | None = None
    """The same for the target, if vocabularies are separate."""
    subword_sampling: float = 0.0
    """Subword regularisation: BPE-dropout probability (bpe, e.g. 0.1), or alpha of sampling among the n best
    segmentations (unigram, e.g. 0.2). 0: always the best segmentation."""

    _RANGES: ClassVar[Ranges] = {
        **CorpusConfig._RANGES,
        "built_in_size": (1, COUNTS),
        "vocab_size": (1, LARGEST),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source_language", "target_language"):
            if not re.fullmatch(r"[\w-]+", getattr(self, name)):
                raise UserError(f"--data.{name.replace('_', '-')} must be a code such as en or pt-br")
        if self.subword_sampling < 0:
            raise UserError("--data.subword-sampling must not be negative")
        if self.subword_sampling and self.tokenizer not in ("unigram", "bpe"):
            raise UserError(
                f"--data.subword-sampling needs --data.tokenizer unigram or bpe: {self.tokenizer} "
                "has only one segmentation of a sentence"
            )


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam and its learning rate (section 5.3)."""

    schedule: Literal["paper", "inverse_sqrt", "cosine", "constant"] = "paper"
    """paper: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), times scale. The others
    warm up linearly to peak over warmup_steps, then decay as step^-0.5 or a cosine, or stay constant."""
    scale: float = 1.0
    """Factor on the paper's schedule."""
    peak: float = 1e-3
    """Peak learning rate of the other schedules."""
    warmup_steps: int = 4000
    """Updates of learning-rate warmup."""
    beta1: float = 0.9
    """Adam's decay rate of the first moment (section 5.3)."""
    beta2: float = 0.98
    """Adam's decay rate of the second moment."""
    epsilon: float = 1e-9
    """Adam's epsilon."""
    weight_decay: float = 0.0
    """Decoupled weight decay, of matrices only (Loshchilov and Hutter 2019)."""
    clip_norm: float | None = None
    """Clip gradients to this global norm. None: no clipping."""

    def __post_init__(self) -> None:
        check_ranges("optimizer", self, {"warmup_steps": (1, COUNTS)})
        for name in ("scale", "peak", "weight_decay"):
            if getattr(self, name) < 0:
                raise UserError(f"--optimizer.{name.replace('_', '-')} must not be negative")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0):
            raise UserError("--optimizer.beta1 and beta2 must be in [0, 1), epsilon above 0")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise UserError("--optimizer.clip-norm must be positive; leave it out for no clipping")


@dataclass(frozen=True)
class TrainingConfig:
    """Training length, evaluations and checkpoints."""

    steps: int = 100_000
    """Total number of updates."""
    init_from: Path | None = None
    """A run (or an imported model) to initialise from, with its best checkpoint and its vocabulary. A model
    that extends the other one, such as a non-autoregressive decoder, initialises only its additional
    parameters randomly. Short: `--init-from RUN`."""
    accumulate: int = 1
    """Gradient accumulation: slices per update. Same result, less memory."""
    label_smoothing: float = 0.1
    """epsilon_ls, distributed over the other K-1 classes (section 5.4)."""
    ema: float = 0.0
    """Decay of an exponential moving average of the parameters, used for evaluation. 0: none."""
    seed: int = 0
    """Seed of the initial parameters and of dropout."""
    log_every: int = 50
    """Updates between log lines."""
    evaluate_every: int = 1000
    """Updates between evaluations. Each evaluation also saves a checkpoint."""
    evaluate_sentences: int = 500
    """Number of validation sentences decoded for BLEU (the validation loss uses all)."""
    bleu_tokenize: Literal["13a", "none", "intl", "char", "zh"] = "13a"
    """sacreBLEU's tokenizer; none for text that is already tokenised."""
    patience: int | None = None
    """Stop after this many evaluations without a better BLEU. None: train to the end."""
    keep_last: int = 5
    """Number of recent checkpoints to keep, in addition to the best one."""
    samples: int = 3
    """Number of sample translations to print at each evaluation."""

    _RANGES: ClassVar[Ranges] = {
        **dict.fromkeys(("steps", "accumulate", "log_every", "evaluate_every"), (1, COUNTS)),
        **dict.fromkeys(("evaluate_sentences", "keep_last", "patience"), (1, COUNTS)),
        **dict.fromkeys(("samples", "seed"), (0, COUNTS)),
    }

    def __post_init__(self) -> None:
        check_ranges("training", self, self._RANGES)
        if not 0 <= self.label_smoothing < 1:
            raise UserError("--training.label-smoothing must be in [0, 1)")
        if not 0 <= self.ema < 1:
            raise UserError("--training.ema must be in [0, 1)")


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
    """Batch size in sentences. On a CPU with several cores, two half-size batches run concurrently. The last
    batch is padded."""
    buckets: tuple[int, ...] = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    """Padded source lengths. Longer sources are truncated to the last one, with a warning."""

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


@dataclass(frozen=True)
class MeshConfig:
    """Sharding. With fsdp = tensor = 1, every device holds the whole model (`jax.pmap`)."""

    fsdp: int = 1
    """Number of shards of parameters and optimizer state. Parameters are gathered when needed; each shard
    processes a part of the batch."""
    tensor: int = 1
    """Number of shards of heads, feed-forward layers and vocabulary, which process the same rows. The
    remaining devices split the batch."""

    def __post_init__(self) -> None:
        check_ranges("mesh", self, dict.fromkeys(("fsdp", "tensor"), (1, 2**16)))


@dataclass(frozen=True)
class HostsConfig:
    """Distributed job. SLURM, Open MPI and Cloud TPUs are detected automatically."""

    coordinator: str | None = None
    """HOST:PORT of the main process, reachable from all others."""
    processes: int | None = None
    """Number of processes."""
    process: int | None = None
    """Index of this process, from 0."""
    heartbeat: int = 60
    """Seconds without a sign of life after which a process counts as lost, and the others end."""

    def __post_init__(self) -> None:
        told = (self.coordinator, self.processes, self.process)
        if None in told and told != (None, None, None):
            raise UserError(
                "--hosts.coordinator, --hosts.processes and --hosts.process: give all three, or none"
            )
        if self.processes is not None and self.processes < 1:
            raise UserError(f"--hosts.processes {self.processes} must be at least 1")
        if self.processes is not None and not 0 <= (self.process or 0) < self.processes:
            raise UserError(f"--hosts.process {self.process} must be from 0 to {self.processes - 1}")
        if self.coordinator is not None:
            host, _, port = self.coordinator.rpartition(":")
            if not (host and port.isdecimal() and 0 < int(port) < 2**16):
                raise UserError(
                    f"--hosts.coordinator {self.coordinator}: give HOST:PORT, the port from 1 to 65535"
                )
        if self.heartbeat < 1:
            raise UserError("--hosts.heartbeat must be at least 1 second")


@dataclass(frozen=True)
class Config:
    """Complete configuration of a run. Equal configs give equal results."""

    system: str = "transformer"
    """Name of the system (transformer/systems/registry.py). It sets the types of model and decoding."""
    model: ModelConfig = field(default_factory=TransformerConfig)
    """The network. Its type depends on the system."""
    data: CorpusConfig = field(default_factory=DataConfig)
    """Corpus, vocabulary and batches."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Adam and its learning rate."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Training length, evaluations and checkpoints."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """Search options, for evaluations and as defaults of decode.py. The type depends on the system."""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    """Sharding."""

    def __post_init__(self) -> None:
        for name, value in flatten(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"--{name.replace('_', '-')} must be a finite number, not {value}")
        separate = isinstance(self.data, DataConfig) and not self.data.joint_vocabulary
        if separate and self.model.share_embeddings == "all":
            raise UserError(
                "--data.no-joint-vocabulary needs --model.share-embeddings target (or none): "
                "two vocabularies cannot share one matrix"
            )
        if self.model.longest is not None and self.model.longest < self.data.max_length:
            raise UserError(
                f"--model.max-positions {self.model.longest} is less than --data.max-length "
                f"{self.data.max_length}: the table of learned positions is too short"
            )


def text_data(config: Config) -> DataConfig:
    """The options of a config's text corpus.

    Raises:
      UserError: its system does not read text.
    """
    if not isinstance(config.data, DataConfig):
        raise UserError(f"system {config.system} does not read text: its corpus has other options")
    return config.data


def flatten(config: "DataclassInstance", prefix: str = "") -> dict[str, Option]:
    """Every leaf of a config dataclass by its dotted name, e.g. `{"model.d_model": 512, ...}`."""
    leaves: dict[str, Option] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            leaves |= flatten(value, f"{prefix}{item.name}.")
        else:
            leaves[prefix + item.name] = value
    return leaves


def differences(old: Config, new: Config) -> list[str]:
    """The fields in which two configs differ, one line each, including fields that only one of them has."""
    return [f"{name}: {before} -> {after}" for name, before, after in changed(old, new)]


def changed(old: Config, new: Config) -> list[tuple[str, Option, Option]]:
    """The fields in which two configs differ: name, old value, new value; "none" if one config has no such
    field."""
    before, after = flatten(old), flatten(new)
    pairs = ((name, before.get(name, "none"), after.get(name, "none")) for name in before | after)
    return [(name, was, is_now) for name, was, is_now in pairs if was != is_now]


def check_beam(decoding: DecodingConfig, model: ModelConfig) -> None:
    """Raises UserError if the vocabulary is too small for the beam size."""
    if decoding.method == "beam" and 2 * decoding.beam_size > model.output_size:
        raise UserError(
            f"--decoding.beam-size {decoding.beam_size} is more than half the vocabulary of "
            f"{model.output_size}"
        )
