"""The command line of `decode.py`."""

import contextlib
import functools
import logging
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from transformer.cli.command_line import options_in, with_method
from transformer.cli.parser import parse
from transformer.config.corpus import DataConfig
from transformer.config.decoding import DecodingConfig
from transformer.config.methods import check_idle_search
from transformer.config.names import DECODING
from transformer.config.options import Config, HostsConfig, flatten
from transformer.config.records import Cut, Detector, WindowsConfig
from transformer.config.searches import methods_of
from transformer.config.training import BleuTokenizer, TextNormalisation
from transformer.data.remote import has
from transformer.runtime.errors import UserError
from transformer.runtime.files import address
from transformer.runtime.invocation import command_for
from transformer.systems.registry import REGISTRY, options_of

T = TypeVar("T")
log = logging.getLogger("transformer")


class Way(Enum):
    """What becomes of the input. The value has the message for options of other ways, the formats of the
    outputs and the message for others."""

    LINES = "{}: it is for lines; leave it out", ("text", "scores", "json"), "--format {}: lines have none"
    TURNS = "{}: with --history each line is a turn of one conversation; leave it out", *LINES[1:]
    CHOICES = "{}: --choices writes labels and how probable they are; leave it out", *LINES[1:]
    RECORDING = (
        "{}: it is for recordings that the model hears at once; leave it out",
        ("text", "json", "srt", "vtt"),
        "--format {} is for recordings that the model hears at once; choose json",
    )
    WORDS = (
        "{}: --stream shows one translation while it grows; leave it out",
        ("text",),
        "--format: --stream shows text; leave it out",
    )
    SOUND = (
        "{}: --stream writes one transcript while it grows; leave it out",
        ("text", "json"),
        "--format {}: --stream writes text or json",
    )
    PIECES = "{}: --stream shows one output of each prompt while it grows; leave it out", *WORDS[1:]
    PAGE = (
        "{} is for lines, --explore writes a page: leave one out",
        ("text",),
        "--format {} is for lines, --explore writes a page: leave one out",
    )
    DOCUMENT = (
        "{}: it is for lines, and --document translates a document; leave it out",
        ("text",),
        "--format {} is for lines; leave it out (--flags writes JSON)",
    )

    def __init__(self, refusal: str, formats: tuple[str, ...], other_format: str) -> None:
        self.refusal, self.formats, self.other_format = refusal, formats, other_format


@dataclass(frozen=True)
class Applies:
    """Where an option applies."""

    to: str = ""
    """What a run must be able to do (`Writer.abilities`). Empty: every run can."""
    ways: Set[Way] | None = None
    """The ways that have it. None: all."""
    needs: str = ""
    """Another option without which it means nothing."""
    why: str = ""
    """The message if that one is missing, with {} for the name of the option."""
    formats: tuple[str, ...] = ()
    """Those that it adds to. Empty: all."""


LINES = frozenset({Way.LINES})
OUTPUTS = frozenset({Way.LINES, Way.TURNS, Way.CHOICES, Way.RECORDING})
"""The ways that write outputs of whole lines or recordings."""
STREAMS = frozenset({Way.WORDS, Way.SOUND, Way.PIECES})
WRITTEN = OUTPUTS | {Way.DOCUMENT}
TIMED = frozenset({Way.LINES, Way.RECORDING})
SEARCHED = frozenset({Way.LINES, Way.TURNS})
DOCUMENT = frozenset({Way.DOCUMENT})
STEERED = LINES | {Way.PAGE}
FUSION = Applies("fusion", OUTPUTS - {Way.CHOICES} | {Way.SOUND})
SPEECH = Applies("speech", TIMED)
TRANSLATION = Applies("translation", WRITTEN)
ENSEMBLE = replace(
    TRANSLATION,
    needs="ensemble",
    why="{}: there is one run; name several before the options, or leave it out",
)
ROWS = Applies("translation", STEERED | {Way.CHOICES})
CHOICE = Applies("choices", frozenset({Way.CHOICES}))
EXTRA = Applies(ways=SEARCHED, formats=("json",))


@dataclass(frozen=True)
class DecodeArguments:
    """Translate text, a line at a time."""

    run_dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    ensemble: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[RUN ...]"), TRANSLATION
    ]
    """More runs with the same vocabulary, whose distributions are averaged at every step."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")]
    input: Annotated[Path | None, Applies(ways=OUTPUTS | STREAMS | {Way.PAGE})] = None
    """Text to translate, one sentence per line. Speech: names of recordings, relative to this file, with a
    tab and what is said if that is known (nothing after the tab: silence); or one recording of any length.
    Default: standard input."""
    output: Annotated[Path | None, Applies(ways=WRITTEN)] = None
    """Output file, one translation per line. Default: standard output."""
    document: Annotated[Path | None, Applies("translation", DOCUMENT)] = None
    """Document to translate whole, instead of lines: Markdown if its name ends in .md or .markdown, else
    plain text. What is no text stays as it is: code, addresses, tags."""
    flags: Annotated[
        Path | None,
        Applies(
            "translation",
            DOCUMENT,
            "document",
            "{} is for --document: it lists the suspicious sentences of one",
        ),
    ] = None
    """File for the sentences of --document whose translation is suspicious, as JSON lines."""
    source_language: Annotated[str | None, Applies("translation")] = None
    """Code of the source language, such as deu_Latn, for a model of many languages, where a line does not
    name another. Default: the one of the run."""
    target_language: Annotated[str | None, Applies("translation")] = None
    """Code of the target language."""
    tsv: Annotated[bool, ROWS] = False
    """Read lines of up to five columns, with tabs between them: a sentence, the beginning of its translation,
    terms that must occur in its translation, with | between them, and the codes of source and target
    language. All but the sentence may be empty or left out. The last word of a beginning may be incomplete; a
    space after it completes it. A model with several inputs reads a column for each, in the order of its
    --data.inputs, in place of the sentence."""
    jsonl: Annotated[bool, ROWS] = False
    """Read lines that are JSON objects, with the fields source, prefix, terms (a list), source_language and
    target_language, of which only source is needed; in its place, the inputs that a model has by name."""
    glossary: Annotated[Path | None, Applies("translation", STEERED)] = None
    """Glossary file: a term, a tab and its translation on each line. Where a sentence has the term, its
    translation has that translation."""
    keep: Annotated[str, Applies("translation", STEERED)] = ""
    """Regular expression, such as "https?://[^ ]+": what it matches in a sentence occurs in its translation
    as it is."""
    reference: Annotated[tuple[Path, ...], Applies("references", OUTPUTS)] = ()
    """Reference outputs, such as translations. Prints the scores of the task with their signatures at the
    end. Several files: each line of the input has a reference in each; an empty line is none."""
    history: Annotated[int, Applies("translation", frozenset({Way.TURNS}))] = 0
    """Read each line as a turn of a conversation, after as many earlier turns: lines and what was answered.
    An empty line begins a new conversation. Lines are then decoded one after another."""
    target_length: Annotated[int, Applies("target_length", OUTPUTS | {Way.PAGE})] = 0
    """Words that each output should have where a line does not say it, for a model that was trained with
    --data.inputs target-length ..."""
    choices: Annotated[tuple[str, ...], CHOICE] = ()
    """Labels to choose from: writes the most probable one of each line; with --format json the probability of
    each. `trained`: those of the training text."""
    temperature_of_choices: Annotated[
        float,
        replace(
            CHOICE,
            needs="choices",
            why="{} needs --choices: it is about their probabilities",
            formats=("scores", "json"),
        ),
    ] = 1.0
    """How certain probabilities of --choices are: more than 1, less certain. See Translator.calibrated."""
    bleu_tokenize: Annotated[
        BleuTokenizer | None,
        Applies("translation", OUTPUTS, "reference", "{} needs --reference: without it nothing is scored"),
    ] = None
    """sacreBLEU's tokenizer for --reference. Default: the one of training."""
    text_normalisation: Annotated[TextNormalisation | None, SPEECH] = None
    """Speech: how texts are normalised before errors are counted. basic: lower case, no punctuation; english:
    as Whisper does it for English. Default: as in training."""
    lm: Annotated[Path | None, FUSION] = None
    """Language model of the outputs, which ranks hypotheses together with the model (shallow fusion): an
    n-gram model in ARPA form, whose words are the tokens of the run (transformer ngram makes one), or a run
    of language-model that was trained with its vocabulary (--data.source-tokenizer)."""
    lm_weight: Annotated[
        tuple[float, ...],
        replace(FUSION, needs="lm", why="{} needs --lm FILE: it weighs that language model"),
    ] = ()
    """Weight of the log-probabilities of --lm. Default: 0.3. With several, such as 0 0.1 0.2 0.4, the scores
    of each by --reference are printed instead of outputs."""
    bias: Annotated[Path | None, FUSION] = None
    """File with names that outputs are expected to have, one name or phrase on each line, and after a tab its
    own weight, if it has one. Hypotheses with them rank higher (biasing)."""
    bias_weight: Annotated[
        tuple[float, ...], replace(FUSION, needs="bias", why="{} needs --bias FILE: it weighs those names")
    ] = ()
    """What each token of a name of --bias counts, in nats; no name gains more than it costs. Default: 0.5.
    With several, such as 0 0.25 0.5 1, the scores
    of each by --reference are printed instead of outputs."""
    checkpoint: str = "best"
    """Checkpoint to decode with: best (by the first score of the validation), last, average (of the last
    ones), or a step."""
    base: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """The run that an adapter changes, if it is not beside it."""
    int8: bool = False
    """Use int8 weights: faster on CPUs, at similar quality."""
    format: Literal["text", "scores", "json", "srt", "vtt"] = "text"
    """Output format. text: the translation; scores: its score, a tab, the translation; json: an object for
    each line: its number, source, source_tokens, and hypotheses with text, tokens, score, log_probability,
    and alignment if requested (a row for each token and <eos>, a column for each source token and <eos>).
    Language models: line, prompt and outputs. Speech: line, recording and hypotheses; srt and vtt: subtitles
    of one recording.
    Taggers: line, words, labels and their probabilities."""
    weights: Annotated[tuple[float, ...], ENSEMBLE] = ()
    """Weights of the runs of an ensemble, the first one included. Default: equal ones."""
    mean: Annotated[Literal["probabilities", "logarithms"], ENSEMBLE] = "probabilities"
    """What an ensemble averages: probabilities, or their logarithms (a geometric mean)."""
    rescore: Annotated[tyro.conf.UseAppendAction[tuple[Path, ...]], Applies("translation", LINES)] = ()
    """Another run, whose model re-ranks the hypotheses (see --beam-size). Repeat it for several runs,
    which do so together."""
    rescore_weights: Annotated[
        tuple[float, ...],
        Applies("translation", LINES, "rescore", "{} needs --rescore RUN: it weighs those runs"),
    ] = ()
    """Weights of the runs of --rescore. Default: equal ones."""
    n_best: Annotated[int | None, Applies(ways=SEARCHED | {Way.CHOICES, Way.PAGE})] = None
    """Translations per sentence; text and scores have that many lines per sentence. Default: 1; with
    --explore, all hypotheses of the beam."""
    alignments: Annotated[bool, replace(EXTRA, to="alignments")] = False
    """Add the cross-attention of every token to the output (format json)."""
    token_scores: Annotated[bool, replace(EXTRA, to="scores")] = False
    """Add the log-probability of every token and of <eos>, the entropy of the distribution it comes from, and
    the perplexity of the translation to the output (format json)."""
    word_confidences: Annotated[bool, replace(EXTRA, to="confidence")] = False
    """Add the probability that each word of the output is right (format json). It is learned by transformer
    calibrate."""
    times: Annotated[bool, replace(SPEECH, formats=("json",))] = False
    """Speech: add when each word begins and ends, in seconds, to the output (format json)."""
    language: Annotated[str | None, Applies("whisper")] = None
    """Whisper: code of the language that is spoken, such as en. Default: the one of the import."""
    task: Annotated[str | None, Applies("whisper")] = None
    """Whisper: transcribe, or translate (to English). Default: the one of the import."""
    timestamps: Annotated[bool, Applies("whisper", TIMED, formats=("json",))] = False
    """Whisper: add the segments of the text with their begin and end, in seconds, to the output (format
    json)."""
    cut: Annotated[Cut | None, SPEECH] = None
    """Speech: how a long recording is divided. windows: as Whisper hears it, one window of 30 seconds after
    another; pauses: at pauses, and the parts are decoded side by side. Default: windows, if the model is
    Whisper."""
    pause: Annotated[float | None, SPEECH] = None
    """Speech: seconds of silence at which a part of a long recording ends that is cut at pauses. Shorter: for
    models that were trained on short recordings. Default: 0.5."""
    detector: Annotated[Detector | None, SPEECH] = None
    """Speech: what tells speech from silence where a long recording is cut at pauses. energy: how loud it is;
    silero: a small network, Silero VAD. Default: energy."""
    windows: Annotated[WindowsConfig, Applies("whisper", TIMED)] = field(default_factory=WindowsConfig)
    pronunciation: Annotated[Path | None, Applies("pronunciation", LINES)] = None
    """Synthesis: a run that translates texts to the texts that this one speaks, such as numbers to
    phonemes."""
    until: Annotated[tuple[str, ...], Applies("until", LINES | STREAMS)] = ()
    """Language models: the output ends before the first of these strings, in which a backslash and an n are a
    line break."""
    stream: Annotated[bool, Applies("stream", STREAMS)] = False
    """Show the output while it grows. Translations, by models with --model.wait-k: translate words as they
    arrive. Speech: write words as soon as they are certain; standard input is raw sound, 16,000 samples a
    second of 16 bits. Language models: by greedy search or sampling; the output may be longer than any
    search, and --extra-length 0 continues until the model ends the document."""
    stream_step: Annotated[
        float,
        Applies("speech", frozenset({Way.SOUND}), "stream", "{}: it is for --stream; leave it out"),
    ] = 1.0
    """Speech, with --stream: seconds of sound between two transcripts. The shorter, the sooner words come,
    and the more is computed."""
    explore: Annotated[Path | None, Applies("page", frozenset({Way.PAGE}))] = None
    """Write an interactive page to this file instead of translations: attention and beam search of the first
    five sentences; of runs that hear or speak, attention and sound of the first five lines."""
    explore_lines: Annotated[
        tuple[int, ...],
        Applies("page", frozenset({Way.PAGE}), "explore", "{} needs --explore PAGE: it names lines of it"),
    ] = ()
    """Lines of the input that the page has, such as 7 120, instead of the first five."""
    resume: Annotated[bool, Applies(ways=OUTPUTS)] = False
    """Continue an interrupted --output with the same input and options."""
    hosts: HostsConfig = field(default_factory=HostsConfig)
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    """Print the folder of compiled programs."""


def annotated(cls: type[Any], mark: type[T]) -> dict[str, T]:
    """The mark of a type in the annotation of each option of a dataclass that has one."""
    hints = get_type_hints(cls, include_extras=True)
    tagged = ((item.name, getattr(hints[item.name], "__metadata__", ())) for item in fields(cls))
    return {name: tag for name, tags in tagged for tag in tags if isinstance(tag, mark)}


OPTIONS = annotated(DecodeArguments, Applies)
"""Where options apply that not all command lines have."""

SELDOM: Set[str] = {name for name, option in OPTIONS.items() if option.needs} | {
    *("base", "hosts", "verbose", "windows"),
    *("penalty", "coverage_penalty", "min_length", "groups", "diversity"),
    *("suppress", "suppress_first", "renormalise", "noise", "input_dropout"),
}
"""The options that --help-all describes and --help leaves out: those that need another, and those that few
need."""


OF_SEARCH = "Options of the search default to those stored with the run."


@contextlib.contextmanager
def short_options() -> Iterator[None]:
    """Replaces option names in messages by the shorter names of these commands."""

    def short(text: str) -> str:
        return text.replace("--decoding.", "--")

    def shortened(record: logging.LogRecord) -> bool:
        record.msg, record.args = short(record.getMessage()), ()
        return True

    log.addFilter(shortened)
    try:
        yield
    except UserError as error:
        raise UserError(short(str(error))) from error
    finally:
        log.removeFilter(shortened)


def parse_decode(
    command_line: list[str],
    unused: Collection[str] = (),
    arguments_class: type[DecodeArguments] = DecodeArguments,
    command: str = "decode",
) -> DecodeArguments:
    """Parses the command line, with the run's options as defaults. Its help leaves `unused` options out, and
    without --help-all those of `SELDOM`. `arguments_class` may have more options, for another command."""
    command_line = [
        word.replace("--decoding.", "--", 1) if word.startswith("--decoding.") else word  # as in train.py
        for word in command_line
    ]
    defaults = run_defaults(command_line)
    options = options_in(command_line)
    if "--stream" in options and defaults.model.encodes_causally:
        from transformer.translator.simultaneous import check_used  # imports JAX

        check_used({name.removeprefix("--").replace("-", "_"): value for name, value in options.items()})
    default = arguments_class(tyro.MISSING_NONPROP, (), with_method(defaults.decoding, options, "--"))
    what = options_of(defaults.system).decodes if arguments_class is DecodeArguments else ""
    is_short = not {"-h", "--help"}.isdisjoint(command_line) and "--help-all" not in command_line
    try:
        arguments = parse(
            arguments_class,
            ["--help" if word == "--help-all" else word for word in command_line],
            command,
            default=default,
            about=what.format(decode=command_for("decode"), search=OF_SEARCH),
            names=DECODING,
            hidden={*unused, *(SELDOM if is_short else ())},
        )
    except SystemExit as ended:
        if is_short and not ended.code:
            names = flatten(default).keys() - {"run_dir", "ensemble"}
            count = sum({*unused}.isdisjoint(name.split(".")) for name in names)
            print(f"These are the common options; --help-all describes all {count}.")
        raise
    for item in fields(arguments):
        option = f"--{item.name.replace('_', '-')}"
        if getattr(arguments, item.name) == () and option in options_in(command_line):
            raise UserError(f"{option} needs a value after it; see --help-all")
    for item in fields(arguments.decoding):
        option = f"--{item.name.replace('_', '-')}"
        if arguments.choices and option in options:
            raise UserError(Way.CHOICES.refusal.format(option))
    check_idle_search(arguments.decoding, default.decoding)
    forbidden = arguments.decoding.forbidden
    if forbidden != defaults.decoding.forbidden:  # those of the command line, not of the run
        for phrase in forbidden:
            if address(phrase) is None and has(phrase, "config.json"):
                raise UserError(
                    f"--forbidden takes all words after it: name the run {phrase} before the options"
                )
    for path in (arguments.run_dir, *arguments.ensemble):
        if path.is_file():
            raise UserError(f"{path} is a file, not a run: to translate it, give RUN --input {path}")
    return arguments


def run_defaults(arguments: list[str]) -> Config:
    """The config of the run that is named in the arguments, for default options."""
    run_dir = next(iter(positional(arguments)), None)
    if run_dir is None or not has(run_dir, "config.json"):
        return Config()
    from transformer.runs.run import Run

    return Run(run_dir).config


def positional(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the words of a command line that are neither options nor values of options, before the options
    are known: those of a search depend on the run."""
    words = iter(arguments)
    values = _values_of_options()
    takes_all = False
    for word in words:
        name, is_assigned, _ = word.partition("=")
        if not word.startswith("-"):
            if not takes_all:
                yield word
            continue
        number = 0 if is_assigned or word in _FLAGS else values.get(name.replace("_", "-"), 1)
        takes_all = number is None
        if number == 1:
            next(words, None)


HELP = {"-h", "--help", "--help-all"}
_FLAGS = (*HELP, "-v")


REPEATED = get_args(tyro.conf.UseAppendAction[tuple[Path, ...]])[1]
"""The mark of options with one value that may be given several times."""


@functools.cache
def _values_of_options() -> dict[str, int | None]:
    """How many words follow each option; None: all up to the next option."""
    kinds: list[tuple[str, type]] = [("", DecodeArguments), ("data.", DataConfig), ("hosts.", HostsConfig)]
    kinds += [("windows.", WindowsConfig)]
    kinds += [("", cls) for name in REGISTRY for cls in methods_of(options_of(name).decoding).values()]
    numbers: dict[str, int | None] = {}
    for prefix, cls in kinds:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            option = f"{prefix}{name}".replace("_", "-")
            marks = getattr(hint, "__metadata__", ())
            plain = get_args(hint)[0] if marks else hint
            takes_all = get_origin(plain) is tuple and REPEATED not in marks
            numbers[f"--{option}"] = None if takes_all else 1
            if plain is bool:
                group = prefix.replace("_", "-")
                numbers[f"--{option}"] = numbers[f"--{group}no-{option.removeprefix(group)}"] = 0
    return numbers
