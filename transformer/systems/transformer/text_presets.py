"""Presets of text tasks other than translation, each with a built-in corpus: small enough for minutes on two
CPU cores."""

from typing import Any

from transformer.config.corpus import DataConfig, TextTaskName
from transformer.config.decoding import BeamConfig
from transformer.config.options import Config
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.config.transformer import TransformerConfig
from transformer.systems.registry import Preset

GROUP = "text tasks"


def text_config(
    data: DataConfig, steps: int, longest_output: int, d_model: int = 128, **options: Any
) -> Config:
    """A small Transformer for a corpus.

    Args:
      data: the corpus.
      steps: of training.
      longest_output: tokens of an output.
      d_model: width.
      options: of the model.
    """
    return Config(
        model=TransformerConfig(
            num_layers=2, d_model=d_model, d_ff=2 * d_model, num_heads=4, dropout=0.0, norm="pre", **options
        ),
        data=data,
        optimizer=OptimizerConfig(schedule="cosine", peak=2e-3, warmup_steps=steps // 10),
        training=TrainingConfig(
            steps=steps,
            label_smoothing=0.0,
            evaluate_every=steps // 4,
            evaluate_sentences=200,
            log_every=25,
            dropout_by="auto",
        ),
        decoding=BeamConfig(
            beam_size=2, buckets=data.lengths, max_length=longest_output, extra_length=longest_output
        ),
    )


SMALL: dict[str, Any] = {
    "tokenizer": "word",
    "vocab_size": 2000,
    "built_in_size": 20_000,
    "batch_tokens": 4096,
}


def _data(
    dataset: str, task: TextTaskName, inputs: str, target: str, longest: int, **options: Any
) -> DataConfig:
    """A built-in corpus with named columns.

    Args:
      dataset: its name.
      task: what is written.
      inputs: columns that are read, with spaces between them.
      target: the column that is written.
      longest: tokens of a source.
      options: of data.
    """
    return DataConfig(
        dataset=dataset,
        task=task,
        inputs=tuple(inputs.split()),
        target=(target,),
        max_length=longest,
        buckets=(longest // 2, longest * 3 // 4, longest),
        **SMALL | options,
    )


TEXT_PRESETS = {
    "summarisation": Preset(
        text_config(
            _data(
                "reports",
                "summaries",
                "report",
                "summaries",
                160,
                tokenizer="unigram",
                max_target_length=40,
            ),
            1200,
            40,
        ),
        "reports, and one or two sentences about them; ROUGE",
        GROUP,
    ),
    "answering": Preset(
        text_config(
            _data("stories", "answers", "question story", "answer", 80, max_target_length=6),
            3000,
            6,
            d_model=64,
            positions="rotary",
        ),
        "stories, a question, and its answer; F1 and exact match as of SQuAD",
        GROUP,
    ),
    "dialogue-history": Preset(
        text_config(
            _data(
                "conversations",
                "translation",
                "turns",
                "reply",
                128,
                tokenizer="unigram",
                max_target_length=24,
            ),
            1200,
            24,
            positions="rotary",
        ),
        "conversations, and a reply to what was said turns before",
        GROUP,
    ),
    "pronouns": Preset(
        text_config(
            DataConfig(
                dataset="pronouns",
                context=2,
                max_length=48,
                max_target_length=16,
                buckets=(16, 32, 48),
                **SMALL | {"batch_tokens": 2048},
            ),
            500,
            16,
        ),
        "passages whose pronouns need the sentences before; BLEU",
        GROUP,
    ),
    "sentiment": Preset(
        text_config(
            _data("opinions", "labels", "text", "label", 32, max_target_length=4), 800, 4, d_model=64
        ),
        "sentences that are positive, negative or neutral; accuracy",
        GROUP,
    ),
    "multi-label": Preset(
        text_config(_data("topics", "label-sets", "text", "labels", 80, max_target_length=12), 200, 12),
        "documents with one to four topics; micro F1",
        GROUP,
    ),
    "parsing": Preset(
        text_config(
            _data(
                "treebank",
                "trees",
                "words",
                "tree",
                120,
                tokenizer="whitespace",
                batch_tokens=3072,
                batching="packed",
            ),
            400,
            120,
            positions="rotary",
        ),
        "sentences, and their trees; F1 of brackets as of EVALB",
        GROUP,
    ),
}
