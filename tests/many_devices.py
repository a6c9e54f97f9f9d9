"""Trains a toy model on all devices, and writes the results.

It runs in a separate process, `python many_devices.py '{"part": "training", "cuts": [1, 1], "output":
"found.json"}'` (the function of the result; the arguments of `MeshConfig`); for several processes, with
`"process": 0, "processes": 2, "port": 1234` as well.
"""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from toy_batches import WORDS, a_batch, state_of

from transformer.config.options import Config, MeshConfig
from transformer.config.transformer import TransformerConfig
from transformer.model.declarations import declarations
from transformer.model.transformer import Transformer
from transformer.tasks.texts.translation import Translation
from transformer.training.objective import Loss, translation_objective
from transformer.training.sharding import Layout, layout_of
from transformer.training.step import EvalState, init_state, make_eval_step, make_train_step

STEPS, ROWS = 20, 16


def share(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """This process's rows of a batch."""
    rows = ROWS // jax.process_count()
    return {name: ids[jax.process_index() * rows :][:rows] for name, ids in batch.items()}


def whole(x: jax.Array) -> np.ndarray:
    """An array that may be sharded over several processes."""
    return np.asarray(x if x.is_fully_replicated else multihost_utils.process_allgather(x, tiled=True))


def network(dropout: float, normalization: Any = "layer") -> TransformerConfig:
    """A network of one layer."""
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2}
    return TransformerConfig(vocab_size=WORDS, dropout=dropout, normalization=normalization, **sizes)


def train(
    layout: Layout, dropout: float, times: int = 1, reduce_dtype: str = "float32"
) -> list[dict[str, Any]]:
    """For each run: losses of some updates, all parameters, a hash of their bits, a validation loss."""
    model, optimizer, rng = (
        Transformer(network(dropout)),
        optax.adam(0.01, eps=1e-4),
        np.random.default_rng(0),
    )
    shapes = jax.eval_shape(model.init, jax.random.key(0), *Translation.example(Config()))["params"]
    params = jax.tree.map(lambda x: 0.25 * rng.standard_normal(x.shape, np.float32), shapes)
    objective = translation_objective(0.1)
    step = make_train_step(
        model, objective, optimizer, seed=5, gather=layout.gather, reduce_dtype=reduce_dtype
    )
    step = layout.compile_step(step, donate_state=True)
    measure = layout.compile_step(make_eval_step(model, objective))
    found = []
    for _ in range(times):
        state, losses = layout.place(state_of(params, optimizer)), []
        for batch in layout.batches(share(a_batch(rows=ROWS, seed=seed)) for seed in range(STEPS)):
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss"]))
        (batch,) = layout.batches([share(a_batch(rows=ROWS, seed=99))])
        leaves = [whole(leaf) for leaf in jax.tree.leaves(state.params)]
        found.append(
            {
                "losses": losses,
                "validation": float(measure(EvalState({"params": state.params}), batch)[1]["nll"][0]),
                "began": [leaf.ravel().tolist() for leaf in jax.tree.leaves(params)],
                "params": [leaf.ravel().tolist() for leaf in leaves],
                "bits": hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest(),
                "bytes": sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state.params)),
            }
        )
    return found


def training(layout: Layout) -> dict[str, Any]:
    """Without dropout."""
    return train(layout, 0.0)[0]


def dropout(layout: Layout) -> dict[str, Any]:
    """With dropout, twice, and without."""
    first, again = train(layout, 0.3, times=2)
    return {"dropout": first, "again": again, "losses": train(layout, 0.0)[0]["losses"]}


def replicas(layout: Layout) -> dict[str, Any]:
    """What only whole copies of a model have: random numbers of their own, and gradients that are sent."""
    rounded = train(layout, 0.0, reduce_dtype="bfloat16")[0]["losses"]
    return {"draws": random_numbers(layout), "rounded": rounded, "losses": train(layout, 0.0)[0]["losses"]}


def mapped(layout: Layout) -> dict[str, Any]:
    """Replicas by `jax.pmap`, and by `jax.shard_map`: losses, parameters and the memory of rows."""
    results = []
    for each in (layout, layout_of(MeshConfig(replicas="shard_map"))):
        (result,) = train(each, 0.3)
        results.append([result["losses"], result["bits"], memory(each)])
    return {"results": results, "memory": (2 * a_batch(rows=ROWS)["source"][:, 0]).tolist()}


def memory(layout: Layout) -> list[float]:
    """The memory of rows that add their first ids, after two updates."""

    def step(state: Any, batch: Any, *, axis_name: str | None = None) -> tuple[Any, Any]:
        return replace(state, carry=state.carry + batch["source"][:, :1]), {}

    state = layout.place(replace(state_of(jnp.zeros(()), optax.sgd(1.0)), carry=jnp.zeros((ROWS, 1), int)))
    compiled = layout.compile_step(step, donate_state=True)
    for batch in layout.batches(2 * [a_batch(rows=ROWS)]):
        state, _ = compiled(state, batch)
    return np.asarray(state.carry).ravel().tolist()


def statistics(layout: Layout) -> dict[str, Any]:
    """Of each normalisation that has them."""
    return {kind: statistics_of(layout, kind) for kind in ("batch", "power")}


def random_numbers(layout: Layout) -> tuple[float, float]:
    """The mean and the mean square of one random number from each replica."""

    def objective(model: Any, variables: Any, batch: Any, context: Any) -> Loss:
        draw, one = jax.random.uniform(context.key), jnp.ones(())
        return Loss(0 * variables["params"], one, {"draw": (draw, one), "square": (draw**2, one)})

    step = layout.compile_step(make_train_step(None, objective, optax.sgd(1.0), seed=0))
    (batch,) = layout.batches([a_batch(rows=ROWS)])
    _, metrics = step(layout.place(state_of(jnp.zeros(()), optax.sgd(1.0))), batch)
    return float(metrics["draw"]), float(metrics["square"])


def statistics_of(layout: Layout, normalization: str) -> list[list[float]]:
    """Parameters and running statistics after three updates with this normalisation."""
    model, optimizer = Transformer(network(0.0, normalization)), optax.sgd(0.05)
    initial = init_state(model, optimizer, 0, Translation.example(Config()))
    step = make_train_step(model, translation_objective(0.1), optimizer, seed=5, gather=layout.gather)
    state, step = layout.place(initial), layout.compile_step(step, donate_state=True)
    for batch in layout.batches(share(a_batch(rows=ROWS, seed=seed)) for seed in range(3)):
        state, _ = step(state, batch)
    return [whole(leaf).ravel().tolist() for leaf in jax.tree.leaves((state.params, state.statistics))]


def main(given: dict[str, Any]) -> None:
    """The work of one process."""
    if "processes" in given:
        address = f"localhost:{given['port']}"
        jax.distributed.initialize(address, given["processes"], given["process"])
    sizes = MeshConfig(*given["cuts"])
    layout = layout_of(sizes, declarations(Transformer(network(0.0)), Translation.example(Config())))
    part = {each.__name__: each for each in (training, dropout, replicas, mapped, statistics)}[given["part"]]
    found = {"devices": jax.device_count(), **part(layout)}
    Path(given["output"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
