"""Compares translation from a pretrained encoder with translation from nothing, where pairs are few.

`python -m benchmarks.studies.encoders WORK --corpus DIR` pretrains a masked language model on all sources of
a folder of train, validation and test in two languages (`train.en`, ...), with the sizes of the preset
`multi30k`. Then it trains two translation models on every eighth pair: one whose encoder is the pretrained
one (`--init-encoder-from`), and one from nothing. Both have the same vocabularies, options, updates and seed;
the best checkpoint of each, by validation BLEU, translates the test set. All this is repeated with each seed,
the translations are compared by a paired bootstrap test, and a table is written. Everything is in WORK: if
interrupted, the same command continues.
"""

import argparse
import dataclasses
import itertools
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.command import positive, run, work_folder
from benchmarks.measure import machine, report
from benchmarks.runs import once, text_files, translated
from benchmarks.studies.bootstrap import Comparison, compare
from transformer import PRESETS, Config, Run, train
from transformer.config.options import text_data
from transformer.config.records import SentencesConfig
from transformer.runtime.errors import UserError
from transformer.runtime.files import Json, write_whole
from transformer.systems.masked_language_model.options import MaskedLanguageModelConfig

ENCODER, NOTHING, PRETRAINED = "encoder", "nothing", "pretrained"
SHARED = ("num_layers", "d_model", "d_ff", "num_heads", "dropout")


@dataclass(frozen=True)
class Plan:
    """What to compare."""

    work: Path
    corpus: Path
    languages: tuple[str, str]
    share: int
    """Every which pair is trained on."""
    vocab_size: int
    pretraining: int
    """Updates of the masked language model."""
    updates: int
    """Updates of each translation model."""
    seeds: int

    def path(self, name: str, seed: int) -> Path:
        """The run directory."""
        return self.work / f"{name}-{seed}"

    def files(self) -> dict[str, Path]:
        """The options of data for the pairs, of which those of training are written once."""
        files = text_files(self.corpus, self.languages)
        for side, language in zip(("source", "target"), self.languages, strict=True):
            whole, part = files[f"train_{side}"], self.work / f"train-{self.share}.{language}"
            if not part.exists():
                lines = whole.read_text(encoding="utf-8").splitlines(keepends=True)
                write_whole(part, "".join(itertools.islice(lines, 0, None, self.share)))
            files[f"train_{side}"] = part
        return files

    def encoder(self, seed: int) -> Config:
        """The config of the masked language model."""
        base, files = PRESETS["multi30k"], text_files(self.corpus, self.languages)
        shared = {name: getattr(base.model, name) for name in SHARED}
        data = text_data(base)
        return replace(
            PRESETS["masked-lm"],
            model=MaskedLanguageModelConfig(**shared, activation="relu"),
            data=SentencesConfig(
                train=files["train_source"],
                validation=files["validation_source"],
                tokenizer="bpe",
                vocab_size=self.vocab_size,
                max_length=data.max_length,
                buckets=data.buckets,
                batch_tokens=4 * data.batch_tokens,
            ),
            optimizer=replace(base.optimizer, warmup_steps=max(1, min(1000, self.pretraining // 10))),
            training=replace(
                PRESETS["masked-lm"].training,
                seed=seed,
                steps=self.pretraining,
                evaluate_every=max(1, self.pretraining // 10),
                keep_last=1,
            ),
        )

    def translation(self, name: str, seed: int) -> Config:
        """The config of a translation model."""
        base, encoder = PRESETS["multi30k"], self.path(ENCODER, seed)
        return replace(
            base,
            model=replace(base.model, share_embeddings="target"),
            data=replace(
                text_data(base),
                **self.files(),
                joint_vocabulary=False,
                source_tokenizer=encoder / "source.model",
                vocab_size=self.vocab_size,
                batching="buckets",
            ),
            optimizer=replace(base.optimizer, warmup_steps=max(1, min(1000, self.updates // 5))),
            training=replace(
                base.training,
                seed=seed,
                steps=self.updates,
                init_encoder_from=encoder if name == PRETRAINED else None,
                evaluate_every=max(1, self.updates // 10),
                evaluate_sentences=300,
                keep_last=1,
            ),
        )

    def build(self, name: str, seed: int) -> Json:
        """Trains a run, unless it is there, and translates the test set with its best checkpoint."""

        def trained() -> Json:
            path = train(self.translation(name, seed), self.path(name, seed))
            jax.clear_caches()  # Linux limits the memory maps of a process, of which each program has some
            run = Run(path)
            return {"translations": translated(path, "best"), "step": run.checkpoints.best()}

        return once(self.path(name, seed).with_suffix(".json"), trained)

    def pretrain(self, seed: int) -> Json:
        """Trains the masked language model, unless it is there."""

        def trained() -> Json:
            run = Run(train(self.encoder(seed), self.path(ENCODER, seed)))
            jax.clear_caches()
            best = min(run.log.records("evaluation"), key=lambda record: record["perplexity"])
            return {name: best[name] for name in ("step", "perplexity", "accuracy")}

        return once(self.path(ENCODER, seed).with_suffix(".json"), trained)


def compared(plan: Plan, seed: int) -> Comparison:
    """The model with the pretrained encoder, compared with that from nothing."""
    both = (plan.build(name, seed)["translations"] for name in (NOTHING, PRETRAINED))
    return compare(plan.path(NOTHING, seed), *both)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each seed, and the means."""
    lines = ["| seed | hidden tokens predicted | from nothing | pretrained encoder | difference | p |"]
    lines.append("|---" * 6 + "|")
    for row in rows:
        lines.append(
            f"| {row['seed']} | {row['accuracy']:.1f} % | {row['bleu'] - row['difference']:.2f} | "
            f"{row['bleu']:.2f} ± {row['interval']:.2f} | {row['difference']:+.2f} | {row['p']:.3f} |"
        )
    differences = [row["difference"] for row in rows]
    spread = f" ± {statistics.stdev(differences):.2f}" if len(rows) > 1 else ""
    after = statistics.mean(row["bleu"] for row in rows)
    mean = statistics.mean(differences)
    lines.append(f"| mean | | {after - mean:.2f} | {after:.2f} | {mean:+.2f}{spread} | |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Trains what is missing, prints the table and writes WORK/encoders.json and encoders.md."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("work", type=work_folder, help="folder for runs and the table")
    parser.add_argument(
        "--corpus", type=Path, required=True, help="folder with train.en, train.de, validation.*, test.*"
    )
    parser.add_argument("--languages", nargs=2, default=("en", "de"), help="suffixes of the files (en de)")
    parser.add_argument("--share", type=positive, default=8, help="trains on every which pair (8)")
    parser.add_argument("--vocab-size", type=positive, default=4000, help="of each language (4000)")
    parser.add_argument("--pretraining", type=positive, default=10_000, help="updates of encoders (10000)")
    parser.add_argument(
        "--updates", type=positive, default=2_000, help="updates of translation models (2000)"
    )
    parser.add_argument("--seeds", type=positive, default=3, help="repetitions (3)")
    given = parser.parse_args(arguments)
    if missing := [x for x in text_files(given.corpus, given.languages).values() if not x.is_file()]:
        raise UserError(f"--corpus {given.corpus}: there is no {missing[0].name} in it")
    given.work.mkdir(parents=True, exist_ok=True)
    plan = Plan(**vars(given) | {"languages": tuple(given.languages)})
    rows = []
    for seed in range(plan.seeds):
        pretrained = plan.pretrain(seed)
        rows.append({"seed": seed, **pretrained, **dataclasses.asdict(compared(plan, seed))})
        settings = {key: str(value) for key, value in dataclasses.asdict(plan).items()}
        report(given.work / "encoders", {"about": machine() | settings, "rows": rows}, table(rows))


if __name__ == "__main__":
    raise SystemExit(run(__spec__.name, main))
