"""The Python API for language models: a decoder whose records are prompts; and generation without an end, in
memory of constant size."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer.config.arguments import texts_of, whole_number
from transformer.config.ranges import Option
from transformer.config.searches import GreedyConfig, SampleConfig
from transformer.decoding.calls import as_variables, special_ids
from transformer.decoding.forced import score_tokens
from transformer.decoding.sampling import Randomness, draw_next, restrict
from transformer.decoding.scores import NEVER
from transformer.model.cache import Cache
from transformer.model.parameters import Variables
from transformer.runtime.errors import UserError
from transformer.runtime.hosts import refuse_forked
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.systems.language_model.system import LanguageModel, Past
from transformer.systems.language_model.task import LanguageModelling
from transformer.tasks.outputs import Plain
from transformer.translator.decoder import Decoder

# Generation without an end: token by token, in memory of constant size.


@dataclass(frozen=True)
class Draw:
    """How each token is chosen."""

    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False
    """Whether the most probable token is chosen, and none is sampled."""


def streamed(
    model: nn.Module,
    variables: Variables,
    prompt: Int[Array, "1 s"],
    columns: int,
    draw: Draw,
    key: Array,
    temperature: float,
    num_generated: int = 0,
) -> Iterator[tuple[int, float]]:
    """Yields tokens and their log-probabilities in nats, without end: the caller stops at <eos>.

    Args:
      model: with `encode`, `init_cache` and `decode_step`.
      variables: of the model.
      prompt: ids, <pad> after them.
      columns: of the ring; as many as a token attends to, itself included.
      draw: how tokens are chosen.
      key: a random key; the number of tokens before is folded into it.
      temperature: of sampling.
      num_generated: how many tokens were generated before the prompt, for the key.
    """
    token = jnp.full((1, 1), special_ids(model).bos, jnp.int32)
    cache = _init_cache(model, variables, prompt, columns)
    while True:
        cache, token, log_p = _next(model, draw, variables, cache, token, key, num_generated, temperature)
        num_generated += 1
        yield int(token[0, 0]), float(log_p)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _init_cache(model: nn.Module, variables: Variables, prompt: Int[Array, "1 s"], columns: int) -> Cache:
    memory = model.apply(variables, prompt, method="encode")
    cache: Cache = model.apply(variables, memory, 1, columns, method="init_cache")  # type: ignore[assignment]
    return jax.tree.map(jnp.copy, cache)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _next(
    model: nn.Module,
    draw: Draw,
    variables: Variables,
    cache: Cache,
    token: Int[Array, "1 1"],
    key: Array,
    num_generated: Int[Array, ""] | int,
    temperature: Float[Array, ""] | float,
) -> tuple[Cache, Int[Array, "1 1"], Float[Array, ""]]:
    """The token after this one."""
    special = special_ids(model)
    output: tuple[Array, Cache] = model.apply(variables, cache, token, method="decode_step")  # type: ignore[assignment]
    logits, cache = output
    log_p = jax.nn.log_softmax(logits[0])
    possible = logits[0].at[:, jnp.asarray(special.never_predicted)].set(NEVER)
    if draw.greedy:
        chosen = possible.argmax(axis=-1)
    else:
        possible = restrict(possible, temperature, draw.top_k, draw.top_p)
        chosen = draw_next(key, num_generated, possible)
    return cache, chosen[None].astype(jnp.int32), log_p[0, chosen[0]]


UNFINISHED = "\ufffd"  # how an incomplete character of bytes is decoded
UNUSED = "max_length", "length_penalty", "penalty"
"""Options of searches that change nothing in an output that is shown while it grows."""
SEEN = 8  # tokens with which the next ones are decoded: no character is spelled in more


@dataclass(frozen=True, eq=False)
class ScoredText(Plain):
    """The log-probability of a text. `json.dumps(scored.to_dict())` writes it as JSON."""

    computed = ("log_probability", "bits_per_character")

    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    """log P of each token and of <eos>, in nats."""
    characters: int
    """The number of characters of the text, plus one for its end."""

    @property
    def log_probability(self) -> float:
        """log P(text) in nats, including <eos>."""
        return float(sum(self.log_probabilities))

    @property
    def bits_per_character(self) -> float:
        """-log2 P(text) of each character."""
        return -self.log_probability / np.log(2).item() / self.characters


class Generator(Decoder[LanguageModelling]):
    """A trained language model. Threads may share it. `decode` gives all outputs with their scores; see
    `Decoder` for batches and programs."""

    reads, does = LanguageModelling, "continue text"

    @overload
    def generate(self, prompts: str, *, until: Sequence[str] = (), **options: Option) -> str: ...

    @overload
    def generate(
        self, prompts: Sequence[str], *, until: Sequence[str] = (), **options: Option
    ) -> list[str]: ...

    def generate(
        self, prompts: str | Sequence[str], *, until: Sequence[str] = (), **options: Option
    ) -> str | list[str]:
        """What follows a prompt, or each of several.

        Args:
          prompts: one text, or a list. An empty one is the beginning of a document.
          until: the output ends before the first of these strings.
          options: any field of `DecodingConfig`, such as method="sample", temperature=0.8, extra_length=100.

        Raises:
          UserError: a prompt has unknown characters, or an option is invalid.
        """
        listed = [prompts] if isinstance(prompts, str) else texts_of(prompts, "prompts")
        _check_until(until)
        texts = [before(best.text, until) for (best, *_) in self.decode(listed, n_best=1, **options)]
        return texts[0] if isinstance(prompts, str) else texts

    def pieces(
        self,
        prompt: str,
        *,
        length: int | None = None,
        until: Sequence[str] = (),
        line: int = 1,
        **options: Option,
    ) -> Iterator[str]:
        """Yields what follows a prompt as it is generated, piece by piece. Memory is constant, however long
        the text. With one sample and the same seed and line, it is the text of `generate`, if that is not
        longer than a segment or the model has a memory.

        Args:
          prompt: its text.
          length: at most so many tokens. None: the run's `extra_length`. 0: until the document ends.
          until: the output ends before the first of these strings.
          line: folded into the seed.
          options: of greedy search or sampling.

        Raises:
          UserError: as `generate`; the options are those of another search.
        """
        refuse_forked()
        texts_of([prompt], "prompts")
        _check_until(until)
        whole_number("line", line)
        if length is not None:  # 0: until the document ends
            whole_number("length", length)
        shown = self.task.tokenizer.encode(prompt)[-SEEN:]
        pending = list[int]()
        held = ""
        settings = self._streaming(options)
        length = settings.extra_length if length is None else length
        for number, (token, _) in enumerate(self._tokens(prompt, settings, line), 1):
            if token == self.task.special.eos:
                break
            pending.append(token)
            text = self.task.text(pending, shown)
            if not text.endswith(UNFINISHED):
                held, shown, pending = held + text, [*shown, *pending][-SEEN:], []
                if (ended := before(held, until)) != held:
                    yield ended
                    return
                certain = len(held) - _partial_match(held, until)
                if certain:
                    yield held[:certain]
                held = held[certain:]
            if number == length:
                break
        if ending := held + (self.task.text(pending, shown) if pending else ""):
            yield ending

    def _streaming(self, options: dict[str, Option]) -> SampleConfig | GreedyConfig:
        settings = self.settings(None, options)
        if not isinstance(settings, SampleConfig | GreedyConfig) or settings.method == "mbr":
            raise UserError(
                f"--decoding.method {settings.method}: it compares whole outputs, so none can be shown while "
                "it grows; use sample or greedy"
            )
        usual = self.settings(None, {"method": settings.method})
        unused = [name for name in UNUSED if getattr(settings, name, None) != getattr(usual, name, None)]
        if refused := [*settings.steered, *settings.noisy, *unused]:
            option = refused[0].replace("_", "-")
            raise UserError(f"--decoding.{option}: for outputs that are shown while they grow, leave it out")
        return settings

    @property
    def _model(self) -> LanguageModelConfig:
        assert isinstance(self.config.model, LanguageModelConfig)
        return self.config.model

    def _tokens(
        self, prompt: str, settings: SampleConfig | GreedyConfig, line: int
    ) -> Iterator[tuple[int, float]]:
        """Tokens without end. A model without memory reads the second half of its segment again when that is
        full."""
        model = self._model
        segment = self.config.data.max_length
        pad = self.task.special.pad
        draw = Draw(greedy=True)
        temperature = 1.0
        if isinstance(settings, SampleConfig):
            draw = Draw(settings.top_k, settings.top_p)
            temperature = settings.temperature
        drawn = Randomness.of(jax.random.key(getattr(settings, "seed", 0)), jnp.asarray([line]), 1.0)
        key = jax.random.wrap_key_data(drawn.keys[0], impl=drawn.generator)
        (example,) = self.task.input_examples([prompt], settings.buckets[-1], [line] if self._warns else ())
        ids = list(example["source"])
        num_tokens = 0
        while True:
            size = next((size for size in settings.buckets if size >= len(ids)), len(ids))
            row = jnp.asarray([[*ids, *[pad] * (size - len(ids))]], jnp.int32)
            columns = model.attended + 1 if model.attended else segment
            variables = as_variables(self.variables)
            stream = streamed(self.model, variables, row, columns, draw, key, temperature, num_tokens)
            for token, log_p in stream:
                yield token, log_p
                num_tokens += 1
                if not model.attended:
                    ids.append(token)
                    if len(ids) >= segment:
                        break
            ids = ids[-max(1, segment // 2) :]

    def score(self, texts: Sequence[str]) -> list[ScoredText]:
        """The log-probability of each text as a whole document, read segment by segment with the memory of
        evaluation.

        Args:
          texts: any number.

        Raises:
          UserError: it was given one string.
        """
        if isinstance(texts, str):
            raise UserError("give a list of texts")
        refuse_forked()
        return [self._scored(text) for text in texts_of(texts, "texts")]

    def _scored(self, text: str) -> ScoredText:
        model = self._model
        segment = self.config.data.max_length
        task = self.task
        special = task.special
        ids = np.array([*task.tokenizer.encode(text), special.eos], np.int32)
        inputs = np.array([special.bos, *ids[:-1]], np.int32)
        past = Past.empty(model, 1, model.attended)
        log_probabilities = list[float]()
        for start in range(0, len(ids), segment):
            sides = (x[start : start + segment] for x in (inputs, ids))
            source, target = (_padded(x, segment, special.pad) for x in sides)
            log_p, past = _read(self.model, self.variables, source, target, past)
            log_probabilities += np.asarray(log_p)[0].tolist()
        tokens = tuple(task.tokenizer.pieces(ids[:-1]))
        return ScoredText(tokens, tuple(log_probabilities[: len(ids)]), len(text) + 1)


def _check_until(until: Sequence[str]) -> None:
    """Raises UserError if a string to stop at is empty: every text contains it."""
    if isinstance(until, str) or not all(texts_of(until, "until")):
        raise UserError("until must be a list of strings, none of them empty")


def before(text: str, until: Sequence[str]) -> str:
    """The text before the first of these strings."""
    starts = [start for string in until if (start := text.find(string)) >= 0]
    return text[: min(starts, default=len(text))]


def _partial_match(text: str, until: Sequence[str]) -> int:
    """The length of the longest end of the text that begins one of these strings."""
    sizes = [size for string in until for size in range(1, len(string)) if text.endswith(string[:size])]
    return max(sizes, default=0)


def _padded(ids: Int[np.ndarray, " t"], length: int, pad: int) -> Int[Array, "1 _"]:
    return jnp.asarray(np.pad(ids, (0, length - len(ids)), constant_values=pad)[None])


@functools.partial(jax.jit, static_argnums=0)
def _read(
    model: LanguageModel,
    variables: Variables,
    source: Int[Array, "1 t"],
    target: Int[Array, "1 t"],
    past: Past,
) -> tuple[Float[Array, "1 t"], Past]:
    """log P of each target token of a segment, and the memory after it."""

    def run(model: LanguageModel) -> tuple[Array, Past]:
        hidden, after = model.advance(source, past)
        return model.output(hidden), after

    outputs: tuple[Array, Past] = model.apply(as_variables(variables), method=run)  # type: ignore[assignment]
    return score_tokens(outputs[0], target, model.config.special.pad).log_p, outputs[1]
