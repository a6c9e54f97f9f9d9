"""Options of masked language models."""

from dataclasses import dataclass, replace
from typing import Annotated

from transformer.config.options import Config
from transformer.config.ranges import LARGEST, RATE, Range
from transformer.config.records import SentencesConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import StackConfig
from transformer.runtime.errors import UserError, counted
from transformer.systems.registry import COMMON, Options, Preset


@dataclass(frozen=True)
class MaskedLanguageModelConfig(StackConfig):
    """The encoder of a Transformer, with BERT's head: a linear layer, the activation, a norm and the tied
    embedding (Devlin et al. 2019)."""

    output_bias: bool = True
    """Add a bias to the logits, as BERT does."""
    mask_share: Annotated[float, RATE] = 0.15
    """Share of the tokens to predict (Devlin et al. 2019, section 3.1). Of these, 80 % are masked, 10 %
    replaced by a random token, and 10 % unchanged."""
    mask_id: Annotated[int, Range(0, LARGEST)] | None = None
    """Id of the mask, which replaces hidden tokens: in BERT that of [MASK]. None: that of <s>, which no text
    has otherwise."""

    PARAMETER_FREE = (*StackConfig.PARAMETER_FREE, "mask_share", "mask_id")
    FROM_DATA = ("vocab_size",)
    NOT_USED = ("zero_start", "generates_bos", "share_embeddings", "target_vocab_size")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mask_share:
            raise UserError("--model.mask-share 0 leaves nothing to predict; BERT has 0.15")
        if self.vocab_size and self.mask >= self.vocab_size:
            raise UserError(f"--model.mask-id {self.mask}: the vocabulary has {self.vocab_size} ids")

    @property
    def mask(self) -> int:
        """Id of the mask, resolved."""
        return self.special.bos if self.mask_id is None else self.mask_id

    @property
    def described(self) -> str:
        return f"{counted(self.num_layers, 'layer')}, d_model {self.d_model}"


def _masked_language_model() -> Config:
    """Sentences of the built-in text; minutes on a CPU."""
    return Config(
        system="masked-lm",
        model=MaskedLanguageModelConfig(num_layers=3, d_model=128, d_ff=512, num_heads=4, activation="gelu"),
        data=SentencesConfig(vocab_size=800, max_length=64, batch_tokens=4_096),
        optimizer=OptimizerConfig(schedule="inverse_sqrt", peak=1e-3, warmup_steps=300),
        training=TrainingConfig(steps=1_500, label_smoothing=0.0, evaluate_every=500),
    )


def _bert_base() -> Config:
    """The sizes of BERT-base, with its optimizer (Devlin et al. 2019, section A.2)."""
    base = _masked_language_model()
    return replace(
        base,
        model=MaskedLanguageModelConfig(
            num_layers=12,
            d_model=768,
            d_ff=3072,
            num_heads=12,
            attention_dropout=0.1,
            norm_epsilon=1e-12,
            embedding_norm=True,
            scale_embedding=False,
            attention_bias=True,
            activation="gelu-exact",
            positions="learned",
            max_positions=512,
        ),
        data=SentencesConfig(vocab_size=30_000, max_length=128, batch_tokens=32_768),
        optimizer=OptimizerConfig(
            schedule="inverse_sqrt",
            peak=1e-4,
            warmup_steps=10_000,
            beta2=0.999,
            epsilon=1e-6,
            weight_decay=0.01,
        ),
        training=TrainingConfig(steps=1_000_000, label_smoothing=0.0, evaluate_every=10_000),
    )


_COMMON = {
    "run_dir": COMMON["run_dir"],
    "training.init_from": "a trained or imported run to initialise from",
    "data.train": "text, a sentence a line; also --data.validation",
    "data.dataset": "or a TFDS set with text",
    "data.tokenizer": "unigram, bpe, char, word, whitespace",
    "data.vocab_size": COMMON["data.vocab_size"],
    "data.batch_tokens": "batch size in padded tokens",
    "data.max_length": "longer lines are dropped",
    "model.mask_share": "share of the tokens to predict",
    "model.num_layers": "number of layers",
    **{name: what for name, what in COMMON.items() if name.partition(".")[0] in ("optimizer", "training")},
}
_GROUP = "masked language models"

OPTIONS = Options(
    model=MaskedLanguageModelConfig,
    data=SentencesConfig,
    common=_COMMON,
    decodes="A masked language model has no output to decode: it is the encoder of other models, "
    "train.py --init-encoder-from RUN. {search}",
    presets={
        "masked-lm": Preset(
            _masked_language_model(), "an encoder, pretrained on the built-in English text; minutes", _GROUP
        ),
        "bert-base": Preset(_bert_base(), "with the sizes of BERT-base", _GROUP),
    },
)
