"""What runs that translate do for clients: translations of texts, and the scores of given ones."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from transformer.decoding.service.lanes import Job
from transformer.documents.document import can_translate
from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json
from transformer.runtime.text import has_text
from transformer.serve.services.limits import OF_RECORDS, size_of, texts_of
from transformer.serve.services.messages import (
    AskedChoices,
    AskedScores,
    AskedTranslations,
    Endpoint,
    search_options,
)
from transformer.serve.services.service import Service
from transformer.tasks.text import Hypothesis, with_ends
from transformer.tasks.texts.requests import Source
from transformer.translator.translator import Translator


def lines(text: str) -> int:
    """How many lines a text has, also those without text, which take time."""
    return len(text.splitlines())


ANSWERED = 1_000_000
"""Characters of labels in an answer, which has all of them for each text."""


class Translations(Service):
    """Translations, or whatever else a task makes of texts."""

    search = Endpoint(
        "/translate",
        "The best translations of texts.",
        AskedTranslations,
        {"text": ["A dog runs.", "Two men talk."], "n_best": 2},
    )
    loads: ClassVar = Translator
    of_records = OF_RECORDS
    decoder: Translator

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.decoder.sentence_language = None if self.codes else self.languages[0]

    def items(self, asked: Any) -> list[Source]:
        """The texts of a request, each with its context."""
        texts: list[Source] = texts_of(asked.text, self.limits)
        for text in texts:
            self.decoder.task.source_of(text)  # refuses what is no input of the model
        if asked.context is None:
            return texts
        is_one = not isinstance(asked.text, list)
        contexts = [asked.context] if is_one else asked.context
        if len(contexts) != len(texts) or any(isinstance(context, str) for context in contexts):
            raise UserError(
                "context: give a list of sentences for a text, and for several texts a list of lists"
            )
        for context in filter(None, contexts):
            texts_of(context, self.limits, "context")
        pairs = zip(texts, contexts, strict=True)
        if not all(isinstance(text, str) for text in texts):
            raise UserError("context: name it in the object of each text, or give texts without names")
        return [{"source": str(text), "context": context} for text, context in pairs]

    def record(self, item: Source, asked: Any) -> tuple[Source, Json]:
        """A text, and what is asked of its translation."""
        return item, {"divide": asked.divide, **languages_of(asked)}

    def answer(self, item: Source, outputs: list[Hypothesis], asked: Any) -> Json:
        """Translations, and the columns of their alignments."""
        answer = super().answer(item, outputs, asked)
        if asked.alignments:
            translator = self.decoder.between(**languages_of(asked))
            sentences = filter(has_text, self._sentences(item, asked))
            tokens = (translator.source_tokens(sentence, **self.defaults) for sentence in sentences)
            answer["source_tokens"] = with_ends(tokens)
        return answer

    def numbers(self, items: Sequence[Source], asked: Any) -> Iterator[int]:
        """How many sentences and lines each text has, or 1 if they are too short to have too many."""
        if sum(size_of(item) + 1 for item in items) <= self.limits.sentences:
            return super().numbers(items, asked)
        return (max(size_of(item, lines), len(self._sentences(item, asked))) for item in items)

    def _sentences(self, item: Source, asked: Any) -> list[str]:
        is_whole = any(search_options(asked, OF_RECORDS).values())
        translator = self.decoder.between(**languages_of(asked))
        return translator.sentences_of(item, divide=False if is_whole else asked.divide, **self.defaults)

    def about(self) -> Json:
        """With what may be asked of every output, and the languages of a model of many."""
        return {
            **super().about(),
            "extras": [name for name, has in self.prepared.items() if has],
            "translates": can_translate(self.decoder.task),
            "languages": list(self.codes),
            "context": self.decoder.task.data.context,
        }

    @property
    def known_languages(self) -> tuple[str | None, str | None]:
        """Those of options and files."""
        return (None, None) if self.codes else self.decoder.task.data.languages

    @property
    def codes(self) -> Sequence[str]:
        """The codes of a model of many languages."""
        tokenizer = self.decoder.tokenizers[1]  # sources alone may have tags
        return tuple(tokenizer.codes) if tokenizer.has_codes else ()

    @property
    def scores(self) -> Callable[[AskedScores], Iterator[list[Json]]] | None:
        """log P(target | text) of each pair."""
        return self._scores if self.decoder.system.scores else None

    def score_programs(self) -> Iterator[Job]:
        """Those of the translator."""
        return self.decoder.score_programs()

    def _scores(self, asked: AskedScores) -> Iterator[list[Json]]:
        texts = texts_of(asked.text, self.limits)
        if asked.target is None:
            raise UserError(f"target is missing: run {self.name} scores translations")
        targets = texts_of(asked.target, self.limits, "target")
        if len(texts) != len(targets):
            raise UserError(
                f"{counted(len(texts), 'text')} and {counted(len(targets), 'target')}: give one for each"
            )
        languages = languages_of(asked)
        translator = self.decoder.between(**languages)
        for lines in parts_of(len(texts), self.settings.rows):
            several, outputs = ([side[line - 1] for line in lines] for side in (texts, targets))
            scores = self.decoder.score(several, outputs, lines=lines, **languages)
            truncated = map(translator.truncates, several, outputs)
            yield [
                {"log_probability": float(score), **({"truncated": True} if is_truncated else {})}
                for score, is_truncated in zip(scores, truncated, strict=True)
            ]

    @property
    def choices(self) -> Callable[[AskedChoices], Iterator[list[Json]]] | None:
        """The probabilities of labels for each text."""
        return self._choices if self.decoder.system.scores else None

    def _choices(self, asked: AskedChoices) -> Iterator[list[Json]]:
        texts: list[Source] = [
            self.decoder.task.source_of(text) for text in texts_of(asked.text, self.limits)
        ]
        if asked.choices:
            texts_of(asked.choices, self.limits, "choices")
        translator = self.decoder.between(**languages_of(asked))
        labels: Sequence[str] = asked.choices or getattr(self.decoder.task, "labels", [])
        if (size := len(texts) * sum(map(len, labels))) > ANSWERED:
            raise UserError(
                f"choices: the answer has each label for each text, together {size:,} characters, and it may "
                f"have {ANSWERED:,}: divide the texts"
            )
        for lines in parts_of(len(texts), self.settings.rows // max(len(labels), 1)):
            several = [texts[line - 1] for line in lines]
            probabilities = translator.choices(several, asked.choices, temperature=asked.temperature)
            yield [
                {"choices": of_labels, **({"truncated": True} if translator.truncates(text) else {})}
                for text, of_labels in zip(several, probabilities, strict=True)
            ]


def parts_of(count: int, size: int) -> Iterator[range]:
    """The numbers of texts, from 1, in parts: other requests have their turn between them, and a client that
    leaves ends it.

    Args:
      count: of texts.
      size: how many are scored at once; less than 1: one.
    """
    size = max(size, 1)
    return (range(start, min(start + size, count + 1)) for start in range(1, count + 1, size))


def languages_of(asked: Any) -> Json:
    """The languages that a request names."""
    return {"source_language": asked.source_language, "target_language": asked.target_language}


SERVICE = Translations
