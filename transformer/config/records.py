"""Options of corpora whose records are running text, texts, words with labels, pictures or recordings."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from transformer.config.corpus import CorpusConfig
from transformer.config.ranges import (
    COUNTS,
    LARGEST,
    LENGTH,
    LONGEST,
    SHARE,
    SIZE,
    TEMPERATURE,
    Range,
    Section,
)
from transformer.config.transformer import TransformerConfig
from transformer.runtime.errors import UserError

# Options of text in one language.


@dataclass(frozen=True)
class TextsConfig(CorpusConfig):
    """Text in one language, from files or a corpus."""

    dataset: str = "built-in"
    """Corpus: built-in (English sentences from a small grammar), or a TFDS dataset with text. Ignored if text
    files are given."""
    text_feature: str = "text"
    """Feature of a TFDS dataset that has the text."""
    train: Path | None = None
    """Training text."""
    validation: Path | None = None
    """Validation text. Default: the last tenth of the training text."""
    test: Path | None = None
    """Test text, for the final evaluation. Default: the validation text."""
    built_in_size: Annotated[int, Range(10, COUNTS)] = 20_000
    """Number of training sentences to generate for the built-in text."""


@dataclass(frozen=True)
class SentencesConfig(TextsConfig):
    """Text of which each line is an example, such as a sentence; its vocabulary and batches."""

    tokenizer: Literal["unigram", "bpe", "char", "whitespace", "word", "jieba"] = "unigram"
    """Tokenizer, as of translation. whitespace: for text that is already split into subwords; word: whole
    words, and single characters of Chinese and Japanese; jieba: the same, but Chinese is split into words."""
    vocab_size: Annotated[int, Range(5, LARGEST)] = 16_000
    """Size of the vocabulary to train; for char and word an upper bound. At least 261, with 256 bytes that
    spell rare characters; for whitespace and words at least 5."""
    source_tokenizer: Path | None = None
    """Tokenizer file to use instead of training one, such as source.model of another run."""


# Options of running text.


@dataclass(frozen=True)
class StreamConfig(TextsConfig):
    """Running text, its vocabulary and batches. A batch continues the one before: each of its rows reads a
    part of the text from beginning to end."""

    max_length: int = 128
    """Tokens of a segment: what each row of a batch reads."""
    batch_tokens: int = 2_048
    """Tokens of a batch: the number of rows times the tokens of a segment."""
    separator: str | None = None
    """The line between two documents of a text file, such as <|endoftext|>. None: a file is one document."""
    tokenizer: Literal["character", "byte", "bpe", "unigram"] = "character"
    """Tokenizer. character: each character of the training text; byte: the bytes of UTF-8; bpe, unigram:
    subwords."""
    vocab_size: Annotated[int, Range(5, LARGEST)] = 16_000
    """Size of the vocabulary to train (for characters: an upper bound)."""
    source_tokenizer: Path | None = None
    """Tokenizer file to use instead of training one, such as that of a run in whose search the model takes
    part (decode.py --lm). Documents then end without a line end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fixed = {"batching": self.batching == "packed", "buckets": self.buckets != CorpusConfig.buckets}
        for name, differs in fixed.items():
            if differs:
                raise UserError(f"--data.{name}: all segments have --data.max-length tokens; leave it out")
        if self.separator is not None and (not self.separator or "\n" in self.separator):
            raise UserError("--data.separator: must be a line of text, such as <|endoftext|>")

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.max_length,)

    @property
    def rows(self) -> int:
        """Rows of a batch: how many parts of the text are read at once."""
        return self.batch_tokens // self.max_length


# Options of sentences whose words have labels.


COLUMNS = 1000


@dataclass(frozen=True)
class TaggedConfig(SentencesConfig):
    """Sentences whose words have labels, from CoNLL files or the built-in corpus."""

    dataset: str = "built-in"
    """Corpus: built-in (the sentences of the built-in treebank, with parts of speech). Ignored if files are
    given."""
    train: Path | None = None
    """Training sentences in a CoNLL file: on each line a word and its label, in columns separated by blanks
    or tabs, and an empty line after each sentence."""
    validation: Path | None = None
    """Validation sentences, a CoNLL file. Default: the last tenth of the training sentences."""
    test: Path | None = None
    """Test sentences, a CoNLL file, for the final evaluation. Default: the validation sentences."""
    word_column: Annotated[int, Range(1, COLUMNS)] | None = None
    """Column of the words in CoNLL files, from 1. None: the first, or the second if the first numbers the
    words; in CoNLL-U files FORM."""
    label_column: Annotated[int, Range(1, COLUMNS)] | None = None
    """Column of the labels in CoNLL files, from 1. None: the last; in CoNLL-U files UPOS, the universal part
    of speech."""
    spans: Literal["auto", "conlleval", "none"] = "auto"
    """Whether labels mark spans, such as B-NP I-NP O. conlleval: spans are scored too, as the program of that
    name counts them; none: they are not; auto: conlleval if all labels are O or begin with B-, I-, E- or S-;
    decided when a run begins."""
    built_in_size: Annotated[int, Range(10, COUNTS)] = 5_000
    """Number of training sentences to generate for the built-in corpus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_feature != SentencesConfig.text_feature:
            raise UserError("--data.text-feature: labels come from CoNLL files; leave it out")
        if self.tokenizer == "jieba":
            raise UserError("--data.tokenizer jieba: words are divided already; use char or word")
        if self.dataset != TaggedConfig.dataset:
            raise UserError(
                f"--data.dataset {self.dataset}: sentences with labels are built-in, or CoNLL files "
                "(--data.train)"
            )


# Options of pictures, and of models that read them.


LARGEST_PICTURE = 4096
PICTURE_FILES = (b"\x89PNG", b"\xff\xd8\xff")
"""How the content of PNG and JPEG files begins."""


@dataclass(frozen=True)
class PicturesConfig(CorpusConfig):
    """Pictures with their annotations, and batches."""

    picture_size: Annotated[int, Range(8, LARGEST_PICTURE)] = 32
    """Height and width in pixels to which pictures are resized. More makes more patches."""
    built_in_size: Annotated[int, Range(20, COUNTS)] = 4_000
    """Built-in drawings: number of training pictures to generate."""
    fewest_shapes: Annotated[int, Range(0, 8)] = 1
    """Built-in drawings: fewest shapes of a picture."""
    most_shapes: Annotated[int, Range(1, 8)] = 2
    """Built-in drawings: most shapes of a picture. As many as fit are drawn."""
    train: Path | None = None
    """Manifest of the training pictures: PNG files with their annotations, a picture a line. Names are
    relative to its folder. None: built-in drawings of shapes."""
    validation: Path | None = None
    """Manifest of the validation pictures. Default: a part of the training pictures."""
    test: Path | None = None
    """Manifest of the test pictures. Default: the validation pictures."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fewest_shapes > self.most_shapes:
            raise UserError(
                f"--data.fewest-shapes {self.fewest_shapes} is more than --data.most-shapes "
                f"{self.most_shapes}: lower it"
            )
        if self.batching == "packed":
            raise UserError("--data.batching packed: a picture has a row of its own; use buckets")


@dataclass(frozen=True)
class PatchConfig(TransformerConfig):
    """A Transformer that reads pictures in patches, as the vision transformer does (Dosovitskiy et al.
    2021)."""

    share_embeddings: Literal["target", "none"] = "target"  # type: ignore[assignment]
    """Tied embeddings. target: of the output and before the softmax; none: two matrices. Pictures have
    none."""
    patch_size: Annotated[int, Range(1, LARGEST_PICTURE)] = 4
    """Height and width of a patch in pixels (Dosovitskiy et al. 2021). Each is a position of the encoder."""

    NOT_USED: ClassVar[tuple[str, ...]] = ("source_end",)

    @property
    def longest_source(self) -> int | None:
        return None


# Options of recordings.


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
    padded_length: Annotated[int, LENGTH] = 0
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


Cut = Literal["pauses", "windows"]
"""How a long recording is divided."""
Detector = Literal["energy", "silero"]
"""What tells speech from silence."""


@dataclass(frozen=True)
class WindowsConfig(Section):
    """Whisper's windows of 30 seconds (Radford et al. 2022, section 4.5). The defaults are those of its
    publisher."""

    SECTION = "windows"

    previous_text: bool = True
    """Let each window continue the text of those before it, unless that was sampled at a temperature above
    0.5. Names and style then stay the same, but a repeated phrase may last for several windows."""
    temperatures: tuple[Annotated[float, Range(0, 1000)], ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """Temperatures at which a window is decoded, one after another, until its text is good enough by the
    next two options. 0: by the search of the other options."""
    samples: Annotated[int, SIZE] = 5
    """Samples at each temperature above 0, of which the most probable one counts."""
    compression_ratio: Annotated[float, Range(0)] | None = 2.4
    """Decode a window at the next temperature if its text is compressed (by zlib) to less than its size over
    this number: it repeats itself. None: never."""
    log_probability: Annotated[float, Range(most=0)] | None = -1.0
    """Decode a window at the next temperature if its mean log-probability of a token, in nats, is lower.
    None: never."""
    no_speech: Annotated[float, SHARE] | None = 0.6
    """Leave a window without text if the probability that nobody speaks is higher, and the mean
    log-probability is not above --windows.log-probability. None: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(0 < temperature < TEMPERATURE.least for temperature in self.temperatures):
            raise UserError(f"--windows.temperatures: each must be 0 or at least {TEMPERATURE.least:g}")
        if not self.temperatures:
            raise UserError("--windows.temperatures: give at least one; 0 is the search of the other options")
