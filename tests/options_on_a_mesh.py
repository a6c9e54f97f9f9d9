"""One update of the networks of pretrained models on one device and on a mesh of four, and a search with the
parameters on that mesh, in its own process: see `test_sharded_options.py`.

Prints for each network the largest difference of the loss and of any parameter after the update, relative to
the largest change, and of scores.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from of_a_config import declared_parameters, model_shapes
from toy_batches import state_of

from transformer import Config, make_train_step
from transformer.config import MeshConfig
from transformer.interop.pretrained import import_model
from transformer.model.sharding import layout_of
from transformer.runs.run import Run
from transformer.systems.registry import find_system

DATA = Path(__file__).parent / "data"
FOLDERS: dict[str, tuple[str, ...]] = {
    "pretrained/bart": (),
    "pretrained/t5-1.1": (),
    "pretrained/nllb": ("eng_Latn", "deu_Latn"),
    "whisper": ("en",),
    "bert/one-layer": (),
    "torch/post": (),
}
ROWS, LENGTH = 8, 8


def configs(folder: Path) -> dict[str, Config]:
    """Those of imported models, with one layer on each side; and BART's with the decoder of Marian's."""
    found = {}
    for name, languages in FOLDERS.items():
        config = import_model(DATA / name, folder / name, *languages).config
        found[name] = replace(config, model=replace(config.model, num_layers=1, decoder_layers=1, dropout=0.0))
    bart = found["pretrained/bart"]
    found["ssru"] = replace(bart, model=replace(bart.model, decoder_recurrence="ssru"))
    return found


def batch_of(config: Config) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    last = min(20, config.model.vocab_size)
    ids = {side: random.integers(4, last, (ROWS, LENGTH)).astype(np.int32) for side in ("source", "target")}
    if config.system == "speech":
        ids["source"] = random.normal(size=(ROWS, 4 * LENGTH, config.data.bands)).astype(np.float32)
    return ids


def updated(config: Config, mesh: MeshConfig, devices: int) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
    """The loss, and the parameters before and after."""
    system, random = find_system(config.system), np.random.default_rng(0)
    shapes = model_shapes(config)["params"]
    params = jax.tree.map(lambda x: 0.25 * random.standard_normal(x.shape, np.float32), shapes)
    model, optimizer = system.model(config.model), optax.sgd(1.0)
    layout = layout_of(mesh, declared_parameters(config), jax.devices()[:devices])
    step = make_train_step(model, system.objective(config, None), optimizer, seed=0, gather=layout.gather)
    state = layout.place(state_of(params, optimizer))
    (batch,) = layout.batches([batch_of(config)])
    state, metrics = layout.compile_step(step)(state, batch)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]
    return float(metrics["loss"]), jax.tree.leaves(params), leaves


def compared(config: Config) -> dict[str, float]:
    (loss, before, one), (loss_of_mesh, _, four) = (
        updated(config, mesh, devices) for mesh, devices in ((MeshConfig(), 1), (MeshConfig(2, 2), 4))
    )
    change = max(float(np.abs(a - b).max()) for a, b in zip(one, before, strict=True))
    off = max(float(np.abs(a - b).max()) for a, b in zip(one, four, strict=True))
    return {"loss": abs(loss_of_mesh / loss - 1), "parameters": off / change, "change": change}


if __name__ == "__main__":
    import time
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {}
        for name, config in configs(Path(folder)).items():
            t=time.time()
            found[name] = compared(config)
            print(name, found[name], time.time()-t, file=sys.stderr)
    print(json.dumps(found))
