"""The Python API for speech: a decoder whose records are recordings."""

import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.config import DecodingConfig, Option
from transformer.config.ranges import true_or_false
from transformer.data.features.audio import features_of
from transformer.data.features.waveforms import waveform_of
from transformer.data.sources.recordings import Recording, recording
from transformer.decoding.lanes import batch
from transformer.decoding.scores import SearchResult
from transformer.errors import UserError
from transformer.systems.speech.task import SpeechToText
from transformer.tasks.hypotheses import Hypothesis
from transformer.tasks.timing import Word, timed
from transformer.translator.decoder import Decoder
from transformer.translator.lengths import of_like_length, padded
from transformer.translator.scoring import aligned

Heard = Path | str | np.ndarray | jax.Array
"""A file, or a waveform at 16,000 samples a second: numbers from -1 to 1, or whole numbers, which are divided
by the range of their type."""

CONTENT = bytes, bytearray, memoryview, io.IOBase
"""What may hold a recording, and is not read."""


@dataclasses.dataclass(frozen=True, eq=False)
class Transcript(Hypothesis):
    """What was said in a recording. `json.dumps(transcript.to_dict())` writes it as JSON."""

    words: tuple[Word, ...] = ()
    """With their times, if requested."""


class Transcriber(Decoder[SpeechToText]):
    """A trained model that hears. Threads may share it. See `Decoder` for batches and programs."""

    reads, does = SpeechToText, "hear"

    def transcribe(self, recordings: Heard | Sequence[Heard], **options: Option) -> Any:
        """What is said in a recording (a string), or in each of several (a list).

        Args:
          recordings: files, or waveforms at 16,000 samples a second (from -1 to 1, or whole numbers such as
            int16); one or a list.
          options: any field of `DecodingConfig`, instead of the run's value.

        Raises:
          UserError: a recording cannot be read, or an option is invalid.
        """
        one = isinstance(recordings, Path | str) or _is_array(recordings)
        several: Any = [recordings] if one else recordings
        found = [best.text for (best, *_) in self.search(several, n_best=1, **options)]
        return found[0] if one else found

    def search(
        self,
        recordings: Sequence[Heard],
        *,
        n_best: int | None = None,
        times: bool = False,
        alignments: bool = False,
        **options: Option,
    ) -> list[list[Transcript]]:
        """What may be said in each recording, best first.

        Args:
          recordings: as in `transcribe`.
          n_best: outputs for each. None: all that the search keeps.
          times: whether to return when each word begins and ends.
          alignments: whether to return the cross-attention of each token: a column for every 40 ms.
          options: as in `transcribe`.
        """
        if isinstance(recordings, Path | str):
            raise UserError(f"search takes a list of recordings: [{str(recordings)!r}]")
        if isinstance(recordings, CONTENT) or not isinstance(recordings, Iterable):
            raise _unheard(recordings)
        times, alignments = true_or_false("times", times), true_or_false("alignments", alignments)
        settings = self.settings(n_best, options)
        records = enumerate(map(self.heard, recordings), 1)
        return list(self.outputs(records, settings, n_best, times=times, alignments=alignments))

    def heard(self, given: Heard) -> Recording:
        """The features of a recording.

        Raises:
          UserError: it cannot be read, or is no waveform.
        """
        bands = self.task.data.bands
        if isinstance(given, Path | str):
            return recording(Path(given), bands)
        if not _is_array(given):
            raise _unheard(given)
        return Recording("waveform", features_of(waveform_of(given), bands))

    def finished(  # type: ignore[override]
        self,
        found: SearchResult,
        record: Recording,
        settings: DecodingConfig,
        n_best: int | None,
        times: bool = False,
        alignments: bool = False,
    ) -> list[Transcript]:
        """The outputs for a recording, with what else is wanted of each."""
        several = [Transcript(**each.fields()) for each in super().finished(found, record, settings, n_best)]
        if not (times or alignments):
            return several
        kept = []
        for each, weights in zip(several, self._attention(found, record, several, settings), strict=True):
            said = timed(each.ids, weights, self.task.tokenizer, self.frame) if times else ()
            kept.append(dataclasses.replace(each, words=said, alignment=weights if alignments else None))
        return kept

    @property
    def frame(self) -> float:
        """Seconds from one column of an alignment to the next."""
        return self.task.stride

    def _attention(
        self, found: SearchResult, record: Recording, several: Sequence[Hypothesis], settings: DecodingConfig
    ) -> list[Float[np.ndarray, "t s"]]:
        """The attention of each output's tokens to the frames that the encoder makes."""
        (example,) = self.task.input_examples([record], settings.buckets[-1])
        ((_, length),) = of_like_length([len(example["source"])], settings)
        rows, columns = found.tokens.shape  # as many for all: one program for each bucket
        source = jnp.asarray(batch([example] * len(several), self._fields, length, rows)["source"])
        target = padded([each.ids for each in several], columns, rows, self.task.special.pad)
        weights = np.asarray(aligned(self.system, self.model, self.variables, source, jnp.asarray(target)))
        model: Any = self.model
        there = int(np.asarray(model.source_mask(source))[0].sum())
        return [each[: len(x.ids), :there] for each, x in zip(weights, several, strict=False)]


def _is_array(given: object) -> bool:
    """Whether it is an array of NumPy, JAX or another library."""
    return hasattr(given, "__array__")


def _unheard(given: object) -> UserError:
    return UserError(f"cannot hear {type(given).__name__}: give files or arrays of samples")
