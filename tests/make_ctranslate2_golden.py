"""Writes tests/data/ctranslate2/: small random models in CTranslate2's format, and what it does with them.

`python tests/make_ctranslate2_golden.py`, with ctranslate2 (4.8.5 made what is there).
"""

import json
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec, common_spec

DATA = Path(__file__).parent / "data" / "ctranslate2"
D_MODEL, D_FF = 16, 24
SPECIAL = ["<blank>", "<s>", "</s>"]
WORDS = {"source": [*SPECIAL, *"abcdefgh", "<unk>"], "target": [*SPECIAL, *"ABCDEFGHIJ"]}
SHARED = ["<unk>", *"abcd", "</s>", *"efgh", "<s>"]  # no padding, and <unk> is not the last word
SOURCES = [["a", "b", "c"], ["h"], ["g", "f", "e", "d", "c", "b"], ["e", "other", "e"]]


class Random:
    """Fills a model with random numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def values(self, *shape: int) -> np.ndarray:
        return self.rng.normal(0, 0.5, shape).astype(np.float32)

    def linear(self, layer, outputs: int, inputs: int) -> None:
        layer.weight, layer.bias = self.values(outputs, inputs), self.values(outputs)

    def norm(self, layer) -> None:
        layer.gamma, layer.beta = 1 + 0.3 * self.values(D_MODEL), 0.3 * self.values(D_MODEL)

    def attention(self, attention, *outputs: int) -> None:
        self.norm(attention.layer_norm)
        for layer, count in zip(attention.linear, outputs, strict=True):
            self.linear(layer, count * D_MODEL, D_MODEL)

    def stack(self, stack) -> None:
        for name in ("layer_norm", "layernorm_embedding"):
            if hasattr(stack, name):
                self.norm(getattr(stack, name))
        for layer in stack.layer:
            self.attention(layer.self_attention, 3, 1)
            if hasattr(layer, "attention"):
                self.attention(layer.attention, 1, 2, 1)
            self.norm(layer.ffn.layer_norm)
            self.linear(layer.ffn.linear_0, D_FF, D_MODEL)
            self.linear(layer.ffn.linear_1, D_MODEL, D_FF)


def bias(words: list[str], random: Random) -> np.ndarray:
    """Ends are likely, and words that are never generated here are unlikely."""
    values = 3 * random.values(len(words))
    values[words.index("</s>")] += 7
    for word in ("<blank>", "<s>", "<unk>"):
        if word in words:
            values[words.index(word)] = -30
    return values


def plain() -> TransformerSpec:
    """As OpenNMT's: pre-norm, sinusoids that are computed, three matrices of words."""
    random, spec = Random(0), TransformerSpec.from_config((2, 1), 2)
    source, target = WORDS["source"], [*WORDS["target"], "<unk>"]
    for stack in (spec.encoder, spec.decoder):
        random.stack(stack)
    spec.encoder.embeddings[0].weight = random.values(len(source), D_MODEL)
    spec.decoder.embeddings.weight = random.values(len(target), D_MODEL)
    spec.decoder.projection.weight = random.values(len(target), D_MODEL)
    spec.decoder.projection.bias = bias(target, random)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    return spec


def post() -> TransformerSpec:
    """Post-norm, a norm of embeddings, stored positions, one matrix of words, a first input of zeros."""
    random = Random(1)
    spec = TransformerSpec.from_config(
        2, 4, pre_norm=False, no_final_norm=True, layernorm_embedding=True,
        activation=common_spec.Activation.GELU,
    )  # fmt: skip
    table, positions = random.values(len(SHARED), D_MODEL), random.values(40, D_MODEL)
    for stack in (spec.encoder, spec.decoder):
        random.stack(stack)
        stack.position_encodings.encodings = positions
        stack.scale_embeddings = False
    spec.decoder.start_from_zero_embedding = True
    spec.encoder.embeddings[0].weight = table
    spec.decoder.embeddings.weight = spec.decoder.projection.weight = table
    spec.decoder.projection.bias = bias(SHARED, random)
    spec.register_source_vocabulary(SHARED)
    spec.register_target_vocabulary(SHARED)
    spec.config.add_source_eos = True
    return spec


def written(name: str, spec: TransformerSpec) -> None:
    folder = DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    options = {"beam_size": 4, "num_hypotheses": 4, "return_scores": True, "max_decoding_length": 20}
    results = translator.translate_batch(SOURCES, **options)
    golden = [
        {"source": source, "hypotheses": result.hypotheses, "scores": result.scores}
        for source, result in zip(SOURCES, results, strict=True)
    ]
    targets = [result.hypotheses[-1] for result in results]
    scores = translator.score_batch(SOURCES, targets)
    for item, target, scored in zip(golden, targets, scores, strict=True):
        item |= {"target": target, "log_probabilities": scored.log_probs}
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    written("plain", plain())
    written("post", post())
