"""Speech synthesis: sentences in, sound out."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.data.sequences import Example
from transformer.data.signals.audio import HOP, RATE, sound_of
from transformer.data.sources.recordings import Recording
from transformer.data.sources.text_files import one_line
from transformer.model.parameters import Arguments
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief, prefixed_errors
from transformer.runtime.text import has_text
from transformer.systems.synthesis.options import VoiceConfig
from transformer.tasks.exhibit import ReportSample, Sound
from transformer.tasks.media.recordings import Recordings, resynthesised, spectrogram
from transformer.tasks.metrics.scores import MEL, Metric, Score
from transformer.tasks.outputs import Plain
from transformer.tasks.task import Evaluation


@dataclass(frozen=True, eq=False)
class Utterance(Plain):
    """A spoken text. `json.dumps(utterance.to_dict())` writes it as JSON, without the waveform."""

    computed = ("seconds",)

    text: str
    features: Float[np.ndarray, "t bands"]
    """Log-mel features, a frame every 10 ms."""
    stopped: bool = True
    """Whether it ended by itself, and not at the limit of the search."""

    @functools.cached_property
    def wave(self) -> Float[np.ndarray, " samples"]:
        """The waveform from -1 to 1, at 16,000 samples a second, by Griffin-Lim.

        Raises:
          UserError: the features leave the range of float32.
        """
        wave = sound_of(self.features)
        if not np.isfinite(wave).all():
            raise UserError(
                f"the sound of {brief(self.text)} is not finite: the model or its scale is damaged"
            )
        return wave

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.features) * HOP / RATE


class TextToSpeech(Recordings):
    """Speaks texts with the voices of recordings."""

    criterion = MEL
    writer = "transformer.systems.synthesis.writer"
    decodes = False
    inputs = ("source",)
    sound, text = "target", "source"
    silence = False

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if recordings are missing, or each would be normalised by itself."""
        super().check(config)
        normalisation = config.data.normalisation  # type: ignore[attr-defined]
        if normalisation != "corpus":
            raise UserError(
                f"--data.normalisation {normalisation}: sound cannot be restored from it; use corpus to "
                "synthesise"
            )

    @staticmethod
    def sized(config: Config, vocab_size: int) -> Config:
        """The config, with the sizes of vocabulary and frames."""
        config, bands = Recordings.sized(config, vocab_size), config.data.bands  # type: ignore[attr-defined]
        model: Any = config.model
        assert isinstance(model, VoiceConfig)
        if model.bands not in (0, bands):
            raise UserError(f"--model.bands {model.bands}, but --data.bands {bands}: leave one of them out")
        return replace(config, model=replace(model, bands=bands))

    @staticmethod
    def example(config: Config) -> Arguments:
        """Shapes of ids and of frames."""
        frames = jax.ShapeDtypeStruct((1, 8, config.data.bands), jnp.float32)  # type: ignore[attr-defined]
        return jax.ShapeDtypeStruct((1, 2), jnp.int32), frames

    def ids(self, text: str) -> list[int]:
        """The ids of a text.

        Raises:
          UserError: it has characters or words that the vocabulary does not have.
        """
        text = one_line(text)
        if not self.tokenizer.knows(text):
            unknown = [brief(word) for word in dict.fromkeys(text.split()) if not self.tokenizer.knows(word)]
            where = f", in {', '.join(unknown[:5])}" if unknown else ""
            raise UserError(
                f"the text {brief(text)} has something that the training texts have not{where}: leave it out"
            )
        return self.tokenizer.encode(text)

    # From decoding

    def input_examples(
        self, records: Sequence[Recording], longest: int, lines: Sequence[int] = ()
    ) -> list[Example]:
        """The ids of the texts, closed by <eos>."""
        examples: list[Example] = []
        for index, record in enumerate(records):
            where = f"line {lines[index]}: " if lines else ""
            origin = f"what --pronunciation wrote for {brief(record.name)}: " if record.name else ""
            with prefixed_errors(where + origin):
                ids = self.ids(record.text)
            if len(ids) >= longest:
                raise UserError(
                    f"{where}{len(ids)} tokens, and --decoding.buckets allow {longest - 1}: divide the text"
                )
            examples.append({"source": [*ids, self.special.eos]})
        return examples

    def check_search(self, settings: DecodingConfig) -> None:
        """Accepts all of its own."""

    def is_empty(self, record: Recording) -> bool:
        """Whether there is nothing to say."""
        return not has_text(record.text)

    def empty_output(self) -> Utterance:
        return Utterance("", np.zeros((0, self.data.bands), np.float32))

    def outputs(self, result: Any, record: Recording, n_best: int | None) -> list[Utterance]:
        assert self.scale
        features = result.frames[: int(result.lengths)] * self.scale.deviation + self.scale.mean
        return [Utterance(record.text, features, bool(result.stopped))]

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """The mean absolute error of the normalised features, given all frames of the recording before, or
        the durations in it."""

        def mel(evaluation: Evaluation) -> Score:
            value = evaluation.means["mel"]
            return Score(value, f"bands:{self.data.bands}|given the recording", f"mel error = {value:.4f}")

        return {MEL: mel}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The cross-entropy of the stop token, or the error of durations."""
        return {name: means[name] for name in ("stop", "duration") if name in means}

    def is_exhibitable(self, record: Recording) -> bool:
        """Whether the search accepts the text."""
        try:
            self.input_examples([record], self.config.decoding.buckets[-1])
        except UserError:
            return False
        return not self.is_empty(record)

    @property
    def stride(self) -> float:
        """Seconds of a step of the decoder."""
        return float(HOP / RATE * self.config.model.reduction)  # type: ignore[attr-defined]

    def exhibit(
        self, record: Recording, output: Utterance, attention: Float[np.ndarray, "t s"] | None
    ) -> ReportSample:
        """The synthetic speech beside the recording."""
        end = "" if output.stopped else ", truncated at the limit of the search"
        return ReportSample(
            title=record.text,
            texts={},
            sounds=(Sound(f"synthetic, {output.seconds:.1f} s{end}", output.wave), resynthesised(record)),
            pictures=(
                spectrogram("synthetic mel spectrogram", output.features),
                *self.attention_picture(record, attention),
            ),
        )

    # Lines in, lines out

    def record(self, line: str) -> Recording:
        return Recording("", np.zeros((0, self.data.bands), np.float32), line)

    def written_for(self, text: str, line: str) -> Recording:
        """A text to speak, such as phonemes, and the line that it was written for, if there is one."""
        return replace(self.record(text), name=line)

    def example_line(self, record: Recording) -> str:
        """The text of a recording."""
        return record.text

    def example_command(self, record: Recording, decode: str) -> str:
        """Speaks the text of a recording."""
        return super().example_command(record, f"{decode} --output spoken.tsv")

    def listed(self, line: str, manifest: Path, number: int) -> Recording:
        record = self.record(line)
        with prefixed_errors(f"{manifest}, line {number}: "):
            self.input_examples([record], self.config.decoding.buckets[-1])
        return record

    def paired(self, record: Recording, output: Utterance) -> tuple[Recording, list[int]]:
        """What is spoken, and the text."""
        return Recording("", output.features, record.text), [*self.ids(record.text), self.special.eos]

    def line(self, output: Utterance) -> str:
        """What was said, and for how long."""
        return f"{output.text} ({output.seconds:.1f} s)"
