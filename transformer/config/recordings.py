"""Options of recordings."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from transformer.config.corpus import CorpusConfig
from transformer.config.ranges import COUNTS, LARGEST, LONGEST, Range
from transformer.runtime.errors import UserError

AUDIO = (".wav", ".flac", ".ogg", ".mp3")
"""Names of recordings end so."""


def is_recording(path: Path) -> bool:
    """Whether the name of a file is that of a recording."""
    return path.suffix.lower() in AUDIO


SOUND = re.compile(
    rb"OggS\0|fLaC\0|ID3[\3\4]|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]|(RIFF|FORM).{4}(WAVE|AIF[FC])", re.DOTALL
)
"""How the content of audio files begins, these and others."""


@dataclass(frozen=True)
class RecordingsConfig(CorpusConfig):
    """Recordings with their texts, features and batches. Lengths are in frames of 10 ms."""

    max_length: int = 400
    """Longest recording in frames of 10 ms: longer ones are dropped."""
    batch_tokens: int = 4_000
    """Frames of a batch: rows times padded length."""
    buckets: tuple[int, ...] = (100, 180, 270, 400)
    """Padded lengths in frames, ascending, up to --data.max-length. Each is one compiled program."""
    max_text: Annotated[int, Range(2, LONGEST)] = 32
    """Recordings with more tokens than this are dropped, <eos> included. Shorter recordings have room for
    fewer, in proportion."""
    dataset: str = "spoken-digits"
    """Corpus: spoken-digits or spoken-numbers (0 to 9,999), by a synthesiser that comes with this program; or
    a TFDS dataset with audio and text, such as librispeech. Ignored if manifests are given."""
    audio_feature: str = "audio"
    """TFDS datasets: the name of the waveform; speech in librispeech."""
    text_feature: str = "text"
    """TFDS datasets: the name of what is said, a text or a label."""
    sample_rate: Annotated[int, Range(1000, 1000000)] = 16_000
    """TFDS datasets: samples a second, if the dataset does not say."""
    speaker: Literal["any", "one"] = "any"
    """Built-in recordings: another speaker in each, or one in all, as for synthesis."""
    language: Literal["en", "de"] = "en"
    """Built-in recordings: language of the texts. They are spoken in English; de: to be translated."""
    writing: Literal["words", "digits", "phonemes"] = "words"
    """Built-in recordings: how texts are written. phonemes: as `dataset pronunciation` writes them."""
    built_in_size: Annotated[int, Range(20, COUNTS)] = 2_000
    """Built-in recordings: number of training recordings to generate."""
    most_digits: Annotated[int, Range(1, 100)] = 5
    """Built-in recordings: most digits of each. A number has at most 4."""
    train: Path | None = None
    """Manifest of the training recordings: a file name, a tab and the text on each line, which is empty for
    silence, and perhaps a tab and the speaker. Names are relative to its folder."""
    validation: Path | None = None
    """Manifest of the validation recordings. Default: a part of the training recordings."""
    test: Path | None = None
    """Manifest of the test recordings. Default: the validation recordings."""
    bands: Annotated[int, Range(1, 200)] = 80
    """Mel bands of a frame."""
    normalisation: Literal["recording", "corpus", "peak"] = "recording"
    """How features are scaled. recording, corpus: each band gets mean 0 and deviation 1 over each recording,
    or over all training recordings; peak: logarithms to base 10, at least those of the loudest band less 8,
    plus 4, over 4 (Whisper, Radford et al. 2022)."""
    padded_length: Annotated[int, Range(0, LONGEST)] = 0
    """Frames to which each recording is padded with silence, which the model attends to. 0: none; 3000 (30 s)
    in Whisper."""
    speeds: tuple[float, ...] = (1.0,)
    """Factors on the speed at which training recordings are heard; each adds a copy of all of them (Ko et al.
    2015). Often 0.9 1.0 1.1."""
    tempi: tuple[float, ...] = ()
    """The slowest and the fastest tempo: each training recording is stretched or shortened to one between
    them, and its pitch stays (Ko et al. 2015). Such as 0.5 2.0."""
    tokenizer: Literal["word", "char", "bpe", "unigram"] = "word"
    """Tokenizer of the texts."""
    vocab_size: Annotated[int, Range(5, LARGEST)] = 1_000
    """Size of the vocabulary to train; for word and char an upper bound. At least 261, with 256 bytes that
    spell rare characters; for words at least 5."""

    counted: ClassVar[str] = "frames"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.speeds or not all(0.2 <= speed <= 5 for speed in self.speeds):
            raise UserError("--data.speeds must be factors between 0.2 and 5, such as 0.9 1.0 1.1")
        if self.tempi and not (len(self.tempi) == 2 and 0.2 <= self.tempi[0] <= self.tempi[1] <= 5):
            raise UserError("--data.tempi must be two factors between 0.2 and 5, such as 0.5 2.0")
        if self.language == "de" and self.writing != "words":
            raise UserError(f"--data.language de: it is for words; leave out --data.writing {self.writing}")
