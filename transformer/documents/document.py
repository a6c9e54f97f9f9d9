"""Translates documents: passages become sentences, and translated sentences passages again."""

import bisect
import itertools
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from transformer.config.arguments import any_number
from transformer.config.ranges import Option, instance, shown
from transformer.data.sources.context import in_context
from transformer.data.sources.text_files import one_line
from transformer.data.tokenizers.lossless import to_utf8
from transformer.documents.markdown import read_markdown
from transformer.documents.passages import (
    Document,
    Mark,
    MarkedText,
    Passage,
    joined,
    read_plain_text,
    with_addresses,
)
from transformer.documents.projection import (
    Aligned,
    aligned_by_position,
    aligned_words,
    last_columns,
    project,
)
from transformer.documents.sentences import DividedText, Span, clauses, sentences
from transformer.documents.suspicion import Limits, Signs, signs_of
from transformer.runtime.errors import UserError
from transformer.runtime.words import ends_unspaced
from transformer.systems.system import System
from transformer.tasks.outputs import Plain
from transformer.tasks.text import Hypothesis
from transformer.tasks.texts.requests import own_sentence
from transformer.tasks.texts.text_to_text import TextToText
from transformer.tasks.texts.translation import Translation

CODE = re.compile(r">>[^<]*<<")
"""Of the target language, before a text of OPUS-MT."""
NO_REPEAT = 4
"""Words of an n-gram that a second search writes once."""
NOT_READ = "not read"
"""The flag of a text that stays as it is, since it could not be divided from its Markdown."""
READERS: dict[str, Callable[[str], Document]] = {"text": read_plain_text, "markdown": read_markdown}


@dataclass(frozen=True, eq=False)
class TranslatedSentence(Plain):
    """A sentence of a document, or a part of one that is too long for the model."""

    line: int
    """Line of the document on which the paragraph of the sentence begins."""
    source: str
    text: str
    """Translation of the sentence."""
    flags: tuple[str, ...] = ()
    """What is suspicious about it: names of `Signs`, `markup`, `truncated` (the model has read only its
    beginning), or `not read`."""
    retried: bool = False
    """Whether it was found by a second search, since the first output was suspicious."""


@dataclass(frozen=True, eq=False)
class TranslatedDocument(Plain):
    """A document and what is to be said of its translation."""

    text: str
    """The translated document."""
    sentences: tuple[TranslatedSentence, ...] = field(repr=False)
    """The sentences in the order of the document."""

    @property
    def flagged(self) -> list[TranslatedSentence]:
        """The sentences whose translation someone should read."""
        return [sentence for sentence in self.sentences if sentence.flags]


@dataclass(frozen=True)
class _Piece:
    """A sentence of a passage, and the white space after it."""

    passage: int
    content: MarkedText
    gap: str = ""
    is_last: bool = True


@dataclass(frozen=True)
class _Source:
    """A sentence, and what the model reads of it: after its context, and nothing if it has no words."""

    content: MarkedText
    read: str


@dataclass(frozen=True)
class _Judged:
    """A translation, its words aligned with those of the source, and what is suspicious about it."""

    text: str
    pair: Aligned | None
    flags: tuple[str, ...]


class DocumentTranslator(ABC):
    """What translates sentences, and so documents."""

    system: System
    task: TextToText

    limits = Limits()
    """Above which a sentence is flagged."""
    sentence_language: str | None = None
    """Code of the language whose rules find sentences. None: that of the run's sources."""

    @abstractmethod
    def stream(self, records: Iterable[Any], **options: Any) -> Iterator[list[Hypothesis]]:
        """The best translations of each sentence."""

    @abstractmethod
    def subwords(self, source: str) -> list[str]:
        """The subwords of a sentence."""

    @abstractmethod
    def settings(self, n_best: int | None, options: Any) -> Any:
        """The options of a search."""

    def translate_document(
        self,
        text: str,
        format: str = "text",
        *,
        progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda items, _: items,
        **options: Option,
    ) -> TranslatedDocument:
        """The translation of a document, sentence by sentence. A suspicious one is searched again, with all
        hypotheses and, if the search has that rule, without repeated n-grams; the first of the outputs with
        the fewest flags stays. A code such as `>>deu<<` before the first sentence of plain text is before
        each. An instruction, as T5 reads them, is for its own sentence alone.

        Args:
          text: the document.
          format: "text" or "markdown". Markdown keeps code, addresses, tags and all that is no text; what is
            marked in a sentence is marked in its translation, by the attention of the model.
          progress: is given the translations as they are made, and their number, and yields them again.
          options: as in `Translator.translate`.

        Raises:
          UserError: the model does not translate, the document is no text, the format is unknown, or a
            library is missing.
        """
        check_translates(self.task)
        if not isinstance(format, str) or format not in READERS:
            raise UserError(f"format {shown(format)}: choose {' or '.join(READERS)}")
        check_text(text)
        if not callable(progress):
            raise UserError(f"progress must be a function, not {type(progress).__name__}")
        byte_order = "\ufeff" * text.startswith("\ufeff")
        document = READERS[format](text.removeprefix(byte_order))
        languages = "source_language", "target_language"
        search = {name: value for name, value in options.items() if name not in languages}
        settings = self.settings(None, search)
        longest = settings.buckets[-1]
        pieces = list(self._pieces(document, longest - 1))
        sources = self._in_context([piece.content for piece in pieces], longest)
        judged = self._searched(sources, 1, options, progress)
        retried = self._retried(sources, judged, settings, options)
        judged = [retried.get(index, output) for index, output in enumerate(judged)]
        contents: list[list[tuple[_Piece, MarkedText]]] = [[] for _ in document.passages]
        marked = [_marked(piece.content, output) for piece, output in zip(pieces, judged, strict=True)]
        for piece, (content, _) in zip(pieces, marked, strict=True):
            contents[piece.passage].append((piece, content))
        written = [_written(*pair) for pair in zip(document.passages, contents, strict=True)]
        done = [TranslatedSentence(line, text, text, (NOT_READ,)) for line, text in document.unread]
        for index, (piece, (content, flags)) in enumerate(zip(pieces, marked, strict=True)):
            line, source = document.passages[piece.passage].line, piece.content.text.strip()
            text = content.text.strip()
            if written[piece.passage] is None:
                text, flags = source, (*flags, NOT_READ)
            done.append(TranslatedSentence(line, source, text, flags, retried=index in retried))
        texts = [
            passage.source if text is None else text
            for passage, text in zip(document.passages, written, strict=True)
        ]
        return TranslatedDocument(
            byte_order + document.written(texts), tuple(sorted(done, key=lambda sentence: sentence.line))
        )

    def _pieces(self, document: Document, longest: int) -> Iterator[_Piece]:
        """The sentences of a document, in parts where the model could not read them."""
        for index, passage in enumerate(document.passages):
            content = passage.content
            spans = self._spans(content, longest)
            if not spans:
                yield _Piece(index, content)
            begin, near, further = 0, list[Mark](), deque(content.marks)
            for (start, end), (following, _) in pairwise([*spans, (len(content.text), 0)]):
                is_last = (start, end) == spans[-1]
                first, last = start if begin else 0, len(content.text) if is_last else end
                while further and (is_last or further[0].start <= last + 1):
                    near.append(further.popleft())
                part = replace(content, marks=tuple(near)).part(first, last, begin, is_last)
                near = [mark for mark in near if mark.end >= last]
                yield _Piece(index, part, "" if is_last else content.text[end:following], is_last)
                begin = end

    def _spans(self, content: MarkedText, longest: int) -> list[Span]:
        """The sentences of a text, in parts where the model could not read them."""
        language = self.sentence_language or self.task.data.languages[0] or ""
        return [
            (start + first, start + last)
            for start, end in _undivided(_by_line(content.text, language), content)
            for first, last in clauses(content.text[start:end], self._size, longest)
        ]

    def divided(self, text: str, longest: int) -> DividedText:
        """A text as the sentences that are translated one by one, each no longer than the model reads as far
        as it can be divided.

        Args:
          text: any text, whose line breaks stay.
          longest: tokens that the model reads, with <eos>.

        Raises:
          UserError: a library is missing.
        """
        sentences, gaps, read = list[str](), [""], list[bool]()
        for line in text.splitlines(keepends=True):
            if line.isspace():
                gaps[-1] += line
                continue
            content, begin = with_addresses(MarkedText(line.rstrip())), 0
            unmarked = content.blanked
            for start, end in self._spans(content, longest - 1):
                gaps[-1] += line[begin:start]
                sentences.append(line[start:end])
                gaps.append("")
                read.append(any(map(str.isalpha, unmarked[start:end])))
                begin = end
            gaps[-1] += line[begin:]
        return DividedText(tuple(sentences), tuple(gaps), tuple(read))

    def _size(self, text: str) -> int:
        return len(self.subwords(text))

    def in_context(self, sentences: Iterable[str]) -> list[str]:
        """Sentences as a model with `--data.context` reads them: each after those before it. Other models
        read them alone.

        Args:
          sentences: in the order of their document. An empty one begins a new document.

        Raises:
          UserError: it was given one string.
        """
        texts = list(any_number("sentences", sentences, "sentences"))
        for text in texts:
            instance("each of the sentences", text, str)
        return list(in_context(texts, self.task.data.context))

    def _in_context(self, contents: Sequence[MarkedText], longest: int) -> list[_Source]:
        """What the model reads of each sentence: those before it have words."""
        have_words = list(map(_has_words, contents))
        texts = [content.text.strip() for content in itertools.compress(contents, have_words)]
        read = (self.task.read(text, longest) for text in self.in_context(with_code(texts)))
        return [
            _Source(content, next(read) if has_words else "")
            for content, has_words in zip(contents, have_words, strict=True)
        ]

    def usual_limits(self, sources: Iterable[str], share: float = 0.005, **options: Option) -> Limits:
        """The limits above which this share of the translations of usual sentences is, for each sign.

        Args:
          sources: a validation text.
          share: of false alarms, from 0 to 1.
          options: as in `translate_document`.

        Raises:
          UserError: there is no sentence, or the model does not translate.
        """
        check_translates(self.task)
        instance("share", share, float | int)
        if not 0 <= share <= 1:
            raise UserError(f"share {share}: must be from 0 to 1")
        if not (texts := list(any_number("sources", sources, "sentences"))):
            raise UserError("sources: give sentences of a validation text")
        outputs = self.stream(texts, n_best=1, alignments=self.system.alignment is not None, **options)
        pairs = zip(texts, outputs, strict=True)
        judged = (self._signs(own_sentence(text, self.task.data), outputs[0])[0] for text, outputs in pairs)
        return Limits.calibrated(judged, share)

    def _searched(
        self,
        sources: Sequence[_Source],
        n_best: int,
        options: Any,
        progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda items, _: items,
    ) -> list[_Judged]:
        """The translation of each sentence: the first of its hypotheses with the fewest flags."""
        texts = (source.read for source in sources)
        aligns = self.system.alignment is not None
        outputs = progress(self.stream(texts, n_best=n_best, alignments=aligns, **options), len(sources))
        return [self._judged(*pair) for pair in zip(sources, outputs, strict=True)]

    def _retried(
        self, sources: Sequence[_Source], judged: Sequence[_Judged], settings: Any, options: Any
    ) -> dict[int, _Judged]:
        """What a second search of the suspicious sentences found with fewer flags, by their indices."""
        suspicious = [index for index, output in enumerate(judged) if output.flags]
        has_rules = bool(self.system.stepwise) and not settings.shortlist
        if not has_rules and settings.num_hypotheses == 1:
            return {}  # the same would be found
        again = {**options, "no_repeat_ngram": NO_REPEAT} if has_rules else options
        outputs = self._searched([sources[index] for index in suspicious], settings.num_hypotheses, again)
        return {
            index: output
            for index, output in zip(suspicious, outputs, strict=True)
            if len(output.flags) < len(judged[index].flags)
        }

    def _judged(self, source: _Source, hypotheses: Sequence[Hypothesis]) -> _Judged:
        """The first of the hypotheses with the fewest flags."""
        content = source.content
        if not _has_words(content):
            return _Judged(content.text, None, ())
        outputs = list[_Judged]()
        for hypothesis in (replace(output, text=one_line(output.text)) for output in hypotheses):
            signs, pair = self._signs(content.unmarked, hypothesis, content.text)
            flags = (*self.limits.flags(signs), *("truncated",) * hypothesis.truncated)
            outputs.append(_Judged(hypothesis.text, pair, flags))
        return min(outputs, key=lambda output: len(output.flags))

    def _signs(
        self, text: str, hypothesis: Hypothesis, source: str | None = None
    ) -> tuple[Signs, Aligned | None]:
        """The signs of an output, and its words aligned with those of the sentence, which is read last. What
        is copied is not in `text`."""
        source = text if source is None else source
        pair = None
        if hypothesis.alignment is not None:
            tokens = self.subwords(source), hypothesis.tokens
            attention = last_columns(hypothesis.alignment, len(tokens[0]) + 1)
            pair = aligned_words(source, hypothesis.text, *tokens, attention)
        unsure = -hypothesis.log_probability / (len(hypothesis.tokens) + 1)
        return signs_of(text, hypothesis.text, pair, unsure), pair


def _marked(source: MarkedText, output: _Judged) -> tuple[MarkedText, tuple[str, ...]]:
    """A translation with the marks of its source, and its flags, with `markup` if a mark found no words."""
    if not _has_words(source):
        return source, ()
    if output.text.split() == source.text.split():
        return source, output.flags
    if not source.marks:
        return MarkedText(output.text), output.flags
    content, homeless = project(source, output.pair or aligned_by_position(source.text, output.text))
    return content, (*output.flags, *("markup",) * bool(homeless or output.pair is None))


def _by_line(text: str, language: str) -> Iterator[Span]:
    """The sentences of each line of a text."""
    begin = 0
    for line in text.split("\n"):
        yield from ((begin + start, begin + end) for start, end in sentences(line, language))
        begin += len(line) + 1


def _undivided(spans: Iterable[Span], content: MarkedText) -> Iterator[Span]:
    """Sentences, of which those in a line are joined that share a literal, a link or a tag, or have no space
    between them in a script with spaces."""
    whole = sorted(_indivisible(content.marks))
    firsts = [first for first, _ in whole]
    beyonds = list(itertools.accumulate((beyond for _, beyond in whole), max))
    begin = end = 0
    for start, last in spans:
        is_first = last and not end
        before = bisect.bisect_left(firsts, start)
        is_shared = before > 0 and end < beyonds[before - 1]
        is_glued = start == end and not ends_unspaced(content.text[:start])
        if not is_first and ("\n" in content.text[end:start] or not (is_shared or is_glued)):
            yield begin, end
            begin = start
        if is_first:
            begin = start
        end = last
    if end:
        yield begin, end


def _indivisible(marks: Iterable[Mark]) -> list[Span]:
    """The marks that are not divided: links, tags, what is copied, and what is around something that has no
    characters."""
    spans, around = list[Span](), list[Mark]()
    for mark in marks:
        while around and around[-1].depth >= mark.depth:
            around.pop()
        if mark.start == mark.end:
            spans += [(outer.start, outer.end) for outer in around]
        elif mark.literal is not None or mark.opening.startswith(("[", "<")):
            spans.append((mark.start, mark.end))
        around.append(mark)
    return spans


def _has_words(content: MarkedText) -> bool:
    """Whether there is something to translate: a letter that is not copied."""
    return any(map(str.isalpha, content.unmarked))


def with_code(sentences: Sequence[str]) -> list[str]:
    """The sentences of a text, each after the code of a language that is before the first, if one is."""
    code = CODE.match(sentences[0]) if sentences else None
    return [*sentences[:1], *(f"{code[0]} {sentence}" if code else sentence for sentence in sentences[1:])]


def can_translate(task: Any) -> bool:
    """Whether a task translates one text to one text."""
    return isinstance(task, Translation) and len(task.data.input_names) == 1


def check_translates(task: Any) -> None:
    """Raises UserError if a task does not translate one text to one text."""
    if not can_translate(task):
        raise UserError("a document is translated by a model that translates sentences; this one does not")


def check_text(text: object) -> None:
    """Raises UserError if a document is no text that could be stored."""
    if not isinstance(text, str):
        raise UserError(f"the document must be text, not {type(text).__name__}")
    to_utf8(text)


def _written(passage: Passage, contents: Sequence[tuple[_Piece, MarkedText]]) -> str | None:
    """What the document has in place of a passage, given its sentences and their translations. None: that
    cannot be written there."""
    if all(translation == piece.content for piece, translation in contents):
        return passage.write(passage.content)
    parts = ((translation, _gap(piece, translation)) for piece, translation in contents)
    return passage.write(joined(parts))


def _gap(piece: _Piece, translation: MarkedText) -> str:
    """What is between a sentence and the next one. Where the source has no space, the translation has one,
    unless it is in a script without."""
    is_closed = translation == piece.content or piece.is_last or ends_unspaced(translation.text)
    return piece.gap if piece.gap or is_closed else " "
