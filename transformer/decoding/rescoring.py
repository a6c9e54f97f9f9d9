"""Choosing among translations by what another model thinks of them."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from transformer.decoding.search import length_penalty
from transformer.decoding.translator import WINDOW, Hypothesis, Translator


def rescored(
    sources: Iterable[str], found: Iterable[list[Hypothesis]], judge: Translator, window: int = WINDOW
) -> Iterator[list[Hypothesis]]:
    """Every sentence's hypotheses in the order of the judge's scores, which they then carry.

    A score is log P under the judge, in nats, divided by the judge's own length penalty: noisy
    parallel decoding's choice (Gu et al. 2018, section 4.2), or reranking in general.

    Args:
      sources: the sentences.
      found: their hypotheses, sentence by sentence.
      judge: a model of any system, with a tokenizer of its own.
      window: sentences scored at a time.
    """
    pairs = zip(sources, found, strict=True)
    penalty = length_penalty(judge.config.decoding)
    while chunk := list(itertools.islice(pairs, window)):
        asked = [
            (source, judge.as_trained(hypothesis)) for source, several in chunk for hypothesis in several
        ]
        log_p = iter(judge.score([source for source, _ in asked], [text for _, text in asked]))
        for _, several in chunk:
            judged = []
            for hypothesis in several:
                length = len(judge.tokenizers[1].encode(judge.as_trained(hypothesis))) + 1
                score = float(next(log_p)) / float(penalty(length))  # type: ignore[arg-type]
                judged.append(dataclasses.replace(hypothesis, score=score))
            yield sorted(judged, key=lambda hypothesis: -hypothesis.score)
