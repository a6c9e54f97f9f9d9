"""Options of non-autoregressive speech synthesis and of its search."""

from dataclasses import dataclass, replace
from pathlib import Path

from transformer.config.methods import GuidanceConfig
from transformer.config.options import Config
from transformer.config.records import RecordingsConfig
from transformer.systems.registry import Options, Preset
from transformer.systems.speech.options import SPEECH
from transformer.systems.synthesis.options import OPTIONS as AUTOREGRESSIVE
from transformer.systems.synthesis.options import VoiceConfig, VoiceDecodingConfig


@dataclass(frozen=True)
class NonAutoregressiveSynthesisConfig(VoiceConfig):
    """A non-autoregressive synthesiser (FastSpeech, Ren et al. 2019)."""

    teacher: Path | None = None
    """Training only: run directory of a model of system synthesis for the same recordings, whose attention
    tells how long each token is spoken."""

    PARAMETER_FREE = (*VoiceConfig.PARAMETER_FREE, "teacher")
    AUTOREGRESSIVE = False

    @property
    def untaught(self) -> str:
        """What is missing in training, if it is."""
        if self.teacher:
            return ""
        return (
            "durations are learned from the attention of an autoregressive synthesiser: train one with "
            "train.py synthesis on the same recordings, and give its run directory as --model.teacher RUN"
        )


@dataclass(frozen=True)
class NonAutoregressiveSynthesisDecodingConfig(VoiceDecodingConfig):
    """Non-autoregressive synthesis."""


def _preset() -> Config:
    """The preset of speech synthesis without autoregression, which learns durations from a run of that
    preset."""
    taught = AUTOREGRESSIVE.presets["synthesis"].config
    names = ("reduction", "num_layers", "d_model", "d_ff", "num_heads", "dropout", "norm")
    return replace(
        taught,
        system="nonautoregressive-synthesis",
        model=NonAutoregressiveSynthesisConfig(**{name: getattr(taught.model, name) for name in names}),
        guidance=GuidanceConfig(),
        decoding=NonAutoregressiveSynthesisDecodingConfig(buckets=taught.decoding.buckets),
    )


OPTIONS = Options(
    model=NonAutoregressiveSynthesisConfig,
    decoding=NonAutoregressiveSynthesisDecodingConfig,
    data=RecordingsConfig,
    common=AUTOREGRESSIVE.common,
    decodes=AUTOREGRESSIVE.decodes,
    presets={
        "nonautoregressive-synthesis": Preset(
            _preset(), "the same, all frames in one pass; its teacher is a run of synthesis", SPEECH
        )
    },
)
