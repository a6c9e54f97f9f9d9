"""The commands: arguments in, a library call, an exit status out."""

import dataclasses
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import tyro

from transformer.config import Config, DataConfig, DecodingConfig, HostsConfig
from transformer.errors import Stopped, UserError
from transformer.presets import PRESETS

USAGE, INTERRUPTED = 2, 130
FINE_TUNE = "fine-tune"
TEXT = ("--data.train-", "--data.dataset")  # options that say what to learn
VOCABULARY = ("tokenizer", "vocab_size", "joint_vocabulary")  # options of the data that say what it is


def guarded(program: str, command: Callable[[list[str]], None]) -> int:
    """Runs a command; what its user can mend becomes one message and exit status 2."""
    try:
        command(sys.argv[1:])
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE
    except Stopped as stopped:
        print(stopped)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


# train.py


@dataclass(frozen=True)
class TrainArguments:
    """Train a Transformer."""

    config: Annotated[Config, tyro.conf.arg(name="")]
    run_dir: Path | None = None
    """Where to write; if a run is there already, go on with it. Default: a new one under runs/."""
    hosts: HostsConfig = field(default_factory=HostsConfig)


def train_main() -> int:
    """`train.py [preset] [options]`."""
    return guarded("train.py", _train)


def _train(arguments: list[str]) -> None:
    preset = None
    if arguments and not arguments[0].startswith("-"):
        preset, *arguments = arguments
        if preset not in PRESETS:
            raise UserError(f"no preset {preset!r}: choose one of {', '.join(PRESETS)}")
    arguments = [re.sub("^--init-from(?==|$)", "--training.init-from", word) for word in arguments]
    parent = _value_of("--training.init-from", arguments)
    if parent and preset is None:
        preset = FINE_TUNE
    if preset == FINE_TUNE and not parent:
        raise UserError("fine-tune needs --init-from RUN: what to begin with")
    default = PRESETS[preset or "quickstart"]
    if parent:
        default = _begun_from(parent, default, network=preset == FINE_TUNE)
    given = _parse_train(arguments, default)
    if parent:
        _check_vocabulary(given.config.data, default.data)
    if preset == FINE_TUNE and not any(word.startswith(TEXT) for word in arguments):
        raise UserError("--init-from: on what text? Give --data.train-source and --data.train-target")
    if preset is None and given.run_dir and (given.run_dir / "config.json").exists():
        from transformer.run import Run

        given = _parse_train(arguments, Run(given.run_dir).config)

    from transformer.hosts import first, join

    join(given.hosts)
    if first():
        print_config(given.config, PRESETS[preset or "quickstart"])

    from transformer.training.train import train

    train(given.config, given.run_dir)


def _value_of(option: str, arguments: list[str]) -> str | None:
    """An option's value, before its command line is parsed: it changes the defaults of others."""
    for word, following in itertools.pairwise([*arguments, ""]):
        name, _, value = word.partition("=")
        if name == option:
            return value or following
    return None


def _begun_from(run_dir: str, default: Config, network: bool) -> Config:
    """The config with the vocabulary of a run to begin with, and where asked for with its network and
    its search."""
    from transformer.run import Run

    parent = Run(run_dir).config
    data = dataclasses.replace(default.data, **{name: getattr(parent.data, name) for name in VOCABULARY})
    default = dataclasses.replace(default, data=data)
    if not network:
        return default
    return dataclasses.replace(default, system=parent.system, model=parent.model, decoding=parent.decoding)


def _check_vocabulary(data: DataConfig, default: DataConfig) -> None:
    """Raises UserError where a run that begins with another is to have a vocabulary of its own."""
    for name in (*VOCABULARY, "source_tokenizer", "target_tokenizer"):
        if getattr(data, name) != getattr(default, name):
            raise UserError(
                f"--data.{name.replace('_', '-')}: --init-from brings its own vocabulary; leave it out"
            )


def _parse_train(arguments: list[str], default: Config) -> TrainArguments:
    return tyro.cli(
        TrainArguments,
        args=arguments,
        default=TrainArguments(default),
        prog="train.py",
        description=(
            "Train an encoder-decoder Transformer. With no arguments: a small model on the built-in "
            "English-German corpus, in minutes. The first argument may be a preset, whose values "
            f"the options then change: {', '.join(PRESETS)}.\n\n"
            "Your own text: train.py --data.train-source a.en --data.train-target a.de "
            "--data.validation-source v.en --data.validation-target v.de\n\n"
            "Go on with a run: train.py --run-dir runs/transformer-1\n\n"
            "Fine-tune a trained or an imported model: train.py --init-from runs/transformer-1 --data...."
        ),
    )


def print_config(config: Config, preset: Config) -> None:
    """The resolved config, section by section on few lines; * marks what differs from the preset."""
    for section in dataclasses.fields(config):
        values, defaults = getattr(config, section.name), getattr(preset, section.name)
        if not dataclasses.is_dataclass(values):
            print(f"{section.name} = {values}")
            continue
        parts = [
            f"{'*' if value != default else ''}{name}={value}"
            for (name, value), default in zip(_shown(values), (v for _, v in _shown(defaults)), strict=True)
            if value is not None or default is not None
        ]
        print(f"[{section.name}] {' '.join(parts)}")


def _shown(section: Any) -> list[tuple[str, Any]]:
    return [(item.name, getattr(section, item.name)) for item in dataclasses.fields(section)]


# decode.py


@dataclass(frozen=True)
class DecodeArguments:
    """Translate text, a line at a time."""

    run_dir: tyro.conf.Positional[Path]
    """What training wrote."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")]
    input: Path | None = None
    """Text to translate, one sentence a line. Default: standard input."""
    output: Path | None = None
    """Where the translations go, one line each. Default: standard output."""
    reference: Path | None = None
    """Good translations of the input: prints BLEU and chrF with their signatures at the end."""
    bleu_tokenize: Literal["13a", "none", "intl", "char", "zh"] | None = None
    """sacreBLEU's tokenizer for --reference. Default: the one of training."""
    checkpoint: str = "best"
    """best (by validation BLEU), last, average (of the last ones), or a step."""
    format: Literal["text", "scores", "json"] = "text"
    """text: the translation; scores: its score, a tab, the translation; json: an object for each
    line with its hypotheses: text, tokens, score, and alignment where asked for."""
    rescore: Path | None = None
    """Another run: its model chooses among all that the search kept (see --beam-size)."""
    n_best: int | None = None
    """Translations of each sentence: for text and scores, as many lines each. Default: 1; with --explore
    all that the search keeps."""
    alignments: bool = False
    """json: with what each token looked at in the source."""
    explore: Path | None = None
    """Write no lines but a page, here, that shows in a browser what the words of the first five sentences
    attended to, and the tree of the beam search."""
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    """Say at the end how many programs were compiled, for which lengths, and where they are kept."""


def decode_main() -> int:
    """`decode.py RUN [options]`."""
    return guarded("decode.py", _decode)


def _decode(arguments: list[str]) -> None:
    try:
        given = _parse_decode(arguments)
        _write_page(given) if given.explore else _translate_lines(given)
    except UserError as error:
        raise UserError(str(error).replace("--decoding.", "--")) from error


def _parse_decode(arguments: list[str]) -> DecodeArguments:
    return tyro.cli(
        DecodeArguments,
        args=arguments,
        default=DecodeArguments(tyro.MISSING_NONPROP, run_decoding(arguments)),
        prog="decode.py",
        description=(
            "Translate text with a trained model: decode.py RUN < in > out. One line in, one line "
            "out; an empty line stays empty. Options of the search default to those stored with the run.\n\n"
            "See why: decode.py RUN --input FILE --explore page.html"
        ),
    )


def run_decoding(arguments: list[str]) -> DecodingConfig:
    """The search options stored with the run that is named among the arguments: the defaults."""
    run_dir = next((Path(word) for word in arguments if Path(word, "config.json").exists()), None)
    if run_dir is None:
        return DecodingConfig()
    from transformer.run import Run

    return Run(run_dir).config.decoding


def _translate_lines(given: DecodeArguments) -> None:
    from rich.console import Console

    from transformer.data.corpora import read_lines
    from transformer.decoding.rescoring import rescored
    from transformer.decoding.translator import Translator
    from transformer.training.watch import Watch

    if given.alignments and given.format != "json":
        raise UserError("--alignments needs --format json: text has no place for them")
    if given.bleu_tokenize and not given.reference:
        raise UserError("--bleu-tokenize needs --reference: without it nothing is scored")
    total = _check_files(given)
    if given.n_best is None:
        given = dataclasses.replace(given, n_best=1)
    translator = Translator.load(given.run_dir, given.checkpoint)
    lines = read_lines(given.input) if given.input else _standard_input()
    watch = Watch(Console(stderr=True, highlight=False))
    options = dict(_shown(given.decoding))
    best, start, count = [], time.monotonic(), 0
    if given.rescore:
        judge, (lines, again) = Translator.load(given.rescore), itertools.tee(lines)
        found = translator.stream(lines, alignments=given.alignments, **options)
        found = (several[: given.n_best] for several in rescored(again, found, judge))
    else:
        found = translator.stream(lines, n_best=given.n_best, alignments=given.alignments, **options)
    with _Output(given.output) as output:
        for count, hypotheses in enumerate(watch.progress("sentences", found, total), start=1):  # noqa: B007
            output.write("".join(line + "\n" for line in _formatted(hypotheses, given)))
            if given.reference:
                best.append(hypotheses[0].text)
    seconds = time.monotonic() - start
    if given.output:
        speed = f"{count:,} lines in {seconds:.1f} s ({count / max(seconds, 1e-9):.1f}/s)"
        watch.say(f"{speed}, written to {given.output}")
    if given.verbose:
        watch.say(_programs(translator))
    if given.reference:
        _print_scores(best, given, translator)


def _write_page(given: DecodeArguments) -> None:
    assert given.explore
    for option in ("output", "reference", "rescore", "bleu_tokenize", "alignments"):
        if getattr(given, option):
            raise UserError(
                f"--{option.replace('_', '-')} is for lines, --explore writes a page: leave one out"
            )
    if given.format != "text":
        raise UserError(f"--format {given.format} is for lines, --explore writes a page: leave one out")
    _check_files(given)

    from transformer.data.corpora import read_lines
    from transformer.decoding.translator import Translator
    from transformer.inspection.explorer import SENTENCES, explore

    lines = read_lines(given.input) if given.input else _standard_input()
    sources = list(itertools.islice(filter(str.strip, lines), SENTENCES))
    if not sources:
        raise UserError("nothing to explore: the input has no sentence")
    translator = Translator.load(given.run_dir, given.checkpoint)
    page = explore(translator, sources, n_best=given.n_best, **dict(_shown(given.decoding)))
    with _Output(given.explore, "--explore") as output:
        output.write(page.html)
    print(
        f"{page.hypotheses} translations of the first {page.sentences} sentences (at most {SENTENCES}), "
        f"{len(page.html) / 1e6:.1f} MB, written to {given.explore}: open it in a browser"
    )


def _programs(translator: Any) -> str:
    from transformer.compilation import keep_programs

    lengths = sorted(length for length, _ in translator.programs)
    kept = keep_programs()
    return (
        f"{len(lengths)} compiled programs, for sources padded to {', '.join(map(str, lengths)) or '-'}; "
        + (f"kept in {kept}" if kept else "not kept for the next time")
    )


def _check_files(given: DecodeArguments) -> int | None:
    """How many lines there are to translate, where that can be known; bad files fail now."""
    from transformer.data.corpora import read_lines

    option, output = ("--explore", given.explore) if given.explore else ("--output", given.output)
    if output and not _special(output):
        if output.is_dir() or not output.name:
            raise UserError(f"{option} {output} is a folder: name a file")
        if not os.access(output.absolute().parent, os.W_OK):
            raise UserError(f"cannot write {option} {output}: its folder is missing or read-only")
        for source, path in (("--input", given.input), ("--reference", given.reference)):
            if path and path.exists() and output.exists() and path.samefile(output):
                raise UserError(f"{option} {output} is the file of {source}, which would be lost")
    total = sum(1 for _ in read_lines(given.input)) if given.input else None
    if given.reference:
        references = sum(1 for _ in read_lines(given.reference))
        if total is not None and references != total:
            raise UserError(f"{given.input} has {total} lines but {given.reference} has {references}")
    return total


def _standard_input() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.removesuffix(b"\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input, line {number}: not UTF-8 (byte {error.start + 1}); convert it first"
            ) from error


def _formatted(hypotheses: Sequence[Any], given: DecodeArguments) -> Iterable[str]:
    if given.format == "json":
        fields = [dataclasses.asdict(hypothesis) for hypothesis in hypotheses]
        for values in fields:
            del values["ids"]
            alignment = values.pop("alignment")
            if alignment is not None:
                values["alignment"] = [[round(float(x), 4) for x in row] for row in alignment]
        return [json.dumps({"hypotheses": fields}, ensure_ascii=False)]
    # always n_best lines: an empty sentence has one translation only, which is repeated
    hypotheses = list(hypotheses) + [hypotheses[-1]] * ((given.n_best or 1) - len(hypotheses))
    # a model may say a line break, but a translation is one line
    texts = [" ".join(hypothesis.text.split("\n")) for hypothesis in hypotheses]
    if given.format == "scores":
        return [f"{hypothesis.score:.4f}\t{text}" for hypothesis, text in zip(hypotheses, texts, strict=True)]
    return texts


def _special(path: Path) -> bool:
    """Whether it is a device or a pipe: something to write to, but never to replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


class _Output:
    """Standard output, a device or a pipe; or a file that appears when it is complete."""

    def __init__(self, path: Path | None, option: str = "--output") -> None:
        self._option = option
        special = path is not None and _special(path)
        self._path = path if path is None or special else path.resolve()  # of a link, what it leads to
        self._partial = None
        if self._path and not special:
            self._partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")

    def __enter__(self) -> TextIO:
        if self._path and self._partial is None:
            self._file: TextIO = open(self._path, "w", encoding="utf-8", newline="\n")
            return self._file
        if self._partial is None:
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
            self._file = sys.stdout
            return self._file
        try:
            self._file = open(self._partial, "w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UserError(f"cannot write {self._option} {self._path}: {error.strerror}") from error
        return self._file

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._file.flush()
        if self._path:
            self._file.close()
        if self._partial and self._path:
            if kind is None:
                os.replace(self._partial, self._path)
            else:
                self._partial.unlink(missing_ok=True)


def _print_scores(translations: list[str], given: DecodeArguments, translator: Any) -> None:
    from transformer.data.corpora import read_lines
    from transformer.evaluation import bleu, chrf, exact_match

    assert given.reference
    references = [translator.tokenizers[1].plain(line) for line in read_lines(given.reference)]
    if len(references) != len(translations):
        raise UserError(
            f"{len(translations)} lines were translated but {given.reference} has {len(references)}"
        )
    if not references:
        return
    tokenize = given.bleu_tokenize or translator.config.training.bleu_tokenize
    for score in (bleu(translations, references, tokenize), chrf(translations, references)):
        print(f"{score.detail}   {score.signature}", file=sys.stderr)
    print(exact_match(translations, references).detail, file=sys.stderr)


# python -m transformer.average


@dataclass(frozen=True)
class AverageArguments:
    """Average checkpoints (section 6.1) into the checkpoint "average" of their run."""

    run_dir: tyro.conf.Positional[Path]
    last: int | None = None
    """The newest so many. Default: all that were kept last."""
    steps: tuple[int, ...] = ()
    """These ones instead."""


def average_main() -> int:
    """`python -m transformer.average RUN [--last K | --steps ...]`."""
    return guarded("average", _average)


def _average(arguments: list[str]) -> None:
    given = tyro.cli(AverageArguments, args=arguments, prog="python -m transformer.average")
    if given.last is not None and (given.last < 1 or given.steps):
        raise UserError("--last must be at least 1, and excludes --steps")

    from transformer.decoding.translator import model_shapes
    from transformer.run import Run

    run = Run(given.run_dir)
    if given.last is not None and given.last > len(run.steps()):
        raise UserError(f"--last {given.last}: {run.path} has {len(run.steps())} checkpoints")
    steps = list(given.steps) or run.steps()[-(given.last or run.config.training.keep_last) :]
    place = run.store_average(run.averaged(steps, model_shapes(run.config)))
    print(f"Averaged steps {', '.join(map(str, steps))} into {place}")
    print(f"Try: python decode.py {run.path} --checkpoint average")
