"""Re-ranks translations by the scores of other models."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from transformer.decoding.searches.search import length_penalty
from transformer.runtime.text import has_text
from transformer.translator.ensemble import shares_of
from transformer.translator.translator import Hypothesis, Translator

TOGETHER = 256  # sentences scored at a time


def rescored(
    sources: Iterable[str],
    hypotheses: Iterable[list[Hypothesis]],
    rerankers: Translator | Sequence[Translator],
    window: int = TOGETHER,
    first_line: int = 1,
    weights: Sequence[float] = (),
) -> Iterator[list[Hypothesis]]:
    """Re-ranks every sentence's hypotheses by the scores of rerankers, which replace theirs. Their
    log-probabilities stay those of the model that generated them.

    A score is log P under a reranker, in nats, divided by the reranker's own length penalty; of several, the
    mean by their weights. With a parallel decoder this is noisy parallel decoding (Gu et al. 2018, section
    4.2).

    Args:
      sources: the sentences.
      hypotheses: theirs, sentence by sentence.
      rerankers: models of any system with tokenizers of their own.
      window: sentences scored at a time.
      first_line: the number of the first sentence, for warnings.
      weights: one for each reranker. Empty: equal ones.

    Raises:
      UserError: the weights do not fit the rerankers.
    """
    models = [rerankers] if isinstance(rerankers, Translator) else list(rerankers)
    shares = shares_of(weights, len(models), "weights")
    pairs = enumerate(zip(sources, hypotheses, strict=True), start=first_line)
    while chunk := list(itertools.islice(pairs, window)):
        candidates = [
            (line, source, hypothesis)
            for line, (source, several) in chunk
            if has_text(source)
            for hypothesis in several
        ]
        scores = np.array([reranker_scores(model, candidates) for model in models])  # [rerankers, hypotheses]
        new_scores = iter((shares @ scores).tolist())
        for _, (source, several) in chunk:
            if not has_text(source):  # an empty line
                yield several
                continue
            new = [dataclasses.replace(hypothesis, score=next(new_scores)) for hypothesis in several]
            yield sorted(new, key=lambda hypothesis: -hypothesis.score)


def reranker_scores(
    reranker: Translator, candidates: Sequence[tuple[int, str, Hypothesis]]
) -> Float[np.ndarray, " hypotheses"]:
    """The scores of a reranker.

    Args:
      reranker: the model.
      candidates: line number, source and hypothesis.
    """
    lines = [line for line, _, _ in candidates]
    sources = [source for _, source, _ in candidates]
    texts = [reranker.as_trained(hypothesis) for *_, hypothesis in candidates]
    log_p = reranker.score(sources, texts, lines=lines)
    penalty = length_penalty(reranker.config.decoding)
    lengths = [len(reranker.tokenizers[1].encode(text)) + 1 for text in texts]
    divisors = np.array([float(penalty(length)) for length in lengths])  # type: ignore[arg-type]
    scores: np.ndarray = log_p / divisors
    return scores
