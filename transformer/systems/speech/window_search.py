"""The searches of a recording's windows: at each temperature, and the probability that nobody speaks."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer.config.decoding import DecodingConfig, names_of
from transformer.config.records import WindowsConfig
from transformer.data.sources.recordings import Recording
from transformer.decoding.calls import Inputs, advance, as_variables, init_cache, special_ids
from transformer.decoding.searches.search import length_penalty
from transformer.decoding.service.lanes import batch
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import shard_rows
from transformer.systems.speech.model import PROMPT
from transformer.systems.speech.transcripts import NOTHING, SpokenPart, SpokenWindow, Transcript, unsaid
from transformer.systems.speech.windows import Heard, Sound, Wave, Window, decoded, is_silent, windows_of


class WindowSearch:
    """Begins the searches of the windows of a recording.

    Args:
      transcriber: the model: a `Transcriber`.
      settings: the options of the search at temperature 0.
      options: of windows.
      start: the ids that outputs begin with.
      extras: what is returned besides: an `Extras`.
      is_whole: whether it searches whole recordings (`outputs`), and no windows.

    Raises:
      UserError: the search has no log-probability of its outputs.
    """

    def __init__(
        self,
        transcriber: Any,
        settings: DecodingConfig,
        options: WindowsConfig,
        start: tuple[int, ...],
        extras: Any,
        is_whole: bool = False,
    ) -> None:
        if settings.method == "mbr":
            raise UserError(
                "--decoding.method mbr: windows need the log-probability that it replaces; leave it out, or "
                "cut at pauses"
            )
        self.transcriber, self.options, self.start, self.extras = transcriber, options, start, extras
        size = transcriber.task.prompt_size
        longest = len(start) + size + 1 if size else None  # with <eos>
        limits = [length for length in (settings.max_length, longest) if length is not None]
        limited = replace(settings, renormalise=True, max_length=min(limits, default=None))
        self.settings = settings if is_whole else limited

    def begin(self, wave: Wave, prompt: Sequence[int], number: int) -> Window:
        """The search of a window.

        Args:
          wave: the window.
          prompt: the ids that are said before it.
          number: of the window, for sampling.
        """
        record = replace(self.transcriber.heard(wave), start=self.start)
        if record.is_silent:
            return Window(lambda _: Heard(NOTHING, (), 0.0), lambda: 1.0, 1.0)
        if self.options.previous_text:
            record = replace(record, prompt=tuple(prompt))
        return Window(functools.partial(self.search, record, number), lambda: self.silence(record))

    def windows(self, sound: Sound, before: Sequence[SpokenPart]) -> Iterator[SpokenWindow]:
        """What is said in the windows of a recording.

        Args:
          sound: the recording.
          before: its first windows, which are left out.
        """
        task = self.transcriber.task
        assert task.codes
        last = before[-1] if before else None
        if not isinstance(last, SpokenWindow | None):
            raise UserError("after: these parts are no windows; cut at pauses, or leave them out")
        return windows_of(
            sound,
            self.begin,
            task.spell,
            self.options,
            task.codes.first_time,
            task.data.padded_length,
            task.prompt_size - 1,
            last,
        )

    def search(self, record: Recording, number: int, temperature: float) -> Heard:
        """What is found at a temperature."""
        settings = self.at(temperature)
        future = self.transcriber.submit(
            record, n_best=1, line=number + 1, extras=self.extras, **vars(settings)
        )
        try:
            (best,) = future.result()
        finally:
            future.cancel()
        ids = best.ids[len(self.start) : -1]
        length = len(ids) + 1
        total = best.score * float(length_penalty(settings)(length))
        return Heard(best, ids, total / length)

    def at(self, temperature: float) -> DecodingConfig:
        """The options of the search at a temperature."""
        if not temperature:
            return self.settings
        shared = {name: getattr(self.settings, name) for name in names_of(DecodingConfig) - {"method"}}
        sampled = {"method": "sample", "samples": self.options.samples, "temperature": temperature}
        return self.transcriber.settings(1, {**shared, **sampled})

    def outputs(
        self, record: Recording, line: int, n_best: int | None, **urgency: Any
    ) -> Iterator[list[Transcript]]:
        """Yields what may be said in a recording that the model hears at once, by the rules of windows: at
        the first temperature at which the best output is good enough, and nothing where nobody speaks.
        Digital silence is known without the model.

        Args:
          record: the recording.
          line: its number, for messages and for sampling.
          n_best: outputs. None: all that a search returns.
          urgency: fields of `Request`.
        """
        if record.is_silent:
            yield [NOTHING]
            return
        outputs = list[Transcript]()

        def search(temperature: float) -> Heard:
            nonlocal outputs
            settings = self.at(temperature)
            count = n_best and min(n_best, settings.num_hypotheses)
            future = self.transcriber.submit_plain(record, line, settings, count, self.extras, **urgency)
            try:
                outputs = future.result()
            finally:
                future.cancel()
            ids = outputs[0].ids[len(self.start) :]
            return Heard(outputs[0], ids[:-1], outputs[0].log_probability / max(len(ids), 1))

        window = Window(search, lambda: self.silence(record))
        heard, _ = decoded(window, self.options)
        yield [unsaid(outputs[0])] if is_silent(window, heard, self.options) else outputs

    def silence(self, record: Recording) -> float:
        """The probability that nobody speaks in a window."""
        transcriber = self.transcriber
        task, codes = transcriber.task, transcriber.task.codes
        if codes is None or codes.silent is None:
            return 0.0
        longest = self.settings.buckets[-1]
        arrays = batch(task.input_examples([record], longest), task.input_fields, longest, 1)
        if record.prompt is not None:
            arrays = {**arrays, PROMPT: task.prompt(record.prompt)[PROMPT][None]}
        inputs = dict(zip(arrays, shard_rows(*arrays.values()), strict=True))
        return float(_first(transcriber.model, transcriber.variables, inputs)[0, codes.silent])


@functools.partial(jax.jit, static_argnums=0)
def _first(model: nn.Module, variables: Variables, inputs: Inputs) -> Float[Array, "b v"]:
    """The probability of each first token."""
    variables = as_variables(variables)
    rows = len(inputs["source"])
    cache = init_cache(model, variables, inputs, 1, 1)
    begin = jnp.full((rows, 1), special_ids(model).bos)
    return jax.nn.softmax(advance(model, variables, cache, begin)[0][:, 0])
