"""Speech recognition and translation: recordings in, sentences out; and the tokens that an output of Whisper
begins with."""

import functools
import itertools
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.config.arguments import choice
from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.config.ranges import instance
from transformer.config.records import Cut, Detector, WindowsConfig
from transformer.data.sequences import Example, Field
from transformer.data.signals.audio import HOP, RATE
from transformer.data.sources.recordings import Recording, listed_columns, recording
from transformer.data.store import Corpus, Records
from transformer.data.tokenizers.hub import HubTokenizer
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.hooks import SearchHook
from transformer.decoding.scores import SearchResult
from transformer.decoding.steering import prefix as opening
from transformer.decoding.steering.prefix import Timestamps
from transformer.model.parameters import Arguments
from transformer.runtime.errors import UserError, counted, nearest
from transformer.runtime.files import prefixed_errors
from transformer.systems.speech.error_rates import ErrorRates
from transformer.systems.speech.options import PROMPT, ctc_weight_of
from transformer.tasks.exhibit import ReportSample
from transformer.tasks.media.recordings import Recordings, resynthesised, spectrogram
from transformer.tasks.media.timing import Segment, segments
from transformer.tasks.metrics.error_rates import libraries_of
from transformer.tasks.metrics.scores import CHARACTERS, WORDS, Metric
from transformer.tasks.outputs import TRUNCATED
from transformer.tasks.text import Hypothesis, Steering, TextTask, hypotheses, words_of

# The tokens that an output of Whisper begins with: its language, its task, and whether it has times
# (Radford et al. 2022, Figure 1).


TASKS = ("transcribe", "translate")
UNTIMED = "<|notimestamps|>"
PREVIOUS = "<|startofprev|>"
SILENT = ("<|nospeech|>", "<|nocaptions|>")
"""The token of a recording in which nobody speaks has had two names."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True)
class Codes:
    """The ids of the tokens that an output of Whisper begins with."""

    languages: dict[str, int]
    """The id of each language, by its code, such as en."""
    tasks: dict[str, int]
    """transcribe: in the language of the recording; translate: to English."""
    untimed: int
    """The id of the token that says that there are no times. The ids after it are times."""
    previous: int | None = None
    """The id of the token before the text of earlier recordings."""
    silent: int | None = None
    """The id of the token that says that nobody speaks."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Codes | None":
        """The tokens of a vocabulary, if it has them."""
        added = tokenizer.added if isinstance(tokenizer, HubTokenizer) else {}
        if UNTIMED not in added:
            return None
        matches = ((_LANGUAGE.fullmatch(name), index) for name, index in added.items())
        languages = {match[1]: index for match, index in matches if match}
        tasks = {name: added[f"<|{name}|>"] for name in TASKS if f"<|{name}|>" in added}
        silent = next((added[name] for name in SILENT if name in added), None)
        return cls(languages, tasks, added[UNTIMED], added.get(PREVIOUS), silent)

    @property
    def first_time(self) -> int:
        """The id of the time 0."""
        return self.untimed + 1

    def opening(
        self,
        usual: Sequence[int],
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
    ) -> tuple[int, ...]:
        """The tokens that an output begins with.

        Args:
          usual: those of the run; empty: of no model yet.
          language: its code. None: the usual one.
          task: transcribe or translate. None: the usual one.
          timestamps: whether the output has times.

        Raises:
          UserError: there is no such language or task.
        """
        ids = [index for index in usual if index != self.untimed]
        for position, (name, value, table) in enumerate(
            (("language", language, self.languages), ("task", task, self.tasks))
        ):
            if value is None:
                continue
            if len(ids) <= position:
                raise UserError(f"{name} {value!r}: this model is for English only; leave it out")
            if value not in table:
                hint = nearest(str(value), table) or f"; there are {', '.join(list(table)[:5])} and others"
                raise UserError(f"{name} {value!r}: this model does not know it{hint}")
            ids[position] = table[value]
        return tuple(ids) if timestamps else (*ids, self.untimed)


LATEST = 50
"""The largest number of the first time: 1 s (Radford et al. 2022, section 4.5)."""
TIME = 0.02
"""Seconds from one time to the next."""
log = logging.getLogger("transformer")


class SpeechToText(ErrorRates, Recordings, TextTask):
    """What is said in recordings, in their language or in another."""

    inputs = ("source",)
    scored_by = ("error_rate", "text_normalisation")
    sound, text = "source", "target"

    @classmethod
    def libraries(cls, config: Config) -> Sequence[str]:
        """The libraries of tasks of recordings, and what counts errors."""
        return (*super().libraries(config), "jiwer", *libraries_of(config.training.text_normalisation))

    @staticmethod
    def example(config: Config) -> Arguments:
        """Shapes of the frames and of decoder input ids."""
        frames = jax.ShapeDtypeStruct((1, 8, config.data.bands), jnp.float32)  # type: ignore[attr-defined]
        return frames, jax.ShapeDtypeStruct((1, 2), jnp.int32)

    writer = "transformer.systems.speech.writer"
    service = "transformer.systems.speech.service"
    aligner = "transformer.systems.speech.api"

    @property
    def criterion(self) -> Metric:  # type: ignore[override]
        """Word error rate, or character error rate if that is chosen."""
        return CHARACTERS if self.config.training.error_rate == "characters" else WORDS

    def decide(self, corpus: Corpus) -> list[str]:
        """Which error rate decides, by the texts of the validation; and what CTC cannot learn from.

        Raises:
          UserError: CTC can learn from nothing.
        """
        return [*self._decide_error_rate(corpus), *self._too_short(corpus.splits["train"])]

    def _too_short(self, records: Records) -> list[str]:
        """How many recordings have no path that spells their text (`transformer.model.variants.ctc`)."""
        model: Any = self.config.model
        if not model.ctc_weight:
            return []
        count = 0
        for record in records:
            ids = self.text_ids(record.text)
            needed = len(ids) + sum(a == b for a, b in itertools.pairwise(ids))
            count += needed > -(-len(record.features) // 2**model.convolutions)
        if not count:
            return []
        option = f"--model.convolutions {model.convolutions}"
        rule = f"CTC has at most one token in every {self.stride:g} s ({option})"
        if count == len(records):
            raise UserError(
                f"--model.ctc-weight: all recordings are too short for their texts: {rule}; lower it"
            )
        outcome = "left out" if model.ctc_weight == 1 else "learned from by attention only"
        share = f"{count:,} of {len(records):,} training recordings"
        return [f"{share} are too short for their texts, and {outcome}: {rule}"]

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text. Each of Whisper's texts begins with a space."""
        return super().text_ids(f" {text.strip()}" if self.codes else text)

    def content(self) -> bytes:
        """What examples of recordings depend on, and whether a space is before their texts."""
        return super().content() + (b"space" if self.codes else b"")

    # From decoding

    def check_search(self, settings: DecodingConfig) -> None:
        """Raises UserError if attention and CTC cannot search with such options."""
        ctc_weight_of(self.config.model, settings)

    def input_examples(
        self, records: Sequence[Recording], longest: int, lines: Sequence[int] = ()
    ) -> list[Example]:
        """The frames, with warnings also of recordings that are truncated already."""
        for number, record in zip(lines, records, strict=False):
            if record.whole:
                log.warning("line %d: %s", number, self.shortened("source", record.whole.frames, longest))
        examples = super().input_examples(records, longest, lines)
        pairs = zip(examples, records, strict=True)
        return [{**example, TRUNCATED: True} if record.whole else example for example, record in pairs]

    def shortened(self, name: str, size: int, longest: int) -> str:
        if longest != self.data.padded_length:
            return super().shortened(name, size, longest)
        before, after = (frames * HOP / RATE for frames in (size, longest))
        return (
            f"a recording of {before:.2f} s: this model hears {after:g} s at once, and the rest is not "
            "transcribed; Transcriber.transcribe and decode.py hear all of it"
        )

    def hears(self, settings: DecodingConfig) -> float:
        """How many seconds a search reads at once."""
        data, longest = self.data, settings.buckets[-1]
        if data.padded_length:
            return min(data.padded_length, longest) * HOP / RATE
        return (min(data.max_length, longest) - 1) * HOP / RATE  # a wave has a frame at both ends

    def truncated(self, records: Sequence[Recording], longest: int) -> str:
        """A warning if recordings of a split are longer than the search reads."""
        count = sum(len(record.features) > longest for record in records)
        if not count:
            return ""
        is_window = longest == self.data.padded_length
        why = "this model hears no more at once" if is_window else "see --decoding.buckets"
        return (
            f"{count:,} of {counted(len(records), 'recording')} of the %s split truncated to "
            f"{longest / 100:.1f} s: {why}"
        )

    def outputs(self, result: SearchResult, record: Recording, n_best: int | None) -> list[Hypothesis]:
        """What may have been said, best first.

        Raises:
          UserError: there is no output that the rules allow.
        """
        outputs = hypotheses(result, self.tokenizer, self.special, n_best)
        return [replace(output, text=output.text.strip(" ")) for output in outputs]

    @functools.cached_property
    def codes(self) -> Codes | None:
        """The tokens of languages, tasks and times, if the vocabulary has them."""
        return Codes.of(self.tokenizer)

    def start(
        self, language: str | None = None, task: str | None = None, timestamps: bool = False
    ) -> tuple[int, ...]:
        """The ids that outputs begin with, as `Codes.opening`.

        Raises:
          UserError: there is no such language or task, or the vocabulary has none of them.
        """
        request: dict[str, Any] = {"language": language, "task": task, "timestamps": timestamps}
        for name, expected_type in (("language", str | None), ("task", str | None), ("timestamps", bool)):
            instance(name, request[name], expected_type)
        if self.codes:
            return self.codes.opening(self.tokenizer.start, **request)
        if named := [name for name, value in request.items() if value]:
            raise UserError(f"{named[0]}: it is for Whisper, and this is another model; leave it out")
        return self.tokenizer.start

    def in_windows(
        self,
        cut: Cut | None = None,
        detector: Detector | None = None,
        windows: WindowsConfig | None = None,
        pause: float | None = None,
    ) -> bool:
        """Whether a long recording is divided into Whisper's windows.

        Args:
          cut: how it is to be divided. None: into windows, if the model has times among its tokens.
          detector: of pauses. None: not asked for.
          windows: options of windows. None, or the defaults: not asked for.
          pause: seconds of silence at which a part ends. None: not asked for.

        Raises:
          UserError: there is no such way, the model has no times, or an option is for the other way.
        """
        if cut is not None:
            choice("cut", cut, get_args(Cut))
        instance("windows", windows, WindowsConfig | None)
        can_be = self.codes is not None and bool(self.data.padded_length)
        if cut == "windows" and not can_be:
            raise UserError("cut windows: this model has no times among its tokens; choose pauses")
        in_windows = can_be and cut != "pauses"
        if in_windows and detector is not None:
            raise UserError(f"detector {detector}: it finds pauses; cut at pauses, or leave it out")
        if in_windows and pause is not None:
            raise UserError(f"pause {pause:g}: windows do not end at pauses; cut at pauses, or leave it out")
        if not in_windows and windows not in (None, WindowsConfig()):
            raise UserError("windows: long recordings are cut at pauses; leave these options out")
        return in_windows

    def segments(self, ids: Sequence[int], record: Recording) -> tuple[Segment, ...]:
        """The segments of an output with times; none of one without times."""
        if not self.codes or record.start is None or self.codes.untimed in record.start:
            return ()
        text = ids[len(record.start) : -1]
        return segments(text, self.codes.first_time, self.tokenizer, TIME, self.heard_seconds(record))

    def heard_seconds(self, record: Recording) -> float:
        """How much of a recording the model hears, in seconds, without what it is padded with."""
        longest = self.data.padded_length * HOP / RATE or math.inf
        return min(record.duration, longest)

    def steering(self, records: Sequence[Recording], lines: Sequence[int]) -> list[Steering]:
        """The tokens that outputs begin with, and the rules of times."""
        usual = self.tokenizer.start
        starts = [usual if record.start is None else record.start for record in records]
        if not (usual or any(starts)):
            return []
        examples, lengths = [opening.opening_example(start) for start in starts], list(map(len, starts))
        size = max(lengths, default=len(usual))  # without records, to compile a search before there are some
        hook = opening.Opening(size, is_counted=False)
        steerings = [Steering("start", hook, opening.OPENING_FIELDS, examples, lengths)]
        if self.codes and any(self.codes.untimed not in start for start in starts):
            times = Timestamps(self.codes.first_time, self.special.eos, LATEST)
            steerings.append(Steering("timestamps", times, {}, [{} for _ in starts], [0] * len(starts)))
        if any(record.prompt is not None for record in records):
            fields = {PROMPT: Field(fill=self.special.pad, shape=(self.prompt_size,), padded=False)}
            prompts = [self.prompt(record.prompt or ()) for record in records]
            steerings.append(Steering("prompt", SearchHook(), fields, prompts, [0] * len(starts)))
        return steerings

    @property
    def prompt_size(self) -> int:
        """The ids of a prompt, with the token that begins it: half of the positions of the decoder."""
        return (getattr(self.config.model, "max_positions", None) or 0) // 2

    def prompt(self, ids: Sequence[int]) -> Example:
        """The array of a prompt: its last ids after the token that begins it, if there are some."""
        row = np.full(self.prompt_size, self.special.pad)
        if ids and self.codes and self.codes.previous is not None:
            last = [self.codes.previous, *ids[-(len(row) - 1) :]]
            row[: len(last)] = last
        return {PROMPT: row}

    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """The ids of a phrase, if the vocabulary can spell it; of imported ones also after a space."""
        imported = isinstance(self.tokenizer, HubTokenizer)
        spellings = [self.tokenizer.encode(spelled) for spelled in (text, f" {text}")[: 1 + imported]]
        candidates = (tuple(ids[len(self.tokenizer.start) :]) for ids in spellings)
        return [ids for ids in dict.fromkeys(candidates) if ids and self.special.unk not in ids]

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def pieces(self, ids: Sequence[int], record: Recording) -> list[str]:
        """The token of each id."""
        return self.tokenizer.pieces(ids)

    def spell(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(words_of(ids, self.special)).strip(" ")

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The negative log-likelihood in nats per token, of attention and of CTC, and its exponential."""
        likelihoods = {name: means[name] for name in ("nll", "ctc") if name in means}
        return {**likelihoods, "perplexity": math.exp(min(means["nll"], 700))}

    def shown(self, record: Recording, output: str) -> tuple[str, str, str]:
        """The file's name, its text and what was heard."""
        return record.name, record.text, output

    @property
    def stride(self) -> float:
        """Seconds of an encoder position."""
        return float(HOP / RATE * 2**self.config.model.convolutions)  # type: ignore[attr-defined]

    def exhibit(
        self, record: Recording, output: Hypothesis, attention: Float[np.ndarray, "t s"] | None
    ) -> ReportSample:
        """The recording, what is said in it and what is heard."""
        return ReportSample(
            title=record.name,
            texts={"said": record.text, "heard": output.text},
            sounds=(resynthesised(record),),
            pictures=(
                spectrogram("mel spectrogram", record.features),
                *self.attention_picture(record, attention),
            ),
        )

    # Lines in, lines out

    def record(self, line: str) -> Recording:
        """The recording that a line names.

        Raises:
          UserError: it cannot be read.
        """
        name, *columns = line.split("\t")
        return recording(Path(name), self.data, "".join(columns[:1]))

    def listed(self, line: str, manifest: Path, number: int) -> Recording:
        """The recording that a line names, relative to the folder of the file; or the file itself."""
        if line == manifest.name:  # whatever it is made of
            return recording(manifest, self.data)
        path, columns = listed_columns(line, manifest, number)
        with prefixed_errors(f"{manifest}, line {number}: "):
            return replace(recording(path, self.data, columns.text or ""), speaker=columns.speaker)

    def example_command(self, record: Recording, decode: str) -> str:
        """The command that decodes some recording: a corpus has no sound files."""
        return f"{decode} --input RECORDING.wav"

    def as_read(self, record: Recording, longest: int) -> Recording:
        """The beginning of a long recording."""
        return record.truncated(longest)

    def paired(self, record: Recording, output: Hypothesis) -> tuple[Recording, list[int]]:
        """The recording, and what is heard."""
        return record, list(output.ids)

    def line(self, output: Hypothesis) -> str:
        return " ".join(output.text.split("\n"))
