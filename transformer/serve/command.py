"""`transformer serve RUN [RUN ...]`: trained models over HTTP."""

import itertools
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from transformer.cli.command_line import options_in, with_method
from transformer.cli.decode_arguments import run_defaults, short_options
from transformer.cli.guard import named_command
from transformer.cli.parser import parse
from transformer.config.corpus import CODE
from transformer.config.decoding import DecodingConfig, names_of
from transformer.config.names import DECODING
from transformer.config.ranges import Range
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import read_text
from transformer.runtime.machine import check_libraries
from transformer.serve.services.limits import ALLOWED, Limits, check_allowed

if TYPE_CHECKING:
    from transformer.serve.services.service import Service

LIBRARIES = ("fastapi", "uvicorn", "websockets", "prometheus_client", "sentencex")
TOKEN = "TRANSFORMER_TOKEN"
"""The environment variable with the token."""


@dataclass(frozen=True)
class ServeArguments:
    """Serve trained models over HTTP: translation, generation, transcription, scores. Each run has the
    endpoints of what it can do. The address / has a form, /openapi.json describes the API."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    others: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="[RUN ...]")]
    """More runs."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")]
    names: tuple[str, ...] = ()
    """Name of each run for clients. Default: those of their directories."""
    languages: tuple[str, ...] = ()
    """Languages of each run, such as en-de, for clients that choose by languages. Default: those that the run
    knows."""
    host: str = "127.0.0.1"
    """Address to listen at. 0.0.0.0: all of this machine, for others to reach."""
    port: Annotated[int, Range(0, 65535)] = 8000
    """Port to listen at. 0: any free one."""
    checkpoint: str = "best"
    """Checkpoint of each run: best, last, average (of the last ones), or a step."""
    int8: bool = False
    """Use int8 weights: faster on CPUs, at similar quality."""
    allow: tuple[str, ...] = ALLOWED
    """Search options that requests may have, and prefix and terms, in place of the default list: name all.
    Others than the default ones compile programs for each value, as beam_size does, or for a few kinds of
    request."""
    base: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """The run that adapters change, if it is not beside them."""
    token_file: Path | None = None
    """File with the token that requests must bring, as "Authorization: Bearer TOKEN". Default: the
    environment variable TRANSFORMER_TOKEN; if it is not set, no token is needed."""
    allow_host: tuple[str, ...] = ()
    """Names of this server, as clients write them in its address. Default: any with a token or at an address
    that others reach; otherwise only localhost, 127.0.0.1, ::1 and that of --host, so that no page of a
    stranger reaches it."""
    metrics_port: Annotated[int, Range(0, 65535)] | None = None
    """Port of /metrics for Prometheus, without a token, at the same address. Keep it from the network.
    Default: only the server's port has them."""
    limits: Limits = field(default_factory=Limits)

    @property
    def runs(self) -> tuple[Path, ...]:
        """All run directories."""
        return self.run, *self.others


@named_command("serve")
def serve_main(command_line: list[str]) -> None:
    """`python -m transformer serve RUN [RUN ...]`."""
    with short_options():
        arguments = parse_serve(command_line)
        token = token_of(arguments)
        check_libraries(LIBRARIES, "the server")

        from transformer.runs.run import with_base
        from transformer.serve.server import serve

        with with_base(arguments.base, *arguments.runs):
            services = services_of(arguments, search_of(arguments, command_line))
        ports = arguments.port, arguments.allow_host, arguments.metrics_port
        serve(services, arguments.limits, token, arguments.host, *ports)
        os._exit(0)  # all is answered; a thread that compiles would delay the end


def parse_serve(command_line: list[str]) -> ServeArguments:
    """The arguments of a command line; options of the search default to those of the first run.

    Raises:
      UserError: they make no sense.
    """
    defaults = run_defaults(command_line)
    arguments = parse(
        ServeArguments,
        command_line,
        "serve",
        default=ServeArguments(
            tyro.MISSING_NONPROP, (), with_method(defaults.decoding, options_in(command_line), "--")
        ),
        names=DECODING,
    )
    check_allowed(arguments.allow)
    for option in "names", "languages":
        values = getattr(arguments, option)
        if values and len(values) != len(arguments.runs):
            raise UserError(
                f"--{option}: {len(values)} for {counted(len(arguments.runs), 'run')}: give one for each"
            )
    for name, count in Counter(names_of_runs(arguments)).items():
        if count > 1:
            raise UserError(f"{count} runs are called {name}: give each another name with --names")
    for pair in arguments.languages:
        pair_of(pair)
    return arguments


def names_of_runs(arguments: ServeArguments) -> tuple[str, ...]:
    """The names of the runs for clients."""
    return arguments.names or tuple(path.resolve().name for path in arguments.runs)


def pair_of(text: str) -> tuple[str, str]:
    """Source and target language. Raises UserError if they are none."""
    source, _, target = text.partition("-")
    if not CODE.fullmatch(source) or not CODE.fullmatch(target):
        raise UserError(f"--languages {text}: must be the codes of source and target, such as en-de")
    return source, target


def search_of(arguments: ServeArguments, command_line: list[str]) -> dict[str, Any]:
    """The options of the search that a command line gives."""
    named = {option.removeprefix("--").removeprefix("no-") for option in options_in(command_line)}
    names = names_of(type(arguments.decoding)) & {name.replace("-", "_") for name in named}
    return {name: getattr(arguments.decoding, name) for name in names}


def token_of(arguments: ServeArguments) -> str:
    """The token of the server; empty: none.

    Raises:
      UserError: the file cannot be read, or the token is empty or has other characters than ASCII.
    """
    path = arguments.token_file
    token = read_text(path).strip() if path else os.environ.get(TOKEN, "").strip()
    where = f"--token-file {path}" if path else f"${TOKEN}"
    if (path or TOKEN in os.environ) and not token:
        raise UserError(f"{where}: the token is empty")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(f"{where}: a token has ASCII characters without spaces")
    return token


def services_of(arguments: ServeArguments, search: dict[str, Any]) -> "list[Service]":
    """The runs, loaded.

    Args:
      arguments: of the command.
      search: options of the search, instead of those of the runs.

    Raises:
      UserError: a run cannot be loaded or served, or an option is wrong for it.
    """
    from transformer.serve.services.service import service_of

    services = []
    pairs = map(pair_of, arguments.languages) if arguments.languages else itertools.repeat(None)
    for path, name, pair in zip(arguments.runs, names_of_runs(arguments), pairs, strict=False):
        kind = service_of(path)
        decoder = kind.loads.load(path, arguments.checkpoint, int8=arguments.int8)
        services.append(kind(name, decoder, arguments.allow, arguments.limits, pair, search))
    return services
