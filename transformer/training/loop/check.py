"""`train.py --data.check`: which lines of a corpus cannot be read, and what is unusual about the others."""

from dataclasses import replace

from transformer.config import Config
from transformer.data.sources.bad_lines import BadLines, reading
from transformer.runtime.console import ProgressReporter
from transformer.runtime.errors import UserError
from transformer.training.loop.checks import OF_CONFIG, check_libraries, check_texts
from transformer.training.loop.resolved import resolve
from transformer.training.loop.train import open_corpus_shown

MANY = 10_000  # kinds, and ranges of line numbers, that are named


def check_corpus(config: Config, watch: ProgressReporter, about: str = "") -> None:
    """Opens the corpus of a config and says what is wrong and what is unusual. Nothing is trained.

    Raises:
      UserError: lines cannot be read: all of them, by file and by kind; or the config makes no sense.
    """
    resolved = resolve(replace(config, data=replace(config.data, check=False, drop_bad=True)), None)
    system = resolved.system
    with reading(drops=True) as bad:
        for check in (*OF_CONFIG, check_libraries, check_texts):
            check(resolved)
        if about:
            watch.message(about)
        try:
            corpus = open_corpus_shown(resolved.config, system.task, watch)
        except UserError as error:  # perhaps since all lines are left out
            raise _refusal(bad, str(error)) from error
        for remark in system.task.remarks(resolved.config, corpus, watch.progress):
            watch.message(f"  {remark}")
    if bad:
        raise _refusal(bad)
    watch.message("All lines can be read.")


def _refusal(bad: BadLines, *further: str) -> UserError:
    lines = bad.described(MANY)
    if lines:
        lines.append(f"{len(bad):,} cannot be read: --data.drop-bad leaves them out")
    return UserError("\n".join([*lines, *further]))
