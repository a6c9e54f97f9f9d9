"""Options of the Transformer, and of other networks of attention and feed-forward layers."""

from dataclasses import dataclass, make_dataclass, replace
from typing import Annotated, ClassVar, Literal, get_type_hints

from transformer.config.model import ModelConfig
from transformer.config.ranges import DEEPEST, LARGEST, NOT_NEGATIVE, RATE, Range, Section
from transformer.runtime.errors import UserError

Norm = Literal["post", "pre"]
Activation = Literal["relu", "gelu", "gelu-exact", "swish"]
PositionScheme = Literal[
    "sinusoidal", "sinusoidal-halves", "learned", "rotary", "alibi", "relative", "buckets"
]
Mechanism = Literal["dot-product", "linear", "additive"]
Normalization = Literal["layer", "rms", "batch", "power"]


@dataclass(frozen=True)
class StackConfig(ModelConfig):
    """A stack of attention and feed-forward layers (Vaswani et al. 2017, section 3). Defaults are the paper's
    base model."""

    d_ff: Annotated[int, Range(1, LARGEST)] = 2048
    """Inner width of the feed-forward networks (section 3.3)."""
    num_heads: Annotated[int, Range(1, LARGEST)] = 8
    """h, the number of attention heads (section 3.2.2)."""
    d_k: Annotated[int, Range(1, LARGEST)] | None = None
    """Width of a query and a key in one head. None: d_model / num_heads."""
    d_v: Annotated[int, Range(1, LARGEST)] | None = None
    """Width of a value in one head. None: d_model / num_heads."""
    attention_dropout: Annotated[float, RATE] = 0.0
    """Dropout on the attention weights (not in the paper)."""
    activation_dropout: Annotated[float, RATE] = 0.0
    """Dropout after the activation of the feed-forward networks (not in the paper)."""
    norm: Norm = "post"
    """Layer normalisation after each residual sum (post, as in the paper) or before each sublayer (pre)."""
    norm_epsilon: Annotated[float, Range(0, 1, above=True)] = 1e-6
    """Epsilon of layer normalisation."""
    final_norm: bool = False
    """Normalise the output of the last layer, as torch.nn.Transformer does with norm post. With norm pre it
    always is."""
    token_type: bool = False
    """Add a learned vector, the same for all positions, to embedding and position: BERT's vector of the first
    token type."""
    embedding_norm: bool = False
    """Normalise the sum of embedding and position (not in the paper; BART, mBART and BERT do)."""
    activation: Activation = "relu"
    """Activation of the feed-forward networks; relu in the paper. gelu: the approximation by tanh;
    gelu-exact: x Phi(x), as in BART, BERT and Whisper."""
    gated: bool = False
    """Multiply the activation by a second projection of the input (Shazeer 2020), as T5 1.1 does."""
    feed_forward_bias: bool = True
    """Add biases in the feed-forward networks (section 3.3). T5 has none."""
    attention_bias: bool = False
    """Add biases to the attention projections (not in the paper; most pretrained models have them)."""
    key_bias: bool = True
    """With --model.attention-bias: also to the keys. It changes no attention weight; Whisper has none."""
    scale_scores: bool = True
    """Divide dot products of queries and keys by sqrt(d_k) (Eq. 1). T5 does not."""
    positions: PositionScheme = "sinusoidal"
    """Position scheme. sinusoidal, learned: added to the embeddings (section 3.5); sinusoidal-halves: all
    sines, then all cosines, with the rates of tensor2tensor (M2M-100, NLLB); rotary: queries and keys are
    rotated (Su et al. 2021); alibi: scores decrease with the distance (Press et al. 2022); relative: a
    second score of query and distance, as in Transformer-XL (Dai et al. 2019); buckets: a learned term of
    the scores for each range of distances and each head, the same in all layers (T5, Raffel et al. 2020)."""
    first_position: Annotated[int, Range(0, LARGEST)] = 0
    """Position of the first token, for sinusoids (in M2M-100 one more than the id of <pad>, usually 2)."""
    position_buckets: Annotated[int, Range(4, LARGEST)] = 32
    """Number of ranges of distances, with positions buckets."""
    bucket_distance: Annotated[int, Range(2, LARGEST)] = 128
    """Distance from which all are in the last range, with positions buckets."""
    max_positions: Annotated[int, Range(1, LARGEST)] = 1024
    """Rows of the learned position table. Sinusoids have no limit."""
    window: Annotated[int, Range(0, LARGEST)] | None = None
    """Restricted self-attention (section 4): maximum distance to attend to. None: unrestricted."""
    mechanism: Mechanism = "dot-product"
    """Mechanism of self-attention. dot-product: softmax(Q K^T / sqrt(d_k)) V (Eq. 1); linear: time linear in
    the length, and a decoding state of constant size (Katharopoulos et al. 2020); additive: by a small
    network (Bahdanau et al. 2015)."""
    normalization: Normalization = "layer"
    """Normalisation of each sublayer. layer: over the features of a position; rms: the same without mean and
    offset (Zhang and Sennrich 2019), as in T5; batch: each feature over the
    positions of a batch (Ioffe and Szegedy 2015); power: by running quadratic means, forward and backward
    (Shen et al. 2020)."""
    attention: Literal["auto", "einsum", "fused"] = "auto"
    """Kernel that computes attention. fused: cuDNN's on a GPU, one of this package on a TPU, and elsewhere
    that of jax.nn.dot_product_attention; auto: fused in bfloat16 where cuDNN's or this package's runs, else
    einsum."""
    remat: bool = False
    """Rematerialisation: recompute layers in the backward pass. Less memory, about a third more time."""

    PARAMETER_FREE = (
        *ModelConfig.PARAMETER_FREE,
        "attention_dropout",
        "activation_dropout",
        "attention",
        "remat",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise UserError(
                f"--model.d-model {self.d_model} is not divisible by --model.num-heads "
                f"{self.num_heads}: change one of them, or give --model.d-k and --model.d-v"
            )
        if self.positions in ("sinusoidal", "sinusoidal-halves", "relative") and self.d_model % 2:
            raise UserError("--model.d-model must be even: sinusoids come in pairs")
        if self.positions == "sinusoidal-halves" and self.d_model < 4:
            raise UserError("--model.d-model must be at least 4: the rates of the sinusoids are between two")
        if self.positions == "buckets" and self.bucket_distance <= self.position_buckets // 2:
            raise UserError(
                f"--model.bucket-distance {self.bucket_distance} must exceed half of "
                f"--model.position-buckets {self.position_buckets}, which are for single distances"
            )
        if self.positions == "rotary" and self.key_width % 2:
            raise UserError("--model.d-k must be even: rotary positions rotate pairs")
        if self.mechanism != "dot-product" and self.is_relative:
            raise UserError(
                f"--model.positions {self.positions} acts on dot products: use sinusoidal or learned "
                f"positions with --model.mechanism {self.mechanism}"
            )
        if not self.scale_scores and (self.mechanism != "dot-product" or self.positions == "relative"):
            other = "positions" if self.mechanism == "dot-product" else "mechanism"
            raise UserError(
                "--model.scale-scores False is for plain dot products, and not for "
                f"--model.{other} {getattr(self, other)}; leave one of them out"
            )
        if self.mechanism == "linear" and self.window is not None:
            raise UserError(
                "--model.window: linear attention has no weights to restrict; leave one of them out"
            )

    @property
    def of_encoder(self) -> "StackConfig":
        return self

    @property
    def is_relative(self) -> bool:
        """Whether attention depends on distances, and not on positions."""
        return self.positions in ("rotary", "alibi", "relative", "buckets")

    @property
    def normalizes_output(self) -> bool:
        """Whether the output of the last layer is normalised."""
        return self.norm == "pre" or self.final_norm

    @property
    def key_width(self) -> int:
        """d_k, resolved."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v, resolved."""
        return self.d_v or self.d_model // self.num_heads

    @property
    def packing_conflict(self) -> str:
        return "--model.mechanism linear" if self.mechanism == "linear" else ""

    @property
    def needs_whole_batch(self) -> str:
        return "--model.normalization batch" if self.normalization == "batch" else ""

    @property
    def longest(self) -> int | None:
        return self.max_positions if self.positions == "learned" else None


OF_ENCODER = (
    *("d_model", "d_ff", "num_heads", "d_k", "d_v"),
    *("norm", "norm_epsilon", "final_norm", "token_type", "embedding_norm"),
    *("activation", "gated", "feed_forward_bias", "attention_bias", "key_bias", "scale_scores"),
    *("positions", "first_position", "position_buckets", "bucket_distance", "max_positions"),
    *("mechanism", "normalization"),
)
"""Options of `StackConfig` that may differ between encoder and decoder."""


@dataclass(frozen=True)
class EncoderConfig(
    make_dataclass(  # type: ignore[misc]
        "OptionsOfTheEncoder",
        [(name, get_type_hints(StackConfig, include_extras=True)[name] | None, None) for name in OF_ENCODER],
        bases=(Section,),
        frozen=True,
    )
):
    """Options in which the encoder of a `TransformerConfig` differs from its decoder, named as in
    `StackConfig`. None: it does not. If it has another d_model, a linear layer leads from it to that of the
    decoder; this needs --model.share-embeddings target or none."""

    SECTION = "model.encoder-stack"
    IN_THE_ENCODER = StackConfig
    """Where its options are described."""


SAME = EncoderConfig()
"""An encoder that is like the decoder."""


@dataclass(frozen=True)
class TransformerConfig(StackConfig):
    """The encoder-decoder (Vaswani et al. 2017, section 3). Defaults are the paper's base model."""

    decoder_layers: Annotated[int, Range(1, DEEPEST)] | None = None
    """Number of decoder layers. A decoder shallower than the encoder is faster at similar quality (Kasai
    et al. 2021). None: --model.num-layers."""
    decoder_recurrence: Literal["none", "ssru"] = "none"
    """What decoder layers have instead of self-attention. none: nothing; ssru: a recurrence of two products
    and a state of constant size (Kim et al. 2019), as in Marian's small models and Firefox Translations."""
    encoder_stack: EncoderConfig = SAME
    """Options of the encoder where it differs from the decoder. One that is left out (None) has the value of
    the option of that name in model options, such as --model.d-ff."""
    cross_mechanism: Literal["dot-product", "additive", "location", "monotonic"] = "dot-product"
    """Mechanism of the attention to the source. location: additive, and depends on where the last step
    attended (Chorowski et al. 2015); monotonic: continues from where the last step stopped, and never back
    (Raffel et al. 2017)."""
    location_filters: Annotated[int, Range(1, LARGEST)] = 8
    """Number of filters over the attention weights of the last step, with --model.cross-mechanism
    location."""
    location_width: Annotated[int, Range(1, 1023)] = 15
    """Width of the filters over the attention weights of the last step, in source positions, with
    --model.cross-mechanism location."""
    monotonic_scale: Annotated[float, NOT_NEGATIVE] = 16.0
    """Initial bound of the energies of monotonic attention. It must exceed the noise, or attention stays soft
    in training and fails when decoding decides."""
    monotonic_noise: Annotated[float, NOT_NEGATIVE] = 4.0
    """Deviation of the noise on the energies of monotonic attention in training."""
    monotonic_offset: float = 0.0
    """Initial offset of the energies of monotonic attention: the lower, the further a step goes at first."""
    wait_k: Annotated[int, Range(1, LARGEST)] | None = None
    """Simultaneous translation (wait-k, Ma et al. 2019): the encoder is causal, and token t of the output
    attends to the first K + t - 1 tokens of the source only. None: it attends to the whole source."""
    source_end: bool = True
    """Attend to the </s> of the source. Without it a source has none, as in OpenNMT."""
    cross_view: Literal["last", "soft-sum", "layer-wise", "coarse-to-fine"] = "last"
    """What a decoder layer reads besides the last layer of the encoder (Liu et al. 2020). last: nothing;
    soft-sum: a learned mean of all layers; layer-wise: the layer at its own height; coarse-to-fine: the
    layers from the last, for the first decoder layer, to the first."""

    PARAMETER_FREE = (*StackConfig.PARAMETER_FREE, "wait_k")
    AUTOREGRESSIVE: ClassVar[bool] = True
    """Whether the decoder predicts a token from those before it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.location_width % 2 == 0:
            raise UserError("--model.location-width must be odd: the filters are centred")
        if self.wait_k is not None:
            self._check_waiting()
        if self.decoder_recurrence != "none":
            self._check_recurrence()
        if self.encoder_stack != SAME:
            self._check_encoder()

    def _check_waiting(self) -> None:
        """Raises UserError for a model that reads other inputs than tokens, or all of them."""
        if type(self) is not TransformerConfig:
            raise UserError(
                "--model.wait-k is for system transformer: others read the whole input; leave it out"
            )
        if self.cross_mechanism in ("location", "monotonic"):
            raise UserError(
                f"--model.wait-k: --model.cross-mechanism {self.cross_mechanism} decides by itself where it "
                "attends; leave one of them out"
            )
        if self.of_encoder.mechanism == "linear":
            raise UserError("--model.wait-k: linear attention of the encoder reads the whole source")

    def _check_recurrence(self) -> None:
        """Raises UserError for a decoder that cannot have it, and for options of self-attention."""
        recurrence = f"--model.decoder-recurrence {self.decoder_recurrence}"
        if not self.AUTOREGRESSIVE:
            raise UserError(
                f"{recurrence}: a decoder that predicts all tokens at once has no order; leave it out"
            )
        if self.window is not None:
            raise UserError(
                f"{recurrence} has no weights for --model.window to restrict; leave one of them out"
            )
        for name, has_no_effect in (
            ("mechanism", self.mechanism != "dot-product"),
            ("positions", self.is_relative),
        ):
            if has_no_effect:
                raise UserError(
                    f"{recurrence}: the decoder has no self-attention for --model.{name} "
                    f"{getattr(self, name)}; give it to the encoder as --model.encoder-stack.{name}"
                )

    def _check_encoder(self) -> None:
        try:
            width = self.of_encoder.d_model
        except UserError as error:
            raise UserError(f"in the encoder (--model.encoder-stack): {error}") from error
        if width != self.d_model and self.shares_inputs:
            raise UserError(
                f"--model.encoder-stack.d-model {width}: source and target of different widths cannot share "
                "one matrix: use --model.share-embeddings target"
            )

    @property
    def of_encoder(self) -> "TransformerConfig":
        if self.encoder_stack == SAME:
            return self
        overrides = {name: value for name, value in vars(self.encoder_stack).items() if value is not None}
        return replace(self, encoder_stack=SAME, decoder_recurrence="none", **overrides)

    @property
    def encodes_causally(self) -> bool:
        return self.wait_k is not None

    @property
    def longest_source(self) -> int | None:
        return self.of_encoder.longest

    @property
    def needs_whole_batch(self) -> str:
        return super().needs_whole_batch or self._of_encoder("needs_whole_batch")

    @property
    def decoder_depth(self) -> int:
        return self.decoder_layers or self.num_layers

    @property
    def packing_conflict(self) -> str:
        if self.cross_mechanism in ("location", "monotonic"):
            return f"--model.cross-mechanism {self.cross_mechanism}"
        if not self.source_end:
            return "--model.source-end False"
        return super().packing_conflict or self._of_encoder("packing_conflict")

    def _of_encoder(self, name: str) -> str:
        """What the encoder's options say, if they differ, named as they were given."""
        if self.encoder_stack == SAME:
            return ""
        conflict: str = getattr(self.of_encoder, name)
        return conflict.replace("--model.", "--model.encoder-stack.")
