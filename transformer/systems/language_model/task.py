"""Language modelling: running text in, what follows it out."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from transformer.config.decoding import DecodingConfig
from transformer.config.options import Config
from transformer.config.records import StreamConfig
from transformer.data.plans import Batching, Plan
from transformer.data.sequences import (
    Arrays,
    Example,
    Field,
    Fields,
    arrays_of,
    gathered,
    id_dtype,
    side_lengths,
)
from transformer.data.store import Progress, Records, silent
from transformer.data.streams import DOCUMENTS, SEGMENT, Stream, StreamPlan, whole_stream
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.scores import SearchResult
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import brief, prefixed_errors
from transformer.runtime.text import has_text
from transformer.systems.language_model.options import LanguageModelConfig
from transformer.tasks.metrics.scores import BITS, PERPLEXITY, WORD_PERPLEXITY, Metric, Score
from transformer.tasks.outputs import TRUNCATED, Lines, Plain
from transformer.tasks.task import Evaluation
from transformer.tasks.text import TextTask
from transformer.tasks.texts.steering import TextSteering
from transformer.tasks.vocabulary import TextsAlone

log = logging.getLogger("transformer")


@dataclass(frozen=True, eq=False)
class Generated(Plain):
    """What follows a prompt. `json.dumps(generated.to_dict())` writes it as JSON."""

    written = ("text", "tokens", "score", "log_probability")
    written_if_true = ("truncated",)

    text: str
    """The text that follows, without the prompt."""
    tokens: tuple[str, ...]
    score: float
    """What outputs are ranked by: the log-probability divided by the length penalty; with a repetition
    penalty or noise, the one under these."""
    log_probability: float
    """log P(text | prompt) of the model in nats, including <eos>, also where the limit ends the text. No
    option of the search changes it."""
    ids: tuple[int, ...] = field(default=(), repr=False)
    """The generated ids."""
    truncated: bool = False
    """Whether the prompt was longer than the model reads, which has read its end."""


class LanguageModelling(TextsAlone, TextTask, Lines):
    """Predicts each token of running text from those before it.

    Args:
      config: of the run.
      tokenizer: of the text.
    """

    criterion = BITS
    unit = "documents"
    writer = "transformer.systems.language_model.writer"
    service = "transformer.systems.language_model.service"
    decodes = False
    inputs = ("source",)
    record_type = str

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        ids = Field(fill=self.special.pad)
        sizes = Field(dtype="float32")
        self.fields = dict(zip(SEGMENT, (ids, ids, sizes, sizes), strict=True))

    @property
    def data(self) -> StreamConfig:
        """The options of the text."""
        assert isinstance(self.config.data, StreamConfig)
        return self.config.data

    @property
    def text_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    @property
    def drops(self) -> str:
        """Documents of any length are read."""
        return "empty"

    # From a corpus

    @classmethod
    def check(cls, config: Config) -> None:
        """Raises UserError if text files are missing, or the network is for other segments or outputs."""
        super().check(config)
        cls.without_corpus(config).check_search(config.decoding)

    @classmethod
    def texts(cls, records: Iterable[str]) -> Iterator[str]:
        """The lines of documents."""
        return (line for text in records for line in text.splitlines(keepends=True))

    # To batches

    @property
    def stored_fields(self) -> Fields:
        return {**DOCUMENTS, "ids": Field(id_dtype(self.tokenizer.num_ids))}

    def stored_examples(self, records: Sequence[str]) -> list[Example]:
        """The ids of each document with <eos>, none of an empty one; the number of its characters and words,
        and one for its end. With the vocabulary of a file, the last line of a document has no line end: so
        documents of a line end as the outputs of other systems do."""
        if self.data.source_tokenizer:
            records = [text.removesuffix("\n") for text in records]
        return [
            {
                "ids": [*self.tokenizer.encode(text), self.special.eos] if has_text(text) else [],
                "characters": len(text) + 1,
                "words": len(text.split()) + 1,
            }
            for text in records
        ]

    def examples(self, records: Sequence[str], *, truncate: bool = False) -> list[Example]:
        """One document in each row, truncated to a segment if `truncate`; training divides it by its plan."""
        examples: list[Example] = []
        for text in records:
            stream = self._stream([text])
            stop = min(len(stream), self.data.max_length) if truncate else len(stream)
            rows = stream.read(np.array([0]), np.array([stop]), begins=True)
            examples.append({name: row[0] for name, row in rows.items()})
        return examples

    def _stream(self, records: Sequence[str]) -> Stream:
        return Stream(arrays_of(self.stored_examples(records), self.stored_fields), self.special.bos)

    def batching(self) -> Batching:
        """One length: that of a segment."""
        buckets = ((self.data.max_length,) * len(SEGMENT),)
        return Batching(buckets, self.data.batch_tokens, packed=False, seed=self.data.seed)

    def texts_of_fields(self, record: str) -> Mapping[str, tuple[str, Tokenizer]]:
        return {"ids": (record, self.tokenizer)}

    def filled(self, record: str) -> Mapping[str, bool]:
        return {"document": has_text(record)}

    def plan(self, records: Records, examples: Arrays, progress: Progress = silent) -> Plan:
        """Rows that read their parts of the text segment by segment."""
        data = self.data
        count = int(side_lengths(examples).sum())
        if count < data.rows * data.max_length:
            raise UserError(
                f"the training text has {counted(count, 'token')}, fewer than a batch of "
                f"{counted(data.rows, 'row')} of {data.max_length}: give more text, or {self._fitting(count)}"
            )
        return StreamPlan(examples, self.special.bos, data.rows, data.max_length, data.seed)

    def _fitting(self, count: int) -> str:
        """The options with which a text of so many tokens makes the largest batch."""
        segment = min(count, self.data.max_length)
        options = [f"--data.batch-tokens {count // segment * segment}"]
        if segment < self.data.max_length:
            options.insert(0, f"--data.max-length {segment}")
            room = segment - segment // 2
            if not _model(self.config).attended and self.config.decoding.extra_length > room:
                options.append(f"--decoding.extra-length {room}")
        return " ".join(options)

    def fixed_batches(self, records: Records, host: int, hosts: int) -> Iterator[dict[str, np.ndarray]]:
        """All of the text, each row a part of it; this process's share of the rows."""
        data = self.data
        share = math.ceil(data.rows / hosts)
        indices = np.arange(data.rows)[host * share :][:share]
        lengths = (data.max_length,) * len(SEGMENT)
        for segments in whole_stream(self._stream(list(records)), data.rows, data.max_length):
            yield gathered(segments, indices, np.ones_like(indices), self.fields, lengths, share)

    # Generation

    def ids(self, prompt: str) -> list[int]:
        """The ids of a prompt.

        Raises:
          UserError: it has characters that the vocabulary does not have.
        """
        ids = self.tokenizer.encode(prompt)
        if self.special.unk in ids:
            ids_by_piece = self.tokenizer.ids_by_piece
            unknown = next(character for character in prompt if character not in ids_by_piece)
            raise UserError(
                f"the text {brief(prompt)} has the character {unknown!r}, which is not in the training "
                "text: leave it out, or train with --data.tokenizer byte"
            )
        return ids

    def input_examples(
        self, records: Sequence[str], longest: int, lines: Sequence[int] = ()
    ) -> list[Example]:
        """The ids of the prompts after <bos>. Long prompts are truncated to their end, with a warning."""
        model = _model(self.config)
        examples: list[Example] = []
        if not model.attended:
            longest = min(longest, max(1, self.data.max_length // 2))
        for index, prompt in enumerate(records):
            with prefixed_errors(f"line {lines[index]}: " if lines else ""):
                ids = [self.special.bos, *self.ids(prompt)]
            if len(ids) > longest and lines:
                log.warning(
                    "line %d: truncated to the last %d of %d tokens", lines[index], longest, len(ids) - 1
                )
            examples.append({"source": ids[-longest:], TRUNCATED: len(ids) > longest})
        return examples

    def check_search(self, settings: DecodingConfig) -> None:
        """Raises UserError if a model without memory is to write more than a segment."""
        if settings.method == "mbr":
            raise UserError("--decoding.method mbr: what follows a prompt has no consensus; leave it out")
        model = _model(self.config)
        longest = min(settings.extra_length, settings.max_length or settings.extra_length)
        segment = self.data.max_length
        room = segment - segment // 2
        if not model.attended and longest > room:
            raise UserError(
                f"--decoding.extra-length {longest}: this model has no memory and reads {segment} "
                f"tokens, so it writes at most {room} after a prompt: add --decoding.extra-length {room}"
            )
        if not longest:
            raise UserError(
                "--decoding.extra-length 0 writes nothing; only decode.py --stream continues to the end "
                "with it"
            )

    def outputs(self, result: SearchResult, record: str, n_best: int | None) -> list[Generated]:
        """What follows the prompt, best first."""
        outputs = []
        prompt = self.tokenizer.encode(record)
        scores = result.scores[:n_best].tolist()
        log_probabilities = result.log_probabilities[:n_best].tolist()
        for score, log_probability, row in zip(scores, log_probabilities, result.tokens, strict=False):
            if math.isfinite(score):
                ids = [int(index) for index in row if index != self.special.pad]
                text_ids = [index for index in ids if index != self.special.eos]
                text = self.text(text_ids, prompt)
                pieces = tuple(self.tokenizer.pieces(text_ids))
                outputs.append(Generated(text, pieces, score, log_probability, tuple(ids)))
        return outputs

    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """All divisions of a phrase into tokens, for pieces of words at the beginning of a word."""
        return TextSteering(self.tokenizer, self.special).phrases(text)

    def spell(self, ids: Sequence[int]) -> str:
        """The text of output ids alone."""
        return self.tokenizer.decode(ids)

    def pieces(self, ids: Sequence[int], record: str) -> list[str]:
        """The token of each id."""
        return self.tokenizer.pieces(ids)

    def text(self, ids: Sequence[int], prompt: Sequence[int]) -> str:
        """The text of ids that follow a prompt."""
        before = self.tokenizer.decode(prompt)
        return self.tokenizer.decode([*prompt, *ids])[len(before) :]

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """Bits per character, and perplexity per token and per word."""

        def perplexity(name: str) -> Callable[[Evaluation], Score]:
            def of(evaluation: Evaluation) -> Score:
                value = math.exp(min(evaluation.means[name], 700))
                return Score(value, self._signature(), f"{value:.2f}" if value < 1e6 else f"{value:.2e}")

            return of

        def bits(evaluation: Evaluation) -> Score:
            value = evaluation.means["bits"]
            return Score(value, self._signature(), f"{value:.4f}")

        return {BITS: bits, PERPLEXITY: perplexity("nll"), WORD_PERPLEXITY: perplexity("word_nll")}

    def _signature(self) -> str:
        """How the scores were computed."""
        data, memory = self.data, _model(self.config).attended
        return f"tokens:{data.tokenizer}|segment:{data.max_length}|memory:{memory}"

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The negative log-likelihood in nats per token, and its exponential."""
        return {"nll": means["nll"], "perplexity": math.exp(min(means["nll"], 700))}

    def prompts(self, records: Sequence[str], count: int) -> list[str]:
        """Beginnings of lines from all parts of the text."""
        prompts = []
        for index in range(count if records else 0):
            text = records[index % len(records)]
            _, _, following_text = text[len(text) * index // count :].partition("\n")
            lines = [line for line in following_text.splitlines() if has_text(line)] or text.splitlines()
            prompts.append(" ".join(lines[0].split(" ")[:4]))
        return prompts

    def shown(self, record: str, output: str) -> tuple[str, str, str]:
        """A prompt, and what follows it."""
        return record, "", output.replace("\n", r"\n")

    # Lines in, lines out

    def record(self, line: str) -> str:
        r"""A prompt, in which \n is a line break."""
        return line.replace(r"\n", "\n")

    def example_line(self, record: str) -> str:
        """The first words of a line."""
        return next((prompt for prompt in self.prompts([record], 1) if prompt), "")

    def line(self, output: Generated) -> str:
        r"""The text, with \n for a line break."""
        return output.text.replace("\n", r"\n")


def _model(config: Config) -> LanguageModelConfig:
    assert isinstance(config.model, LanguageModelConfig)
    return config.model
