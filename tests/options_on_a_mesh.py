"""One update of the networks of pretrained models on one device and on a mesh of four, and a search with
parameters that are sharded over the mesh, in its own process: see `test_sharded_options.py`.

Prints for each network that is named on the command line how far apart the losses and the parameters are; of
those in `pretrained`, also how many n-best lists of a search are those of the reference.
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
from transformer.config.options import MeshConfig
from transformer.interop.pretrained import import_model
from transformer.runs.run import Run
from transformer.systems.registry import find_system
from transformer.training.sharding import layout_of
from transformer.translator.translator import Translator

DATA = Path(__file__).parent / "data"
FOLDERS: dict[str, tuple[str, ...]] = {
    "pretrained/bart": (),
    "pretrained/t5-1.1": (),
    "pretrained/nllb": ("eng_Latn", "deu_Latn"),
    "whisper": ("en",),
    "torch/post": (),
}
ROWS, LENGTH = 8, 8
Leaves = list[np.ndarray]


SSRU = "ssru"
"""BART with the decoder of Marian's files."""
NAMES = [*FOLDERS, SSRU]
MESH = MeshConfig(fsdp=2, tensor=2)


def network(run: Run, name: str) -> Config:
    """That of an imported model, with one layer on each side."""
    changes = {"num_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    changes |= {"decoder_recurrence": "ssru"} if name == SSRU else {}
    return replace(run.config, model=replace(run.config.model, **changes))


def batch_of(config: Config) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    last = min(20, config.model.vocab_size)
    ids = {side: random.integers(4, last, (ROWS, LENGTH)).astype(np.int32) for side in ("source", "target")}
    if config.system == "speech":
        ids["source"] = random.normal(size=(ROWS, 4 * LENGTH, config.data.bands)).astype(np.float32)
    return ids


def updated(
    config: Config, mesh: MeshConfig, devices: int
) -> tuple[float, list[np.ndarray], list[np.ndarray]]:
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
    """The difference of the losses, relative to them, and the largest of any parameter, relative to the
    largest change of one."""
    loss, before, one = updated(config, MeshConfig(), 1)
    sharded_loss, _, four = updated(config, MESH, 4)
    change = max(float(np.abs(a - b).max()) for a, b in zip(one, before, strict=True))
    difference = max(float(np.abs(a - b).max()) for a, b in zip(one, four, strict=True))
    return {"loss": abs(sharded_loss / loss - 1), "parameters": difference / change, "change": change}


def lists_of_reference(run: Run, golden: Any) -> tuple[int, int]:
    """How many n-best lists are those of the reference, and how many it has."""
    layout = layout_of(MESH, declared_parameters(run.config))
    translator = Translator.of_run(run, layout.place(run.variables("last")))
    assert any(not leaf.is_fully_replicated for leaf in jax.tree.leaves(translator.variables))
    search = golden["searches"][0]
    assert search["num_beams"] == 1
    limits: dict[str, Any] = {"max_length": 19, "extra_length": 50, "rows": 8, "buckets": (32,)}
    results = translator.search(golden["sources"], beam_size=1, stop="present", **limits)
    lists = [[hypothesis.text.strip(" ") for hypothesis in several] for several in results]
    expected = [several and [text for text, _ in several] for several in search["n_best"]]
    equal = [a == b for a, b in zip(lists, expected, strict=True) if b is not None]
    return sum(equal), len(equal)


def main(names: list[str], folder: Path) -> None:
    found: dict[str, Any] = {}
    for name in names:
        of = "pretrained/bart" if name == SSRU else name
        run = import_model(DATA / of, folder / name, *FOLDERS[of])
        found[name] = compared(network(run, name))
        if name.startswith("pretrained"):
            golden = json.loads((DATA / name / "golden.json").read_text())
            found[name]["lists"], found[name]["expected"] = lists_of_reference(run, golden)
    print(json.dumps(found))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1:], Path(folder))
