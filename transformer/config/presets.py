"""Named configs: the models of the paper (Table 3), and the configs of the recipes."""

from dataclasses import fields, replace
from typing import Any

from transformer.config import (
    BeamConfig,
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    SampleConfig,
    TrainingConfig,
    TransformerConfig,
    changed_search,
    text_data,
)
from transformer.config.baselines import ConvolutionalConfig, RecurrentConfig
from transformer.config.copying import CopyingConfig
from transformer.config.decoding import names_of
from transformer.config.language_model import LanguageModelConfig, StreamConfig
from transformer.config.nonautoregressive import NonAutoregressiveConfig, NonAutoregressiveDecodingConfig
from transformer.config.sound_presets import SOUND, SOUND_DESCRIPTIONS
from transformer.config.variants import VARIANTS, Variant


def _quickstart() -> Config:
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
            steps=1260, label_smoothing=0.0, evaluate_every=315, evaluate_sentences=128, log_every=25
        ),
        decoding=BeamConfig(buckets=(48,), extra_length=10, rows=64),
    )


def _tiny() -> Config:
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
    tiny = _tiny()
    return replace(
        tiny,
        data=replace(text_data(tiny), tokenizer="bpe", vocab_size=8000),
        training=replace(tiny.training, steps=9_000, bleu_tokenize="13a"),
    )


def _student() -> Config:
    """A student for CPUs, which learns what a `multi30k` teacher translates: a deep encoder, which reads a
    sentence once, a decoder of one layer (Kasai et al. 2021), and greedy search (docs/recipes/student.md)."""
    teacher = _multi30k()
    return replace(
        teacher,
        model=replace(teacher.model, num_layers=6, decoder_layers=1),  # type: ignore[call-arg]
        decoding=changed_search(teacher.decoding, {"method": "greedy"}),
    )


def _tiny_published() -> Config:
    """`tiny` with the published hyperparameters: four times the batch size, a higher peak learning rate, more
    dropout (docs/recipes/tiny.md)."""
    tiny = _tiny()
    return replace(
        tiny,
        model=replace(tiny.model, dropout=0.3),  # type: ignore[call-arg]
        data=replace(text_data(tiny), batch_tokens=8192),
        optimizer=replace(tiny.optimizer, schedule="inverse_sqrt", peak=5e-3, warmup_steps=2000),
        training=replace(tiny.training, steps=8_000, evaluate_every=100),
    )


def _baseline(system: str, model: ModelConfig) -> Config:
    """A baseline with the number of parameters and the training of `tiny`."""
    tiny = _tiny()
    decoding = replace(tiny.decoding, rows=64)
    return replace(tiny, system=system, model=model, decoding=decoding)


def _recurrent(**options: Any) -> Config:
    return _baseline("recurrent", RecurrentConfig(d_model=170, num_layers=2, dropout=0.2, **options))


def _nonautoregressive(base: Config, decoder_input: Any) -> Config:
    """A non-autoregressive model with the sizes and the training of `base`."""
    shared = {item.name: getattr(base.model, item.name) for item in fields(TransformerConfig)}
    shared_search = names_of(BeamConfig) & names_of(NonAutoregressiveDecodingConfig)
    search = {name: getattr(base.decoding, name) for name in shared_search}
    masked = decoder_input == "masked"
    search |= {"beam_size": 3 if masked else 1, "iterations": 4 if masked else 1}
    return replace(
        base,
        system="nonautoregressive",
        model=NonAutoregressiveConfig(**shared, decoder_input=decoder_input, bos_length=64),
        data=replace(base.data, batching="buckets"),
        decoding=NonAutoregressiveDecodingConfig(**search),
    )


_NONAUTOREGRESSIVE = {
    f"{name}-{kind}": _nonautoregressive(base, kind)
    for name, base in {"quickstart": _quickstart(), "tiny": _tiny()}.items()
    for kind in ("length", "bos", "fertility", "masked")
}


def _dialogue(language: str, vocab_size: int, output: Any) -> Config:
    """Replies to introductions. Names are not in the vocabulary, so a model must copy them; without `output`
    it cannot."""
    copying = bool(output)
    sizes: dict[str, Any] = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4}
    return Config(
        system="copying" if copying else "transformer",
        model=CopyingConfig(**sizes, output=output) if copying else TransformerConfig(**sizes),
        data=DataConfig(
            dataset=f"dialogue-{language}",
            source_language=language,
            target_language=language,
            built_in_size=20_000,
            tokenizer="open-word" if copying else "word",
            vocab_size=vocab_size,  # the words of the patterns, without names
            max_length=28,
            buckets=(12, 16, 20, 28),
            batch_tokens=1024,
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=100),
        training=TrainingConfig(
            steps=900,
            label_smoothing=0.0,
            evaluate_every=300,
            evaluate_sentences=200,
            bleu_tokenize="zh" if language == "zh" else "13a",
        ),
        decoding=BeamConfig(buckets=(12, 16, 20, 28), extra_length=10),
    )


_DIALOGUES = {
    f"dialogue-{language}{suffix}": _dialogue(language, vocab_size, output)
    for language, vocab_size in {"en": 67, "zh": 71}.items()
    for suffix, output in {"": "mixture", "-copynet": "copynet", "-plain": None}.items()
}


def _pointing(task: str, copying: bool) -> Config:
    """A line of words, and an answer of some of its words."""
    sizes: dict[str, Any] = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 4, "dropout": 0.0}
    pointing = CopyingConfig(**sizes, output="pointer", once=True)
    return Config(
        system="copying" if copying else "transformer",
        model=pointing if copying else TransformerConfig(**sizes),
        data=DataConfig(
            dataset=task,
            source_language={"sorting": "numbers", "convex-hull": "points"}[task],
            target_language=task,
            built_in_size=60_000,
            tokenizer="open-word" if copying else "word",
            vocab_size=300,  # all numbers and points
            max_length=13,
            buckets=(13,),
            batch_tokens=1664,
        ),
        optimizer=OptimizerConfig(schedule="cosine", peak=3e-3, warmup_steps=100),
        training=TrainingConfig(
            steps=2000,
            label_smoothing=0.0,
            evaluate_every=500,
            evaluate_sentences=200,
            bleu_tokenize="none",
        ),
        decoding=BeamConfig(buckets=(13, 26, 52), extra_length=1),
    )


_POINTING = {
    f"{task}{'' if copying else '-plain'}": _pointing(task, copying)
    for task in ("sorting", "convex-hull")
    for copying in (True, False)
}


def _spelling(vocab_size: int = 30, max_length: int = 41, **data: Any) -> Config:
    """Digits, and the letters of their names: ten digits and fifteen letters."""
    given = {"dataset": "spelling", "source_language": "digits", "target_language": "letters"}
    return Config(
        model=TransformerConfig(num_layers=2, d_model=64, d_ff=128, num_heads=4, dropout=0.0),
        data=DataConfig(
            **given | {"tokenizer": "word"} | data,
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


_FINE_TUNE = Config(
    data=DataConfig(batch_tokens=2048),
    optimizer=OptimizerConfig(schedule="inverse_sqrt", peak=2e-4, warmup_steps=200),
    training=TrainingConfig(steps=2000, evaluate_every=200),
)


def _varied(variant: Variant) -> Config:
    """`tiny` with a variant. The share of scheduled sampling rises until the last update."""
    config = variant.of(_tiny())
    if variant.continues:
        fine_tuning = replace(_FINE_TUNE.training, bleu_tokenize="none")
        config = replace(config, optimizer=_FINE_TUNE.optimizer, training=fine_tuning)
    return replace(config, scheduled=replace(config.scheduled, updates=config.training.steps))


_PAPER = Config(
    data=DataConfig(
        dataset="wmt14_translate/de-en",
        source_language="en",
        target_language="de",
        tokenizer="bpe",
        vocab_size=37_000,
    )
)


def _row(dropout: float = 0.1, smoothing: float = 0.1, steps: int = 100_000, **model: Any) -> Config:
    """The base model with changed columns of Table 3."""
    return replace(
        _PAPER,
        model=replace(_PAPER.model, dropout=dropout, **model),
        training=replace(_PAPER.training, label_smoothing=smoothing, steps=steps),
    )


def _language_model() -> Config:
    """Characters of the built-in text, with a memory as long as a segment."""
    return Config(
        system="language-model",
        model=LanguageModelConfig(num_layers=3, d_model=128, d_ff=512, num_heads=4, dropout=0.0, memory=64),
        data=StreamConfig(max_length=64, batch_tokens=2048),
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=100),
        training=TrainingConfig(steps=600, label_smoothing=0.0, evaluate_every=200),
        decoding=SampleConfig(
            samples=1, temperature=0.8, length_penalty=0.0, extra_length=200, rows=8, buckets=(64, 256)
        ),
    )


def _shakespeare(memory: int) -> Config:
    """Characters of tiny Shakespeare with the sizes of nanoGPT's recipe for a CPU, without and with a
    memory."""
    base = _language_model()
    gpt: dict[str, Any] = (
        {} if memory else {"positions": "learned", "max_positions": 64, "activation": "gelu"}
    )
    return replace(
        base,
        model=LanguageModelConfig(
            num_layers=4, d_model=128, d_ff=512, num_heads=4, dropout=0.0, memory=memory, **gpt
        ),
        data=StreamConfig(dataset="tiny_shakespeare", max_length=64, batch_tokens=12 * 64),
        optimizer=OptimizerConfig(
            schedule="cosine", peak=1e-3, warmup_steps=100, beta2=0.99, weight_decay=0.1, clip_norm=1.0
        ),
        training=TrainingConfig(steps=2_000, label_smoothing=0.0, evaluate_every=250),
        decoding=replace(base.decoding, extra_length=200 if memory else 32),
    )


PRESETS: dict[str, Config] = {
    "quickstart": _quickstart(),
    "tiny": _tiny(),
    "tiny-published": _tiny_published(),
    "multi30k": _multi30k(),
    "student": _student(),
    "tiny-convolutional": _baseline(
        "convolutional", ConvolutionalConfig(d_model=144, num_layers=4, kernel_width=3, dropout=0.2)
    ),
    "tiny-recurrent": _recurrent(),
    "tiny-recurrent-dot": _recurrent(attention="dot"),
    "tiny-recurrent-hard": _recurrent(attention="hard"),
    "tiny-recurrent-fixed": _recurrent(attention="fixed"),
    "tiny-recurrent-rnn": _recurrent(cell="rnn"),
    "fine-tune": _FINE_TUNE,  # with --init-from, which determines the sizes
    **{f"tiny-{name}": _varied(variant) for name, variant in VARIANTS.items()},
    **_NONAUTOREGRESSIVE,
    **_DIALOGUES,
    **_POINTING,
    "spelling": _spelling(),
    "pronunciation": _pronunciation(),
    "language-model": _language_model(),
    **SOUND,
    "shakespeare": _shakespeare(memory=0),
    "shakespeare-xl": _shakespeare(memory=64),
    "base": _row(),
    "big": _row(d_model=1024, d_ff=4096, num_heads=16, dropout=0.3, steps=300_000),
    # Table 3, row by row
    "A-heads-1": _row(num_heads=1, d_k=512, d_v=512),
    "A-heads-4": _row(num_heads=4, d_k=128, d_v=128),
    "A-heads-16": _row(num_heads=16, d_k=32, d_v=32),
    "A-heads-32": _row(num_heads=32, d_k=16, d_v=16),
    "B-keys-16": _row(d_k=16),
    "B-keys-32": _row(d_k=32),
    "C-layers-2": _row(num_layers=2),
    "C-layers-4": _row(num_layers=4),
    "C-layers-8": _row(num_layers=8),
    "C-width-256": _row(d_model=256, d_k=32, d_v=32),
    "C-width-1024": _row(d_model=1024, d_k=128, d_v=128),
    "C-inner-1024": _row(d_ff=1024),
    "C-inner-4096": _row(d_ff=4096),
    "D-dropout-0.0": _row(dropout=0.0),
    "D-dropout-0.2": _row(dropout=0.2),
    "D-smoothing-0.0": _row(smoothing=0.0),
    "D-smoothing-0.2": _row(smoothing=0.2),
    "E-learned-positions": _row(positions="learned"),
}
"""All presets. Those of the paper are for WMT 2014 English-German with a joint vocabulary of 37,000."""

GROUPS: dict[str, dict[str, str]] = {
    "getting started": {
        "quickstart": "small, built-in corpus; minutes on two CPU cores",
        "fine-tune": "with the sizes and vocabulary of the run given by --init-from",
    },
    "Multi30k": {
        "tiny": "text already split into subwords",
        "tiny-published": "tiny with the published hyperparameters",
        "multi30k": "raw text, with its own BPE vocabulary",
        "student": "one decoder layer, greedy: learns from a teacher (distill), fast on CPUs",
    },
    "baselines": {
        "tiny-convolutional": "gated convolutions (Gehring et al. 2017)",
        "tiny-recurrent": "GRU with additive attention (Bahdanau et al. 2015)",
        "tiny-recurrent-dot": "with scaled dot-product attention",
        "tiny-recurrent-hard": "with hard attention, trained with REINFORCE (Xu et al. 2015)",
        "tiny-recurrent-fixed": "with a fixed context vector (Sutskever et al. 2014)",
        "tiny-recurrent-rnn": "tanh RNN without gates (Elman 1990), additive attention",
    },
    "attention and training methods, as tiny": {
        f"tiny-{name}": variant.about + (", with --init-from" if variant.continues else "")
        for name, variant in VARIANTS.items()
    },
    "non-autoregressive": {
        f"{base}-{kind}": f"{what}, {where}"
        for base, where in (("quickstart", "built-in corpus"), ("tiny", "as tiny"))
        for kind, what in (
            ("length", "predicts the length first"),
            ("bos", "ends at the first <eos>"),
            ("fertility", "repeats source tokens (Gu et al. 2018)"),
            ("masked", "mask-predict (Ghazvininejad et al. 2019)"),
        )
    },
    "copying and spelling": {
        **{
            f"dialogue-{language}{suffix}": f"replies in {name}, {what}"
            for language, name in (("en", "English"), ("zh", "Chinese"))
            for suffix, what in (
                ("", "pointer-generator"),
                ("-copynet", "CopyNet (Gu et al. 2016)"),
                ("-plain", "no pointer"),
            )
        },
        **{
            f"{task}{suffix}": f"{what}, {how}"
            for task, what in (
                ("sorting", "numbers in order"),
                ("convex-hull", "vertices of the hull of points"),
            )
            for suffix, how in (("", "pointer network"), ("-plain", "no pointer"))
        },
        "spelling": "digits, and the letters of their names: source and target advance together",
        "pronunciation": "numbers, and their phonemes, which a model of system synthesis can speak",
    },
    "language models": {
        "language-model": "characters of the built-in English text, with a memory; minutes",
        "shakespeare": "characters of tiny Shakespeare, with the sizes of nanoGPT's recipe for a CPU",
        "shakespeare-xl": "the same with relative positions and a memory (Dai et al. 2019)",
    },
    "speech": SOUND_DESCRIPTIONS,
    "the paper, WMT 2014": {
        "base": "Table 2's base model",
        "big": "Table 2's big model",
        **{f"A-heads-{n}": f"Table 3 (A): {n} head{'s' * (n > 1)}" for n in (1, 4, 16, 32)},
        **{f"B-keys-{n}": f"Table 3 (B): d_k = {n}" for n in (16, 32)},
        **{f"C-layers-{n}": f"Table 3 (C): N = {n}" for n in (2, 4, 8)},
        **{f"C-width-{n}": f"Table 3 (C): d_model = {n}" for n in (256, 1024)},
        **{f"C-inner-{n}": f"Table 3 (C): d_ff = {n}" for n in (1024, 4096)},
        **{f"D-dropout-{x}": f"Table 3 (D): P_drop = {x}" for x in (0.0, 0.2)},
        **{f"D-smoothing-{x}": f"Table 3 (D): label smoothing {x}" for x in (0.0, 0.2)},
        "E-learned-positions": "Table 3 (E): learned positions",
    },
}
"""Descriptions of the presets by group, in display order."""
