"""Self-contained pages: the attention of translations with the beam search behind them, what a model sees in
pictures, and which parts of a sound belong to which token."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transformer.config.decoding import BeamConfig, DecodingConfig
from transformer.config.ranges import Option
from transformer.data.signals.audio import HOP, RATE
from transformer.data.sources.pictures import AnnotatedPicture
from transformer.data.sources.recordings import Recording
from transformer.data.tokenizers.tokenizer import Tokenizer
from transformer.explorer.attention import Attention, attention_of, check_inspectable, forced_attention
from transformer.explorer.page_files import PageFiles, page_of
from transformer.explorer.tree import search_tree
from transformer.runs.exhibits import base64_of, png_of, wav_of
from transformer.runs.report.exhibits import drawing
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.tasks.media.pictures import Located, Pictures
from transformer.tasks.media.recordings import Recordings, resynthesised, spectrogram
from transformer.tasks.media.timing import spans
from transformer.tasks.texts.requests import make_requests
from transformer.translator.decoder import Decoder
from transformer.translator.search_outputs import Extras, available
from transformer.translator.translator import Translator

SENTENCES = 5  # of `decode.py --explore`, so that the page opens quickly
MOST_SENTENCES = 50  # of --explore-lines
FILES = PageFiles(
    "Attention explorer",
    "explorer.html",
    ("pieces.js", "maps.js", "tree.js", "parse.js", "explorer.js"),
    shared=("elements.js", "tokens.js", "words.js", "marked.js", "svg.js", "address.js"),
)
UNIT = 10_000  # weights are stored as integers, in ten-thousandths, which halves the size


@dataclass(frozen=True)
class Explorer:
    """An HTML page, which notebooks and browsers display. It loads nothing from the network."""

    html: str = field(repr=False)
    sentences: int
    hypotheses: int

    def _repr_html_(self) -> str:
        # the frame separates the styles of the page from those of the notebook
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" title="Attention explorer" '
            'style="width: 100%; height: 56rem; border: 0"></iframe>'
        )


def explore(
    translator: Translator,
    sources: Sequence[str],
    *,
    n_best: int | None = None,
    prefixes: Sequence[str] = (),
    terms: Sequence[Sequence[str]] = (),
    lines: Sequence[int] = (),
    **options: Option,
) -> Explorer:
    """A page with the translations of some sentences: attention of every kind, layer and head, and for beam
    search the search tree.

    Args:
      sources: non-empty sentences.
      n_best: number of translations of each sentence. None: all that the search returns.
      prefixes: as in `Translator.search`.
      terms: as in `Translator.search`.
      lines: the number of each sentence, which the page shows. None given: from 1.
      options: any field of `DecodingConfig`.

    Raises:
      UserError: there is no sentence, a sentence is empty, the model is not an autoregressive Transformer, or
        an option has an invalid value.
    """
    check_inspectable(translator)
    if isinstance(sources, str) or not sources:
        raise UserError("nothing to explore: give a list of sentences")
    for source in sources:
        check_inspectable(translator, source)
    results = translator.search(
        sources,
        n_best=n_best,
        prefixes=prefixes,
        terms=terms,
        word_confidences=available(translator).word_confidences,
        **options,
    )
    settings = translator.settings(n_best, options)
    sentences: list[Json] = []
    requests = make_requests(sources, prefixes, terms)
    for line, request, hypotheses in zip(lines or range(1, len(results) + 1), requests, results, strict=True):
        source = translator.task.read(request.source, settings.buckets[-1])
        attentions = attention_of(translator, source, hypotheses, **options)
        ids = translator.tokenizers[0].encode(source)
        count = len(attentions[0].source) - 1  # without <eos>
        shown = outputs_of(hypotheses, attentions)
        for output, hypothesis, attention in zip(shown, hypotheses, attentions, strict=True):
            output["confidences"] = hypothesis.to_json().get("word_confidences")
            output["parse"] = parse_of(translator, hypothesis.text)
            output["cross"] = whole(attention.cross)
        asked: Json = {"prefix": request.prefix, "terms": request.terms}
        sentences.append(
            {
                "line": line,
                "text": source,
                "cut": len(ids) - count,
                "rest": _unread(translator.tokenizers[0], source, ids[:count]),
                "source": attentions[0].source,
                "encoder": whole(attentions[0].encoder),
                "hypotheses": shown,
                "terms": list(request.terms),
                "tree": tree_of(translator, source, settings, **asked, **options),
            }
        )
    data = {"unit": UNIT, "origin": origin_of(translator), "sentences": sentences}
    return Explorer(page_of(data, FILES), len(results), sum(map(len, results)))


def outputs_of(outputs: Sequence[Any], attentions: Sequence[Attention]) -> list[Json]:
    """Outputs with the attention of the decoder."""
    return [
        {
            "text": output.text,
            "score": round(output.score, 4),
            "logP": round(output.log_probability, 4),
            "target": attention.target,
            "given": attention.given,
            "decoder": whole(attention.decoder),
        }
        for output, attention in zip(outputs, attentions, strict=True)
    ]


def tree_of(
    decoder: Decoder[Any], source: str, settings: DecodingConfig, **options: Option
) -> list[Json] | None:
    """The candidates of a search, as the page reads them; None if it has no tree. Options are those of
    `search_tree`."""
    if not isinstance(settings, BeamConfig) or settings.groups > 1 or settings.coverage_penalty:
        return None
    names = {"log_p": "logP"}
    return [
        {
            names.get(name, name): round(value, 4) if isinstance(value, float) else value
            for name, value in vars(item).items()
        }
        for item in search_tree(decoder, source, **options).candidates
    ]


def _unread(tokenizer: Tokenizer, text: str, ids: list[int]) -> str:
    """The end of a text that a model does not read, behind its first tokens; empty where they are no part of
    the text as it is written."""
    beginning = tokenizer.decode(ids)
    return text[len(beginning) :] if text.startswith(beginning) else ""


def origin_of(translator: Decoder[Any]) -> str:
    """Run, checkpoint and languages."""
    languages = translator.task.describe()
    return ", ".join(filter(None, (translator.origin, languages)))


def parse_of(translator: Translator, text: str) -> Json | None:
    """The tree that an output spells, as the page draws it; None: it is none."""
    tree = translator.task.tree_of(text)
    if tree is None:
        return None
    picture = drawing(tree)
    nodes = [
        {"text": node.text, "x": round(node.x, 1), "y": node.y, "isWord": node.bracket < 0}
        for node in picture.nodes
    ]
    lines = [[round(end, 1) for end in ends] for _, *ends in picture.lines()]
    return {"width": round(picture.width), "height": round(picture.height), "nodes": nodes, "lines": lines}


def whole(weights: np.ndarray) -> list[Any]:
    """Weights as nested lists of integers, in units of 1 / UNIT."""
    units: list[Any] = np.rint(weights * UNIT).astype(int).tolist()
    return units


# A self-contained page that shows what a model sees in pictures: the words of a caption with the patches
# that they attend to, or objects with their boxes.


PICTURE_FILES = PageFiles(
    "Picture explorer", "seen.html", ("seen.js",), ("seen.css",), shared=("elements.js", "address.js")
)


def explore_pictures(
    decoder: Decoder[Pictures],
    records: Sequence[AnnotatedPicture],
    *,
    n_best: int | None = None,
    lines: Sequence[int] = (),
    **options: Option,
) -> Explorer:
    """A page with what is seen in pictures, and where.

    Args:
      decoder: a `Captioner` or a `Detector`.
      records: pictures, such as `decoder.task.seen("a.png")`.
      n_best: outputs of each. None: all that the search returns.
      lines: the number of each, which the page shows. None given: from 1.
      options: any field of its `DecodingConfig`.

    Raises:
      UserError: there is no picture, or an option has an invalid value.
    """
    if not records:
        raise UserError("nothing to explore: give a list of pictures")
    task, settings = decoder.task, decoder.settings(n_best, options)
    extras = Extras(alignments=decoder.system.alignment is not None)
    results = list(decoder.outputs(enumerate(records, 1), settings, n_best, extras))
    lines = lines or range(1, len(results) + 1)
    data = {
        "unit": UNIT,
        "origin": decoder.origin,
        "threshold": task.threshold(settings),
        "records": [
            {
                "line": line,
                "title": record.name,
                "png": base64_of(png_of(record.pixels / 255)),
                "width": record.width,
                "height": record.height,
                "reference": task.shown(record, task.scored(outputs[0]))[1],
                "outputs": [
                    {"text": task.line(output), "parts": list(map(_part, task.located(record, output)))}
                    for output in outputs
                ],
            }
            for line, record, outputs in zip(lines, records, results, strict=True)
        ],
    }
    return Explorer(page_of(data, PICTURE_FILES), len(results), sum(map(len, results)))


def _part(located: Located) -> Json:
    fields: dict[str, Any] = {"text": located.text, "patches": whole(np.array(located.patches))}
    if located.box is not None:
        fields["box"] = [round(side, 4) for side in located.box]
    if located.probability is not None:
        fields["probability"] = round(located.probability, 4)
    return fields


# A self-contained page that shows which parts of a sound belong to which token: of recordings that are
# heard and of texts that are spoken.


SOUND_FILES = PageFiles(
    "Sound explorer",
    "sounds.html",
    ("sounds.js",),
    ("sounds.css",),
    shared=("elements.js", "address.js"),
    sources="media-src data:;",
)


def explore_sounds(
    decoder: Decoder[Recordings],
    records: Sequence[Recording],
    *,
    n_best: int | None = None,
    lines: Sequence[int] = (),
    **options: Option,
) -> Explorer:
    """A page with what is heard in recordings, or how texts are spoken: the attention between tokens and
    sound, the spectrogram and the sound.

    Args:
      decoder: a `Transcriber` or a `Synthesizer`.
      records: recordings to hear, or texts to speak, as `Recording`s.
      n_best: outputs of each. None: all that the search returns.
      lines: the number of each, which the page shows. None given: from 1.
      options: any field of its `DecodingConfig`.

    Raises:
      UserError: there is no record, the system has no alignments, or an option has an invalid value.
    """
    if not records:
        raise UserError("nothing to explore: give a list of recordings or texts")
    settings = decoder.settings(n_best, options)
    records = [decoder.task.as_read(record, settings.buckets[-1]) for record in records]
    results = decoder.decode(records, n_best=n_best, **options)
    lines = lines or range(1, len(results) + 1)
    data = {
        "unit": UNIT,
        "origin": decoder.origin,
        "stride": decoder.task.stride,
        "records": [
            {
                "line": line,
                "title": str(record) if record.name else record.text,
                "outputs": [_output(decoder, record, output) for output in outputs],
            }
            for line, record, outputs in zip(lines, records, results, strict=True)
        ],
    }
    return Explorer(page_of(data, SOUND_FILES), len(results), sum(map(len, results)))


def _output(decoder: Decoder[Recordings], record: Recording, output: Any) -> Json:
    """An output with its sound, and the attention between each token and each position of the sound."""
    task = decoder.task
    recording, ids = task.paired(record, output)
    sides = {task.sound: task.frames(recording), task.text: ids}
    alignment = forced_attention(decoder, sides) if len(recording.features) else np.zeros((0, len(ids)))
    if alignment is None:
        raise UserError(f"system {decoder.config.system} has no alignments to explore")
    attention = task.unpadded(recording, alignment if task.sound == "source" else alignment.T)
    tokens, positions = attention.shape
    return {
        "text": task.line(output),
        "tokens": task.tokenizer.pieces(ids),
        "attention": whole(attention),
        "spans": spans(attention) if tokens <= positions else [],
        "seconds": len(recording.features) * HOP / RATE,
        "wav": base64_of(wav_of(resynthesised(recording).wave)),
        "png": base64_of(png_of(spectrogram("", recording.features).values)) if positions else "",
    }
