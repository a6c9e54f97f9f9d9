"""Options of speech recognition."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.model import ModelConfig
from transformer.config.options import Config
from transformer.config.ranges import LARGEST, SHARE, Range
from transformer.config.records import RecordingsConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import Activation, TransformerConfig
from transformer.runtime.errors import UserError
from transformer.systems.registry import COMMON, Options, Preset

PROMPT = "prompt"
"""The name of an input, the text before a recording: ids, then <pad>; as many as half of the positions of the
decoder."""


@dataclass(frozen=True)
class SpeechConfig(TransformerConfig):
    """A Transformer that reads frames of sound (Dong et al. 2018)."""

    share_embeddings: Literal["all", "target", "none"] = "target"
    """Tied embeddings. target: of the output and before the softmax; none: two matrices. Sound has none."""
    convolutions: Annotated[int, Range(1, 8)] = 2
    """Convolutions before the encoder, each of which halves the number of frames."""
    first_convolutions: Annotated[int, Range(0, 8)] = 0
    """Convolutions before those that halve the number of frames; Whisper has one, and one that halves."""
    convolution_activation: Activation = "relu"
    """Activation of the convolutions before the encoder; gelu-exact in Whisper."""
    front_projection: bool = True
    """Project the output of the convolutions to the width of the encoder. Whisper does not: its channels are
    as many."""
    channels: Annotated[int, Range(1, LARGEST)] = 64
    """Width of the convolutions before the encoder."""
    kernel_width: Annotated[int, Range(1, 99)] = 3
    """Frames that each of the convolutions before the encoder sees."""
    masks: Annotated[int, Range(0, LARGEST)] = 0
    """Masks over bands, and as many over frames, that hide parts of the input in training (SpecAugment, Park
    et al. 2019).
    0: none. Often 2."""
    mask_bands: Annotated[int, Range(0, LARGEST)] = 27
    """Most bands of a mask."""
    mask_frames: Annotated[int, Range(0, LARGEST)] = 100
    """Most frames of a mask."""
    mask_share: Annotated[float, SHARE] = 0.2
    """Largest share of a recording in a mask over frames."""
    ctc_weight: Annotated[float, SHARE] = 0.0
    """Weight of CTC (Graves et al. 2006), a second output on the encoder, in the loss; that of attention is
    what is left (Watanabe et al. 2017). 0: no such output; 1: CTC alone, without a decoder. Often 0.3."""

    PARAMETER_FREE = (*TransformerConfig.PARAMETER_FREE, "masks", "mask_bands", "mask_frames", "mask_share")
    NOT_USED = ("source_end",)

    TARGET_LENGTH = "max_text"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share_embeddings == "all":
            raise UserError("--model.share-embeddings all: sound has no embedding; use target or none")
        if self.kernel_width % 2 == 0:
            raise UserError("--model.kernel-width must be odd: the convolutions are centred")
        width = self.of_encoder.d_model
        if not self.front_projection and self.channels != width:
            raise UserError(
                f"--model.channels {self.channels}: without --model.front-projection it must be the width of "
                f"the encoder, {width}"
            )

    @property
    def longest_source(self) -> int | None:
        longest = super().longest_source
        return longest and longest * 2**self.convolutions


def ctc_weight_of(model: ModelConfig, options: DecodingConfig) -> float:
    """The weight of CTC in a search: that of the options; otherwise that of the training, or 0 for methods
    that search by attention only.

    Raises:
      UserError: these options do not go together.
    """
    trained = model.ctc_weight
    is_grouped = isinstance(options, BeamConfig) and options.groups > 1
    searches = options.method in ("beam", "greedy") and not is_grouped
    weight = options.ctc_weight
    if trained == 1 and weight not in (None, 1):
        raise UserError(
            f"--decoding.ctc-weight {weight:g}: this run was trained with CTC alone, and has no decoder; "
            "leave it out"
        )
    if weight is None:
        weight = trained if searches or trained == 1 else 0.0
    if weight and not searches:
        option = "--decoding.groups" if is_grouped else f"--decoding.method {options.method}"
        remedy = "leave it out" if trained == 1 else "leave it out, or give --decoding.ctc-weight 0"
        raise UserError(f"{option}: with CTC, the search is beam or greedy; {remedy}")
    refused = [*options.steered, *options.noisy]
    refused += ["coverage_penalty"] * bool(options.coverage_penalty)
    if weight == 1 and refused:
        option = refused[0].replace("_", "-")
        raise UserError(f"--decoding.{option}: it needs a decoder, and CTC alone has none; leave it out")
    return weight


def _speech() -> Config:
    """Spoken digits, made by a synthesiser."""
    return Config(
        system="speech",
        model=SpeechConfig(
            num_layers=2,
            decoder_layers=1,
            d_model=128,
            d_ff=256,
            num_heads=4,
            dropout=0.0,
            norm="pre",
            positions="rotary",
        ),
        data=RecordingsConfig(),
        optimizer=OptimizerConfig(schedule="cosine", peak=1e-3, warmup_steps=100),
        training=TrainingConfig(steps=2_000, evaluate_every=250, evaluate_sentences=100),
        decoding=BeamConfig(beam_size=4, extra_length=8, buckets=(100, 180, 270, 400)),
    )


COMMON_TO_SOUND = {
    "run_dir": COMMON["run_dir"],
    "training.init_from": "a trained run to initialise from",
    "data.train": "lines of a file name, a tab and the text",
    "data.dataset": "or a TFDS set with audio and text",
    "data.tokenizer": "word, char, bpe, unigram",
    "data.vocab_size": COMMON["data.vocab_size"],
    "data.batch_tokens": "batch size in frames of 10 ms",
    "data.max_length": "in frames: longer recordings are dropped",
    "data.speeds": "0.9 1.0 1.1 adds slower and faster copies",
    "model.masks": "parts hidden in training (SpecAugment)",
    **{name: what for name, what in COMMON.items() if name.partition(".")[0] in ("model", "optimizer")},
    **{name: what for name, what in COMMON.items() if name.startswith("training.") and "init" not in name},
}
"""The options that `train.py --help` lists for systems that hear or speak."""
SPEECH = "speech"  # the group of the presets that hear and speak

OPTIONS = Options(
    model=SpeechConfig,
    data=RecordingsConfig,
    common=COMMON_TO_SOUND,
    decodes=(
        "Write what is said in recordings: {decode} RUN --input FILE > out. The file is a recording, or "
        "names one on each line. {search}\n\nWith times: {decode} RUN --input FILE --format json --times"
    ),
    presets={
        "speech": Preset(
            _speech(),
            "what is said in recordings; without any, in spoken digits of a synthesiser",
            SPEECH,
        )
    },
)
