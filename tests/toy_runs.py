"""Trains the toy systems in one layout of devices, in its own process; see `test_contracts.py`.

`python toy_runs.py FOLDER LAYOUT OTHER all` trains each system, and resumes it from half way. It also resumes
the half-trained runs of the layout OTHER, if that is not empty. With `quick` instead of `all`, only those of
`toys.QUICK` are resumed and trained in several layouts.
"""

import dataclasses
import json
import sys
from pathlib import Path
from unittest.mock import patch

import jax
import numpy as np
import toys
from small_run import changed, interrupted, quiet, small_config
from toys import QUICK, STATEFUL, TRAINED
from toys.task import SIZES

from transformer import PRESETS, Config, Run, TransformerConfig, train
from transformer.config.options import MeshConfig
from transformer.config.records import RecordingsConfig, SentencesConfig, StreamConfig, TaggedConfig
from transformer.config.searches import changed_search
from transformer.trainer.loop import Loop

LAYOUTS = {"one": (1, 1, 1), "replicas": (8, 1, 1), "mesh": (8, 2, 2)}
"""Number of devices, and the sizes of the mesh."""
STEPS = 4


def is_resumed(name: str, layout: str) -> bool:
    """Whether it is resumed in the layout it was trained in: elsewhere than on one device, what has most
    state."""
    return layout == "one" or name in STATEFUL


def toy_config(name: str, folder: Path, layout: str = "one", **training: int) -> Config:
    """The config of a toy, whose corpus is in the folder; or of a system of this package."""
    if name == "language-model":
        return text_config(folder, layout, **training)
    if name == "masked-lm":
        return sentences_config(folder, layout, **training)
    if name == "tagging":
        return tagged_config(folder, layout, **training)
    if name in PICTURES:
        return pictures_config(name, folder, layout, **training)
    if name in RECORDINGS:
        return RECORDINGS[name](folder, layout, **training)
    given = {**SIZES, "vocab_size": 0} if toys.is_text(name) else SIZES
    config = small_config(folder)
    data = config.data
    if not toys.is_text(name):
        data = toys.ToyData(cache_dir=folder / "cache", max_length=8, buckets=(8,), batch_tokens=64)
    config = dataclasses.replace(
        config,
        system=name,
        model=TransformerConfig(**given),
        data=data,
        decoding=changed_search(
            config.decoding, {"method": "greedy", "rows": 1, "buckets": toys.buckets(name)}
        ),
        # a larger epsilon, so that Adam does not turn rounding errors of tiny gradients into updates
        optimizer=dataclasses.replace(config.optimizer, epsilon=1e-4),
        mesh=MeshConfig(*LAYOUTS[layout][1:]),
    )
    return changed(config, steps=STEPS, evaluate_every=STEPS // 2, log_every=1, **training)


def text_config(folder: Path, layout: str, **training: int) -> Config:
    """The config of a language model whose memory is as long as a segment, and longer in evaluation."""
    config, text = PRESETS["language-model"], folder / "text"
    text.write_text("".join(f"{n} and {n * n}, \n" for n in range(120)))
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "memory": 8, "evaluation_memory": 12}
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **sizes),
        data=StreamConfig(train=text, max_length=8, batch_tokens=128, cache_dir=folder / "cache"),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=1, epsilon=1e-4),
        mesh=MeshConfig(*LAYOUTS[layout][1:]),
    )
    return changed(config, steps=STEPS, evaluate_every=STEPS // 2, log_every=1, **training)


def sentences_config(folder: Path, layout: str, **training: int) -> Config:
    """The config of a masked language model."""
    config, text = PRESETS["masked-lm"], folder / "text"
    text.write_text("".join(f"{n} and {n * n} is {n + n * n}\n" for n in range(120)))
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0, "mask_share": 0.4}
    data = {"tokenizer": "word", "max_length": 8, "buckets": (8,), "batch_tokens": 128}
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **sizes),
        data=SentencesConfig(train=text, **data, cache_dir=folder / "cache"),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=1, epsilon=1e-4),
        mesh=MeshConfig(*LAYOUTS[layout][1:]),
    )
    return changed(config, steps=STEPS, evaluate_every=STEPS // 2, log_every=1, **training)


def tagged_config(folder: Path, layout: str, **training: int) -> Config:
    """The config of a tagger, whose labels depend on the first digit of a word."""
    config, text = PRESETS["tagging"], folder / "text.conll"
    of = ["B-even" if n % 2 == 0 else "I-even" if n % 3 else "O" for n in range(10)]
    words = [f"{n % 10}{'x' * (n % 3)} {of[n % 10]}\n" for n in range(130)]
    sentences = (words[first : first + 2 + first % 5] for first in range(120))
    text.write_text("\n".join(map("".join, sentences)))
    sizes = {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0}
    data = {"tokenizer": "char", "max_length": 32, "buckets": (32,), "batch_tokens": 512}
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **sizes),
        data=TaggedConfig(train=text, **data, cache_dir=folder / "cache"),
        optimizer=dataclasses.replace(
            config.optimizer, schedule="inverse_sqrt", warmup_steps=1, epsilon=1e-4
        ),
        decoding=changed_search(config.decoding, {"rows": 8, "buckets": (32,)}),
        mesh=MeshConfig(*LAYOUTS[layout][1:]),
    )
    return changed(config, steps=STEPS, evaluate_every=STEPS // 2, log_every=1, **training)


def speech_config(folder: Path, layout: str, **training: int) -> Config:
    """The config of a small system that hears one digit. Without exhibits, which take as long as the rest."""
    config = PRESETS["speech"]
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0, "channels": 8}
    data = {"built_in_size": 40, "most_digits": 1, "bands": 8, "max_length": 160, "buckets": (160,)}
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **sizes),
        data=RecordingsConfig(**data, batch_tokens=16 * 160, max_text=4, cache_dir=folder / "cache"),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=1, epsilon=1e-4),
        decoding=changed_search(
            config.decoding, {"method": "greedy", "rows": 8, "extra_length": 2, "buckets": (160,)}
        ),
        mesh=MeshConfig(*LAYOUTS[layout][1:]),
    )
    return changed(config, steps=STEPS, evaluate_every=STEPS // 2, log_every=1, **{"samples": 0} | training)


def synthesis_config(folder: Path, layout: str, **training: int) -> Config:
    """The config of a small system that speaks one digit."""
    config, heard = PRESETS["synthesis"], speech_config(folder, layout, **training)
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0}
    sizes |= {"prenet_width": 8, "prenet_dropout": 0.0, "postnet_width": 8, "own_frames": 0.0}
    data = dataclasses.replace(heard.data, normalisation="corpus", max_text=8)
    decoding = dataclasses.replace(config.decoding, rows=8, buckets=(8,), max_length=40)
    model = dataclasses.replace(config.model, **sizes)
    return dataclasses.replace(heard, system="synthesis", model=model, data=data, decoding=decoding)


def nonautoregressive_config(folder: Path, layout: str, **training: int) -> Config:
    """The same without autoregression, with the durations of what was trained on one device."""
    config, taught = PRESETS["nonautoregressive-synthesis"], synthesis_config(folder, layout, **training)
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0, "postnet_width": 8}
    model = dataclasses.replace(config.model, **sizes, teacher=folder.parent / "synthesis" / "one-whole")
    decoding = dataclasses.replace(config.decoding, rows=8, buckets=(8,), max_length=40)
    return dataclasses.replace(taught, system="nonautoregressive-synthesis", model=model, decoding=decoding)


def pictures_config(name: str, folder: Path, layout: str, **training: int) -> Config:
    """The config of a small system that sees one shape."""
    config = PRESETS[name]
    sizes = {"num_layers": 1, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "dropout": 0.0}
    data = {"built_in_size": 80, "most_shapes": 1, "picture_size": 16, "batch_tokens": 128}
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **sizes, patch_size=8),
        data=dataclasses.replace(config.data, **data, cache_dir=folder / "cache"),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=1, epsilon=1e-4),
        decoding=changed_search(config.decoding, {"method": "greedy", "rows": 8}),
        mesh=MeshConfig(*LAYOUTS[layout][1:]),
    )
    return changed(config, steps=STEPS, evaluate_every=STEPS // 2, log_every=1, **{"samples": 0} | training)


PICTURES = ("captioning", "detection")
RECORDINGS = {
    "speech": speech_config,
    "synthesis": synthesis_config,
    "nonautoregressive-synthesis": nonautoregressive_config,
}


def variables(run_dir: Path) -> dict[str, np.ndarray]:
    """Everything that the last checkpoint has for decoding."""
    run = Run(run_dir)
    leaves = jax.tree_util.tree_leaves_with_path(run.variables("last"))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def evaluated(config: Config, run_dir: Path) -> dict[str, np.ndarray]:
    """Trains, evaluates, and returns the variables and the loss of every step."""
    train(config, run_dir, watch=quiet())
    return {
        **variables(run_dir),
        "losses": np.array([r["loss"] for r in Run(run_dir).log.records("training")]),
    }


def trained(config: Config, run_dir: Path) -> dict[str, np.ndarray]:
    """The same, but saves checkpoints without evaluations, which take as long as the training."""
    with (
        patch.object(Loop, "_checkpoint", lambda loop, stop: loop.run.checkpoints.save(loop.state)),
        patch.object(Loop, "report", lambda *_: None),
    ):
        return evaluated(config, run_dir)


def main(folder: Path, layout: str, other: str, which: str) -> None:
    for name in TRAINED if which == "all" else QUICK:
        of_toy = folder / name
        of_toy.mkdir(exist_ok=True)
        config, whole = toy_config(name, of_toy, layout), of_toy / f"{layout}-whole"
        found = {"whole": evaluated(config, whole)}
        if is_resumed(name, layout):
            found["resumed"] = trained(config, interrupted(whole, of_toy / f"{layout}-resumed"))
        if other:
            found["moved"] = trained(
                config, interrupted(of_toy / f"{other}-whole", of_toy / f"{layout}-moved")
            )
        else:
            accumulated = toy_config(name, of_toy, layout, accumulate=2)
            found["accumulated"] = trained(accumulated, of_toy / f"{layout}-accumulated")
        for kind, arrays in found.items():
            np.savez(of_toy / f"{layout}-{kind}.npz", **arrays)
    print(json.dumps({"devices": jax.device_count()}))


if __name__ == "__main__":
    toys.register_toys()
    main(Path(sys.argv[1]), *sys.argv[2:])
