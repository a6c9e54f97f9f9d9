"""The choices of non-autoregressive models, and of searching with them."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from transformer.config import LONGEST, DecodingConfig, Ranges, TransformerConfig
from transformer.errors import UserError


@dataclass(frozen=True)
class NonAutoregressiveConfig(TransformerConfig):
    """A Transformer whose decoder sees the whole target's places at once.

    A place where nothing is decided yet holds <bos>.
    """

    decoder_input: Literal["length", "bos", "fertility", "masked"] = "masked"
    """The decoder's input. length: as many <bos> as a classifier predicts; bos: always
    `bos_length` of them, and the text ends at the first <eos>; fertility: every source token as often
    as predicted (Gu et al. 2018); masked: a draft with some words masked, again and again
    (mask-predict, Ghazvininejad et al. 2019)."""
    bos_length: int = 300
    """bos: number of <bos> in the input."""
    length_span: int = 32
    """length, masked: the classifier tells target from source length up to this difference."""
    length_weight: float = 1.0
    """length, masked: weight of the classifier's loss, which counts once a sentence."""
    max_fertility: int = 8
    """fertility: no source token is copied more often."""
    fertility_weight: float = 1.0
    """fertility: weight of the classifier's loss, which counts once a source token."""
    teacher: Path | None = None
    """fertility, in training: run directory of an autoregressive model with the same vocabulary,
    whose cross-attention says which source token each target token came from."""

    _RANGES: ClassVar[Ranges] = {
        **TransformerConfig._RANGES,
        **dict.fromkeys(("bos_length", "length_span", "max_fertility"), (1, LONGEST)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length_weight < 0 or self.fertility_weight < 0:
            raise UserError("--model.length-weight and --model.fertility-weight must not be negative")
        if self.longest is not None and self.decoder_input == "bos" and self.longest < self.bos_length:
            raise UserError("--model.bos-length must not be more than --model.max-positions")


@dataclass(frozen=True)
class NonAutoregressiveDecodingConfig(DecodingConfig):
    """How translations are found in parallel. beam_size is the number of candidates, of the likeliest
    lengths or of drawn fertilities; the model's own mean log-probability chooses among them, or
    another model (decode.py --rescore)."""

    beam_size: int = 1
    """Candidates decoded side by side: of the likeliest lengths, or of drawn fertilities."""
    iterations: int = 1
    """masked: how often the least certain words are said anew, the first draft counted."""
    length_scale: float = 1.0
    """Factor on the predicted length: 0.5 shortens, 2.0 stretches. (bos predicts none.)"""

    length_penalty: float = 1.0
    """alpha of what log-probabilities are divided by: 1 with power gives the mean of the words."""
    penalty: Literal["wu", "power"] = "power"
    """As for other systems; here power, so that candidates are compared by the mean of their words."""

    _RANGES: ClassVar[Ranges] = {**DecodingConfig._RANGES, "iterations": (1, 1000)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.05 <= self.length_scale <= 20:
            raise UserError("--decoding.length-scale must be from 0.05 to 20")
        if self.method == "sample":
            raise UserError("--decoding.method sample: draws word after word, this model says all at once")
