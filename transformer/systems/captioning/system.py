"""Captioning: pictures in, texts that describe them out."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer.config.options import Config
from transformer.data.sequences import Example, Field, Fields, id_dtype
from transformer.data.sources.pictures import AnnotatedPicture
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.decoding.scores import SearchResult
from transformer.decoding.searches.search import AutoregressiveSearch, limits_of_options
from transformer.model.parameters import Arguments
from transformer.model.transformer import cross_attention
from transformer.model.variants.patches import PatchTransformer
from transformer.systems.system import autoregressive
from transformer.tasks.exhibit import ReportSample
from transformer.tasks.media.pictures import Located, Pictures, data_of, enlarged, shown_picture
from transformer.tasks.metrics.scores import (
    BLEU,
    CHRF,
    EXACT,
    Metric,
    References,
    Score,
    bleu,
    chrf,
    exact_match,
)
from transformer.tasks.task import Evaluation
from transformer.tasks.text import Hypothesis, TextTask, hypotheses, words_of
from transformer.tasks.vocabulary import OneVocabulary

# Captioning: pictures in, texts that describe them out.


DARKEST = 0.25
"""The brightness of what a word does not attend to."""
ATTENDED = 12
"""The most words of a caption whose attention a report shows."""


class Captioning(OneVocabulary, Pictures, TextTask):
    """Describes pictures.

    Args:
      config: of the run.
      tokenizer: of the captions.
    """

    criterion = BLEU
    scored_by = ("bleu_tokenize",)
    counted = "target"
    annotation: ClassVar[Any] = "captions"
    writer = "transformer.systems.captioning.api"
    service = "transformer.systems.captioning.service"

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.fields = {"source": self.picture_field, "target": Field(fill=self.special.pad)}

    @classmethod
    def texts(cls, records: Iterable[AnnotatedPicture]) -> Iterator[str]:
        """All captions."""
        return (caption for picture in records for caption in picture.captions)

    # To batches

    @staticmethod
    def example(config: Config) -> Arguments:
        """Shapes of a picture and of decoder input ids."""
        size = data_of(config).picture_size
        picture = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
        return picture, jax.ShapeDtypeStruct((1, 2), jnp.int32)

    def examples(self, records: Sequence[AnnotatedPicture], *, truncate: bool = False) -> list[Example]:
        """The pictures, and the ids of the first caption of each with <eos>."""
        longest = self.config.data.max_length - 1 if truncate else None
        texts = [record.captions[0] if record.captions else "" for record in records]
        encoded = self.tokenizer.encode_all(texts)
        return [
            {"source": self.pixels(record), "target": [*ids[:longest], self.special.eos]}
            for record, ids in zip(records, encoded, strict=True)
        ]

    @property
    def stored_fields(self) -> Fields:
        """Pictures in half precision, and ids in as few bytes as they need."""
        return {**super().stored_fields, "target": Field(id_dtype(self.tokenizer.num_ids))}

    def texts_of_fields(self, record: AnnotatedPicture) -> Mapping[str, tuple[str, Tokenizer]]:
        return {"target": (record.captions[0] if record.captions else "", self.tokenizer)}

    def filled(self, record: AnnotatedPicture) -> Mapping[str, bool]:
        """Whether there is a caption."""
        return {"caption": bool(record.captions)}

    # From decoding

    def outputs(self, result: SearchResult, record: AnnotatedPicture, n_best: int | None) -> list[Hypothesis]:
        """Captions of a picture, best first.

        Raises:
          UserError: there is no output that the rules allow.
        """
        return hypotheses(result, self.tokenizer, self.special, n_best)

    def phrases(self, text: str) -> list[tuple[int, ...]]:
        """The ids of a phrase, if the vocabulary can spell it."""
        ids = tuple(self.tokenizer.encode(text))
        return [ids] if ids and self.special.unk not in ids else []

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def pieces(self, ids: Sequence[int], record: AnnotatedPicture) -> list[str]:
        """The token of each id."""
        return self.tokenizer.pieces(ids)

    def spell(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(words_of(ids, self.special))

    def measures(self) -> Mapping[Metric, Callable[[Evaluation], Score]]:
        """BLEU, chrF and exact match, each with all captions of a picture as references."""

        def of(score: Callable[[Sequence[str], References], Score]) -> Callable[[Evaluation], Score]:
            return lambda evaluation: score(
                evaluation.outputs, [record.captions for record in evaluation.records]
            )

        by_words = functools.partial(bleu, tokenize=self.config.training.bleu_tokenize or "13a")
        return {BLEU: of(by_words), CHRF: of(chrf), EXACT: of(exact_match)}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The negative log-likelihood in nats per token, and its exponential."""
        return {"nll": means["nll"], "perplexity": math.exp(min(means["nll"], 700))}

    def shown(self, record: AnnotatedPicture, output: str) -> tuple[str, str, str]:
        """The picture's name, its first caption and the output."""
        return record.name, record.captions[0] if record.captions else "", output

    # For the explorer

    def located(self, record: AnnotatedPicture, output: Hypothesis) -> list[Located]:
        """The tokens of a caption, each with its attention."""
        pieces = self.pieces(output.ids, record)
        if output.alignment is None:
            return [Located(piece) for piece in pieces]
        rows = output.alignment.tolist()
        return [Located(piece, tuple(row)) for piece, row in zip(pieces, rows, strict=True)]

    # For the report

    def exhibit(
        self, record: AnnotatedPicture, output: Hypothesis, attention: Float[np.ndarray, "t s"] | None
    ) -> ReportSample:
        """The picture, its captions, and what each word of the first one attends to."""
        picture, _ = enlarged(record.pixels)
        pictures = [shown_picture("picture", picture)]
        if attention is not None:
            (example,) = self.examples([record], truncate=True)
            pieces = self.tokenizer.pieces(example["target"])
            pairs = zip(pieces[:ATTENDED], attention[:-1], strict=False)
            pictures += [shown_picture(f"attention of {piece}", lit(picture, row)) for piece, row in pairs]
        return ReportSample(
            title=record.name,
            texts={"captions": "; ".join(record.captions), "output": output.text},
            pictures=tuple(pictures),
        )

    # Lines out

    def line(self, output: Hypothesis) -> str:
        return " ".join(output.text.split("\n"))


def lit(
    picture: Float[np.ndarray, "height width 3"], attention: Float[np.ndarray, " patches"]
) -> Float[np.ndarray, "height width 3"]:
    """A picture whose patches are as bright as they are attended to."""
    side = math.isqrt(len(attention))
    grid = np.sqrt(attention / max(float(attention.max()), 1e-9)).reshape(side, side)
    index = np.arange(len(picture)) * side // len(picture)
    brightness = DARKEST + (1 - DARKEST) * grid[np.ix_(index, index)]
    return picture * brightness[..., None]


SYSTEM = autoregressive(
    PatchTransformer,
    cross_attention,
    search=AutoregressiveSearch(limits=limits_of_options),
    task=Captioning,
)
