"""Re-ranks translations by the scores of other models."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from transformer.decoding.search import length_penalty
from transformer.text import has_text
from transformer.translator.ensemble import shares_of
from transformer.translator.translator import Hypothesis, Translator

TOGETHER = 256  # sentences scored at a time


def rescored(
    sources: Iterable[str],
    found: Iterable[list[Hypothesis]],
    judges: Translator | Sequence[Translator],
    window: int = TOGETHER,
    first_line: int = 1,
    weights: Sequence[float] = (),
) -> Iterator[list[Hypothesis]]:
    """Re-ranks every sentence's hypotheses by the scores of judges, and replaces their scores by these. Their
    log-probabilities stay those of the model that found them.

    A score is log P under a judge, in nats, divided by the judge's own length penalty; of several judges, the
    mean by their weights. With a parallel decoder this is noisy parallel decoding (Gu et al. 2018, section
    4.2).

    Args:
      sources: the sentences.
      found: their hypotheses, sentence by sentence.
      judges: the rerankers, models of any system with tokenizers of their own.
      window: sentences scored at a time.
      first_line: the number of the first sentence, for warnings.
      weights: one for each judge. Empty: equal ones.

    Raises:
      UserError: the weights do not fit the judges.
    """
    several_judges = [judges] if isinstance(judges, Translator) else list(judges)
    shares = shares_of(weights, len(several_judges), "weights")
    pairs = enumerate(zip(sources, found, strict=True), start=first_line)
    while chunk := list(itertools.islice(pairs, window)):
        asked = [
            (line, source, hypothesis)
            for line, (source, several) in chunk
            if has_text(source)
            for hypothesis in several
        ]
        each = np.array([judged(judge, asked) for judge in several_judges])  # [judges, hypotheses]
        found_scores = iter((shares @ each).tolist())
        for _, (source, several) in chunk:
            if not has_text(source):  # an empty line
                yield several
                continue
            new = [dataclasses.replace(hypothesis, score=next(found_scores)) for hypothesis in several]
            yield sorted(new, key=lambda hypothesis: -hypothesis.score)


def judged(
    judge: Translator, asked: Sequence[tuple[int, str, Hypothesis]]
) -> Float[np.ndarray, " hypotheses"]:
    """The scores of a judge.

    Args:
      judge: the model.
      asked: line number, source and hypothesis.
    """
    lines, sources = [line for line, _, _ in asked], [source for _, source, _ in asked]
    texts = [judge.as_trained(hypothesis) for *_, hypothesis in asked]
    log_p, penalty = judge.score(sources, texts, lines=lines), length_penalty(judge.config.decoding)
    lengths = [len(judge.tokenizers[1].encode(text)) + 1 for text in texts]
    divisors = np.array([float(penalty(length)) for length in lengths])  # type: ignore[arg-type]
    scores: np.ndarray = log_p / divisors
    return scores
