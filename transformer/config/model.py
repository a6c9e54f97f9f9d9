"""Options of every network."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from transformer.config.ranges import DEEPEST, LARGEST, RATE, Range, Section
from transformer.runtime.errors import UserError


@dataclass(frozen=True)
class SpecialIds(Section):
    """The four ids that are not text. Imported models bring others. In files of SentencePiece -1 means that
    there is none, which is refused when such a file is read."""

    SECTION = "model.special"

    pad: Annotated[int, Range(-1, LARGEST)] = 0
    """<pad>, which pads rows. It is never generated."""
    bos: Annotated[int, Range(-1, LARGEST)] = 1
    """<s>, the first decoder input. It may be the same as eos."""
    eos: Annotated[int, Range(-1, LARGEST)] = 2
    """</s>, the end of every sentence."""
    unk: Annotated[int, Range(-1, LARGEST)] = 3
    """<unk>, which replaces out-of-vocabulary tokens."""

    @property
    def never_predicted(self) -> tuple[int, ...]:
        """The ids that a search leaves out: <pad>, and the first decoder input unless it ends sentences."""
        return tuple(sorted({self.pad, self.bos} - {self.eos}))


class StartedIds(SpecialIds):
    """Special ids of a model whose outputs may have its first decoder input."""

    @property
    def never_predicted(self) -> tuple[int, ...]:
        return () if self.pad == self.eos else (self.pad,)


@dataclass(frozen=True)
class ModelConfig(Section):
    """Options of every network. `TransformerConfig` and the configs of other systems extend it."""

    SECTION = "model"

    vocab_size: Annotated[int, Range(0, LARGEST)] = 0
    """Rows of the (source) embedding. 0: the size of the vocabulary."""
    num_layers: Annotated[int, Range(1, DEEPEST)] = 6
    """N: number of layers of the encoder, and of the decoder."""
    d_model: Annotated[int, Range(1, LARGEST)] = 512
    """Width of the embeddings and of every layer's output."""
    dropout: Annotated[float, RATE] = 0.1
    """P_drop: dropout on the output of every sublayer and on embedding + position (section 5.4)."""
    share_embeddings: Literal["all", "inputs", "target", "none"] = "all"
    """Tied embeddings. all: source, target and pre-softmax (section 3.4), which needs one vocabulary for both
    languages and an encoder as wide as the decoder; inputs: source and target only, as in T5 1.1; target:
    target and pre-softmax only; none: three matrices."""
    target_vocab_size: Annotated[int, Range(1, LARGEST)] | None = None
    """Rows of the target embedding, if vocabularies are separate. None: --model.vocab-size."""
    scale_embedding: bool = True
    """Multiply embeddings by sqrt(d_model) (section 3.4). BART, T5, BERT and Whisper do not."""
    zero_start: bool = False
    """The first decoder input is a zero vector, as in Marian, instead of the embedding of <s>."""
    scale_output: bool = False
    """Divide the logits by sqrt(d_model), as T5 does if source, target and pre-softmax share a matrix."""
    output_bias: bool = False
    """Add a bias to the logits (not in the paper; Marian, BART and Pegasus have one)."""
    generates_bos: bool = False
    """Outputs may have the first decoder input too, as those of transformers. Otherwise a search leaves it
    out."""
    fixed_padding: bool = False
    """The embedding of <pad> has no gradient where it is read, as with padding_idx of torch.nn.Embedding. It
    is the first decoder input of Marian and Pegasus, which is therefore not trained there."""
    fixed: tuple[str, ...] = ()
    """Names of parameters that the network's publisher never trains, such as the bias of the logits of Marian
    and BART: training leaves them as they are, as with --training.freeze."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products. Softmax, norms, loss and parameters are always float32. auto: bfloat16 on
    TPUs and GPUs if the system supports it, else float32; decided when a run begins."""
    special: SpecialIds = SpecialIds()
    """Ids of the special tokens."""

    PARAMETER_FREE: ClassVar[tuple[str, ...]] = (
        *("dropout", "dtype"),
        *("generates_bos", "fixed_padding", "fixed"),
    )
    """Options without parameters, which may differ from those of the run to initialise from."""

    FROM_DATA: ClassVar[tuple[str, ...]] = ("vocab_size", "target_vocab_size")
    """Sizes that the data decides, if they are not given."""
    TARGET_LENGTH: ClassVar[str] = "max_length"
    """The option of the data that limits what the decoder reads."""
    ctc_weight = 0.0
    """The weight of CTC in the loss of systems that have none."""
    DTYPES: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    """Precisions that the network supports. The last one is that of accelerators."""
    NOT_USED: ClassVar[tuple[str, ...]] = ()
    """Options that the network does not have: they keep their defaults."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.NOT_USED:
            if getattr(self, name) != getattr(type(self), name):
                raise UserError(
                    f"--model.{name.replace('_', '-')}: this system has no use for it; leave it out"
                )
        if self.dtype not in ("auto", *self.DTYPES):
            raise UserError(f"--model.dtype {self.dtype}: this model supports {self.DTYPES[0]} only")
        if self.shares_inputs and self.target_vocab_size not in (None, self.vocab_size):
            raise UserError(
                "separate vocabularies cannot share one matrix: use --model.share-embeddings target"
            )

    @property
    def shares_inputs(self) -> bool:
        """Whether source and target have one embedding matrix."""
        return self.share_embeddings in ("all", "inputs")

    @property
    def search_ids(self) -> SpecialIds:
        """The special ids, as a search reads them."""
        ids = self.special
        return StartedIds(ids.pad, ids.bos, ids.eos, ids.unk) if self.generates_bos else ids

    @property
    def output_size(self) -> int:
        """Size of the target vocabulary, resolved."""
        return self.target_vocab_size or self.vocab_size

    @property
    def compute_dtype(self) -> str:
        """dtype, resolved. A model that is built without a run computes in float32."""
        return "float32" if self.dtype == "auto" else self.dtype

    @property
    def encodes_causally(self) -> bool:
        """Whether the state of a source token depends on no later ones."""
        return False

    @property
    def decoder_depth(self) -> int:
        """Number of decoder layers."""
        return self.num_layers

    @property
    def of_encoder(self) -> "ModelConfig":
        """The options of the encoder, if they differ from those of the decoder; otherwise the same."""
        return self

    @property
    def described(self) -> str:
        """Depth and width, for people."""
        return f"{self.num_layers}+{self.decoder_depth} layers, d_model {self.d_model}"

    @property
    def longest(self) -> int | None:
        """Maximum length of what the decoder reads. None: no limit."""
        return None

    @property
    def longest_source(self) -> int | None:
        """Maximum length of what the encoder reads. None: no limit."""
        return self.longest

    @property
    def packing_conflict(self) -> str:
        """The option with which a row holds one sentence only; empty: there is none."""
        return ""

    @property
    def growth_conflict(self) -> str:
        """The option with which outputs depend on the size of the vocabulary, so that this cannot grow;
        empty: there is none."""
        return ""

    @property
    def needs_whole_batch(self) -> str:
        """The option that needs a whole batch at once; empty: there is none."""
        return ""
