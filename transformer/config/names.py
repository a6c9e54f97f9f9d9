"""Names of options in other toolkits, and what they are called here."""

from collections.abc import Container, Mapping
from typing import NamedTuple


class Here(NamedTuple):
    """An option of this program."""

    name: str
    """With the section before a point, unless it is an argument of the command itself."""
    value: str = ""
    """The value that stands for the other toolkit's option."""
    note: str = ""
    """How it differs."""

    def option(self) -> str:
        """For a command line."""
        if not self.name:
            return self.note
        return (
            f"here it is --{' '.join(filter(None, (self.name.replace('_', '-'), self.value)))}{self._noted}"
        )

    def keyword(self) -> str:
        """For a call in Python."""
        if not self.name:
            return self.note
        return f"here it is {self.name}{f'={self.value!r}' * bool(self.value)}{self._noted}"

    @property
    def _noted(self) -> str:
        return f" ({self.note})" if self.note else ""


def _table(*rows: tuple[str, Here]) -> dict[str, Here]:
    return {name: here for names, here in rows for name in names.split()}


SEARCH = _table(
    ("num-beams beam beams nbeams beam-width", Here("beam_size")),
    (
        "max-new-tokens max-len",
        Here("max_length", note="with <eos>"),
    ),
    ("min-new-tokens min-len", Here("min_length")),
    ("do-sample sampling output-sampling", Here("method", "sample")),
    ("num-return-sequences nbest", Here("n_best", note="with method sample: samples")),
    ("lenpen alpha", Here("length_penalty", note="penalty power: as in Marian and Hugging Face")),
    ("sampling-topk", Here("top_k")),
    ("sampling-topp", Here("top_p")),
    ("no-repeat-ngram-size", Here("no_repeat_ngram")),
    ("num-beam-groups diverse-beam-groups", Here("groups")),
    ("diversity-penalty diverse-beam-strength", Here("diversity")),
    ("bad-words bad-words-ids", Here("forbidden", note="as text")),
    ("suppress-tokens", Here("suppress")),
    ("begin-suppress-tokens", Here("suppress_first")),
    ("early-stopping", Here("stop")),
    ("batch-size max-batch-size mini-batch per-device-eval-batch-size", Here("rows")),
    ("learning-rate lr epochs", Here("", note="train.py trains")),
)
"""Those of searches."""
_IN_TRAINING = {
    name: here._replace(name=f"decoding.{here.name}")
    for name, here in SEARCH.items()
    if here.name not in ("", "n_best")  # not options of a config
}
TRAINING = (
    _IN_TRAINING
    | {f"decoding.{name}": here for name, here in _IN_TRAINING.items()}
    | _table(
        (
            "learning-rate lr learn-rate max-lr",
            Here("optimizer.peak", note="with --optimizer.schedule paper: --optimizer.scale"),
        ),
        (
            "batch-size train-batch-size per-device-train-batch-size mini-batch max-tokens",
            Here("data.batch_tokens", note="of all devices, in padded tokens of a side"),
        ),
        ("epochs num-epochs max-epochs max-epoch num-train-epochs after-epochs", Here("training.epochs")),
        ("steps max-steps num-steps train-steps max-update updates max-iters", Here("training.steps")),
        ("warmup lr-warmup warmup-updates warmup-iters num-warmup-steps", Here("optimizer.warmup_steps")),
        ("lr-scheduler lr-scheduler-type lr-schedule", Here("optimizer.schedule")),
        ("optim", Here("optimizer.algorithm")),
        ("grad-clip clip-grad max-grad-norm", Here("optimizer.clip_norm")),
        (
            "gradient-accumulation-steps accumulate-grad-batches accum-steps update-freq optimizer-delay",
            Here("training.accumulate", note="the batch is divided, and stays as large"),
        ),
        ("label-smoothing-factor smoothing", Here("training.label_smoothing")),
        (
            "eval-steps eval-every eval-interval save-steps save-every valid-freq",
            Here("training.evaluate_every"),
        ),
        ("logging-steps log-interval disp-freq", Here("training.log_every")),
        ("early-stopping early-stopping-patience", Here("training.patience")),
        ("hidden-size embed-dim n-embd dim", Here("model.d_model")),
        ("ffn-dim dim-feedforward intermediate-size", Here("model.d_ff")),
        ("heads n-head nhead num-attention-heads", Here("model.num_heads")),
        ("layers n-layer num-hidden-layers encoder-layers", Here("model.num_layers")),
        ("fp16 bf16 amp mixed-precision", Here("model.dtype", "bfloat16")),
        ("gradient-checkpointing checkpoint-activations", Here("model.remat")),
        ("max-seq-length max-len block-size", Here("data.max_length")),
        ("output-dir out-dir save-dir model-dir checkpoint-dir", Here("run_dir")),
        (
            "resume resume-from-checkpoint restore-file load-checkpoint",
            Here("run_dir", note="of an existing run: it is resumed"),
        ),
        ("lora-r lora-rank adapter.r", Here("adapter.rank")),
        ("lora-alpha adapter.alpha", Here("adapter.scale", note="alpha / rank")),
        ("target-modules lora-target-modules", Here("adapter.pattern")),
        ("pretrained finetune-from-model model-name-or-path", Here("init_from")),
        ("src train-src train-file train-data", Here("data.train_source", note="or --data.train-tsv")),
        ("tgt train-tgt", Here("data.train_target")),
        ("lang-pairs", Here("data.directions", note="source:target each")),
        ("sampling-temperature", Here("data.temperature")),
        (
            "gpus num-gpus devices num-devices",
            Here("", note="every device is used; CUDA_VISIBLE_DEVICES=0,1 leaves others out"),
        ),
    )
)
"""Those of training, as on a command line."""
DECODING = SEARCH | _table(
    ("load-in-8bit quantize quantization", Here("int8")),
    ("print-alignment alignment output-attentions", Here("alignments")),
    ("src source", Here("input")),
    ("ref references", Here("reference")),
    ("model model-path path", Here("", note="name the run directory first, without an option")),
)
"""Those of decode.py: of searches, and of the command."""


def hint(word: str, table: Mapping[str, Here], options: Container[str] = ()) -> str:
    """What a word of a command line, such as `--num-beams=5` or `--optimizer.lr`, is called here; empty if it
    is an option, or not known.

    Args:
      word: of a command line.
      table: names elsewhere.
      options: the dotted names of options.
    """
    name = word.partition("=")[0].removeprefix("--").replace("_", "-").lower()
    if not word.startswith("--") or name.replace("-", "_") in options:
        return ""
    here = table.get(name) or table.get(name.rpartition(".")[2])
    return here.option() if here else ""


def keyword_hint(name: str) -> str:
    """What an option of a search is called here; empty if it is not known."""
    here = SEARCH.get(name.replace("_", "-").lower())
    return here.keyword() if here else ""
