"""Re-ranks translations by the scores of another model."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from transformer.decoding.search import length_penalty
from transformer.translator.translator import Hypothesis, Translator

TOGETHER = 256  # sentences scored at a time


def rescored(
    sources: Iterable[str],
    found: Iterable[list[Hypothesis]],
    judge: Translator,
    window: int = TOGETHER,
    first_line: int = 1,
) -> Iterator[list[Hypothesis]]:
    """Re-ranks every sentence's hypotheses by the judge's scores, and replaces their scores by these.

    A score is log P under the judge, in nats, divided by the judge's own length penalty. With a parallel
    decoder this is noisy parallel decoding (Gu et al. 2018, section 4.2).

    Args:
      sources: the sentences.
      found: their hypotheses, sentence by sentence.
      judge: the reranker, a model of any system with its own tokenizer.
      window: sentences scored at a time.
      first_line: the number of the first sentence, for warnings.
    """
    pairs = enumerate(zip(sources, found, strict=True), start=first_line)
    penalty = length_penalty(judge.config.decoding)
    while chunk := list(itertools.islice(pairs, window)):
        asked = [
            (line, source, judge.as_trained(hypothesis))
            for line, (source, several) in chunk
            if source.strip()
            for hypothesis in several
        ]
        lines, asked_sources, texts = zip(*asked, strict=True) if asked else ((), (), ())
        log_p = iter(judge.score(asked_sources, texts, lines=lines))
        for _, (source, several) in chunk:
            if not source.strip():  # an empty line
                yield several
                continue
            judged = []
            for hypothesis in several:
                length = len(judge.tokenizers[1].encode(judge.as_trained(hypothesis))) + 1
                total = float(next(log_p))
                score = total / float(penalty(length))  # type: ignore[arg-type]
                judged.append(dataclasses.replace(hypothesis, score=score, log_probability=total))
            yield sorted(judged, key=lambda hypothesis: -hypothesis.score)
