"""One update of every system on eight replicas and on a mesh, in its own process: see `test_sharding.py`.

Prints the largest difference of any parameter for each system.
"""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import optax
from drawn_batches import small_pictures, with_pictures
from of_a_config import declared_parameters
from untrained_teacher import untrained_teacher

from transformer import Config, DataConfig, TrainingConfig, init_state, make_train_step
from transformer.config.options import MeshConfig
from transformer.systems.registry import REGISTRY, find_system, options_of
from transformer.training.sharding import layout_of

SIZES = {
    "vocab_size": 13,
    "num_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
    "dropout": 0.0,
    "memory": 4,
}
OPTIONS = {
    "nonautoregressive": {"decoder_input": "length"},  # without random masks
    "language-model": {"memory": 4},
    "synthesis": {"bands": 80, "prenet_dropout": 0.0},
    "nonautoregressive-synthesis": {"bands": 80, "teacher": Path("untrained")},
}
DATA = DataConfig(tokenizer="open-word", cache_dir=Path("none"))


def config_of(name: str) -> Config:
    options = options_of(name)
    model, decoding, data = options.model, options.decoding, options.data
    known = {item.name for item in dataclasses.fields(model)}
    options = {key: value for key, value in (SIZES | OPTIONS.get(name, {})).items() if key in known}
    special = {"data": DATA, "training": TrainingConfig(label_smoothing=0.0)} if name == "copying" else {}
    if data is not DataConfig:
        special = {"data": data(max_length=8, batch_tokens=32 * 8, **small_pictures(data))}
    return Config(system=name, model=model(**options), decoding=decoding(), **special)


def updated(config: Config, mesh: MeshConfig) -> list[np.ndarray]:
    system, random = find_system(config.system), np.random.default_rng(0)
    model, optimizer = system.model(config.model), optax.sgd(1.0)
    layout = layout_of(mesh, declared_parameters(config))
    step = make_train_step(
        model, system.objective(config, untrained_teacher(config)), optimizer, seed=0, gather=layout.gather
    )
    batch = {side: random.integers(4, 13, (32, 8)).astype(np.int32) for side in ("source", "target")}
    if sound := {"speech": "source", "synthesis": "target", "nonautoregressive-synthesis": "target"}.get(
        config.system
    ):
        batch[sound] = random.normal(size=(32, 8, config.data.bands)).astype(np.float32)
    batch["labels"] = batch["target"]  # of taggers
    if name := {"language-model": "characters"}.get(config.system):
        batch |= dict.fromkeys((name, "words"), np.ones((32, 8), np.float32))
    batch = with_pictures(config, batch)
    state = layout.place(
        init_state(model, optimizer, 0, system.task.example(config), carry=system.carry(config, False))
    )
    (placed,) = layout.batches([batch])
    state, _ = layout.compile_step(step)(state, placed)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


if __name__ == "__main__":
    found = {}
    for name in REGISTRY:
        config = config_of(name)
        pairs = zip(updated(config, MeshConfig()), updated(config, MeshConfig(2, 2)), strict=True)
        found[name] = max(float(np.abs(a - b).max()) for a, b in pairs)
    print(json.dumps(found))
