"""Named configs that hear and speak."""

from dataclasses import replace

from transformer.config import BeamConfig, Config, OptimizerConfig, TrainingConfig
from transformer.config.methods import GuidanceConfig
from transformer.config.speech import RecordingsConfig, SpeechConfig
from transformer.config.synthesis import (
    NonAutoregressiveSynthesisConfig,
    NonAutoregressiveSynthesisDecodingConfig,
    SynthesisConfig,
    SynthesisDecodingConfig,
)


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


def _synthesis() -> Config:
    """Speaks digits like the built-in synthesiser, letter by letter."""
    return Config(
        system="synthesis",
        model=SynthesisConfig(
            num_layers=2,
            d_model=128,
            d_ff=256,
            num_heads=4,
            dropout=0.1,
            norm="pre",
            reduction=4,
            own_frames=0.5,
        ),
        data=RecordingsConfig(speaker="one", normalisation="corpus", tokenizer="char", max_text=40),
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=200),
        guidance=GuidanceConfig(weight=10.0),
        training=TrainingConfig(steps=2_000, evaluate_every=500, label_smoothing=0.0),
        decoding=SynthesisDecodingConfig(buckets=(16, 40)),
    )


def _nonautoregressive_synthesis() -> Config:
    """The same without autoregression; it learns durations from a run of the one above."""
    taught = _synthesis()
    names = ("reduction", "num_layers", "d_model", "d_ff", "num_heads", "dropout", "norm")
    return replace(
        taught,
        system="nonautoregressive-synthesis",
        model=NonAutoregressiveSynthesisConfig(**{name: getattr(taught.model, name) for name in names}),
        guidance=GuidanceConfig(),
        decoding=NonAutoregressiveSynthesisDecodingConfig(buckets=taught.decoding.buckets),
    )


SOUND: dict[str, Config] = {
    "speech": _speech(),
    "synthesis": _synthesis(),
    "nonautoregressive-synthesis": _nonautoregressive_synthesis(),
}
SOUND_DESCRIPTIONS: dict[str, str] = {
    "speech": "what is said in recordings; without any, in spoken digits of a synthesiser",
    "synthesis": "speaks; without recordings, like the same synthesiser",
    "nonautoregressive-synthesis": "the same, all frames in one pass; its teacher is a run of synthesis",
}
