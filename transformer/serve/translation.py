"""What runs that translate do for clients: translations of texts, and the scores of given ones."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from transformer.runtime.errors import UserError, counted
from transformer.runtime.files import Json
from transformer.serve.messages import EXTRAS, AskedScores, AskedTranslations, Endpoint, extras_of
from transformer.serve.service import Service
from transformer.serve.texts import texts_of
from transformer.tasks.hypotheses import Hypothesis
from transformer.translator.search_outputs import available
from transformer.translator.translator import Translator


class Translations(Service):
    """Translations, or whatever else a task makes of texts."""

    search = Endpoint(
        "/translate",
        "The best translations of texts.",
        AskedTranslations,
        {"text": ["A dog runs.", "Two men talk."], "n_best": 2},
        extras=tuple(name for name in EXTRAS if name != "times"),
    )
    loads: ClassVar = Translator
    decoder: Translator

    def items(self, asked: Any) -> list[str]:
        """The texts of a request, each after its context."""
        texts = texts_of(asked.text, self.limits)
        if asked.context is None:
            return texts
        is_one = isinstance(asked.text, str)
        contexts = [asked.context] if is_one else asked.context
        if len(contexts) != len(texts) or any(isinstance(context, str) for context in contexts):
            raise UserError(
                "context: give a list of sentences for a text, and for several texts a list of lists"
            )
        for context in filter(None, contexts):
            texts_of(context, self.limits, "context")
        pairs = zip(texts, contexts, strict=True)
        source_of = self.decoder.task.source_of
        return [source_of({"source": text, "context": context}) for text, context in pairs]

    def record(self, item: str, asked: Any) -> tuple[str, Json]:
        """A text, and what is asked of its translation."""
        return item, {**extras_of(asked), **languages_of(asked)}

    def answer(self, item: str, outputs: list[Hypothesis], asked: Any) -> Json:
        """Translations, and the columns of their alignments."""
        answer = super().answer(item, outputs, asked)
        if asked.alignments:
            translator = self.decoder.between(**languages_of(asked))
            answer["source_tokens"] = translator.source_tokens(item)
        return answer

    @property
    def has_alignments(self) -> bool:
        """Whether its system has alignments."""
        return self.decoder.system.alignment is not None

    @property
    def prepared(self) -> Json:
        """What may be asked of every output, as far as the run has it."""
        extras = available(self.decoder)
        return {name: getattr(extras, name) for name in self.search.extras}

    def about(self) -> Json:
        """With what may be asked of every output."""
        return {**super().about(), "extras": [name for name, has in self.prepared.items() if has]}

    @property
    def known_languages(self) -> tuple[str | None, str | None]:
        """Those of options and files."""
        return (None, None) if self.codes else self.decoder.task.data.languages

    @property
    def codes(self) -> Sequence[str]:
        """The codes of a model of many languages."""
        tokenizer = self.decoder.tokenizers[0]
        return tuple(tokenizer.codes) if tokenizer.has_codes else ()

    @property
    def scores(self) -> Callable[[AskedScores], list[Json]] | None:
        """log P(target | text) of each pair."""
        return self._scores if self.decoder.system.scores else None

    def _scores(self, asked: AskedScores) -> list[Json]:
        texts = texts_of(asked.text, self.limits)
        if asked.target is None:
            raise UserError(f"target is missing: run {self.name} scores translations")
        targets = texts_of(asked.target, self.limits, "target")
        if len(texts) != len(targets):
            raise UserError(
                f"{counted(len(texts), 'text')} and {counted(len(targets), 'target')}: give one for each"
            )
        scores = self.decoder.score(texts, targets, **languages_of(asked))
        return [{"log_probability": float(score)} for score in scores]


def languages_of(asked: Any) -> Json:
    """The languages that a request names."""
    return {"source_language": asked.source_language, "target_language": asked.target_language}


SERVICE = Translations
