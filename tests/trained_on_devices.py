"""Updates of a model with frozen parts, of an adapter and by Muon, on one device, eight replicas and a mesh,
in a separate process: see `test_parametrisation.py`.

Prints for each kind and layout how far the parameters are from those on one device, relative to the largest
change of one, and whether all that is fixed kept its bits.
"""

import json
from typing import Any

import jax
import numpy as np
import optax
from flax.traverse_util import flatten_dict
from of_a_config import declared_parameters, model_shapes
from toy_batches import WORDS, a_batch

from transformer import Config, TransformerConfig, make_train_step, translation_objective
from transformer.config.methods import AdapterConfig
from transformer.config.options import MeshConfig
from transformer.config.training import OptimizerConfig, TrainingConfig
from transformer.systems.registry import find_system
from transformer.training.parametrisation import parametrisation_of
from transformer.training.schedule import make_optimizer
from transformer.training.sharding import layout_of
from transformer.training.step import init_state

SIZES: dict[str, Any] = {"num_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "dropout": 0.0}
MODEL = TransformerConfig(vocab_size=WORDS, dtype="float32", **SIZES)
KINDS = {
    "frozen": Config(model=MODEL, training=TrainingConfig(freeze=("encoder", "*cross_attention"))),
    "adapter": Config(model=MODEL, adapter=AdapterConfig(rank=2)),
    "muon": Config(model=MODEL, optimizer=OptimizerConfig("muon", "constant", peak=0.1, warmup_steps=1)),
}
LAYOUTS = {"one": (1, MeshConfig()), "replicas": (8, MeshConfig()), "mesh": (8, MeshConfig(2, 2))}
UPDATES = 3
Params = dict[tuple[str, ...], np.ndarray]


def updated(config: Config, devices: int, mesh: MeshConfig) -> tuple[Params, Params]:
    """The parameters before and after."""
    system, random = find_system(config.system), np.random.default_rng(0)
    shapes, declared = model_shapes(config)["params"], declared_parameters(config)
    params = jax.tree.map(lambda x: 0.3 * random.standard_normal(x.shape, np.float32), shapes)
    how = parametrisation_of(config, params, declared)
    model = system.model(config.model)
    plain = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(1.0))
    optimizer = make_optimizer(config, declared) if config.optimizer.algorithm == "muon" else plain
    layout = layout_of(mesh, declared, jax.devices()[:devices])
    example = system.task.example(config)
    state = layout.place(
        init_state(model, optimizer, 0, example, variables={"params": params}, parametrisation=how)
    )
    step = make_train_step(model, translation_objective(0.1), optimizer, seed=0, gather=layout.gather)
    compiled = layout.compile_step(step, donate_state=True)
    for batch in layout.batches([a_batch(seed=seed) for seed in range(UPDATES)]):
        state, _ = compiled(state, batch)
    after = how.merge(*jax.device_get((state.trained, state.fixed)))
    return flatten_dict(params), {path: np.asarray(x) for path, x in flatten_dict(after).items()}


def main() -> None:
    found: dict[str, dict[str, Any]] = {}
    for kind, config in KINDS.items():
        how = parametrisation_of(config, model_shapes(config)["params"], declared_parameters(config))
        one: Params = {}
        for layout, (devices, mesh) in LAYOUTS.items():
            before, after = updated(config, devices, mesh)
            one = one or after
            change = max(float(np.abs(after[path] - before[path]).max()) for path in before)
            found[f"{kind}, {layout}"] = {
                "difference": max(float(np.abs(after[x] - one[x]).max()) for x in before) / change,
                "fixed": all(bool((after[path] == before[path]).all()) for path in how.fixed),
                "change": change,
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
