"""Presets of the Transformer: the models of the paper (Table 3), the recipes, and what others start from."""

from dataclasses import replace
from typing import Any

from transformer.config import (
    BeamConfig,
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
    TransformerConfig,
    changed_search,
    text_data,
)
from transformer.systems.registry import Options, Preset
from transformer.systems.transformer.text_presets import TEXT_PRESETS
from transformer.systems.transformer.variants import FINE_TUNING, VARIANTS

BASELINES, COPYING = "baselines", "copying and spelling"
_STARTED, _MULTI30K, _PAPER = "getting started", "Multi30k", "the paper, WMT 2014"
"""Groups of presets."""


def quickstart() -> Config:
    """A small model for the built-in corpus; it trains in minutes on two CPU cores."""
    return Config(
        model=TransformerConfig(num_layers=2, d_model=128, d_ff=256, num_heads=4, dropout=0.0),
        data=DataConfig(
            built_in_size=110_000,
            vocab_size=1600,
            max_length=40,
            batch_tokens=1280,
            batching="packed",  # one shape to compile, and little padding
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=200),
        training=TrainingConfig(
            steps=1260,
            label_smoothing=0.0,
            evaluate_every=315,
            evaluate_sentences=128,
            log_every=25,
            dropout_by="auto",
        ),
        decoding=BeamConfig(buckets=(48,), extra_length=10, rows=64),
    )


def tiny() -> Config:
    """Multi30k en-de, text already split into subwords: 4+4 layers, d_model 128 (docs/recipes/tiny.md)."""
    return Config(
        model=TransformerConfig(num_layers=4, d_model=128, d_ff=256, num_heads=4, dropout=0.2),
        data=DataConfig(
            tokenizer="whitespace",
            max_length=64,
            buckets=(10, 12, 14, 16, 18, 21, 25, 32, 44, 64),
            batch_tokens=2048,
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=1.5e-3, warmup_steps=1000, epsilon=1e-8),
        training=TrainingConfig(
            steps=12_000, evaluate_every=400, evaluate_sentences=500, keep_last=10, bleu_tokenize="none"
        ),
        decoding=BeamConfig(beam_size=5, length_penalty=1.0, buckets=(10, 14, 18, 24, 32, 48, 64)),
    )


def _multi30k() -> Config:
    """Multi30k, raw cased text: `tiny` with a BPE vocabulary (docs/recipes/multi30k.md)."""
    base = tiny()
    return replace(
        base,
        data=replace(text_data(base), tokenizer="bpe", vocab_size=8000),
        training=replace(base.training, steps=9_000, bleu_tokenize="13a"),
    )


def _student() -> Config:
    """A student for CPUs, which learns what a `multi30k` teacher translates: a deep encoder, which reads a
    sentence once, a decoder of one layer (Kasai et al. 2021), and greedy search (docs/recipes/student.md).
    With norms after the sublayers, six encoder layers under one decoder layer give all tokens the same state.
    """
    teacher = _multi30k()
    return replace(
        teacher,
        model=replace(teacher.model, num_layers=6, decoder_layers=1, norm="pre"),  # type: ignore[call-arg]
        decoding=changed_search(teacher.decoding, {"method": "greedy"}),
    )


def _tiny_published() -> Config:
    """`tiny` with the published hyperparameters: four times the batch size, a higher peak learning rate, more
    dropout (docs/recipes/tiny.md)."""
    base = tiny()
    return replace(
        base,
        model=replace(base.model, dropout=0.3),  # type: ignore[call-arg]
        data=replace(text_data(base), batch_tokens=8192),
        optimizer=replace(base.optimizer, schedule="inverse_sqrt", peak=5e-3, warmup_steps=2000),
        training=replace(base.training, steps=8_000, evaluate_every=100),
    )


def baseline(system: str, model: ModelConfig) -> Config:
    """A baseline with the number of parameters and the training of `tiny`."""
    base = tiny()
    decoding = replace(base.decoding, rows=64)
    return replace(base, system=system, model=model, decoding=decoding)


def _spelling(vocab_size: int = 30, max_length: int = 41, **data: Any) -> Config:
    """Digits, and the letters of their names: ten digits and fifteen letters."""
    corpus = {"dataset": "spelling", "source_language": "digits", "target_language": "letters"}
    return Config(
        model=TransformerConfig(num_layers=2, d_model=64, d_ff=128, num_heads=4, dropout=0.0),
        data=DataConfig(
            **corpus | {"tokenizer": "word"} | data,
            built_in_size=20_000,
            vocab_size=vocab_size,
            max_length=max_length,
            buckets=(max_length,),
            batch_tokens=32 * max_length,
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=100),
        training=TrainingConfig(
            steps=1000, label_smoothing=0.0, evaluate_every=100, evaluate_sentences=200, bleu_tokenize="none"
        ),
        decoding=BeamConfig(buckets=(9, 18), extra_length=60),
    )


def _pronunciation() -> Config:
    """Numbers, and their phonemes: the first stage of a synthesiser whose second is of phonemes."""
    return _spelling(300, 56, dataset="pronunciation", target_language="phonemes", tokenizer="char")


_FINE_TUNE = replace(FINE_TUNING, data=DataConfig(batch_tokens=2048))

_WMT14 = Config(
    data=DataConfig(
        dataset="wmt14_translate/de-en",
        source_language="en",
        target_language="de",
        tokenizer="bpe",
        vocab_size=37_000,
    )
)


_BIG: dict[str, Any] = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}

OPTIONS = Options(
    presets={
        "quickstart": Preset(quickstart(), "small, built-in corpus; minutes on two CPU cores", _STARTED),
        "fine-tune": Preset(
            _FINE_TUNE, "with the sizes and vocabulary of the run given by --init-from", _STARTED
        ),
        "tiny": Preset(tiny(), "text already split into subwords", _MULTI30K),
        "tiny-published": Preset(_tiny_published(), "tiny with the published hyperparameters", _MULTI30K),
        "multi30k": Preset(_multi30k(), "raw text, with its own BPE vocabulary", _MULTI30K),
        "student": Preset(
            _student(),
            "one decoder layer, greedy: learns from a teacher (distill), fast on CPUs",
            _MULTI30K,
        ),
        "spelling": Preset(
            _spelling(),
            "digits, and the letters of their names: source and target advance together",
            COPYING,
        ),
        "pronunciation": Preset(
            _pronunciation(),
            "numbers, and their phonemes, which a model of system synthesis can speak",
            COPYING,
        ),
        **TEXT_PRESETS,
        "base": Preset(_WMT14, "Table 2's base model", _PAPER),
        "big": Preset(
            replace(
                _WMT14,
                model=TransformerConfig(**_BIG),
                training=replace(_WMT14.training, steps=300_000),
            ),
            "Table 2's big model",
            _PAPER,
        ),
    },
    variants=VARIANTS,
)
"""Those of the paper are for WMT 2014 English-German with a joint vocabulary of 37,000."""
