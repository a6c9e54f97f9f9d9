"""The options that `train.py --help` lists."""

COMMON = {
    "run_dir": "run directory; an existing run is resumed",
    "training.init_from": "a trained or imported run to initialise from",
    "training.init_encoder_from": "a run to take only the encoder of",
    "data.train_source": "text, a sentence a line; also --data.train-target",
    "data.train": "or a table, .jsonl or .tsv; also --data.inputs, --data.target, --data.task",
    "data.dataset": "or the name of a TFDS set",
    "data.tokenizer": "bpe, unigram, char, word, whitespace",
    "data.vocab_size": "size of the vocabulary to train",
    "data.batch_tokens": "batch size in padded tokens per side",
    "data.max_length": "longer training pairs are dropped",
    "model.num_layers": "layers of the encoder, and of the decoder",
    "model.d_model": "width; also --model.d-ff, --model.num-heads",
    "model.dropout": "more for a small corpus, less for a large one",
    "optimizer.peak": "peak learning rate of most schedules",
    "training.steps": "number of updates; or --training.epochs",
    "training.evaluate_every": "updates between evaluations, which save",
    "training.minutes": "stop and save after this time; the same command continues",
    "training.seed": "seed of initial parameters and dropout",
}
"""What most people need to train a model of text, and what it does."""

PICTURES = "pictures"  # the group of the presets that see
COMMON_TO_PICTURES = {
    "run_dir": COMMON["run_dir"],
    "training.init_from": "a trained run to initialise from",
    "data.train": "PNG files with their annotations, one a line",
    "data.picture_size": "height and width in pixels",
    "data.batch_tokens": "batch size",
    "model.patch_size": "height and width of a patch in pixels",
    **{name: what for name, what in COMMON.items() if name.partition(".")[0] in ("model", "optimizer")},
    **{name: what for name, what in COMMON.items() if name.startswith("training.") and "init" not in name},
}
"""The same for systems that see."""
