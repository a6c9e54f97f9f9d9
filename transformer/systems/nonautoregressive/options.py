"""Options of non-autoregressive models and of their search."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from transformer.config.decoding import DecodingConfig, names_of
from transformer.config.options import Config
from transformer.config.ranges import LARGEST, SIZE, Option, Range
from transformer.config.transformer import TransformerConfig
from transformer.runtime.errors import UserError
from transformer.systems.registry import Options, Variant, of_system


@dataclass(frozen=True)
class NonAutoregressiveConfig(TransformerConfig):
    """A Transformer whose decoder predicts all target tokens at once. Masked positions hold <bos>, or another
    token."""

    decoder_input: Literal["length", "bos", "fertility", "masked"] = "masked"
    """The decoder's input. length: <bos> at as many positions as a classifier predicts; bos: <bos> at
    --model.bos-length positions, and the translation ends at the first <eos>; fertility: each source token,
    repeated as often as predicted (Gu et al. 2018); masked: a draft with masked tokens, refined in
    iterations (mask-predict, Ghazvininejad et al. 2019)."""
    mask_id: Annotated[int, Range(0, LARGEST)] | None = None
    """Id of the token at masked positions of the decoder's input, such as that of [MASK] in a vocabulary of
    BERT, whose embedding is pretrained. None: that of <bos>."""
    bos_length: Annotated[int, SIZE] = 300
    """Number of positions of the decoder's input with --model.decoder-input bos."""
    length_span: Annotated[int, SIZE] = 32
    """Largest difference of target and source length that the length classifier predicts."""
    teacher: Path | None = None
    """Training of fertilities: run directory of an autoregressive model with the same vocabulary, whose
    cross-attention aligns target tokens to source tokens."""

    AUTOREGRESSIVE = False
    NOT_USED = (
        "zero_start",
        "generates_bos",
    )

    @property
    def mask(self) -> int:
        """Id of the token at masked positions, resolved."""
        return self.special.bos if self.mask_id is None else self.mask_id

    @property
    def untaught(self) -> str:
        """What is missing in training, if it is."""
        if self.teacher or self.decoder_input != "fertility":
            return ""
        return (
            "fertilities are learned from an autoregressive teacher: give its run directory as "
            "--model.teacher RUN, and its vocabulary as --data.source-tokenizer RUN/source.model"
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_id is not None:
            self._check_mask(self.mask_id)
        if self.longest is not None and self.decoder_input == "bos" and self.longest < self.bos_length:
            raise UserError("--model.bos-length must not be more than --model.max-positions")
        if self.decoder_input == "fertility" and self.of_encoder.d_model != self.d_model:
            raise UserError(
                "--model.encoder-stack.d-model: the decoder reads the embedded source; leave it out"
            )

    def _check_mask(self, mask: int) -> None:
        """Raises UserError for an id that cannot mask, or a decoder input that masks nothing."""
        if self.decoder_input == "fertility":
            raise UserError(
                "--model.mask-id: with --model.decoder-input fertility nothing is masked; leave it out"
            )
        if self.output_size and mask >= self.output_size:
            raise UserError(f"--model.mask-id {mask}: the target vocabulary has {self.output_size} ids")
        if mask in (self.special.pad, self.special.eos):
            raise UserError(
                f"--model.mask-id {mask} is <pad> or </s>, which the decoder's input has elsewhere"
            )


@dataclass(frozen=True)
class NonAutoregressiveDecodingConfig(DecodingConfig):
    """Non-autoregressive search. beam_size is the number of candidates: of the most likely lengths, or of
    sampled fertilities. They are ranked by the model's own mean log-probability, or re-ranked by another
    model (decode.py --rescore)."""

    method: Literal["beam", "greedy"] = "beam"  # type: ignore[assignment]
    """Search method. beam: the best of the candidates; greedy: one candidate."""
    beam_size: Annotated[int, SIZE] = 1
    """Number of candidates, decoded in parallel: of the most likely lengths, or of sampled fertilities."""
    iterations: Annotated[int, Range(1, 1000)] = 1
    """Number of iterations of mask-predict. The first predicts all tokens, the others repredict the least
    certain."""
    length_scale: Annotated[float, Range(0.05, 20)] = 1.0
    """Factor on the predicted length: 0.5 halves it, 2.0 doubles it. Not for bos."""

    length_penalty: float = 1.0
    """alpha of the length penalty. 1 with penalty power: the score is the mean log-probability per token."""
    penalty: Literal["wu", "power"] = "power"
    """Length penalty of an output Y. power: |Y|^alpha, so that alpha 1 ranks candidates by their mean
    log-probability per token; wu: ((5 + |Y|) / 6)^alpha."""

    WITHOUT_STEPS = "needs an autoregressive model, and this one predicts all tokens at once"

    @property
    def num_hypotheses(self) -> int:
        return 1 if self.method == "greedy" else self.beam_size


def _all_at_once(base: Config) -> Config:
    """A non-autoregressive model with the sizes, the training and the search of a Transformer."""
    config = of_system(base, "nonautoregressive", NonAutoregressiveConfig)
    positions = max(64, base.data.max_length)
    shared = names_of(type(base.decoding)) & names_of(NonAutoregressiveDecodingConfig)
    search = {name: getattr(base.decoding, name) for name in shared}
    return replace(
        config,
        model=replace(config.model, bos_length=positions),  # type: ignore[call-arg]
        data=replace(base.data, batching="buckets"),
        decoding=NonAutoregressiveDecodingConfig(**search),
    )


def _variant(decoder_input: str, summary: str) -> Variant:
    masked = decoder_input == "masked"
    options: dict[str, Option] = {
        "model.decoder_input": decoder_input,
        "decoding.beam_size": 3 if masked else 1,
        "decoding.iterations": 4 if masked else 1,
    }
    return Variant(summary, options, "non-autoregressive", systems=("transformer",), change=_all_at_once)


OPTIONS = Options(
    model=NonAutoregressiveConfig,
    decoding=NonAutoregressiveDecodingConfig,
    variants={
        name: _variant(name, summary)
        for name, summary in {
            "length": "predicts the length first",
            "bos": "ends at the first <eos>",
            "fertility": "repeats source tokens (Gu et al. 2018)",
            "masked": "mask-predict (Ghazvininejad et al. 2019)",
        }.items()
    },
)
