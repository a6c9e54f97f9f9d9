"""Evaluation in training: loss and BLEU on the validation set, all scores on the test set."""

import itertools
import logging
import math
import time
from typing import Any

import jax
import numpy as np

from transformer.config import Config
from transformer.data.batching import fixed_batches
from transformer.data.pipeline import TrainingData
from transformer.evaluation.scores import Score, bleu, chrf, exact_match
from transformer.runtime.hosts import by_turns, is_main_process
from transformer.runtime.sharding import Layout
from transformer.systems.registry import find_system
from transformer.trainer.signals import StopRequest, asked
from transformer.training.objective import Objective
from transformer.training.step import EvalState, make_eval_step
from transformer.translator.translator import Translator

log = logging.getLogger("transformer")

Sample = tuple[str, str, str]
"""Source, reference, translation."""
BATCHES = 4  # translated between two checks for a stop request


class Evaluator:
    """Evaluates variables of the config's model."""

    def __init__(self, config: Config, objective: Objective, data: TrainingData, layout: Layout) -> None:
        self.config, self.data, self.layout = config, data, layout
        self._warned: set[str] = set()
        self._step = layout.spread(make_eval_step(find_system(config.system).model(config.model), objective))

    def validate(self, variables: Any, request: StopRequest) -> tuple[dict[str, Any], list[Sample]] | None:
        """Loss on the whole validation set, BLEU on its first sentences, and sample translations. None if a
        stop was requested before the end."""
        start, t = time.monotonic(), self.config.training
        pairs = self.data.corpus.splits["validation"]
        nll, words = 0.0, 0.0
        fill = dict.fromkeys(("source", "target"), self.config.model.special.pad)
        fixed = fixed_batches(pairs, self.data.tokenizers, self.config.data)
        for batch in self.layout.batches(map(self._own_rows, fixed), fill=fill):
            if asked(request):
                return None
            _, sums = self._step(EvalState(variables), batch)
            nll, words = (
                float(x) + float(y) for x, y in zip((nll, words), jax.device_get(sums)["nll"], strict=True)
            )
        some = pairs.__getitems__(range(min(len(pairs), t.evaluate_sentences)))
        sources, references, translations = self._translated(variables, "validation", some, request)
        if asked(request):
            return None
        score = bleu(translations, references, t.bleu_tokenize)
        shown = _of_various_lengths(sources, t.samples)
        record = {
            "nll": nll / words,
            "perplexity": math.exp(min(nll / words, 700)),
            "bleu": score.value,
            "signature": score.signature,
            "seconds": time.monotonic() - start,
            "samples": [(sources[i], references[i], translations[i]) for i in shown],
        }
        return record, [(sources[i], references[i], translations[i]) for i in shown]

    def _own_rows(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """This process's rows of a batch that all processes have."""
        share = -(-len(batch["source"]) // jax.process_count())
        shape = (share, batch["source"].shape[1])
        mine = {name: np.full(shape, self.config.model.special.pad, np.int32) for name in batch}
        for name, rows in batch.items():
            own = rows[jax.process_index() * share :][:share]
            mine[name][: len(own)] = own
        return mine

    def test(self, variables: Any) -> tuple[str, list[str], dict[str, Score]]:
        """The name of the test split (without one, the validation split), its sources and its scores."""
        splits = self.data.corpus.splits
        split = "test" if "test" in splits else "validation"
        sources, references, translations = self._translated(
            variables, split, list(splits[split]), StopRequest()
        )
        scores = {
            "bleu": bleu(translations, references, self.config.training.bleu_tokenize),
            "chrf": chrf(translations, references),
            "exact": exact_match(translations, references),
        }
        return split, sources, scores

    def _translated(
        self, variables: Any, split: str, pairs: list[tuple[str, str]], request: StopRequest
    ) -> tuple[list[str], list[str], list[str]]:
        """Sources, references and translations. Some translations are missing if a stop was requested."""
        sources = [source for source, _ in pairs]
        references = [self.data.tokenizers[1].plain(target) for _, target in pairs]
        translator = Translator(self.config, variables, self.data.tokenizers, warns=False)
        self._warn_of_truncated(split, sources)

        def translate(mine: list[str]) -> list[str]:
            found = translator.stream(mine, window=BATCHES * self.config.decoding.rows)
            return [best[0].text for best in itertools.takewhile(lambda _: not request.signal, found)]

        return sources, references, by_turns(sources, translate)

    def _warn_of_truncated(self, split: str, sources: list[str]) -> None:
        """Logs once how many sources of a split are longer than the search reads."""
        longest, tokenizer = self.config.decoding.buckets[-1], self.data.tokenizers[0]
        truncated = sum(len(tokenizer.encode(source)) >= longest for source in sources)
        if truncated and split not in self._warned and is_main_process():
            log.warning(
                "%d of %d sources of the %s text are truncated to %d subwords: see --decoding.buckets",
                *(truncated, len(sources), split, longest - 1),
            )
        self._warned.add(split)


def _of_various_lengths(sentences: list[str], count: int) -> list[int]:
    """Indices of `count` sentences, from the median length to the 95th percentile."""
    order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]))
    shares = [0.5 + 0.45 * rank / max(count - 1, 1) for rank in range(count)]
    return [order[int(share * len(order))] for share in shares]
