"""The Python API for speech synthesis: a decoder whose records are texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer.config.arguments import texts_of
from transformer.config.ranges import Option, instance
from transformer.runtime.errors import UserError
from transformer.runtime.files import brief
from transformer.systems.synthesis.task import TextToSpeech, Utterance
from transformer.tasks.text import Hypothesis
from transformer.translator.decoder import Decoder
from transformer.translator.translator import Translator


def pronounced(output: Hypothesis, text: str) -> str:
    """What the first of two stages made of a text. Raises UserError if it has not read the whole."""
    if output.truncated:
        raise UserError(f"{brief(text)} is longer than the model of its pronunciation reads: divide it")
    return output.text


class Synthesizer(Decoder[TextToSpeech]):
    """A trained model that speaks. Threads may share it. See `Decoder` for batches and programs."""

    reads, does = TextToSpeech, "speak"
    pronunciation: Translator | None = None
    """The first of two stages: it translates texts to those that this one speaks, such as to phonemes."""

    def speak(self, texts: str | Sequence[str], **options: Option) -> Any:
        """The waveform of a text, from -1 to 1 at 16,000 samples a second, or a list of them for a list.

        Args:
          texts: one or several.
          options: any search option of the run, instead of the run's value.

        Raises:
          UserError: a text has something that the training texts have not, or an option is invalid.
        """
        utterances = self.utterances([texts] if isinstance(texts, str) else texts, **options)
        waves: list[Float[np.ndarray, " samples"]] = [utterance.wave for utterance in utterances]
        return waves[0] if isinstance(texts, str) else waves

    def utterances(self, texts: Sequence[str], **options: Option) -> list[Utterance]:
        """The utterance of each text: its features, and its waveform.

        Args:
          texts: any number.
          options: as in `speak`.
        """
        texts = texts_of(texts, "texts")
        instance("pronunciation", self.pronunciation, Translator | None)
        if self.pronunciation:
            spoken = [best for best, *_ in self.pronunciation.search(texts, n_best=1)]
            pairs = zip(spoken, texts, strict=True)
            records = [self.task.written_for(pronounced(*pair), pair[1]) for pair in pairs]
        else:
            records = [self.task.record(text) for text in texts]
        return [outputs[0] for outputs in self.decode(records, **options)]
