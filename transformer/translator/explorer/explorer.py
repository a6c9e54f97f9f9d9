"""A self-contained page that shows the attention weights of translations and the beam search behind them."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transformer.config import BeamConfig, Option
from transformer.runs.report.trees import drawing
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json
from transformer.tasks.requests import make_requests
from transformer.translator.decoder import Decoder
from transformer.translator.explorer.attention import Attention, attention_of, check_inspectable
from transformer.translator.explorer.page_files import PageFiles, page_of
from transformer.translator.explorer.tree import SearchTree, search_tree
from transformer.translator.search_outputs import available
from transformer.translator.translator import Translator

SENTENCES = 5  # maximum of `decode.py --explore`, so that the page opens quickly
FILES = PageFiles(
    "Attention explorer",
    "explorer.html",
    ("pieces.js", "words.js", "maps.js", "tree.js", "parse.js", "marked.js", "explorer.js"),
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
    **options: Option,
) -> Explorer:
    """A page with the translations of some sentences: attention of every kind, layer and head, and for beam
    search the search tree.

    Args:
      sources: non-empty sentences.
      n_best: number of translations of each sentence. None: all that the search returns.
      prefixes: as in `Translator.search`.
      terms: as in `Translator.search`.
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
    beams = isinstance(settings, BeamConfig) and settings.groups == 1 and not settings.coverage_penalty
    sentences: list[Json] = []
    for request, hypotheses in zip(make_requests(sources, prefixes, terms), results, strict=True):
        source = translator.task.read(request.source, settings.buckets[-1])
        attentions = attention_of(translator, source, hypotheses, **options)
        sentences.append(
            {
                "text": source,
                "cut": len(translator.tokenizers[0].encode(source)) - len(attentions[0].source) + 1,
                "source": attentions[0].source,
                "encoder": whole(attentions[0].encoder),
                "hypotheses": [
                    {
                        "text": hypothesis.text,
                        "score": round(hypothesis.score, 4),
                        "logP": round(hypothesis.log_probability, 4),
                        "confidences": hypothesis.to_json().get("word_confidences"),
                        "parse": parse_of(translator, hypothesis.text),
                        **_decoder(attention),
                    }
                    for hypothesis, attention in zip(hypotheses, attentions, strict=True)
                ],
                "terms": list(request.terms),
                "tree": None,
            }
        )
        if beams:
            tree = search_tree(translator, source, prefix=request.prefix, terms=request.terms, **options)
            sentences[-1]["tree"] = levels_of(tree)
    data = {"unit": UNIT, "origin": origin_of(translator), "sentences": sentences}
    return Explorer(page_of(data, FILES), len(results), sum(map(len, results)))


def origin_of(translator: Decoder[Any]) -> str:
    """Run, checkpoint and languages."""
    languages = translator.task.describe()
    return ", ".join(filter(None, (translator.origin, languages)))


def _decoder(attention: Attention) -> Json:
    weights = {"decoder": whole(attention.decoder), "cross": whole(attention.cross)}
    return {"target": attention.target, "given": attention.given, **weights}


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


def levels_of(tree: SearchTree) -> list[Json]:
    """The candidates of a search, as the page reads them."""
    return [
        {
            "step": candidate.step,
            "rank": candidate.rank,
            "parent": candidate.parent,
            "token": candidate.token,
            "logP": round(candidate.log_p, 4),
            "gained": round(candidate.gained, 4),
            "fate": candidate.fate,
            "score": None if candidate.score is None else round(candidate.score, 4),
            "place": candidate.place,
            "why": candidate.why,
            "completes": list(candidate.completes),
        }
        for candidate in tree.candidates
    ]
